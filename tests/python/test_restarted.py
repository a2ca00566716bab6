"""A trainer is killed with leases open, and another one goes on: nothing is lost, nothing twice.

They are in an environment of their own; see `test_trainers.py`.
"""

import json
import queue
import subprocess
import threading
import time
from zlib import crc32

import openai
import pytest

import harness
import test_trainers
from game import Agent, Game
from package import rolltape

pytestmark = test_trainers.pytestmark

GROUP_SIZE = 4
GROUPS = 10
LATER_GROUPS = 2
STEPS = 4
ACKED_GROUPS = 2
"""Of four steps: those two were taken after the first sync, and the trainer stands still after the
fourth, which is three later."""
WAIT_S = 120


def play(client, group):
    """The games of a group."""
    for member in range(GROUP_SIZE):
        with rolltape.episode(client, f"{group}-{member}", group_id=group) as episode:
            agent = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key)
            game = Game(member + 1)
            Agent(agent, seed=crc32(f"{group}-{member}".encode())).play(game)
            episode.reward(game.reward)


def command(client, out, steps, way):
    script = test_trainers.FOLDER / "restarted.py"
    where = (client.http.url, client.data, out)
    return [str(word) for word in (test_trainers.PYTHON, script, *where, steps, way)]


def environment(token):
    offline = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    return harness.environment(ROLLTAPE_CONTROL_TOKEN=token, **offline)


def killed(client, out):
    """Runs a trainer until it stands still, kills it, and gives the groups that it was handed."""
    reader = rolltape.Feed(client, "trainer")
    with open(out / "killed.stderr", "w") as log:
        process = subprocess.Popen(
            command(client, out, STEPS, "killed"),
            env=environment(client.http.token), stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    said = queue.Queue()
    read = threading.Thread(target=lambda: [said.put(line) for line in process.stdout], daemon=True)
    read.start()
    try:
        handed = said_last(said, out)
        await_standing(reader, lambda now: now["acked"] == ACKED_GROUPS * GROUP_SIZE)
    finally:
        process.kill()
        process.wait()
    return handed["handed"], reader.standing()


def said_last(said, out):
    """The object that a trainer prints; other things are printed before it."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        try:
            line = said.get(timeout=1)
        except queue.Empty:
            continue
        if line.startswith('{"handed"'):
            return json.loads(line)
    raise AssertionError((out / "killed.stderr").read_text()[-5000:])


def await_standing(reader, wanted):
    until = time.monotonic() + WAIT_S
    while not wanted(reader.standing()):
        assert time.monotonic() < until, reader.standing()
        time.sleep(0.05)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the two trainers were handed, and how the feed stood in between."""
    out = tmp_path_factory.mktemp("restarted")
    names = [f"g{number}" for number in range(GROUPS)]
    with rolltape.Server(model=harness.MODEL, store=out / "rolltape.db") as server:
        client = server.client
        for name in names:
            play(client, name)
        handed, standing = killed(client, out)
        reader = rolltape.Feed(client, "trainer")
        await_standing(reader, lambda now: now["leased"] == 0)
        between = reader.standing()
        later = [f"later{number}" for number in range(LATER_GROUPS)]
        for name in later:
            play(client, name)
        # It fetches a batch ahead, so the last group is taken and not trained.
        left = GROUPS - ACKED_GROUPS + LATER_GROUPS
        found = subprocess.run(
            command(client, out, left - 1, "after"),
            env=environment(client.http.token), timeout=test_trainers.WAIT_S,
            capture_output=True, text=True,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr[-5000:]
        after = json.loads(found.stdout.splitlines()[-1])
        yield {
            "names": names,
            "later": later,
            "handed": handed,
            "killed": standing,
            "between": between,
            "after": after,
            "end": reader.standing(),
        }


def groups(handed):
    return [group for group, _ in handed]


def test_a_trainer_that_is_killed_holds_leases_until_they_end(told):
    assert groups(told["handed"]) == told["names"], "all of them, once, in their order"
    held = (GROUPS - ACKED_GROUPS) * GROUP_SIZE
    assert (told["killed"]["leased"], told["killed"]["depth"]) == (held, 0)
    assert (told["between"]["leased"], told["between"]["depth"]) == (0, held)


def test_the_next_one_gets_every_group_that_was_not_acked_and_none_that_was(told):
    acked, rest = told["names"][:ACKED_GROUPS], told["names"][ACKED_GROUPS:]
    assert groups(told["after"]["handed"]) == [*rest, *told["later"]]
    assert not set(acked) & set(groups(told["after"]["handed"]))
    end = told["end"]
    assert end["acked"] + end["depth"] == (GROUPS + LATER_GROUPS) * GROUP_SIZE
    assert (end["leased"], end["dropped"]) == (0, {})
    assert end["redelivered"] == told["between"]["depth"]


def test_versions_go_on_from_those_of_the_one_before(told):
    before = told["after"]["before"]
    assert before == STEPS, "one before the first step, one after each but the last"
    assert told["after"]["version"] == before + 1 + len(told["after"]["handed"]) - 1
    sampled = told["after"]["handed"][-LATER_GROUPS:]
    assert sampled == [[name, [before]] for name in told["later"]], "the weights that it left"


def test_what_is_too_old_is_dropped_and_counted(told):
    assert groups(told["after"]["again"]) == told["later"]
    standing = told["after"]["again_standing"]
    assert standing["dropped"] == {"stale": GROUPS * GROUP_SIZE}
    assert told["after"]["again_samples"] == LATER_GROUPS * GROUP_SIZE
