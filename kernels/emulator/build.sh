#!/usr/bin/env bash
# build.sh FOLDER [HEAD_DIM...]: the emulated CUDA libraries and the emulated kernels, for
# LD_LIBRARY_PATH. Without sizes of heads: 16, 32, 64, 128 and 256. Files that are up to date are kept.
#   FOLDER/libcuda.so.1           the driver
#   FOLDER/libcublasLt.so.13      products
#   FOLDER/nccl/libnccl.so.2      groups, for programs that load NCCL
#   FOLDER/nvrtc/libnvrtc.so.13   a compiler that compiles nothing, for tests without NVRTC
#   FOLDER/cuda12/                products and compiler under their names in CUDA 12
#   FOLDER/kernels/FAMILY-SIZE.so
# UNWATCHED=1 leaves out the checks of memory, for long runs.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
cuda="$here/../cuda"
out="$1"
shift
sizes=("$@")
[ ${#sizes[@]} -gt 0 ] || sizes=(16 32 64 128 256)
mkdir -p "$out/kernels" "$out/nccl" "$out/nvrtc" "$out/cuda12"
out="$(cd "$out" && pwd)"
# Several test programs may run this at once.
exec 9>"$out/lock"
flock 9

readonly FLAGS=(-std=c++20 -O2 -g1 -ffp-contract=off -fPIC -fno-semantic-interposition -Wall -I"$here" -I"$cuda")
watched=(-fsanitize=thread --param tsan-instrument-func-entry-exit=0
  -fsanitize=alignment,bounds,shift-exponent)
[ -z "${UNWATCHED:-}" ] || watched=()

# A stamp beside each library records its inputs.
up_to_date() { # FILE SOURCE...
  local file="$1"
  shift
  stamp="${UNWATCHED:-} $(cat "$here/build.sh" "$here"/*.h "$@" | cksum)"
  [ -e "$file" ] && [ "$(cat "$file.stamp" 2>/dev/null)" = "$stamp" ]
}
finish() { mv "$1.new" "$1" && echo "$stamp" >"$1.stamp"; }

# Only named symbols are exported: templates of the C++ library that two libraries have (NVRTC is one)
# must not be merged.
exports="$out/exports"
echo '{ global: cu*; nccl*; nvrtc*; rolltape_*; __tsan_*; __ubsan_*; extern "C++" { emulate::*; };
  local: *; };' >"$exports"

library() { # NAME SOURCE... : one of the libraries
  local name="$1" file="$out/$1" stamp
  shift
  up_to_date "$file" "$here"/*.cc && return
  g++ "${FLAGS[@]}" -Wextra -fvisibility=hidden -shared -Wl,-soname,"${name##*/}" \
    -DMAJOR="${name##*.}" -Wl,--version-script="$exports" -Wl,-rpath,'$ORIGIN' -o "$file.new" "$@"
  finish "$file"
}

# The families and their files, from the one list in the Rust code.
families() {
  tr '\n' ' ' <"$here/../src/cuda/program/source.rs" |
    { grep -oE 'family!\("[a-z_0-9]+":[^)]*' || true; } | sed 's/family!(//; s/[":]/ /g'
}

# The names of the kernels of a text.
kernels_of() {
  cat "$@" | g++ -fpreprocessed -dD -E -P -x c++ - 2>/dev/null | tr '\n' ' ' |
    grep -oE '__global__ +(void +)?(__launch_bounds__ *\([^)]*\) *)?(void +)?[a-zA-Z_0-9]+ *\(' |
    sed -E 's/.*[ )]([a-zA-Z_0-9]+) *\($/\1/' || true
}

family() { # NAME SIZE FILE...
  local name="$1" size="$2" file source kernel part stamp
  shift 2
  file="$out/kernels/$name-$size.so"
  up_to_date "$file" "$@" && return
  source="$file.cc"
  {
    echo '#include "emulate.h"'
    for part in "$@"; do echo "#include \"${part#"$cuda"/}\""; done
    echo 'static const emulate::Kernel rolltape_kernels[] = {'
    for kernel in $(kernels_of "$@"); do
      echo "    emulate::Entry<&$kernel>::kernel(\"$kernel\"),"
    done
    echo '};'
    echo 'static const emulate::Family rolltape_these = {'
    echo "    \"$name\", ${size/any/0}, rolltape_kernels, sizeof rolltape_kernels / sizeof(emulate::Kernel),"
    echo '    emulate::__start_emulated_shared, emulate::__stop_emulated_shared};'
    echo 'extern "C" __attribute__((visibility("default")))'
    echo 'const emulate::Family *rolltape_family() { return &rolltape_these; }'
  } >"$source"
  # In two steps: linking with -fsanitize would add the real sanitizer.
  g++ "${FLAGS[@]}" -w -fvisibility=hidden ${watched[@]+"${watched[@]}"} \
    -DHEAD_DIM="${size/any/64}" -c -o "$file.o" "$source" &&
    g++ -shared -Wl,-rpath,'$ORIGIN/..' -Wl,--version-script="$exports" -o "$file.new" \
      "$file.o" "$out/libemulate.so" &&
    finish "$file" && rm "$file.o"
}

limit() { while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n || true; done; }

g++ --version >/dev/null || exit 1
if ! up_to_date "$out/libemulate.so" "$here"/{runtime,warpgroup}.cc; then
  g++ "${FLAGS[@]}" -Wextra -shared -Wl,-soname,libemulate.so \
    -Wl,--version-script="$exports" -o "$out/libemulate.so.new" "$here"/{runtime,warpgroup}.cc
  finish "$out/libemulate.so"
fi
library libcuda.so.1 "$here"/{driver,memory,module,stream}.cc "$out/libemulate.so" -ldl
library libcublasLt.so.13 "$here/cublaslt.cc" "$out/libcuda.so.1"
library nccl/libnccl.so.2 "$here/nccl.cc" "$out/libcuda.so.1" '-Wl,-rpath,$ORIGIN/..'
library nvrtc/libnvrtc.so.13 "$here/nvrtc.cc"
library cuda12/libcublasLt.so.12 "$here/cublaslt.cc" "$out/libcuda.so.1" '-Wl,-rpath,$ORIGIN/..'
library cuda12/libnvrtc.so.12 "$here/nvrtc.cc"
rm -f "$out/failed"
while read -r name parts; do
  files=()
  for part in $parts; do files+=("$cuda/$part.cu"); done
  for size in "${sizes[@]}"; do
    # The first file, base.cu, contains the size for all families.
    cat "${files[@]:1}" | grep HEAD_DIM >/dev/null || size=any
    limit
    { family "$name" "$size" "${files[@]}" || echo "$name" >>"$out/failed"; } &
    [ "$size" != any ] || break
  done
done < <(families)
wait
[ ! -e "$out/failed" ]
