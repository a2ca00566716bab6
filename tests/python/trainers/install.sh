#!/usr/bin/env bash
# Makes the environments of the trainers that read exports, one for each folder that
# requirements.txt names:
#
#     install.sh [--newest] [FOLDER]
#
# in FOLDER, which is this one where none is named. `.venv` has 6 GB, most of it torch, whose wheels
# all carry CUDA; vLLM's environment has the same files, through uv's cache. Left alone while the
# list and this script are as they were. With `--newest` the pins of trainers are not looked at.
# Needs Python 3.12 or newer; where there is none, or no room, the tests are skipped and `.skipped`
# says why.
set -euo pipefail
cd "$(dirname "$0")"

readonly UV_VERSION=0.13.9
readonly ROOM_KIB=$((12 * 1024 * 1024))
readonly NEWEST=2026-11-27T00:00:00Z
readonly HERE=$PWD
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"

# The first Python that is new enough; pyenv's are found even where its shims do not name them.
python_found() {
  local path
  for path in python3 python3.1{2,3,4} "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-3]*/bin/python; do
    if "$path" -c "import sys, venv; sys.exit(sys.version_info < (3, 12))" 2>/dev/null; then
      echo "$path"
      return
    fi
  done
  return 1
}

# The sections of the list, each by its folder and its options.
sections() { sed -n 's/^# \[\([^]]*\)\].*/\1/p' "$HERE/requirements.txt"; }

# What a section lists.
listed() {
  awk -v head="# [$1]" '/^# \[/ { is_in = index($0, head) == 1 } is_in && !/^#/' \
    "$HERE/requirements.txt"
}

# Leaves out versions, but of what has a comment.
unpinned() { sed '/ # /! s/==.*//'; }

install() {
  local folder options known=cat newer=(--exclude-newer "$NEWEST")
  read -r folder options <<<"$1"
  [ -z "$2" ] || { known=unpinned newer=(); }
  [ -e "$folder" ] || "$HERE/.uv/bin/uv" venv --quiet --python "$python" "$folder"
  # shellcheck disable=SC2086 # several options
  listed "$1" | "$known" | "$HERE/.uv/bin/uv" pip install --quiet --python "$folder/bin/python" \
    "${newer[@]}" $options -r -
}

main() {
  local mark python section newest="" started=$SECONDS
  [ "${1:-}" != --newest ] || { newest=yes; shift; }
  mkdir -p "${1:-.}" && cd "${1:-.}"
  mark="$newest$(cat "$HERE/requirements.txt" "$HERE/install.sh" | sha256sum)"
  if [ "$(cat .venv/.installed 2>/dev/null)" = "$mark" ]; then
    return
  fi
  rm -f .skipped
  if ! python="$(python_found)"; then
    echo "the trainers need Python 3.12 or newer, and none was found" | tee .skipped >&2
    return
  fi
  if [ "$(df --output=avail -k . | tail -1)" -lt "$ROOM_KIB" ]; then
    echo "the trainers need 12 GB of free disk" | tee .skipped >&2
    return
  fi
  if [ "$("$HERE/.uv/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    python3 -m venv --clear "$HERE/.uv" && "$HERE/.uv/bin/pip" install --quiet "uv==$UV_VERSION"
  fi
  rm -rf .venv .verifiers
  while read -r section; do install "$section" "$newest"; done < <(sections)
  echo "$mark" >.venv/.installed
  echo "trainers: $((SECONDS - started)) s, $(du -shc .venv .verifiers | tail -1 | cut -f1)"
}

main "$@"
