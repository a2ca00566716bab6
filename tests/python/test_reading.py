"""Reading a recording with the package, on a running server and on `rolltape view`."""

import re
import subprocess
import threading

import openai
import pytest

import harness
from package import rolltape

MANY = 250
"""More attempts than a page has."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A recorder in front of the tiny model."""
    store = tmp_path_factory.mktemp("reading") / "rolltape.db"
    with rolltape.Server(model=harness.MODEL, store=store) as running:
        yield running


def say(server, episode, text, **more):
    """One chat in an episode; gives the answer's text."""
    with rolltape.episode(server.client, episode, **more) as known:
        agent = openai.OpenAI(base_url=known.base_url, api_key=known.api_key, max_retries=0)
        messages = [{"role": "user", "content": text}]
        reply = agent.chat.completions.create(model="tiny", messages=messages, max_tokens=6, seed=1)
        known.reward(1.0)
    return reply.choices[0].message.content


def same_in_both(server, view, path):
    """What a server and `rolltape view` answer, which is the same."""
    one, other = server.client.recording, view
    found = path(one)
    assert path(other) == found
    return found


@pytest.fixture(scope="module")
def view(server, tmp_path_factory):
    """A reader of `rolltape view` on the same store."""
    folder = tmp_path_factory.mktemp("view")
    process = harness.Process(
        "view", "--store", server.store, "--tokenizer", harness.MODEL, folder=folder,
        stdout=subprocess.PIPE,
    )
    link = re.match(r"(http://[\d.:]+)/#token=(\S+)", process.child.stdout.readline().decode())
    client = rolltape.Client(link[1], link[1], token=link[2])
    yield client.recording
    process.end_well()


def test_an_episode_is_read_to_its_tokens(server, view):
    said = say(server, "read", "Hello Zebra", group_id="g1")
    tree = same_in_both(server, view, lambda recording: recording.tree("read"))
    assert (tree["verdict"], tree["episode"]["group_id"]) == ("exact", "g1")
    (turn,) = tree["turns"]
    assert turn["heard"] == "user: Hello Zebra"

    call_id = turn["call_id"]
    call = same_in_both(server, view, lambda recording: recording.call(call_id))
    assert call["choices"][0]["message"]["content"] == said
    tokens = same_in_both(server, view, lambda recording: recording.tokens(call_id))
    sampled = tokens["texts"][tokens["prompt_tokens"] :]
    assert "".join(sampled).startswith(said) and sum(tokens["mask"]) == len(sampled)
    assert b"Hello Zebra" in server.client.recording.request(call_id)
    assert said.encode() in server.client.recording.reply(call_id)
    (hit,) = view.search("zebra")
    assert (hit["episode_id"], hit["match"]) == ("read", "Zebra")
    (group,) = view.groups(name="g1")
    assert (group["scored"], group["mean"]) == (1, 1.0)
    assert view.stats()["totals"]["scored"] >= 1


def test_a_list_goes_on_over_pages(server, view):
    for number in range(MANY):
        server.client.announce(f"many-{number:03}", task_id="many")
    names = [found["episode_id"] for found in view.episodes(task="many", sort="name")]
    assert names == [f"many-{number:03}" for number in range(MANY)]
    assert len(list(view.episodes(task="many", limit=201))) == 201


def test_what_is_missing_is_a_404(server):
    recording = server.client.recording
    for ask in (lambda: recording.tree("gone"), lambda: recording.reply("gone")):
        with pytest.raises(rolltape.RolltapeError) as refused:
            ask()
        assert refused.value.status == 404
    with pytest.raises(rolltape.RolltapeError) as refused:
        list(recording.episodes(colour="red"))
    assert refused.value.status == 400 and "`colour` is not a parameter" in str(refused.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("which", ["server", "view"])
def test_events_are_live(server, view, which):
    recording = view if which == "view" else server.client.recording
    name = f"live-{which}"
    events = recording.events(episode=name, text=1)
    begun = threading.Timer(1.0, say, (server, name, "Now"))
    begun.start()
    kinds = []
    for kind, event in events:
        kinds.append(kind)
        assert event["episode_id"] == name
        if kind == "call" and event["outcome"]:
            assert (event["outcome"], event["heard"]) == ("complete", "user: Now")
        if kind == "episode" and event["state"] != "open":
            break
    events.close()
    begun.join()
    assert {"call", "reward", "episode"} <= set(kinds)
