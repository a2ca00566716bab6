#!/usr/bin/env python3
"""Soak: agents, a trainer and a killer for an hour, and a table of what was lost.

    soak.py [--minutes 60] [--fill 15] [--agents 12] [--seed N] [--out FILE] [--store FOLDER]

Two recorders stand before one engine with the tiny model. One is killed with `kill -9` once a
minute and started again on its store; the other one lives through, so that its memory and its
descriptors can be seen to stay flat. Agents call on all wires, streamed and whole, and are tagged
in all ways; some leave in the midst of a reply, some stop reading for a while. A reader takes
leases of the feed and acks them; finished episodes are rewarded and closed.

Requests of the first quarter are padded, so that the caches are full before memory is looked at.

A line of the table is a minute. The exit code is 1 if a promise is broken: an acknowledged call
that the store lacks, an acked episode that is handed out again, a recorder that does not come back
or ends badly, damage that `verify` finds, an export that fails, or memory, descriptors or threads
of the living recorder that grow.

The binary is `ROLLTAPE_BIN`, else the one that was built here. Nothing but python3 is needed.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import sqlite3
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "python"))

import harness  # noqa: E402

QUESTION = "Find the secret number from 1 to 7. You have 3 guesses."
CONSUMER = "soak"
CALL_WAIT_S = 20
"""Longest wait of an agent for the next byte."""
READY_WAIT_S = 60
"""Longest time in which a recorder is back after a kill; the machine may be busy."""
STALL_S = 1.5
"""How long an agent that stalls reads nothing."""
PADDING_BYTES = 48_000
"""Random text in a request while the caches of a recorder fill up to their bounds. They hold the
newest episodes of all; without it an hour would only show that they fill."""
FILLS = 4
"""The part of the run, from its beginning, in which requests are padded: one in so many."""
SETTLE_S = 8
"""Time without load before the last sample: idle connections to the engine end after four."""
MINUTES_FOR_SLOPES = 6
"""Shorter runs say nothing about growth: caches fill up to their bounds first."""
MEMORY_MIB_A_MINUTE_MAX = 1.0
DESCRIPTORS_A_MINUTE_MAX = 0.5
THREADS_A_MINUTE_MAX = 0.5


class Recorder:
    """`rolltape serve` on fixed ports and one store, however often it is started."""

    def __init__(self, name, folder, upstream):
        self.folder = folder / name
        self.folder.mkdir(parents=True)
        self.store = self.folder / "soak.db"
        self.data, self.control = harness.free_addresses(2)
        self._upstream = upstream
        self.process = None
        self.down = threading.Event()
        """Set while the process is being killed and started again."""

    def start(self):
        """Starts it and waits until it answers; gives the seconds that it took."""
        began = time.monotonic()
        where = ("--listen", harness.text(self.data), "--control", harness.text(self.control))
        upstream = ("--upstream", f"http://{harness.text(self._upstream)}")
        self.process = harness.Process(
            "serve", *upstream, *where, "--store", self.store, folder=self.folder
        )
        until = began + READY_WAIT_S
        while not self.answers():
            if self.process.child.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"the recorder does not come back:\n{self.process.stderr}")
            time.sleep(0.02)
        self.down.clear()
        return time.monotonic() - began

    def answers(self):
        """Whether the control listener says that all is well."""
        try:
            return self.ask("GET", "/health")[0] == 200
        except OSError:
            return False

    def kill(self):
        """`kill -9`."""
        self.down.set()
        self.process.kill()

    def ask(self, method, path, body=None):
        """A request to the control listener, with its token: status, headers and body."""
        headers = {"content-type": "application/json"} if body is not None else {}
        token = Path(f"{self.store}-token")
        if token.exists():
            headers["authorization"] = f"Bearer {token.read_text().strip()}"
        connection = http.client.HTTPConnection(*self.control, timeout=CALL_WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        except http.client.HTTPException as why:
            raise OSError(str(why)) from why
        finally:
            connection.close()

    def sample(self):
        """What the process holds: memory in MiB, descriptors, threads; the store in MiB."""
        proc = Path("/proc") / str(self.process.child.pid)
        fields = dict(
            line.split(":", 1) for line in (proc / "status").read_text().splitlines()
        )
        files = self.store.parent.glob(self.store.name + "*")
        return {
            "memory": int(fields["VmRSS"].split()[0]) / 1024,
            "descriptors": len(os.listdir(proc / "fd")),
            "threads": int(fields["Threads"]),
            "store": sum(file.stat().st_size for file in files) / 2**20,
        }


class Counts:
    """What happened, counted by all threads."""

    def __init__(self):
        self._lock = threading.Lock()
        self.now = Counter()
        """Events since the last line of the table."""
        self.acknowledged = {}
        """Acknowledged calls of each recorder and episode, until they are looked up."""
        self.broken = []
        """Promises that were broken, in words."""

    def add(self, event, count=1):
        with self._lock:
            self.now[event] += count

    def acknowledge(self, recorder, episode):
        with self._lock:
            calls = self.acknowledged.setdefault(recorder.store, Counter())
            calls[episode] += 1
            self.now["acknowledged"] += 1

    def take(self):
        """What was counted since the last time."""
        with self._lock:
            taken, self.now = self.now, Counter()
            return taken

    def take_acknowledged(self, store):
        """The acknowledged calls of a store since the last time, by episode."""
        with self._lock:
            return self.acknowledged.pop(store, Counter())

    def breaks(self, promise):
        """Notes a broken promise."""
        with self._lock:
            self.broken.append(promise)
            print(f"BROKEN: {promise}", file=sys.stderr, flush=True)


WIRES = {
    "chat/completions": lambda said: {"messages": said, "max_tokens": 12},
    "completions": lambda said: {"prompt": said[-1]["content"], "max_tokens": 12},
    "responses": lambda said: {"input": said, "max_output_tokens": 12},
    "messages": lambda said: {"messages": said, "max_tokens": 12},
}
ENDS = (b"[DONE]", b"message_stop", b"response.completed", b"response.incomplete")


class Agent(threading.Thread):
    """One agent after another, each with an episode of its own."""

    def __init__(self, recorder, counts, number, seed, stopped, filling):
        super().__init__(daemon=True)
        self._recorder = recorder
        self._counts = counts
        self._number = number
        self._filling = filling
        self._dice = random.Random(f"{seed}-{number}")
        self._stopped = stopped

    def run(self):
        played = 0
        while not self._stopped.is_set():
            if self._recorder.down.is_set():
                time.sleep(0.05)
                continue
            try:
                self._episode(f"s{self._number}-{played}")
            except OSError:
                # The recorder is being killed, or was.
                self._counts.add("failed")
                time.sleep(0.1)
            played += 1

    def _episode(self, name):
        dice, recorder = self._dice, self._recorder
        tag = dice.choice(["path", "path", "header", "session", "key", "none"])
        path, headers = ("/v1/", {})
        if tag == "path":
            path = f"/e/{name}/v1/"
        elif tag == "header":
            headers = {"x-episode-id": name}
        elif tag == "session":
            headers = {"x-session-id": name}
        elif tag == "key":
            headers = {"authorization": f"Bearer {self._key(name)}"}

        wire = dice.choice(list(WIRES))
        said = []
        for turn in range(dice.randint(1, 4)):
            question = QUESTION if dice.random() < 0.7 else f"{QUESTION} {name} {turn}"
            said = [*said, {"role": "user", "content": question}]
            if tag == "none" and turn == 0:
                # A conversation of its own.
                said[0]["content"] += f" {name}"
            text = self._call(path + wire, headers, WIRES[wire](said), name, tag)
            if text is None:
                break
            said = [*said, {"role": "assistant", "content": text}]
        if tag != "none":
            self._finish(name)

    def _key(self, name):
        for path, body in [("/episodes", {"episode_id": name}), (f"/episodes/{name}/key", {})]:
            status, _, answer = self._recorder.ask("POST", path, body)
            if status != 200:
                raise OSError(f"{path}: {status}")
        return json.loads(answer)["api_key"]

    def _finish(self, name):
        """Rewards and closes an episode; a few stay open, as those of agents that die."""
        if self._dice.random() < 0.05:
            return
        reward = {"value": self._dice.random()}
        self._recorder.ask("POST", f"/episodes/{name}/rewards", reward)
        status, _, _ = self._recorder.ask("POST", f"/episodes/{name}/close", {})
        self._counts.add("closed" if status == 200 else "not closed")

    def _call(self, path, headers, body, name, tag):
        """One call; gives the text to go on with, or None if the agent left or was refused."""
        dice = self._dice
        body |= {"model": "tiny", "stream": dice.random() < 0.6, "seed": dice.randrange(1 << 30)}
        if path.endswith(("messages", "responses")):
            del body["seed"]
        if self._filling.is_set():
            # No server reads it, and no recorder makes a session of it.
            body["user"] = dice.randbytes(PADDING_BYTES // 2).hex()
        manner = dice.choices(["reads", "leaves", "stalls"], [0.86, 0.09, 0.05])[0]
        data = self._recorder.data
        connection = http.client.HTTPConnection(*data, timeout=CALL_WAIT_S)
        try:
            sent = {"content-type": "application/json", "x-api-key": "soak", **headers}
            connection.request("POST", path, json.dumps(body), sent)
            if manner == "leaves" and dice.random() < 0.5:
                self._counts.add("left")
                return None
            reply = connection.getresponse()
            if manner != "reads":
                reply.read(dice.randint(1, 200))
            if manner == "leaves":
                self._counts.add("left")
                return None
            if manner == "stalls":
                time.sleep(STALL_S)
            return self._read(reply, body["stream"], manner, name, tag)
        except http.client.HTTPException as why:
            raise OSError(str(why)) from why
        finally:
            connection.close()

    def _read(self, reply, streams, manner, name, tag):
        read = reply.read()
        if reply.status != 200:
            self._counts.add("refused")
            self._counts.add(f"refused with {reply.status}")
            return None
        if streams and not any(end in read for end in ENDS):
            # An error in the midst of a stream; it is no acknowledgement.
            self._counts.add("failed")
            return None
        # Untagged calls have episodes of the recorder's own naming, which are counted together.
        self._counts.acknowledge(self._recorder, name if tag != "none" else None)
        return "ok" if streams or manner != "reads" else read.decode(errors="replace")[:40]


class Reader(threading.Thread):
    """A trainer: takes leases of the feed, and acks them."""

    def __init__(self, recorder, counts, stopped):
        super().__init__(daemon=True)
        self._recorder = recorder
        self._counts = counts
        self._stopped = stopped
        self._acked = set()

    def run(self):
        while not self._stopped.is_set():
            try:
                if self._recorder.down.is_set() or not self._take():
                    time.sleep(0.2)
            except OSError:
                time.sleep(0.2)

    def _take(self):
        path = f"/feed?consumer={CONSUMER}&limit=64&wait_s=1&lease_s=60"
        status, headers, rows = self._recorder.ask("POST", path)
        if status != 200:
            return False
        names = set()
        for line in rows.splitlines():
            row = json.loads(line)
            names.add((row["episode_id"], row.get("attempt", 0)))
        if again := names & self._acked:
            self._counts.breaks(f"acked and handed out again: {sorted(again)[:3]}")
        lease = headers["x-rolltape-lease"]
        status, _, _ = self._recorder.ask("POST", f"/feed/leases/{lease}/ack", {})
        if status == 200:
            self._acked |= names
            self._counts.add("acked", len(names))
        return True


class Check:
    """Looks acknowledged calls up in a store."""

    def __init__(self, recorder):
        self._store = recorder.store
        self._expected = Counter()
        self._untagged = 0

    def lost(self, acknowledged):
        """How many acknowledged calls the store lacks. `acknowledged` are the new ones."""
        self._untagged += acknowledged.pop(None, 0)
        self._expected += acknowledged
        with contextlib.closing(self._open()) as connection:
            lost = sum(
                max(0, self._expected[name] - found)
                for names in pieces(list(acknowledged), 500)
                for name, found in self._found(connection, names).items()
            )
            query = """SELECT count(*) FROM calls JOIN episodes USING (episode_id, attempt)
                WHERE outcome = 'complete' AND source = 'auto'"""
            (untagged,) = connection.execute(query).fetchone()
        return lost + max(0, self._untagged - untagged)

    def _found(self, connection, names):
        """Complete calls in the store, by episode."""
        query = f"""SELECT episode_id, count(*) FROM calls
            WHERE outcome = 'complete' AND episode_id IN ({",".join("?" * len(names))})
            GROUP BY episode_id"""
        found = dict(connection.execute(query, names).fetchall())
        return {name: found.get(name, 0) for name in names}

    def _open(self):
        return sqlite3.connect(f"file:{self._store}?mode=ro", uri=True, timeout=30)


def pieces(items, size):
    """`items` in lists of at most `size`."""
    return [items[at : at + size] for at in range(0, len(items), size)]


def slope(values):
    """The slope of the line through the second half of `values`, by least squares, a step."""
    values = values[len(values) // 2 :]
    if len(values) < 2:
        return 0.0
    middle = (len(values) - 1) / 2
    mean = sum(values) / len(values)
    above = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    return above / sum((at - middle) ** 2 for at in range(len(values)))


COLUMNS = [
    "minute", "acknowledged", "lost", "refused", "failed", "left", "calls/s", "closed", "acked",
    "back after", "memory", "descriptors", "threads", "store", "killed one's memory",
]  # fmt: skip
UNITS = {"back after": "s", "memory": "MiB", "store": "MiB", "killed one's memory": "MiB"}


class Table:
    """Markdown on stdout and in a file."""

    def __init__(self, path):
        self._file = path and path.open("w")
        names = [f"{name}, {UNITS[name]}" if name in UNITS else name for name in COLUMNS]
        self.line(names)
        self.line(["---"] * len(names))

    def line(self, cells):
        self.say("| " + " | ".join(str(cell) for cell in cells) + " |")

    def say(self, text):
        for out in filter(None, [sys.stdout, self._file]):
            print(text, file=out, flush=True)


class Soak:
    """The whole run."""

    def __init__(self, options, folder, upstream):
        self._options = options
        self._dice = random.Random(options.seed)
        self._counts = Counts()
        self._stopped, self._filling = threading.Event(), threading.Event()
        self._killed, self._living = (
            Recorder(name, folder, upstream) for name in ("killed", "living")
        )
        self._recorders = [self._killed, self._living]
        self._checks = {recorder: Check(recorder) for recorder in self._recorders}
        self._samples = []
        self._total = Counter()
        self._table = Table(options.out)

    def run(self):
        """Plays all minutes and gives the exit code."""
        for recorder in self._recorders:
            recorder.start()
        seed, agents = self._options.seed, self._options.agents
        threads = [Reader(recorder, self._counts, self._stopped) for recorder in self._recorders]
        for number in range(agents):
            # A third of the agents call the recorder that lives.
            recorder = self._recorders[number % 3 == 2]
            events = (self._stopped, self._filling)
            threads.append(Agent(recorder, self._counts, number, seed, *events))
        for thread in threads:
            thread.start()

        fill = self._options.fill
        for minute in range(1, self._options.minutes + 1):
            (self._filling.set if minute <= fill else self._filling.clear)()
            self._minute(minute)
        self._stopped.set()
        for thread in threads:
            thread.join(2 * CALL_WAIT_S)
            if thread.is_alive():
                self._counts.breaks("a call or a feed does not end")
        self._end()
        return 1 if self._counts.broken else 0

    def _minute(self, minute):
        began = time.monotonic()
        kill_at = began + self._dice.uniform(5, 55)
        time.sleep(max(0, kill_at - time.monotonic()))
        memory = self._killed.sample()["memory"]
        self._killed.kill()
        back = self._killed.start()
        time.sleep(max(0, began + 60 - time.monotonic()))

        lost = sum(
            self._checks[recorder].lost(self._counts.take_acknowledged(recorder.store))
            for recorder in self._recorders
        )
        if lost:
            self._counts.breaks(f"{lost} acknowledged calls are not in the store")
        if self._living.process.child.poll() is not None:
            self._counts.breaks(f"the living recorder ended:\n{self._living.process.stderr}")
            return
        counts, sample = self._counts.take(), self._living.sample()
        self._samples.append(sample)
        self._total += counts + Counter(lost=lost)
        rate = counts["acknowledged"] / (time.monotonic() - began)
        self._table.line(
            [minute, counts["acknowledged"], lost, counts["refused"], counts["failed"]]
            + [counts["left"], f"{rate:.0f}", counts["closed"], counts["acked"], f"{back:.2f}"]
            + [f"{sample['memory']:.0f}", sample["descriptors"], sample["threads"]]
            + [f"{sample['store']:.0f}", f"{memory:.0f}"]
        )

    def _end(self):
        """Checks what is left of the promises, and says so."""
        say = self._table.say
        say(f"\nAcknowledged {self._total['acknowledged']}, lost {self._total['lost']}.")
        refusals = {key: n for key, n in self._total.items() if key.startswith("refused with")}
        if refusals:
            told = ", ".join(f"{n} {key}" for key, n in sorted(refusals.items()))
            say(f"Calls that were refused: {told}.")
        time.sleep(SETTLE_S)
        idle = self._living.sample()
        say(
            f"The living recorder at rest: {idle['memory']:.0f} MiB, "
            f"{idle['descriptors']} descriptors, {idle['threads']} threads."
        )
        self._growth("memory", MEMORY_MIB_A_MINUTE_MAX, "MiB")
        self._growth("descriptors", DESCRIPTORS_A_MINUTE_MAX, "descriptors")
        self._growth("threads", THREADS_A_MINUTE_MAX, "threads")
        for recorder in self._recorders:
            self._end_of(recorder)
        broken = self._counts.broken
        say(f"\n**{len(broken)} promises broken.**" if broken else "\nEvery promise held.")

    def _growth(self, what, most, unit):
        grown = slope([sample[what] for sample in self._samples])
        is_long = len(self._samples) >= MINUTES_FOR_SLOPES
        told = "" if is_long else "; too short to tell"
        self._table.say(f"Slope of {what} over the second half: {grown:+.2f} {unit}/min{told}.")
        if is_long and grown > most:
            self._counts.breaks(f"{what} of the living recorder grow by {grown:.2f} a minute")

    def _end_of(self, recorder):
        """Stops a recorder, and reads its store as a user would."""
        name = recorder.folder.name
        code = recorder.process.stop()
        if code != 0:
            self._counts.breaks(f"the {name} recorder ended with {code}")
        if "panicked at" in recorder.process.stderr:
            self._counts.breaks(f"the {name} recorder panicked:\n{recorder.process.stderr}")
        if lost := self._checks[recorder].lost(self._counts.take_acknowledged(recorder.store)):
            self._counts.breaks(f"{lost} acknowledged calls are not in the store at the end")
        verified = self._command(recorder, "verify", "--json")
        clean = verified.returncode == 0 and json.loads(verified.stdout)["clean"]
        if not clean:
            self._counts.breaks(f"verify, {name}: {verified.stdout[-2000:]}{verified.stderr}")
        out = recorder.folder / "export"
        exported = self._command(recorder, "export", "--out", out)
        if exported.returncode != 0:
            self._counts.breaks(f"export, {name}: {exported.stderr[-2000:]}")
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file()) / 2**20
        self._table.say(
            f"The {name} recorder's store: `verify` {'clean' if clean else 'NOT CLEAN'}, "
            f"exported {size:.1f} MiB."
        )

    @staticmethod
    def _command(recorder, *arguments):
        harness.COMMAND_WAIT_S = 1800
        return harness.command(*arguments, "--store", recorder.store, folder=recorder.folder)


def main():
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--agents", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="the table, beside stdout")
    parser.add_argument("--store", type=Path, help="an empty folder that is kept")
    parser.add_argument("--fill", type=int, help="minutes of padded requests [a quarter]")
    options = parser.parse_args()
    if options.fill is None:
        options.fill = options.minutes // FILLS
    with contextlib.ExitStack() as held:
        folder = options.store or Path(held.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            upstream = held.enter_context(harness.engine(folder))
            sys.exit(Soak(options, folder.resolve(), upstream).run())
        finally:
            for process in harness.started:
                process.kill()


if __name__ == "__main__":
    main()
