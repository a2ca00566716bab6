"""The same requests with and without the recorder give the agent the same bytes."""

import json
import re
from dataclasses import dataclass

import pytest

import http1
from game import QUESTION, TOKENS_MAX, TOOL

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
JSON = (("content-type", "application/json"),)
# What differs between any two replies of one server.
VOLATILE = (
    (re.compile(rb'"id":"(chatcmpl|cmpl)-[0-9a-f]{32}"'), rb'"id":"\1-0"'),
    (re.compile(rb'"id":"chatcmpl-tool-[0-9a-f]{32}"'), rb'"id":"chatcmpl-tool-0"'),
    (re.compile(rb'"created":\d+'), b'"created":0'),
    # The second of two equal calls finds its prompt in the engine's cache.
    (re.compile(rb'"(cached_tokens|created_cache_tokens)":\d+'), rb'"\1":0'),
)
# What belongs to one connection or one moment.
OF_THE_HOP = {"connection", "content-length", "date", "keep-alive", "transfer-encoding"}

USER = {"role": "user", "content": QUESTION}
CALL = {"name": "guess", "arguments": '{"n": 4}'}
PLAYED = [
    USER,
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c1", "type": "function", "function": CALL}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "higher"},
]


@dataclass(frozen=True)
class Sent:
    """A request of an agent, without its connection."""

    body: bytes
    path: str = CHAT
    method: str = "POST"
    headers: tuple = JSON


def chat(**fields):
    """A chat request with a seed, so that its tokens are the same each time."""
    fields = {"model": "tiny", "messages": [USER], "seed": 11, "max_tokens": TOKENS_MAX, **fields}
    return Sent(json.dumps(fields).encode())


def completion(**fields):
    """A completion request with a seed."""
    fields = {"model": "tiny", "prompt": "system", "seed": 11, "max_tokens": 8, **fields}
    return Sent(json.dumps(fields).encode(), TEXT)


def raw(body, **more):
    """A request with a body of its own spelling."""
    return Sent(body if isinstance(body, bytes) else body.encode(), **more)


LEGAL = {
    "plain": {},
    "tools": {"tools": [TOOL]},
    "tool-history": {"tools": [TOOL], "messages": PLAYED},
    "two-choices": {"n": 2, "temperature": 1.0},
    "two-choices-tools": {"n": 2, "tools": [TOOL], "seed": 5},
    "stop": {"stop": ["number", "1"], "messages": PLAYED},
    "stop-tools": {"stop": "arguments", "tools": [TOOL]},
    "one-token": {"max_tokens": 1},
    "greedy": {"temperature": 0},
    "filtered": {"temperature": 0.7, "top_p": 0.9, "top_k": 5},
    "explicit-nulls": {"logprobs": None, "top_logprobs": None, "return_token_ids": None},
    "explicit-no": {"logprobs": False, "return_token_ids": False, "top_logprobs": 0},
    "logprobs": {"logprobs": True},
    "logprobs-tools": {"logprobs": True, "tools": [TOOL]},
    "top-logprobs": {"logprobs": True, "top_logprobs": 3, "tools": [TOOL]},
    "ids": {"return_token_ids": True},
    "ids-tools": {"return_token_ids": True, "tools": [TOOL]},
    "versions": {"return_weight_versions": True, "tools": [TOOL]},
    "everything": {
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "return_weight_versions": True,
        "tools": [TOOL],
        "n": 2,
    },
    "ids-as-tokens": {"logprobs": True, "return_tokens_as_token_ids": True},
}
STREAM_OPTIONS = {
    "usage": {"include_usage": True},
    "no-usage": {"include_usage": False},
    "usage-always": {"include_usage": True, "continuous_usage_stats": True},
}
TEXT_LEGAL = {
    "echo": {"echo": True},
    "echo-logprobs": {"echo": True, "logprobs": 1},
    "plain": {},
    "ids-prompt": {"prompt": [1, 5, 9]},
    "batch": {"prompt": [[1, 5], [1, 5, 9]]},
    "texts": {"prompt": ["system", "user"], "n": 2},
    "logprobs": {"logprobs": 0},
    "top-logprobs": {"logprobs": 3},
    "ids": {"return_token_ids": True},
    "everything": {"logprobs": 1, "return_token_ids": True, "return_weight_versions": True},
    "stop": {"stop": ["e"], "max_tokens": 16},
}


def legal():
    """Every legal request, whole and streamed."""
    for make, table in ((chat, LEGAL), (completion, TEXT_LEGAL)):
        for name, fields in table.items():
            yield f"{make.__name__}-{name}", make(**fields)
            yield f"{make.__name__}-{name}-streamed", make(stream=True, **fields)
        for name, options in STREAM_OPTIONS.items():
            streamed = make(stream=True, stream_options=options, n=2)
            yield f"{make.__name__}-stream-{name}", streamed


MESSAGES = json.dumps([USER])
REFUSED = {
    "other-model": chat(model="gpt-9"),
    "other-model-streamed": chat(model="gpt-9", stream=True),
    "other-model-completion": completion(model="gpt-9"),
    "malformed": raw('{"model": "tiny", "messages": ['),
    "not-an-object": raw("[1, 2]"),
    "empty-body": raw(b""),
    "not-utf8": raw(b'{"model": "\xff\xfe"}'),
    "two-documents": raw('{"model": "tiny"} {"model": "tiny"}'),
    "bad-temperature": chat(temperature="hot"),
    "negative-temperature": chat(temperature=-1),
    "bad-n": chat(n=0),
    "greedy-choices": chat(n=2, temperature=0),
    "bad-logprobs": chat(logprobs="yes"),
    "logprobs-number": chat(logprobs=1),
    "bad-completion-logprobs": completion(logprobs=True),
    "negative-completion-logprobs": completion(logprobs=-1),
    "many-completion-logprobs": completion(logprobs=1000),
    "top-logprobs-alone": chat(top_logprobs=2),
    "many-top-logprobs": chat(logprobs=True, top_logprobs=1000),
    "bad-token-ids": chat(return_token_ids="yes"),
    "bad-versions": chat(return_weight_versions=3),
    "no-messages": chat(messages=[]),
    "messages-text": chat(messages="hello"),
    "too-long": chat(max_tokens=100_000),
    "bad-stream": chat(stream="yes"),
    "options-without-stream": chat(stream_options={"include_usage": True}),
    "bad-tools": chat(tools=[{"type": "function"}]),
    "no-prompt": completion(prompt=None),
    "bad-token": completion(prompt=[1, 100_000]),
    "suffix": completion(suffix="and so on"),
    "unknown-route": Sent(b"{}", "/v1/embeddings"),
}
SPELLINGS = {
    "spaces": raw(f' \n{{ "messages" :{MESSAGES} , "seed":1 ,"max_tokens": 8\t}}\r\n '),
    "empty-object": raw("{}"),
    "escaped-key": raw(f'{{"messages":{MESSAGES},"seed":1,"log\\u0070robs":true}}'),
    "escaped-stream": raw(f'{{"messages":{MESSAGES},"seed":1,"str\\u0065am":true}}'),
    "twice-no-yes": raw(f'{{"messages":{MESSAGES},"seed":1,"logprobs":false,"logprobs":true}}'),
    "twice-yes-no": raw(f'{{"messages":{MESSAGES},"seed":1,"logprobs":true,"logprobs":false}}'),
    "twice-ids": raw(
        f'{{"messages":{MESSAGES},"seed":1,"return_token_ids":true,"return_token_ids":null}}'
    ),
    "stream-twice": raw(f'{{"messages":{MESSAGES},"seed":1,"stream":true,"stream":false}}'),
    "words-in-messages": chat(messages=[{"role": "user", "content": '"logprobs":null'}]),
    "not-ascii": chat(messages=[{"role": "user", "content": "Zürich \U0001f600 \\ud83d"}]),
    "no-content-type": Sent(chat().body, headers=()),
    "plain-text": Sent(chat().body, headers=(("content-type", "text/plain"),)),
    "gzip-accepted": Sent(chat().body, headers=(*JSON, ("accept-encoding", "gzip, br"))),
    "query": Sent(chat().body, CHAT + "?beta=true"),
    "chunked": Sent(
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(chat().body), chat().body),
        headers=(*JSON, ("transfer-encoding", "chunked")),
    ),
    "request-id": Sent(chat().body, headers=(*JSON, ("x-request-id", "mine"))),
    "big-prompt": chat(messages=[{"role": "user", "content": "ab " * 200}]),
    "models": Sent(b"", "/v1/models", "GET", ()),
    "models-head": Sent(b"", "/v1/models", "HEAD", ()),
    "health": Sent(b"", "/health", "GET", ()),
    "version": Sent(b"", "/version", "GET", ()),
}


def masked(body):
    """A body without what differs between any two replies."""
    for pattern, placeholder in VOLATILE:
        body = pattern.sub(placeholder, body)
    return body


def shown(message):
    """What two replies must have alike."""
    headers = sorted(pair for pair in message.headers if pair[0] not in OF_THE_HOP)
    return message.status, headers, masked(message.body)


def send(address, sent):
    """Sends a request and reads its reply to the end."""
    return http1.exchange(address, http1.request(sent.method, sent.path, sent.body, sent.headers))


def compare(world, sent):
    """Sends a request to both and compares; gives the reply of the engine itself."""
    direct = send(world.engine, sent)
    recorded = send(world.proxy.data, sent)
    assert direct.whole and recorded.whole
    assert shown(recorded) == shown(direct)
    return direct


def cases(table):
    """Parameters of a test, each under its name."""
    return pytest.mark.parametrize("sent", [pytest.param(s, id=name) for name, s in table.items()])


@cases(dict(legal()))
def test_replies_are_the_same_bytes(world, sent):
    assert compare(world, sent).status == 200


@cases(REFUSED)
def test_refusals_are_the_same_bytes(world, sent):
    assert compare(world, sent).status >= 400


@cases(SPELLINGS)
def test_unusual_requests_give_the_same_bytes(world, sent):
    compare(world, sent)


def test_seeds_make_replies_repeatable(world):
    """Or else the comparisons above would mean nothing."""
    one, two, other = (send(world.engine, chat(seed=seed)) for seed in (1, 1, 2))
    assert masked(one.body) == masked(two.body) != masked(other.body)


def test_the_cases_hide_something(world):
    """The upstream said more than the agent got, and the mask does not hide it."""
    seen = len(world.tap.generations())
    reply = send(world.proxy.data, chat(tools=[TOOL], stream=True))
    exchange = world.tap.generations()[seen:][0]
    assert b'"logprob":' in exchange.reply.body and b'"logprob":' not in reply.body
    assert len(exchange.reply.body.split(b"\n\n")) > len(reply.body.split(b"\n\n"))


def test_every_tag_leaves_the_same_bytes(world):
    """Path, attempt and headers change nothing of the reply."""
    sent = chat(tools=[TOOL])
    direct = shown(send(world.engine, sent))
    for path in ("/e/tagged", "/e/tagged/a/2"):
        assert shown(send(world.proxy.data, Sent(sent.body, path + CHAT))) == direct
    tags = (*JSON, ("x-episode-id", "by-header"), ("x-attempt", "3"), ("x-session-id", "s"))
    assert shown(send(world.proxy.data, Sent(sent.body, headers=tags))) == direct
