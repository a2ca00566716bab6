#!/usr/bin/env bash
# Installs the clients that package-lock.json names; left alone while the lock file is as it was.
#
#     install.sh          all of them
#     install.sh node     only a Node that all of them take, into .node
#
# Where the Node on the path is older than most clients want, npm would quietly install older
# clients. Then one from the registry is put into .node, which .ci/run has first on its path.
set -euo pipefail
cd "$(dirname "$0")"

readonly NODE=24.21.0
readonly MARK=node_modules/.installed
export PATH="$PWD/.node/node_modules/.bin:$PATH"

# The package with Node for this machine.
package() {
  local system machine
  system="$(uname -s | tr '[:upper:]' '[:lower:]')"
  machine="$(uname -m)"
  case "$machine" in
    x86_64) machine=x64 ;;
    aarch64) machine=arm64 ;;
  esac
  echo "node-$system-$machine@$NODE"
}

install_node() {
  local found
  found="$(node --version | tr -dc 0-9. | cut -d. -f1)"
  if [ "$found" -ge "${NODE%%.*}" ]; then return; fi
  rm -rf .node && mkdir .node &&
    npm install --prefix .node --no-audit --no-fund --no-package-lock --silent "$(package)"
}

main() {
  local mark
  install_node || return 1
  if [ "${1:-}" = node ]; then return; fi
  mark="$(cat package.json package-lock.json | sha256sum)"
  if [ "$(cat "$MARK" 2>/dev/null)" = "$mark" ]; then return; fi
  npm ci --no-audit --no-fund && echo "$mark" >"$MARK"
}

main "$@"
