"""HTTP/2 connections that flood: who asks without end ends alone, and nobody else waits."""

import socket
from contextlib import ExitStack, contextmanager, suppress

import pytest

import costs
import frames
import framing
import harness
import hostile
import keyed
import lines
from frames import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    GOAWAY,
    HEADERS,
    PING,
    REFUSED_STREAM,
    RST_STREAM,
    SETTINGS,
    frame,
)
from lines import connect

LISTENERS = ["data", "control"]
JSON = ("content-type", "application/json")
MIB_MAX = 16
CPU_S_MAX = 4
BLOCKED_S = 0.5
ANSWER_S_MAX = 2
STREAMS_MAX = 256
"""Streams of one connection that are served at once, at most."""
PRIORITY, WINDOW_UPDATE = 2, 8
ACCEPT_ENCODING = b"\x90"
"""A whole header of the static table."""
ADDED_TO_TABLE = 0x40
ADDED_LAST = b"\xbe"
"""The first entry behind the static table."""
STATUS_200 = b"\x88"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A server that all floods meet, so that what one leaves behind meets the next."""
    with hostile.Stage(tmp_path_factory.mktemp("http2")) as stage:
        server = stage("--dialect", "openai", upstream=framing.Upstream())
        hostile.post(server, body=framing.says("warm"))
        yield server


@contextmanager
def standing(proxy, mib=MIB_MAX):
    """What is done inside costs little; health and another agent are answered meanwhile."""
    with costs.Cost(proxy) as cost:
        yield
        assert costs.health_s(proxy) < ANSWER_S_MAX
        assert framing.answered(other(proxy)) == "of another"
    assert cost.mib < mib and cost.cpu_s < CPU_S_MAX, cost


def other(proxy):
    """The reply to another agent. It is soon there, as `costs.health_s` has it."""
    for _ in range(costs.READINGS - 1):
        with suppress(TimeoutError):
            return hostile.post(proxy, body=framing.says("of another"), timeout=ANSWER_S_MAX)
    return hostile.post(proxy, body=framing.says("of another"), timeout=ANSWER_S_MAX)


def paths_of(listener):
    """A method and a path that the listener serves."""
    return ("POST", hostile.CHAT) if listener == "data" else ("GET", "/health")


def push(line, pieces):
    """Sends until the other side takes no more; whether it took all."""
    try:
        for piece in pieces:
            line.sendall(piece)
    except OSError:
        return False
    return True


def told(line):
    """The frames up to the end of the connection."""
    received = bytearray()
    with suppress(ConnectionError):
        while piece := line.recv(1 << 16):
            received += piece
    return list(frames.read(received))


def codes(found, kind):
    """The reasons of frames that end a stream or a connection."""
    at = 4 if kind == GOAWAY else 0
    return [int.from_bytes(one[3][at : at + 4], "big") for one in found if one[0] == kind]


def is_told_to_calm_down(line):
    """Whether the connection ends because of what was sent on it."""
    return ENHANCE_YOUR_CALM in codes(told(line), GOAWAY)


def odd(count, start=1):
    """So many numbers of streams."""
    return range(start, start + 2 * count, 2)


def batches(pieces, size=1000):
    """The same bytes in fewer pieces."""
    pieces = list(pieces)
    return (b"".join(pieces[at : at + size]) for at in range(0, len(pieces), size))


def said_to_upstream(proxy, text):
    """How many calls of this text the upstream heard."""
    return sum(framing.asked(call) == text for call in proxy.upstream.calls())


# Streams.


def asking(listener, text, stream):
    """A request of an episode that is named like the text which it says."""
    named = ("x-episode-id", text)
    return frames.request(stream, *paths_of(listener), JSON, named, body=framing.says(text))


def given_up(stream):
    """The end of a stream that is no longer wanted."""
    return frame(RST_STREAM, 0, stream, frames.CANCEL.to_bytes(4, "big"))


@pytest.mark.parametrize("listener", LISTENERS)
def test_streams_that_are_reset_at_once_end_their_connection(proxy, listener):
    resets = (asking(listener, "reset", stream) + given_up(stream) for stream in odd(20_000))
    flood = batches(resets)
    with standing(proxy), connect(getattr(proxy, listener)) as line:
        push(line, [frames.START, *flood])
        assert is_told_to_calm_down(line)
    assert said_to_upstream(proxy, "reset") < STREAMS_MAX
    assert len(keyed.recorded(proxy, "reset")) < STREAMS_MAX


def test_streams_that_are_reset_one_by_one_leave_no_call_open(proxy):
    with standing(proxy), connect(proxy.data) as line:
        line.sendall(frames.START)
        for number, stream in enumerate(odd(300)):
            line.sendall(asking("data", "one-by-one", stream))
            # Some are given up before they are forwarded, the others when they were heard.
            frames.pong(line)
            if number % 3 == 0:
                heard = number // 3
                harness.until("a call", lambda: said_to_upstream(proxy, "one-by-one") > heard)
            line.sendall(given_up(stream))
    assert 100 <= said_to_upstream(proxy, "one-by-one") <= 300
    assert 100 <= len(keyed.recorded(proxy, "one-by-one")) <= 300
    open_calls = "SELECT 1 FROM calls WHERE outcome IS NULL"
    harness.until("the ends of all calls", lambda: not hostile.rows(proxy, open_calls))


@pytest.mark.parametrize("listener", LISTENERS)
def test_streams_without_end_are_refused(proxy, listener):
    before = len(proxy.upstream.calls())
    head = frames.head("POST", paths_of(listener)[1], JSON)
    opened = b"".join(frame(HEADERS, END_HEADERS, stream, head) for stream in odd(5000))
    with standing(proxy, 2 * MIB_MAX), ExitStack() as held:
        several = [held.enter_context(connect(getattr(proxy, listener))) for _ in range(5)]
        for line in several:
            push(line, [frames.START, opened])
        for found in map(told, several):
            assert allowed_streams(found) <= STREAMS_MAX
            assert REFUSED_STREAM in codes(found, RST_STREAM)
        assert len(proxy.upstream.calls()) == before and proxy.upstream.unclear() == []


def allowed_streams(found):
    """How many streams the first frame allows at once."""
    settings = found[0][3]
    pairs = [settings[at : at + 6] for at in range(0, len(settings), 6)]
    return next(int.from_bytes(pair[2:], "big") for pair in pairs if pair[:2] == b"\x00\x03")


# Heads.


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize(
    "more",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(ACCEPT_ENCODING, id="a-byte"),
        pytest.param(frames.literal("x-long", "a" * 16_373), id="16-kib"),
    ],
)
def test_a_head_that_goes_on_without_end_ends_its_connection(proxy, listener, more):
    start = frame(HEADERS, 0, 1, frames.head(*paths_of(listener)))
    several = frame(CONTINUATION, 0, 1, more) * 100
    with standing(proxy), connect(getattr(proxy, listener)) as line:
        push(line, [frames.START, start, *[several] * (2000 if len(more) < 2 else 50)])
        assert is_told_to_calm_down(line)


def bomb(listener, stream, count):
    """A head that repeats a header of 4,000 bytes so many times, for a byte each."""
    head = frames.head(*paths_of(listener))
    head += frames.literal("x-bomb", b"a" * 4000, flags=ADDED_TO_TABLE)
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, head + ADDED_LAST * count)


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("count", [40, 12_000])
def test_a_head_that_unfolds_is_refused_at_no_cost(proxy, listener, count):
    before = len(proxy.upstream.calls())
    with standing(proxy), connect(getattr(proxy, listener)) as line:
        push(line, [frames.START, *(bomb(listener, stream, count) for stream in odd(100))])
        with suppress(OSError):
            line.shutdown(socket.SHUT_WR)
        found = told(line)
        assert len(proxy.upstream.calls()) == before
    assert not any(payload[:1] == STATUS_200 for kind, _, _, payload in found if kind == HEADERS)


def test_a_head_that_unfolds_to_little_is_served(proxy):
    block = frames.head("POST", hostile.CHAT, JSON)
    block += frames.literal("x-small", "a" * 100, flags=ADDED_TO_TABLE) + ADDED_LAST * 8
    whole = frame(HEADERS, END_HEADERS, 1, block)
    whole += frame(DATA, END_STREAM, 1, framing.says("unfolded"))
    with connect(proxy.data) as line:
        line.sendall(frames.START + whole)
        assert b"unfolded" in frames.reply(line)
    assert said_to_upstream(proxy, "unfolded") == 1


# Frames that carry nothing.


ANSWERED = {
    "settings": frame(SETTINGS, 0, 0),
    "settings-that-change": frame(SETTINGS, 0, 0, b"\x00\x01" + bytes(4))
    + frame(SETTINGS, 0, 0, b"\x00\x01\x00\x00\x10\x00"),
    "pings": frame(PING, 0, 0, b"abcdefgh"),
}
"""Frames that must be answered."""


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("name", ANSWERED)
def test_whose_answers_are_never_read_is_no_longer_heard(proxy, listener, name):
    with standing(proxy), connect(getattr(proxy, listener)) as line:
        line.settimeout(BLOCKED_S)
        assert not push(line, [frames.START, *[ANSWERED[name] * 2000] * 2000])
        assert costs.health_s(proxy) < ANSWER_S_MAX


UNANSWERED = {
    "priorities": frame(PRIORITY, 0, 1, bytes([0, 0, 0, 3, 0])),
    "windows": frame(WINDOW_UPDATE, 0, 0, (1).to_bytes(4, "big")),
    "unknown": frame(0x42, 0, 0, b"abcdefgh"),
    "answers": frame(PING, frames.ACK, 0, b"abcdefgh"),
}


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("name", UNANSWERED)
def test_frames_that_ask_for_nothing_cost_nothing(proxy, listener, name):
    with standing(proxy), connect(getattr(proxy, listener)) as line:
        push(line, [frames.START, *[UNANSWERED[name] * 2000] * 100])


def empty_data(listener):
    """A connection's first bytes, and 1,000 empty pieces of a body."""
    head = frames.head("POST", paths_of(listener)[1], JSON)
    return frames.START + frame(HEADERS, END_HEADERS, 1, head), frame(DATA, 0, 1) * 1000


@pytest.mark.parametrize("listener", LISTENERS)
def test_empty_pieces_of_a_body_without_end_end_their_connection(proxy, listener):
    start, pieces = empty_data(listener)
    with standing(proxy), connect(getattr(proxy, listener)) as line:
        assert not push(line, [start, *[pieces] * 5000])
        assert is_told_to_calm_down(line)


def test_empty_pieces_are_no_progress_of_a_body(tmp_path):
    with hostile.Stage(tmp_path) as stage:
        quick = harness.environment(ROLLTAPE_BODY_WAIT_S="1")
        proxy = stage("--dialect", "openai", upstream=framing.Upstream(), env=quick)
        start, _ = empty_data("data")
        with connect(proxy.data) as line:
            line.sendall(start)
            assert b"too slowly" in trickled(line, frame(DATA, 0, 1))


def trickled(line, piece):
    """What comes back while a piece is sent again and again."""
    received = bytearray()
    line.settimeout(0.05)

    def is_answered():
        with suppress(TimeoutError):
            line.sendall(piece)
            received.extend(line.recv(1 << 16))
        return any(one[0] == DATA for one in frames.read(received))

    harness.until("an answer", is_answered)
    return bytes(received)


def test_no_flood_has_damaged_the_store(proxy):
    """Last: by now all of them have met it."""
    assert hostile.is_clean(proxy) and hostile.is_alive(proxy)
