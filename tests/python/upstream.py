"""The scripted upstream as a process, and what its log says."""

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).with_name("scripted.py")
STOP_WAIT_S = 10


@dataclass(frozen=True)
class Heard:
    """One request that came to the upstream."""

    method: str
    path: str
    headers: tuple
    body: dict | None
    prompt: tuple[int, ...]
    sampled: frozenset
    """The sampled ids of each choice; equal choices are one."""
    choices: int
    generates: bool
    reports: bool
    """Whether the reply held the ids."""

    @property
    def conversation(self):
        """What the model read and what it said."""
        return self.prompt, self.sampled


@dataclass(frozen=True)
class Upstream:
    """A running scripted upstream."""

    address: tuple[str, int]
    log: Path

    @property
    def url(self):
        """Where rolltape is to find it."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def heard(self):
        """Every request so far, in the order in which they came."""
        return [_read(json.loads(line)) for line in self.log.read_text().splitlines()]


def _read(entry):
    choices = entry.get("sampled", [])
    return Heard(
        method=entry["method"],
        path=entry["path"],
        headers=tuple(map(tuple, entry["headers"])),
        body=entry.get("body"),
        prompt=tuple(entry.get("prompt", ())),
        sampled=frozenset(map(tuple, choices)),
        choices=len(choices),
        generates=entry.get("generates", False),
        reports=entry.get("reports", False),
    )


@contextmanager
def scripted(folder, script):
    """A scripted upstream that keeps its script and its log in `folder`."""
    said, log = folder / "script.json", folder / "upstream.jsonl"
    said.write_text(json.dumps(script))
    log.touch()
    options = ["--script", str(said), "--log", str(log)]
    with (folder / "upstream.stderr").open("wb") as told:
        child = subprocess.Popen(
            [sys.executable, str(PROGRAM), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=told,
        )
    try:
        yield Upstream(("127.0.0.1", int(child.stdout.readline())), log)
    finally:
        child.terminate()
        child.wait(STOP_WAIT_S)
        child.stdout.close()
