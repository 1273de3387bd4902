#!/usr/bin/env bash
# Builds a Debian package of the box for this machine's architecture, and lists what is in it.
# cargo-deb is built into target/tools where it is missing.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
target=${CARGO_TARGET_DIR:-$top/target}

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  echo "usage: scripts/package.sh [OPTION OF cargo deb]...   (--no-build: take the release build that is there)"
  exit
fi
cd "$top"
tools=$target/tools
[ -x "$tools/bin/cargo-deb" ] || cargo install cargo-deb --locked --root "$tools"
# Without `--locked`, cargo would be free to build other versions than were tested.
package=$(PATH="$tools/bin:$PATH" cargo deb -p gradbox --locked "$@" | tail -n 1)
[ -f "$package" ] || {
  echo "package: cargo deb named no package: '$package'" >&2
  exit 1
}
echo "$package"
dpkg-deb --info "$package"
dpkg-deb --contents "$package"
