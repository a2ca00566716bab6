"""Connections: silent, slow, half-open and too many. Whoever does not ask holds up nobody."""

import json
import threading
import time
from contextlib import ExitStack, contextmanager, suppress

import pytest

import frames
import harness
import hostile
import http1
import lines
from lines import WAIT_S, connect, is_closed

HEAD_S = BODY_S = 1
IDLE_S = 4
LONG_S = 2.8
"""Longer than any of the short times with the pause between two looks for what is over."""
QUICK = {
    "ROLLTAPE_HEAD_WAIT_S": str(HEAD_S),
    "ROLLTAPE_BODY_WAIT_S": str(BODY_S),
    "ROLLTAPE_IDLE_WAIT_S": str(IDLE_S),
}
"""As variables, so that a server that does not know them starts as well."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """A server whose times are short."""
    with hostile.Stage(tmp_path_factory.mktemp("quick")) as stage:
        yield stage(answer=answer, env=harness.environment(**QUICK))


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A server with the times that it has by itself."""
    with hostile.Stage(tmp_path_factory.mktemp("patient")) as stage:
        yield stage(answer=answer)


PAUSES_S = {"slow": (0.4, 0.1), "long": (LONG_S, LONG_S)}
"""How long the upstream thinks, by the name of the model: before a reply, and between events."""


def answer(request):
    """A reply at once, or after the time that the model's name stands for."""
    if lines.is_v1_models(request):
        return lines.MODELS
    body = json.loads(request.body or b"{}")
    before_s, between_s = PAUSES_S.get(body.get("model"), (0, 0))
    if body.get("stream"):
        pause = lambda: time.sleep(between_s)  # noqa: E731
        return lines.stream([lines.EVENT, pause, lines.EVENT, pause, lines.EVENT, lines.LAST])
    time.sleep(before_s)
    return hostile.reply(hostile.REPLY)


# Times.


@pytest.mark.parametrize("listener", ["data", "control"])
@pytest.mark.parametrize(
    "said",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"POST /v1/chat/comp", id="half-a-line"),
        pytest.param(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n", id="half-a-head"),
        pytest.param(frames.PREFACE[:11], id="half-a-preface"),
        pytest.param(frames.START, id="a-preface-alone"),
    ],
)
def test_who_does_not_ask_is_left(quick, listener, said):
    with connect(getattr(quick, listener)) as line:
        line.sendall(said)
        assert is_closed(line)


def test_a_head_that_trickles_is_left(quick):
    with connect(quick.data) as line:
        sent = b"POST /v1/chat/completions HTTP/1.1\r\nx-long: " + b"a" * 60
        assert is_cut_while(line, ([byte] for byte in sent))


def is_cut_while(line, pieces):
    """Whether the other side ends the connection while pieces are sent."""
    line.settimeout(0.1)
    for piece in pieces:
        try:
            line.sendall(bytes(piece))
            if not line.recv(1 << 16):
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("path", [hostile.CHAT, "/v1/embeddings"])
def test_a_body_that_stops_gets_a_408_and_is_left(quick, path):
    with connect(quick.data) as line:
        line.sendall(lines.head("POST", path, length=100) + b"{")
        reply, _ = http1.read(lines.to_end(line))
        assert reply.status == 408, reply
        assert b"too slowly" in reply.body


def test_a_chunked_body_that_stops_gets_a_408(quick):
    with connect(quick.data) as line:
        start = lines.head("POST", hostile.CHAT)[:-2]
        line.sendall(start + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert http1.read(lines.to_end(line))[0].status == 408


def test_a_body_that_trickles_is_ended(quick):
    with connect(quick.data) as line:
        line.sendall(lines.head("POST", hostile.CHAT, length=100))
        received, until = b"", time.monotonic() + WAIT_S
        line.settimeout(0.1)
        while not received and time.monotonic() < until:
            try:
                line.sendall(b" ")
                received = line.recv(1 << 16)
            except TimeoutError:
                continue
        assert b" 408 " in received


def test_a_body_of_control_that_stops_gets_a_408(quick):
    with connect(quick.control) as line:
        request = lines.head("POST", "/episodes", length=100)[:-2]
        request += f"authorization: Bearer {quick.token}\r\n\r\n".encode()
        line.sendall(request + b"{")
        assert http1.read(lines.to_end(line))[0].status == 408


def test_a_long_body_at_a_slow_pace_is_taken(serve):
    proxy = serve(answer=answer, env=harness.environment(ROLLTAPE_BODY_WAIT_S="3"))
    body = b'{"model": "m", "messages": [{"role": "user", "content": "' + b"a" * 10_000 + b'"}]}'
    with connect(proxy.data) as line:
        line.sendall(lines.head("POST", hostile.CHAT, len(body), kept=False))
        for at in range(0, len(body), 1000):
            line.sendall(body[at : at + 1000])
            time.sleep(0.4)
        assert http1.read(lines.to_end(line))[0].status == 200


def test_a_kept_connection_outlives_the_time_of_a_head(serve):
    proxy = serve(answer=answer, env=harness.environment(**QUICK | {"ROLLTAPE_IDLE_WAIT_S": "8"}))
    with connect(proxy.data) as line:
        for _ in range(2):
            line.sendall(lines.chat())
            assert lines.whole(line).status == 200
            time.sleep(HEAD_S + 1.5)


def test_a_kept_connection_ends_when_no_further_request_comes(quick):
    with connect(quick.data) as line:
        line.sendall(lines.chat())
        assert lines.whole(line).status == 200
        assert is_closed(line)


def test_an_idle_http2_connection_ends(quick):
    with connect(quick.data) as line:
        line.sendall(frames.START + frames.request(1, "GET", "/"))
        assert is_closed(line, IDLE_S + WAIT_S)


def test_a_call_that_takes_long_is_not_left(quick):
    began = time.monotonic()
    with connect(quick.data) as streamed, connect(quick.data) as whole:
        streamed.sendall(lines.chat(model="long", stream=True, kept=False))
        whole.sendall(lines.chat(model="long", kept=False))
        assert http1.read(lines.to_end(whole))[0].status == 200
        assert lines.to_end(streamed).endswith(b"0\r\n\r\n")
    assert time.monotonic() - began > IDLE_S + 1


# Half-closed.


def half_closed(proxy, request):
    """The whole reply to an agent that shuts its writing side after its request."""
    with connect(proxy.data) as line:
        line.sendall(request)
        line.shutdown(1)
        return lines.to_end(line)


@pytest.mark.parametrize("model", ["m", "slow"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_who_shuts_its_writing_side_gets_the_whole_reply(patient, model, stream, kept):
    request = lines.chat("/e/half/v1/chat/completions", model=model, stream=stream, kept=kept)
    with connect(patient.data) as line:
        line.sendall(lines.chat(model=model, stream=stream, kept=False))
        expected = lines.to_end(line)
    received, _ = http1.read(half_closed(patient, request))
    assert (received.status, received.whole) == (200, True)
    assert received.body == http1.read(expected)[0].body


def test_half_closed_calls_are_recorded_as_complete(patient):
    request = lines.chat("/e/halves/v1/chat/completions", model="slow", stream=True)
    assert half_closed(patient, request).endswith(b"0\r\n\r\n")
    asked = "SELECT outcome FROM calls WHERE episode_id = 'halves'"
    assert hostile.rows(patient, asked) == [{"outcome": "complete"}]


def test_the_last_request_of_a_kept_connection_may_be_half_closed(patient):
    with connect(patient.data) as line:
        line.sendall(lines.chat())
        assert lines.whole(line).status == 200
        line.sendall(lines.chat(model="slow"))
        line.shutdown(1)
        assert http1.read(lines.to_end(line))[0].whole


def test_who_shuts_its_writing_side_in_mid_reply_gets_the_rest(patient):
    def rest():
        with connect(patient.data) as line:
            line.sendall(lines.chat(model="slow", stream=True))
            first = line.recv(1 << 16)
            line.shutdown(1)
            return first + lines.to_end(line)

    # If no byte of the reply comes for a while, as on a busy machine, the agent counts as gone.
    assert any(rest().endswith(b"0\r\n\r\n") for _ in range(3))


def test_a_page_of_control_may_be_asked_half_closed(patient):
    with connect(patient.control) as line:
        line.sendall(lines.head("GET", "/health"))
        line.shutdown(1)
        assert http1.read(lines.to_end(line))[0].status == 200


def test_a_body_that_is_cut_by_a_half_close_is_no_call(patient):
    with connect(patient.data) as line:
        line.sendall(lines.head("POST", "/e/cut/v1/chat/completions", length=100) + b"{")
        line.shutdown(1)
        assert b" 200 " not in lines.to_end(line)
    assert hostile.rows(patient, "SELECT 1 FROM calls WHERE episode_id = 'cut'") == []


@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_that_has_left_is_noticed_while_the_upstream_thinks(serve, stream):
    asked, left = threading.Event(), threading.Event()

    def think(request):
        if lines.is_v1_models(request) or request.method == "GET":
            return lines.MODELS
        asked.set()
        left.wait(WAIT_S)
        return hostile.reply(hostile.REPLY)

    proxy = serve(answer=think)
    line = connect(proxy.data)
    line.sendall(lines.chat("/e/gone/v1/chat/completions", stream=stream))
    assert asked.wait(WAIT_S)
    line.close()
    query = "SELECT outcome FROM calls WHERE episode_id = 'gone' AND outcome IS NOT NULL"
    (call,) = harness.until("the end of the call", lambda: hostile.rows(proxy, query))
    left.set()
    assert call["outcome"] == "client_gone"


# Too many.

OWN_DESCRIPTORS = 100
"""Room for what the tests themselves have open, and the upstream."""


@contextmanager
def flood(address, count, said):
    """So many connections that each say the same and then nothing."""
    assert harness.raise_descriptors() > count + OWN_DESCRIPTORS, "`ulimit -Hn` is too low"
    with ExitStack() as held:
        for _ in range(count):
            line = held.enter_context(connect(address))
            with suppress(ConnectionError):  # the server may have left already
                line.sendall(said)
        yield


FLOODS = [
    pytest.param(b"", id="silent"),
    pytest.param(b"POST /v1/chat", id="half-a-head"),
    pytest.param(lines.head("POST", hostile.CHAT, length=9) + b"{", id="half-a-body"),
    pytest.param(lines.chat(), id="kept"),
    pytest.param(frames.START, id="http2"),
]


@pytest.mark.parametrize("said", FLOODS)
def test_a_flood_leaves_512_descriptors_for_health_and_agents(serve, monkeypatch, said, tmp_path):
    monkeypatch.setenv("ROLLTAPE_BIN", lines.limited(tmp_path, 512))
    proxy = serve(answer=answer)
    with flood(proxy.data, 600, said):
        health = http1.exchange(proxy.control, http1.request("GET", "/health"), timeout=WAIT_S)
        assert health.status == 200
        assert lines.control(proxy, "/ready").status == 200
        assert hostile.post(proxy, timeout=WAIT_S).status == 200
        assert lines.descriptors(proxy) < 512 - 32
    assert hostile.is_clean(proxy)


def test_a_flood_of_control_leaves_health_and_agents(serve, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLTAPE_BIN", lines.limited(tmp_path, 512))
    proxy = serve(answer=answer)
    with flood(proxy.control, 600, b""):
        health = http1.exchange(proxy.control, http1.request("GET", "/health"), timeout=WAIT_S)
        assert health.status == 200
        assert hostile.post(proxy, timeout=WAIT_S).status == 200


def test_calls_under_way_do_not_give_way_to_a_flood(serve, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLTAPE_BIN", lines.limited(tmp_path, 512))
    may_end = threading.Event()

    def think(request):
        if lines.is_v1_models(request):
            return lines.MODELS
        return lines.stream([lines.EVENT, lambda: may_end.wait(harness.UNTIL_S), lines.LAST])

    proxy = serve(answer=think)
    with ExitStack() as held:
        calls = [held.enter_context(connect(proxy.data)) for _ in range(10)]
        for line in calls:
            line.sendall(lines.chat(stream=True, kept=False))
        harness.until("all calls", lambda: len(proxy.upstream.calls()) == len(calls))
        with flood(proxy.data, 600, b"POST /v1/chat"):
            may_end.set()
            assert all(lines.to_end(line).endswith(b"0\r\n\r\n") for line in calls)


@contextmanager
def unfinished(address, connections, streams, path, *headers):
    """Requests over HTTP/2 whose bodies have begun and do not go on. None of them is answered."""
    head = frames.head("POST", path, ("content-type", "application/json"), *headers)
    numbers = range(1, 2 * streams, 2)
    begun = b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, number, head)
        + frames.frame(frames.DATA, 0, number, b"{")
        for number in numbers
    )
    with ExitStack() as held:
        several = [held.enter_context(connect(address)) for _ in range(connections)]
        for line in several:
            line.sendall(frames.START + begun)
            assert unanswered(line)
        yield
        assert all(map(unanswered, several))


def unanswered(line):
    """Whether all that was sent on a connection was read, and no request is answered or refused."""
    ends = {frames.HEADERS, frames.RST_STREAM, frames.GOAWAY}
    return not ends & {kind for kind, *_ in frames.pong(line)}


def test_three_hundred_slow_bodies_do_not_hold_up_control(patient):
    token = ("authorization", f"Bearer {patient.token}")
    with unfinished(patient.control, 2, 150, "/episodes", token):
        health = http1.exchange(patient.control, http1.request("GET", "/health"), timeout=WAIT_S)
        assert health.status == 200
        assert lines.control(patient, "/versions").status == 200


def test_ten_thousand_slow_bodies_do_not_hold_up_agents(patient):
    with unfinished(patient.data, 72, 140, hostile.CHAT):
        assert hostile.post(patient, timeout=WAIT_S).status == 200
