#!/usr/bin/env bash
# Makes the virtual environments of the clients, all or those of the groups that are named:
#
#     install.sh [GROUP...]
#
# A group is a file of `requirements/`; its environment is `.venvs/GROUP`, left alone while the file
# and this script are as they were. Packages newer than NEWEST are not looked at, so what the
# pinned ones need stays as it was too. OpenHands and Harbor, which need a newer Python than the
# others, are left out where there is none; the reason is in `.venvs/GROUP.skipped`.
set -euo pipefail
cd "$(dirname "$0")"

readonly UV_VERSION=0.13.9
readonly NEWEST=2026-11-21T00:00:00Z
readonly BOOT=.venvs/.uv
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
[ -z "${PIP_CERT:-}" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$PIP_CERT}"
[ -z "${PIP_INDEX_URL:-}" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$PIP_INDEX_URL}"

# The first Python that is at least 3.$1; pyenv's are found even where its shims do not name them.
python_from() {
  local path pyenv="${PYENV_ROOT:-$HOME/.pyenv}"
  for path in python3 python3.1{2,3,4} "$pyenv"/versions/3.1[2-9]*/bin/python; do
    if "$path" -c "import sys, venv; sys.exit(sys.version_info < (3, $1))" 2>/dev/null; then
      echo "$path"
      return
    fi
  done
  return 1
}

uv() {
  if [ "$("$BOOT/bin/uv" --version 2>/dev/null | cut -d' ' -f2)" != "$UV_VERSION" ]; then
    python3 -m venv --clear "$BOOT" &&
      "$BOOT/bin/pip" install --quiet "uv==$UV_VERSION" >&2 || return 1
  fi
  "$BOOT/bin/uv" "$@"
}

install() {
  local group="$1" venv=".venvs/$1" minor=11 mark python why
  [ -f "requirements/$group.txt" ] || { echo "no group '$group'" >&2; return 2; }
  mark="$(cat "requirements/$group.txt" install.sh | sha256sum)"
  if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$mark" ]; then
    return
  fi
  case "$group" in openhands | harbor) minor=12 ;; esac
  rm -f "$venv.skipped" "$venv/.installed"
  if ! python="$(python_from "$minor")"; then
    why="$group needs Python 3.$minor or newer, and none was found"
    echo "SKIPPED: $why" >&2
    [ "$minor" != 11 ] || return 1
    echo "$why" >"$venv.skipped"
    return
  fi
  local started=$SECONDS
  uv venv --quiet --clear --python "$python" "$venv" &&
    uv pip install --quiet --python "$venv/bin/python" --exclude-newer "$NEWEST" \
      -r "requirements/$group.txt" || return 1
  echo "$mark" >"$venv/.installed"
  echo "$group: $((SECONDS - started)) s, $(du -sh "$venv" | cut -f1)"
}

main() {
  local groups=("$@") file
  if [ ${#groups[@]} -eq 0 ]; then
    for file in requirements/*.txt; do groups+=("$(basename "$file" .txt)"); done
  fi
  mkdir -p .venvs
  for group in "${groups[@]}"; do install "$group"; done
}

main "$@"
