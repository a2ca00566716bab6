#!/usr/bin/env bash
# The CUDA path on a machine without a GPU: the real compilers for every kernel, then our own host
# code and kernels on emulated libraries (kernels/emulator/README.md says what those are).
# `run.sh --update` only writes kernels/cuda/cubins.bin and ceilings.txt anew: after every change of
# a kernel's text. `run.sh --compile` leaves out the tests in Rust.
set -euo pipefail
cd "$(dirname "$0")/../.."

readonly VENV=tests/cuda/.venv
readonly STAMP="$VENV/requirements.txt"
if ! cmp -s tests/cuda/requirements.txt "$STAMP"; then
  rm -rf "$VENV"
  python3 -m venv "$VENV"
  "$VENV/bin/pip" install --quiet --no-compile -r tests/cuda/requirements.txt
  cp tests/cuda/requirements.txt "$STAMP"
fi
packages="$(echo "$PWD/$VENV"/lib/python3*/site-packages/nvidia)"
toolkit="$packages/cu13"

echo "-- nvcc and NVRTC, sm_80 and sm_90a"
readonly MODE="${1:-}"
update=()
[ "$MODE" != --update ] || update=(--update)
"$VENV/bin/python" tests/cuda/cubins.py "$toolkit" "$packages/cuda_nvrtc/lib" "${update[@]}"
[ "$MODE" != --update ] || exit 0

echo "-- the emulator"
program="$(mktemp)"
trap 'rm -f "$program"' EXIT
kernels/emulator/build_program.sh "$program" kernels/emulator/test.cc
"$program"
[ "$MODE" != --compile ] || exit 0

echo "-- kernels and engine on the emulated libraries, compiled by the real NVRTC"
# Of the whole workspace, as `.ci/run test` has built it: of one package alone, libraries
# would be built anew with fewer features. The filters leave those tests that run kernels.
export ROLLTAPE_TEST_NVRTC="$toolkit/lib"
cargo test --workspace --features engine/emulated --lib -- \
  cuda:: serve::tests::gpu:: gpu::group:: gpu::profile::
