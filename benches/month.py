"""A recorder after a month of a million calls a day: `month.py [--days 30] [--polls 200]`.

A store as sealing and a trainer leave it is made by counts: 38,000 bare episodes a day
(`bare_store.py`) whose 26 calls each are in segments, of which only the rows are there, and which a
consumer has taken and acked. Then `serve` starts on it, and new episodes are recorded, finished,
polled and acked one by one. One line for each thing that is asked: milliseconds by the clock (median
and 99th of 100), processor milliseconds, and what is wanted. The exit code is 1 if a median is
beyond.
"""

import argparse
import json
import statistics
import sqlite3
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "benches")]

import bare_store  # noqa: E402
import control  # noqa: E402
import growth  # noqa: E402
import harness  # noqa: E402
from one_answer import answering  # noqa: E402

A_DAY = 38_000
CALLS = 26
A_SEGMENT = 1800
"""Episodes of 140 kB in a segment of 256 MiB."""
START_MS, START_MIB, POLL_MS, PAGE_MS = 1000, 100, 10, 50
PATHS = [
    "/episodes?limit=100",
    "/episodes?limit=100&state=failed",
    "/episodes?limit=100&task=t-0000007",
    "/groups?limit=100",
]

FILES = f"""
INSERT INTO segment_file (segment_file_key, folder, name, number, hash, bytes, first_call_at,
  last_call_at, sealed_at, is_taken_out)
{bare_store.NUMBERS} SELECT i + 1, '/segments', printf('%010d-0123456789abcdef.db', i + 1), i + 1,
  randomblob(32), 268435456, :start + i * :size * :apart, :start + (i + 1) * :size * :apart,
  :start + (i + 1) * :size * :apart, 1 FROM n
"""
SEALED = """
INSERT INTO sealed (episode_key, segment_file_key, reward_key, calls, generations, with_ids,
  incomplete, refused, prompt_tokens, completion_tokens, last_call_at, model, last_call_failed)
SELECT e.episode_key, (e.episode_key - 1) / :size + 1, e.episode_key, :calls, :calls, :calls, 0, 0,
  520000, 5200, e.closed_at, 'bare', 0 FROM episode e
"""
ACKED = """
INSERT INTO delivery (consumer, episode_key, item, lease, free_at, state, changed_at, item_size)
SELECT 'month', episode_key, position, printf('l-%d', position), NULL, 'acked', finished_at, 1
FROM finished
"""
CONSUMER = "INSERT INTO consumer (consumer, floor) SELECT 'month', max(position) FROM finished"


def make(store, episodes):
    """A store as sealing and a consumer leave it."""
    bare_store.make(store, episodes, binary=harness.binary())
    words = {"size": A_SEGMENT, "calls": CALLS, "start": bare_store.START_US}
    words |= {"apart": bare_store.APART_US, "count": -(-episodes // A_SEGMENT)}
    with closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA synchronous = OFF")
        with db:
            for statement in (FILES, SEALED, ACKED, CONSUMER):
                db.execute(statement, words)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


@contextmanager
def served(store, upstream):
    """`serve` on a store: its addresses, the milliseconds until it listened, and its process."""
    data, listener = harness.free_addresses(2)
    where = ("--listen", harness.text(data), "--control", harness.text(listener))
    began = time.monotonic()
    process = harness.Process(
        "serve", *where, "--store", store, "--upstream", upstream, "-q", folder=store.parent
    )
    try:
        process.await_answer(f"http://{harness.text(listener)}/health")
        took = (time.monotonic() - began) * 1000
        harness.token_files[tuple(listener)] = harness.token_file(store)
        yield data, listener, took, process.child.pid
    finally:
        process.stop()


class Asked:
    """What is asked of a server, and what it took."""

    def __init__(self, pid):
        self.pid, self.ms = pid, []
        self.spent = 0.0

    def __call__(self, connection, method, path, body=None, headers=()):
        spent, began = growth.cpu_of(self.pid), time.monotonic()
        connection.request(method, path, body, dict(headers))
        reply = connection.getresponse()
        said = reply.read()
        self.ms.append((time.monotonic() - began) * 1000)
        self.spent += growth.cpu_of(self.pid) - spent
        if reply.status not in (200, 204):
            raise RuntimeError(f"{path}: {reply.status} {said[:200]}")
        return reply

    def line(self, name, wanted):
        median, last = statistics.median(self.ms), statistics.quantiles(self.ms, n=100)[98]
        cpu = self.spent * 1000 / len(self.ms)
        mark = "*" if median > wanted else " "
        print(f"{name:36}{median:9.1f}{last:9.1f}{cpu:9.1f} {mark} (wanted {wanted})", flush=True)
        return median > wanted


def poll(data, listener, pid, polls):
    """Records, finishes, takes and acks episodes one by one; gives what was asked, by name."""
    agent, reader = HTTPConnection(*data), HTTPConnection(*listener)
    headers = control.headers_for(listener)
    asked = {name: Asked(pid) for name in ("poll, an item", "poll, none", "ack")}
    record = Asked(pid)
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}]})
    for number in range(polls):
        path = f"/e/new-{number}/v1/chat/completions"
        record(agent, "POST", path, body, {"content-type": "application/json"})
        record(reader, "POST", f"/episodes/new-{number}/close", "", headers)
        feed = "/feed?consumer=month&limit=1"
        taken = asked["poll, an item"](reader, "POST", feed, "", headers)
        lease = taken.headers["x-rolltape-lease"]
        asked["ack"](reader, "POST", f"/feed/leases/{lease}/ack", "", headers)
        asked["poll, none"](reader, "POST", feed, "", headers)
    return asked


def measure(store, polls):
    upstream = answering(growth.REPLY)
    beyond = False
    print(f"{'milliseconds':36}{'median':>9}{'99th':>9}{'cpu':>9}")
    url = f"http://127.0.0.1:{upstream.server_address[1]}"
    with served(store, url) as (data, listener, took, pid):
        mib = growth.peak_of(pid)
        is_beyond = took > START_MS or mib > START_MIB
        beyond |= is_beyond
        wanted = f"(wanted {START_MS} and {START_MIB} MiB)"
        print(f"{'serve, until it listens':36}{took:9.0f}  {mib:.0f} MiB {'* '[not is_beyond]} {wanted}")
        for name, asked in poll(data, listener, pid, polls).items():
            beyond |= asked.line(name, POLL_MS)
        reader, headers = HTTPConnection(*listener), control.headers_for(listener)
        for path in PATHS:
            asked = Asked(pid)
            for _ in range(polls):
                asked(reader, "GET", path, headers=headers)
            beyond |= asked.line(f"GET {path}", PAGE_MS)
        print(f"{'peak of the server':36}{growth.peak_of(pid):9.0f} MiB")
    upstream.shutdown()
    return beyond


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--polls", type=int, default=200, help="times that each thing is asked")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "rolltape.db"
        episodes = options.days * A_DAY
        make(store, episodes)
        size = store.stat().st_size
        print(f"{episodes:,} episodes, {episodes * CALLS:,} calls, {size / 1e6:.0f} MB of a store")
        return int(measure(store, options.polls))


if __name__ == "__main__":
    sys.exit(main())
