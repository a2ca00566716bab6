"""What one agent's odd request costs the others: refused fields, and places in the queue."""

import gzip
import json

import hostile
import paths
import pytest

PLAIN = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def picky(request):
    """Refuses an odd request that is asked for ids, and takes it without our fields."""
    if b'"odd' in request.body and b"return_token_ids" in request.body:
        return hostile.reply({"error": {"message": "no", "code": 400}}, "400 Bad Request")
    return paths.vllm(request)


def call(proxy, episode, body):
    """Makes a call of an episode and says why it was not asked for ids, if it was not."""
    assert hostile.post(proxy, f"/e/{episode}/v1/chat/completions", body).status == 200
    query = "SELECT unasked FROM calls WHERE episode_id = ? ORDER BY started_at DESC LIMIT 1"
    (row,) = hostile.rows(proxy, query, episode)
    return row["unasked"]


def test_an_odd_field_of_one_agent_takes_the_ids_from_no_other(serve):
    proxy = serve("--dialect", "vllm", answer=picky)
    assert call(proxy, "odd", {**PLAIN, "odd": 1})
    assert call(proxy, "honest", PLAIN) is None
    assert call(proxy, "honest", {**PLAIN, "temperature": 0.5}) is None


def test_an_odd_value_of_one_agent_takes_the_ids_from_no_other(serve):
    proxy = serve("--dialect", "vllm", answer=picky)
    assert call(proxy, "odd", {**PLAIN, "stop": "odd"})
    assert call(proxy, "odd", {**PLAIN, "stop": ["odd"]})
    assert call(proxy, "honest", {**PLAIN, "stop": "a"}) is None
    assert call(proxy, "honest", {**PLAIN, "stop": ["a"]}) is None


def test_odd_content_of_one_agent_takes_the_ids_from_no_agent_that_is_granted_them(serve):
    proxy = serve("--dialect", "vllm", answer=picky)
    odd = {**PLAIN, "messages": [{"role": "user", "content": "hi", "odd": 1}]}
    assert call(proxy, "honest", PLAIN) is None
    for episode in ("odd", "odd-too", "odd-three"):
        assert call(proxy, episode, odd)
    assert call(proxy, "honest", PLAIN) is None
    assert call(proxy, "later", PLAIN) is None


def test_an_odd_call_takes_the_ids_from_no_other_call_of_its_own_agent(serve):
    proxy = serve("--dialect", "vllm", answer=picky)
    assert call(proxy, "mine", {**PLAIN, "odd": 1})
    assert call(proxy, "mine", PLAIN) is None


def test_many_odd_requests_take_the_ids_from_no_other(serve):
    proxy = serve("--dialect", "vllm", answer=picky)
    for number in range(40):
        assert call(proxy, f"odd-{number}", {**PLAIN, f"odd{number}": number})
    assert call(proxy, "honest", PLAIN) is None


def test_a_refusal_that_our_fields_did_not_cause_is_not_remembered(serve):
    def never(request):
        if b'"odd' in request.body:
            return hostile.reply({"error": {"message": "no", "code": 400}}, "400 Bad Request")
        return paths.vllm(request)

    proxy = serve("--dialect", "vllm", answer=never)
    before = len(proxy.upstream.calls())
    for _ in range(2):
        assert hostile.post(proxy, body={**PLAIN, "odd": 1}).status == 400
    asked = [b"return_token_ids" in request.body for request in proxy.upstream.calls()[before:]]
    assert asked.count(True) == 2 * asked[: len(asked) // 2].count(True)
    assert asked[len(asked) // 2], "the second call is asked again"


PRIORITIES = [
    b'"priority":-1000000000',
    b'"priority" : null',
    b'"pr\\u0069ority":-9',
    b'"priority":0,"priority":-9',
    b'"data_parallel_rank":0',
    b'"routed_dp_rank":3',
    b'"bootstrap_host":"169.254.169.254","bootstrap_port":80,"bootstrap_room":1',
    b'"kv_transfer_params":{"remote_host":"h"}',
    b'"id_slot":0',
    b'"nvext":{"agent_hints":{"priority":9},"backend_instance_id":7}',
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server whose upstream answers as vLLM."""
    with hostile.Stage(tmp_path_factory.mktemp("refusals")) as stage:
        yield stage("--dialect", "vllm", answer=paths.vllm)


def names_a_place(body):
    """Whether a body names a priority, a worker or a slot."""
    places = ("priority", "rank", "bootstrap", "kv_transfer", "slot", "nvext")
    return any(place in name for name in json.loads(body) for place in places)


@pytest.mark.parametrize("field", PRIORITIES)
def test_no_agent_chooses_its_place_in_the_queue(shared, field):
    body = b'{"model": "m", ' + field + b' ,"messages": [{"role":"user","content":"priority"}]}'
    assert hostile.post(shared, "/e/queue/v1/chat/completions", body).status == 200
    sent = shared.upstream.calls()[-1].body
    assert not names_a_place(sent)
    assert sent.startswith(b'{"model": "m"') and b'"content":"priority"}]' in sent


@pytest.mark.parametrize(
    ("path", "rest"),
    [
        ("/v1/completions", b'"prompt":"a"'),
        ("/v1/responses", b'"input":"a"'),
        ("/v1/messages", b'"max_tokens":5,"messages":[{"role":"user","content":"a"}]'),
        ("/invocations", b'"prompt":"a"'),
        ("/v1/embeddings", b'"input":"a"'),
        ("/v1/score", b'"text_1":"a","text_2":"b"'),
        ("/v1/rerank", b'"query":"a","documents":["b"]'),
    ],
)
def test_no_route_takes_a_priority_of_an_agent(shared, path, rest):
    body = b'{"model":"m","priority":-9,' + rest + b"}"
    before = len(shared.upstream.calls())
    hostile.post(shared, path, body)
    heard = shared.upstream.calls()[before:]
    assert heard and not any(names_a_place(request.body) for request in heard)


def test_a_compressed_priority_is_cut_too(shared):
    body = gzip.compress(json.dumps({**PLAIN, "priority": -9}).encode())
    headers = [("content-encoding", "gzip")]
    assert hostile.post(shared, body=body, headers=headers).status == 200
    heard = shared.upstream.calls()[-1]
    assert heard.header("content-encoding") is None and not names_a_place(heard.body)


def test_the_recording_has_the_agents_own_bytes(shared):
    body = b'{"model":"m", "priority":-9 ,"messages":[]}'
    hostile.post(shared, "/e/own/v1/chat/completions", body)
    (call,) = hostile.rows(shared, "SELECT call_id FROM calls WHERE episode_id = 'own'")
    shown = json.loads(shared.command("show", "own", "--call", call["call_id"], "--json"))
    assert '"priority":-9 ,' in json.dumps(shown).replace('\\"', '"'), shown


ROUTERS = [
    "X-data-parallel-rank",
    "x-smg-target-worker",
    "X-SMG-Routing-Key",
    "x-gateway-destination-endpoint",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-prefiller-host-port",
    "x-envoy-original-dst-host",
    "x-envoy-max-retries",
    "x-worker-instance-id",
    "x-dynamo-token-data",
    "target-pod",
    "x-vsr-destination-endpoint",
]


@pytest.mark.parametrize("name", ROUTERS)
def test_no_header_chooses_a_worker(shared, name):
    assert hostile.post(shared, headers=[(name, "169.254.169.254:80")]).status == 200
    assert shared.upstream.calls()[-1].header(name.lower()) is None


def test_the_routing_key_is_rolltapes_own_word(serve):
    proxy = serve("--dialect", "vllm", "--session-header", "x-smg-routing-key", answer=paths.vllm)
    headers = [("x-smg-routing-key", "mine"), ("x-smg-target-worker", "0")]
    assert hostile.post(proxy, headers=headers).status == 200
    heard = proxy.upstream.calls()[-1]
    assert len(heard.header("x-smg-routing-key")) == 16
    assert heard.header("x-smg-target-worker") is None


def test_a_body_without_a_place_goes_on_byte_for_byte(shared):
    body = b'{ "model":"m" ,"input" : ["a"],\n"Priority":1,"x":{"priority":2}}'
    hostile.post(shared, "/v1/embeddings", body)
    assert shared.upstream.calls()[-1].body == body


def test_priorities_pass_where_the_user_allows_them(serve):
    proxy = serve("--dialect", "vllm", "--allow-priority", answer=paths.vllm)
    headers = [("x-smg-target-worker", "0")]
    assert hostile.post(proxy, body={**PLAIN, "priority": -9}, headers=headers).status == 200
    heard = proxy.upstream.calls()[-1]
    assert json.loads(heard.body)["priority"] == -9
    assert heard.header("x-smg-target-worker") == "0"
