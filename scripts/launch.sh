#!/usr/bin/env bash
# Starts the box on a machine: sets machine and NIC as the configuration says (gradbox host apply),
# runs the box, and puts everything back as it was when the box ends, however it ends.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/lib/setup.sh
. "$top/scripts/lib/setup.sh"

usage() {
  cat <<'TXT'
usage: scripts/launch.sh CONFIG [--dry-run] [--state DIR]
  CONFIG       configuration of the box (TOML, see configs/)
  --dry-run    only say what would be changed
  --state DIR  where is written how everything was (/run/gradbox)
After a kill -9, `gradbox host undo --config CONFIG` puts everything back.
The binary is $GRADBOX_BIN, or target/release/gradbox, which is built where it is missing.
TXT
}

say() { printf 'launch: %s\n' "$*"; }

fail() {
  printf 'launch: %s\n' "$*" >&2
  exit 1
}

parse_options() {
  config='' dry_run='' state=/run/gradbox
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --dry-run) dry_run=yes ;;
      --state)
        [ $# -gt 1 ] || fail "--state needs a directory"
        state=$2
        shift
        ;;
      -*) usage >&2 && fail "unknown option $1" ;;
      *)
        [ -z "$config" ] || fail "one CONFIG, please: $config or $1"
        config=$1
        ;;
    esac
    shift
  done
  [ -n "$config" ] || { usage >&2 && fail "CONFIG is missing"; }
  [ -r "$config" ] || fail "$config cannot be read"
}

# The binary's path is in $gradbox.
find_gradbox() {
  gradbox=${GRADBOX_BIN:-${CARGO_TARGET_DIR:-$top/target}/release/gradbox}
  [ ! -x "$gradbox" ] || return 0
  [ -z "$dry_run" ] || fail "$gradbox is not built: cargo build --release -p gradbox"
  # shellcheck disable=SC2119 # nothing but the usual packages
  [ -n "${GRADBOX_BIN:-}" ] || install_packages
  build_gradbox
}

# Sets machine and NIC. Where that is refused nothing was changed, and there is nothing to undo.
apply() {
  local status=0
  "$gradbox" host apply --config "$config" --state "$state" || status=$?
  [ "$status" != 4 ] || trap - EXIT
  [ "$status" = 0 ] || exit "$status"
}

# Puts everything back. Nothing interrupts it.
undo() {
  local status=$?
  trap '' INT TERM HUP
  trap - EXIT
  # Only where the script itself ends is the box still there.
  local box
  box=$(jobs -pr)
  if [ -n "$box" ] && kill -TERM "$box" 2>/dev/null; then
    wait "$box" || true
  fi
  "$gradbox" host undo --config "$config" --state "$state" || [ "$status" != 0 ] || status=1
  exit "$status"
}

# Runs the box until it ends; signals go to it, its exit status is the function's.
run_box() {
  local status=0
  "$gradbox" run --config "$config" &
  box_pid=$!
  trap 'kill -INT "$box_pid" 2>/dev/null || true' INT
  trap 'kill -TERM "$box_pid" 2>/dev/null || true' TERM HUP
  # A signal ends `wait` too; then the box is still there, or its status can be asked for again.
  while wait "$box_pid" || status=$?; kill -0 "$box_pid" 2>/dev/null; do status=0; done
  if [ "$status" != 0 ]; then
    status=0
    wait "$box_pid" || status=$?
  fi
  return "$status"
}

parse_options "$@"
find_gradbox
"$gradbox" run --config "$config" --check
if [ -n "$dry_run" ]; then
  "$gradbox" host apply --config "$config" --dry-run
  say "dry run: nothing was changed, and the box not started"
  exit 0
fi
trap undo EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
apply
status=0
run_box || status=$?
say "the box has ended with status $status"
exit "$status"
