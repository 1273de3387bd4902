#!/usr/bin/env bash
# Puts the box and its service on this machine, or below DESTDIR. Run again, it brings what is new
# and leaves the configuration alone. It starts nothing.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
prefix=${PREFIX:-/usr}
root=${DESTDIR:-}
gradbox=${GRADBOX_BIN:-${CARGO_TARGET_DIR:-$top/target}/release/gradbox}

if [ $# -gt 0 ]; then
  echo "usage: [PREFIX=/usr] [DESTDIR=] [GRADBOX_BIN=FILE] scripts/install.sh"
  [ "$1" = -h ] || [ "$1" = --help ] || exit 2
  exit
fi
[ -x "$gradbox" ] || {
  echo "install: $gradbox is missing: cargo build --release -p gradbox" >&2
  exit 1
}

install -D -m 755 "$gradbox" "$root$prefix/bin/gradbox"
install -d "$root$prefix/lib/systemd/system" "$root$prefix/share/doc/gradbox/configs"
sed "s#/usr/bin/gradbox#$prefix/bin/gradbox#; s#/usr/share/doc#$prefix/share/doc#" \
  "$top/scripts/systemd/gradbox.service" >"$root$prefix/lib/systemd/system/gradbox.service"
install -D -m 644 "$top/scripts/systemd/gradbox.conf" "$root$prefix/lib/sysusers.d/gradbox.conf"
install -m 644 "$top"/docs/*.md "$root$prefix/share/doc/gradbox/"
install -m 644 "$top"/configs/*.toml "$root$prefix/share/doc/gradbox/configs/"
install -m 644 "$top"/LICENSE-* "$root$prefix/share/doc/gradbox/"
install -D -m 644 "$top/scripts/wireshark/gradbox.lua" "$root$prefix/share/gradbox/gradbox.lua"
config=$root/etc/gradbox/gradbox.toml
if [ -e "$config" ]; then
  echo "install: $config stays as it is"
else
  install -D -m 644 "$top/configs/leaf-25g.toml" "$config"
  echo "install: $config is a sample: set interface, cpus and memory_mib"
fi
if [ -z "$root" ] && [ -d /run/systemd/system ]; then
  systemd-sysusers "$prefix/lib/sysusers.d/gradbox.conf"
  systemctl daemon-reload
fi
echo "install: done; next: systemctl enable --now gradbox"
