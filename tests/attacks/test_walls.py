"""Walls that hold for what is long, coded or slow as well."""

import json
import random
import time

import pytest

import costs
import harness
import hostile
import http1
import lines
import paths

MIB = 1 << 20
KEY = "sk-own-6d1f0b7ca93e4258"
BODY_S = 3
PRIORITY = b'"priority":-7'


# Bodies that are longer than what is kept.


@pytest.fixture
def short(serve):
    """A server that keeps little of a body and does not wait long for the rest of it."""
    quick = harness.environment(ROLLTAPE_BODY_WAIT_S=str(BODY_S))
    return serve("--dialect", "openai", "--request-mib", "1", env=quick)


def long_body(length):
    """The head and the kept beginning of a body of so many bytes, and a little of its rest."""
    return lines.head("POST", hostile.CHAT, length) + b"[" + b" " * (MIB + 1000)


def test_the_rest_of_a_long_body_has_a_time_as_well(short):
    with lines.connect(short.data) as line:
        line.sendall(long_body(4 * MIB))
        assert lines.whole(line).status == 408


def test_the_rest_of_a_long_body_that_trickles_is_ended(short):
    with lines.connect(short.data) as line:
        line.sendall(long_body(4 * MIB))
        line.settimeout(BODY_S / 4)
        received, until = b"", time.monotonic() + harness.UNTIL_S
        while not received and time.monotonic() < until:
            try:
                line.sendall(b" ")
                received = line.recv(1 << 16)
            except TimeoutError:
                pass
    assert received.startswith(b"HTTP/1.1 408 ")


def test_the_rest_of_a_long_body_holds_no_memory(serve):
    proxy = serve("--dialect", "openai", "--request-mib", "1")
    with lines.connect(proxy.data) as line:
        line.sendall(long_body(4 * MIB))
        harness.until("the call", lambda: lines.metric(proxy, "rolltape_calls_in_flight") == 1)
        taken = "rolltape_memory_bytes"
        harness.until("memory", lambda: lines.metric(proxy, taken) < MIB // 8, lines.WAIT_S)


def test_a_long_body_that_goes_on_is_taken(short):
    body = b"[" + b" " * (3 * MIB) + b"1]"
    with lines.connect(short.data) as line:
        line.sendall(lines.head("POST", hostile.CHAT, len(body)))
        # Twice as long as the server waits, and never so long for the next piece.
        for at in range(0, len(body), MIB // 2):
            line.sendall(body[at : at + MIB // 2])
            time.sleep(BODY_S / 3)
        assert lines.whole(line).status == 200
    assert short.upstream.calls()[-1].body == body


def test_a_long_body_that_begins_with_a_whole_object_does_not_escape_forced_sampling(serve):
    proxy = serve(
        "--dialect", "openai", "--request-mib", "1", "--force-sampling", "temperature=1"
    )
    body = json.dumps(hostile.BODY | {"temperature": 0}).encode() + b" " * (2 * MIB)
    assert hostile.post(proxy, body=body).status == 400
    assert not proxy.upstream.calls()


# Places in the queue.


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/v1/rerank", hostile.CHAT])
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(b"," + b",".join(b'"f%d":1' % n for n in range(4097)), id="many-fields"),
        pytest.param(b',"deep":' + b"[" * 600 + b"]" * 600, id="deep"),
    ],
)
def test_no_body_is_too_odd_to_have_its_priority_removed(serve, path, more):
    proxy = serve("--dialect", "openai", "--allow-unrecorded-sampling")
    reply = hostile.post(proxy, path, b'{"model":"m","input":"a",' + PRIORITY + more + b"}")
    assert reply.status == 400
    assert not proxy.upstream.calls()


# Coded streams.


RANDOM = random.Random(7)


def noise(count):
    """Text that no coding makes much shorter."""
    return "%0*x" % (count, RANDOM.getrandbits(4 * count))


@pytest.mark.parametrize("name, codec", costs.CODED)
def test_what_follows_the_end_of_a_coded_stream_is_whole(serve, name, codec):
    def event(text):
        delta = {"index": 0, "delta": {"content": text}}
        return b"data: " + json.dumps({"choices": [delta]}).encode() + b"\n\n"

    plain = event(noise(100_000)) + lines.LAST
    plain += b"".join(b": %s\n\n" % noise(1000 + n).encode() for n in range(200))
    coded = costs.coded(codec, plain)
    # With a length, the pieces that are read are longer than those that are decoded at a time.
    said = hostile.reply(
        coded, content_type="text/event-stream", headers=[("content-encoding", name)]
    )
    proxy = serve("--dialect", "openai", answer=lambda request: said)
    reply = hostile.post(proxy, body=hostile.BODY | {"stream": True})
    assert reply.whole and reply.body == plain
    (call,) = hostile.rows(proxy, "SELECT outcome FROM calls")
    assert call["outcome"] == "complete"


# The operator's key.


@pytest.fixture
def keyed(serve):
    """A server with an operator's key, whose upstream repeats it wherever a reply has a word."""
    said = {
        **hostile.REPLY,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "x"},
                "finish_reason": KEY,
                "stop_reason": KEY,
            }
        ],
    }
    environment = harness.environment(OWN_KEY=KEY)
    options = ("--dialect", "vllm", "--upstream-key-env", "OWN_KEY")
    return serve(*options, answer=lambda request: hostile.reply(said), env=environment)


def post_local(proxy, path, headers=(), body=hostile.BODY):
    """Posts as an agent on this machine does."""
    body = json.dumps(body).encode()
    pairs = [("host", "localhost"), ("content-type", "application/json"), *headers]
    asked = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs)]
    asked.append(f"content-length: {len(body)}")
    with lines.connect(proxy.data) as line:
        line.sendall("\r\n".join(asked).encode() + http1.HEAD_END + body)
        return lines.whole(line)


def test_no_reason_of_a_reply_and_no_label_keeps_the_operators_key(keyed):
    headers = [
        ("x-episode-tag", f"{KEY}=of {KEY}"),
        ("x-claude-code-session-id", f"run {KEY}"),
        ("user-agent", "claude-cli/1"),
    ]
    sampled = hostile.BODY | {"stop": [KEY], "user": KEY}
    assert post_local(keyed, "/e/a" + hostile.CHAT, headers, sampled).status == 200
    assert KEY.encode() not in paths.stored_files(keyed)


@pytest.mark.parametrize("header", ["x-episode-id", "x-group-id", "x-task-id"])
def test_no_id_holds_the_operators_key(keyed, header):
    reply = post_local(keyed, hostile.CHAT, [(header, f"a.{KEY}")])
    assert reply.status == 400 and KEY.encode() not in reply.body
    assert not keyed.upstream.calls() and KEY.encode() not in paths.stored_files(keyed)


# Web pages.


@pytest.mark.parametrize("sites", [["same-origin", "cross-site"], ["cross-site", "none"]])
def test_every_word_of_a_browser_counts(keyed, sites):
    reply = post_local(keyed, hostile.CHAT, [("sec-fetch-site", site) for site in sites])
    assert reply.status == 403 and not keyed.upstream.calls()
