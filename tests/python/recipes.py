"""Pages of commands, and a reader who does what they say.

A page's fenced blocks are run in their order, in one shell, in an empty folder with an empty home,
without a network but the loopback:

- `sh`: commands. Each block must succeed. If the paragraph above says "in a terminal of its own",
  the block goes on in the background, and the next one waits until it is ready.
- `text`: lines that the last block has printed, in this order, as a real run printed them. Words
  are the same each time; numbers, times and ids are not compared. `…` stands for anything, and a
  line of it for lines that are left out.
- Any other language: a file, whose name the paragraph above has in backticks.
"""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field

import harness

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OWN_TERMINAL = "in a terminal of its own"
VARYING = re.compile(
    r"""
    -?\b(?=[0-9a-f-]*\d)(?=[0-9-]*[a-f])[0-9a-f]{6}[0-9a-f-]*\b  # an id
    | -?\d(?:[\d,.:]*\d)?(?:e-?\d+)?(?:\s(?:ms|s|min|h|d)\b)?  # a number, an address, a time
    """,
    re.VERBOSE,
)
"""What another run prints otherwise."""
READY = r"listening on |/#token=|Application startup complete"
"""What a background command prints when others may use it."""
READY_WAIT_S = 240
SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the paragraph above it."""

    language: str
    text: str
    lead: str
    line: int


@dataclass
class Setting:
    """What a reader has before the first block."""

    programs: dict = field(default_factory=dict)
    """Programs on the PATH by name, besides rolltape and the system's."""
    before: str = ""
    """Commands that were run earlier, such as a server that the page says is there."""
    instead: dict = field(default_factory=dict)
    """What cannot be had without a network, and what takes its place."""
    variables: dict = field(default_factory=dict)
    wait_s: int = 240


def blocks(page):
    """The fenced blocks of a page."""
    text = page.read_text()
    found = []
    for match in FENCE.finditer(text):
        before = text[: match.start()]
        lead = before.rstrip().rsplit("\n\n", 1)[-1]
        found.append(Block(match[1], match[2], lead, before.count("\n") + 1))
    return found


def run(page, setting, folder):
    """Does what a page says; returns the output of each `sh` block by its line."""
    home, work, programs = (folder / name for name in ("home", "work", "programs"))
    for made in (home, work, programs):
        made.mkdir()
    for name, program in {"rolltape": harness.binary(), **setting.programs}.items():
        # A link to an environment's Python would forget its environment.
        start = programs / name
        start.write_text(f'#!/bin/sh\nexec {program} "$@"\n')
        start.chmod(0o755)

    script = folder / "page.sh"
    script.write_text("\n".join(commands(blocks(page), setting, folder)))
    variables = {
        "HOME": str(home), "PATH": ":".join((str(programs), *SYSTEM)), "LANG": "C.UTF-8",
        "TERM": "dumb", "ROOT": str(harness.ROOT), "OUT": str(folder), **setting.variables,
    }
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        alone.append("--map-root-user")
    with (folder / "shell.log").open("wb") as log:
        ended = subprocess.run(
            [*alone, "bash", script], cwd=work, env=variables, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT, timeout=setting.wait_s,
        )
    said = {int(file.stem): file.read_text(errors="replace")
            for file in sorted(folder.glob("[0-9]*.out"))}
    logs = "".join(f"--- line {line}\n{text[-2000:]}\n" for line, text in said.items())
    shell = (folder / "shell.log").read_text(errors="replace")
    assert ended.returncode == 0, f"{page}: {ended.returncode}\n{logs}\n{shell[-4000:]}"
    return said


def commands(found, setting, folder):
    """The script of a page."""
    yield "set -eu"
    yield "ip link set lo up"
    yield setting.before
    last = None
    for block in found:
        if block.language == "sh":
            text = block.text
            for there, here in setting.instead.items():
                text = text.replace(there, here)
            out = folder / f"{block.line}.out"
            if OWN_TERMINAL in block.lead:
                yield from background(text, out)
            else:
                yield f"{{\n{text}}} >{out} 2>&1"
                last = out
        elif block.language != "text":
            name = re.findall(r"`([^`]+)`", block.lead)[-1]
            copy = folder / f"{block.line}.file"
            copy.write_text(block.text)
            yield f"mkdir -p $(dirname {name}) && cp {copy} {name}"
    assert last, "a page without a command"


def background(text, out):
    """A block that others wait for. Its variables are the shell's, too."""
    exports = "".join(line for line in text.splitlines(True) if line.startswith("export "))
    yield exports
    yield f"( {text}) >{out} 2>&1 &"
    is_ready = f"grep -Eq '{READY}' {out}"
    yield f"for _ in $(seq {READY_WAIT_S * 10}); do {is_ready} && break; sleep 0.1; done"
    yield is_ready


def check_texts(page, said):
    """Holds the `text` blocks against what was printed."""
    last = None
    for block in blocks(page):
        if block.language == "sh":
            last = block.line if OWN_TERMINAL not in block.lead else last
        elif block.language == "text":
            held(page, block, said[last])


def held(page, block, printed):
    """Finds the lines of a block in what was printed, one after the other."""
    rest = [shape(line) for line in printed.splitlines()]
    for line in block.text.splitlines():
        parts = map(re.escape, shape(line).split("…"))
        pattern = re.compile(".*".join(parts))
        at = next((i for i, one in enumerate(rest) if pattern.fullmatch(one)), None)
        assert at is not None, f"{page}:{block.line}: not printed: {line!r}\n{printed[-6000:]}"
        rest = rest[at + 1 :]


def shape(line):
    """A line without what another run prints otherwise."""
    return re.sub("#+", "#", VARYING.sub("#", " ".join(line.split())))


def available():
    """True if a reader can be shut off from the network."""
    probe = ["unshare", "--net", "--pid", "--fork"] + ["-r"] * (os.geteuid() != 0)
    if not (shutil.which("unshare") and shutil.which("ip")):
        return False
    tried = subprocess.run([*probe, "ip", "link", "set", "lo", "up"], capture_output=True)
    return tried.returncode == 0
