#!/usr/bin/env bash
# Makes `.venv` with Ray, Spark and the libraries of tables beside what the Python tests need; 1.8 GB.
# Left alone while the lists and this script are as they were. Packages newer than NEWEST are not
# looked at.
set -euo pipefail
cd "$(dirname "$0")"

readonly UV_VERSION=0.13.9
readonly NEWEST=2026-11-27T00:00:00Z
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"

main() {
  local mark started=$SECONDS
  mark="$(cat requirements.txt ../requirements.txt install.sh | sha256sum)"
  if [ "$(cat .venv/.installed 2>/dev/null)" = "$mark" ]; then
    return
  fi
  if [ "$(.uv/bin/uv --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    python3 -m venv --clear .uv && .uv/bin/pip install --quiet "uv==$UV_VERSION"
  fi
  .uv/bin/uv venv --quiet --clear --python python3 .venv
  .uv/bin/uv pip install --quiet --python .venv/bin/python --exclude-newer "$NEWEST" \
    -r requirements.txt
  echo "$mark" >.venv/.installed
  echo "lake: $((SECONDS - started)) s, $(du -sh .venv | cut -f1)"
}

main "$@"
