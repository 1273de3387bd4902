# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables box_KEY are what `run --check --shell` says
# Sourced: the NIC as the configuration wants it. Order: what resets the link comes first, rules
# that need the queues come after them.

# What to know of a driver.
driver_hint() {
  case $1 in
    mlx5_core) echo "zero-copy; MTU at most 3498 with XDP" ;;
    ice) echo "zero-copy; if the queues cannot be changed (busy), irdma holds them: modprobe -r irdma" ;;
    i40e) echo "zero-copy; its rules do not steer to AF_XDP sockets, so that the box has all queues" ;;
    ena) echo "at most half of its queues with XDP; MTU at most 3498" ;;
    igb | igc | ixgbe) echo "zero-copy; attaching resets the link: the box waits for the carrier" ;;
    virtio_net) echo "zero-copy from Linux 6.11 on; needs queues of its own for XDP: as many again" ;;
    veth) echo "for tests: no zero-copy, no rules, and its peer may have no more TX queues than it has RX" ;;
    *) echo "not known here; look for \"XDP\" in its documentation" ;;
  esac
}

# Sets the NIC up, as far as its driver can.
prepare_nic() {
  local dev=$box_interface
  [ -d "/sys/class/net/$dev" ] ||
    fail "data.interface = \"$dev\": no such interface here (ip -br link lists them)"
  driver=$(ethtool -i "$dev" 2>/dev/null | awk '$1 == "driver:" { print $2 }')
  say "$dev: driver ${driver:-unknown}: $(driver_hint "${driver:-unknown}")"
  ! ip -o -d link show dev "$dev" | grep -q ' prog/xdp ' ||
    fail "$dev has an XDP program already: stop its owner (bpftool net), or ip link set dev $dev xdp off"
  if ip route show default dev "$dev" | grep -q .; then
    warn "$dev carries the default route: a session through it may stall while the link resets"
  fi
  set_mtu "$dev"
  set_link_up "$dev"
  set_features "$dev"
  set_rings "$dev"
  set_queues "$dev"
  set_affinity "$dev"
  wait_for_carrier "$dev"
}

set_mtu() {
  local dev=$1 now
  now=$(cat "/sys/class/net/$dev/mtu")
  if [[ $driver == mlx5_core || $driver == ena ]] && ((box_mtu > 3498)); then
    fail "data.mtu = $box_mtu: $driver takes 3498 at most with XDP"
  fi
  [ "$now" = "$box_mtu" ] && return
  change "MTU of $dev" "$now" "$box_mtu" ip link set dev "$dev" mtu "$box_mtu" -- \
    ip link set dev "$dev" mtu "$now" ||
    fail "$dev does not take an MTU of $box_mtu ($complaint): lower data.mtu"
}

set_link_up() {
  local dev=$1
  (($(cat "/sys/class/net/$dev/flags") & 1)) && return
  change "$dev" down up ip link set dev "$dev" up -- ip link set dev "$dev" down ||
    fail "cannot set $dev up: $complaint"
}

# What alters packets before the box sees them: merged ones, and VLAN tags taken off.
set_features() {
  local dev=$1 feature names=(large-receive-offload rx-gro-hw rx-vlan-offload)
  # The XDP program of the network stack comes after GRO.
  [ "$box_attach" = skb ] && names+=(generic-receive-offload)
  for feature in "${names[@]}"; do
    [ "$(feature "$dev" "$feature")" = on ] || continue
    change "$feature of $dev" on off ethtool -K "$dev" "$feature" off -- \
      ethtool -K "$dev" "$feature" on ||
      fail "$dev cannot turn $feature off, so packets would reach the box altered: $complaint"
  done
  case "$(feature "$dev" large-receive-offload) $(feature "$dev" rx-gro-hw)" in
    *'on [fixed]'*) fail "$dev always merges packets (LRO or hardware GRO): not usable with XDP" ;;
  esac
  if [ "$(feature "$dev" rx-vlan-offload)" = 'on [fixed]' ]; then
    warn "$dev always strips VLAN tags: use an untagged network"
  fi
}

# State of a feature: on, off, "on [fixed]", "off [fixed]", or nothing.
feature() { ethtool -k "$1" 2>/dev/null | sed -n "s/^$2: //p"; }

# field FILE SECTION NAME: a number of what `ethtool -l` or `-g` printed; SECTION is Pre or Current.
field() {
  awk -v section="$2" -v name="$3:" '
    /^Pre-set/ { at = "Pre" } /^Current/ { at = "Current" }
    at == section && $1 == name && $2 ~ /^[0-9]+$/ { print $2 }' <<<"$1"
}

set_rings() {
  local dev=$1 rings max now want
  if ! rings=$(ethtool -g "$dev" 2>/dev/null) || [ -z "$(field "$rings" Pre RX)" ]; then
    say "$dev has no rings of its own to set"
    return
  fi
  # Zero-copy wants the fill ring to hold the NIC's ring and the RX ring.
  max=$(field "$rings" Pre RX) now=$(field "$rings" Current RX)
  want=$(power_of_two_below $((box_fill_ring - box_rx_ring)))
  ((want <= max)) || want=$max
  if ((want < 64)); then
    ((now + box_rx_ring <= box_fill_ring)) ||
      warn "data.fill_ring = $box_fill_ring is less than the RX ring of $dev ($now) and" \
        "data.rx_ring: zero-copy may run dry; set it to $((2 * box_fill_ring))"
  elif ((now != want)); then
    set_ring "$dev" rx "$now" "$want"
  fi
  max=$(field "$rings" Pre TX) now=$(field "$rings" Current TX)
  want=$((box_tx_ring < ${max:-0} ? box_tx_ring : ${max:-0}))
  ((want <= ${now:-0})) || set_ring "$dev" tx "$now" "$want"
}

# A NIC with rings of another size works, only less well.
set_ring() {
  change "$2 ring of $1" "$3" "$4" ethtool -G "$1" "$2" "$4" -- ethtool -G "$1" "$2" "$3" ||
    warn "$1 keeps its $2 ring of $3: $complaint"
}

power_of_two_below() {
  local n=1
  ((${1} >= 1)) || { echo 0 && return; }
  while ((n * 2 <= $1)); do n=$((n * 2)); done
  echo "$n"
}

# Queues and the rules that steer each shard's port to its own. With rules, other queues go on
# serving the rest of the traffic; without, the box must have every queue.
set_queues() {
  local dev=$1 channels
  channels=$(ethtool -l "$dev" 2>/dev/null) || channels=''
  if can_steer "$dev"; then
    queues_at_least "$dev" "$channels"
    steer "$dev" && return
    channels=$(ethtool -l "$dev" 2>/dev/null) || channels=''
  fi
  queues_exactly "$dev" "$channels" "$box_queues"
  ((box_queues == 1)) ||
    say "$dev cannot steer a port to a queue: the box's cores hand packets to each other, slower"
}

can_steer() {
  local state
  [ "$driver" != i40e ] || return 1
  state=$(feature "$1" ntuple-filters)
  [ "$state" != on ] || return 0
  if [ "$state" = off ]; then
    change "ntuple-filters of $1" off on ethtool -K "$1" ntuple on -- ethtool -K "$1" ntuple off &&
      return
  fi
  return 1
}

queues_at_least() {
  local now max
  now=$(queue_count "$1")
  # Half of ENA's queues are for XDP's answers.
  if [ "$driver" = ena ] && max=$(field "$2" Pre Combined) && ((now > max / 2)); then
    queues_exactly "$1" "$2" $((max / 2))
  elif ((now < box_queues)); then
    queues_exactly "$1" "$2" "$box_queues"
  fi
}

queue_count() {
  local queues=("/sys/class/net/$1"/queues/rx-*)
  echo ${#queues[@]}
}

# queues_exactly DEV CHANNELS WANT
queues_exactly() {
  local dev=$1 channels=$2 want=$3 now max usable kind=Combined argument=combined
  now=$(queue_count "$dev")
  max=$(field "$channels" Pre Combined)
  if [ "${max:-0}" = 0 ]; then
    kind=RX argument=rx max=$(field "$channels" Pre RX)
  fi
  usable=${max:-$now}
  [ "$driver" != ena ] || usable=$((usable / 2))
  ((want <= usable && want > 0)) ||
    fail "data.queues = $box_queues: $dev has $usable at most for XDP ($driver); lower data.queues"
  [ "$now" != "$want" ] || return 0
  [ -n "$max" ] || fail "$dev has $now queues and cannot change them; set data.queues = $now"
  now=$(field "$channels" Current "$kind")
  local command=(ethtool -L "$dev" "$argument" "$want")
  local back=(ethtool -L "$dev" "$argument" "$now")
  if [ "$kind" = RX ]; then
    local tx
    tx=$(field "$channels" Current TX)
    command+=(tx "$want") back+=(tx "$tx")
  fi
  change "queues of $dev" "$now" "$want" "${command[@]}" -- "${back[@]}" || {
    [ "$driver" != ice ] || complaint+="; if irdma holds them: modprobe -r irdma"
    fail "$dev does not take $want queues ($complaint)"
  }
}

# A rule for each shard's port, over IPv4 and IPv6. Fails, with no rule left, where IPv4 is refused.
steer() {
  local dev=$1 shard
  for ((shard = 0; shard < box_queues; shard++)); do
    if ! add_rule "$dev" udp4 $((box_port_base + shard)) "$shard"; then
      warn "$dev refuses a rule for UDP port $((box_port_base + shard)): $complaint"
      remove_rules "$dev"
      return 1
    fi
    add_rule "$dev" udp6 $((box_port_base + shard)) "$shard" ||
      say "$dev has no rules for IPv6 ($complaint): such packets go from core to core"
  done
}

rules=()

add_rule() {
  local dev=$1 family=$2 port=$3 queue=$4 answer id
  local command=(ethtool -N "$dev" flow-type "$family" dst-port "$port" action "$queue")
  if [ -n "$dry_run" ]; then
    say "would steer $family port $port of $dev to queue $queue"
    return
  fi
  hold_signals
  answer=$("${command[@]}" 2>&1) || true
  id=$(sed -n 's/.*Added rule with ID \([0-9]*\).*/\1/p' <<<"$answer")
  if [ -n "$id" ]; then
    say "$family port $port of $dev goes to queue $queue (rule $id)"
    rules+=("$id")
    undo_later "rule $id of $dev removed" remove_rule "$dev" "$id"
  fi
  release_signals
  complaint=$answer
  [ -n "$id" ]
}

# A rule that is gone already is as good as removed.
remove_rule() { ethtool -N "$1" delete "$2" || ! ethtool -n "$1" rule "$2"; }

remove_rules() {
  local id
  for id in "${rules[@]}"; do remove_rule "$1" "$id" >/dev/null 2>&1 || true; done
  rules=()
}

# Interrupts of the queue of each core go to its CPU, where the NIC's ring is warm.
set_affinity() {
  local dev=$1 cpus=() irq queue cpu old file irqs=()
  IFS=, read -ra cpus <<<"$box_cpus"
  ((${#cpus[@]} > 0)) || return 0
  mapfile -t irqs < <(queue_interrupts "$dev")
  if ((${#irqs[@]} < ${#cpus[@]})); then
    say "$dev has ${#irqs[@]} interrupts of queues: none is moved"
    return
  fi
  if pgrep -x irqbalance >/dev/null; then
    warn "irqbalance runs and may move the interrupts again: systemctl stop irqbalance"
  fi
  for queue in "${!cpus[@]}"; do
    irq=${irqs[queue]} cpu=${cpus[queue]}
    file=/proc/irq/$irq/smp_affinity_list
    old=$(cat "$file")
    [ "$old" != "$cpu" ] || continue
    change "interrupt $irq (queue $queue of $dev) on CPU" "$old" "$cpu" put "$file" "$cpu" -- \
      put "$file" "$old" || warn "interrupt $irq stays on CPU $old: $complaint"
  done
}

# Interrupts of the RX queues of an interface, by queue. Their names end in the queue's number:
# mlx5_comp0@pci:..., ice-eth1-TxRx-0, i40e-eth1-TxRx-0, eth1-TxRx-0, eth1-Tx-Rx-0, virtio1-input.0.
queue_interrupts() {
  local dir=/sys/class/net/$1/device/msi_irqs
  [ -d "$dir" ] || dir=/sys/class/net/$1/device/../msi_irqs
  [ -d "$dir" ] || return 0
  awk -v own="$(cd "$dir" && echo *)" '
    BEGIN { split(own, list, " "); for (i in list) mine[list[i] ":"] = 1 }
    ($1 in mine) && /comp[0-9]|[Tt]x-?[Rr]x|input/ {
      name = $NF
      sub(/@.*/, "", name)
      if (match(name, /[0-9]+$/)) print substr(name, RSTART), $1 + 0
    }' /proc/interrupts | sort -n | awk '{ print $2 }'
}

wait_for_carrier() {
  local dev=$1 tries
  [ -z "$dry_run" ] || return 0
  for ((tries = 0; tries < 100; tries++)); do
    [ "$(cat "/sys/class/net/$dev/carrier" 2>/dev/null)" != 1 ] || return 0
    sleep 0.1
  done
  fail "$dev has no carrier after 10 s: look at the cable and at the other end"
}
