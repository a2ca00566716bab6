#!/usr/bin/env bash
# Makes `.venv` with the trainers that read exports: 6 GB, most of it torch, whose wheels all carry
# CUDA; vLLM's environment has the same files, through uv's cache. Left alone while the lists and
# this script are as they were. Needs Python 3.12 or newer; where there is none, or no room, the
# tests are skipped and `.skipped` says why.
set -euo pipefail
cd "$(dirname "$0")"

readonly UV_VERSION=0.13.9
readonly ROOM_KIB=$((12 * 1024 * 1024))
readonly NEWEST=2026-11-21T00:00:00Z
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

main() {
  local mark python started=$SECONDS
  mark="$(cat requirements.txt no_deps.txt install.sh | sha256sum)"
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
  if [ "$(.uv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    python3 -m venv --clear .uv && .uv/bin/pip install --quiet "uv==$UV_VERSION"
  fi
  local install=(.uv/bin/uv pip install --quiet --python .venv/bin/python --exclude-newer "$NEWEST")
  .uv/bin/uv venv --quiet --clear --python "$python" .venv
  "${install[@]}" -r requirements.txt
  "${install[@]}" --no-deps -r no_deps.txt
  echo "$mark" >.venv/.installed
  echo "trainers: $((SECONDS - started)) s, $(du -sh .venv | cut -f1)"
}

main "$@"
