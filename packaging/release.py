#!/usr/bin/env python3
"""Makes the commit and the tag of a release, and checks them.

    packaging/release.py tag 0.1.0       writes the version and the day, commits, tags
    packaging/release.py check v0.1.0    0 if the tag is the version and the changelog has it with
                                         a date; prints what the changelog says of it

With `--links BASE`, what is printed links to BASE/docs/... in place of docs/...
Neither pushes anything. `.github/workflows/release.yml` runs `check` first.
"""

import argparse
import datetime
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBER = r"(?:0|[1-9]\d*)"
VERSION = re.compile(rf"{NUMBER}\.{NUMBER}\.{NUMBER}")
UNRELEASED = "## Unreleased"
LOCKS = ("Cargo.lock", "tests/fuzz/Cargo.lock")
# Files that name a version in the name of a file or an image, or say which one is now.
NAMES = (
    "docs/install.md",
    "docs/release.md",
    "examples/clusters/kubernetes.yaml",
    "packaging/check_image.py",
)


def fail(sentence):
    """Ends with a sentence on one line."""
    sys.exit(f"FAILED: {' '.join(sentence.split())}")


def git(*words):
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"git {words[0]}: {done.stderr.strip() or 'no'}")
    return done.stdout.strip()


def read(name):
    return (ROOT / name).read_text()


def version_now():
    """The version of the workspace."""
    return tomllib.loads(read("Cargo.toml"))["workspace"]["package"]["version"]


def locked(name):
    """The versions that a lock file has of the crates of this repository."""
    packages = tomllib.loads(read(name))["package"]
    # The fuzz targets have a version of their own.
    ours = [package for package in packages if "source" not in package]
    return {package["version"] for package in ours if package["name"] != "fuzz"}


def sections(changelog):
    """The heading and the text of each `## ` of a changelog, in order."""
    parts = re.split(r"^(## .*)$", changelog, flags=re.MULTILINE)
    return [(head.strip(), text.strip()) for head, text in zip(parts[1::2], parts[2::2])]


def date_of(head, version):
    """The date in the heading of a version."""
    form = f"`## {version} - YYYY-MM-DD`"
    try:
        return datetime.date.fromisoformat(head.removeprefix(f"## {version} - "))
    except ValueError:
        fail(f"CHANGELOG.md: `{head}` is not {form}")


def said_of(version):
    """What the changelog says of a version; fails if that is no text with a date on top."""
    found = sections(read("CHANGELOG.md"))
    if not found or found[0][0] == UNRELEASED:
        fail(f"CHANGELOG.md: `{UNRELEASED}` is on top, not {version}")
    head, text = found[0]
    if not re.match(rf"## {re.escape(version)}(?!\S)", head):
        fail(f"CHANGELOG.md: `{head}` is on top, not {version}")

    if date_of(head, version) > today():
        fail(f"CHANGELOG.md: `{head}` is a day to come")
    if not text:
        fail(f"CHANGELOG.md: nothing below `{head}`")
    return text


def today():
    return datetime.datetime.now(datetime.UTC).date()


def check(tag):
    """What the changelog says of a tag's version; fails if this commit is not its release."""
    version = tag.removeprefix("v")
    if not tag.startswith("v") or not VERSION.fullmatch(version):
        fail(f"the tag `{tag}` is not vX.Y.Z")
    if version != version_now():
        fail(f"the tag is `{tag}`, but Cargo.toml has version {version_now()}")
    for name in LOCKS:
        if locked(name) != {version}:
            fail(f"{name} has {', '.join(sorted(locked(name)))}, not {version}")

    text = said_of(version)
    if git("tag", "--list", tag) and git("rev-parse", f"{tag}^{{}}") != git("rev-parse", "HEAD"):
        fail(f"the tag `{tag}` is of another commit")
    return text


def linked(text, base):
    """A text whose links to files lead to a base, because it is read elsewhere."""
    if not base:
        return text
    return re.sub(r"\]\((?!#|\w+:)", f"]({base.rstrip('/')}/", text)


def write(version):
    """Writes the version where it stands, and the day into the changelog."""
    before = version_now()
    old = re.escape(before)
    replace("Cargo.toml", f'\nversion = "{before}"\n', f'\nversion = "{version}"\n')
    for name in LOCKS:
        # A package of this repository has no source.
        ours = re.compile(rf'(name = "(?!fuzz")[\w-]+"\nversion = "){old}("\n)(?!source)')
        (ROOT / name).write_text(ours.sub(rf"\g<1>{version}\g<2>", read(name)))
    for name in NAMES:
        (ROOT / name).write_text(re.sub(rf"(?<![\d.]){old}(?!\.?\w)", version, read(name)))
    replace("CHANGELOG.md", f"\n{UNRELEASED}\n", f"\n## {version} - {today()}\n")


def replace(name, before, after):
    text = read(name)
    if text.count(before) != 1:
        fail(f"{name} has {text.count(before)} times `{before.strip()}`, not once")
    (ROOT / name).write_text(text.replace(before, after))


def tag(version):
    """Commits a version and tags it."""
    if not VERSION.fullmatch(version):
        fail(f"the version `{version}` is not X.Y.Z")
    parts = [tuple(map(int, text.split("."))) for text in (version, version_now())]
    if parts[0] < parts[1]:
        fail(f"the version {version} is below {version_now()}")
    if git("status", "--porcelain"):
        fail("there are changes that are not committed")
    if git("tag", "--list", f"v{version}"):
        fail(f"the tag `v{version}` is there already")

    write(version)
    check(f"v{version}")
    git("commit", "--quiet", "--all", "--message", f"[release] {version}")
    git("tag", "--annotate", f"v{version}", "--message", f"rolltape {version}")
    print(f"tagged v{version}; to publish it: git push --atomic origin HEAD v{version}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("tag").add_argument("version")
    checked = commands.add_parser("check")
    checked.add_argument("tag")
    checked.add_argument("--links", metavar="BASE")
    options = parser.parse_args()
    if options.command == "tag":
        tag(options.version)
    else:
        print(linked(check(options.tag), options.links))


if __name__ == "__main__":
    main()
