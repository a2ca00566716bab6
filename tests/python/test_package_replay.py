"""The package `rolltape`: replays and branches, and how the terminal shows them."""

import json
import subprocess

import openai
import pytest

import harness
from harness import MODEL, environment
from package import rolltape

ASKED = ["Guess a number.", "Higher.", "Lower."]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A recorder in front of the tiny model, started by the package."""
    store = tmp_path_factory.mktemp("replay") / "rolltape.db"
    with rolltape.Server(model=MODEL, store=store) as running:
        yield running


@pytest.fixture(scope="module")
def recorded(server):
    """The answers of a recorded episode of three turns: `run`."""
    with rolltape.episode(server.client, "run") as episode:
        return talk(episode)


def talk(episode, asked=ASKED):
    """A chat of which each turn has the answers before it; what was answered."""
    client = openai.OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0)
    messages, answers = [], []
    for text in asked:
        messages.append({"role": "user", "content": text})
        made = client.chat.completions.create(
            model="tiny", messages=messages, max_tokens=8, seed=1
        )
        answer = made.choices[0].message.model_dump(exclude_none=True)
        messages.append(answer)
        answers.append(answer)
    return answers


def terminal(server, *words):
    """What a command of rolltape prints of the server's store."""
    run = [harness.binary(), *words, "--store", str(server.store)]
    return subprocess.run(
        run, env=environment(), capture_output=True, text=True, check=True
    ).stdout


def test_a_recording_answers_an_episode(server, recorded):
    replay = rolltape.Replay("run")
    with rolltape.episode(server.client, "again", replay=replay) as episode:
        assert talk(episode) == recorded
        state = server.client.show("again")["replay"]
        assert (state["source"], state["given"]) == ("run/0", 3)
        with pytest.raises(openai.ConflictError):
            talk(episode, ["Something else."])
    tree = server.client.recording.tree("again")
    assert rolltape.Replay(**tree["episode"]["replay"]) == replay
    assert tree["sampled_tokens"] == tree["episode"]["completion_tokens"] == 0


@pytest.mark.usefixtures("recorded")
def test_a_replay_is_announced(server):
    replay = rolltape.Replay("run", mode="loose", ignore=["clocks"], keeps_time=True)
    with pytest.raises(ValueError, match="announced"):
        with rolltape.episode(server.client, "silent", announce=False, replay=replay):
            pass
    server.client.announce("loose", replay=replay)
    assert server.client.show("loose")["replay"]["mode"] == "loose"
    with pytest.raises(rolltape.RolltapeError, match="no recorded attempt `absent/0`"):
        server.client.announce("none", replay=rolltape.Replay("absent"))


def test_branches_go_on_from_a_turn(server, recorded):
    replay = rolltape.Replay("run", until=2)
    for number, branch in enumerate(rolltape.fork(server.client, replay, attempts=2)):
        answers = talk(branch, [*ASKED[:2], f"Branch {number}."])
        assert answers[:2] == recorded[:2]
        branch.reward(float(number))
    assert server.client.show("run.turn2", 1)["status"] == "completed"
    assert server.client.show("run.turn2", 1)["group_id"] == "run.turn2"

    tree = server.client.recording.tree("run.turn2", 0)
    calls = [turn["call_id"] for turn in server.client.recording.tree("run")["turns"]]
    assert [turn["replayed"] for turn in tree["turns"]] == [*calls[:2], None]
    sibling = {"episode_id": "run.turn2", "attempt": 1, "until": 2, "reward": 1.0}
    assert tree["siblings"] == [{**sibling, "state": "completed"}]


@pytest.mark.usefixtures("recorded")
def test_a_branch_whose_loop_is_left_has_failed(server):
    replay = rolltape.Replay("run", until=1)
    with pytest.raises(ZeroDivisionError):
        for _ in rolltape.fork(server.client, replay, episode_id="left", group_id="g"):
            raise ZeroDivisionError
    assert server.client.show("left")["status"] == "failed"
    with pytest.raises(ValueError, match="until"):
        next(rolltape.fork(server.client, rolltape.Replay("run")))


@pytest.mark.usefixtures("recorded")
def test_the_terminal_tells_a_branch_from_its_source(server):
    replay = rolltape.Replay("run", until=2)
    with rolltape.episode(server.client, "branch", replay=replay) as branch:
        talk(branch, [*ASKED[:2], "Which are left?"])
    head, *_ = page = terminal(server, "show", "branch").splitlines()
    assert head.startswith("branch attempt 0")
    assert "replay of run/0, live from turn 3" in page
    turns = [line for line in page if line.startswith("#")]
    assert [" | given again" in line for line in turns] == [True, True, False]
    assert "! replayed" not in "\n".join(page)
    drawn = terminal(server, "show", "branch", "--tree").splitlines()
    assert "replay of run/0, live from turn 3" in drawn[0]
    assert drawn[1].startswith("#1 given again ") and "sampled" in drawn[3]

    listed = terminal(server, "episodes", "--episode", "branch").splitlines()
    assert "replay of" in listed[0] and "run/0 live from 3" in listed[1]
    told = json.loads(terminal(server, "diff", "branch", "--json"))
    names = [(told[side]["episode_id"], told[side]["attempt"]) for side in ("a", "b")]
    assert names == [("run", 0), ("branch", 0)]
    assert told["same_messages"] == 4
    assert "Which are left?" in told["differences"][0]["b"]["text"]
    turn = json.loads(terminal(server, "show", "branch", "--json").splitlines()[0])
    call = json.loads(terminal(server, "show", "branch", "--call", "1"))
    assert turn["replayed"] == call["replayed"] is not None
