"""The tapes are as their script writes them, and as real servers speak."""

import json
import re
import subprocess
import sys

import pytest

import harness

TAPES = harness.ROOT / "tests" / "tapes"
sys.path.insert(0, str(TAPES))

import held  # noqa: E402


def test_every_tape_is_as_its_script_writes_it():
    line = [sys.executable, TAPES / "make.py", "--check"]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def told():
    """Every difference between a tape and the real replies of its server."""
    return list(held.told_of_all())


def test_tapes_have_the_fields_that_real_servers_send_in_their_order(told):
    assert [one for one in told if held.reason(one) is None] == []


def test_every_exception_is_needed(told):
    idle = [pattern for pattern, _ in held.UNHELD if not any(re.search(pattern, o) for o in told)]
    assert idle == []


REPLY = '{"id":"a","choices":[{"index":0,"text":"x","logprobs":null}],"usage":{"n":1}}'


@pytest.mark.parametrize(
    "tape",
    [
        REPLY.replace('"id":"a",', ""),
        REPLY.replace('"index":0,"text":"x"', '"text":"x","index":0'),
        REPLY.replace('"logprobs":null', '"logprobs":{}'),
        REPLY.replace('"usage":{"n":1}', '"usage":{"n":1},"more":1'),
        REPLY.replace('"usage"', '"used"'),
    ],
)
def test_a_field_that_is_missing_moved_filled_or_added_is_told(tape):
    everywhere = held.paths(held.shape(REPLY))
    assert held.differences(REPLY, everywhere, REPLY) == []
    assert held.differences(tape, everywhere, REPLY)


def test_events_of_a_stream_are_compared_by_their_names():
    one = 'event: a\ndata: {"x":1}\n\nevent: b\ndata: {"y":1}\n\ndata: [DONE]\n\n'
    other = one.replace("event: b", "event: c")
    assert held.differences(other, held.paths(held.shape(one)), None)


def test_real_replies_are_of_every_wire_that_a_tape_is_of():
    cases = held.real()
    for entry in json.loads((TAPES / "index.json").read_text()):
        if entry["upstream"] in held.SERVERS:
            assert any(name.startswith(f"{entry['upstream']}/{entry['wire']}/") for name in cases)
