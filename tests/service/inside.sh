#!/bin/bash
# Inside scripts/service-test.sh's system: the unit under systemd, with workers on a veth pair.
box_ip=10.78.0.1
passed=0 failed=0

ok() { passed=$((passed + 1)) && echo "service: ok: $*"; }
bad() { failed=$((failed + 1)) && echo "service: FAIL: $*"; }

# equal WORDS FOUND NEEDED
equal() { if [ "$2" = "$3" ]; then ok "$1: $2"; else bad "$1: $2, needed: $3"; fi; }

sorted() { tr 'A-Z ' 'a-z\n' | sort | tr '\n' ' '; }

# of_unit KEY: what the unit file says.
of_unit() { sed -n "s/^$1=//p" /usr/lib/systemd/system/gradbox.service | sorted; }

# shown KEY: what systemd says.
shown() { systemctl show gradbox -P "$1"; }

set_up_network() {
  ip link set lo up
  ip link add gradbox0 type veth peer name worker0
  ip netns add workers
  ip link set worker0 netns workers
  ip address add $box_ip/24 dev gradbox0
  ip link set gradbox0 up
  ip -n workers address add 10.78.0.2/24 dev worker0
  ip -n workers link set worker0 up
}

# What the threads of process $1 may do; one line where all may the same. The bounding set stays as
# systemd made it: emptying it takes a capability that the box does not get.
threads() {
  local status
  for status in /proc/"$1"/task/*/status; do
    awk '/^(CapInh|CapPrm|CapEff|CapAmb|NoNewPrivs|Seccomp|Uid):/ { printf "%s %s ", $1, $2 }
      END { print "" }' "$status"
  done | sort -u
}

all_reduce() {
  local rank status=0 workers=()
  for rank in 0 1; do
    ip netns exec workers gradbox all-reduce --box $box_ip:9099 --job "$1" --rank $rank --world 2 \
      --model /table.csv --rounds 2 --verify --timeout 30 >"/worker$rank.log" 2>&1 &
    workers+=($!)
  done
  for rank in 0 1; do wait "${workers[rank]}" || status=1; done
  [ $status = 0 ] || cat /worker?.log
  equal "all-reduce $1, every bit compared" $status 0
}

check_process() {
  local pid zero=0000000000000000
  pid=$(shown MainPID)
  equal 'state' "$(shown ActiveState)" active
  equal "what every thread has" "$(threads "$pid")" \
    "Uid: $(id -u gradbox) CapInh: $zero CapPrm: $zero CapEff: $zero CapAmb: $zero NoNewPrivs: 1 Seccomp: 2 "
}

set_up_network
cat >/etc/gradbox/gradbox.toml <<TOML
[control]
listen = "$box_ip:9099"
[data]
port = "xdp"
interface = "gradbox0"
mode = "copy"
memory_mib = 64
idle = "poll"
TOML
before=$(ip -d link show gradbox0)
systemctl start gradbox
equal 'systemctl start' $? 0
equal 'user' "$(shown User)" gradbox
needed='cap_bpf cap_ipc_lock cap_net_admin cap_net_raw cap_perfmon '
for set in AmbientCapabilities CapabilityBoundingSet; do
  equal "$set of the unit" "$(of_unit $set)" "$needed"
  equal "$set in systemd" "$(shown $set | sorted)" "$needed"
done
check_process
equal 'programs on the interface' "$(ip -d link show gradbox0 | grep -c 'prog/xdp')" 1
all_reduce first
gradbox status --box $box_ip:9099 >/status.log 2>&1
equal 'gradbox status' $? 0

# After a crash systemd starts it again, with the NIC put back and set anew in between.
old=$(shown MainPID)
kill -KILL "$old"
for _ in $(seq 100); do
  sleep 0.2
  [ "$(shown MainPID)" = "$old" ] || [ "$(shown ActiveState)" != active ] || break
done
equal 'starts again after a kill' "$(shown NRestarts)" 1
check_process
all_reduce second

systemctl stop gradbox
equal 'systemctl stop' $? 0
equal 'result' "$(shown Result) $(shown ActiveState)" 'success inactive'
equal 'interface as before' "$(ip -d link show gradbox0 | sed 1,2d)" "$(sed 1,2d <<<"$before")"
equal 'programs left on it' "$(ip -d link show gradbox0 | grep -c 'prog/xdp')" 0
equal 'records left' "$(find /run/gradbox -name '*.json' | wc -l)" 0
[ $failed = 0 ] || journalctl -u gradbox --no-pager | tail -n 60
echo "service: $passed passed, $failed failed"
