"""All cases against one server, directly and through rolltape, and what came of each."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow.parquet as pq

import harness
import http1
from tap import Tap

from . import cases, same
from .running import Server

TRIES = 3
"""How often a case is tried that came out otherwise, which may hang on the moment."""
SAMPLERS = 4
GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 1}
SEED = {"seed": 11}
MARK = "x-case"
JSON = (("content-type", "application/json"), ("anthropic-version", "2023-06-01"))


@dataclass
class Outcome:
    """One case: what an agent got on both ways, and what was recorded of a sampled reply."""

    case: cases.Case
    direct: http1.Message
    through: http1.Message
    translated: bool
    """Whether the agent's own route of the server was not asked: another was, or none."""
    sampled: http1.Message | None = None
    """The reply to the same at temperature 1, through rolltape."""
    answers: list = field(default_factory=list)
    """What the server sent to rolltape for that."""
    rows: list = field(default_factory=list)

    @property
    def hidden(self):
        """Whether the agent gets what it would get without rolltape; None where that is nothing.

        A translated reply is held to what a client makes of it, another one to its bytes.
        """
        if self.translated:
            if self.direct.status in (404, 405, 501):
                return None  # the server does not have the agent's route
            wire = self.case.wire
            return same.told(self.direct, wire) == same.told(self.through, wire)
        if same.equal(self.direct, self.through):
            return True
        replies = (self.direct, self.through)
        return same.equal_joined(*replies) or same.equal_but_for_order(*replies)

    @property
    def samples(self):
        """Whether tokens were to be recorded."""
        return self.sampled is not None and self.sampled.status == 200

    @property
    def verdicts(self):
        """The verdicts and reasons of its rows."""
        return sorted({(row["verdict"], *row["reasons"]) for row in self.rows})

    @property
    def exact(self):
        """Whether every choice became a row that says `exact`."""
        return len(self.rows) == self.case.choices and self.verdicts == [("exact",)]

    @property
    def versions(self):
        """Whether every sampled token has its policy version."""
        turns = [(row, turn) for row in self.rows for turn in row["turns"]]
        told = [row["versions"][turn["start"] : turn["end"]] for row, turn in turns]
        return bool(told) and all(spans and -1 not in spans for spans in told)


@dataclass
class Measured:
    """A server and all outcomes, by the name of the case."""

    server: Server
    version: str
    outcomes: dict[str, Outcome]
    proxy: harness.Proxy


def measure(server, folder):
    """Runs every case and exports; rolltape is told what the server does not say, and no more."""
    tap = Tap(server.address)
    try:
        # One case names a response that nobody got.
        told = ("--allow-foreign-state", *server.kind.told)
        with harness.serve(folder, "--upstream", tap.url, *told) as proxy:
            outcomes = {case.name: compare(server, proxy, case) for case in cases.every()}
            chosen = [case for case in cases.every() if case.generates]
            with ThreadPoolExecutor(SAMPLERS) as pool:
                replies = list(pool.map(lambda case: sample(server, proxy, case), chosen))
            for case, reply in zip(chosen, replies):
                outcomes[case.name].sampled = reply
            gather(tap, proxy, outcomes)
            yield Measured(server, server.version(), outcomes, proxy)
    finally:
        tap.stop()


def compare(server, proxy, case):
    """One case on both ways, greedily."""
    body = case.bytes(**GREEDY)
    for _ in range(TRIES):
        direct = send(server.address, case.path, body)
        through = send(proxy.data, f"/e/greedy-{case.name}{case.path}", body, f"greedy {case.name}")
        outcome = Outcome(case, direct, through, True)
        if same.equal(direct, through):
            break
    return outcome


def sample(server, proxy, case):
    """One case through rolltape, sampled from the model's own distribution."""
    seed = SEED if case.wire in ("chat", "completions") else {}
    body = case.bytes(**SAMPLED, **seed)
    for attempt in range(TRIES):
        path = f"/e/sampled-{case.name}/a/{attempt}{case.path}"
        reply = send(proxy.data, path, body, f"sampled {case.name}")
        if reply.status != 502:  # as clients do: a server may close a connection that is idle
            break
    return reply


def send(address, path, body, mark=None):
    """One request of an agent, and the whole reply."""
    marked = ((MARK, mark),) if mark else ()
    return http1.exchange(address, http1.request("POST", path, body, (*JSON, *marked)), timeout=60)


def gather(tap, proxy, outcomes):
    """Adds what went over the tap, and the rows, to each outcome."""
    for exchange in tap.exchanges():
        way, _, name = (exchange.request.header(MARK) or "").partition(" ")
        if name not in outcomes:
            continue  # what rolltape asks for itself
        outcome = outcomes[name]
        if way == "greedy":
            outcome.translated &= exchange.request.path != outcome.case.path
        elif exchange.reply.status == 200:
            outcome.answers.append(exchange.reply)
    out = proxy.folder / "export"
    proxy.command("export", "--out", out)
    for row in pq.read_table(out / "trajectories.parquet").to_pylist():
        way, _, name = row["episode_id"].partition("-")
        if way == "sampled":
            rows = outcomes[name].rows
            rows[:] = [known for known in rows if known["attempt"] == row["attempt"]]
            rows.append(row)
