"""What two replies may differ in, and what they may not."""

import pytest

import http1
from servers import same


def stream(*chunks):
    """A reply with these events."""
    body = "".join(f"data: {chunk}\n\n" for chunk in (*chunks, "[DONE]")).encode()
    return http1.Message(
        "HTTP/1.1 200 OK", (("content-type", "text/event-stream"),), body, whole=True
    )


def chunk(content, finish="null", index=0):
    """A chunk of a chat."""
    return (
        f'{{"id":"chatcmpl-0123456789","created":1,"choices":[{{"index":{index},'
        f'"delta":{{"content":"{content}"}},"finish_reason":{finish}}}]}}'
    )


def call(arguments, name=""):
    """A chunk of a tool call."""
    named = f'"id":"call_{len(arguments)}abcdefgh","type":"function",' if name else ""
    function = f'"name":"{name}","arguments":"{arguments}"' if name else f'"arguments":"{arguments}"'
    return (
        '{"id":"chatcmpl-0123456789","choices":[{"index":0,"delta":{"tool_calls":[{"index":0,'
        f'{named}"function":{{{function}}}}}]}},"finish_reason":null}}]}}'
    )


def test_ids_and_times_do_not_count_but_their_order_does():
    one = b'{"id":"chatcmpl-aaaaaaaa","created":1,"x":[{"id":"call_bbbbbbbb"}]}'
    other = b'{"id":"chatcmpl-cccccccc","created":22,"x":[{"id":"call_dddddddd"}]}'
    assert same.masked(one) == same.masked(other)
    twice = b'{"id":"chatcmpl-cccccccc","created":22,"x":[{"id":"call_cccccccc"}]}'
    assert same.masked(one) != same.masked(twice)
    assert same.masked(one) != same.masked(one.replace(b"call_", b"chatcmpl-"))


def test_streams_that_are_cut_elsewhere_say_the_same():
    two = stream(chunk("a"), chunk("b"), chunk("", '"stop"'))
    one = stream(chunk("ab"), chunk("", '"stop"'))
    assert not same.equal(one, two) and same.equal_joined(one, two)
    pieces = stream(call("", "guess"), call("{n"), call(": 4}"))
    assert same.equal_joined(pieces, stream(call("{n", "guess"), call(": 4}")))


@pytest.mark.parametrize(
    "other",
    [
        stream(chunk("a"), chunk("c"), chunk("", '"stop"')),
        stream(chunk("a"), chunk("b"), chunk("", '"length"')),
        stream(chunk("a"), chunk("b", index=1), chunk("", '"stop"')),
        stream(chunk("a"), chunk("b"), chunk("", '"stop"'), '{"choices":[],"usage":{"n":1}}'),
        stream(chunk("a"), chunk("b"), chunk("", '"stop"').replace('"delta"', '"more":1,"delta"')),
    ],
)
def test_a_text_an_end_a_choice_or_a_field_that_differs_is_told(other):
    one = stream(chunk("a"), chunk("b"), chunk("", '"stop"'))
    assert not same.equal(one, other) and not same.equal_joined(one, other)
