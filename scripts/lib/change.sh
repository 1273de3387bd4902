# shellcheck shell=bash
# shellcheck disable=SC2034 # $complaint is for those who call change
# Sourced: messages, and changes to the machine that are undone in reverse order at the end.

say() { printf 'launch: %s\n' "$*"; }

warn() { printf 'launch: warning: %s\n' "$*" >&2; }

fail() {
  printf 'launch: %s\n' "$*" >&2
  exit 1
}

undo_stack=() undo_words=()

# What DO of the last change complained of.
complaint=''

# A signal ends the script, but not between a change and the note of how to undo it.
held='' pending=''

# on_signal STATUS
on_signal() {
  pending=$1
  [ -n "$held" ] || exit "$1"
}

hold_signals() { held=yes; }

release_signals() {
  held=''
  [ -z "$pending" ] || exit "$pending"
}

# change WHAT OLD NEW DO -- UNDO: sets something and remembers how to undo it. DO and UNDO are
# commands. Returns DO's status.
change() {
  local what=$1 old=$2 new=$3 do=()
  shift 3
  while [ "$1" != -- ]; do
    do+=("$1")
    shift
  done
  shift
  if [ -n "${dry_run:-}" ]; then
    say "would set $what: $new (now $old)"
    return 0
  fi
  local status=0
  hold_signals
  complaint=$("${do[@]}" 2>&1) || status=$?
  if [ "$status" = 0 ]; then
    say "$what: $new (was $old)"
    undo_later "$what: $old again" "$@"
  fi
  release_signals
  return "$status"
}

# undo_later WORDS COMMAND...: runs COMMAND at the end, before what was remembered earlier.
undo_later() {
  undo_words+=("$1")
  shift
  undo_stack+=("$(printf '%q ' "$@")")
}

# Undoes everything. Nothing interrupts it, and what fails does not keep the rest from being undone.
undo_all() {
  trap '' INT TERM HUP
  trap - EXIT
  local i
  # Only where the script itself fails is the box still there.
  if [ -n "${box_pid:-}" ] && kill -TERM "$box_pid" 2>/dev/null; then
    wait "$box_pid" || true
  fi
  for ((i = ${#undo_stack[@]} - 1; i >= 0; i--)); do
    if (eval "${undo_stack[i]}") >/dev/null 2>&1; then
      say "${undo_words[i]}"
    else
      warn "cannot be undone: ${undo_words[i]} (${undo_stack[i]})"
    fi
  done
  undo_stack=() undo_words=()
}

# Writes $2 to the file $1.
put() { printf '%s\n' "$2" >"$1"; }
