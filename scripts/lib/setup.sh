# shellcheck shell=bash
# shellcheck disable=SC2034 # $gradbox is for those who call build_gradbox
# Sourced: what the scripts need from the system, and the build.

# Runs a command as root.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    sudo -n "$@"
  fi
}

# Installs the named packages where they are missing.
install_missing() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "installing ${missing[*]}"
  if ! { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null; }; then
    echo "cannot install ${missing[*]}: as root, apt-get install ${missing[*]}" >&2
    return 1
  fi
}

# Installs what a build and a run need where it is missing. Packages may be named as arguments.
install_packages() {
  install_missing ca-certificates clang ethtool gcc iproute2 libelf-dev m4 make pkg-config \
    zlib1g-dev "$@"
}

# Builds the binary; its path is in $gradbox. One that is there may be named by $GRADBOX_BIN.
build_gradbox() {
  local needed=1.95
  if [ -n "${GRADBOX_BIN:-}" ]; then
    gradbox=$GRADBOX_BIN
    [ -x "$gradbox" ] && return
    echo "GRADBOX_BIN=$GRADBOX_BIN: no such program" >&2
    return 1
  fi
  command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
  command -v cargo >/dev/null || {
    echo "Rust $needed or newer is needed (rustup default stable); cargo was not found" >&2
    return 1
  }
  cargo build --release --locked -p gradbox --manifest-path "${top:?}/Cargo.toml"
  gradbox=${CARGO_TARGET_DIR:-$top/target}/release/gradbox
}
