"""Bodies that a server in Python reads otherwise than rolltape: none gets past a wall."""

import json
import random

import hostile
import paths
import pytest
import pythonic

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
ENCODINGS = ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server whose upstream is one in Python that answers as vLLM."""
    with hostile.Stage(tmp_path_factory.mktemp("bodies")) as stage:
        yield stage("--dialect", "vllm", answer=pythonic.vllm)


def heard(proxy, path, body, headers=None):
    """The reply to a body, and what the upstream heard of it."""
    before = len(paths.agents_requests(proxy))
    headers = [("content-type", "application/json")] if headers is None else headers
    sent = hostile.http1.request("POST", path, body, headers)
    reply = hostile.http1.exchange(proxy.data, sent)
    return reply, paths.agents_requests(proxy)[before:]


# Encodings.


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize(
    "path",
    [
        "/e/a/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/generate",
        "/invocations",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
    ],
)
def test_json_in_another_encoding_goes_nowhere(shared, path, encoding):
    fields = CHAT | {"priority": -1000000000, "prompt": "a", "input": "a", "return_token_ids": 0}
    body = json.dumps(fields).encode(encoding)
    assert pythonic.read(body) == fields, "a server in Python reads it"
    reply, sent = heard(shared, path, body)
    assert reply.status == 400 and not sent, reply
    assert b"UTF-8" in reply.body
    error = json.loads(reply.body)
    assert error["error"]["type"] == "invalid_request_error"
    assert (error.get("type") == "error") == (path == "/v1/messages"), "in the form of the wire"


@pytest.mark.parametrize("charset", ["utf-16", "UTF-7", '"cp037"', "hz", "shift_jis"])
def test_no_content_type_names_another_encoding(shared, charset):
    headers = [("content-type", f"application/json; charset={charset}")]
    for body in (json.dumps(CHAT).encode(), json.dumps(CHAT).encode("utf-7")):
        reply, sent = heard(shared, hostile.CHAT, body, headers)
        assert reply.status == 400 and not sent, body
    twice = [("content-type", "application/json"), *headers]
    assert heard(shared, hostile.CHAT, json.dumps(CHAT).encode(), twice)[0].status == 400


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "text/plain", ""])
def test_what_is_utf_8_goes_on_whatever_its_type(shared, content_type):
    headers = [("content-type", content_type)] if content_type else []
    reply, sent = heard(shared, hostile.CHAT, json.dumps(CHAT).encode(), headers)
    assert reply.status == 200 and b"return_token_ids" in sent[-1].body


def test_what_is_no_json_goes_on_as_it_came(serve):
    proxy = serve("--dialect", "vllm", "--allow-path", "POST /v1/files")
    form = b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\n\xff\xfe{\0\r\n--b--\r\n'
    kind = [("content-type", "multipart/form-data; boundary=b")]
    for body in (form, b"\0\0\0\x18ftypmp42", b"RIFF\0\0\0\0WAVE"):
        reply, sent = heard(proxy, "/v1/files", body, kind)
        assert reply.status == 200 and sent[-1].body == body


@pytest.mark.parametrize("body", [b'{"model": "m", "messages": [', b"[1, 2]", b"no", b"\xff{"])
def test_what_nobody_reads_is_the_upstreams_to_refuse(shared, body):
    assert pythonic.read(body) is None
    reply, sent = heard(shared, hostile.CHAT, body)
    assert reply.status == 400 and sent[-1].body == body
    assert "x-rolltape-error" not in dict(reply.headers)


# What Python reads, and rolltape.

RANDOM = random.Random(39)
NAMES = [b'"priority"', b'"pr\\u0069ority"', b'"a"', b'"\\ud800"', b'"\\""', b'"{"', b'"\xc3\xa9"']
VALUES = [*NAMES, b"-9", b"1e999", b"NaN", b"-Infinity", b"null", b'["}"]', b'{"a":{}}', b"0.0"]
SPACES = [b"", b" ", b"\n", b"\r\n\t"]
PIECES = [
    *VALUES, *SPACES[1:], b":", b",", b"{", b"}", b"[", b"]", b"true", b'"\\\\"', b"\xef\xbb\xbf",
    b"\xed\xa0\x80", b"\0", b"0" * 30, b"\x0b", b"//", b"'a'",
]


def odd_values():
    """JSON that Python reads and other readers may not."""
    deep = b"[" * 400 + b"]" * 400
    yield from (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 4000, b'"\\ud800"', deep)
    yield from (b'"\xed\xa0\x80"', b'"\\u0000"', b"{}", b'{"a":1,"a":2}', b"-0", b'"\x7f"')


def odd_bodies():
    """Bodies near JSON with a priority in them, some of which Python reads."""
    for value in odd_values():
        yield b'{"model":"m","x":' + value + b',"priority":-9,"input":"a"}'
        yield b'{"priority":-9,"x":' + value + b',"priority":' + value + b"}"
    for number in range(200):
        count = RANDOM.randint(0, 4)
        fields = [(RANDOM.choice(NAMES), RANDOM.choice(VALUES)) for _ in range(count)]
        fields.insert(RANDOM.randint(0, len(fields)), (NAMES[RANDOM.randint(0, 1)], b"-9"))
        space = [RANDOM.choice(SPACES) for _ in range(4)]
        colon, comma = space[0] + b":" + space[1], space[2] + b"," + space[3]
        body = space[0] + b"{" + comma.join(colon.join(pair) for pair in fields) + b"}" + space[1]
        yield body
        if not number % 5:
            yield body.decode().encode(RANDOM.choice(ENCODINGS))
    for number in range(300):
        if number % 2:
            parts = RANDOM.choices(PIECES, k=RANDOM.randint(1, 9))
            body = b'{"input":' + b"".join(parts) + b',"priority":-9}'
        else:
            body = bytearray(b'{"input": ["a\\n", {"b": [1]}], "priority": -9, "c": "d"}')
            for _ in range(RANDOM.randint(1, 3)):
                at = RANDOM.randrange(len(body))
                body[at : at + RANDOM.randint(0, 2)] = RANDOM.choice(PIECES)
            body = bytes(body)
        yield body


def test_no_body_that_python_reads_keeps_its_priority(shared):
    read = 0
    for body in odd_bodies():
        fields = pythonic.read(body)
        read += fields is not None and "priority" in fields
        _, sent = heard(shared, "/v1/embeddings", body)
        for request in sent:
            assert "priority" not in (pythonic.read(request.body) or {}), body
    assert read > 240, "enough of them are read by Python"


# Fields that rolltape asks for.

NO = ['"no"', '"off"', '"OFF"', '"f"', '"0"', "0", "0.0", "-0", "false", "null", '"\\u006eo"']


def asked(proxy, episode, path, body):
    """The reply to a call, and what is recorded of it."""
    reply = hostile.post(proxy, f"/e/{episode}{path}", body)
    query = (
        "SELECT c.unasked, h.fidelity, h.logprobs FROM calls c LEFT JOIN choices h USING (call_id)"
        " WHERE c.episode_id = ? ORDER BY c.started_at DESC LIMIT 1"
    )
    (row,) = hostile.rows(proxy, query, episode)
    return reply, row


@pytest.mark.parametrize("no", NO)
def test_no_spelling_of_no_takes_a_chat_out_of_training(shared, no):
    spelled = f'"return_token_ids":{no},"logprobs":{no},"return_weight_versions":{no}'
    body = json.dumps(CHAT)[:-1].encode() + b"," + spelled.encode() + b"}"
    reply, row = asked(shared, "off", hostile.CHAT, body)
    assert reply.status == 200, reply.body
    assert row["unasked"] is None and row["fidelity"] == "exact", row
    told = json.loads(reply.body)["choices"][0]
    assert told["token_ids"] is None and told["logprobs"] is None, "it did not ask"


@pytest.mark.parametrize("no", [*NO[:4], '"x"', "{}", "[]"])
def test_no_spelling_takes_a_text_out_of_training(shared, no):
    body = b'{"model":"m","prompt":"a","return_token_ids":' + no.encode() + b',"logprobs":"3"}'
    reply, row = asked(shared, "text", "/v1/completions", body)
    assert reply.status == 200 and row["unasked"] is None and row["fidelity"] == "exact", row
    told = json.loads(reply.body)["choices"][0]
    assert told["token_ids"] is None and told["logprobs"], "the number is its own"


def test_an_agent_that_says_yes_in_words_is_told(shared):
    body = CHAT | {"return_token_ids": "yes", "logprobs": "on"}
    reply, row = asked(shared, "on", hostile.CHAT, body)
    told = json.loads(reply.body)["choices"][0]
    assert told["token_ids"] == pythonic.IDS and told["logprobs"]["content"]
    assert row["unasked"] is None and row["fidelity"] == "exact"


@pytest.mark.parametrize("fields", [{"top_logprobs": 50, "logprobs": "off"}, {"top_logprobs": 0.0}])
def test_no_alternatives_take_a_call_out_of_training(shared, fields):
    reply, row = asked(shared, "top", hostile.CHAT, CHAT | fields)
    assert reply.status == 200 and row["unasked"] is None and row["fidelity"] == "exact", row


# One body, two readings.


def test_a_body_with_two_readings_is_taken_for_none_or_for_what_vllm_takes_it(shared):
    reply, sent = heard(shared, "/e/two/invocations", b'{"prompt":"x","messages":"x"}')
    (call,) = hostile.rows(shared, "SELECT route FROM calls WHERE episode_id = 'two'")
    assert call["route"] == "completions" and sent
    assert json.loads(reply.body)["choices"][0]["text"]
    for body in (b'{"prompt":"x","messages":[1]}', b'{"messages":"x"}', b'{"messages":{}}'):
        reply, sent = heard(shared, "/invocations", body)
        assert reply.status == 403 and not sent, body


# Replies in the background.

RESPONSES = "/e/a/v1/responses"
YES = ["true", '"true"', '"on"', '"YES"', '"t"', '"Y"', '"1"', "1", "1.0", "10e-1", '"\\u006fn"']


@pytest.mark.parametrize("options", [["--dialect", "openai"], ["--translate", "always"]])
def test_no_reply_is_sampled_in_the_background(serve, options):
    proxy = serve(*options, answer=pythonic.Keeper())
    bodies = [b'{"model":"m","input":"a","background":' + yes.encode() + b"}" for yes in YES]
    bodies += [
        b'{"model":"m","input":"a","background":true,"background":false}',
        b'{"model":"m","input":"a","background":false,"background":"yes"}',
        b'{"model":"m","input":"a","b\\u0061ckground":true}',
        b'{"model":"m","input":"a","stream":true,"background":true}',
    ]
    for body in bodies:
        reply, sent = heard(proxy, RESPONSES, body)
        assert reply.status == 403 and not sent, body
        assert "--allow-unrecorded-sampling" in paths.error_of(reply)
    outcomes = {row["outcome"] for row in hostile.rows(proxy, "SELECT outcome FROM calls")}
    assert outcomes == {"refused"}
    for no in ("false", "null", '"off"', "0"):
        body = b'{"model":"m","input":"a","background":' + no.encode() + b"}"
        assert heard(proxy, RESPONSES, body)[0].status == 200, no


def test_a_background_passes_where_the_user_allows_it(serve):
    options = ("--dialect", "openai", "--allow-unrecorded-sampling")
    proxy = serve(*options, answer=pythonic.Keeper())
    reply, sent = heard(proxy, RESPONSES, b'{"model":"m","input":"a","background":true}')
    assert reply.status == 200 and b'"background":true' in sent[-1].body


def test_the_engine_samples_few_in_the_background_and_serves_the_others(tmp_path):
    with hostile.harness.engine(tmp_path) as backend:

        def post(**fields):
            body = json.dumps({"model": "tiny", "input": "a", **fields}).encode()
            headers = [("content-type", "application/json")]
            sent = hostile.http1.request("POST", "/v1/responses", body, headers)
            return hostile.http1.exchange(backend, sent)

        begun = [post(background=True, max_output_tokens=900).status for _ in range(60)]
        assert set(begun) == {200, 429} and begun.count(200) < 60, begun
        assert post(max_output_tokens=2).status == 200
