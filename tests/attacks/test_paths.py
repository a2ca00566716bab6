"""Paths and methods: what an agent can reach on the data listener, however it is spelled."""

import json
import socket
import struct

import harness
import hostile
import http1
import paths
import pytest

CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server whose upstream answers as vLLM."""
    with hostile.Stage(tmp_path_factory.mktemp("paths")) as stage:
        yield stage("--dialect", "vllm", answer=paths.vllm)


def refused(proxy, method, path, body=b"{}", headers=()):
    """The refusal of a request of which the upstream must hear nothing."""
    before = len(paths.agents_requests(proxy))
    sent = http1.request(method, path, body, headers)
    reply = http1.exchange(proxy.data, sent)
    assert len(paths.agents_requests(proxy)) == before, "the upstream heard it"
    return reply


def test_a_call_passes_and_is_recorded(serve):
    proxy = serve()
    assert hostile.post(proxy, "/e/a/v1/chat/completions").status == 200
    (call,) = hostile.rows(proxy, "SELECT outcome FROM calls WHERE episode_id = 'a'")
    assert call["outcome"] == "complete"
    assert hostile.is_clean(proxy) and hostile.is_alive(proxy)


SPELLINGS = {
    "escaped-letter": "/v1/%63hat/completions",
    "escaped-all": "/%76%31/%63%68%61%74/%63%6F%6D%70%6C%65%74%69%6F%6E%73",
    "dot": "/v1/./chat/completions",
    "escaped-dot": "/v1/%2e/chat/completions",
    "dots": "/v1/models/../chat/completions",
    "escaped-dots": "/v1/models/%2E%2e/chat/completions",
    "two-slashes": "//v1//chat///completions",
    "slash-at-the-end": "/v1/chat/completions/",
    "without-v1": "/chat/completions",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_sampling_route_is_recorded_with_ids_however_it_is_spelled(shared, spelling):
    assert hostile.post(shared, f"/e/{spelling}{SPELLINGS[spelling]}", CHAT).status == 200
    query = "SELECT route, unasked FROM calls WHERE episode_id = ?"
    (call,) = hostile.rows(shared, query, spelling)
    assert (call["route"], call["unasked"]) == ("chat", None)
    assert b"return_token_ids" in paths.agents_requests(shared)[-1].body


def test_what_is_judged_and_stored_and_forwarded_is_one_path(shared):
    hostile.post(shared, "/e/one//v1/./%63hat/x/..//completions?a=%2e./b", CHAT)
    (call,) = hostile.rows(shared, "SELECT path FROM calls WHERE episode_id = 'one'")
    assert call["path"] == "/v1/chat/completions?a=%2e./b"
    assert paths.agents_requests(shared)[-1].path == call["path"]


AMBIGUOUS = [
    "/v1/chat%2fcompletions",
    "/v1/chat%2Fcompletions",
    "/v1%2f..%2fpause",
    "/v1/..%5c..%5cpause",
    "/v1\\chat\\completions",
    "/v1/chat;a=b/completions",
    "/v1/chat/completions;jsessionid=1",
    "/v1/chat/completions%3b",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0d%0aX-A:%20b",
    "/%252e%252e/pause",
    "/v1/%25%36%33hat/completions",
    "/v1/%zzhat/completions",
    "/v1/chat/completions%",
    "/%c0%ae%c0%ae/pause",
    "/v1/models/..%2f..%2ffiles",
    "/v1/models/%2e%2e%2f%2e%2e%2ffiles",
    "/../v1/chat/completions",
    "/v1/../../pause",
    "/%2e%2e/e/other/v1/chat/completions",
]


@pytest.mark.parametrize("path", AMBIGUOUS)
def test_a_path_that_two_servers_may_read_differently_is_a_400(shared, path):
    for tagged in (path, f"/e/odd{path}"):
        reply = refused(shared, "POST", tagged, CHAT)
        assert reply.status == 400, reply
        assert "ambiguous" in paths.error_of(reply)


def test_dots_never_climb_from_one_episode_into_another(shared):
    for path in (
        "/e/mine/../theirs/v1/chat/completions",
        "/e/mine/v1/../../../e/theirs/v1/chat/completions",
        "/e/mine/a/1/%2e%2e/%2e%2e/../theirs/v1/chat/completions",
        "/e/mine/../../v1/chat/completions",
    ):
        assert refused(shared, "POST", path, CHAT).status == 400, path
    assert not hostile.rows(shared, "SELECT 1 FROM calls WHERE episode_id = 'theirs'")


def test_a_slash_in_the_id_of_a_model_is_no_ambiguity(shared):
    assert hostile.get(shared, "/v1/models/org%2fname").status == 200
    assert shared.upstream.heard[-1].path == "/v1/models/org%2Fname"


def test_dots_never_climb_out_of_the_upstreams_prefix(serve):
    upstream = hostile.Upstream()
    upstream.url += "/tenants/mine/v1"
    proxy = serve(upstream=upstream)
    for path in (
        "/../other/v1/chat/completions",
        "/v1/../../other/v1/chat/completions",
        "/e/a/../../../../other/v1/chat/completions",
        "/%2e%2e/other/v1/chat/completions",
        "/v1/%2e%2e/%2e%2e/chat/completions",
        "/..;/other/chat/completions",
        "/v1/models/..%2f..%2f..%2fother",
    ):
        hostile.post(proxy, path, CHAT)
        hostile.get(proxy, path)
    assert all(request.path.startswith("/tenants/mine/") for request in upstream.heard)
    assert not any("other" in request.path or ".." in request.path for request in upstream.heard)


def test_an_upstream_whose_own_path_has_dots_is_refused_at_the_start(tmp_path):
    for url in ("http://h/a/../b", "http://h/%2e%2e/v1", "http://h/a//b"):
        ended = harness.command("serve", "--upstream", url, folder=tmp_path)
        assert ended.returncode == 2 and "ambiguous" in ended.stderr, ended


@pytest.mark.parametrize(
    "path",
    ["/pause", "/v1/../pause", "/%70ause", "//sleep", "/e/a/v1/update_weights"],
)
def test_the_control_of_the_upstream_is_refused_in_every_spelling(shared, path):
    assert refused(shared, "POST", path).status == 403


CLOSED = [
    ("POST", "/load_lora_adapter_from_tensors"),
    ("POST", "/weights_checker"),
    ("POST", "/lora-adapters"),
    ("GET", "/lora-adapters"),
    ("POST", "/slots/0?action=erase"),
    ("GET", "/slots"),
    ("POST", "/props"),
    ("GET", "/props"),
    ("POST", "/models/load"),
    ("DELETE", "/api/delete"),
    ("POST", "/api/pull"),
    ("POST", "/api/show"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/file-1/content"),
    ("DELETE", "/v1/files/file-1"),
    ("POST", "/v1/batches"),
    ("POST", "/v1/fine_tuning/jobs"),
    ("POST", "/v1/assistants"),
    ("DELETE", "/v1/models/m"),
    ("POST", "/v1/models/m:generateContent"),
    ("POST", "/collective_rpc"),
    ("POST", "/cors-proxy"),
    ("POST", "/tools"),
    ("GET", "/metrics"),
    ("GET", "/server_info"),
    ("GET", "/v1/organization/admin_api_keys"),
]


@pytest.mark.parametrize(("method", "path"), CLOSED)
def test_what_agents_do_not_need_is_closed(shared, method, path):
    for spelled in (path, f"/e/a{path}", f"//{path.lstrip('/')}"):
        assert refused(shared, method, spelled, b"{}" if method == "POST" else b"").status == 403


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/tokenize", "/apply-template"])
def test_a_tokenizer_is_closed_to_agents(shared, path):
    assert refused(shared, "POST", path, b'{"prompt":"a"}').status == 403


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("GET", "/v1/chat/completions"),
        ("GET", "/v1/chat/completions/chatcmpl-1"),
        ("GET", "/v1/conversations/conv_1"),
        ("GET", "/v1/messages/batches/b/results"),
    ],
)
def test_what_others_wrote_cannot_be_read_or_deleted_by_its_id(shared, method, path):
    assert refused(shared, method, path, b"").status == 403


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "QUERY", "TRACE", "PROPFIND"])
def test_a_method_that_no_agent_uses_is_closed(shared, method):
    assert refused(shared, method, "/v1/chat/completions", b"").status == 403


def test_the_path_is_judged_as_a_server_compares_it_letter_by_letter(shared):
    for path in ("/V1/chat/completions", "/v1/Chat/Completions", "/v1/v1/chat/completions"):
        assert refused(shared, "POST", path, CHAT).status == 403


def test_a_target_with_a_host_is_judged_by_its_path(shared):
    before = len(paths.agents_requests(shared))
    reply = paths.raw(shared, "POST http://h/lora-adapters HTTP/1.1", [("host", "h")], b"[]")
    assert reply.status == 403 and len(paths.agents_requests(shared)) == before
    line = "POST http://elsewhere.example/e/abs/v1/%63hat/completions HTTP/1.1"
    assert paths.raw(shared, line, [("host", "h")], CHAT).status == 200
    assert paths.agents_requests(shared)[-1].path == "/v1/chat/completions"


def test_a_closed_path_is_told_with_the_option_that_opens_it(shared):
    reply = refused(shared, "POST", "/e/a/v1/files")
    assert "--allow-path 'POST /v1/files'" in paths.error_of(reply)
    assert json.loads(reply.body)["error"]["code"] == 403


def test_a_base_url_with_one_v1_too_many_is_told(shared):
    assert "OPENAI_BASE_URL" in paths.error_of(refused(shared, "POST", "/v1/v1/chat/completions"))


def test_a_conversation_of_another_episode_cannot_be_continued_by_its_id(shared):
    def ask(episode, **fields):
        body = {"model": "m", "input": "a secret of mine", **fields}
        return hostile.post(shared, f"/e/{episode}/v1/responses", body)

    first = json.loads(ask("mine").body)["id"]
    ask("mine", input="go on", previous_response_id=first)
    assert b"a secret of mine" in shared.upstream.calls()[-1].body
    before = len(shared.upstream.calls())
    assert ask("theirs", input="go on", previous_response_id=first).status == 400
    assert len(shared.upstream.calls()) == before


def test_an_option_opens_one_method_and_path_and_no_neighbour(serve):
    proxy = serve("--allow-path", "POST /tokenize", "--allow-path", "GET /v1/files/*")
    assert hostile.post(proxy, "/tokenize").status == 200
    assert hostile.post(proxy, "/e/a//%74okenize").status == 200
    assert hostile.get(proxy, "/v1/files/f/content").status == 200
    for path in ("/v1/tokenize", "/tokenize/x", "/v1/files", "/v1/files/../batches"):
        assert refused(proxy, "POST", path).status == 403, path
    assert refused(proxy, "DELETE", "/v1/files/f", b"").status == 403
    assert refused(proxy, "GET", "/v1/files/../batches", b"").status == 403


def test_no_option_opens_the_control_of_the_upstream(serve):
    proxy = serve("--allow-path", "POST /*")
    assert refused(proxy, "POST", "/pause").status == 403
    assert refused(proxy, "POST", "/e/a/update_weights").status == 403


UNRECORDED = [
    "/",
    "/api/chat",
    "/api/generate",
    "/cohere/v2/chat",
    "/generate_stream",
    "/inference/v1/generate",
    "/v1/audio/transcriptions",
    "/v1/chat/completions/batch",
    "/v1/messages/batches",
    "/v1/responses/compact",
    "/vertex",
    "/vertex_generate",
    "/v1/%63hat/completions/./batch",
    "//api//chat/",
]


@pytest.mark.parametrize("path", UNRECORDED)
def test_nothing_samples_unrecorded(shared, path):
    reply = refused(shared, "POST", path, CHAT)
    assert reply.status == 403 and "--allow-unrecorded-sampling" in paths.error_of(reply)


def test_a_health_check_that_samples_is_refused(shared):
    assert refused(shared, "GET", "/health_generate", b"").status == 403


def test_sampling_that_no_body_tells_is_refused(shared):
    hostile.post(shared, "/e/sage/invocations", CHAT)
    (call,) = hostile.rows(shared, "SELECT route FROM calls WHERE episode_id = 'sage'")
    assert call["route"] == "chat"
    for body in (b"{}", b'{"input":"a"}', CHAT[:-1] + b',"prompt":"a"}'):
        assert refused(shared, "POST", "/invocations", body).status == 403, body
    for body in (CHAT.decode().encode("utf-16"), b"\xef\xbb\xbf" + CHAT):
        assert refused(shared, "POST", "/invocations", body).status == 400, body


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_forced_sampling_is_not_evaded_by_another_encoding_of_text(serve, encoding):
    proxy = serve("--dialect", "vllm", "--force-sampling", "temperature=1")
    reply = refused(proxy, "POST", "/v1/chat/completions", CHAT.decode().encode(encoding))
    assert reply.status == 400


def test_forced_sampling_holds_in_every_spelling(serve):
    proxy = serve("--dialect", "vllm", "--force-sampling", "temperature=1")
    for path in SPELLINGS.values():
        assert hostile.post(proxy, path, CHAT).status == 200
        assert b'"temperature":1' in paths.agents_requests(proxy)[-1].body, path


def test_headers_that_name_another_path_or_method_go_no_further(shared):
    overrides = [
        ("X-Original-URL", "/pause"),
        ("X-Rewrite-URL", "/pause"),
        ("X-HTTP-Method-Override", "DELETE"),
        ("X-Method-Override", "DELETE"),
        ("X-HTTP-Method", "DELETE"),
    ]
    assert hostile.post(shared, "/v1/chat/completions", CHAT, overrides).status == 200
    heard = paths.agents_requests(shared)[-1].headers
    assert not {name.lower() for name, _ in overrides} & {name for name, _ in heard}


def test_an_episode_without_a_name_takes_no_part_of_the_path_for_it(shared):
    for path in ("/e//v1/chat/completions", "//e//v1/chat/completions"):
        assert refused(shared, "POST", path, CHAT).status == 400
    assert not hostile.rows(shared, "SELECT 1 FROM calls WHERE episode_id = 'v1'")


def test_the_requests_of_common_agents_are_served(shared):
    for method, path in (
        ("HEAD", "/"),
        ("HEAD", "/e/probe"),
        ("GET", "/health"),
        ("GET", "/v1/models"),
        ("GET", "/models"),
        ("GET", "/e/a/v1/models/m?client_version=1"),
        ("OPTIONS", "/v1/chat/completions"),
    ):
        assert http1.exchange(shared.data, http1.request(method, path)).status == 200, path
    for path in (
        "//v1/responses",
        "/messages?beta=true",
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/rerank",
        "/v1/score",
    ):
        reply = hostile.post(shared, path, {"model": "m", "input": "a", "max_tokens": 1})
        assert reply.status != 403, path


def test_http2_gives_no_other_way_around_the_list(shared):
    before = len(paths.agents_requests(shared))
    for path in ("/lora-adapters", "/v1/%2e%2e/pause", "/v1/chat%2fcompletions", "/e/a/tokenize"):
        body = http2_post(shared.data, path)
        assert b'"code":403' in body or b'"code":400' in body, body
    assert len(paths.agents_requests(shared)) == before


def http2_post(address, path):
    """Posts over HTTP/2 with prior knowledge, and gives the bytes of the reply's data frames."""

    def literal(name, value):
        # Without indexing, a new name, no Huffman coding.
        return bytes([0, len(name)]) + name + bytes([len(value)]) + value

    def frame(kind, flags, stream, payload):
        size = struct.pack(">I", len(payload))[1:]
        return size + struct.pack(">BBI", kind, flags, stream) + payload

    pairs = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    fields = b"".join(literal(*pair) for pair in [*pairs, (b":authority", b"test")])
    sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 5, 1, fields)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(sent)
        received, data = b"", b""
        while True:
            while len(received) < 9 or len(received) < 9 + int.from_bytes(received[:3], "big"):
                piece = connection.recv(1 << 16)
                assert piece, data
                received += piece
            size = int.from_bytes(received[:3], "big")
            kind, flags, payload = received[3], received[4], received[9 : 9 + size]
            received = received[9 + size :]
            data += payload if kind == 0 else b""
            if kind in (0, 1) and flags & 1:
                return data
