"""Framing: where a request and a reply end is read in one way, or not at all."""

import json
import socket
from collections import Counter
from contextlib import ExitStack, suppress

import pytest

import costs
import frames
import framing
import hostile
import keyed
import lines
from lines import connect

OUTER, INNER = framing.says("outer"), framing.says("inner")
LENGTH = b"content-length: %d" % len(OUTER)
CHUNKED = b"transfer-encoding: chunked"
MIB_MAX = 24
HEADS_MIB_MAX = 64


def call(*headers, body=OUTER, episode="outer", version="1.1"):
    """A call whose framing is in the headers that are given."""
    first = f"POST /e/{episode}{hostile.CHAT} HTTP/{version}".encode()
    return b"\r\n".join([first, b"host: h", JSON, *headers, b"", body])


def chunks(body):
    """A body as one chunk and the last one."""
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


JSON = b"content-type: application/json"
NEXT = call(LENGTH, body=INNER, episode="inner")
"""What follows on the connection; it must not become a part of what precedes it."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A server whose upstream keeps every byte."""
    with hostile.Stage(tmp_path_factory.mktemp("framing")) as stage:
        yield stage("--dialect", "openai", upstream=framing.Upstream())


def said(address, sent):
    """All that comes back for bytes after which the agent shuts its writing side."""
    with connect(address) as line:
        return finished(line, [sent])


def finished(line, pieces):
    """All that comes back for pieces, which the other side need not take."""
    received = bytearray()
    with suppress(OSError):
        for piece in pieces:
            line.sendall(piece)
        line.shutdown(socket.SHUT_WR)
    with suppress(ConnectionError):
        while piece := line.recv(1 << 16):
            received += piece
    return bytes(received)


def stored(proxy):
    """How many complete calls each episode has."""
    found = hostile.rows(proxy, "SELECT episode_id, outcome FROM calls")
    assert all(row["outcome"] for row in found), found
    return Counter(row["episode_id"] for row in found if row["outcome"] == "complete")


def read_as(proxy, sent, *texts):
    """The replies to bytes that are these calls for the agent, the upstream and the store."""
    before, count = len(proxy.upstream.calls()), stored(proxy)
    replies = framing.replies(said(proxy.data, sent))
    served = [framing.answered(reply) for reply in replies if reply.status == 200]
    heard = [framing.asked(request) for request in proxy.upstream.calls()[before:]]
    assert (served, heard) == (list(texts), list(texts)), replies
    assert stored(proxy) - count == Counter(text or "outer" for text in texts)
    assert proxy.upstream.unclear() == []
    return replies


def assert_refused(proxy, sent):
    """The answer is one 400; neither the upstream nor the store learns of anything."""
    assert [reply.status for reply in read_as(proxy, sent)] == [400]


# Lengths and encodings.


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(call(LENGTH, CHUNKED, body=chunks(OUTER)), id="length-first"),
        pytest.param(call(CHUNKED, LENGTH, body=chunks(OUTER)), id="chunks-first"),
        pytest.param(call(b"content-length: 0", CHUNKED, body=chunks(OUTER)), id="no-length"),
        pytest.param(
            call(CHUNKED, b"content-length: %d" % len(chunks(OUTER) + NEXT), body=chunks(OUTER)),
            id="length-over-the-next-request",
        ),
        pytest.param(
            call(LENGTH, b"Transfer-Encoding: CHUNKED", body=chunks(OUTER)), id="capitals"
        ),
    ],
)
def test_a_body_with_a_length_and_chunks_is_the_last_one_of_its_connection(proxy, sent):
    read_as(proxy, sent + NEXT, "outer")


def test_a_request_hidden_behind_two_framings_reaches_nobody(proxy):
    read_as(proxy, call(b"content-length: 5", CHUNKED, body=b"0\r\n\r\n" + NEXT), "")


LENGTHS = {
    "two": [LENGTH, b"content-length: 0"],
    "a-list": [LENGTH + b", %d" % len(OUTER)],
    "a-list-of-two": [LENGTH + b", 0"],
    "plus": [b"content-length: +%d" % len(OUTER)],
    "minus": [b"content-length: -1"],
    "hexadecimal": [b"content-length: 0x%x" % len(OUTER)],
    "a-fraction": [LENGTH + b".0"],
    "an-exponent": [b"content-length: 1e2"],
    "digits-apart": [b"content-length: 5 7"],
    "empty": [b"content-length: "],
    "beyond-64-bits": [b"content-length: %d" % (2**64 + len(OUTER))],
    "digits-of-another-script": ["content-length: ٥٧".encode()],
    "a-vertical-tab": [b"content-length: \x0b%d" % len(OUTER)],
    "a-space-before-the-colon": [b"content-length : %d" % len(OUTER)],
    "in-two-lines": [b"content-length:\r\n %d" % len(OUTER)],
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_length_that_two_servers_may_read_differently_is_a_400(proxy, name):
    assert_refused(proxy, call(*LENGTHS[name]) + NEXT)


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([LENGTH, LENGTH], id="twice-the-same"),
        pytest.param([b"content-length: 000%d" % len(OUTER)], id="zeros"),
        pytest.param([b"content-length:\t%d \t" % len(OUTER)], id="tabs"),
    ],
)
def test_an_odd_length_that_is_clear_reaches_the_upstream_as_one_number(proxy, headers):
    read_as(proxy, call(*headers) + NEXT, "outer", "inner")
    heard = proxy.upstream.calls()[-2].headers
    lengths = [value for name, value in heard if name == "content-length"]
    assert lengths == [str(len(OUTER))]


UNCLEAR_ENCODINGS = {
    "another-word": [b"transfer-encoding: xchunked"],
    "identity": [b"transfer-encoding: identity"],
    "chunked-not-last": [b"transfer-encoding: chunked, identity"],
    "chunked-not-last-of-two": [CHUNKED, b"transfer-encoding: identity"],
    "gzip": [b"transfer-encoding: gzip"],
    "quoted": [b'transfer-encoding: "chunked"'],
    "with-a-parameter": [b"transfer-encoding: chunked;q=1"],
    "a-comma-behind": [b"transfer-encoding: chunked,"],
    "empty": [b"transfer-encoding: "],
    "a-zero-byte": [b"transfer-encoding: chunked\x00"],
    "a-vertical-tab": [b"transfer-encoding: \x0bchunked"],
    "a-letter-of-another-script": ["transfer-encoding: сhunked".encode()],
    "a-space-before-the-colon": [b"transfer-encoding : chunked"],
    "a-space-before-the-name": [b" transfer-encoding: chunked"],
    "in-two-lines": [b"transfer-encoding:\r\n chunked"],
}


@pytest.mark.parametrize("length", [[], [LENGTH]], ids=["alone", "with-a-length"])
@pytest.mark.parametrize("name", UNCLEAR_ENCODINGS)
def test_an_encoding_that_is_not_plainly_chunked_is_a_400(proxy, name, length):
    assert_refused(proxy, call(*length, *UNCLEAR_ENCODINGS[name], body=chunks(OUTER)) + NEXT)


CLEAR_ENCODINGS = {
    "capitals": [b"TRANSFER-ENCODING: CHUNKED"],
    "tabs": [b"transfer-encoding:\tchunked \t"],
    "twice": [b"transfer-encoding: chunked, chunked"],
    "behind-another": [b"transfer-encoding: identity", CHUNKED],
    "a-comma-before": [b"transfer-encoding: ,chunked"],
}


@pytest.mark.parametrize("name", CLEAR_ENCODINGS)
def test_chunks_that_are_oddly_announced_are_sent_on_with_one_framing(proxy, name):
    sent = call(*CLEAR_ENCODINGS[name], body=chunks(OUTER))
    read_as(proxy, sent + NEXT, "outer", "inner")
    with_length = call(LENGTH, *CLEAR_ENCODINGS[name], body=chunks(OUTER))
    read_as(proxy, with_length + NEXT, "outer")


@pytest.mark.parametrize("header", [b"transfer_encoding: chunked", b"content_length: 0"])
def test_a_name_that_only_looks_like_one_of_framing_frames_nothing(proxy, header):
    read_as(proxy, call(header, LENGTH) + NEXT, "outer", "inner")


# Chunks.


SIZE = len(OUTER)
UNCLEAR_CHUNKS = {
    "size-with-0x": b"0x%x\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "size-with-a-plus": b"+%x\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "size-below-zero": b"-1\r\n%s\r\n0\r\n\r\n" % OUTER,
    "size-behind-a-space": b" %x\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "size-beyond-64-bits": b"1%016x\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "size-of-all-bits": b"f" * 16 + b"\r\n%s\r\n0\r\n\r\n" % OUTER,
    "no-size": b"\r\n%s\r\n0\r\n\r\n" % OUTER,
    "size-before-a-bare-lf": b"%x\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "size-before-a-bare-cr": b"%x\r%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "extension-with-a-bare-lf": b"%x;a\nb\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "extension-with-a-bare-cr": b"%x;a\rb\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER),
    "extension-with-a-quoted-line": b'%x;a="\r\n"\r\n%s\r\n0\r\n\r\n' % (SIZE, OUTER),
    "extension-of-20-kb": b"%x;%s\r\n%s\r\n0\r\n\r\n" % (SIZE, b"a" * 20_000, OUTER),
    "no-line-end-behind": b"%x\r\n%s0\r\n\r\n" % (SIZE, OUTER),
    "another-line-end-behind": b"%x\r\n%sXX0\r\n\r\n" % (SIZE, OUTER),
    "longer-than-told": b"%x\r\n%s\r\n0\r\n\r\n" % (SIZE - 3, OUTER),
    "shorter-than-told": b"%x\r\n%s\r\n0\r\n\r\n" % (SIZE + 20, OUTER),
    "a-last-one-without-its-end": b"%x\r\n%s\r\n0\r\n" % (SIZE, OUTER),
    "a-last-one-with-bare-lf": b"%x\r\n%s\r\n0\n\n" % (SIZE, OUTER),
    "only-bare-lf": b"%x\n%s\n0\n\n" % (SIZE, OUTER),
}


@pytest.mark.parametrize("name", UNCLEAR_CHUNKS)
def test_chunks_that_two_servers_may_read_differently_are_a_400(proxy, name):
    assert_refused(proxy, call(CHUNKED, body=UNCLEAR_CHUNKS[name]) + NEXT)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"%X\r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER), id="capitals"),
        pytest.param(b"0000%x\r\n%s\r\n000\r\n\r\n" % (SIZE, OUTER), id="zeros"),
        pytest.param(b"%x \r\n%s\r\n0\r\n\r\n" % (SIZE, OUTER), id="a-space-behind"),
        pytest.param(b"%x;a=b\r\n%s\r\n0;c\r\n\r\n" % (SIZE, OUTER), id="extensions"),
    ],
)
def test_odd_chunks_that_are_clear_are_sent_on_without_their_oddities(proxy, body):
    read_as(proxy, call(CHUNKED, body=body) + NEXT, "outer", "inner")
    heard = dict(proxy.upstream.calls()[-2].headers)
    assert heard["content-length"] == str(SIZE) and "transfer-encoding" not in heard


# Lines of a head.


UNCLEAR_LINES = {
    "in-two-lines": b"x-a: b\r\n c: d",
    "id-in-two-lines": b"x-episode-id: inner\r\n b",
    "id-with-a-framing-behind": b"x-episode-id: inner\r\n\ttransfer-encoding: chunked",
    "a-zero-byte": b"x-a: b\x00c",
    "a-zero-byte-in-an-id": b"x-episode-id: inner\x00b",
    "a-zero-byte-in-a-name": b"x-episode-id\x00: inner",
    "a-bare-cr": b"x-a: b\rx-episode-id: inner",
    "a-bare-cr-in-an-id": b"x-episode-id: inner\rb",
    "a-space-before-the-colon": b"x-episode-id : inner",
    "no-name": b": inner",
    "no-colon": b"x-episode-id",
    "an-escape": b"x-episode-id: inner\x1b[2J",
    "a-delete": b"x-episode-id: inner\x7f",
}


@pytest.mark.parametrize("name", UNCLEAR_LINES)
def test_a_line_that_two_servers_may_read_differently_is_a_400(proxy, name):
    sent = call(UNCLEAR_LINES[name], LENGTH).replace(b"/e/outer/", b"/")
    assert_refused(proxy, sent + NEXT)


def test_a_bare_lf_ends_a_line_for_everybody(proxy):
    """No part of the line stays behind it as a header of its own for the upstream alone."""
    sent = call(b"x-a: b\nx-episode-id: inner\nx-c: d", LENGTH, body=INNER)
    read_as(proxy, sent.replace(b"/e/outer/", b"/"), "inner")
    heard = dict(proxy.upstream.calls()[-1].headers)
    assert (heard["x-a"], heard["x-c"]) == ("b", "d") and "x-episode-id" not in heard


# HTTP/1.0.


@pytest.mark.parametrize("kept", [[], [b"connection: keep-alive"]], ids=["closing", "kept"])
@pytest.mark.parametrize("length", [[], [LENGTH]], ids=["alone", "with-a-length"])
def test_http_1_0_has_no_chunks(proxy, kept, length):
    assert_refused(proxy, call(CHUNKED, *length, *kept, body=chunks(OUTER), version="1.0") + NEXT)


def test_a_call_over_http_1_0_ends_its_connection(proxy):
    read_as(proxy, call(LENGTH, version="1.0") + NEXT, "outer")
    read_as(proxy, call(version="1.0") + NEXT, "")


@pytest.mark.parametrize("version", ["0.9", "1.2", "2.0", "3.0"])
def test_a_version_that_is_not_spoken_is_a_400(proxy, version):
    assert_refused(proxy, call(LENGTH, version=version) + NEXT)


# Trailers.


@pytest.fixture(scope="module")
def key(proxy):
    """A signed key of an episode."""
    return keyed.mint(proxy, "locked")[0]


SECRET_TRAILERS = {
    "x-api-key": "{key}",
    "authorization": "Bearer {key}",
    "x-episode-id": "locked",
    "x-data-parallel-rank": "3",
    "x-rolltape-cache-scope": "theirs",
}


def over_http1(proxy, trailers):
    """Sends a call with trailers in HTTP/1.1."""
    names = ", ".join(trailers).encode()
    last = "".join(f"{name}: {value}\r\n" for name, value in trailers.items()).encode()
    head = [CHUNKED, b"te: trailers", b"trailer: " + names, b"connection: close"]
    said(proxy.data, call(*head, body=chunks(OUTER)[:-2] + last + b"\r\n"))


def over_http2(proxy, trailers):
    """Sends a call with trailers in HTTP/2."""
    headers = [("content-type", "application/json"), ("trailer", ", ".join(trailers))]
    head = frames.head("POST", f"/e/outer{hostile.CHAT}", *headers, ("te", "trailers"))
    last = b"".join(frames.literal(*pair) for pair in trailers.items())
    flags = frames.END_HEADERS | frames.END_STREAM
    with connect(proxy.data) as line:
        line.sendall(
            frames.START
            + frames.frame(frames.HEADERS, frames.END_HEADERS, 1, head)
            + frames.frame(frames.DATA, 0, 1, OUTER)
            + frames.frame(frames.HEADERS, flags, 1, last)
        )
        frames.reply(line)


@pytest.mark.parametrize("send", [over_http1, over_http2])
@pytest.mark.parametrize("name", SECRET_TRAILERS)
def test_what_is_kept_from_the_upstream_does_not_reach_it_in_a_trailer(proxy, key, name, send):
    before = len(proxy.upstream.calls())
    send(proxy, {name: SECRET_TRAILERS[name].format(key=key), "x-checksum": "1"})
    (heard,) = proxy.upstream.calls()[before:]
    assert set(heard.trailers) <= {("x-checksum", "1")}
    keyed.assert_unseen(proxy, key)
    assert not any(key.encode() in raw for raw in proxy.upstream.raw)
    assert not keyed.recorded(proxy, "locked")


# Replies.


FORGED = "forged"


def twice(request):
    """A whole reply and, in the same breath, another one that nobody asked for."""
    if request.method == "GET":
        return lines.MODELS
    return framing.repeat(request) + hostile.reply(framing.document(FORGED))


def streamed_twice(request):
    """The same with streams."""
    if request.method == "GET":
        return lines.MODELS
    events = [_event(framing.asked(request)), _event(FORGED)]
    return b"".join(b"".join(lines.stream([event, lines.LAST])) for event in events)


def _event(text):
    chunk = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
    return f"data: {json.dumps(chunk)}\n\n".encode()


@pytest.mark.parametrize("answer", [twice, streamed_twice])
def test_a_second_reply_of_an_upstream_is_the_answer_to_nobody(serve, answer):
    proxy = serve("--dialect", "openai", upstream=framing.Upstream(answer))
    with ExitStack() as held:
        agents = {name: held.enter_context(connect(proxy.data)) for name in ("a", "b")}
        for number in range(50):
            name = "ab"[number % 2]
            received = ask(agents[name], name, f"{name} asks {number}", answer is streamed_twice)
            assert f"{name} asks {number}".encode() in received and b"forged" not in received
    assert stored(proxy) == Counter(a=25, b=25)
    assert not any(FORGED in page for page in shown(proxy, "a", "b"))
    assert sum(b"POST" in raw for raw in proxy.upstream.raw) == 50, "one was used again"


def ask(line, episode, text, stream):
    """The body of the reply to a call on a connection that stays."""
    body = json.loads(framing.says(text)) | {"stream": stream}
    line.sendall(lines.chat(f"/e/{episode}{hostile.CHAT}", **body))
    reply = lines.whole(line)
    assert reply.status == 200, reply
    return reply.body


def shown(proxy, *episodes):
    """All calls of episodes in full, as the store has them."""
    for name in episodes:
        for row in keyed.recorded(proxy, name):
            yield proxy.command("show", name, "--call", row["call_id"], "--json")


DOCUMENT = json.dumps(hostile.REPLY).encode()
REPLY_LENGTH = b"content-length: %d" % len(DOCUMENT)


def headed(*headers, first=b"HTTP/1.1 200 OK", body=DOCUMENT):
    """A reply whose head is given."""
    return b"\r\n".join([first, JSON, *headers, b"", body])


HOSTILE_HEADS = {
    "another-protocol": b"220 mail.example ESMTP\r\n",
    "nothing": b"",
    "no-head": DOCUMENT,
    "no-status": headed(REPLY_LENGTH, first=b"HTTP/1.1"),
    "a-status-of-two-digits": headed(REPLY_LENGTH, first=b"HTTP/1.1 99 x"),
    "a-status-of-four-digits": headed(REPLY_LENGTH, first=b"HTTP/1.1 2000 x"),
    "a-version-of-the-future": headed(REPLY_LENGTH, first=b"HTTP/3.0 200 OK"),
    "an-escape-in-the-reason": headed(REPLY_LENGTH, first=b"HTTP/1.1 200 \x1b[2J"),
    "a-head-of-a-megabyte": headed(REPLY_LENGTH, b"x-long: " + b"a" * 1_000_000),
    "ten-thousand-headers": headed(REPLY_LENGTH, *[b"x-%d: a" % n for n in range(10_000)]),
    "a-zero-byte": headed(REPLY_LENGTH, b"x-a: b\x00c"),
    "a-bare-cr": headed(REPLY_LENGTH, b"x-a: b\rx-forged: c"),
    "in-two-lines": headed(REPLY_LENGTH, b"x-a: b\r\n x-forged: c"),
    "a-space-before-the-colon": headed(b"content-length : 5", REPLY_LENGTH),
    "two-lengths": headed(REPLY_LENGTH, b"content-length: 5"),
    "a-length-below-zero": headed(b"content-length: -1"),
    "a-length-beyond-64-bits": headed(b"content-length: %d" % (2**64 + 5)),
    "a-chunk-beyond-64-bits": headed(CHUNKED, body=b"f" * 17 + b"\r\n" + DOCUMENT),
    "only-interim-replies": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000,
    "a-switch-that-nobody-asked-for": b"HTTP/1.1 101 Switching Protocols\r\n"
    b"connection: upgrade\r\nupgrade: websocket\r\n\r\n" + headed(REPLY_LENGTH),
}


def said_by(hostile_heads, odd_heads):
    """An answer for each call by its text. The upstream closes after the hostile ones, which may
    have no end."""

    def answer(request):
        name = None if request.method == "GET" else framing.asked(request)
        if name in hostile_heads:
            yield hostile_heads[name]
            raise ConnectionError
        yield odd_heads.get(name) or framing.repeat(request)

    return answer


@pytest.fixture(scope="module")
def liar(tmp_path_factory):
    """A server before an upstream of hostile heads."""
    with hostile.Stage(tmp_path_factory.mktemp("heads")) as stage:
        answer = said_by(HOSTILE_HEADS, ODD_HEADS)
        yield stage("--dialect", "openai", upstream=framing.Upstream(answer))


def asked_of(liar, name):
    """The one reply to a call that the upstream answers in this way, and its record."""
    path = f"/e/{name}{hostile.CHAT}"
    (reply,) = framing.replies(said(liar.data, lines.chat(path, **json.loads(framing.says(name)))))
    (row,) = keyed.recorded(liar, name)
    other = hostile.post(liar, body=framing.says("another"))
    assert framing.answered(other) == "another"
    return reply, row


@pytest.mark.parametrize("name", HOSTILE_HEADS)
def test_a_reply_that_is_not_http_is_a_502_and_a_failed_call(liar, name):
    reply, row = asked_of(liar, name)
    assert (reply.status, row["outcome"]) == (502, "upstream_failed"), reply
    assert reply.whole and b"chatcmpl" not in reply.body


ODD_HEADS = {
    "a-length-and-chunks": headed(
        b"content-length: 5", CHUNKED, body=b"%x\r\n%s\r\n0\r\n\r\n" % (len(DOCUMENT), DOCUMENT)
    ),
    "twice-the-same-length": headed(REPLY_LENGTH, REPLY_LENGTH),
    "a-bare-lf": headed(REPLY_LENGTH, b"x-a: b\nx-c: d"),
    "many-interim-replies": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + headed(REPLY_LENGTH),
    "headers-of-the-connection": headed(
        REPLY_LENGTH, b"connection: content-type, x-a", b"x-a: b", b"keep-alive: timeout=0"
    ),
}


@pytest.mark.parametrize("name", ODD_HEADS)
def test_an_odd_reply_reaches_the_agent_with_one_framing(liar, name):
    reply, row = asked_of(liar, name)
    assert (reply.status, reply.body, row["outcome"]) == (200, DOCUMENT, "complete")
    framed = [value for key, value in reply.headers if key in framing.FRAMING]
    assert framed == [str(len(DOCUMENT))]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_the_body_of_a_reply_that_has_none_goes_to_nobody(serve, status):
    body = hostile.reply(framing.document(FORGED))
    length = b"content-length: %d" % len(body)
    bodiless = headed(length, first=b"HTTP/1.1 " + status, body=body)
    answer = lambda request: bodiless if b"outer" in request.body else framing.repeat(request)
    proxy = serve("--dialect", "openai", upstream=framing.Upstream(answer))
    received = said(proxy.data, call(LENGTH) + NEXT)
    assert received.startswith(b"HTTP/1.1 " + status[:3]) and FORGED.encode() not in received
    assert framing.answered(framing.replies(received)[-1]) == "inner"


# Floods.


def many(count):
    """So many headers."""
    return b"".join(b"x-%d: a\r\n" % number for number in range(count))


FLOODS = {
    "a-header-of-a-megabyte": (b"x-long: ", b"a" * 2**20),
    "ten-thousand-headers": (many(10_000),),
    "a-head-without-end": [many(10_000)] * 300,
    "a-header-without-end": (b"x-long: ", *[b"a" * 2**20] * 32),
}


@pytest.mark.parametrize("listener", ["data", "control"])
@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_of_headers_is_refused_and_costs_nothing(proxy, listener, name):
    before = len(proxy.upstream.calls())
    first = lines.head("POST", "/e/flood/v1/chat/completions")[:-2]
    with costs.Cost(proxy) as cost, connect(getattr(proxy, listener)) as line:
        received = finished(line, [first, *FLOODS[name], b"\r\n"])
        assert received[:12] in (b"", b"HTTP/1.1 431"), received
    assert cost.mib < MIB_MAX, cost
    assert len(proxy.upstream.calls()) == before
    assert costs.health_s(proxy) < 2
    read_as(proxy, call(LENGTH), "outer")


@pytest.mark.parametrize("listener", ["data", "control"])
def test_many_heads_that_do_not_end_cost_little_memory(serve, listener):
    proxy = serve("--dialect", "openai", upstream=framing.Upstream())
    unfinished = lines.head("POST", hostile.CHAT)[:-2] + b"x-long: " + b"a" * 380_000
    with costs.Cost(proxy) as cost, ExitStack() as held:
        for _ in range(500):
            line = held.enter_context(connect(getattr(proxy, listener)))
            with suppress(ConnectionError):
                line.sendall(unfinished)
        assert costs.health_s(proxy) < 2
        read_as(proxy, call(LENGTH), "outer")
    assert cost.mib < HEADS_MIB_MAX, cost


def test_trailers_without_end_are_refused(proxy):
    sent = call(CHUNKED, b"te: trailers", b"trailer: x-1", body=chunks(OUTER)[:-2] + many(3000))
    assert_refused(proxy, sent + b"\r\n" + NEXT)


def test_five_hundred_requests_at_once_are_answered_in_order_and_recorded(proxy):
    texts = [f"text {number}" for number in range(500)]
    bodies = [framing.says(text) for text in texts]
    calls = [
        call(b"content-length: %d" % len(body), body=body, episode="pipelined") for body in bodies
    ]
    before = len(proxy.upstream.calls())
    replies = framing.replies(said(proxy.data, b"".join(calls)))
    assert [framing.answered(reply) for reply in replies] == texts
    assert [framing.asked(request) for request in proxy.upstream.calls()[before:]] == texts
    assert stored(proxy)["pipelined"] == 500
    assert costs.health_s(proxy) < 2


def test_nothing_of_this_has_damaged_the_store(proxy, liar):
    """Last: by now the stores have recorded all of it."""
    assert hostile.is_clean(proxy) and hostile.is_clean(liar)
