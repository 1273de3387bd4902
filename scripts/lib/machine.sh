# shellcheck shell=bash
# shellcheck disable=SC2154 # the variables box_KEY are what `run --check --shell` says
# Sourced: whether the box can run on this machine, apart from its NIC.

# Capability names and bits (linux/capability.h) that the box needs.
needed_capabilities=(NET_ADMIN:12 NET_RAW:13 IPC_LOCK:14 PERFMON:38 BPF:39)

# Refuses a machine where the box could not run; says what to change.
check_machine() {
  check_tools
  check_kernel
  check_capabilities
  check_memory
  check_cpus
}

check_tools() {
  command -v ip >/dev/null && command -v ethtool >/dev/null && return
  [ -z "$dry_run" ] || fail "needs ip and ethtool: apt-get install iproute2 ethtool"
  install_missing ethtool iproute2
}

check_kernel() {
  local release major minor
  release=$(uname -r)
  IFS=.- read -r major minor _ <<<"$release"
  [ "$major" -gt 6 ] || { [ "$major" = 6 ] && [ "$minor" -ge 6 ]; } ||
    fail "Linux $release: needs 6.6 or newer (before 6.1, mlx5 numbered zero-copy queues" \
      "differently, and XDP with more than one buffer is incomplete before 6.6)"
}

check_capabilities() {
  local held entry missing=() limit
  held=$(awk '/^CapEff:/ { print $2 }' /proc/self/status)
  for entry in "${needed_capabilities[@]}"; do
    (((16#$held >> ${entry#*:}) & 1)) || missing+=("${entry%:*}")
  done
  # Memory may be locked without the capability where the limit allows it.
  limit=$(ulimit -l)
  if [ "${missing[*]-}" = IPC_LOCK ] &&
    { [ "$limit" = unlimited ] || ((limit * 1024 >= box_memory_bytes)); }; then
    return
  fi
  [ ${#missing[@]} = 0 ] || fail "missing capabilities: ${missing[*]}. Run as root, or as a systemd" \
    "service with AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON CAP_IPC_LOCK"
  [ "$(id -u)" = 0 ] || warn "not root: interrupts and huge pages cannot be set"
}

check_memory() {
  local available
  available=$(($(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo) * 1024))
  ((box_memory_bytes <= available || box_huge_pages > 0)) ||
    fail "the frames need $box_memory_bytes bytes and $available are available:" \
      "lower data.memory_mib or data.frames"
  ((box_huge_pages == 0)) || reserve_huge_pages
}

reserve_huge_pages() {
  local free total missing file=/proc/sys/vm/nr_hugepages
  free=$(awk '/^HugePages_Free:/ { print $2 }' /proc/meminfo)
  total=$(cat "$file")
  missing=$((box_huge_pages - free))
  if ((missing <= 0)); then
    say "huge pages: $free are free, $box_huge_pages needed"
    return
  fi
  change "huge pages (vm.nr_hugepages)" "$total" $((total + missing)) \
    put "$file" $((total + missing)) -- less_huge_pages "$missing" ||
    fail "cannot reserve huge pages ($complaint): as root, sysctl vm.nr_hugepages=$((total + missing))"
  [ -z "$dry_run" ] || return 0
  # The kernel takes the number and reserves as many as it finds.
  free=$(awk '/^HugePages_Free:/ { print $2 }' /proc/meminfo)
  ((free >= box_huge_pages)) ||
    fail "$box_huge_pages huge pages are needed and $free could be had: memory is in use or" \
      "scattered; boot with hugepages=$((total + missing)), or set data.huge_pages = false"
}

# Takes back what was added, whatever others have added meanwhile.
less_huge_pages() {
  local now
  now=$(cat /proc/sys/vm/nr_hugepages)
  put /proc/sys/vm/nr_hugepages $((now > $1 ? now - $1 : 0))
}

check_cpus() {
  local cpu cpus=() node
  IFS=, read -ra cpus <<<"$box_cpus"
  if [ ${#cpus[@]} = 0 ]; then
    warn "data.cpus is not set: the cores are not pinned, and share CPUs with everything else"
  fi
  node=$(cat "/sys/class/net/$box_interface/device/numa_node" 2>/dev/null || echo -1)
  for cpu in "${cpus[@]}"; do
    [ -d "/sys/devices/system/cpu/cpu$cpu" ] ||
      fail "data.cpus: there is no CPU $cpu here (there are $(cat /sys/devices/system/cpu/online))"
    [ "$node" -lt 0 ] || [ -d "/sys/devices/system/node/node$node/cpu$cpu" ] ||
      warn "CPU $cpu is not on NUMA node $node of $box_interface: slower; that node has" \
        "$(cat "/sys/devices/system/node/node$node/cpulist")"
  done
}
