#!/usr/bin/env bash
# Everything that must hold, from a fresh clone on a fresh Debian 12 with a stable Rust: style, lints,
# tests, sanitizer, fuzzing, the BPF objects, zero-copy in a guest and the demo. Ends with a line for
# each step; exit status 1 if one failed.
set -euo pipefail

top=$(cd "$(dirname "$0")/.." && pwd)
# shellcheck source=scripts/lib/setup.sh
. "$top/scripts/lib/setup.sh"

# Seconds that each fuzz target runs.
parser_seconds=10 step_seconds=15

summary=() passed=0 failed=0 skipped=0

steps='packages rust locks format clippy docs build tests asan fuzz xdp zero-copy service bench demo'

usage() {
  echo "usage: scripts/test.sh [STEP...]"
  echo "Runs all steps, or those named: $steps"
}

check_arguments() {
  local name
  for name; do
    case $name in -h | --help) usage && exit ;; esac
    [[ " $steps " == *" $name "* ]] || {
      usage >&2
      exit 2
    }
  done
}

# What a step calls to end without a verdict.
skip() {
  echo "skipped: $*"
  echo "$*" >"$scratch/reason"
  exit 77
}

# Whether a step is wanted: all are where none is named.
wanted() {
  [ ${#only[@]} -eq 0 ] || [[ " ${only[*]} " == *" $1 "* ]]
}

# step NAME TITLE COMMAND...: runs the command and notes how it ended.
step() {
  local name=$1 title=$2 begin=$SECONDS status=0
  shift 2
  wanted "$name" || return 0
  printf '\n==> %s: %s\n' "$name" "$title"
  # Not in a condition: that would switch off -e inside.
  set +e
  (
    set -e
    "$@"
  )
  status=$?
  set -e
  local took=$((SECONDS - begin))
  case $status in
    0)
      passed=$((passed + 1))
      summary+=("passed   $name: $title ($took s)")
      ;;
    77)
      skipped=$((skipped + 1))
      summary+=("skipped  $name: $title: $(cat "$scratch/reason")")
      ;;
    *)
      failed=$((failed + 1))
      summary+=("FAILED   $name: $title (exit status $status, $took s)")
      ;;
  esac
}

close() {
  printf '\n==> summary\n'
  printf '%s\n' "${summary[@]}"
  printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
  [ "$failed" -eq 0 ]
}

check_rust() {
  command -v cargo >/dev/null || {
    echo "Rust 1.95 or newer is needed (rustup default stable); cargo was not found" >&2
    return 1
  }
  cargo --version
  cargo fmt --version
  cargo clippy --version
}

check_locks() {
  local manifest
  for manifest in Cargo.toml fuzz/Cargo.toml xdp-redirect/Cargo.toml; do
    echo "$manifest"
    cargo metadata --locked --format-version 1 --manifest-path "$manifest" >/dev/null
  done
}

check_format() {
  cargo fmt --all --check
  cargo fmt --check --manifest-path fuzz/Cargo.toml
  cargo fmt --check --manifest-path xdp-redirect/Cargo.toml
}

check_docs() {
  RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps
}

# The toolchain that the sanitizer and cargo-fuzz need.
need_nightly() {
  local sysroot
  sysroot=$(rustc +nightly --print sysroot 2>/dev/null) ||
    skip 'no nightly Rust (rustup toolchain install nightly)'
  compgen -G "$sysroot/lib/rustlib/$host/lib/*asan*" >/dev/null ||
    skip "this nightly Rust has no AddressSanitizer for $host"
}

# Where memory is handled by hand (frames, rings, sum kernels), and whole boxes in memory. One
# build for all of it, which optimising would only make longer.
run_asan() {
  need_nightly
  RUSTFLAGS=-Zsanitizer=address CARGO_PROFILE_DEV_OPT_LEVEL=0 \
    cargo +nightly test --locked --no-fail-fast --target "$host" --target-dir "$target/asan" \
    -p gradbox -p gradbox-tests --lib --test simulation --test hostile --test golden_packets \
    --test frames_and_generations
}

need_cargo_fuzz() {
  PATH=$target/tools/bin:$PATH
  command -v cargo-fuzz >/dev/null || cargo install cargo-fuzz --locked --root "$target/tools" ||
    skip 'cargo-fuzz cannot be installed'
}

# fuzz TARGET SECONDS: what it finds new goes to the scratch directory, not into the corpus.
fuzz() {
  mkdir "$scratch/$1"
  cargo +nightly fuzz run --target-dir "$target/fuzz" "$1" "$scratch/$1" "fuzz/corpus/$1" -- \
    -max_total_time="$2" -max_len=4096 -print_final_stats=1 2>&1 |
    grep -v -e '^#' -e 'NEW_FUNC' -e '# Uses:'
}

run_fuzz() {
  need_nightly
  need_cargo_fuzz
  fuzz parser "$parser_seconds"
  fuzz step "$step_seconds"
}

# Whether the last line of rebuild.sh says that something cannot be had here.
cannot_be_had() {
  [[ $1 =~ needs\ (rustc|llvm-objdump)|found\ no\ (source|Debian|lib/)|apt\ could|no\ longer\ offers|bpf-linker ]]
}

check_xdp_object() {
  install_packages llvm || skip 'llvm-objdump cannot be installed'
  local last
  xdp-redirect/rebuild.sh --check 2>&1 | tee "$scratch/xdp" && return
  last=$(tail -n1 "$scratch/xdp")
  if cannot_be_had "$last"; then skip "$last"; fi
  return 1
}

# A script of its own with exit status 77 where packages cannot be had.
run_script() {
  local status=0
  "$1" >"$scratch/output" 2>&1 || status=$?
  cat "$scratch/output"
  [ "$status" != 77 ] || skip "$(sed -n 's/^skipped: //p' "$scratch/output" | tail -n1)"
  return "$status"
}

# Every benchmark with tiny sizes: the figures mean nothing, but every one checks its own results.
# Where the kernel keeps the load from its live frames, those on a network have none, and it is said.
run_bench() {
  build_gradbox
  local status=0 bench benches='sum path wire peers replay' refused
  "$gradbox" bench --tiny --json "$scratch/bench.json" --report "$scratch/page" 2>"$scratch/errors" || status=$?
  cat "$scratch/errors" >&2
  [ "$status" = 0 ] || return "$status"
  refused=$(sed -n 's/^wire is left out: \(this kernel refuses .*\)/\1/p' "$scratch/errors")
  [ -z "$refused" ] || benches='sum path peers replay'
  for bench in $benches; do
    grep -q "\"bench\": \"$bench\"" "$scratch/bench.json" || {
      echo "bench $bench gave no figures"
      return 1
    }
  done
  if grep -q '"checked": false' "$scratch/bench.json"; then
    echo 'a figure was not checked'
    return 1
  fi
  [ -s "$scratch/page/index.html" ] || return 1
  [ -z "$refused" ] || skip "wire and the peers on a network (the others passed): $refused"
}

# demo OPTION...: a run of the demo, which checks every bit and fails where one is wrong.
demo() {
  step demo "scripts/demo.sh $*" run_demo "$@"
}

run_demo() {
  [ -x scripts/demo.sh ] || skip 'there is no scripts/demo.sh'
  scripts/demo.sh --json "$scratch/demo.json" "$@"
  cat "$scratch/demo.json"
}

run_demos() {
  demo --rounds 1 --straggler 3
  demo --rounds 1 --model resnet18 --queues 2 --loss 0.05 --duplicate 0.02 --reorder 0.05
  demo --rounds 1 --model resnet18 --mtu 3498 --dtype bf16 --op avg
  demo --rounds 1 --model resnet18 --port udp --workers 2
}

only=("$@")
check_arguments "$@"

cd "$top"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
command -v cargo >/dev/null || PATH=$HOME/.cargo/bin:$PATH
target=${CARGO_TARGET_DIR:-$top/target}
host=$(uname -m)-unknown-linux-gnu

step packages 'system packages' install_packages tshark
step rust 'toolchain' check_rust
step locks 'lock files are up to date' check_locks
step format 'cargo fmt' check_format
step clippy 'cargo clippy' cargo clippy --locked --workspace --all-targets -- -D warnings
step docs 'cargo doc' check_docs
step build 'release build' build_gradbox
step tests 'tests of the workspace, the model of the rings among them' \
  cargo test --locked --workspace --no-fail-fast
step asan 'the unsafe parts under AddressSanitizer' run_asan
step fuzz "fuzz targets, $parser_seconds and $step_seconds s" run_fuzz
step xdp 'the BPF objects are what their source builds' check_xdp_object
step zero-copy 'real zero-copy drivers in a guest' run_script scripts/zero-copy-test.sh
step service 'the unit under systemd' run_script scripts/service-test.sh
step bench 'every benchmark, tiny' run_bench
run_demos
close
