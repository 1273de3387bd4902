#!/bin/busybox sh
# The scenarios of the guest: a box on one NIC, workers in a namespace on the other.
# usage: scenario.sh NAME

box_mac=52:54:00:00:00:0b worker_mac=52:54:00:00:00:0c
box_ip=10.77.0.1
# Last bytes of the addresses that workers may have, and of those that they have.
hosts='2 3 4 5 6 7 8 9' host0=2 host1=3
passed=0 failed=0

ok() { passed=$((passed + 1)) && echo "guest: ok: $*"; }

# bad WORDS [FILE]: with the end of a log.
bad() {
  failed=$((failed + 1))
  echo "guest: FAIL: $1"
  [ -z "${2:-}" ] || tail -n 30 "$2" | sed 's/^/guest: | /'
}

# expect WORDS PATTERN FILE
expect() {
  if grep -q "$2" "$3"; then ok "$1: $(grep -m1 "$2" "$3")"; else bad "$1: no \"$2\"" "$3"; fi
}

# interface MAC
interface() {
  local dir
  for dir in /sys/class/net/*; do
    [ "$(cat "$dir/address")" != "$1" ] || basename "$dir"
  done
}

# The workers' side of the network; in_workers runs a command there.
set_up_network() {
  nic=$(interface $box_mac) peer=$(interface $worker_mac)
  ip link set lo up
  ip address add $box_ip/24 dev "$nic"
  ip link set "$nic" up
  unshare -n sleep 100000 &
  workers=$!
  sleep 1
  ip link set "$peer" netns $workers
  in_workers ip link set lo up
  for host in $hosts; do in_workers ip address add 10.77.0.$host/24 dev "$peer"; done
  in_workers ip link set "$peer" up
  # QEMU's igb makes IP fragments of what it is to cut into datagrams.
  in_workers guest-probe offload --interface "$peer" --feature tx-udp-segmentation --off ||
    bad "cannot switch off tx-udp-segmentation of $peer"
  in_workers ping -c 1 -w 30 $box_ip >/dev/null || bad "no ping to the box"
}

in_workers() { nsenter -t "$workers" -n "$@"; }

# interrupts QUEUE: how many its receiving side has had.
interrupts() {
  awk -v name="$nic-.*[rR]x-$1\$" '$NF ~ name { for (i = 2; i < NF; i++) if ($i ~ /^[0-9]+$/) n += $i }
    END { print n + 0 }' /proc/interrupts
}

# Chooses the workers' addresses so that the NIC puts one into each queue: it hashes addresses, with
# a key that is new at each start.
choose_addresses() {
  local host before
  host0='' host1=''
  for host in $hosts; do
    before=$(interrupts 1)
    in_workers ping -c 4 -I 10.77.0.$host $box_ip >/dev/null
    if [ $(($(interrupts 1) - before)) -ge 3 ]; then host1=$host; else host0=$host; fi
    [ -z "$host0" ] || [ -z "$host1" ] || return 0
  done
  bad "all of the workers' addresses go to one queue" /proc/interrupts
}

# configure MODE QUEUES HUGE_PAGES: in /tmp/box.toml. Rings are small, so that their ends are met.
configure() {
  local cpus=''
  [ "$2" = 1 ] || cpus='cpus = [0, 1]'
  cat >/tmp/box.toml <<TOML
[control]
listen = "$box_ip:9099"
[data]
port = "xdp"
interface = "$nic"
mode = "$1"
transmit = "ring"
queues = $2
$cpus
memory_mib = 64
frame_bytes = $frame_bytes
fill_ring = 1024
rx_ring = 1024
tx_ring = 2048
completion_ring = 2048
idle = "poll"
huge_pages = $3
TOML
}

# start_box MODE QUEUES: then it is $box, its log /tmp/box.log.
start_box() {
  local tries
  configure "$1" "$2" false
  gradbox run --config /tmp/box.toml >/tmp/box.log 2>&1 &
  box=$!
  tries=0
  while ! grep -q '^READY' /tmp/box.log; do
    tries=$((tries + 1))
    if [ $tries -gt 300 ] || ! kill -0 $box 2>/dev/null; then return 1; fi
    sleep 0.2
  done
}

stop_box() {
  kill -INT $box
  wait $box
}

# worker RANK JOB ROUNDS OPTION...
worker() {
  local rank=$1 job=$2 rounds=$3 host=$host0
  [ "$rank" = 0 ] || host=$host1
  shift 3
  in_workers gradbox all-reduce --box $box_ip:9099 --job "$job" --rank "$rank" --world 2 \
    --bind 10.77.0.$host --model /guest/table.csv --rounds "$rounds" --verify --timeout 150 "$@" \
    >"/tmp/worker$rank.log" 2>&1
}

# all_reduce WORDS JOB ROUNDS: both workers, every bit compared.
all_reduce() {
  worker 0 "$2" "$3" &
  local first=$! status=0
  worker 1 "$2" "$3" || status=1
  wait $first || status=1
  if [ $status = 0 ]; then
    ok "$1: $3 rounds of 2 workers, every bit as in the reference"
  else
    bad "$1: a worker failed" /tmp/worker0.log
    tail -n 5 /tmp/worker1.log /tmp/box.log | sed 's/^/guest: | /'
  fi
}

# watch MODE OPTION...: then it is $probe, its log /tmp/probe.log.
watch() {
  local mode=$1
  shift
  guest-probe watch --pid $box --rings 1024,1024,2048,2048 --frame-bytes $frame_bytes --mode "$mode" "$@" \
    >/tmp/probe.log 2>&1 &
  probe=$!
  sleep 1
}

# watched_run MODE QUEUES: the rings are watched from outside while the box works.
watched_run() {
  start_box "$1" "$2" || { bad "the box does not start in mode $1" /tmp/box.log && return; }
  expect "$1, $2 queue(s): the box says so" "^READY xdp mode $1" /tmp/box.log
  # With two queues half of the packets come in on the wrong one, and are copied to their owner.
  watch "$1" --results $((2 * rounds * chunks / $2))
  all_reduce "$1, $2 queue(s)" "watched$1" $rounds
  stop_box || bad "the box ends badly" /tmp/box.log
  if wait $probe; then
    ok "$1, $2 queue(s): $(grep -c '^socket' /tmp/probe.log) socket(s) in that mode (XDP_OPTIONS), \
answers left at the addresses that their packets came in at, and came back by the completion ring"
  else
    bad "$1, $2 queue(s): the rings tell otherwise" /tmp/probe.log
  fi
  sed 's/^/guest: | /' /tmp/probe.log
}

# dry_run QUEUES: the first fill ring runs dry, for the box is stopped while packets come, and goes on later.
dry_run() {
  start_box zerocopy "$1" || { bad "the box does not start" /tmp/box.log && return; }
  watch zerocopy --results $((2 * rounds * chunks / $1)) --runs-dry
  # The second worker's delay keeps the job alive, and its addresses allowed, for long enough.
  worker 0 dry $rounds &
  local first=$! status=0
  worker 1 dry $rounds --delay 20 &
  local second=$!
  sleep 3
  kill -STOP $box
  in_workers guest-probe flood --to $box_ip:9100 --from 10.77.0.$host0 --packets 4000 --seconds 20 |
    sed 's/^/guest: | /'
  kill -CONT $box
  wait $first || status=1
  wait $second || status=1
  stop_box || bad "the box ends badly" /tmp/box.log
  if wait $probe; then
    ok "the fill ring ran dry: $(grep least /tmp/probe.log)"
  else
    bad "the fill ring did not run dry" /tmp/probe.log
    sed 's/^/guest: | /' /tmp/box.log
  fi
  if [ $status = 0 ]; then
    ok "after the fill ring ran dry: both workers ended, every bit as in the reference"
  else
    bad "a worker failed after the fill ring ran dry" /tmp/worker0.log
    tail -n 20 /tmp/box.log | sed 's/^/guest: | /'
  fi
}

# refusal REASON: the device cannot do zero-copy, for a reason that the bind tells.
refusal() {
  start_box auto 1 || { bad "the box does not start in mode auto" /tmp/box.log && return; }
  expect 'auto falls back to copy' '^READY xdp mode copy' /tmp/box.log
  expect 'auto says why' "refused zero-copy.*$1" /tmp/box.log
  all_reduce 'after the fall-back' fallback 1
  stop_box || bad "the box ends badly" /tmp/box.log
  if start_box zerocopy 1; then
    bad 'mode zerocopy fell back' /tmp/box.log
    stop_box
  else
    expect 'mode zerocopy refuses to fall back' "$1" /tmp/box.log
  fi
}

# Everything that the host's preparation may touch, as other programs see it.
settings() {
  /tools/ip -d link show dev "$nic"
  for what in -k -g -l -n; do ethtool $what "$nic" 2>&1; done
  cat /proc/sys/vm/nr_hugepages
  grep . /proc/irq/[0-9]*/smp_affinity_list
}

# as_before WORDS: the settings are those in /tmp/before.
as_before() {
  settings >/tmp/after
  if cmp -s /tmp/before /tmp/after; then
    ok "$1"
  else
    diff /tmp/before /tmp/after >/tmp/differences
    bad "$1: not as before" /tmp/differences
  fi
}

# ring PLACE: the NIC's RX ring, as ethtool says: 1 the largest, 2 the present one.
ring() { ethtool -g "$nic" | awk '$1 == "RX:" { print $2 }' | sed -n "$1p"; }

# host DRIVER QUEUES: `gradbox host` tells the truth of this NIC, sets it, and puts it back.
host() {
  local delay queues
  # Another MTU and a ring of another size, so that there is something to do.
  ip link set "$nic" mtu 1400
  settings >/tmp/before
  configure zerocopy "$2" true
  gradbox host check --config /tmp/box.toml >/tmp/check.log 2>&1
  [ $? = 4 ] || bad "host check: not the status of a fault, with an MTU of 1400" /tmp/check.log
  expect 'host check' "driver of $nic  *$1 " /tmp/check.log
  expect 'host check' "zero-copy of $nic  *offered by the driver" /tmp/check.log
  expect 'host check' "MTU of $nic  *1400  *1500" /tmp/check.log
  expect 'host check' "^  ip link set dev $nic mtu 1500" /tmp/check.log
  queues=$(ls -d /sys/class/net/"$nic"/queues/rx-* | wc -l)
  expect 'host check' "queues of $nic  *$queues " /tmp/check.log
  expect 'host check' "rx ring of $nic  *$(ring 2) " /tmp/check.log
  gradbox host apply --config /tmp/box.toml --state /tmp/host >/tmp/apply.log 2>&1 ||
    bad 'host apply' /tmp/apply.log
  sed 's/^/guest: | /' /tmp/apply.log
  settings >/tmp/applied
  if cmp -s /tmp/before /tmp/applied; then bad 'host apply changed nothing' /tmp/apply.log; fi
  gradbox host check --config /tmp/box.toml >/tmp/check.log 2>&1
  [ $? != 4 ] || bad 'host check finds faults after apply' /tmp/check.log
  gradbox host undo --config /tmp/box.toml --state /tmp/host >/tmp/undo.log 2>&1 ||
    bad 'host undo' /tmp/undo.log
  as_before 'host apply, then undo'
  for delay in 0.01 0.03 0.06 0.1 0.15 0.2 0.3 0.5; do
    gradbox host apply --config /tmp/box.toml --state /tmp/host >/dev/null 2>&1 &
    sleep $delay
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    gradbox host undo --config /tmp/box.toml --state /tmp/host >/tmp/undo.log 2>&1 ||
      bad "host undo after a kill" /tmp/undo.log
    as_before "host apply, killed after $delay s, then undo"
  done
  ip link set "$nic" mtu 1500
}

# 2 tensors: 200000 and 1000 numbers of 4 bytes, 1408 of them a packet.
chunks=$((569 + 3))
rounds=3 frame_bytes=2048

set_up_network
case $1 in
  virtio)
    host virtio_net 1
    watched_run zerocopy 1
    dry_run 1
    watched_run copy 1
    ;;
  virtio-no-iommu) refusal 'Invalid argument' ;;
  virtio-no-reset) refusal 'No such file or directory' ;;
  igb)
    # Small frames hold less than a packet with igb's zero-copy, which the box must see.
    if start_box zerocopy 2; then
      bad 'the box starts with frames that igb cuts packets to' /tmp/box.log
      stop_box
    else
      expect 'frames too small for igb are refused' 'set frame_bytes = 4096' /tmp/box.log
    fi
    frame_bytes=4096
    host igb 2
    choose_addresses
    watched_run zerocopy 2
    dry_run 2
    watched_run copy 2
    ;;
  *) bad "no scenario \"$1\"" ;;
esac
echo "guest: $passed passed, $failed failed"
[ $failed = 0 ]
