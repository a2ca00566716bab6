#!/usr/bin/env bash
# Builds what a release consists of into `dist/`: wheels, static archives and their checksums.
#
#     packaging/build.sh                       all of it
#     packaging/build.sh wheel x86_64          one part, for one machine
#     packaging/build.sh archive aarch64
#     packaging/build.sh image x86_64          a container image, with podman, buildah or docker
#
# Needs rustup with the targets that it names, python3 with venv, and PyPI for the pinned tools of
# `requirements.txt`. It runs each static binary; for one of another machine, qemu-user-static has
# to be installed.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:${CARGO_HOME:-$HOME/.cargo}/bin"

readonly MACHINES=(x86_64 aarch64)
readonly GLIBC=2.17
readonly TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
readonly TOOLS="$TARGET/packaging/tools"
readonly DIST="$PWD/dist"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

fail() {
  echo "$*" >&2
  exit 1
}

# The pinned tools, in an environment of their own.
install_tools() {
  if ! cmp -s packaging/requirements.txt "$TOOLS/installed"; then
    python3 -m venv --clear "$TOOLS"
    "$TOOLS/bin/pip" install --quiet -r packaging/requirements.txt
    cp packaging/requirements.txt "$TOOLS/installed"
  fi
  PATH="$TOOLS/bin:$PATH"
}

need_target() {
  rustup target list --installed | grep -qx "$1" ||
    fail "the Rust target $1 is missing: rustup target add $1"
}

# The version of the workspace.
version() { sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -1; }

# Files carry the time of the commit, so that two builds of it are alike.
commit_time() { git log -1 --format=%ct 2>/dev/null || echo 0; }

# A wheel for every Linux of the last ten years, with a binary that can load CUDA.
build_wheel() {
  local machine="$1"
  local target="$machine-unknown-linux-gnu"
  need_target "$target"
  rm -f "$DIST"/rolltape-*manylinux*"$machine".whl
  (cd python && maturin build --release --locked --zig --target "$target" \
    --compatibility manylinux2014 --out "$DIST")
}

# Runs a binary of a machine, perhaps of another one than this.
run_binary() {
  local machine="$1" emulator
  shift
  if [ "$machine" = "$(uname -m)" ]; then
    "$@"
  else
    emulator="$(command -v "qemu-$machine-static")" ||
      fail "qemu-$machine-static is missing: install qemu-user-static"
    "$emulator" "$@"
  fi
}

# A binary that needs nothing of the system, with what belongs to it.
build_archive() {
  local machine="$1"
  local target="$machine-unknown-linux-musl" name folder
  rm -f "$DIST"/rolltape-*-"$machine"-linux.tar.gz
  need_target "$target"
  cargo zigbuild --release --locked -p cli --target "$target"
  name="rolltape-$(version)-$machine-linux"
  folder="$TARGET/packaging/$name"
  rm -rf "$folder"
  mkdir -p "$folder/completions" "$folder/systemd"
  cp "$TARGET/$target/release/rolltape" LICENSE README.md "$folder"
  cp packaging/rolltape.service packaging/rolltape*.socket "$folder/systemd"
  local rolltape=(run_binary "$machine" "$folder/rolltape")
  "${rolltape[@]}" completions bash >"$folder/completions/rolltape.bash"
  "${rolltape[@]}" completions zsh >"$folder/completions/_rolltape"
  "${rolltape[@]}" completions fish >"$folder/completions/rolltape.fish"
  "${rolltape[@]}" --version
  tar --create --sort=name --owner=0 --group=0 --numeric-owner --mode=u+w,go-w \
    --mtime="@$SOURCE_DATE_EPOCH" --directory "$TARGET/packaging" "$name" |
    gzip -9 --no-name >"$DIST/$name.tar.gz"
}

# An image around the wheel's binary.
build_image() {
  local machine="$1" tool wheel
  local context="$TARGET/packaging/image-$machine"
  tool="$(command -v podman || command -v buildah || command -v docker)" ||
    fail "podman, buildah or docker is missing"
  wheel="$(compgen -G "$DIST/rolltape-$(version)-*$machine.whl" || true)"
  [ -n "$wheel" ] || fail "dist/ has no wheel for $machine: packaging/build.sh wheel $machine"
  rm -rf "$context"
  mkdir -p "$context"
  mkdir -m 700 "$context/data"
  python3 -m zipfile -e "$wheel" "$context/wheel"
  # `zipfile` forgets modes.
  install -m 755 "$context"/wheel/rolltape-*.data/scripts/rolltape "$context/rolltape"
  rm -r "$context/wheel"
  cp LICENSE "$context"
  local options=(--platform "linux/$(image_arch "$machine")" --file packaging/Containerfile)
  # The other format has no HEALTHCHECK; docker knows no other.
  [ "${tool##*/}" = docker ] || options+=(--format docker)
  [ -z "${ROLLTAPE_IMAGE_BASE:-}" ] || options+=(--build-arg "BASE=$ROLLTAPE_IMAGE_BASE")
  "$tool" build "${options[@]}" --tag "rolltape:$(version)-$machine" "$context"
}

# The name that images have for a machine.
image_arch() {
  case "$1" in
    x86_64) echo amd64 ;;
    aarch64) echo arm64 ;;
  esac
}

main() {
  local parts=(wheel archive) machines=("${MACHINES[@]}") part machine
  [ $# -le 2 ] || fail "usage: packaging/build.sh [wheel|archive|image] [x86_64|aarch64]"
  [ $# -lt 1 ] || parts=("$1")
  [ $# -lt 2 ] || machines=("$2")
  [[ " wheel archive image " == *" ${parts[0]} "* ]] || fail "no part '${parts[0]}'"
  [[ " ${MACHINES[*]} " == *" ${machines[0]} "* ]] || fail "no machine '${machines[0]}'"

  SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(commit_time)}"
  export SOURCE_DATE_EPOCH
  mkdir -p "$DIST"
  install_tools
  for part in "${parts[@]}"; do
    for machine in "${machines[@]}"; do
      echo "== $part for $machine, at $SECONDS s"
      "build_$part" "$machine"
    done
  done
  (cd "$DIST" && find . -name 'rolltape-*' -printf '%f\n' | sort | xargs -r sha256sum >SHA256SUMS)
  echo "== built in $SECONDS s"
  (cd "$DIST" && du -h --apparent-size -- *)
}

main "$@"
