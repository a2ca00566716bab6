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
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "benches")]

import bare_store  # noqa: E402
import control  # noqa: E402
import harness  # noqa: E402
from one_answer import answering  # noqa: E402

ONE, ALL = 0.1, 1.0
LEAST_S = 0.001
ASKED_S = 1.0
"""How long a route is asked at least."""
TOLERANCE = 0.05
WEIGHED = "export --shard 0/65536"
"""A part of an export weighs all groups, and reads its own."""
PATHS = [
    "/episodes?limit=100",
    "/episodes?limit=100&state=failed",
    "/episodes?limit=100&task=t-0000007",
    "/groups?limit=100",
    "/metrics",
    "/checks",
]
RESULT = "a line of a tool's result " * 60
REPLY = json.dumps(
    {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "Understood."},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
).encode()
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


def run(*words, folder, may_fail=False):
    """Runs a command; gives its cost."""
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
    if status != 0 and not may_fail:
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

    def ask(self, path, per=None):
        """The mean cost of a route; of a thousand of what its reply counts, by the name of that."""
        headers = control.headers_for(self.control)
        url = f"http://{harness.text(self.control)}{path}"
        before, since, count = cpu_of(self.pid), time.monotonic(), 0
        while count < 5 or time.monotonic() - since < ASKED_S:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=600) as reply:
                text = reply.read()
            count += json.loads(text)[per] / 1000 if per else 1
        return Cost((cpu_of(self.pid) - before) / count, peak_of(self.pid))


def name_of(number):
    return f"bare-{number:08d}"


def measure_store(store, count):
    """Costs of what is asked of a store of so many episodes, by their names."""
    folder, costs = store.parent, {}

    def command(name, *words, may_fail=False):
        costs[name] = run(*words, "--store", store, folder=folder, may_fail=may_fail)

    middle = count // 2
    group = f"g-{middle // bare_store.GROUP:07d}"
    command("episodes --limit 100", "episodes", "--limit", 100)
    command("show", "show", name_of(middle))
    command("prune --dry-run --episode", "prune", "--dry-run", "--episode", name_of(middle))
    # Bare episodes make no row, which is an error of an export that is no part.
    out = ("--out", folder / "rows")
    command("export --episode", "export", "--episode", name_of(middle), *out, may_fail=True)
    command("export --group", "export", "--group", group, *out, may_fail=True)
    shard = ("export", "--shard", "0/65536", "--out", folder / "shard")
    command(WEIGHED, *shard)

    with served(store) as server:
        costs["serve, until it listens"] = server.start
        # The checks read the newest thousand attempts, however many there are.
        for path in PATHS:
            costs[f"GET {path}"] = server.ask(path)
        costs["GET /search, 1,000 read"] = server.ask("/search?q=quetzalcoatlus", "searched")
    return costs


def grow(sizes, scratch):
    """The costs of stores of some sizes, by name and size."""
    rows = {}
    for size in sizes:
        folder = scratch / str(size)
        folder.mkdir()
        store = folder / "rolltape.db"
        bare_store.make(store, size, binary=harness.binary())
        for name, cost in measure_store(store, size).items():
            rows.setdefault(name, {})[size] = cost
        shutil.rmtree(folder)
    return rows


def talk(proxy, name, turns):
    """A conversation of so many turns, each of which sends all before it."""
    connection, messages = HTTPConnection(*proxy.data), []
    for turn in range(turns):
        messages.append({"role": "user", "content": f"{name} {turn}: " + RESULT})
        body = json.dumps({"model": "m", "messages": messages})
        path = f"/e/{name}/v1/chat/completions"
        connection.request("POST", path, body, {"content-type": "application/json"})
        messages.append(json.load(connection.getresponse())["choices"][0]["message"])


def converse(scratch):
    """The costs of conversations of some lengths, by name and turns."""
    upstream = answering(REPLY)
    url = f"http://127.0.0.1:{upstream.server_address[1]}"
    with harness.serve(scratch, "--upstream", url) as proxy:
        for turns in TURNS:
            talk(proxy, f"turns-{turns}", turns)
        store = proxy.store
    upstream.shutdown()

    rows = {}
    for turns in TURNS:
        episode = f"turns-{turns}"
        question = f"SELECT count(*) FROM messages WHERE episode_id = '{episode}'"
        commands = {
            "show, by turns": ("show", episode, "--full"),
            "export --episode, by turns": ("export", "--episode", episode, "--out", scratch / "e"),
            "sql with messages, by turns": ("sql", question, "--episode", episode),
        }
        for name, words in commands.items():
            cost = run(*words, "--store", store, folder=scratch, may_fail=True)
            rows.setdefault(name, {})[turns] = cost
    return rows


def line(name, costs, wanted):
    """A line of the table, and whether it is beyond what is wanted."""
    sizes = sorted(costs)
    first, last = (max(costs[size].seconds, LEAST_S) for size in (sizes[0], sizes[-1]))
    exponent = math.log(last / first) / math.log(sizes[-1] / sizes[0])
    is_beyond = exponent > wanted + TOLERANCE
    seconds = "  ".join(f"{costs[size].seconds * 1000:9.1f}" for size in sizes)
    mark = "*" if is_beyond else " "
    peak = costs[sizes[-1]].mib
    return f"{name:32}{seconds}  {peak:8.0f}  {exponent:6.2f} {mark} (wanted {wanted})", is_beyond


def table(rows, wanted):
    sizes = sorted(next(iter(rows.values())))
    head = "  ".join(f"{size:>9}" for size in sizes)
    print(f"{'processor ms at':32}{head}  {'peak MiB':>8}  exponent")
    beyond = False
    for name, costs in rows.items():
        text, is_beyond = line(name, costs, wanted)
        beyond |= is_beyond
        print(text)
    return beyond


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default="4000,40000,400000", help="episodes of the stores")
    sizes = [int(size) for size in parser.parse_args().sizes.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        rows = grow(sizes, Path(scratch))
        beyond = table({name: rows[name] for name in rows if name != WEIGHED}, ONE)
        beyond |= table({WEIGHED: rows[WEIGHED]}, ALL)
        talks = Path(scratch) / "talks"
        talks.mkdir()
        beyond |= table(converse(talks), ALL)
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
