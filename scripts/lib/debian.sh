# shellcheck shell=bash
# Sourced: packages of any Debian suite into a directory, without installing anything. apt gets a state
# of its own, so that a foreign suite never becomes a candidate for this system.

# The mirror that this system uses for Debian itself, on standard output.
debian_mirror() {
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    grep -m1 -E '/debian/?$'
}

# private_apt STATE PROGRAM ARGUMENT...: apt-get or apt-cache with the state in that directory.
private_apt() {
  local state=$1 program=$2
  shift 2
  "$program" -qq -o Dir::State="$state/state" -o Dir::Cache="$state/cache" \
    -o Dir::State::status="$state/status" -o Dir::Etc::sourcelist="$state/sources.list" \
    -o Dir::Etc::sourceparts=- -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
    -o Acquire::Languages=none -o APT::Sandbox::User=root "$@"
}

# read_suites STATE SUITE...: what these suites offer.
read_suites() {
  local state=$1 suite mirror
  shift
  mirror=$(debian_mirror) && [ -n "$mirror" ] || {
    echo "no Debian mirror in this system's apt sources (needed: one that ends in /debian)" >&2
    return 1
  }
  mkdir -p "$state"/{state/lists/partial,cache/archives/partial}
  : >"$state/status"
  for suite; do
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main"
  done >"$state/sources.list"
  private_apt "$state" apt-get update
}
