"""Takes the tests out of the source packages of other servers.

    python fetch.py versions FOLDER

`pip download` runs a package's build to learn its metadata, which takes compilers and minutes, so
archives are looked up in the registry's own index instead, and checked against its hashes.
"""

import hashlib
import html
import io
import os
import re
import sys
import tarfile
import urllib.parse
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple")
SECONDS = 120
SERVER = "vendor/llama.cpp/tools/server/tests"
TEMPLATES = "vendor/llama.cpp/models/templates"
WANTED = {
    "vllm": ("tests/__init__.py", "tests/entrypoints", "tests/tool_use", "examples"),
    "llama-cpp-python": (SERVER, TEMPLATES),
    "sglang": ("sglang/test/kits",),
    "jsonschema": ("json/tests",),
}
"""The folders that are taken of each package."""


def archive(name, version):
    """The bytes of a release: its sources, or a wheel where it has none."""
    address = f"{INDEX.rstrip('/')}/{name}/"
    with urllib.request.urlopen(address, timeout=SECONDS) as page:
        links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', page.read().decode())]
    stem = re.escape(name.replace("-", "_")) + "-" + re.escape(version)
    for ending in (r"\.tar\.gz", r"-cp[\w-]+-manylinux\w*x86_64\.whl", r"-py3-none-any\.whl"):
        for link in links:
            file, _, digest = link.partition("#sha256=")
            if re.search(f"/{stem}{ending}$", file):
                with urllib.request.urlopen(urllib.parse.urljoin(address, file), timeout=SECONDS) as body:
                    data = body.read()
                if digest and hashlib.sha256(data).hexdigest() != digest:
                    raise SystemExit(f"{file} is not what the index says")
                return data
    raise SystemExit(f"{address} has no release {version}")


def files(data):
    """The path, without the folder of the release, and the bytes of each file."""
    if data[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(data)) as package:
            for name in (n for n in package.namelist() if not n.endswith("/")):
                yield name, lambda name=name: package.read(name)
        return
    with tarfile.open(fileobj=io.BytesIO(data)) as package:
        for member in package:
            if member.isfile():
                yield member.name.partition("/")[2], lambda m=member: package.extractfile(m).read()


def fetch(name, version, into):
    """Writes the wanted files of a release."""
    for path, read in files(archive(name, version)):
        parts = PurePosixPath(path).parts
        if ".." in parts or not any(path == f or path.startswith(f + "/") for f in WANTED[name]):
            continue
        target = into / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(read())


def main():
    versions, into = sys.argv[1], Path(sys.argv[2])
    releases = [line.split() for line in Path(versions).read_text().splitlines()]
    with ThreadPoolExecutor(len(releases)) as pool:
        for done in [pool.submit(fetch, name, version, into) for name, version in releases]:
            done.result()


if __name__ == "__main__":
    main()
