#!/usr/bin/env bash
# The whole of Gradbox on one machine: workers in network namespaces behind a bridge, the box on a
# veth of its own with AF_XDP, real gradients first and then a whole model, every bit checked.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/lib/setup.sh
. "$top/scripts/lib/setup.sh"
# shellcheck source=scripts/lib/network.sh
. "$top/scripts/lib/network.sh"

usage() {
  cat <<'TXT'
usage: scripts/demo.sh [options]
  --workers N          workers, 2 to 16 (4)
  --rounds R           rounds of the model (3)
  --model NAME         resnet50, vgg16, bert-base-uncased, ... or a CSV file (resnet50)
  --mtu BYTES          1500 or 3498 (1500)
  --dtype TYPE         f32, f16, bf16 or i32 (f32)
  --op OP              sum, avg, min or max (sum)
  --queues Q           queues and cores of the box (1)
  --loss P --duplicate P --reorder P
                       share of packets that the box's fault injector loses, doubles and
                       delays, in both directions, 0 to 1 (0)
  --seed S             seed of the injector and of the generated values (1)
  --straggler SECONDS  the last worker begins so much later than the others (0)
  --port xdp|udp       AF_XDP, or ordinary sockets (xdp as root, else udp)
  --json FILE          write the figures to FILE
TXT
}

workers=4 rounds=3 model=resnet50 mtu=1500 dtype=f32 op=sum queues=1
loss=0 duplicate=0 reorder=0 seed=1 straggler=0 port='' json=''

fail() {
  printf 'demo: %s\n' "$*" >&2
  exit 1
}

parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --workers | --rounds | --model | --mtu | --dtype | --op | --queues | --loss | --duplicate | \
        --reorder | --seed | --straggler | --port | --json)
        [ $# -ge 2 ] || fail "$1 needs a value"
        printf -v "${1#--}" '%s' "$2"
        shift 2
        ;;
      *) usage >&2 && fail "unknown option $1" ;;
    esac
  done
}

check_options() {
  is_between 2 16 "$workers" || fail "--workers $workers: needs 2 to 16"
  is_between 1 1000000 "$rounds" || fail "--rounds $rounds: needs 1 or more"
  is_between 1 16 "$queues" || fail "--queues $queues: needs 1 to 16"
  [[ $mtu == 1500 || $mtu == 3498 ]] || fail "--mtu $mtu: needs 1500 or 3498"
  [[ $dtype =~ ^(f32|f16|bf16|i32)$ ]] || fail "--dtype $dtype: needs f32, f16, bf16 or i32"
  [[ $op =~ ^(sum|avg|min|max)$ ]] || fail "--op $op: needs sum, avg, min or max"
  local number='^[0-9]*\.?[0-9]+$' p
  for p in "$loss" "$duplicate" "$reorder" "$straggler"; do
    [[ $p =~ $number ]] || fail "$p is not a number"
  done
  model_csv=$model
  [ -f "$model_csv" ] || model_csv=$top/tests/data/models/$model.csv
  [ -f "$model_csv" ] || fail "--model $model: no such file, and none of: $(model_names)"
  if [ -z "$port" ]; then
    port=xdp
    if [ "$(id -u)" != 0 ]; then
      port=udp
      echo "demo: not root, so without AF_XDP and namespaces: ordinary UDP sockets on loopback"
    fi
  fi
  [[ $port == xdp || $port == udp ]] || fail "--port $port: needs xdp or udp"
  [ "$port" = udp ] || [ "$(id -u)" = 0 ] || fail "--port xdp needs root: use sudo, or --port udp"
}

is_between() { [[ $3 =~ ^[1-9][0-9]{0,6}$ ]] && (($3 >= $1 && $3 <= $2)); }

model_names() {
  local f
  for f in "$top"/tests/data/models/*.csv; do basename "$f" .csv; done | tr '\n' ' '
}

# Mebibytes of frames that each core needs: for every chunk one frame per worker and one for the
# result before, and what the rings hold.
memory_mib() {
  local size=4 frame=2048 chunk=1408
  [[ $dtype == f16 || $dtype == bf16 ]] && size=2
  [ "$mtu" = 3498 ] && frame=4096 && chunk=3392
  awk -F, -v size=$size -v frame=$frame -v chunk=$chunk -v q="$queues" -v n="$workers" '
    NR > 1 { chunks += int(($NF * size + chunk - 1) / chunk) }
    END {
      frames = (int(chunks / q) + 1) * (n + 1) + 65536
      print int(frames * frame / 1048576) + 1
    }' "$model_csv"
}

write_config() {
  cat <<TXT
[control]
listen = "$box_ip:$control_port"

[data]
port = "$port"
$([ "$port" = xdp ] && echo 'interface = "box0"')
addresses = ["$box_ip"]
port_base = $port_base
queues = $queues
mtu = $mtu
memory_mib = $(memory_mib)
fill_ring = 8192
rx_ring = 8192
tx_ring = 8192
completion_ring = 8192
idle = "poll"

[faults]
loss = $loss
duplicate = $duplicate
reorder = $reorder
seed = $seed

[log]
level = "warn"
TXT
}

start_box() {
  write_config >"$work/box.toml"
  run_in box "$gradbox" run --config "$work/box.toml" >"$work/box.out" 2>"$work/box.err" &
  box_pid=$!
  local tries
  for ((tries = 0; tries < 100; tries++)); do
    if grep -q ^READY "$work/box.out"; then
      grep ^READY "$work/box.out"
      return
    fi
    kill -0 "$box_pid" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/box.err" >&2
  fail "the box did not start"
}

# Starts watching the box: a status every 0.2 s, until stop_watching.
start_watching() {
  run_in box "$gradbox" status --box "$box_ip:$control_port" --json >"$1"
  run_in box "$gradbox" status --box "$box_ip:$control_port" --json --watch 0.2 >>"$1" &
  watch_pid=$!
}

stop_watching() {
  kill "$watch_pid" 2>/dev/null || true
  wait "$watch_pid" 2>/dev/null || true
  watch_pid=''
  # The watcher may have been stopped in the middle of a line.
  sed -i '/}$/!d' "$1"
  run_in box "$gradbox" status --box "$box_ip:$control_port" --json >>"$1"
}

# Runs one all-reduce in all workers: their common arguments, a line each in the array `own`.
run_workers() {
  local job=$1 rank failed=0
  shift
  worker_pids=()
  for ((rank = 0; rank < workers; rank++)); do
    local out=$work/$job.$rank.log
    # The first worker's progress is shown as it goes.
    [ "$rank" = 0 ] && out=/dev/stderr
    # shellcheck disable=SC2086 # one argument a word
    run_in "w$rank" "$gradbox" all-reduce --box "$box_ip:$control_port" --job "$job" \
      --rank "$rank" --world "$workers" --op "$op" --timeout 300 --json "$work/$job.$rank.json" \
      "$@" ${own[rank]} >"$out" 2>&1 &
    worker_pids+=($!)
  done
  for ((rank = 0; rank < workers; rank++)); do
    if ! wait "${worker_pids[rank]}"; then
      failed=1
      echo "demo: worker $rank of job $job failed:" >&2
      [ "$rank" = 0 ] || cat "$work/$job.$rank.log" >&2
    fi
  done
  worker_pids=()
  return $failed
}

real_gradients() {
  if [ "$dtype" = i32 ]; then
    echo "real gradients are f32: left out for --dtype i32"
    return
  fi
  local files=() rank own=() wire=()
  for ((rank = 0; rank < workers; rank++)); do
    local step=step00
    [ $((rank / 4 % 2)) = 1 ] && step=step60
    files+=("$top/tests/data/gradients/$step/rank$((rank % 4)).safetensors")
  done
  for ((rank = 0; rank < workers; rank++)); do own+=("${files[rank]}"); done
  [ "$dtype" = f32 ] || wire=(--wire-dtype "$dtype")
  echo "real gradients of a CNN (283,978 parameters), $workers workers:"
  run_workers real "${wire[@]}" --verify-with "${files[@]}" --output /dev/null
  echo "verified: real gradients bit-identical to the rank-order reference"
}

whole_model() {
  local rank own=() late=()
  for ((rank = 0; rank < workers; rank++)); do own+=(''); done
  if [[ ! $straggler =~ ^0*\.?0*$ ]]; then
    own[workers - 1]="--delay $straggler"
    late=(--straggler $((workers - 1)))
  fi
  echo "$(basename "$model_csv" .csv), $workers workers, $rounds rounds of generated values:"
  start_watching "$work/statuses.jsonl"
  run_workers model --model "$model_csv" --seed "$seed" --dtype "$dtype" --rounds "$rounds" \
    --verify --progress
  stop_watching "$work/statuses.jsonl"
  local files=()
  for ((rank = 0; rank < workers; rank++)); do files+=("$work/model.$rank.json"); done
  echo
  "$gradbox" report "${files[@]}" --statuses "$work/statuses.jsonl" "${late[@]}" \
    ${json:+--json "$json"}
}

cleanup() {
  local pid
  trap - EXIT INT TERM
  # Only processes that this script has started.
  for pid in ${watch_pid:-} "${worker_pids[@]}" ${box_pid:-}; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in ${watch_pid:-} "${worker_pids[@]}" ${box_pid:-}; do
    wait "$pid" 2>/dev/null || true
  done
  remove_network
  rm -rf "$work"
}

parse_options "$@"
check_options
# shellcheck disable=SC2119 # nothing but the usual packages
install_packages
build_gradbox
work=$(mktemp -d)
worker_pids=()
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
control_port=9099 port_base=9100
make_network
start_box
real_gradients
whole_model
