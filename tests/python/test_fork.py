"""Forks: attempts of the game that share the turns of a recorded one, and go on by themselves."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import openai
import pyarrow.parquet as pq
import pytest

import control
import harness
from game import Agent, Game
from harness import MODEL

AGENT = [sys.executable, str(Path(__file__).with_name("agent.py"))]
SECRET = 1
SEED = 2
TURNS = 4
"""Three guesses and a word to close: with that seed the game is lost."""
REWARDS = (1.0, 0.0, 0.5)
MEET = """
touch "$ROLLTAPE_ATTEMPT.here"
for _ in $(seq 300); do
    [ -e 0.here ] && [ -e 1.here ] && exec "$@"
    sleep 0.1
done
exit 9
"""
"""A branch that begins when another one runs beside it."""

pytestmark = pytest.mark.timeout(180)


def play(proxy, episode, attempt=0, seed=None):
    """Plays one game as an attempt; gives the number of its calls."""
    url = proxy.base_url(f"{episode}/a/{attempt}")
    agent = Agent(openai.OpenAI(base_url=url, api_key="none", max_retries=0), seed=seed)
    agent.play(Game(SECRET))
    return len(agent.reply_ids)


def exported(folder, store, *arguments):
    """Exported rows, by episode and attempt."""
    harness.done("export", "--store", store, "--out", folder, *arguments, folder=folder.parent)
    rows = pq.read_table(folder / "trajectories.parquet").to_pylist()
    return {(row["episode_id"], row["attempt"]): row for row in rows}


def calls(store, episode):
    """The view `calls` of an episode, in the order in which they began."""
    order = "ORDER BY attempt, started_at, call_id"
    with sqlite3.connect(store) as connection:
        connection.row_factory = sqlite3.Row
        query = f"SELECT * FROM calls WHERE episode_id = ? {order}"
        return [dict(row) for row in connection.execute(query, (episode,))]


@pytest.fixture(scope="module")
def source(world, tmp_path_factory):
    """A recorded game of all guesses, and its row."""
    episode = "played-once"
    assert play(world.proxy, episode, seed=SEED) == TURNS
    folder = tmp_path_factory.mktemp("source")
    row = exported(folder / "out", world.proxy.store, "--episode", episode)[episode, 0]
    assert (row["kind"], len(row["turns"])) == ("main", TURNS)
    return episode, row


@pytest.fixture(scope="module", params=range(1, TURNS))
def forked(request, source, world, tmp_path_factory):
    """Branches from a turn of that game, each with a reward: the turn, and a row a branch."""
    turn, (episode, _) = request.param, source
    branches = f"{episode}.turn{turn}"
    replay = {"episode_id": episode, "until": turn, "ignore": ["/seed"]}
    for attempt, value in enumerate(REWARDS):
        told = {"episode_id": branches, "attempt": attempt, "group_id": branches}
        status, said = control.post(world.proxy, "/episodes", {**told, "replay": replay})
        assert status == 200, said
        answered = len(world.tap.generations())
        made = play(world.proxy, branches, attempt)
        live = len(world.tap.generations()) - answered
        assert live == made - turn > 0, "the recording gave the others"
        rewards = f"/episodes/{branches}/rewards?attempt={attempt}"
        assert control.post(world.proxy, rewards, {"value": value})[0] == 200

    folder = tmp_path_factory.mktemp("forked")
    options = ("--episode", branches, "--advantage", "grpo")
    rows = exported(folder / "out", world.proxy.store, *options)
    assert list(rows) == [(branches, attempt) for attempt in range(len(REWARDS))], "a row a branch"
    return turn, list(rows.values())


def test_branches_share_the_recorded_ids_to_the_bit(source, forked):
    """Prompts of live calls begin with them: nothing was encoded anew."""
    _, recorded = source
    turn, rows = forked
    end = recorded["turns"][turn - 1]["end"]
    for row in rows:
        assert row["input_ids"][:end] == recorded["input_ids"][:end]
        spans = [[(t["start"], t["end"]) for t in r["turns"][:turn]] for r in (row, recorded)]
        assert spans[0] == spans[1], "turn by turn"
        live = row["turns"][turn]["start"]
        assert row["input_ids"][:live] == recorded["input_ids"][: recorded["turns"][turn]["start"]]


def test_only_what_a_branch_sampled_is_trained(source, forked):
    _, recorded = source
    turn, rows = forked
    for row in rows:
        assert row["fork_position"] == recorded["turns"][turn - 1]["end"]
        assert row["parent_trajectory_id"] == recorded["trajectory_id"]
        own = {at for t in row["turns"][turn:] for at in range(t["start"], t["end"])}
        assert {at for at, mask in enumerate(row["loss_mask"]) if mask} == own
        assert min(own) > row["fork_position"] and row["row_weight"] == 1.0


def test_the_recorded_logprobs_stay_beside_the_shared_tokens(source, forked):
    _, recorded = source
    turn, rows = forked
    end = recorded["turns"][turn - 1]["end"]
    for row in rows:
        assert row["logprobs"][:end] == recorded["logprobs"][:end]


def test_branches_are_one_group_with_advantages(forked):
    turn, rows = forked
    assert {row["group_id"] for row in rows} == {rows[0]["episode_id"]}
    assert [row["reward"] for row in rows] == list(REWARDS)
    advantages = [row["advantage"] for row in rows]
    assert advantages[0] > 0 > advantages[1] and advantages[2] == pytest.approx(0, abs=1e-9)


def test_replayed_calls_name_their_source(source, forked, world):
    episode, _ = source
    turn, rows = forked
    known = [call["call_id"] for call in calls(world.proxy.store, episode)]
    made = calls(world.proxy.store, rows[0]["episode_id"])
    for attempt in range(len(REWARDS)):
        given = [call["replayed"] for call in made if call["attempt"] == attempt]
        assert given[:turn] == known[:turn] and set(given[turn:]) == {None}


def test_the_command_runs_branches_with_a_model_of_its_own(tmp_path):
    """The store is all that is left of the recording."""
    store = ("--store", tmp_path / "own.db")
    game = (*AGENT, "--secret", SECRET, "--seed")
    run = ("run", "--model", MODEL, *store, "--episode", "e", "--", *game, SEED)
    harness.done(*run, folder=tmp_path)
    words = ("--turn", 2, "--attempts", 2, "--then", MODEL, *store, "--ignore", "/seed")
    both = ("sh", "-c", MEET, "branch", *game, "-1")
    harness.done("fork", "e", *words, "--jobs", 2, "--", *both, folder=tmp_path)

    rows = exported(tmp_path / "out", store[1])
    recorded = rows["e", 0]
    end = recorded["turns"][1]["end"]
    for attempt in range(2):
        row = rows["e.turn2", attempt]
        assert row["group_id"] == "e.turn2"
        assert row["input_ids"][:end] == recorded["input_ids"][:end]
        assert (row["fork_position"], sum(row["loss_mask"][:end])) == (end, 0)
        assert row["parent_trajectory_id"] == recorded["trajectory_id"]


def test_no_branch_begins_behind_a_signal(tmp_path):
    """The running one gets it, and the store is whole."""
    store = ("--store", tmp_path / "own.db")
    agent = (*AGENT, "--secret", SECRET, "--seed", SEED)
    harness.done("run", "--model", MODEL, *store, "--episode", "e", "--", *agent, folder=tmp_path)
    command = ("sh", "-c", 'touch "$ROLLTAPE_ATTEMPT.here"; exec sleep 60')
    words = [harness.binary(), "fork", "e", "--turn", 1, "--attempts", 3, *store, "--", *command]
    with subprocess.Popen([str(word) for word in words], cwd=tmp_path) as fork:
        harness.until("the first branch runs", (tmp_path / "0.here").exists)
        fork.terminate()
        assert fork.wait(60) == 1
    assert not (tmp_path / "1.here").exists()
    assert {call["attempt"] for call in calls(store[1], "e.turn1")} <= {0}


def test_a_command_that_ends_within_the_recording_is_no_branch(tmp_path):
    store = ("--store", tmp_path / "own.db")
    agent = (*AGENT, "--secret", SECRET, "--seed", SEED)
    harness.done("run", "--model", MODEL, *store, "--episode", "e", "--", *agent, folder=tmp_path)
    words = ("--turn", TURNS, "--attempts", 1, "--then", MODEL, *store)
    ended = harness.command("fork", "e", *words, "--", *agent, folder=tmp_path)
    assert ended.returncode == 1
    assert "e.turn4/0 is no branch: it made no call behind the recorded turns" in ended.stderr
    assert "1 of 1 branches failed" in ended.stderr
