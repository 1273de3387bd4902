#!/usr/bin/env bash
# Starts the box on a machine: looks whether it can run there, sets the NIC as the configuration
# says, runs the box, and puts everything back as it was when the box ends, however it ends.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/lib/setup.sh
. "$top/scripts/lib/setup.sh"
# shellcheck source=scripts/lib/change.sh
. "$top/scripts/lib/change.sh"
# shellcheck source=scripts/lib/machine.sh
. "$top/scripts/lib/machine.sh"
# shellcheck source=scripts/lib/nic.sh
. "$top/scripts/lib/nic.sh"

usage() {
  cat <<'TXT'
usage: scripts/launch.sh CONFIG [--dry-run]
  CONFIG      configuration of the box (TOML, see configs/)
  --dry-run   only say what would be changed
The binary is $GRADBOX_BIN, or target/release/gradbox, which is built where it is missing.
TXT
}

parse_options() {
  config='' dry_run=''
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --dry-run) dry_run=yes ;;
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

# Asks the binary what the configuration says; the values are in variables box_KEY.
read_config() {
  local key value values
  values=$("$gradbox" run --config "$config" --check --shell) || exit 1
  while IFS='=' read -r key value; do
    [[ $key =~ ^[a-z_]+$ ]] && printf -v "box_$key" '%s' "$value"
  done <<<"$values"
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
read_config
trap undo_all EXIT
trap 'on_signal 130' INT
trap 'on_signal 143' TERM HUP
if [ "${box_port:?}" = udp ]; then
  say "ordinary UDP sockets: nothing to set on this machine"
else
  # These two say and set what can be told from the variables box_KEY.
  check_machine
  prepare_nic
fi
if [ -n "$dry_run" ]; then
  say "dry run: nothing was changed, and the box not started"
  exit 0
fi
status=0
run_box || status=$?
say "the box has ended with status $status"
exit "$status"
