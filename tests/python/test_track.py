"""Trackers: the real libraries, offline, and what they have afterwards."""

import json
import os
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import harness
from harness import MODEL, until
from package import PYTHON, rolltape

from rolltape.track import MissingLibrary, Tracker
from rolltape.track.numbers import numbers
from rolltape.track.rollouts import CUT, MESSAGES_MAX, Finder, rollout
from rolltape.track.source import Source

pytestmark = pytest.mark.timeout(120)
GROUPS, MEMBERS = 3, 2
SECRET = "the-word-that-was-said"


def play(client, episode_id, group_id, reward, secret=SECRET):
    """Two turns of an agent that has no library."""
    with rolltape.episode(client, episode_id, group_id=group_id, task_id="t") as episode:
        messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": secret}]
        for more in ("again", None):
            body = {"model": "tiny", "messages": messages, "max_tokens": 6, "seed": 1}
            asked = urllib.request.Request(
                f"{episode.base_url}/chat/completions", json.dumps(body).encode(),
                {"content-type": "application/json"})
            with urllib.request.urlopen(asked) as answer:
                messages.append(json.load(answer)["choices"][0]["message"])
            messages.append({"role": "user", "content": more})
        episode.reward(reward)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A recording of groups, whose server has ended."""
    store = tmp_path_factory.mktemp("tracked") / "rolltape.db"
    with rolltape.Server(model=MODEL, store=store) as server:
        for group in range(GROUPS):
            for member in range(MEMBERS):
                play(server.client, f"e{group}-{member}", f"g{group}", float(member))
    return store


def variables(folder):
    """An environment in which all three libraries keep what they get in a folder."""
    return harness.environment(**{
        "PYTHONPATH": str(PYTHON), "ROLLTAPE_BIN": harness.binary(), "HOME": str(folder),
        "WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true",
        "TRACKIO_DIR": str(folder / "trackio"), "WANDB_ERROR_REPORTING": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"})


def once(folder, to, store):
    """Sends all that there is, by the command."""
    words = [sys.executable, "-m", "rolltape.track", to, "--project", "p", "--run", "r"]
    words += ["--store", str(store), "--once", "--sample", "1"]
    env = variables(folder)
    ended = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stderr
    count = GROUPS * MEMBERS
    assert f"sent 1 numbers, {count} rollouts, 3 tables\n" in ended.stderr, ended.stderr


def everything(folder):
    """All bytes that a library left in a folder."""
    return b"".join(path.read_bytes() for path in Path(folder).rglob("*") if path.is_file())


# What each library has


def wandb_records(folder):
    """The records of the file of an offline run, which has the form of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.rglob("run-*.wandb")
    data, at, whole = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and whole:
            yield Record.FromString(whole)
            whole = b""


def test_wandb_has_numbers_and_a_table_of_rollouts(tmp_path, store):
    pytest.importorskip("wandb")
    once(tmp_path, "wandb", store)
    records = list(wandb_records(tmp_path))
    (run,) = [record.run for record in records if record.HasField("run")][:1]
    assert (run.project, run.display_name, run.job_type) == ("p", "r", "rolltape")
    logged = {}
    for record in records:
        for item in record.history.item if record.HasField("history") else ():
            logged[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
    assert logged["rolltape/episodes"] == GROUPS * MEMBERS and logged["rolltape/reward"] == 0.5
    assert logged["rolltape/groups/no_signal"] == 0
    (file,) = tmp_path.rglob("*rollouts*.table.json")
    table = json.loads(file.read_text())
    rows = [dict(zip(table["columns"], row)) for row in table["data"]]
    assert {row["episode_id"] for row in rows} == {
        f"e{group}-{member}" for group in range(GROUPS) for member in range(MEMBERS)}
    assert all(row["prompt"] == SECRET and row["verdict"] == "exact" for row in rows)
    assert all(f"user: {SECRET}" in row["conversation"] for row in rows)
    (file,) = tmp_path.rglob("*health*.table.json")
    table = json.loads(file.read_text())
    verdicts = {row[table["columns"].index("verdict")] for row in table["data"]}
    assert verdicts <= {"finding", "fine", "no evidence"} and len(table["data"]) >= 20
    (file,) = tmp_path.rglob("*groups*.table.json")
    assert len(json.loads(file.read_text())["data"]) == GROUPS


def test_mlflow_has_metrics_and_a_trace_of_each_rollout(tmp_path, store, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    once(tmp_path, "mlflow", store)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = mlflow.MlflowClient((tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("p").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("r", "FINISHED")
    assert run.data.metrics["rolltape/episodes"] == GROUPS * MEMBERS
    traces = client.search_traces(locations=[experiment])
    assert len(traces) == GROUPS * MEMBERS
    trace = next(one for one in traces if one.info.tags["rolltape.episode_id"] == "e1-1")
    assert trace.info.trace_metadata["mlflow.sourceRun"] == run.info.run_id
    assert trace.info.tags["rolltape.reward"] == "1.0"
    root, *calls = sorted(trace.data.spans, key=lambda span: span.parent_id is not None)
    assert root.inputs == {"prompt": SECRET} and len(calls) == 2
    assert {call.name for call in calls} == {"chat tiny"}
    first = min(calls, key=lambda call: call.start_time_ns)
    assert first.inputs["messages"][-1]["content"] == SECRET and first.outputs["content"]
    assert root.start_time_ns <= first.start_time_ns < first.end_time_ns <= root.end_time_ns


def test_trackio_has_numbers_and_a_trace_of_each_rollout(tmp_path, store):
    pytest.importorskip("trackio")
    once(tmp_path, "trackio", store)
    read = "from trackio.sqlite_storage import SQLiteStorage as S; import json; "
    read += "print(json.dumps(S.get_logs('p', 'r')))"
    env = harness.environment(TRACKIO_DIR=str(tmp_path / "trackio"), HOME=str(tmp_path))
    told = subprocess.run([sys.executable, "-c", read], env=env, capture_output=True, text=True)
    logs = json.loads(told.stdout.splitlines()[-1])
    found = {name: value for entry in logs for name, value in entry.items()}
    assert found["rolltape/episodes"] == GROUPS * MEMBERS
    assert len(found["rolltape/groups"]["_value"]) == GROUPS
    # It keeps each as a session of Pi.
    sessions = [path.read_text() for path in (tmp_path / "trackio" / "traces").rglob("*.jsonl")]
    assert len(sessions) == GROUPS * MEMBERS
    assert all(SECRET in session for session in sessions)


TRAINER = """
import sys, wandb
from rolltape.track import Tracker
mine = wandb.init(project="p", name="trainer", settings=wandb.Settings(console="off"))
tracker = Tracker("wandb", "p", store=sys.argv[1], sample=1, past=True, text_chars=0).start()
for step in range(3):
    mine.log({"loss": 0.5}, step=step)
    tracker.log(step)
tracker.close(60)
assert wandb.run is mine and mine.step == 2, mine.step
assert tracker.sent["rollouts"] == 6 and tracker.error is None, tracker.error
"""


def test_the_trainer_s_run_stays_and_without_texts_none_leaves(tmp_path, store):
    pytest.importorskip("wandb")
    env = variables(tmp_path)
    words = [sys.executable, "-c", TRAINER, str(store)]
    ended = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.rglob("run-*.wandb"))) == 2
    kept = everything(tmp_path)
    assert SECRET.encode() not in kept and b"e1-1" in kept
    # The other trackers see no more than this.
    with Source(store=str(store)) as source:
        finder = Finder(source.client.recording, sample=1, text_chars=0, past=True)
        rollouts = list(finder.look())
    assert len(rollouts) == GROUPS * MEMBERS and SECRET not in repr(rollouts)
    assert all(one.prompt is one.answer is None and len(one.said) == 2 for one in rollouts)


def test_a_library_that_is_missing_is_named():
    code = "import sys; sys.modules['wandb'] = None; from rolltape.track.__main__ import main; "
    code += "sys.exit(main(['wandb', '--project', 'p']))"
    env = harness.environment(PYTHONPATH=str(PYTHON))
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert "wandb is not installed: pip install 'rolltape[wandb]'" in ended.stderr


def test_a_store_that_is_not_there_is_an_error(tmp_path):
    kept = Kept()
    tracking = Tracker("wandb", "p", store=str(tmp_path / "none.db"), sink=lambda: kept)
    tracking.once(wait_s=30)
    assert "the store cannot be read: " in str(tracking.error) and kept.closed
    assert not tracking.sent


# Inside a training loop


class Kept:
    """A tracker that keeps what it gets. While `gate` is closed it takes nothing."""

    def __init__(self):
        self.gate, self.taken, self.closed = threading.Event(), [], False
        self.gate.set()

    def numbers(self, values, step):
        self.gate.wait()
        self.taken.append(("numbers", values, step))

    def rollouts(self, rollouts, step):
        self.gate.wait()
        self.taken.extend(("rollout", one, step) for one in rollouts)

    def table(self, table, step):
        self.gate.wait()
        self.taken.append(("table", table, step))

    def close(self):
        self.closed = True

    def of(self, kind):
        return [(what, step) for its_kind, what, step in self.taken if its_kind == kind]


@pytest.fixture
def server(tmp_path):
    with rolltape.Server(model=MODEL, store=tmp_path / "rolltape.db") as running:
        yield running


def tracker(client, kept, **options):
    options = {"every_s": 0.05, "sample": 1.0, "sink": lambda: kept, **options}
    return Tracker("wandb", "p", client=client, **options)


def test_rollouts_are_sent_as_they_end_with_the_trainer_s_step(server):
    play(server.client, "before", "g", 0.0)
    kept = Kept()
    with tracker(server.client, kept) as tracking:
        until("a look", lambda: kept.of("numbers"))
        tracking.log(7, {"loss": 0.25})
        for number in range(3):
            play(server.client, f"after-{number}", "g", 1.0)
        until("three rollouts", lambda: len(kept.of("rollout")) == 3)
        time.sleep(0.3)
    assert sorted(one.episode_id for one, _ in kept.of("rollout")) == [
        "after-0", "after-1", "after-2"]
    assert {step for _, step in kept.of("rollout")} == {7}
    assert ({"loss": 0.25}, 7) in kept.of("numbers")
    last = kept.of("numbers")[-1][0]
    assert last["rolltape/episodes"] == 4 and last["rolltape/reward"] == 0.75
    engines = [name for name in last if name.startswith("rolltape/engine/")]
    assert [last[name] for name in engines if name.endswith("/calls_begun")] == [8]
    assert {table.name for table, _ in kept.of("table")} == {"versions", "groups", "health"}
    assert kept.closed and tracking.dropped == {"unread": 0} and tracking.error is None


def test_a_rollout_waits_for_its_reward_until_the_last_look(server):
    kept = Kept()
    with tracker(server.client, kept) as tracking:
        until("a look", lambda: kept.of("numbers"))
        for name in ("judged", "never"):
            with rolltape.episode(server.client, name, group_id="g"):
                pass
        until("them", lambda: kept.of("numbers")[-1][0]["rolltape/episodes"] == 2)
        looks = len(kept.of("numbers"))
        until("further looks", lambda: len(kept.of("numbers")) >= looks + 2)
        assert not kept.of("rollout")
        server.client.reward("judged", 0.75)
        until("the rollout", lambda: kept.of("rollout"))
        sent = [(one.episode_id, one.reward) for one, _ in kept.of("rollout")]
        assert sent == [("judged", 0.75)]
    sent = [(one.episode_id, one.reward) for one, _ in kept.of("rollout")]
    assert sent == [("judged", 0.75), ("never", None)] and tracking.error is None


def test_a_training_loop_never_waits_for_a_slow_tracker(server):
    kept = Kept()
    kept.gate.clear()
    tracking = tracker(server.client, kept, queue_max=10).start()
    begun = time.monotonic()
    for step in range(5000):
        tracking.log(step, {"loss": 1.0})
    assert time.monotonic() - begun < 1
    lost = tracking.dropped["numbers"]
    assert lost >= 5000 - 11
    begun = time.monotonic()
    tracking.close(wait_s=0.5)
    assert time.monotonic() - begun < 3
    assert tracking.dropped["numbers"] >= lost + 10
    assert isinstance(tracking.error, TimeoutError)
    kept.gate.set()


def test_a_tracker_that_is_away_is_an_error_and_no_exception(server):
    def away():
        raise ConnectionError("no tracker")

    with tracker(server.client, None, sink=away) as tracking:
        tracking.log(1, {"loss": 1.0})
        until("the end of it", lambda: not tracking.runs)
        until("a count", lambda: tracking.dropped.get("numbers", 0) >= 2)
    assert isinstance(tracking.error, ConnectionError) and not tracking.sent


def test_what_one_item_breaks_costs_no_other(server):
    kept = Kept()

    def broken(*_):
        raise ValueError("cannot be sent")

    kept.rollouts = broken
    with tracker(server.client, kept) as tracking:
        until("a look", lambda: kept.of("numbers"))
        play(server.client, "broken", "g", 1.0)
        until("a count", lambda: tracking.dropped.get("rollouts"))
        until("more numbers", lambda: kept.of("numbers")[-1][0].get(
            "rolltape/tracker/rollouts_dropped"))
    assert tracking.dropped["rollouts"] == 1 and kept.closed


def test_a_server_that_ends_costs_no_tracker(tmp_path):
    kept = Kept()
    with rolltape.Server(model=MODEL, store=tmp_path / "rolltape.db") as server:
        tracking = tracker(server.client, kept).start()
        until("a look", lambda: kept.of("numbers"))
    until("an error", lambda: tracking.error)
    tracking.log(3, {"loss": 0.5})
    until("what the trainer says", lambda: ({"loss": 0.5}, 3) in kept.of("numbers"))
    tracking.close()
    assert isinstance(tracking.error, rolltape.RolltapeError)


@pytest.mark.parametrize("options", [
    {"sample": 1.5}, {"every_s": 0}, {"text_chars": -1}, {"queue_max": 0}, {"reward_wait_s": -1}])
def test_arguments_that_cannot_be_are_refused(options):
    with pytest.raises(ValueError, match="positive"):
        Tracker("wandb", "p", **options)
    with pytest.raises(ValueError, match="none of"):
        Tracker("tensorboard", "p")


# What is read


def test_a_sample_is_of_whole_groups_and_always_the_same(store):
    with Source(store=str(store)) as source:
        def sample(share):
            finder = Finder(source.client.recording, sample=share, text_chars=0, past=True)
            return {one.episode_id for one in finder.look()}

        half = sample(0.5)
        assert half == sample(0.5) and 0 < len(half) < GROUPS * MEMBERS
        assert half <= sample(0.9) and not sample(0)
    groups = {name.partition("-")[0] for name in half}
    assert len(half) == len(groups) * MEMBERS


def test_the_numbers_of_a_look_are_those_since_the_last(store):
    with Source(store=str(store)) as source:
        found = numbers(source.client, since=time.time() + 1000)
        assert found["rolltape/calls"] == GROUPS * MEMBERS * 2
        assert found.get("rolltape/recent/calls", 0) == 0
        found = numbers(source.client, since=0.0)
        assert found["rolltape/recent/calls"] == GROUPS * MEMBERS * 2
        assert found["rolltape/version/reward"] == 0.5
        assert not [name for name in found if "engine" in name]


def test_texts_are_cut_and_long_rollouts_shortened(store):
    with Source(store=str(store)) as source:
        tree = source.client.recording.tree("e1-1", messages=True)
    call = tree["calls"][0]
    call["messages"] = [{"role": "user", "content": "ä" * 50}] + [
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}
    ] * (MESSAGES_MAX * 2)
    call["choices"][0]["message"] = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "1", "function": {"name": "ls", "arguments": "y" * 50}}]}
    one = rollout(tree, 13)
    assert one.prompt == "ä" * 13 + CUT
    assert len(one.messages) == MESSAGES_MAX + 1
    assert one.messages[1]["content"] == "x\n[image_url]"
    (asked,) = one.said[0].answer["tool_calls"]
    assert asked["function"] == {"name": "ls", "arguments": "y" * 13 + CUT}


def test_the_library_is_looked_for_before_anything_starts(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingLibrary, match=r"pip install 'rolltape\[mlflow\]'"):
        Tracker("mlflow", "p")


def test_the_environment_names_the_store(store, monkeypatch):
    monkeypatch.chdir(store.parent)
    monkeypatch.delenv("ROLLTAPE_CONTROL_URL", raising=False)
    monkeypatch.setenv("ROLLTAPE_STORE", os.fspath(store))
    with Source() as source:
        assert len(list(source.client.recording.episodes())) == GROUPS * MEMBERS
