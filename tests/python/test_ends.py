"""Calls that end otherwise than well: an agent that leaves, a recorder that stops or dies."""

import json
import signal
import sqlite3
from contextlib import contextmanager

import openai
import pytest

import harness
from game import QUESTION, Agent
from tap import Tap

LONG = {
    "model": "tiny",
    "messages": [{"role": "user", "content": QUESTION}],
    "max_tokens": 900,
    "stream": True,
    "extra_body": {"ignore_eos": True},
}
STARTS = 20
HELD_AFTER_BYTES = 2 << 10
"""The first chunks of a reply of tens of KB at the least."""


@pytest.fixture
def own_world(tmp_path):
    """A chain that a test may break."""
    with harness.world(tmp_path) as running:
        yield running


@contextmanager
def tapped(backend):
    """A tap on the line to an engine."""
    tap = Tap(backend)
    try:
        yield tap
    finally:
        tap.stop()


def begin(proxy, episode, chunks=3):
    """Begins a long stream; gives the stream once a few chunks have come. All of it may have been
    sampled by then: where it must not be whole, a tap holds it."""
    client = openai.OpenAI(base_url=proxy.base_url(episode), api_key="k", max_retries=0)
    stream = client.chat.completions.create(**LONG)
    events = iter(stream)
    for _ in range(chunks):
        next(events)
    return stream, events


def ended_call(store, episode):
    """The one call of an episode, once it has ended."""

    def ended():
        with sqlite3.connect(store) as connection:
            connection.row_factory = sqlite3.Row
            query = "SELECT * FROM calls WHERE episode_id = ? AND outcome IS NOT NULL"
            return connection.execute(query, (episode,)).fetchall()

    (call,) = harness.until(f"the end of the call of {episode}", ended)
    return dict(call)


def summary(proxy, episode):
    """What `rolltape episodes` says of one episode."""
    said = proxy.command("episodes", "--episode", episode, "--json")
    return json.loads(said)


def test_an_agent_that_leaves_ends_the_call_and_keeps_what_was_sampled(own_world):
    own_world.tap.hold_after(HELD_AFTER_BYTES)
    stream, _ = begin(own_world.proxy, "left", chunks=1)
    stream.close()
    call = ended_call(own_world.proxy.store, "left")
    assert call["outcome"] == "client_gone"
    (exchange,) = harness.until("the end of the upstream's connection", own_world.tap.left)
    assert not exchange.reply.whole, "the upstream was told to stop"
    own_world.tap.release()
    # Another agent's call trains; the one that was left does not.
    agent = Agent(openai.OpenAI(base_url=own_world.proxy.base_url("stayed"), api_key="k"))
    agent.ask()
    out = own_world.proxy.folder / "out"
    report = json.loads(own_world.proxy.command("export", "--out", out, "--json"))
    assert report["reasons"].get("client_gone") == 1
    assert 0 < report["trained_tokens"] <= 24


def test_a_stop_lets_a_stream_end(own_world):
    """SIGTERM comes while the agent listens: it hears the rest, and the call is whole."""
    _, events = begin(own_world.proxy, "drained")
    own_world.proxy.process.child.send_signal(signal.SIGTERM)
    last = [chunk for chunk in events if chunk.choices][-1]
    assert last.choices[0].finish_reason == "length"
    assert own_world.proxy.process.stop() == 0, own_world.proxy.process.stderr
    call = ended_call(own_world.proxy.store, "drained")
    assert (call["outcome"], call["completion_tokens"]) == ("complete", 900)


def test_a_second_signal_ends_the_calls_and_records_them(own_world):
    """The first says how many calls are waited for; the second waits no longer."""
    process = own_world.proxy.process
    own_world.tap.hold_after(HELD_AFTER_BYTES)
    stream, _ = begin(own_world.proxy, "hurried", chunks=1)
    process.child.send_signal(signal.SIGINT)
    harness.until("a word about the call", lambda: "1 call in flight" in process.stderr)
    assert process.child.poll() is None
    assert process.stop(signal.SIGINT) == 0, process.stderr
    call = ended_call(own_world.proxy.store, "hurried")
    assert call["outcome"] == "client_gone"
    report = own_world.proxy.command("verify", "--json")
    assert json.loads(report)["clean"], report
    stream.close()


def test_a_killed_recorder_leaves_a_visible_hole(tmp_path):
    """What was recorded before is whole, the call under way is known to be lost, and the store
    serves on."""
    with harness.engine(tmp_path) as backend, tapped(backend) as tap:
        upstream = ("--upstream", tap.url)
        with harness.serve(tmp_path, *upstream) as first:
            agent = Agent(openai.OpenAI(base_url=first.base_url("killed"), api_key="k"))
            agent.ask()
            tap.hold_after(HELD_AFTER_BYTES)
            _, events = begin(first, "killed", chunks=1)
            first.process.kill()
            with pytest.raises(openai.APIConnectionError):
                list(events)
        tap.release()
        with harness.serve(tmp_path, *upstream) as second:
            assert second.store == first.store
            found = summary(second, "killed")
            assert (found["calls"], found["incomplete"]) == (2, 1)
            out = tmp_path / "out"
            report = json.loads(second.command("export", "--out", out, "--json"))
            assert report["reasons"] == {"lost_call": 1}
            Agent(openai.OpenAI(base_url=second.base_url("after"), api_key="k")).ask()
            assert summary(second, "after")["incomplete"] == 0


def test_chunks_are_relayed_as_they_arrive(own_world):
    """The agent has the first chunk while the rest of the reply is held back. Tokens that end no
    character have no chunk; how many those are is left to chance."""
    own_world.tap.hold_after(HELD_AFTER_BYTES)
    _, events = begin(own_world.proxy, "relayed", chunks=1)
    (exchange,) = own_world.tap.generations()
    assert not exchange.reply.whole
    own_world.tap.release()
    *_, last = [chunk for chunk in events if chunk.choices]
    assert last.choices[0].finish_reason == "length"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_a_stop_right_after_the_start_is_a_clean_one(tmp_path, number):
    """Whoever answers can be stopped: signals are listened for before anything else is."""
    for _ in range(STARTS):
        with harness.serve(tmp_path, "--upstream", "http://127.0.0.1:9") as proxy:
            assert proxy.process.stop(number) == 0
