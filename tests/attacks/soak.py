#!/usr/bin/env python3
"""An hour in which everybody reads beside agents that write the largest episodes they may:

    soak.py [--minutes 60] [--memory-max 512] [--readers KINDS] [--seed N] [--out FILE]

One recorder under a ceiling of memory (MiB). Large agents send requests of megabytes, or a history
that grows with every turn, until their attempt is full; small ones play short episodes. Readers take
the feed and ack it, look at episodes, calls and tokens as the page does, search, and export.

A line of the table is a minute; the times are the longest of it. The exit code is 1 if a promise is
broken: an acknowledged call that the store lacks, an acked episode that comes again, a reader that
gets another answer than its rows or that it is too large, a recorder that ends, panics or takes more
memory than its ceiling, damage that `verify` finds. The binary is `ROLLTAPE_BIN`.
"""

import argparse
import gzip
import json
import random
import resource
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from contextlib import closing
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

import harness  # noqa: E402
import hostile  # noqa: E402
import http1  # noqa: E402
from costs import Cost  # noqa: E402

MIB, KIB = 1 << 20, 1 << 10
WAIT_S = 120
"""Longest wait for an answer; the machine may be busy."""
LARGE_BYTES = 8 * MIB
"""A request of an agent that sends much at once."""
GROWTH_BYTES = 200 * KIB
"""What a turn adds to a history."""
TURNS_MAX = 60
LARGE_AGENTS, SMALL_AGENTS = 2, 3
EXPORT_PAUSE_S = 20
TIMES = ["small call", "feed", "pages", "search", "export"]
"""What is measured, each in its column."""
TOLD = {200, 204, 507}
"""What a reader may be told: rows, nothing yet, or too large to be read."""


def noise(length, dice):
    """Text of so many bytes, of which no part is said twice; it shrinks a hundredfold."""
    block = 6400
    blocks = (f"{dice.getrandbits(128):032x}" + "a" * (block - 32) for _ in range(length // block))
    return "".join(blocks)


def said(text, role="user"):
    return {"role": role, "content": text}


class Counts:
    """What happened, counted by all threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self._events, self._longest = Counter(), dict.fromkeys(TIMES, 0.0)
        self.acknowledged = Counter()
        """Calls with a whole 200, by episode."""
        self.broken = []
        """Promises that were broken, in words."""

    def add(self, event, count=1):
        with self._lock:
            self._events[event] += count

    def acknowledge(self, episode):
        with self._lock:
            self.acknowledged[episode] += 1
            self._events["acknowledged"] += 1

    def took(self, what, seconds):
        with self._lock:
            self._longest[what] = max(self._longest[what], seconds)
            self._events[what] += 1

    def take(self):
        """Events and longest times since the last call."""
        with self._lock:
            taken = self._events, self._longest
            self._events, self._longest = Counter(), dict.fromkeys(TIMES, 0.0)
            return taken

    def breaks(self, promise):
        with self._lock:
            self.broken.append(promise)
            print(f"BROKEN: {promise}", file=sys.stderr, flush=True)


class Worker(threading.Thread):
    """Does one thing again and again until the end; a step that raises breaks a promise."""

    def __init__(self, run, name, seed):
        super().__init__(daemon=True, name=name)
        self.proxy, self.counts, self._stopped = run.proxy, run.counts, run.stopped
        self.dice = random.Random(f"{seed}-{name}")

    def run(self):
        number = 0
        while not self._stopped.is_set():
            try:
                self.step(number)
            except Exception as why:  # noqa: BLE001
                self.counts.breaks(f"{self.name}: {type(why).__name__}: {why}")
                self._stopped.wait(5)
            number += 1

    def ask(self, what, method, path):
        """A request of a reader; gives its reply."""
        began = time.monotonic()
        lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close"]
        lines.append(f"authorization: Bearer {self.proxy.token}")
        request = "\r\n".join(lines).encode() + http1.HEAD_END
        reply = http1.exchange(self.proxy.control, request, timeout=WAIT_S)
        self.counts.took(what, time.monotonic() - began)
        if reply.status not in TOLD:
            self.counts.breaks(f"{path}: {reply.status} {reply.body[:300]}")
        if reply.status == 507:
            self.counts.add("too large")
        return reply

    def call(self, episode, messages, coded=False):
        """A call of an agent; gives its status."""
        body = json.dumps(hostile.BODY | {"messages": messages}).encode()
        headers = [("content-encoding", "gzip")] if coded else []
        body = gzip.compress(body, 1) if coded else body
        path = f"/e/{episode}{hostile.CHAT}"
        reply = hostile.post(self.proxy, path, body, headers, timeout=WAIT_S)
        if reply.status == 200:
            self.counts.acknowledge(episode)
        else:
            self.counts.add(f"calls with {reply.status}")
            if reply.status not in (429, 503):
                self.counts.breaks(f"a call of {episode}: {reply.status} {reply.body[:300]}")
        return reply.status

    def close(self, episode):
        self.ask("pages", "POST", f"/episodes/{episode}/close")


class LargeAgent(Worker):
    """Writes one attempt after another until it is full."""

    def step(self, number):
        episode = f"{self.name}-{number}"
        history, grows = [], self.dice.random() < 0.5
        for _ in range(TURNS_MAX):
            if grows:
                history = [*history, said(noise(GROWTH_BYTES, self.dice))]
            else:
                history = [said(noise(LARGE_BYTES, self.dice))]
            if self.call(episode, history, coded=not grows) != 200:
                break
            history.append(said("yes", "assistant"))
        self.close(episode)
        self.counts.add("large episodes")


class SmallAgent(Worker):
    """Plays short episodes; its longest call is what the others cost it."""

    def step(self, number):
        episode, history = f"{self.name}-{number}", []
        for turn in range(self.dice.randint(1, 4)):
            history.append(said(f"question {turn} of {episode}"))
            began = time.monotonic()
            self.call(episode, history)
            self.counts.took("small call", time.monotonic() - began)
            history.append(said("yes", "assistant"))
        self.close(episode)
        self._stopped.wait(0.2)


class Feed(Worker):
    """A trainer: takes leases and acks them."""

    acked = frozenset()

    def step(self, number):
        reply = self.ask("feed", "POST", "/feed?consumer=soak&limit=16&wait_s=1&lease_s=300")
        if reply.status != 200:
            return
        rows = map(json.loads, reply.body.splitlines())
        names = frozenset((row["episode_id"], row["attempt"]) for row in rows)
        if again := names & self.acked:
            self.counts.breaks(f"acked and handed out again: {sorted(again)[:3]}")
        lease = reply.header("x-rolltape-lease")
        if self.ask("feed", "POST", f"/feed/leases/{lease}/ack").status == 200:
            self.acked |= names
            self.counts.add("acked", len(names))


class Pages(Worker):
    """Someone at the page: the list, an episode of it, a call with its tokens and its bytes."""

    def step(self, number):
        listed = self.ask("pages", "GET", "/episodes?limit=50")
        episodes = json.loads(listed.body)["episodes"] if listed.status == 200 else []
        if not episodes:
            return
        # Large ones are few, and those are what this is about.
        large = [one for one in episodes if one["episode_id"].startswith("large")]
        episode = self.dice.choice(large or episodes)["episode_id"]
        tree = self.ask("pages", "GET", f"/episodes/{episode}/tree")
        turns = json.loads(tree.body)["turns"] if tree.status == 200 else []
        if turns:
            call = self.dice.choice(turns)["call_id"]
            for part in ("", "/tokens", "/request", "/reply"):
                self.ask("pages", "GET", f"/calls/{call}{part}")


class Search(Worker):
    """Someone who looks for what nobody said, so that everything is read."""

    def step(self, number):
        self.ask("search", "GET", f"/search?q=nowhere-{number}")


class Exports(Worker):
    """Exports of the whole store beside its writer."""

    def step(self, number):
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as out:
            where = ("--store", self.proxy.store, "--out", out)
            ended = harness.command("export", *where, folder=self.proxy.folder)
        self.counts.took("export", time.monotonic() - began)
        if ended.returncode != 0:
            self.counts.breaks(f"export: {ended.stderr[-1000:]}")
        self._stopped.wait(EXPORT_PAUSE_S)


READERS = {"feed": Feed, "pages": Pages, "search": Search, "exports": Exports}


class Soak:
    """The whole run."""

    def __init__(self, options, proxy):
        self.options, self.proxy = options, proxy
        self.counts, self.stopped = Counts(), threading.Event()
        self._file = options.out and options.out.open("w")
        self._total, self._peak = Counter(), 0.0

    def run(self):
        """Plays all minutes and gives the exit code."""
        names = ["minute", "acknowledged", "full (429)", "busy (503)", "large episodes", "acked"]
        names += ["too large to read", *(f"{time}, s" for time in TIMES), "peak, MiB", "store, MiB"]
        self._line(names)
        self._line(["---"] * len(names))
        workers = self._workers()
        for worker in workers:
            worker.start()

        for minute in range(1, self.options.minutes + 1):
            self._minute(minute)
            if self.proxy.process.child.poll() is not None:
                self.counts.breaks(f"the recorder ended:\n{self.proxy.process.stderr[-3000:]}")
                return 1
        self.stopped.set()
        for worker in workers:
            worker.join(2 * WAIT_S)
            if worker.is_alive():
                self.counts.breaks(f"{worker.name} does not end")
        self._end()
        return 1 if self.counts.broken else 0

    def _workers(self):
        seed = self.options.seed
        agents = [LargeAgent(self, f"large{n}", seed) for n in range(LARGE_AGENTS)]
        agents += [SmallAgent(self, f"small{n}", seed) for n in range(SMALL_AGENTS)]
        kinds = filter(None, self.options.readers.split(","))
        readers = [READERS[kind](self, kind, seed) for kind in kinds]
        return [*agents, *readers]

    def _minute(self, minute):
        with Cost(self.proxy):
            time.sleep(60)
            if self.proxy.process.child.poll() is not None:
                return
            peak = hostile.peak_mib(self.proxy)
        self._peak = max(self._peak, peak)
        events, longest = self.counts.take()
        self._total += events
        store = sum(file.stat().st_size for file in self.proxy.folder.glob("recorded.db*")) / MIB
        kinds = ["acknowledged", "calls with 429", "calls with 503", "large episodes", "acked"]
        cells = [minute, *(events[kind] for kind in [*kinds, "too large"])]
        cells += [f"{longest[what]:.2f}" for what in TIMES]
        self._line([*cells, f"{peak:.0f}", f"{store:.0f}"])

    def _end(self):
        """Checks what is left of the promises, and says so."""
        if self._peak > self.options.memory_max:
            self.counts.breaks(f"a peak of {self._peak:.0f} MiB")
        with closing(sqlite3.connect(f"file:{self.proxy.store}?mode=ro", uri=True)) as connection:
            query = "SELECT episode_id, count(*) FROM calls WHERE outcome = 'complete' GROUP BY 1"
            found = dict(connection.execute(query).fetchall())
        expected = self.counts.acknowledged
        lost = sum(max(0, n - found.get(episode, 0)) for episode, n in expected.items())
        if lost:
            self.counts.breaks(f"{lost} acknowledged calls are not in the store")
        if "panicked at" in self.proxy.process.stderr:
            self.counts.breaks(f"a panic:\n{self.proxy.process.stderr[-3000:]}")
        if not hostile.is_clean(self.proxy):
            self.counts.breaks("verify finds damage")

        reads = ", ".join(f"{self._total[what]} {what}" for what in TIMES)
        self._say(f"\nAcknowledged {expected.total()}, lost {lost}. Done: {reads}.")
        commands = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / KIB
        self._say(f"Peak of the recorder {self._peak:.0f} MiB, of an export {commands:.0f} MiB.")
        broken = self.counts.broken
        self._say(f"**{len(broken)} promises broken.**" if broken else "Every promise held.")

    def _line(self, cells):
        self._say("| " + " | ".join(str(cell) for cell in cells) + " |")

    def _say(self, text):
        for out in filter(None, [sys.stdout, self._file]):
            print(text, file=out, flush=True)


def main():
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--memory-max", type=int, default=512, help="MiB")
    parser.add_argument("--readers", default=",".join(READERS), help="those of [all]")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the table, beside stdout")
    options = parser.parse_args()
    harness.COMMAND_WAIT_S = 1800
    with tempfile.TemporaryDirectory() as folder, hostile.Stage(Path(folder)) as stage:
        proxy = stage("--memory-max", f"{options.memory_max}MiB")
        # What was heard is of no use here, and would be all that was ever sent.
        proxy.upstream.heard = deque(maxlen=1)
        sys.exit(Soak(options, proxy).run())


if __name__ == "__main__":
    main()
