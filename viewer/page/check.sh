#!/usr/bin/env bash
# Checks the page: its types, and that the committed files are what its sources build.
# Needs node from 20 with npm. `npm run build` writes the files again.
set -euo pipefail
cd "$(dirname "$0")"

npm ci --no-audit --no-fund --loglevel=error
npm run --silent check
built="$(mktemp -d)"
trap 'rm -rf "$built"' EXIT
node build.mjs "$built"
if ! diff -rq "$built" dist; then
  echo "viewer/page/dist is not what viewer/page/src builds: run npm run build" >&2
  exit 1
fi

# A bound: the page is part of the binary, and is loaded on each visit.
readonly SCRIPT_BYTES_MAX=160000
size="$(wc -c <dist/app.js)"
if [ "$size" -gt "$SCRIPT_BYTES_MAX" ]; then
  echo "viewer/page/dist/app.js has $size bytes; at most $SCRIPT_BYTES_MAX" >&2
  exit 1
fi
