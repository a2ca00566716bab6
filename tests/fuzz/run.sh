#!/usr/bin/env bash
# Runs the fuzz targets, each for a bounded time: run.sh [SECONDS_A_TARGET=15] [TARGET...]
# Needs Rust, a C++ compiler, python3 and crates.io. README.md says what to do with a finding.
set -euo pipefail
cd "$(dirname "$0")"
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

readonly CARGO_FUZZ_VERSION=0.13.1
# A target holds some 50 MB, most inputs take less than a millisecond.
readonly RSS_MB_MAX=1024 INPUT_BYTES_MAX=16384 INPUT_SECONDS_MAX=10

# Stable Rust has the coverage counters; a sanitizer would need nightly, and finds what safe code
# cannot do.
fuzz() { cargo fuzz "$1" --fuzz-dir . --sanitizer none "${@:2}"; }

run_target() {
  local target=$1 seconds=$2 log=artifacts/$1.log
  mkdir -p "artifacts/$target" "corpus/$target"
  if fuzz run "$target" -- -max_total_time="$seconds" -dict=words.dict -rss_limit_mb=$RSS_MB_MAX \
    -max_len=$INPUT_BYTES_MAX -timeout=$INPUT_SECONDS_MAX >"$log" 2>&1; then
    grep -E "[[:space:]]DONE[[:space:]]" "$log"
  else
    grep -vE "^#[0-9]" "$log" | tail -n 80 | cut -c 1-500
    return 1
  fi
}

main() {
  local seconds=${1:-15} targets=("${@:2}") failed=() target
  command -v cargo-fuzz >/dev/null ||
    cargo install cargo-fuzz --version "$CARGO_FUZZ_VERSION" --locked --debug
  [ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(cargo fuzz list --fuzz-dir .)
  python3 seed.py
  fuzz build
  for target in "${targets[@]}"; do
    echo "-- $target, $seconds s"
    run_target "$target" "$seconds" || failed+=("$target")
  done
  if [ ${#failed[@]} -gt 0 ]; then
    echo "-- FAILED: ${failed[*]}. To replay an input that is named above:"
    for target in "${failed[@]}"; do
      echo "   cd tests/fuzz && cargo fuzz run --fuzz-dir . --sanitizer none $target ./artifacts/$target/..."
    done
    return 1
  fi
  echo "-- nothing found"
}

main "$@"
