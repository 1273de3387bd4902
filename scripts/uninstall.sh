#!/usr/bin/env bash
# Takes away what scripts/install.sh brought, with the same PREFIX and DESTDIR. The configuration
# and the user stay.
set -euo pipefail

prefix=${PREFIX:-/usr}
root=${DESTDIR:-}

if [ $# -gt 0 ]; then
  echo "usage: [PREFIX=/usr] [DESTDIR=] scripts/uninstall.sh"
  [ "$1" = -h ] || [ "$1" = --help ] || exit 2
  exit
fi

unit=$root$prefix/lib/systemd/system/gradbox.service
live=''
[ -n "$root" ] || [ ! -d /run/systemd/system ] || live=yes
if [ -n "$live" ] && [ -e "$unit" ]; then
  systemctl disable --now gradbox
fi
rm -f "$unit" "$root$prefix/bin/gradbox" "$root$prefix/lib/sysusers.d/gradbox.conf"
rm -rf "$root$prefix/share/doc/gradbox" "$root$prefix/share/gradbox"
[ -z "$live" ] || systemctl daemon-reload
echo "uninstall: done; $root/etc/gradbox and the user gradbox stay"
