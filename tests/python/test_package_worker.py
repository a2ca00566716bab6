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
    monkeypatch.setattr(rolltape.trl.worker, "to_sample", lambda row, *_: row)


class Served:
    """`rolltape serve` that can be killed and started again where it was."""

    def __init__(self, folder):
        self.folder = folder
        data, control = harness.free_addresses(2)
        self._data, self._control = harness.text(data), harness.text(control)
        self.client = rolltape.Client(self._control, self._data)
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


def play(client, group, members=GROUP_SIZE):
    """The games of a group, told apart by their secrets."""
    for member in range(members):
        with rolltape.episode(client, f"{group}-{member}", group_id=group) as episode:
            agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
            game = Game(member + 1)
            Agent(agent, seed=crc32(f"{group}-{member}".encode())).play(game)
            episode.reward(float(member))


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
