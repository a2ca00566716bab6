#!/usr/bin/env bash
# The CUDA path on a machine without a GPU: the real compilers for every kernel, then our own host
# code and kernels on emulated libraries (kernels/emulator/README.md says what those are).
# `run.sh --update` only writes kernels/cuda/cubins.bin and ceilings.txt anew: after every change of
# a kernel's text. `run.sh --compile` is the compilers alone, `run.sh --emulate` the emulator alone.
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

compile() {
  echo "-- nvcc and NVRTC, sm_80 and sm_90a"
  "$VENV/bin/python" tests/cuda/cubins.py "$toolkit" "$packages/cuda_nvrtc/lib" "$@"
}

check_emulator() {
  echo "-- the emulator"
  program="$(mktemp)"
  trap 'rm -f "$program"' EXIT
  kernels/emulator/build_program.sh "$program" kernels/emulator/test.cc
  "$program"
}

# Of the whole workspace, as `.ci/run test` has built it: of one package alone, libraries would be
# built anew with fewer features. The filters leave those tests that run kernels.
emulate() {
  echo "-- kernels and engine on the emulated libraries, compiled by the real NVRTC"
  ROLLTAPE_TEST_NVRTC="$toolkit/lib" cargo test --workspace --features engine/emulated --lib -- \
    cuda:: serve::tests::gpu:: gpu::group:: gpu::profile::
}

case "${1:-}" in
  --update) compile --update ;;
  --compile) compile ;;
  --emulate) check_emulator && emulate ;;
  *) compile && check_emulator && emulate ;;
esac
