#!/usr/bin/env bash
# The systemd unit under a real systemd: a small Debian, unpacked and not installed, in namespaces of
# its own; the unit starts there, serves, is killed, comes back and stops. Needs root. Exit status 1 if
# something is not as it must be, 77 if packages or namespaces cannot be had.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/lib/setup.sh
. "$top/scripts/lib/setup.sh"
# shellcheck source=scripts/lib/debian.sh
. "$top/scripts/lib/debian.sh"

# Seconds for the whole of it: it takes 10.
longest=200

cache=${XDG_CACHE_HOME:-$HOME/.cache}/gradbox/service
packages='systemd iproute2 gawk libelf1 procps'

cannot() {
  echo "skipped: $*"
  exit 77
}

# A Debian with systemd, in $cache/root.
fetch_system() {
  [ ! -e "$cache/complete" ] || return 0
  local state=$scratch/apt names deb
  read_suites "$state" bookworm || cannot 'apt cannot read bookworm'
  # shellcheck disable=SC2086 # a word for each package; those that every Debian has come along
  names=$(private_apt "$state" apt-get --print-uris --no-install-recommends install \
    $packages bash coreutils findutils grep sed util-linux |
    sed -n "s/^'.*' \([^_]*\)_\([^_]*\)_.*/\1=\2/p" | sed 's/%3a/:/')
  [ -n "$names" ] || cannot 'apt finds no systemd in bookworm'
  mkdir "$scratch/debs"
  # shellcheck disable=SC2086 # a word for each package
  (cd "$scratch/debs" && private_apt "$state" apt-get download $names) ||
    cannot 'apt cannot download systemd'
  rm -rf "$cache"
  mkdir -p "$cache/root"
  for deb in "$scratch"/debs/*.deb; do dpkg -x "$deb" "$cache/root"; done
  touch "$cache/complete"
}

# The system with the box in it, as scripts/install.sh installs it, in $root.
make_system() {
  root=$scratch/root
  cp -a "$cache/root" "$root"
  DESTDIR=$root GRADBOX_BIN=$gradbox "$top/scripts/install.sh" >"$scratch/install.log"
  echo 'root:x:0:0:root:/root:/bin/bash' >"$root/etc/passwd"
  echo 'root:x:0:' >"$root/etc/group"
  touch "$root"/etc/{machine-id,shadow,gshadow}
  mkdir -p "$root/etc/systemd/system" "$root/old"
  ln -sf gawk "$root/usr/bin/awk"
  install -m 755 "$top/tests/service/inside.sh" "$root/inside.sh"
  install -m 644 "$top/tests/guest/table.csv" "$root/table.csv"
  install -m 644 "$top/tests/service/gradbox-test.service" "$root/etc/systemd/system/"
}

# What runs before systemd, in the new namespaces: its file systems and devices.
enter_system() {
  local device
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t sysfs sysfs "$root/sys"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs run "$root/run"
  mount -t tmpfs tmp "$root/tmp"
  mount -t tmpfs dev "$root/dev"
  for device in 'null 3' 'zero 5' 'full 7' 'random 8' 'urandom 9' 'kmsg 11'; do
    mknod -m 666 "$root/dev/${device% *}" c 1 "${device#* }"
  done
  mkdir "$root"/dev/{pts,shm}
  ln -s /proc/self/fd "$root/dev/fd"
  cd "$root"
  pivot_root . old
  umount -l /old
  exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --unit=gradbox-test.service --show-status=no --log-target=null
}

# In a mount namespace already: a control group of its own, so that systemd has no other process.
run_system() {
  mkdir -p "$scratch/cgroup"
  mount --make-rprivate /
  mount -t cgroup2 cgroup2 "$scratch/cgroup" || cannot 'this kernel mounts no cgroup2'
  group=$scratch/cgroup/gradbox-service-test-$$
  mkdir "$group"
  export root
  export -f enter_system
  (
    echo "$BASHPID" >"$group/cgroup.procs"
    timeout -k 5 "$longest" unshare --pid --net --uts --ipc --cgroup --mount --fork --kill-child \
      bash -euo pipefail -c enter_system </dev/null >"$scratch/console" 2>&1
  ) || true
  # Its processes end with its first one, some a little later.
  for _ in $(seq 50); do
    if find "$group" -depth -type d -exec rmdir {} + 2>/dev/null; then break; fi
    sleep 0.1
  done
}

[ "$(id -u)" = 0 ] || cannot 'needs root'
# A mount namespace for all that follows.
if [ -z "${GRADBOX_SERVICE_TEST:-}" ]; then
  GRADBOX_SERVICE_TEST=inside exec unshare --mount "$0" "$@"
fi
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch" 2>/dev/null || true' EXIT
fetch_system
build_gradbox
make_system
run_system
cat "$root/verdict" 2>/dev/null || cat "$scratch/console"
grep -q '^service: [1-9][0-9]* passed, 0 failed' "$root/verdict"
