#!/usr/bin/env python3
"""Tries the newest release of each client, and says what changed since the pinned one.

    newest.py [node|python|trainers|GROUP]...
                                          (node and all groups of Python where none is named)

The newest ones take the places of the pinned ones, the tests run against the release binary, and
the pinned ones are installed again. Trainers are installed beside the pinned ones, in environments
that are thrown away. It prints a table: client, pinned, newest, and how many of its tests pass; of
trainers, how many of those that read a format. It ends with 1 where one fails. Meant for a nightly run; needs the registries,
ROLLTAPE_BIN or a release build, and what `.ci/run install clients node` has installed.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parent
NODE = TESTS / "node"
NODE_PATH = f"{NODE / '.node/node_modules/.bin'}{os.pathsep}{os.environ['PATH']}"
CLIENTS = TESTS / "python" / "clients"
TRAINERS = TESTS / "python" / "trainers"
PAGE = TESTS.parent / "docs" / "formats.md"
READ = re.compile(r"^\| `([\w-]+)` \| `\S+` \| (\S+) (\S+) \|$", re.MULTILINE)
"""A format, its reader and the pinned version in the page's table."""
UV = CLIENTS / ".venvs" / ".uv" / "bin" / "uv"
RESULT = re.compile(r"^(?:not )?ok \d+ - ([\w-]+) ", re.MULTILINE)
DRIVEN = {
    "@ai-sdk/openai": "ai-sdk",
    "@ai-sdk/openai-compatible": "ai-sdk",
    "ai": "ai-sdk",
    "@anthropic-ai/claude-code": "claude",
    "@anthropic-ai/sdk": "anthropic",
    "@cline/cli-linux-x64": "cline",
    "@openai/codex": "codex",
    "@qwen-code/qwen-code": "qwen",
    "opencode-linux-x64": "opencode",
    "aider-chat": "aider",
    "autogen-agentchat": "autogen",
    "autogen-ext": "autogen",
    "inspect-ai": "inspect",
    "langchain-openai": "langchain",
    "llama-index-llms-openai": "llama_index",
    "mini-swe-agent": "mini_swe_agent",
    "openai-agents": "agents",
    "openhands-sdk": "openhands",
    "openhands-tools": "openhands",
    "pydantic-ai-slim": "pydantic_ai",
}
"""The driver of a package, where it has another name."""


@dataclass
class Client:
    """A package, its pinned and its newest version, and the fates of its tests."""

    group: str
    name: str
    pinned: str
    newest: str = "not installed"
    fates: tuple[bool, ...] = ()

    @property
    def driver(self):
        """The name by which tests know it."""
        return DRIVEN.get(self.name, self.name)

    def row(self):
        """It as a row of the table."""
        newest = "the same" if self.newest == self.pinned else self.newest
        passed = f"{sum(self.fates)} of {len(self.fates)} pass" if self.fates else "none"
        return (f"{self.name} ({self.group})", self.pinned, newest, passed)


def run(command, folder, **more):
    """What a command said on stdout; its complaints are shown."""
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, **more)
    if done.returncode:
        print(f"{command[0]} ended with {done.returncode}", file=sys.stderr)
    return done.stdout


def node_clients():
    """The Node clients at their newest, with what became of their tests."""
    package = json.loads((NODE / "package.json").read_text())
    pinned = package["dependencies"] | package["optionalDependencies"]
    environment = {**os.environ, "PATH": NODE_PATH}
    (NODE / "node_modules" / ".installed").unlink(missing_ok=True)
    latest = [f"{name}@latest" for name in pinned]
    quiet = ["--no-save", "--no-audit", "--no-fund", "--silent"]
    run(["npm", "install", *quiet, *latest], NODE, env=environment)
    report = run(["node", "--test", "--test-reporter=tap"], NODE, env=environment)
    print(report)
    fates = [(found[1], found[0].startswith("ok")) for found in RESULT.finditer(report)]
    for name, version in pinned.items():
        client = Client("node", name, version, installed_node(name))
        client.fates = tuple(good for driver, good in fates if driver == client.driver)
        yield client
    run([NODE / "install.sh"], NODE)


def installed_node(name):
    """The version of a package that npm has installed."""
    found = NODE / "node_modules" / name / "package.json"
    return json.loads(found.read_text())["version"] if found.exists() else "not installed"


def python_clients(group):
    """The Python clients of a group at their newest, with what became of their tests."""
    lines = (CLIENTS / "requirements" / f"{group}.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    venv = CLIENTS / ".venvs" / group
    mark = venv / ".installed"
    if not mark.exists():
        print(f"{group} is not installed", file=sys.stderr)
        return
    pip = [UV, "pip", "install", "--quiet", "--python", venv / "bin" / "python"]
    run([*pip, "--upgrade", "--resolution", "highest", *pins], CLIENTS)
    listing = run([UV, "pip", "list", "--format", "json", "--python", venv / "bin/python"], CLIENTS)
    newest = {found["name"]: found["version"] for found in json.loads(listing)}
    clients = [Client(group, re.sub(r"\[.*", "", name), pin) for name, pin in pins.items()]
    fates = tested([client.driver for client in clients])
    for client in clients:
        client.newest = newest.get(client.name, client.newest)
        client.fates = tuple(good for driver, good in fates if driver == client.driver)
    mark.unlink()
    run([CLIENTS / "install.sh", group], CLIENTS)
    yield from clients


def tested(drivers):
    """The tests of drivers, each by its driver's name and whether it passed."""
    words = " or ".join(f"[{driver}" for driver in drivers)
    files = sorted((TESTS / "python").glob("test_*clients.py"))
    return [(driver, good) for driver, good, _ in ended(files, words, r"\w+")]


def ended(files, words, name, **environment):
    """The tests that the words choose and that were not skipped: what stands in the brackets of
    each, whether it passed, and its properties."""
    folder = TESTS / "python"
    report = folder / ".newest.xml"
    pytest = [folder / ".venv/bin/python", "-m", "pytest", "-q", "-k", words]
    command = [*pytest, "-o", "junit_family=xunit1", f"--junit-xml={report}", *files]
    print(run(command, folder, env={**os.environ, **environment}))
    found = []
    for case in xml.parse(report).iter("testcase"):
        named = re.search(rf"\[({name})", case.get("name"))
        if named and case.find("skipped") is None:
            bad = case.find("failure") is not None or case.find("error") is not None
            told = {one.get("name"): one.get("value") for one in case.iter("property")}
            found.append((named[1], not bad, told))
    report.unlink()
    return found


def trainers():
    """What reads each format at its newest, with what became of its tests."""
    folder = TRAINERS / ".newest"
    run([TRAINERS / "install.sh", "--newest", folder], TRAINERS)
    file = TESTS / "python" / "test_trainers.py"
    settings = {"ROLLTAPE_TRAINERS_AT": str(folder), "ROLLTAPE_TRAINERS": "required"}
    found = ended([file], "read_the_rows or odd or step", r"[\w-]+", **settings)
    shutil.rmtree(folder)
    for format, package, pinned in dict.fromkeys(READ.findall(PAGE.read_text())):
        reader = Client(format, package, pinned)
        reader.fates = tuple(good for name, good, _ in found if name == format)
        told = (told["version"] for name, _, told in found if name == format and told)
        reader.newest = next(told, reader.newest)
        yield reader


def main():
    """The table of all that are named."""
    groups = sorted(file.stem for file in (CLIENTS / "requirements").glob("*.txt"))
    wanted = sys.argv[1:] or ["node", "python"]
    known = ["node", "python", "trainers", *groups]
    if unknown := set(wanted) - set(known):
        sys.exit(f"no clients '{', '.join(unknown)}'; there are: {', '.join(known)}")
    clients = list(node_clients()) if "node" in wanted else []
    clients += trainers() if "trainers" in wanted else []
    for group in groups:
        if group in wanted or "python" in wanted:
            clients += python_clients(group)
    rows = [("client", "pinned", "newest", "tests"), *(client.row() for client in clients)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    return int(not all(all(client.fates) for client in clients))


if __name__ == "__main__":
    sys.exit(main())
