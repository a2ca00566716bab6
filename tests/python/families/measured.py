"""What comes of conversations with a family behind rolltape: the oracle's word on each call, the
record's, and the rows of an export."""

import json
import os
import sqlite3
import subprocess
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

import agents
import habits
import harness
from known import FAMILIES

FOLDER = Path(__file__).resolve().parent
HOME = Path(os.environ.get("ROLLTAPE_FAMILIES_HOME", FOLDER / ".fetched"))
PYTHON = HOME / "venv" / "bin" / "python"
STOP_WAIT_S = 10
EXPORT_WAIT_S = 300
"""A thousand conversations are four million tokens."""
SHOWN = 5
"""How many faults a report shows."""


@dataclass
class Outcome:
    """The counts of one family."""

    family: str
    conversations: int = 0
    calls: int = 0
    continued: int = 0
    """Calls whose prompt began with recorded ids, as the record says."""
    reasons: Counter = field(default_factory=Counter)
    wrong: int = 0
    """Calls whose ids are neither those of a recorded path with the canonical ones behind it, nor
    the canonical ones."""
    short: int = 0
    """Calls that went on from less than they could have."""
    other_text: int = 0
    """Calls whose ids say something else than the canonical ones."""
    torn: int = 0
    """Calls whose canonical ids are not those that were sampled."""
    told_wrong: int = 0
    """Calls of which the record says another number of recorded ids than the oracle."""
    unexplained: int = 0
    """Calls that went on from nothing, without a reason in the record."""
    misnamed: int = 0
    """Calls that lack what the template left out of a faithful history, under another reason."""
    appended: int = 0
    """Conversations that only append and whose template shows again all that was sampled."""
    appended_rows: int = 0
    rows: int = 0
    expected_rows: int = 0
    """The paths that no later call went on from, by the ids that were used."""
    faults: list = field(default_factory=list)

    @property
    def line(self):
        """What is told of a family, for a report."""
        per_episode = self.appended_rows / self.appended if self.appended else None
        more = {"reasons": dict(self.reasons), "rows_per_appended_episode": per_episode}
        return vars(self) | more

    def fault(self, what, number, call):
        """Notes a fault; the first few are shown."""
        if len(self.faults) < SHOWN:
            self.faults.append({"what": what, "conversation": number} | call)


@contextmanager
def server(folder, family, *kind):
    """A running server of a family; gives its address and its log."""
    log = folder / f"{family}.jsonl"
    log.touch()
    with (folder / f"{family}.stderr").open("wb") as told:
        words = [PYTHON, FOLDER / "server.py", family, log, *kind]
        child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=told, cwd=folder)
    try:
        yield ("127.0.0.1", int(child.stdout.readline())), log
    finally:
        child.terminate()
        child.wait(STOP_WAIT_S)
        child.stdout.close()
    assert not (complaint := (folder / f"{family}.stderr").read_text()), complaint[-5000:]


def measured(folder, family, numbers, *arguments, parts=1, kind=()):
    """Has conversations through rolltape, which is started anew for each part, and judges them."""
    talking = [agents.Agent(number, family) for number in numbers]
    with server(folder, family, *kind) as (address, log):
        words = ("--upstream", f"http://{harness.text(address)}", *arguments)
        for part in range(parts):
            with harness.serve(folder, *words) as proxy:
                agents.converse(talking, proxy.data, part, parts)
    proxy.command("export", "--out", folder / "rows.parquet", timeout=EXPORT_WAIT_S)
    outcome = Outcome(family, conversations=len(numbers))
    told, rows = recorded(proxy.store), exported(folder / "rows.parquet")
    for verdict in judged(folder, family, log):
        name = agents.episode(family, verdict["number"])
        weigh(outcome, verdict, told[name], rows[name])
    return outcome


def judged(folder, family, log):
    """The oracle's verdicts, one conversation after the other."""
    verdicts = folder / f"{family}.verdicts"
    with verdicts.open("wb") as out:
        subprocess.run([PYTHON, FOLDER / "judge.py", family, log], stdout=out, check=True)
    with verdicts.open() as lines:
        yield from map(json.loads, lines)


def recorded(store):
    """What the record says of each call, in their order, by episode."""
    found = {}
    with sqlite3.connect(store) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(calls)")]
        said = "continued" if "continued" in columns else "NULL"
        query = f"SELECT episode_id, {said} FROM calls ORDER BY started_at, call_id"
        for name, continued in connection.execute(query):
            found.setdefault(name, []).append(continued and json.loads(continued))
    return found


def exported(file):
    """How many rows each episode has."""
    return Counter(pq.read_table(file, columns=["episode_id"])["episode_id"].to_pylist())


def weigh(outcome, verdict, told, rows):
    """Counts one conversation."""
    number, calls = verdict["number"], verdict["calls"]
    assert len(told) == len(calls), f"{len(told)} calls of {len(calls)} are recorded: {number}"
    for at, (call, said) in enumerate(zip(calls, told, strict=True)):
        said = said or {"tokens": 0, "reason": None}
        count(outcome, call, said)
        if not call["is_right"] or not call["is_same_text"]:
            outcome.fault("ids", number, call | {"told": said})
        elif said["tokens"] not in call["tokens"]:
            outcome.fault("record", number, call | {"told": said})
        reason = left_out(outcome.family, number) if at and not call["is_whole"] else None
        if reason and said["reason"] != reason:
            outcome.misnamed += 1
            outcome.fault("reason", number, call | {"told": said, "reason": reason})
    outcome.rows += rows
    outcome.expected_rows += verdict["rows"]
    if rows != verdict["rows"]:
        outcome.fault("rows", number, {"rows": rows, "expected": verdict["rows"]})
    if habits.habit(number).appends and all(call["is_whole"] for call in calls[1:]):
        outcome.appended += 1
        outcome.appended_rows += rows


def left_out(family, number):
    """What the template leaves out where a faithful history has not all that was sampled; None
    where that is not known."""
    habit = habits.habit(number)
    if not (habit.appends and habit.is_clean and FAMILIES[family].thinks):
        return None
    return "opening_rewritten" if habit.is_thinking is False else "thoughts_stripped"


def count(outcome, call, said):
    """Counts one call."""
    outcome.calls += 1
    outcome.continued += said["tokens"] > 0
    outcome.reasons[said["reason"] or "none"] += 1
    outcome.wrong += not call["is_valid"]
    outcome.short += call["is_valid"] and not call["is_right"]
    outcome.other_text += not call["is_same_text"]
    outcome.torn += call["is_torn"]
    outcome.told_wrong += said["tokens"] not in call["tokens"]
    outcome.unexplained += not said["tokens"] and not said["reason"]
