# shellcheck shell=bash
# shellcheck disable=SC2154 # $workers, $queues, $mtu and $isolated are the caller's
# Sourced: namespaces for a box and its workers, behind a bridge that has a namespace of its own.
#
#   w0 --- eth0 ---+
#   w1 --- eth0 ---+--- bridge (sw) --- box0 --- box
#   ...            |
#
# Where $isolated is empty, everything is on loopback instead. Nothing outside these namespaces is
# touched.

# Runs a command as host $1 of the network.
run_in() {
  local host=$1
  shift
  if [ -z "$isolated" ]; then
    exec_here "$@"
  else
    # exec, so that the id of a job in the background is that of the program.
    exec_here ip netns exec "$net-$host" "$@"
  fi
}

# Becomes the command in a background job, runs it otherwise.
exec_here() {
  if [ "$BASHPID" != $$ ]; then
    exec "$@"
  else
    "$@"
  fi
}

# Connects namespace $1, where the interface is called $2, with address $3 and $4 queues.
connect() {
  local host=$1 name=$2 address=$3 queues=$4
  ip netns add "$net-$host"
  ip -n "$net-sw" link add "$host" mtu "$mtu" numtxqueues "$queues" numrxqueues "$queues" \
    type veth peer name "$name" netns "$net-$host" mtu "$mtu" \
    numtxqueues "$queues" numrxqueues "$queues"
  ip -n "$net-sw" link set "$host" master br0 up
  ip -n "$net-$host" address add "$address/24" dev "$name"
  ip -n "$net-$host" link set lo up
  ip -n "$net-$host" link set "$name" up
}

# Makes the network for $workers workers; the box's address is in $box_ip.
make_network() {
  net=gradbox$$
  if [ -z "$isolated" ]; then
    box_ip=127.0.0.1
    return
  fi
  box_ip=10.77.0.1
  local rank
  ip netns add "$net-sw"
  # Neighbours are found by ARP; the bridge needs no address and no IPv6 of its own.
  ip -n "$net-sw" link add br0 mtu "${mtu:?}" type bridge
  ip -n "$net-sw" link set br0 up
  connect box box0 "$box_ip" "${queues:?}"
  for ((rank = 0; rank < ${workers:?}; rank++)); do
    connect "w$rank" eth0 "10.77.0.$((rank + 10))" 1
  done
}

# Removes what make_network made, as far as it got. Interfaces go with their namespaces.
remove_network() {
  [ -n "${net:-}" ] && command -v ip >/dev/null || return 0
  local name
  for name in $(ip netns list | awk -v net="$net-" 'index($1, net) == 1 { print $1 }'); do
    ip netns del "$name"
  done
}
