#!/usr/bin/env bash
# Runs the fuzz targets: run.sh [SECONDS_A_TARGET] [TARGET...]
# Without arguments each makes the same inputs every time, from the seeds alone: some ten seconds of
# them. With a time it hunts: other inputs each time, from all that it has found before.
# Needs Rust, a C++ compiler, python3 and crates.io. README.md says what to do with a finding.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

# A target holds some 50 MB, most inputs take less than a millisecond.
readonly RSS_MB_MAX=1024 INPUT_BYTES_MAX=16384 INPUT_SECONDS_MAX=10
# Inputs of a run without arguments: what ten seconds of one core hold.
declare -rA RUNS=([codings]=50000 [collector]=30000 [control]=120000 [conversations]=5000
  [editor]=20000 [foreign]=100000 [hider]=15000 [replies]=9000 [requests]=40000 [splitter]=60000
  [tags]=500000)

# Counters for libFuzzer, as cargo-fuzz sets them, and assertions. Stable Rust has them; a sanitizer
# would need nightly, and finds what safe code cannot do.
readonly COVERAGE="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Cdebug-assertions
  -Ccodegen-units=1"

# For a target triple, so that build scripts and macros have no counters.
build() {
  local host
  host="$(rustc --print host-tuple)"
  RUSTFLAGS="${COVERAGE//$'\n'/ }" cargo build --release --target "$host"
  PROGRAMS="target/$host/release"
}

run_target() {
  local target=$1 seconds=$2 log=artifacts/$1.log found=corpus/$1 bound
  local program=("$PROGRAMS/$1")
  if [ "$seconds" = same ]; then
    found=artifacts/$target/grown
    rm -rf "$found"
    bound=(-seed=1 -reload=0 -runs="${RUNS[$target]}")
  else
    bound=(-max_total_time="$seconds")
  fi
  mkdir -p "artifacts/$target" "$found"
  # libFuzzer chooses by addresses, so these stay where they are. A container may forbid that.
  if setarch -R true 2>/dev/null; then program=(setarch -R "${program[@]}"); fi
  if "${program[@]}" "${bound[@]}" -dict=words.dict -rss_limit_mb=$RSS_MB_MAX \
    -max_len=$INPUT_BYTES_MAX -timeout=$INPUT_SECONDS_MAX -artifact_prefix="artifacts/$target/" \
    "$found" "seeds/$target" >"$log" 2>&1; then
    grep -E "[[:space:]]DONE[[:space:]]" "$log"
  else
    grep -vE "^#[0-9]" "$log" | tail -n 80 | cut -c 1-500
    return 1
  fi
}

main() {
  local seconds=${1:-same} targets=("${@:2}") failed=() target
  [ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(basename --suffix=.rs targets/*.rs)
  python3 seed.py
  build
  rm -f artifacts/*/.held
  # One target a core.
  for target in "${targets[@]}"; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done
    mkdir -p "artifacts/$target"
    { run_target "$target" "$seconds" && touch "artifacts/$target/.held"; } \
      >"artifacts/$target.told" 2>&1 &
  done
  wait
  for target in "${targets[@]}"; do
    echo "-- $target"
    cat "artifacts/$target.told"
    [ -f "artifacts/$target/.held" ] || failed+=("$target")
  done
  if [ ${#failed[@]} -gt 0 ]; then
    echo "-- FAILED: ${failed[*]}. To replay an input that is named above:"
    for target in "${failed[@]}"; do
      echo "   cd tests/fuzz && $PROGRAMS/$target artifacts/$target/..."
    done
    return 1
  fi
  echo "-- nothing found"
}

main "$@"
