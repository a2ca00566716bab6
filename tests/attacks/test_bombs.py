"""Bodies that are small on the wire and large in memory, or dear to read."""

import hashlib
import json

import costs
import hostile
import pytest
from costs import Cost

MIB = 1 << 20
BOMB_MIB_MAX = 24
"""Of memory; the debug build counts, too. A bomb took a hundred times as much."""
BOMB_CPU_S_MAX = 1.0
"""Of a debug build with unoptimized decoders."""

CHUNK = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}]}\n\n'
FINISH = 'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAMED = hostile.BODY | {"stream": True}


def is_cheap(cost):
    return cost.mib < BOMB_MIB_MAX and cost.cpu_s < BOMB_CPU_S_MAX


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server for requests that never reach its upstream."""
    with hostile.Stage(tmp_path_factory.mktemp("shared")) as stage:
        yield stage("--dialect", "vllm")


def request_bomb(codec, count=16 * MIB):
    """A small body of `count` messages."""
    head = b'{"model":"m","metadata":{"user_id":"x"},"messages":['
    return costs.coded(codec, head + b"{}," * count + b"{}]}")


@pytest.mark.parametrize("coding, codec", costs.CODED)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/e/a/v1/messages"])
def test_a_request_that_decodes_to_far_more_than_was_sent_is_refused(shared, coding, codec, path):
    body = request_bomb(codec)
    with Cost(shared) as cost:
        reply = hostile.post(shared, path, body, [("content-encoding", coding)])
    assert reply.status == 413 and "decodes to more" in json.loads(reply.body)["error"]["message"]
    assert is_cheap(cost), cost


def test_the_request_of_75_bytes_is_refused_at_no_cost(shared):
    body = costs.coded("brotli", b'{"model":"m","messages":[],"x":"' + b" " * (20 * MIB) + b'"}')
    assert len(body) <= 75
    with Cost(shared) as cost:
        reply = hostile.post(shared, body=body, headers=[("content-encoding", "br")])
    assert reply.status == 413 and cost.mib <= 16 and cost.cpu_s <= 0.1, cost


def test_ten_request_bombs_at_once_leave_health_and_others_alone(shared):
    body = request_bomb("brotli")
    coding = [("content-encoding", "br")]
    with Cost(shared) as cost:
        replies = costs.at_once(10, lambda _: hostile.post(shared, body=body, headers=coding))
        assert costs.health_s(shared) < 2
    assert {reply.status for reply in replies} == {413}
    assert cost.mib < 2 * BOMB_MIB_MAX and cost.cpu_s < 2, cost


@pytest.mark.parametrize("coding, codec", costs.CODED)
def test_a_history_that_repeats_itself_may_shrink_a_hundredfold(serve, coding, codec):
    proxy = serve("--dialect", "vllm")
    words = "".join(hashlib.sha256(b"%d" % number).hexdigest() for number in range(450))
    turns = [{"role": "user", "content": words}] * 40
    body = json.dumps({"model": "m", "messages": turns}).encode()
    sent = costs.coded(codec, body)
    assert len(body) > MIB and len(body) / len(sent) > 20
    headers = [("content-encoding", coding)]
    assert hostile.post(proxy, "/e/a" + hostile.CHAT, sent, headers).status == 200
    assert json.loads(proxy.upstream.calls()[0].body)["messages"] == turns


def test_a_coded_body_of_another_route_passes_as_it_came(serve):
    proxy = serve("--dialect", "vllm")
    body = request_bomb("brotli")
    headers = [("content-encoding", "br")]
    with Cost(proxy) as cost:
        assert hostile.post(proxy, "/v1/embeddings", body, headers).status == 200
    assert proxy.upstream.calls()[0].body == body
    assert is_cheap(cost), cost


def test_a_compressed_reply_of_68_bytes_costs_nothing(serve):
    document = b'{"choices":[{"index":0}],"x":"' + b" " * (16 * MIB) + b'"}'
    body = costs.coded("brotli", document)
    assert len(body) <= 68
    bomb = hostile.reply(body, headers=[("content-encoding", "br")])
    proxy = serve("--dialect", "vllm", answer=lambda request: bomb)
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT)
    assert reply.status == 502 and cost.mib <= 16 and cost.cpu_s <= 0.1, cost
    (call,) = hostile.rows(proxy, "SELECT outcome, error FROM calls")
    assert call["outcome"] == "upstream_failed" and "decodes to more" in call["error"]


@pytest.mark.parametrize("coding, codec", costs.CODED)
def test_a_compressed_reply_that_is_a_bomb_is_a_502(serve, coding, codec):
    body = costs.coded(codec, b'{"choices":[' + b"{}," * (16 * MIB) + b"{}]}")
    bomb = hostile.reply(body, headers=[("content-encoding", coding)])
    proxy = serve("--dialect", "vllm", answer=lambda request: bomb)
    with Cost(proxy) as cost:
        assert hostile.post(proxy).status == 502
    assert is_cheap(cost) and hostile.is_clean(proxy), cost


@pytest.mark.parametrize("coding, codec", costs.CODED)
def test_a_compressed_stream_that_is_a_bomb_is_broken_off(serve, coding, codec):
    body = costs.coded(codec, b"data: {}\n\n" * (8 * MIB))
    answer = costs.closing(costs.stream(body, headers=[("content-encoding", coding)]))
    proxy = serve("--dialect", "vllm", answer=answer)
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED)
    # What came before the bound is relayed.
    assert len(reply.body) < 4 * MIB and not reply.whole
    assert cost.mib < 2 * BOMB_MIB_MAX, cost
    (call,) = hostile.rows(proxy, "SELECT outcome FROM calls")
    assert call["outcome"] == "upstream_failed"


def test_a_compressed_reply_of_another_route_passes_as_it_came(serve):
    body = costs.coded("gzip", b" " * (64 * MIB))
    bomb = hostile.reply(body, headers=[("content-encoding", "gzip")])
    proxy = serve("--dialect", "vllm", answer=lambda request: bomb)
    accepts = [("accept-encoding", "gzip")]
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a/v1/embeddings", headers=accepts)
    assert reply.status == 200 and reply.body == body
    assert cost.mib < 2 * BOMB_MIB_MAX, cost


def test_choices_that_nobody_asked_for_are_bytes_only(serve):
    body = b'{"choices":[' + b"{}," * (2 * MIB // 3) + b"{}]}"
    proxy = serve("--dialect", "vllm", answer=lambda request: hostile.reply(body))
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT)
    assert reply.status == 200 and reply.body == body
    assert cost.mib < 8 * 2 + BOMB_MIB_MAX, cost
    (call,) = hostile.rows(proxy, "SELECT outcome, error FROM calls")
    assert call["outcome"] == "complete" or "more choices" in call["error"], call
    assert len(hostile.rows(proxy, "SELECT 1 FROM choices")) <= 1
    assert hostile.is_clean(proxy)


@pytest.mark.parametrize("n", [1, 3])
def test_a_reply_has_no_more_rows_of_choices_than_were_asked_for(serve, n):
    choices = [{"index": index, "token_ids": [1], "message": {}} for index in range(30_003)]
    body = json.dumps({"choices": choices}).encode()
    proxy = serve("--dialect", "vllm", answer=lambda request: hostile.reply(body))
    assert hostile.post(proxy, "/e/a" + hostile.CHAT, hostile.BODY | {"n": n}).status == 200
    (call,) = hostile.rows(proxy, "SELECT outcome, error FROM calls")
    assert call["outcome"] == "capped" and "more choices" in call["error"]
    choices = hostile.rows(proxy, "SELECT * FROM choices")
    assert len(choices) == n and not any(choice["tokens"] for choice in choices)


def test_thousands_of_choices_that_were_asked_for_are_whole_and_cheap(serve):
    choices = [
        {"index": index, "token_ids": [1, 2], "message": {"content": "a"}, "finish_reason": "stop"}
        for index in range(4000)
    ]
    reply = hostile.reply({"choices": choices, "prompt_token_ids": [1]})
    proxy = serve("--dialect", "vllm", answer=lambda request: reply)
    with Cost(proxy) as cost:
        got = hostile.post(proxy, "/e/a" + hostile.CHAT, hostile.BODY | {"n": len(choices)})
    assert len(json.loads(got.body)["choices"]) == len(choices)
    assert is_cheap(cost), cost
    (stored,) = hostile.rows(proxy, "SELECT count(*) AS rows, sum(tokens) AS ids FROM choices")
    assert stored == {"rows": len(choices), "ids": 2 * len(choices)}
    assert hostile.is_clean(proxy)


def test_streamed_choices_that_nobody_asked_for_make_no_rows(serve):
    events = [
        b'data: {"choices":[{"index":%d,"delta":{"content":"a"}}]}\n\n' % index
        for index in range(20_000)
    ]
    proxy = serve("--dialect", "vllm", answer=costs.closing(costs.stream(*events, DONE)))
    reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED)
    assert reply.body == b"".join([*events, DONE])
    assert len(hostile.rows(proxy, "SELECT 1 FROM choices")) == 1


def test_tokens_without_end_take_no_memory_without_end(serve):
    tokens = b"{}," * 100_000 + b"{}"
    event = b'data: {"choices":[{"delta":{},"logprobs":{"content":[' + tokens + b"]}}]}\n\n"
    events = [costs.stream(), *([event] * 30), FINISH.encode(), DONE]
    proxy = serve("--dialect", "vllm", answer=costs.closing(*events))
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED, timeout=60)
    assert reply.body.endswith(DONE) and cost.mib < 110, cost
    (call,) = hostile.rows(proxy, "SELECT outcome, error FROM calls")
    assert call["outcome"] == "capped" and "more choices or tokens" in call["error"]


def test_the_ids_of_a_long_honest_reply_are_all_kept(serve):
    chunk = [1] * 1000
    event = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}, "token_ids": chunk}]})
    events = [f"data: {event}\n\n".encode()] * 130
    proxy = serve(
        "--dialect", "vllm", answer=costs.closing(costs.stream(*events, FINISH.encode(), DONE))
    )
    assert hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED).body.endswith(DONE)
    (choice,) = hostile.rows(proxy, "SELECT * FROM choices")
    assert choice["tokens"] == 130_000


def many_lines(count):
    """An event of `count` lines, each with a field that is hidden from the agent."""
    line = b'data:{"logprobs":{},"token_ids":[1]},\n'
    return b'data:{"choices":[\n' + line * count + b"data:{}]}\n\n"


def test_an_event_of_many_lines_is_read_in_linear_time(serve):
    small, large = many_lines(5_000), many_lines(20_000)
    answers = [large, small]

    def answer(request):
        event = answers.pop() if request.method == "POST" else b""
        return costs.closing(costs.stream(event, DONE))(request)

    proxy = serve("--dialect", "vllm", answer=answer)
    spent = []
    for _ in range(2):
        with Cost(proxy) as cost:
            hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED)
        spent.append(cost.cpu_s)
    # Four times as much; quadratic it would be sixteen.
    assert spent[1] < 9 * max(spent[0], 0.05) and spent[1] < 3, spent


def test_an_event_of_endless_lines_is_broken_off(serve):
    event = b"data:{}\n" * 400_000 + b"\n"
    proxy = serve("--dialect", "vllm", answer=costs.closing(costs.stream(event, DONE)))
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED)
    assert not reply.whole and cost.cpu_s < 2 and cost.mib < BOMB_MIB_MAX, cost
    (call,) = hostile.rows(proxy, "SELECT outcome, error FROM calls")
    assert call["outcome"] == "upstream_failed" and "lines" in call["error"]


def test_a_line_without_an_end_is_broken_off(serve):
    pieces = [costs.stream(b'data: {"x":"'), *([b"a" * MIB] * 128)]
    proxy = serve("--dialect", "vllm", answer=costs.closing(*pieces))
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED)
    assert not reply.whole and cost.cpu_s < 2 and cost.mib < 64 + BOMB_MIB_MAX, cost
    (call,) = hostile.rows(proxy, "SELECT outcome, error FROM calls")
    assert call["outcome"] == "upstream_failed" and "longer than" in call["error"]
    assert hostile.is_clean(proxy)


def endless():
    """A document that does not end."""
    yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"%x\r\n%s\r\n" % (MIB, b" " * MIB)


def models(*found):
    """A list of models."""
    return hostile.reply({"object": "list", "data": list(found)})


ZIPPED = [("content-encoding", "gzip")]
LISTS = {
    "long": models(*({"id": f"m{number}", "owned_by": "vllm"} for number in range(300_000))),
    "deep": hostile.reply(b'{"data":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "no list": hostile.reply({"data": {"id": 7}, "object": []}),
    "odd": models({"id": None, "owned_by": ["vllm"]}, 7, None, []),
    "lying": models({"id": "m\r\nx: 1", "owned_by": "vllm", "max_model_len": -1, "root": "/"}),
    "long names": models({"id": "m" * (4 * MIB), "owned_by": "vllm" * MIB}),
    "empty": hostile.reply(b""),
    "a bomb": hostile.reply(costs.coded("gzip", b" " * (64 * MIB)), headers=ZIPPED),
    "endless": None,
    "of two lengths": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
}
UNREADABLE = ["endless", "of two lengths"]
"""Until such an upstream says what it is, it gets no calls."""


@pytest.mark.parametrize("name", LISTS)
def test_no_list_of_models_keeps_a_server_from_starting_or_fills_its_memory(serve, name):
    lists = [LISTS[name]]

    def answer(request):
        return hostile.reply(hostile.REPLY) if request.method == "POST" else lists[0] or endless()

    proxy = serve(answer=answer)
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT)
    assert reply.status == (502 if name in UNREADABLE else 200), reply
    assert is_cheap(cost) and hostile.peak_mib(proxy) < 100, cost
    lists[0] = models({"id": "m", "owned_by": "vllm"})
    reply = hostile.post(proxy, "/e/a" + hostile.CHAT)
    assert reply.status == 200 and json.loads(reply.body) == hostile.REPLY
    assert hostile.is_alive(proxy) and hostile.is_clean(proxy)


def test_blank_lines_without_end_are_relayed_at_little_cost(serve):
    proxy = serve("--dialect", "vllm", answer=costs.closing(costs.stream(b"\n" * 200_000, DONE)))
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/v1/chat/completions", STREAMED)
    assert reply.body == b"\n" * 200_000 + DONE and cost.mib < BOMB_MIB_MAX, cost


def test_a_frame_of_many_deltas_is_not_multiplied(serve):
    calls = ",".join('{"index":0}' for _ in range(20_000))
    frame = f'data: {{"choices":[{{"index":0,"delta":{{"tool_calls":[{calls}]}},"token_ids":[1]}}]}}'
    answer = costs.closing(costs.stream(frame.encode() + b"\n\n", DONE))
    proxy = serve("--dialect", "vllm", answer=answer)
    with Cost(proxy) as cost:
        reply = hostile.post(proxy, "/e/a" + hostile.CHAT, STREAMED)
    assert len(reply.body) < 2 * len(frame) and cost.mib < BOMB_MIB_MAX, cost


@pytest.mark.parametrize("path", ["/e/a/v1/chat/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[],"x":' + b"[" * 600 + b"]" * 600 + b"}",
        b'{"model":"m","messages":[]' + b',"x":1' * 5000 + b"}",
    ],
    ids=["deep", "wide"],
)
def test_a_body_beyond_the_bounds_of_json_does_not_escape_forced_sampling(serve, path, body):
    proxy = serve("--dialect", "vllm", "--force-sampling", "temperature=0.5")
    assert hostile.post(proxy, path, body).status == 400
    assert not proxy.upstream.calls()


@pytest.mark.parametrize("kind", ["messages", "arguments", "metadata", "prompt"])
def test_a_plain_body_is_never_held_as_a_large_tree(serve, kind):
    many = "1," * (2 * MIB)
    path, body = "/v1/chat/completions", {
        "messages": f'{{"model":"m","messages":[{many}1]}}',
        "arguments": '{"model":"m","messages":[{"role":"assistant","tool_calls":[{"function":'
        f'{{"name":"f","arguments":"[{many}1]"}}}}]}}]}}',
        "metadata": f'{{"model":"m","messages":[],"metadata":[{many}1]}}',
        "prompt": f'{{"model":"m","prompt":[{many}1]}}',
    }[kind]
    if kind == "prompt":
        path = "/v1/completions"
    proxy = serve("--dialect", "vllm")
    with Cost(proxy) as cost:
        assert hostile.post(proxy, path, body.encode()).status == 200
    # The body is held about five times; as a tree it took a hundred times its length.
    assert cost.mib < 48, cost


@pytest.mark.parametrize("kind", ["error", "stop_reason", "finish_reason", "model"])
def test_long_words_of_an_upstream_are_cut_in_the_record(serve, kind):
    long = "x" * (4 * MIB)
    reply = json.loads(json.dumps(hostile.REPLY))
    if kind in ("stop_reason", "finish_reason"):
        reply["choices"][0][kind] = long
    else:
        reply[kind] = long if kind == "model" else {"message": long}
    proxy = serve("--dialect", "vllm", answer=lambda request: hostile.reply(reply))
    got = hostile.post(proxy, "/e/a" + hostile.CHAT)
    assert got.body == json.dumps(reply).encode()
    (call,) = hostile.rows(proxy, "SELECT error, model FROM calls")
    (choice,) = hostile.rows(proxy, "SELECT finish_reason, stop_reason FROM choices")
    assert all(len(word) <= 1 << 16 for word in [*call.values(), *choice.values()] if word)


def test_a_model_of_megabytes_has_no_name_in_the_record(serve):
    proxy = serve("--dialect", "vllm")
    hostile.post(proxy, "/e/a" + hostile.CHAT, hostile.BODY | {"model": "m" * (2 * MIB)})
    (call,) = hostile.rows(proxy, "SELECT requested_model FROM call")
    assert all(len(word) < 4096 for word in call.values() if isinstance(word, str))


def test_messages_within_messages_do_not_exhaust_the_stack(serve):
    depth = 200_000
    nested = b'{"message":' * depth + b"{}" + b"}" * depth
    answer = costs.closing(costs.stream(b"data: " + nested + b"\n\n"))
    proxy = serve("--dialect", "openai", answer=answer)
    hostile.post(proxy, "/e/a/v1/messages", STREAMED | {"max_tokens": 1})
    assert hostile.is_alive(proxy)


def test_a_chunk_of_a_translated_stream_is_not_held_as_a_large_tree(serve):
    chunk = b'data: {"choices":[{"index":0,"delta":{},"x":[' + b"1," * (3 * MIB) + b"1]}]}\n\n"
    answer = costs.closing(costs.stream(chunk, FINISH.encode(), DONE))
    proxy = serve("--dialect", "vllm", answer=answer)
    with Cost(proxy) as cost:
        hostile.post(proxy, "/e/a/v1/messages", STREAMED | {"max_tokens": 1})
    assert cost.mib < 48, cost
