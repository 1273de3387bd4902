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
  --reply HOW          unicast, one result for each worker, or multicast, one for all (unicast)
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

workers=4 rounds=3 model=resnet50 mtu=1500 dtype=f32 op=sum reply=unicast queues=1
loss=0 duplicate=0 reorder=0 seed=1 straggler=0 port='' json=''

fail() {
  printf 'demo: %s\n' "$*" >&2
  exit 1
}

parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit 0 ;;
      --workers | --rounds | --model | --mtu | --dtype | --op | --reply | --queues | --loss | \
        --duplicate | --reorder | --seed | --straggler | --port | --json)
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
  [[ $reply =~ ^(unicast|multicast)$ ]] || fail "--reply $reply: needs unicast or multicast"
  local name
  for name in loss duplicate reorder; do
    [[ ${!name} =~ ^(0(\.[0-9]+)?|1(\.0+)?)$ ]] || fail "--$name ${!name}: needs 0 to 1, such as 0.05"
  done
  [[ $straggler =~ ^[0-9]{1,4}(\.[0-9]+)?$ ]] || fail "--straggler $straggler: needs seconds"
  [[ $seed =~ ^[0-9]{1,18}$ ]] || fail "--seed $seed: needs a whole number"
  [ -z "$json" ] || touch "$json" 2>/dev/null || fail "--json $json cannot be written"
  model_csv=$model
  [ -f "$model_csv" ] || model_csv=$top/tests/data/models/$model.csv
  [ -f "$model_csv" ] || fail "--model $model: no such file, and none of: $(model_names)"
  [[ $port =~ ^(xdp|udp|)$ ]] || fail "--port $port: needs xdp or udp"
  isolated=yes
  if ! can_isolate; then
    isolated=''
    [ "$port" != xdp ] || fail "--port xdp needs root: use sudo, or --port udp"
    port=udp
    echo "demo: not root, so without AF_XDP and namespaces: ordinary UDP sockets on loopback"
  fi
  port=${port:-xdp}
}

# Whether this user may make network namespaces. In some containers not even root may.
can_isolate() { [ "$(id -u)" = 0 ] && unshare --net true 2>/dev/null; }

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
    if grep ^READY "$work/box.out" 2>/dev/null; then
      return
    fi
    kill -0 "$box_pid" 2>/dev/null || break
    sleep 0.1
  done
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

# run_workers JOB OWN ARGUMENT...: one all-reduce in all workers. The function OWN puts a rank's own
# arguments into the array `own`.
run_workers() {
  local job=$1 own_of=$2 rank failed=0 own=()
  shift 2
  worker_pids=()
  for ((rank = 0; rank < workers; rank++)); do
    local log
    # The first worker's progress is shown as it goes.
    if [ "$rank" = 0 ]; then exec {log}>&2; else exec {log}>"$work/$job.$rank.log"; fi
    "$own_of" "$rank"
    run_in "w$rank" "$gradbox" all-reduce --box "$box_ip:$control_port" --job "$job" \
      --rank "$rank" --world "$workers" --op "$op" --reply "$reply" --timeout 300 \
      --json "$work/$job.$rank.json" "${own[@]}" "$@" >&"$log" 2>&1 &
    worker_pids+=($!)
    exec {log}>&-
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
  local files=() rank wire=()
  for ((rank = 0; rank < workers; rank++)); do
    local step=step00
    [ $((rank / 4 % 2)) = 1 ] && step=step60
    files+=("$top/tests/data/gradients/$step/rank$((rank % 4)).safetensors")
  done
  own_file() { own=("${files[$1]}" --output "$work/real.$1.safetensors"); }
  [ "$dtype" = f32 ] || wire=(--wire-dtype "$dtype")
  echo "real gradients of a CNN (283,978 parameters), $workers workers:"
  run_workers real own_file "${wire[@]}" --verify-with "${files[@]}"
  echo "verified: real gradients bit-identical to the rank-order reference"
}

whole_model() {
  local rank last=$((workers - 1)) delay=() late=()
  if [[ ! $straggler =~ ^0*\.?0*$ ]]; then
    delay=(--delay "$straggler") late=(--straggler "$last")
  fi
  own_delay() { if [ "$1" = "$last" ]; then own=("${delay[@]}"); else own=(); fi; }
  echo "$(basename "$model_csv" .csv), $workers workers, $rounds rounds of generated values:"
  start_watching "$work/statuses.jsonl"
  run_workers model own_delay --model "$model_csv" --seed "$seed" --dtype "$dtype" --rounds "$rounds" \
    --verify --progress
  stop_watching "$work/statuses.jsonl"
  local files=()
  for ((rank = 0; rank < workers; rank++)); do files+=("$work/model.$rank.json"); done
  echo
  "$gradbox" report "${files[@]}" --statuses "$work/statuses.jsonl" "${late[@]}" \
    ${json:+--json "$json"}
}

cleanup() {
  local status=$? pid
  # A second Ctrl-C does not stop this.
  trap '' INT TERM HUP
  trap - EXIT
  # Only processes that this script has started.
  for pid in ${watch_pid:-} "${worker_pids[@]}" ${box_pid:-}; do
    kill "$pid" 2>/dev/null || true
  done
  for pid in ${watch_pid:-} "${worker_pids[@]}" ${box_pid:-}; do
    wait "$pid" 2>/dev/null || true
  done
  remove_network
  [ "$status" != 1 ] || [ ! -s "$work/box.err" ] || sed 's/^/demo: the box said: /' "$work/box.err" >&2
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
trap 'exit 129' HUP
control_port=9099 port_base=9100
if [ -z "$isolated" ]; then
  # On loopback others may run a demo too.
  control_port=$((10000 + $$ % 1100 * 20)) port_base=$((control_port + 1))
fi
make_network
start_box
real_gradients
whole_model
