"""State that a server keeps: an attempt goes on from what it got itself, and from nothing else."""

import json

import hostile
import paths
import pytest
import pythonic

RESPONSES = "/v1/responses"
MODES = [
    ["--dialect", "openai"],
    ["--dialect", "vllm", "--translate", "never"],
    ["--dialect", "vllm"],
    ["--translate", "always"],
]


def ask(proxy, episode, path=RESPONSES, **fields):
    """Asks for a response; the reply, and what the upstream heard of it."""
    before = len(paths.agents_requests(proxy))
    body = {"model": "m", "input": "hi", **fields}
    reply = hostile.post(proxy, f"/e/{episode}{path}", body)
    return reply, paths.agents_requests(proxy)[before:]


def got(proxy, episode, **fields):
    """The response of a call that must be answered, as a document."""
    reply, sent = ask(proxy, episode, **fields)
    assert reply.status == 200 and sent, reply
    if not fields.get("stream"):
        return json.loads(reply.body)
    lines = [line for line in reply.body.decode().splitlines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: "))["response"]


def references(response):
    """Requests that name what a response left on its server."""
    item = response["output"][0]["id"]
    typed, bare = {"type": "item_reference", "id": item}, {"id": item}
    return [
        {"previous_response_id": response["id"]},
        {"input": [typed, {"role": "user", "content": "more"}]},
        {"input": [bare]},
        {"input": [{"id": item, "type": None}]},
        {"input": [{"type": "message", "type ": 1, "id": item} | typed]},
    ]


@pytest.mark.parametrize("options", MODES, ids=" ".join)
@pytest.mark.parametrize("stream", [False, True])
def test_no_attempt_goes_on_from_what_another_got(serve, options, stream):
    proxy = serve(*options, answer=pythonic.Keeper())
    mine = got(proxy, "mine", stream=stream)
    for fields in references(mine):
        for episode in ("theirs", "mine/a/1"):
            reply, sent = ask(proxy, episode, **fields)
            assert reply.status == 400 and not sent, fields
            error = json.loads(reply.body)["error"]
            assert error["type"] == "invalid_request_error"
            assert "--allow-foreign-state" in error["message"]
    reply, _ = ask(proxy, "theirs", previous_response_id=mine["id"])
    assert json.loads(reply.body)["error"]["code"] == "previous_response_not_found"
    for fields in references(mine):
        reply, sent = ask(proxy, "mine", **fields)
        assert reply.status == 200 and sent, fields


@pytest.mark.parametrize(
    "fields",
    [
        {"previous_response_id": "resp_9"},
        {"previous_response_id": "r" * 2000},
        {"previous_response_id": ["resp_9"]},
        {"conversation": "conv_1"},
        {"conversation": {"id": "conv_1"}},
        {"input": [{"type": "item_reference", "id": "msg_9"}]},
        {"input": [{"type": "image_generation_call", "id": "ig_1"}]},
        {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]},
        {"input": [{"id": "msg_9"} | {f"f{n}": 1 for n in range(5000)}]},
    ],
    ids=lambda fields: json.dumps(fields)[:60],
)
def test_what_an_attempt_never_got_is_not_named(serve, fields):
    proxy = serve("--dialect", "openai", answer=pythonic.Keeper())
    for path in (RESPONSES, "/v1/responses/input_tokens", "/%76%31//responses/"):
        reply, sent = ask(proxy, "a", path, **fields)
        assert reply.status == 400 and not sent, path


def test_every_duplicate_and_spelling_of_a_name_counts(serve):
    proxy = serve("--dialect", "openai", answer=pythonic.Keeper())
    own = got(proxy, "a")["id"]
    for fields in (
        f'"previous_response_id":"resp_9","previous_response_id":"{own}"',
        f'"previous_response_id":"{own}","previous_response_id":"resp_9"',
        '"previous_respons\\u0065_id":"resp_9"',
        '"input":[{"\\u0069d":"msg_9","type":"item\\u005freference"}]',
        '"input":[{"id":"msg_9","type":"item_reference","type":"message"}]',
    ):
        before = len(proxy.upstream.calls())
        reply = hostile.post(proxy, "/e/a/v1/responses", f'{{"model":"m",{fields}}}'.encode())
        assert reply.status == 400 and len(proxy.upstream.calls()) == before, fields


@pytest.mark.parametrize("options", MODES[:3], ids=" ".join)
def test_an_attempt_goes_on_from_its_own_after_a_restart(tmp_path, options):
    keeper = pythonic.Keeper()
    with hostile.Stage(tmp_path) as stage:
        proxy = stage(*options, answer=keeper)
        mine = got(proxy, "mine", stream=True)
        later = got(proxy, "mine", previous_response_id=mine["id"])
    with hostile.Stage(tmp_path) as stage:
        proxy = stage(*options, answer=keeper)
        for fields in references(mine) + references(later):
            reply, _ = ask(proxy, "theirs", **fields)
            assert reply.status == 400
            reply, sent = ask(proxy, "mine", **fields)
            assert reply.status == 200 and sent, fields


def test_an_attempt_goes_on_from_what_another_server_recorded(tmp_path):
    """Two servers of one store, as behind a balancer: what one answered, the other knows."""
    import relay

    keeper = hostile.Upstream(pythonic.Keeper())
    options = ("--dialect", "openai")
    with relay.postgres() as address:
        url = relay.new_database(address)
        with (
            relay.recording(tmp_path, url, *options, upstream=keeper) as one,
            relay.recording(tmp_path, url, *options, upstream=keeper) as other,
        ):
            for proxy in (one, other):
                proxy.upstream = keeper
            mine = got(one, "mine")
            assert ask(other, "mine", previous_response_id="resp_9")[0].status == 400
            later = got(one, "mine", previous_response_id=mine["id"])
            assert got(other, "mine", previous_response_id=later["id"])["id"]
            assert ask(other, "theirs", previous_response_id=later["id"])[0].status == 400


def test_an_untagged_agent_goes_on_from_its_own(serve):
    proxy = serve("--dialect", "openai", answer=pythonic.Keeper())

    def post(key, **fields):
        body = {"model": "m", "input": "hi", **fields}
        return hostile.post(proxy, RESPONSES, body, [("authorization", f"Bearer {key}")])

    mine = json.loads(post("one").body)
    for fields in references(mine):
        assert post("two", **fields).status == 400
        assert post("one", **fields).status == 200


def test_a_conversation_is_the_attempts_that_made_it(serve):
    options = ("--dialect", "openai", "--allow-path", "POST /v1/conversations")
    proxy = serve(*options, answer=pythonic.Keeper())
    made = json.loads(hostile.post(proxy, "/e/mine/v1/conversations", {}).body)["id"]
    for named in (made, {"id": made}):
        assert ask(proxy, "theirs", conversation=named)[0].status == 400
        assert ask(proxy, "mine", conversation=named)[0].status == 200


def test_foreign_state_passes_where_the_user_allows_it(serve):
    options = ("--dialect", "openai", "--allow-foreign-state")
    proxy = serve(*options, answer=pythonic.Keeper())
    for fields in ({"previous_response_id": "resp_9"}, {"conversation": "conv_1"}):
        reply, sent = ask(proxy, "a", **fields)
        assert reply.status == 200 and json.dumps(fields)[1:-1].encode() in sent[-1].body


def test_a_transcript_that_an_agent_brings_is_its_own(serve):
    proxy = serve("--dialect", "openai", answer=pythonic.Keeper())
    said = {"type": "output_text", "text": "a", "annotations": []}
    transcript = [
        {"role": "user", "content": "hi"},
        {"type": "message", "id": "msg_77", "role": "assistant", "content": [said]},
        {"type": "reasoning", "id": "rs_77", "summary": [], "encrypted_content": "x"},
        {"type": "function_call", "id": "fc_77", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "item_reference"},
    ]
    assert ask(proxy, "a", input=transcript, conversation=None)[0].status == 200
