#!/usr/bin/env bash
# Tries what `packaging/build.sh` built where nothing else is: the wheel in a bare Debian root, the
# static binary in an empty root.
#
#     packaging/check.sh                 all of `dist/`; needs both machines' files
#     packaging/check.sh --quick WHEEL   one wheel of this machine, in a bare root of this Debian
#
# Needs debootstrap, readelf and the right to chroot; without --quick also qemu-user-static and
# systemd-analyze. With buildah, the image is built and started as well.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly TARGET="${CARGO_TARGET_DIR:-$PWD/target}"
readonly DIST="$PWD/dist"
# As manylinux2014 promises.
readonly GLIBC_MAX=2.17
# Where nobody has a name, as in many containers.
readonly NOBODY=10001:10001
# The longest that a demo of one episode may take under an emulator, in seconds.
readonly EMULATED_S=240

WORK="$(mktemp -d "${TMPDIR:-/tmp}/rolltape-check.XXXXXX")"
readonly WORK
STARTED=

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

leave() {
  [ -z "$STARTED" ] || kill "$STARTED" 2>/dev/null || true
  as_root rm -rf "$WORK"
}
trap leave EXIT

# A copy of a Debian with Python and without a compiler. The original is kept.
bare_root() {
  local suite="$1" to="$2"
  local kept="$TARGET/packaging/root-$suite"
  if [ ! -e "$kept/made" ]; then
    as_root rm -rf "$kept"
    mkdir -p "$TARGET/packaging"
    as_root debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$kept" \
      >"$WORK/debootstrap.log" || { tail -5 "$WORK/debootstrap.log" >&2; return 1; }
    as_root touch "$kept/made"
  fi
  as_root cp -a --reflink=auto "$kept" "$to"
  [ ! -e "$to/usr/bin/cc" ] && [ ! -e "$to/usr/bin/cargo" ] || fail "$suite has a compiler"
}

# pip installs a wheel into a bare root without a network; the package and its command run there.
check_wheel_runs() {
  local wheel="$1" suite="$2" root="$WORK/$2" started=$SECONDS
  bare_root "$suite" "$root"
  echo "bare $suite: $((SECONDS - started)) s"
  started=$SECONDS
  as_root mkdir -p "$root/trial"
  as_root cp "$wheel" "$root/trial"
  as_root chown -R "$NOBODY" "$root/trial"
  as_root chroot --userspec="$NOBODY" "$root" /usr/bin/env -i HOME=/trial PATH=/usr/bin:/bin \
    sh -ec '
      cd /trial
      python3 -m venv venv
      venv/bin/pip install --quiet --no-index --disable-pip-version-check ./*.whl
      venv/bin/rolltape --version
      venv/bin/python -c "import rolltape; assert rolltape.binary() == \"/trial/venv/bin/rolltape\""
      venv/bin/python -m rolltape demo --groups 1 --episodes 1 --out demo >demo.out
      test -s demo/data/trajectories.parquet
      venv/bin/rolltape verify --store demo/rolltape.db'
  echo "wheel in bare $suite, from pip to the end of the demo: $((SECONDS - started)) s"
}

# What a wheel is called is what its binary needs.
check_wheel_needs() {
  local wheel="$1" machine="$2" binary newest
  [[ "$wheel" == *-py3-none-manylinux_2_17_"$machine".manylinux2014_"$machine".whl ]] ||
    fail "$wheel is not called manylinux2014"
  python3 -m zipfile -e "$wheel" "$WORK/wheel-$machine"
  binary="$(echo "$WORK/wheel-$machine"/rolltape-*.data/scripts/rolltape)"
  newest="$(readelf --wide --version-info "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)"
  [ -n "$newest" ] || fail "$wheel: its binary names no version of glibc"
  [ "$(printf '%s\n' "GLIBC_$GLIBC_MAX" "$newest" | sort -V | tail -1)" = "GLIBC_$GLIBC_MAX" ] ||
    fail "$wheel needs $newest"
  readelf --dynamic "$binary" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | while read -r library; do
    case "$library" in
      libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0) ;;
      librt.so.1 | libgcc_s.so.1 | ld-linux-*) ;;
      *) fail "$wheel needs $library" ;;
    esac
  done
  echo "${wheel##*/}: needs at most $newest"
}

# The static binary of this machine, where there is nothing but what its archive has.
check_archive_runs() {
  local archive="$1" root="$WORK/empty" started=$SECONDS name
  name="$(basename "$archive" .tar.gz)"
  mkdir -p "$root"
  tar -xzf "$archive" -C "$root"
  find "$root/$name" | sed "s#^$root/##" | sort
  local rolltape=(as_root chroot "$root" "/$name/rolltape")
  "${rolltape[@]}" --version | tee "$WORK/version"
  grep -q 'features: cpu, sqlite, postgres)' "$WORK/version" || fail "the archive's features"
  "${rolltape[@]}" demo --groups 1 --episodes 1 --out /demo >"$WORK/demo.out"
  [ -s "$root/demo/data/trajectories.parquet" ] || fail "the demo exported nothing"
  "${rolltape[@]}" verify --store /demo/rolltape.db
  # A build that cannot load a driver says so, in a sentence.
  as_root cp -r engine/models/tiny "$root/model"
  local engine=("${rolltape[@]}" engine --model /model --listen 127.0.0.1:0)
  if "${engine[@]}" --device cuda 2>"$WORK/cuda.err"; then
    fail "a static binary ran on CUDA"
  fi
  grep -q 'is static and cannot load the CUDA driver' "$WORK/cuda.err" ||
    fail "$(cat "$WORK/cuda.err")"
  echo "archive in an empty root: $((SECONDS - started)) s"
}

# The static binary of the other machine, under an emulator.
check_archive_emulated() {
  local archive="$1" machine="$2" started=$SECONDS name emulator
  name="$(basename "$archive" .tar.gz)"
  emulator="$(command -v "qemu-$machine-static")" || fail "qemu-$machine-static is missing"
  tar -xzf "$archive" -C "$WORK"
  "$emulator" "$WORK/$name/rolltape" --version
  timeout "$EMULATED_S" "$emulator" "$WORK/$name/rolltape" demo --groups 1 --episodes 1 \
    --out "$WORK/demo-$machine" >"$WORK/demo-$machine.out" || fail "the demo of $machine"
  [ -s "$WORK/demo-$machine/data/trajectories.parquet" ] || fail "$machine exported nothing"
  echo "archive for $machine, emulated: $((SECONDS - started)) s"
}

# The unit is sound, and the archive's binary tells systemd that it is ready.
check_unit() {
  local binary="$1" units="$WORK/units"
  mkdir -p "$units"
  cp packaging/rolltape.service packaging/rolltape*.socket "$units"
  sed -i "s#^ExecStart=[^ ]*#ExecStart=$binary#" "$units/rolltape.service"
  systemd-analyze verify "$units"/*
  systemd-analyze security --offline=true --threshold=25 "$units/rolltape.service" \
    >"$WORK/security" ||
    fail "the unit is exposed: $(tail -1 "$WORK/security")"
  tail -1 "$WORK/security"
  python3 packaging/check_notify.py "$binary" "$WORK"
}

# The image, around a bare Debian in place of the one of a registry.
check_image() {
  local machine="$1" storage="$WORK/storage" container version
  printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' \
    "$storage" "$storage-run" >"$WORK/storage.conf"
  export CONTAINERS_STORAGE_CONF="$WORK/storage.conf" BUILDAH_ISOLATION=chroot
  container="$(buildah from scratch)"
  buildah copy --quiet "$container" "$WORK/bookworm" / >/dev/null
  buildah commit --quiet "$container" localhost/debian >/dev/null
  buildah rm "$container" >/dev/null
  export ROLLTAPE_IMAGE_BASE=localhost/debian
  packaging/build.sh image "$machine" >"$WORK/image.log" 2>&1 ||
    fail "$(tail -5 "$WORK/image.log")"
  version="$(basename "$DIST"/rolltape-*-"$machine"-linux.tar.gz | cut -d- -f2)"
  unshare --net python3 packaging/check_image.py "rolltape:$version-$machine"
}

quick() {
  # A wheel for this machine alone may need this machine's glibc.
  check_wheel_runs "$1" "$(. /etc/os-release && echo "$VERSION_CODENAME")"
}

whole() {
  local machine archive here
  here="$(uname -m)"
  (cd "$DIST" && sha256sum --check --quiet SHA256SUMS)
  for machine in x86_64 aarch64; do
    check_wheel_needs "$(echo "$DIST"/rolltape-*manylinux*"$machine".whl)" "$machine"
    archive="$(echo "$DIST"/rolltape-*-"$machine"-linux.tar.gz)"
    if [ "$machine" = "$here" ]; then
      check_archive_runs "$archive"
      check_unit "$WORK/empty/$(basename "$archive" .tar.gz)/rolltape"
      check_wheel_runs "$(echo "$DIST"/rolltape-*manylinux*"$machine".whl)" bookworm
      if ! command -v buildah >/dev/null; then
        echo "no buildah: the image is not tried"
      elif [ "$(id -u)" != 0 ]; then
        echo "not root: the image is not tried"
      else
        check_image "$machine"
      fi
    else
      check_archive_emulated "$archive" "$machine"
    fi
  done
}

main() {
  if [ "${1:-}" = --quick ] && [ $# = 2 ]; then
    quick "$2"
  elif [ $# = 0 ]; then
    whole
  else
    fail "usage: packaging/check.sh [--quick WHEEL]"
  fi
  echo "== checked in $SECONDS s"
}

main "$@"
