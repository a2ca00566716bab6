"""The memory of all calls together: its ceiling, and what one agent or reply can hold of it."""

import json
import os
import socket
import time
import zlib

import costs
import harness
import hostile
import http1
import lines
import pytest
from costs import Cost

MIB, KIB = 1 << 20, 1 << 10
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"' + b"a" * 4000 + b'"}}]}\n\n'
FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAMED = hostile.BODY | {"stream": True}


def long_stream(mib):
    """A streamed reply of about `mib` MiB."""
    return costs.closing(costs.stream(), *([EVENT] * (mib * MIB // len(EVENT))), FINISH + DONE)


class Open:
    """A request whose body is under way, or whose reply nobody reads."""

    def __init__(self, proxy, sent):
        self._line = socket.socket()
        # A buffer of the system's own choice would read megabytes for an agent that does not.
        self._line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        self._line.settimeout(20)
        self._line.connect(proxy.data)
        self.send(sent)

    def send(self, sent):
        self._line.sendall(sent)

    def read(self):
        """All that comes until the other side closes."""
        received = bytearray()
        while piece := self._line.recv(1 << 18):
            received += piece
        return bytes(received)

    def close(self):
        self._line.close()


def call(path="/e/a" + hostile.CHAT, body=STREAMED):
    body = json.dumps(body).encode()
    return http1.request("POST", path, body, [("content-type", "application/json")])


def begun(length, path="/e/a" + hostile.CHAT):
    """The head of a request whose body has `length` bytes."""
    lines = [f"POST {path} HTTP/1.1", "host: test", f"content-length: {length}"]
    return "\r\n".join(lines).encode() + http1.HEAD_END


@pytest.fixture
def filled(serve):
    """A server whose memory is taken by a body that does not end."""
    proxy = serve("--dialect", "vllm", "--memory-max", "64KiB")
    body = Open(proxy, begun(MIB))
    body.send(b" " * (16 * KIB))
    # The body is charged twice. A quarter of the ceiling is not for new calls.
    harness.until("the charge", lambda: lines.metric(proxy, "rolltape_memory_bytes") >= 30 * KIB)
    yield proxy, body
    body.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/embeddings"])
def test_a_call_beyond_the_ceiling_is_told_to_come_back(filled, path):
    proxy, _ = filled
    reply = hostile.post(proxy, path, hostile.BODY | {"x": "y" * (8 * KIB)})
    assert (reply.status, reply.header("retry-after")) == (503, "1")
    assert json.loads(reply.body)["error"]["type"] == "overloaded_error"
    assert not proxy.upstream.calls()


def test_the_messages_wire_is_told_in_its_own_form(filled):
    proxy, _ = filled
    reply = hostile.post(proxy, "/v1/messages", hostile.BODY | {"x": "y" * (8 * KIB)})
    told = json.loads(reply.body)
    assert reply.status == 503
    assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")


def test_health_and_control_are_served_at_the_ceiling(filled):
    proxy, _ = filled
    assert costs.health_s(proxy) < 2
    assert lines.metric(proxy, "rolltape_memory_bytes_max") == 64 * KIB


def test_calls_that_were_refused_for_memory_are_counted(filled):
    proxy, _ = filled
    before = lines.metric(proxy, "rolltape_calls_shed_total")
    for _ in range(3):
        hostile.post(proxy, body=hostile.BODY | {"x": "y" * (8 * KIB)})
    assert lines.metric(proxy, "rolltape_calls_shed_total") == before + 3


def test_memory_comes_back_when_an_agent_leaves(filled):
    proxy, body = filled
    body.close()
    harness.until("memory", lambda: lines.metric(proxy, "rolltape_memory_bytes") == 0)
    assert hostile.post(proxy, body=hostile.BODY | {"x": "y" * (8 * KIB)}).status == 200


def test_a_body_that_is_announced_and_not_sent_takes_no_memory(serve):
    proxy = serve("--memory-max", "32MiB")
    waiting = [Open(proxy, begun(60 * MIB)) for _ in range(8)]
    assert hostile.post(proxy).status == 200
    assert lines.metric(proxy, "rolltape_memory_bytes") < MIB
    for body in waiting:
        body.close()


def test_twelve_long_bodies_at_once_stay_below_the_ceiling(serve):
    proxy = serve("--dialect", "vllm", "--memory-max", "32MiB")
    body = json.dumps(hostile.BODY | {"x": "y" * (4 * MIB)}).encode()
    with Cost(proxy) as cost:
        replies = costs.at_once(12, lambda _: attempt(proxy, body))
    assert 200 in replies and set(replies) <= {200, 503, None}, replies
    # The store compresses one body at a time beside what the calls hold.
    assert cost.mib < 32 + 48, cost


def attempt(proxy, body):
    """The status of a call; None where the server closed before it took the body."""
    try:
        return hostile.post(proxy, "/e/a" + hostile.CHAT, body, timeout=60).status
    except ConnectionError:
        return None


def test_long_documents_at_once_stay_below_the_ceiling(serve):
    document = hostile.reply(json.dumps(hostile.REPLY | {"x": "y" * (3 * MIB)}).encode())
    proxy = serve("--dialect", "vllm", "--memory-max", "12MiB", answer=lambda request: document)
    with Cost(proxy) as cost:
        statuses = costs.at_once(3, lambda _: hostile.post(proxy, timeout=60).status)
    # They wait for each other rather than for more memory.
    assert 200 in statuses and set(statuses) <= {200, 503}, statuses
    assert cost.mib < 12 + 24, cost


def test_a_long_document_is_held_once(serve):
    mib = 24
    document = hostile.reply(json.dumps(hostile.REPLY | {"x": "y" * (mib * MIB)}).encode())
    proxy = serve("--dialect", "openai", answer=lambda request: document)
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, timeout=60)
    assert reply.status == 200 and len(reply.body) > mib * MIB
    # Once for the agent and the record, once more while it is read and while it is stored.
    assert cost.mib < 4.5 * mib, cost


def test_documents_that_nobody_reads_stay_below_the_ceiling(serve):
    mib, agents, ceiling = 8, 40, 256
    document = hostile.reply(json.dumps(hostile.REPLY | {"x": "y" * (mib * MIB)}).encode())
    options = ("--dialect", "openai", "--memory-max", f"{ceiling}MiB")
    proxy = serve(*options, answer=lambda request: document)
    with Cost(proxy) as cost:
        stalled = [Open(proxy, call("/e/a" + hostile.CHAT, hostile.BODY)) for _ in range(agents)]
        query = "SELECT status FROM calls WHERE outcome IS NOT NULL"
        ended = lambda: hostile.rows(proxy, query)  # noqa: E731
        harness.until("the end of all calls", lambda: len(ended()) == agents, wait_s=120)
    statuses = [row["status"] for row in ended()]
    assert statuses.count(200) > 1 and set(statuses) == {200, 503}, statuses
    # The store packs bodies beside what the calls hold.
    assert cost.mib < ceiling + 128, cost
    for reader in stalled:
        reader.close()


def test_stalled_readers_hold_little_each(serve):
    readers, offered = 8, 6
    proxy = serve("--dialect", "vllm", answer=long_stream(offered))
    with Cost(proxy) as cost:
        stalled = [Open(proxy, call()) for _ in range(readers)]
        settle(proxy, readers)
    assert cost.mib < 2 * readers + 8, cost
    for reader in stalled:
        reader.close()


def settle(proxy, calls):
    """Waits until the upstream heard so many calls, and some looks in a row found no work."""
    seen = []

    def is_still():
        time.sleep(0.02)
        heard = len(proxy.upstream.calls())
        seen.append((heard, proxy.upstream.pieces, hostile.cpu_s(proxy)))
        return heard >= calls and len(seen) > 20 and len(set(seen[-20:])) == 1

    harness.until("the end of all work", is_still, wait_s=40)


def test_a_reader_that_goes_on_after_a_stall_gets_every_byte(serve):
    proxy = serve("--dialect", "vllm", answer=long_stream(4))
    reader = Open(proxy, call())
    settle(proxy, 1)
    reply, _ = http1.read(reader.read())
    assert reply.whole and reply.body == EVENT * (4 * MIB // len(EVENT)) + FINISH + DONE
    (row,) = hostile.rows(proxy, "SELECT outcome FROM calls")
    assert row["outcome"] == "complete" and hostile.is_clean(proxy)


def test_replies_beyond_the_ceiling_are_whole_for_agents_and_capped_in_the_record(serve):
    proxy = serve("--dialect", "vllm", "--memory-max", "2MiB", answer=long_stream(4))
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED, timeout=60)
    assert reply.whole and reply.body.endswith(DONE) and len(reply.body) > 4 * MIB - 8192
    (row,) = hostile.rows(proxy, "SELECT outcome FROM calls")
    assert row["outcome"] == "capped" and hostile.is_clean(proxy)
    assert cost.mib < 48, cost


def endless(form, mib, is_coded):
    """An answer to calls for embeddings: `mib` MiB as one document or as a stream, of which little
    shrinks, in gzip or as it is. Other calls get a reply."""
    block = os.urandom(MIB // 2).hex().encode()
    kind, start, end = {
        "document": ("application/json", b'{"data":"', b'"}'),
        "stream": ("text/event-stream", b"", DONE),
    }[form]
    part = block if form == "document" else b"data: " + block + b"\n\n"
    coding = "content-encoding: gzip\r\n" if is_coded else ""
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{coding}connection: close"

    def answer(request):
        if "embeddings" not in request.path:
            yield hostile.reply(hostile.REPLY, headers=[("connection", "close")])
            raise ConnectionError
        yield head.encode() + http1.HEAD_END
        # Not compressed: it is as long, and costs the test nothing.
        coder = zlib.compressobj(0, wbits=31)
        code = coder.compress if is_coded else lambda piece: piece
        for piece in [start, *[part] * mib, end]:
            yield code(piece)
        yield coder.flush() if is_coded else b""
        raise ConnectionError

    return answer


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_coded", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", ["document", "stream"])
def test_a_reply_of_many_times_what_is_kept_of_it_stays_below_the_ceiling(serve, form, is_coded):
    mib, ceiling = 400, 160
    answer = endless(form, mib, is_coded)
    proxy = serve("--dialect", "vllm", "--memory-max", f"{ceiling}MiB", answer=answer)
    with Cost(proxy) as cost:
        line = Open(proxy, call("/e/a/v1/embeddings", hostile.BODY))
        received, statuses = 0, set()
        while piece := line._line.recv(1 << 20):
            received += len(piece)
            if received > len(statuses) * 100 * MIB:
                statuses |= {(len(statuses), hostile.post(proxy, "/e/b" + hostile.CHAT).status)}
    assert received > mib * MIB and {status for _, status in statuses} == {200}, statuses
    assert cost.mib < ceiling, cost
    (row,) = hostile.rows(proxy, "SELECT outcome FROM calls WHERE path = '/v1/embeddings'")
    assert row["outcome"] == "capped" and hostile.is_clean(proxy)


def test_streams_that_were_relayed_leave_no_memory_behind(serve):
    proxy = serve("--dialect", "vllm", answer=long_stream(3))
    take = lambda: hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED, timeout=60)  # noqa: E731
    take()
    with Cost(proxy) as cost:
        for _ in range(4):
            take()
    # Each was 3 MiB: what one takes is used again by the next.
    assert cost.mib < 24, cost


def test_the_account_is_empty_after_calls_of_every_kind(serve):
    proxy = serve("--dialect", "vllm", answer=long_stream(1))
    for path in ["/e/a/v1/chat/completions", "/v1/messages", "/v1/embeddings"]:
        hostile.post(proxy, path, STREAMED | {"max_tokens": 5}, timeout=60)
    harness.until("memory", lambda: lines.metric(proxy, "rolltape_memory_bytes") == 0)


@pytest.mark.parametrize("text", ["0", "-1", "much", "4XB", ""])
def test_a_ceiling_that_is_no_size_is_refused(tmp_path, text):
    arguments = ["serve", "--upstream", "http://127.0.0.1:9", f"--memory-max={text}"]
    ended = harness.command(*arguments, folder=tmp_path)
    assert ended.returncode == 2 and "--memory-max" in ended.stderr
