"""What costs more because the store is old: `growth.py [--sizes 4000,40000,400000]`.

Stores of bare episodes (`bare_store.py`) are read by this build at three sizes, and conversations
of 30 to 240 turns by their length. One line a measurement: processor seconds at each size, of the
command or of the server, the memory where it is the question, and the exponent from the first size
to the last. At most 0.1 is wanted of what asks for one episode, page or item, and 1.0 of what reads
all; `*` marks what is beyond. Times below a millisecond count as one. The exit code is 1 if any
line is marked.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "benches")]

import bare_store  # noqa: E402
import control  # noqa: E402
import harness  # noqa: E402

ONE, ALL = 0.1, 1.0
LEAST_S = 0.001
ASKED_S = 1.0
"""How long a route is asked at least."""
NEW_EPISODES = 24
TURNS = [30, 60, 120, 240]


@dataclass
class Cost:
    """Processor seconds, and the most memory in MiB."""

    seconds: float
    mib: float


def cpu_of(pid):
    """Processor seconds of all threads of a process, so far."""
    spent = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        spent += int((task / "schedstat").read_text().split()[0])
    return spent / 1e9


def peak_of(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the system does not tell a peak")


def run(*words, folder):
    """Runs a command that must succeed; gives its cost."""
    pid = os.posix_spawn(
        harness.binary(),
        [harness.binary(), *map(str, words)],
        harness.environment(),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(folder / "out"), os.O_WRONLY | os.O_CREAT, 0o600),
            (os.POSIX_SPAWN_OPEN, 2, str(folder / "err"), os.O_WRONLY | os.O_CREAT, 0o600),
        ],
    )
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        raise RuntimeError(f"{words}: {(folder / 'err').read_text()}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


@contextmanager
def served(store):
    """`rolltape serve` on a store, and what its start cost."""
    data, listener = harness.free_addresses(2)
    where = ("--listen", harness.text(data), "--control", harness.text(listener))
    process = harness.Process(
        "serve", *where, "--store", store, "--upstream", "http://127.0.0.1:9", folder=store.parent
    )
    try:
        harness.token_files[tuple(listener)] = harness.token_file(store)
        process.await_answer(f"http://{harness.text(listener)}/health")
        pid = process.child.pid
        yield Server(listener, pid, Cost(cpu_of(pid), peak_of(pid)))
    finally:
        process.stop()


@dataclass
class Server:
    """A server with its control listener."""

    control: tuple
    pid: int
    start: Cost

    def ask(self, path, body=None):
        """The mean cost of a route."""
        headers = control.headers_for(self.control)
        url = f"http://{harness.text(self.control)}{path}"
        data = None if body is None else json.dumps(body).encode()
        before, since, count = cpu_of(self.pid), time.monotonic(), 0
        while count < 5 or time.monotonic() - since < ASKED_S:
            request = urllib.request.Request(url, data=data, headers=headers)
            with urllib.request.urlopen(request, timeout=600) as reply:
                reply.read()
            count += 1
        return Cost((cpu_of(self.pid) - before) / count, peak_of(self.pid))


def measure_store(store):
    """Costs of what is asked of a store, by their names."""
    folder, costs = store.parent, {}

    def command(name, *words):
        costs[name] = run(*words, "--store", store, folder=folder)

    middle = bare_store.name_of(bare_store.count_of(store) // 2)
    group = bare_store.group_of(bare_store.count_of(store) // 2)
    command("episodes --limit 100", "episodes", "--limit", 100)
    command("show", "show", middle)
    command("prune --dry-run --episode", "prune", "--dry-run", "--episode", middle)
    command("export --episode", "export", "--episode", middle, "--out", folder / "one")
    command("export --group", "export", "--group", group, "--out", folder / "group")
    shard = ("--shard", "0/65536", "--out", folder / "shard")
    command("export --shard 0/65536", "export", *shard)

    with served(store) as server:
        costs["serve, until it listens"] = server.start
        costs["GET /episodes?limit=100"] = server.ask("/episodes?limit=100")
        costs["GET /groups?limit=100"] = server.ask("/groups?limit=100")
        costs["GET /episodes/ID/tree"] = server.ask(f"/episodes/{middle}/tree")
        feed = "/feed?consumer=pinned&unit=group&limit=1&from=start&dry_run=1"
        costs["GET /metrics"] = server.ask("/metrics")
    return costs
