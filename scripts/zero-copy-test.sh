#!/usr/bin/env bash
# Zero-copy, shown: runs the box on emulated NICs whose real drivers do zero-copy, in a guest without
# privileges or network of its own. What it takes comes from Debian into a cache; nothing is
# installed. Ends with a line for each scenario; exit status 1 if one failed, 77 if packages cannot
# be had.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/lib/setup.sh
. "$top/scripts/lib/setup.sh"
# shellcheck source=scripts/lib/debian.sh
. "$top/scripts/lib/debian.sh"

# The first kernel whose igb goes on after its fill ring ran dry, and more than virtio needs (6.11).
least_kernel=7.0

# Seconds that one guest may take: 20 on an idle machine, several times that on a busy one.
longest_guest=300

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gradbox/zero-copy
scenarios='virtio virtio-no-iommu virtio-no-reset igb'

usage() {
  echo "usage: scripts/zero-copy-test.sh [SCENARIO...]"
  echo "Runs all scenarios, or those named: $scenarios"
}

# Packages cannot be had: no verdict.
cannot() {
  echo "skipped: $*"
  exit 77
}

# unpack DIRECTORY DEB...
unpack() {
  local into=$1 deb
  shift
  mkdir -p "$into"
  for deb; do dpkg -x "$deb" "$into"; done
}

# QEMU and busybox, in $cache/host. This system's libc serves them, so it is left out.
fetch_host() {
  [ ! -e "$cache/host/.complete" ] || return 0
  local state=$scratch/host suite=bookworm-backports names
  read_suites "$state" bookworm $suite || cannot 'apt cannot read bookworm and bookworm-backports'
  names=$(private_apt "$state" apt-get --print-uris --no-install-recommends install \
    {qemu-system-x86,qemu-system-common,qemu-system-data,seabios}/$suite busybox-static |
    sed -n "s/^'.*' \([^_]*\)_\([^_]*\)_.*/\1=\2/p" | sed 's/%3a/:/' |
    grep -v -E '^(libc6|libcrypt1|libgcc-s1|gcc-12-base|libpam.*|passwd|adduser|debconf)=')
  [ -n "$names" ] || cannot 'apt finds no QEMU in bookworm-backports'
  mkdir "$scratch/debs"
  # shellcheck disable=SC2086 # a word for each package
  (cd "$scratch/debs" && private_apt "$state" apt-get download $names) ||
    cannot 'apt cannot download QEMU'
  rm -rf "$cache/host"
  unpack "$cache/host" "$scratch"/debs/*.deb
  touch "$cache/host/.complete"
}

# fetch_kernel FLAVOUR: kernel and modules, in $cache/FLAVOUR.
fetch_kernel() {
  local flavour=$1 state=$scratch/kernel version
  [ ! -e "$cache/$flavour/.complete" ] || return 0
  [ -e "$state/status" ] || read_suites "$state" trixie-backports ||
    cannot 'apt cannot read trixie-backports'
  version=$(private_apt "$state" apt-cache depends "linux-image-$flavour" |
    sed -n 's/.*Depends: linux-image-\([0-9].*\)/\1/p' | head -n1)
  [ -n "$version" ] || cannot "trixie-backports has no linux-image-$flavour"
  dpkg --compare-versions "$version" ge "$least_kernel" ||
    cannot "trixie-backports has Linux $version, needed is $least_kernel"
  mkdir "$scratch/$flavour"
  (cd "$scratch/$flavour" &&
    private_apt "$state" apt-get download "linux-binary-$version" "linux-modules-$version") ||
    cannot "apt cannot download Linux $version"
  rm -rf "${cache:?}/$flavour"
  unpack "$cache/$flavour" "$scratch/$flavour"/*.deb
  rm -rf "$scratch/$flavour"
  touch "$cache/$flavour/.complete"
}

# The programs of the guest, in $programs.
build_programs() {
  programs=$target/$host/release
  RUSTFLAGS='-C target-feature=+crt-static' CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
    CARGO_PROFILE_RELEASE_DEBUG=0 cargo build --release --locked --target "$host" \
    --manifest-path "$top/Cargo.toml" -p gradbox -p gradbox-tests --bin gradbox --bin guest-probe
}

# A program of this system with its libraries, for the guest.
copy_program() {
  local program root=$2 file
  program=$(PATH=$PATH:/usr/sbin:/sbin command -v "$1")
  cp -L "$program" "$root/tools"
  for file in $(ldd "$program" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
  done
}

# make_guest FLAVOUR MODULE...: kernel in $kernel, initramfs in $initramfs.
make_guest() {
  local flavour=$1 root=$scratch/root module file
  shift
  kernel=$(find "$cache/$flavour" -name 'vmlinuz*' -type f | head -n1)
  initramfs=$scratch/initramfs
  rm -rf "$root"
  mkdir -p "$root"/{bin,dev,guest,modules,proc,sys,tmp,tools,run}
  cp "$cache/host/bin/busybox" "$programs"/{gradbox,guest-probe} "$root/bin"
  cp "$top"/tests/guest/{scenario.sh,table.csv} "$root/guest"
  install -m 755 "$top/tests/guest/init" "$root/init"
  # What others say of the NIC, to compare with.
  copy_program ethtool "$root"
  copy_program ip "$root"
  for module; do
    file=$(find "$cache/$flavour" -name "$module.ko.xz" | head -n1)
    xz -dc "$file" >"$root/modules/$module.ko"
    echo "$module.ko" >>"$root/modules/order"
  done
  (cd "$root" && find . | "$cache/host/bin/busybox" cpio -o -H newc 2>/dev/null) >"$initramfs"
}

# run_guest SCENARIO ARGUMENT...: QEMU with these devices; its console is in $log.
run_guest() {
  local scenario=$1 libraries qemu status=0
  shift
  log=$scratch/$scenario.log
  libraries=$cache/host/usr/lib/x86_64-linux-gnu:$cache/host/lib/x86_64-linux-gnu
  LD_LIBRARY_PATH=$libraries "$cache/host/usr/bin/qemu-system-x86_64" \
    -L "$cache/host/usr/share/qemu" -L "$cache/host/usr/share/seabios" \
    -nodefaults -no-user-config -display none -no-reboot -accel tcg,thread=multi -cpu max -m 512 \
    -kernel "$kernel" -initrd "$initramfs" -serial stdio \
    -append "console=ttyS0 quiet panic=-1 mitigations=off nokaslr tsc=reliable random.trust_cpu=on \
gradbox.scenario=$scenario" \
    -netdev hubport,id=box,hubid=0 -netdev hubport,id=peer,hubid=0 "$@" \
    </dev/null >"$log" 2>&1 &
  qemu=$!
  guest=$qemu
  wait_at_most "$longest_guest" "$qemu" || status=$?
  guest=
  tr -d '\r' <"$log" | grep '^guest: ' || true
  if [ "$status" != 0 ] || ! grep -q "^guest: end $scenario status 0" "$log"; then
    grep -q '^guest: end' "$log" || tail -n 30 "$log"
    return 1
  fi
}

# wait_at_most SECONDS PID: then it is killed.
wait_at_most() {
  local end=$((SECONDS + $1))
  while kill -0 "$2" 2>/dev/null; do
    if ((SECONDS > end)); then
      echo "the guest did not end within $1 s"
      kill -KILL "$2"
      wait "$2" 2>/dev/null || true
      return 1
    fi
    sleep 0.5
  done
  wait "$2"
}

box_mac=52:54:00:00:00:0b worker_mac=52:54:00:00:00:0c

# virtio_guest SCENARIO PROPERTY: the box's NIC has these properties.
virtio_guest() {
  make_guest cloud-amd64 failover net_failover virtio_net
  run_guest "$1" -machine pc -smp 1 \
    -device "virtio-net-pci,netdev=box,romfile=,mac=$box_mac,disable-legacy=on$2" \
    -device "virtio-net-pci,netdev=peer,romfile=,mac=$worker_mac"
}

igb_guest() {
  make_guest amd64 dca i2c-algo-bit igb
  run_guest igb -machine q35 -smp 2 \
    -device pcie-root-port,id=port1,chassis=1 -device pcie-root-port,id=port2,chassis=2 \
    -device "igb,bus=port1,netdev=box,romfile=,mac=$box_mac" \
    -device "igb,bus=port2,netdev=peer,romfile=,mac=$worker_mac"
}

scenario() {
  case $1 in
    virtio) fetch_kernel cloud-amd64 && virtio_guest "$1" ,iommu_platform=on ;;
    virtio-no-iommu) fetch_kernel cloud-amd64 && virtio_guest "$1" '' ;;
    virtio-no-reset) fetch_kernel cloud-amd64 && virtio_guest "$1" ,iommu_platform=on,queue_reset=off ;;
    igb) fetch_kernel amd64 && igb_guest ;;
  esac
}

for name; do
  case $name in -h | --help) usage && exit ;; esac
  [[ " $scenarios " == *" $name "* ]] || { usage >&2 && exit 2; }
done
[ "$(uname -m)" = x86_64 ] || cannot "this machine is $(uname -m); the guest's packages are amd64"

scratch=$(mktemp -d)
guest=
# shellcheck disable=SC2154 # $guest is a process that is ours
trap '[ -z "$guest" ] || kill -KILL "$guest" 2>/dev/null || true; rm -rf "$scratch"' EXIT
target=${CARGO_TARGET_DIR:-$top/target}
host=$(uname -m)-unknown-linux-gnu
mkdir -p "$cache"
install_packages xz-utils
fetch_host
build_programs
failed=0 summary=()
for name in ${*:-$scenarios}; do
  printf '\n--> guest %s\n' "$name"
  began=$SECONDS
  if scenario "$name"; then
    summary+=("passed  $name ($((SECONDS - began)) s)")
  else
    failed=$((failed + 1))
    summary+=("FAILED  $name ($((SECONDS - began)) s)")
  fi
done
printf '\n'
printf '%s\n' "${summary[@]}"
[ "$failed" = 0 ]
