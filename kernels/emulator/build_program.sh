#!/usr/bin/env bash
# build_program.sh OUT SOURCE [g++ flags]: a test program around emulated kernels. SOURCE includes
# "emulate.h", then base.cu and a family. Every memory access is checked.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
out="$1" source="$2"
shift 2
objects="$(mktemp -d)"
trap 'rm -rf "$objects"' EXIT
readonly FLAGS=(-std=c++20 -O2 -g1 -ffp-contract=off -I"$here" -I"$here/../cuda")
readonly WATCHED=(-w -fsanitize=thread --param tsan-instrument-func-entry-exit=0
  -fsanitize=alignment,bounds,shift-exponent)
for part in runtime warpgroup; do
  g++ "${FLAGS[@]}" -c "$here/$part.cc" -o "$objects/$part.o"
done &
g++ "${FLAGS[@]}" "${WATCHED[@]}" "$@" -c "$source" -o "$objects/program.o"
wait $!
g++ "$objects"/{program,runtime,warpgroup}.o -o "$out"
