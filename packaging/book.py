#!/usr/bin/env python3
"""Builds the book of the documents into target/book, with the mdBook that is pinned here.

    packaging/book.py                  for a reader who has the repository
    packaging/book.py --links BASE     links to files that are no pages lead to BASE/FILE, as on the
                                       site
    packaging/book.py --pages          only writes what mdBook is given, into target/packaging/book

Needs cargo, which compiles mdBook once.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
PAGES = TARGET / "packaging" / "book"
MDBOOK = "0.5.4"

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)((?:#[^)\s]*)?)(?=\))")
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def linked(text, page, base):
    """A page's text whose links to files outside of the documents lead to a base."""

    def target(match):
        path = pathlib.Path(os.path.normpath(page.parent / match[1]))
        if not path.exists():
            sys.exit(f"FAILED: {page.relative_to(ROOT)} links to {match[1]}, which is not there")
        if path.is_relative_to(DOCS) or not base:
            return match[0]
        return f"{base.rstrip('/')}/{path.relative_to(ROOT)}{match[2]}"

    parts = FENCED.split(text)
    parts[::2] = [LINK.sub(target, part) for part in parts[::2]]
    return "".join(parts)


def write_pages(base):
    """Copies the documents to where mdBook reads them."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES)
    for page in sorted(DOCS.rglob("*.md")):
        (PAGES / page.relative_to(DOCS)).write_text(linked(page.read_text(), page, base))


def mdbook():
    """The pinned mdBook, compiled if it is not there."""
    place = TARGET / "packaging" / f"mdbook-{MDBOOK}"
    program = place / "bin" / "mdbook"
    if not program.exists():
        version = ["--version", MDBOOK, "--locked", "--root", place]
        subprocess.run(["cargo", "install", "mdbook", *version], cwd=ROOT, check=True)
    return program


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--links", metavar="BASE")
    parser.add_argument("--pages", action="store_true")
    options = parser.parse_args()
    write_pages(options.links)
    if not options.pages:
        to = TARGET / "book"
        subprocess.run([mdbook(), "build", PAGES, "--dest-dir", to.resolve()], check=True)


if __name__ == "__main__":
    main()
