#!/usr/bin/env bash
# Rebuilds the committed BPF objects, or (--check) compares a fresh build with them.
# Users of Gradbox never need this: the main build includes the committed bytes.
set -euo pipefail

# The compiler, the linker and the standard library's source are one set: another
# compiler may order instructions differently, and --check would call that a change.
RUST_VERSION=1.95.0
LINKER_VERSION=0.13.0
SUITE=trixie-backports # the Debian suite that keeps rust-src of RUST_VERSION
TARGET=bpfel-unknown-none
OBJECTS='xdp-redirect xdp-generate xdp-aggregate'

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/gradbox
committed=$here/object
# shellcheck source=scripts/lib/debian.sh
. "$here/../scripts/lib/debian.sh"

die() {
    echo "rebuild.sh: $*" >&2
    exit 1
}

usage() {
    echo "usage: rebuild.sh          build and replace object/*.bpf.o and their hashes"
    echo "       rebuild.sh --check  build elsewhere, exit 1 if the instructions or maps differ"
}

is_version() { [[ $(rustc --version 2>/dev/null) == "rustc $RUST_VERSION "* ]]; }

select_toolchain() {
    is_version && return
    export RUSTUP_TOOLCHAIN=$RUST_VERSION
    is_version || die "needs rustc $RUST_VERSION, found '$(rustc --version 2>&1 | head -n1)';" \
        "run: rustup toolchain install $RUST_VERSION --component rust-src"
}

find_objdump() {
    local name
    for name in llvm-objdump llvm-objdump-{22,21,20,19,18,17,16,15,14}; do
        command -v "$name" && return
    done
    die "needs llvm-objdump to compare objects, found none; run: apt-get install llvm"
}

# Sets $library to the directory with core's source, or to nothing if rustup has its own.
find_rust_source() {
    library=
    [[ -d $(rustc --print sysroot)/lib/rustlib/src/rust/library/core ]] && return
    library=$cache/rust-src-$RUST_VERSION/library
    [[ -d $library/core ]] && return

    command -v apt-get >/dev/null ||
        die "found no source of core; run: rustup component add rust-src --toolchain $RUST_VERSION"
    local state=$scratch/apt
    read_suites "$state" "$SUITE" || die "apt could not read $SUITE from the Debian mirror"
    (cd "$state" && private_apt "$state" apt-get download "rust-src=$RUST_VERSION*") ||
        die "$SUITE no longer offers rust-src $RUST_VERSION;" \
            "run: rustup component add rust-src --toolchain $RUST_VERSION"
    dpkg -x "$state"/rust-src_*.deb "$state/unpacked"
    rm -rf "$cache/rust-src-$RUST_VERSION"
    mkdir "$cache/rust-src-$RUST_VERSION"
    mv "$state/unpacked/usr/src/rustc-$RUST_VERSION/library" "$library"
}

# Sets $linker. Built against the compiler's own libLLVM, so both speak the same bitcode
# and no LLVM of the distribution is needed.
find_linker() {
    local root=$cache/bpf-linker-$LINKER_VERSION-rust-$RUST_VERSION
    linker=$root/bin/bpf-linker
    [[ -x $linker ]] && return

    local libs=("$(rustc --print sysroot)"/lib/libLLVM.so.*)
    [[ -f ${libs[0]} ]] || die "found no lib/libLLVM.so.* in $(rustc --print sysroot);" \
        "needed: a rustc that links LLVM dynamically, as rustup's does"
    mkdir -p "$root/llvm/lib"
    ln -sf "${libs[0]}" "$root/llvm/lib/libLLVM.so"
    ln -sf "${libs[0]}" "$root/llvm/lib/$(basename "${libs[0]}")"
    # Optimising the linker costs minutes and saves nothing: it handles one small program.
    LLVM_PREFIX=$root/llvm CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_DEBUG=0 \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_TARGET_DIR=$cache/linker-target \
        cargo install "bpf-linker@$LINKER_VERSION" --locked --no-default-features \
        --features llvm-22 --root "$root" || die "could not build bpf-linker $LINKER_VERSION"
    rm -rf "$cache/linker-target"
}

# build DIRECTORY: all objects, into it.
# No debug information, hence no BTF: the maps are plain definitions that need none, and
# BTF's line table would put the builder's paths into the object.
# Instructions of CPU v3 (32-bit ones and more, Linux 5.1), and numbers read and written
# whole where they are not aligned, as nothing in a packet is: the kernel allows it
# wherever the machine does (x86-64, arm64).
build() {
    local out=$1 target_dir=$cache/xdp-redirect-target name
    # RUSTC_BOOTSTRAP: -Z build-std is unstable, and the target has no prebuilt core.
    (
        cd "$here"
        export RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=$target_dir
        export CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER=$linker
        local flags=(-Cdebuginfo=0 -Ctarget-cpu=v3
            -Ctarget-feature=+allows-misaligned-mem-access)
        CARGO_ENCODED_RUSTFLAGS=$(IFS=$'\x1f' && echo "${flags[*]}")
        export CARGO_ENCODED_RUSTFLAGS
        [[ -z $library ]] || export __CARGO_TESTS_ONLY_SRC_ROOT=$library
        cargo build --release --locked -Z build-std=core --target "$TARGET"
    ) || die "the BPF programs did not build"
    for name in $OBJECTS; do
        install -m 644 "$target_dir/$TARGET/release/$name" "$out/$name.bpf.o"
    done
}

# Instructions with their relocations, then the bytes of the maps, settings and licence.
disassemble() {
    "$objdump" -d -r --no-show-raw-insn "$1" | sed 1,2d
    "$objdump" -s -j maps -j .rodata -j license "$1" | sed 1,2d
}

# compare NAME: is the committed object the one in $scratch?
compare() {
    disassemble "$committed/$1.bpf.o" >"$scratch/committed"
    disassemble "$scratch/$1.bpf.o" >"$scratch/fresh"
    # An empty listing would compare equal with any other empty one.
    grep -q exit "$scratch/committed" || die "found no instructions in object/$1.bpf.o"
    diff -u "$scratch/committed" "$scratch/fresh" ||
        die "object/$1.bpf.o differs from its source; run rebuild.sh and commit the result"
}

case "${1:-}" in
'' | --check) ;;
-h | --help) usage && exit ;;
*) usage >&2 && exit 2 ;;
esac

mkdir -p "$cache"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
select_toolchain
find_rust_source
find_linker

if [[ ${1:-} == --check ]]; then
    objdump=$(find_objdump)
    for name in $OBJECTS; do
        (cd "$committed" && sha256sum --check --quiet "$name.bpf.o.sha256") ||
            die "object/$name.bpf.o is not the one its .sha256 names; run rebuild.sh"
    done
    build "$scratch"
    for name in $OBJECTS; do compare "$name"; done
    echo "rebuild.sh: the committed objects match their source"
else
    mkdir -p "$committed"
    build "$committed"
    cd "$committed"
    for name in $OBJECTS; do
        sha256sum "$name.bpf.o" | tee "$name.bpf.o.sha256"
    done
fi
