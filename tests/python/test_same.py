"""Two replies that say the same are found equal, and two that do not are found unequal."""

import json

import pytest

from http1 import Message
from servers import same


def stream(*documents, request_id="cmpl-8282b7f47aefedf5", created=1, server="vllm"):
    """A stream of the Completions wire; each document gets the id and the time."""
    told = {"id": request_id, "object": "text_completion", "created": created, "model": "tiny"}
    events = [json.dumps(told | one, separators=(",", ":")) for one in documents]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    headers = (("content-type", "text/event-stream"), ("server", server))
    return Message("HTTP/1.1 200 OK", headers, body.encode(), True)


def piece(text, **more):
    """A document with a piece of the first choice."""
    return {"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None} | more]}


def usage(tokens):
    """The document behind the last choice."""
    return {"choices": [], "usage": {"prompt_tokens": 21, "completion_tokens": tokens}}


END = piece("6", finish_reason="length")
DIRECT = stream(piece("6"), piece("7"), END, usage(3))
LATER = {"request_id": "cmpl-acd8dcc1393c60a9", "created": 2}


def test_ids_and_times_are_not_compared():
    assert same.equal(DIRECT, stream(piece("6"), piece("7"), END, usage(3), **LATER))


def test_a_stream_is_the_same_wherever_it_is_cut():
    through = stream(piece("67"), END, usage(3), **LATER)
    assert not same.equal(DIRECT, through)
    assert same.equal_joined(DIRECT, through)


@pytest.mark.parametrize(
    "through",
    [
        stream(piece("66"), END, usage(3), **LATER),
        stream(piece("67"), piece("6", finish_reason="stop"), usage(3), **LATER),
        stream(piece("67"), END, usage(4), **LATER),
        stream(piece("67"), END, **LATER),
        stream(piece("67"), END, usage(3), server="another", **LATER),
    ],
    ids=["text", "finish reason", "usage", "no usage", "header"],
)
def test_streams_that_differ_are_not_the_same(through):
    assert not same.equal_joined(DIRECT, through)
