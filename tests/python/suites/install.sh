#!/usr/bin/env bash
# Fetches the test suites of other servers that a registry has, and an environment to run them in:
#
#     install.sh
#
# They are in `$ROLLTAPE_SUITES_HOME` (default `.suites` here), left alone while `versions`,
# `requirements.txt` and this script are as they were. Only the package registry is needed; 0.5 GB.
# Nothing of theirs is in this repository, and nothing of theirs is built.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLTAPE_SUITES_HOME:-$here/.suites}"
mkdir -p "$home"
cd "$home"

mark="$(cat "$here/versions" "$here/requirements.txt" "$here/install.sh" "$here/fetch.py" | sha256sum)"
if [ "$(cat .installed 2>/dev/null)" = "$mark" ]; then exit 0; fi
rm -rf .installed venv sources

started=$SECONDS
python3 -m venv venv
python3 "$here/fetch.py" "$here/versions" sources &
fetch=$!
venv/bin/pip install --quiet --no-compile --disable-pip-version-check -r "$here/requirements.txt"
wait "$fetch"
echo "$mark" >.installed
echo "suites: $((SECONDS - started)) s, $(du -sh . | cut -f1)"
