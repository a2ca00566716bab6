"""TRL's worker over a real recorder: restarts, versions, drops, groups, leases.

TRL is in another environment (`test_loop.py`, `test_restarted.py`): here a sample is the row.
"""

import time
from contextlib import contextmanager
from zlib import crc32

import openai
import pytest

import harness
from game import Agent, Game
from harness import MODEL
from package import rolltape

GROUP_SIZE = 2
WAIT_S = 60


@pytest.fixture(autouse=True)
def rows_as_samples(monkeypatch):
    monkeypatch.setattr(rolltape.trl.worker, "to_sample", lambda row, *told: (row, *told))


class Served:
    """`rolltape serve` that can be killed and started again where it was."""

    def __init__(self, folder):
        self.folder = folder
        data, control = harness.free_addresses(2)
        self._data, self._control = harness.text(data), harness.text(control)
        store = folder / "recorded.db"
        self.client = rolltape.Client(self._control, self._data, store=store)
        self.start()

    def start(self):
        where = ("--listen", self._data, "--control", self._control, "--store", "recorded.db")
        self._process = harness.Process("serve", "--model", MODEL, *where, folder=self.folder)
        self._process.await_answer(f"http://{self._control}/health")

    def kill(self):
        self._process.kill()

    def stop(self):
        self._process.stop()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    server = Served(tmp_path_factory.mktemp("worker"))
    yield server
    server.stop()


def play(client, group, first=0):
    """The games of a group; its members are rewarded by their turn in it."""
    for member in range(first, first + GROUP_SIZE):
        with rolltape.episode(client, f"{group}-{member}", group_id=group) as episode:
            agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
            game = Game(member % GROUP_SIZE + 1)
            Agent(agent, seed=crc32(f"{group}-{member}".encode())).play(game)
            episode.reward(float(member % GROUP_SIZE))


@contextmanager
def working(client, consumer, **options):
    """A worker that reads, and the groups that it was handed."""
    handed = []
    options = {"group_size": GROUP_SIZE, "on_group": handed.append} | options
    worker = rolltape.trl.RolloutWorker(client, consumer=consumer, **options)
    worker.start()
    try:
        yield worker, handed
    finally:
        worker.stop()


def until(wanted, worker=None):
    end = time.monotonic() + WAIT_S
    while not wanted():
        if worker:
            worker.check_health(WAIT_S)
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_worker_outlives_a_restart_of_the_recorder(served):
    with working(served.client, "outlives", group="later") as (worker, handed):
        until(lambda: worker.feed.standing() is not None, worker)
        served.kill()
        time.sleep(1.5)  # in which it asks, and nobody answers
        worker.check_health(WAIT_S)
        served.start()
        play(served.client, "later")
        until(lambda: handed, worker)
    assert [row["episode_id"] for row in handed[0]] == ["later-0", "later-1"]


def push(client, transfer):
    """The model's own weights under the next version: what is told apart here is the label."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rolltape.trl.transfer, "save_folder", lambda *_: MODEL)
        transfer.send_weights([])
    return client.weight_info()["weight_version"]


def fresh_trainer(client, folder, consumer, **options):
    """The transfer and the worker of a trainer that begins, after its first sync."""
    transfer = rolltape.trl.WeightTransfer(client, folder, kept=None)
    worker = rolltape.trl.RolloutWorker(
        client, consumer=consumer, group_size=GROUP_SIZE, **options
    )
    transfer.init_weight_transfer()
    label = push(client, transfer)
    worker.update_model_version(1)
    return transfer, worker, label


def test_a_trainer_that_begins_again_counts_on_whether_or_not_the_engine_did(served, tmp_path):
    client = served.client
    first = rolltape.trl.WeightTransfer(client, tmp_path, first=17, kept=None)
    assert push(client, first) == "17"
    play(client, "leftover")
    _, _, label = fresh_trainer(client, tmp_path, "same-engine")
    assert label == "18", "1 would have been the name of other weights"
    until(lambda: 18 in [version["number"] for version in client.versions()])
    served.kill()
    served.start()
    assert client.weight_info()["weight_version"] == "default", "this engine remembers nothing"
    wanted = {"group": "leftover", "max_staleness": 2}
    _, worker, label = fresh_trainer(client, tmp_path, "new-engine", **wanted)
    assert (label, worker.before) == ("19", 18)
    worker.start()
    try:
        row, _, _, before = worker.rollout_buffer.get(timeout=WAIT_S)
        assert (row["policy_version_min"], before) == (17, 18), "at 1 it is two versions old"
    finally:
        worker.stop()
    _, strict, _ = fresh_trainer(client, tmp_path, "strict", **wanted)
    strict.start()
    try:
        stale = {"stale": GROUP_SIZE}
        until(lambda: (strict.feed.standing() or {}).get("dropped") == stale, strict)
    finally:
        strict.stop()


def test_a_recorder_with_a_new_store_learns_of_the_engine_how_far_it_is(tmp_path):
    (engine,) = map(harness.text, harness.free_addresses(1))
    token = {"ENGINE_TOKEN": "a-token-of-24-characters"}
    control = {**token, "ROLLTAPE_CONTROL_TOKEN": token["ENGINE_TOKEN"]}
    options = {"model": MODEL, "store": tmp_path / "first.db", "environment": control}
    where = ("--engine-listen", engine, "--control-token-env", "ENGINE_TOKEN")
    with rolltape.Server(*where, **options) as first:
        transfer = rolltape.trl.WeightTransfer(first.client, tmp_path, first=17, kept=None)
        assert push(first.client, transfer) == "17"
        beside = {"upstream": f"http://{engine}", "store": tmp_path / "new.db"}
        key = ("--upstream-key-env", "ENGINE_TOKEN")
        with rolltape.Server(*key, **beside, environment=token) as second:
            assert second.client.versions() == []
            transfer = rolltape.trl.WeightTransfer(second.client, tmp_path, kept=None)
            assert push(second.client, transfer) == "18"


def test_what_the_feed_drops_is_told(served):
    play(served.client, "old")
    told = []
    options = {"group": "old", "max_staleness": 0, "before": 1000, "on_dropped": told.append}
    with working(served.client, "drops", **options) as (worker, handed):
        until(lambda: told, worker)
        play(served.client, "old", first=GROUP_SIZE)
        until(lambda: sum(told) == 2 * GROUP_SIZE, worker)
    assert not handed and worker.feed.standing()["dropped"] == {"stale": 2 * GROUP_SIZE}


def test_a_group_goes_on_without_a_silent_member(served):
    told = []
    options = {"group": "silent", "group_size": GROUP_SIZE + 1, "on_dropped": told.append}
    with rolltape.episode(served.client, "silent-none", group_id="silent") as episode:
        episode.reward(0.0)
    with working(served.client, "silent", **options) as (worker, handed):
        play(served.client, "silent")
        until(lambda: handed, worker)
        until(lambda: worker.feed.standing()["dropped"] == {"member_no_rows": 1}, worker)
        play(served.client, "silent", first=GROUP_SIZE)
        with rolltape.episode(served.client, "silent-last", group_id="silent") as episode:
            episode.reward(0.0)
        until(lambda: worker.feed.standing()["dropped"] == {"member_no_rows": 2}, worker)
        until(lambda: len(handed) == 2, worker)
    assert not told, "no group was dropped"
    assert {row["episode_id"] for row in handed[0]} == {"silent-0", "silent-1"}
    assert {row["group_scored"] for row in handed[0]} == {GROUP_SIZE + 1}


def test_two_groups_of_one_name_are_two(served):
    for first in (0, GROUP_SIZE):
        play(served.client, "twice", first)
    with working(served.client, "twice", group="twice") as (worker, handed):
        until(lambda: len(handed) == 2, worker)
    found = [sorted({row["episode_id"] for row in rows}) for rows in handed]
    assert found == [["twice-0", "twice-1"], ["twice-2", "twice-3"]]


def test_a_part_of_a_group_that_comes_back_is_not_of_the_next_of_its_name(served):
    for first in (0, GROUP_SIZE):
        play(served.client, "parts", first)
    asked = {"unit": "group", "group_size": GROUP_SIZE, "group": "parts"}
    lease = rolltape.Feed(served.client, "parts", **asked).lease(limit=2)
    assert [len({row["episode_id"] for row in rows}) for rows in lease.items] == [2, 2]
    lease.ack([("parts-0", 0)])
    lease.nack()
    with working(served.client, "parts", group="parts") as (worker, handed):
        until(lambda: len(handed) == 2, worker)
    found = [sorted({row["episode_id"] for row in rows}) for rows in handed]
    assert found == [["parts-1"], ["parts-2", "parts-3"]]


@pytest.mark.parametrize("syncs, acked", [(2, 0), (3, GROUP_SIZE)])
def test_what_was_taken_is_acked_three_syncs_later(served, syncs, acked):
    group = f"acked-{syncs}"
    play(served.client, group)
    with working(served.client, group, group=group) as (worker, handed):
        until(lambda: handed, worker)
        for _ in handed[0]:
            worker.rollout_buffer.get(timeout=WAIT_S)
        for version in range(syncs):
            worker.update_model_version(version)
    standing = worker.feed.standing()
    assert (standing["acked"], standing["leased"]) == (acked, 0)


def test_a_lease_is_held_by_the_trainer_s_own_clock(served, monkeypatch):
    play(served.client, "clock")
    wrong = time.time
    monkeypatch.setattr(time, "time", lambda: wrong() - 100_000)
    with working(served.client, "clock", group="clock", lease_s=8) as (worker, handed):
        until(lambda: handed, worker)
        time.sleep(11)
        standing = worker.feed.standing()
        assert (standing["leased"], standing["delivered"]) == (GROUP_SIZE, GROUP_SIZE)
    assert len(handed) == 1


def test_what_comes_after_the_end_is_given_back(served, monkeypatch):
    monkeypatch.setattr(rolltape.trl.worker, "WAIT_S", 20.0)
    monkeypatch.setattr(rolltape.trl.worker, "STOP_WAIT_S", 0.0)
    play(served.client, "late")
    with rolltape.episode(served.client, "late-close", group_id="late") as episode:
        agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
        Agent(agent, seed=1).play(Game(1))
        episode.reward(1.0)
        options = {"group": "late", "group_size": GROUP_SIZE + 1}
        with working(served.client, "late", **options) as (worker, handed):
            until(lambda: worker.feed.standing() is not None, worker)
    worker._thread.join(WAIT_S)
    assert not worker._thread.is_alive() and not handed
    standing = worker.feed.standing()
    assert (standing["nacked"], standing["leased"]) == (GROUP_SIZE + 1, 0)
