"""Secrets: keys in queries, the operator's key, the upstream's address, and web pages."""

import gzip
import json
import time

import harness
import hostile
import http1
import paths
import pytest

KEY = "sk-operator-4b8e7f3a9c1d5e2b"
SECRET = "s3cret-of-an-agent"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server without a key of the operator's, in front of a server like OpenAI's."""
    with hostile.Stage(tmp_path_factory.mktemp("leaks")) as stage:
        yield stage("--dialect", "openai", env=harness.environment(ROLLTAPE_LOG="trace"))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory):
    """A server with a key of the operator's, whose upstream repeats what it is sent."""
    env = harness.environment(OWN_KEY=KEY)
    with hostile.Stage(tmp_path_factory.mktemp("keyed")) as stage:
        yield stage("--dialect", "openai", "--upstream-key-env", "OWN_KEY", answer=echo, env=env)


def echo(request):
    """A reply that repeats the credentials of its request."""
    told = request.header("authorization") or request.header("x-api-key") or "none"
    refused = {"error": {"message": f"Incorrect API key: {told}", "code": 401}}
    if b"refuse" in request.body:
        return hostile.reply(refused, "401 Unauthorized", headers=[("x-echo", told)])
    if b'"stream":true' in request.body:
        chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": told}}]})
        events = f"data: {chunk}\n\ndata: [DONE]\n\n".encode()
        return hostile.reply(events, content_type="text/event-stream")
    choice = {"index": 0, "message": {"content": told}, "finish_reason": "stop"}
    return hostile.reply({**hostile.REPLY, "model": told, "choices": [choice]})


QUERIES = [
    "api_key", "api-key", "apikey", "key", "token", "access_token", "auth_token", "X-Api-Key",
    "%61pi_key", "API_KEY", "subscription-key", "client_secret", "password", "sig", "signature",
    "authorization", "x-amz-security-token",
]


@pytest.mark.parametrize("name", QUERIES)
def test_a_secret_in_a_query_reaches_the_upstream_and_no_file(shared, name):
    path = f"/v1/models/m?a=b&{name}={SECRET}&c=d"
    assert hostile.get(shared, f"/e/query{path}").status == 200
    assert shared.upstream.heard[-1].path == path
    assert hostile.post(shared, f"/e/query/v1/chat/completions?{name}={SECRET}").status == 200
    assert SECRET.encode() not in paths.stored_files(shared)
    assert SECRET not in shared.process.stderr
    stored = hostile.rows(shared, "SELECT path FROM calls WHERE episode_id = 'query'")
    assert any(f"a=b&{name}=redacted&c=d" in row["path"] for row in stored)


def test_a_secret_in_a_query_is_in_no_export(shared, tmp_path):
    hostile.post(shared, f"/e/exported/v1/chat/completions?api_key={SECRET}")
    shared.command("export", "--format", "calls", "--out", tmp_path / "out")
    written = [file for file in (tmp_path / "out").rglob("*") if file.is_file()]
    assert written and not any(SECRET.encode() in file.read_bytes() for file in written)
    assert SECRET not in shared.command("show", "exported", "--json")


def test_a_query_without_a_secret_is_stored_as_it_was_sent(shared):
    path = "/v1/chat/completions?beta=true&max_tokens=5&keyword=a%20b&empty="
    hostile.post(shared, f"/e/plain{path}")
    (call,) = hostile.rows(shared, "SELECT path FROM calls WHERE episode_id = 'plain'")
    assert call["path"] == path


@pytest.mark.parametrize("command", ["serve", "doctor", "run"])
@pytest.mark.parametrize("userinfo", ["user:s3cret-pass", "s3cret-pass", ":s3cret-pass"])
def test_a_password_in_the_upstreams_address_is_refused_and_not_repeated(
    tmp_path, command, userinfo
):
    rest = {"serve": ["--listen", "127.0.0.1:0", "--control", "127.0.0.1:0"], "run": ["--", "true"]}
    url = f"http://{userinfo}@127.0.0.1:9/v1"
    ended = harness.command(command, "--upstream", url, *rest.get(command, []), folder=tmp_path)
    assert ended.returncode != 0 and "--upstream-key-env" in ended.stderr
    assert "s3cret-pass" not in ended.stderr + ended.stdout
    assert not any(b"s3cret-pass" in file.read_bytes() for file in tmp_path.rglob("*.db*"))


class Nobody:
    """An upstream at an address where nobody listens."""

    def __init__(self):
        (self.address,) = harness.free_addresses(1)
        self.url = f"http://{harness.text(self.address)}"

    def stop(self):
        """Has nothing to stop."""


def test_a_502_names_no_address_of_the_upstream(serve):
    proxy = serve("--dialect", "openai", upstream=Nobody())
    address = harness.text(proxy.upstream.address)
    port = str(proxy.upstream.address[1])
    for path in ("/v1/chat/completions", "/v1/messages", "/v1/embeddings", "/e/a/v1/responses"):
        reply = hostile.post(proxy, path, {"model": "m", "max_tokens": 1})
        assert reply.status == 502
        head = reply.first_line + repr(reply.headers)
        assert port not in reply.body.decode() + head and "127.0.0.1" not in reply.body.decode()
    assert address in proxy.process.stderr, "the log names it"
    (call,) = hostile.rows(proxy, "SELECT error FROM calls WHERE episode_id = 'a'")
    assert address in call["error"], "the user's recording names it"


def test_an_upstream_that_hangs_up_is_not_named(serve):
    proxy = serve("--dialect", "openai")
    port = str(proxy.upstream.address[1])

    def hang_up(request):
        raise ConnectionError

    proxy.upstream.answer = hang_up
    reply = hostile.post(proxy)
    assert reply.status == 502 and port not in reply.body.decode()


REDIRECTS = {
    "301 Moved Permanently": {},
    "302 Found": {},
    "303 See Other": {},
    "307 Temporary Redirect": {},
    "308 Permanent Redirect": {},
    "300 Multiple Choices": {},
    "200 OK": {"refresh": "0; url={}", "alt-svc": 'h2="{}"', "content-location": "{}"},
}


@pytest.mark.parametrize("status", REDIRECTS)
def test_a_redirect_of_the_upstream_leads_the_key_nowhere(serve, status):
    elsewhere = hostile.Upstream()
    try:
        target = f"{elsewhere.url}/v1/chat/completions"
        more = [(name, value.format(target)) for name, value in REDIRECTS[status].items()]
        moved = hostile.reply(hostile.REPLY, status, headers=[("location", target), *more])
        options = ["--upstream-key-env", "OWN_KEY"]
        env = harness.environment(OWN_KEY=KEY)
        proxy = serve(*options, answer=lambda request: moved, env=env)
        reply = post_local(proxy, "/e/a/v1/chat/completions", json.dumps(hostile.BODY).encode())
        assert reply.status == int(status[:3]) and reply.header("location") == target
        assert browse(proxy, [], "/v1/models", "GET")[0] == reply.status
        own = {request.header("authorization") for request in proxy.upstream.heard}
        assert own == {f"Bearer {KEY}"}, "the upstream hears the key, rolltape's own requests too"
        (call,) = hostile.rows(proxy, "SELECT status FROM calls WHERE episode_id = 'a'")
        assert call["status"] == reply.status
        assert elsewhere.heard == []
    finally:
        elsewhere.stop()


CREDENTIALS = {
    "authorization": "Bearer {}",
    "x-api-key": "{}",
    "api-key": "{}",
    "x-goog-api-key": "{}",
    "proxy-authorization": "Basic {}",
    "cookie": "session={}",
}


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_credential_is_in_the_log_though_it_tells_everything(serve, form):
    env = harness.environment(OWN_KEY=KEY, ROLLTAPE_LOG="trace", ROLLTAPE_LOG_FORMAT=form)
    proxy = serve("--upstream-key-env", "OWN_KEY", answer=echo, env=env)
    for path in ("/e/a/v1/chat/completions", "/v1/embeddings", "/v1/nothing", "/e/a/pause"):
        for name, value in CREDENTIALS.items():
            headers = [(name, value.format(SECRET))]
            post_local(proxy, path, json.dumps(hostile.BODY).encode(), headers)
            post_local(proxy, path, b'{"refuse": 1}', headers)
    assert all(KEY in str(request.headers) for request in proxy.upstream.heard)
    # A key that was refused goes once in its other form, for the calls of a route.
    assert len(proxy.upstream.calls()) == 4 * len(CREDENTIALS) + 2
    proxy.process.stop()
    said = proxy.process.stderr
    assert "TRACE" in said, "it does tell everything"
    assert SECRET not in said and KEY not in said


@pytest.mark.parametrize("named", ["authorization", "x-api-key, authorization", "Authorization"])
def test_no_header_of_an_agent_takes_the_operators_key_away(keyed, named):
    before = len(keyed.upstream.calls())
    body = json.dumps(hostile.BODY).encode()
    line = "POST /v1/chat/completions HTTP/1.1"
    headers = [("host", "localhost"), ("authorization", f"Bearer {SECRET}"), ("connection", named)]
    assert paths.raw(keyed, line, headers, body).status == 200
    (call,) = keyed.upstream.calls()[before:]
    assert call.header("authorization") == f"Bearer {KEY}"
    assert SECRET not in str(call.headers)


@pytest.mark.parametrize(
    "body",
    [
        {"model": "m", "messages": []},
        {"model": "m", "messages": [], "stream": True},
        {"model": "m", "messages": [], "refuse": 1},
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/embeddings"])
def test_the_operators_key_is_stored_nowhere_though_the_upstream_repeats_it(keyed, path, body):
    sent = json.dumps(body, separators=(",", ":")).encode()
    reply = post_local(keyed, f"/e/echo{path}", sent)
    assert b"rolltape-redacted" in reply.body and KEY.encode() not in reply.body
    post_local(keyed, "/v1/chat/completions", sent, [("x-api-key", "mine")])
    assert KEY.encode() not in paths.stored_files(keyed)
    assert KEY not in keyed.process.stderr
    query = "SELECT call_id, error FROM calls WHERE episode_id = 'echo' ORDER BY started_at DESC"
    call = hostile.rows(keyed, query)[0]
    assert "rolltape-redacted" in keyed.command("show", "echo", "--call", call["call_id"], "--json")


def told(headers=(), coding=None, cut=None):
    """An upstream that tells its key in an error: in a coding, or cut in two."""

    def answer(request):
        key = request.header("authorization") or request.header("x-api-key") or "none"
        body = json.dumps({"error": {"message": f"bad {key}"}}).encode()
        body = gzip.compress(body) if coding else body
        coded = [("content-encoding", coding)] if coding else []
        named = [(name, value.format(key=key)) for name, value in headers]
        reply = hostile.reply(body, "401 No " + key, headers=[*coded, *named])
        if cut is None:
            return reply
        at = reply.rindex(b"4b8e") if b"4b8e" in reply else len(reply) - 20

        def pieces():
            yield reply[:at]
            time.sleep(cut)
            yield reply[at:]

        return pieces()

    return answer


@pytest.mark.parametrize("path", [hostile.CHAT, "/v1/messages", "/v1/models", "/v1/embeddings"])
@pytest.mark.parametrize(
    "answer",
    [told(), told(coding="gzip"), told(cut=0.2), told([("x-echo", "{key}"), ("location", "/?{key}")])],
    ids=["plain", "gzip", "cut", "headers"],
)
def test_no_agent_gets_the_operators_key_though_the_upstream_repeats_it(serve, path, answer):
    env = harness.environment(OWN_KEY=KEY)
    proxy = serve("--dialect", "vllm", "--upstream-key-env", "OWN_KEY", answer=answer, env=env)
    accepts = [("host", "localhost"), ("accept-encoding", "gzip"), ("connection", "close")]
    method, body = ("GET", b"") if path == "/v1/models" else ("POST", b'{"model":"m","max_tokens":1}')
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in accepts)]
    lines += ["content-type: application/json", f"content-length: {len(body)}"]
    request = "\r\n".join(lines).encode() + http1.HEAD_END + body
    got = http1.exchange(proxy.data, request)
    assert KEY in str(proxy.upstream.heard[-1].headers)
    said = f"{got.first_line} {got.headers}".encode() + got.body
    assert got.status == 401 and KEY.encode() not in said
    assert b"rolltape-redacted" in said and got.header("content-encoding") is None


def test_the_operators_key_is_not_stored_when_an_agent_repeats_it(keyed):
    said = {"model": KEY, "messages": [{"role": "user", "content": f"the key is {KEY}"}]}
    body = json.dumps(said).encode()
    assert post_local(keyed, f"/e/said/v1/chat/completions?a={KEY}", body).status == 200
    assert KEY.encode() in keyed.upstream.calls()[-1].body
    assert KEY.encode() not in paths.stored_files(keyed)


def post_local(proxy, path, body, headers=()):
    """Posts as an agent on this machine does."""
    return paths.raw(proxy, f"POST {path} HTTP/1.1", [("host", "localhost"), *headers], body)


def browse(proxy, headers, path="/v1/chat/completions", method="POST", host="localhost"):
    """The status of a request as a browser sends it, and whether the upstream heard it."""
    before = len(proxy.upstream.heard)
    body = b'{"model":"m","messages":[]}' if method == "POST" else b""
    line = f"{method} {path} HTTP/1.1"
    reply = paths.raw(proxy, line, [*([("host", host)] * bool(host)), *headers], body)
    return reply.status, len(proxy.upstream.heard) > before


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost:3000",
        "http://127.0.0.1.evil.example",
        "null",
        "file://",
        "",
        "http://evil@localhost",
        "HTTP://LOCALHOST.evil.example",
    ],
)
def test_a_web_page_of_another_origin_spends_no_key(keyed, origin):
    plain = ("content-type", "text/plain")
    assert browse(keyed, [("origin", origin), plain]) == (403, False)
    assert browse(keyed, [("origin", origin)], "/v1/models", "GET") == (403, False)


def test_a_preflight_of_another_origin_is_refused(keyed):
    headers = [("origin", "https://evil.example"), ("access-control-request-method", "POST")]
    assert browse(keyed, headers, method="OPTIONS") == (403, False)


@pytest.mark.parametrize("site", ["cross-site", "same-site", "odd"])
def test_an_image_of_another_page_spends_no_key(keyed, site):
    headers = [("sec-fetch-site", site), ("sec-fetch-mode", "no-cors")]
    assert browse(keyed, headers, "/v1/models", "GET") == (403, False)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.nip.example",
        "a@127.0.0.1",
        "0x7f.1",
        "",
    ],
)
def test_a_name_that_somebody_else_resolves_to_this_machine_spends_no_key(keyed, host):
    if host:
        assert browse(keyed, [], host=host) == (403, False)
    assert browse(keyed, [("origin", f"http://{host}")], host=host) == (403, False)
    assert browse(keyed, [("host", "evil.example")], host="localhost")[1] is False
    assert browse(keyed, [], "http://evil.example/v1/chat/completions")[1] is False


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:8080", "[::1]:80", "a.localhost", None]
)
def test_an_agent_on_this_machine_is_served(keyed, host):
    assert browse(keyed, [], host=host) == (200, True)
    own = [("origin", f"http://{host}"), ("sec-fetch-site", "same-origin")] if host else []
    assert browse(keyed, own, host=host) == (200, True)


def test_an_allowed_origin_and_its_host_are_served_and_no_other(serve):
    options = ["--upstream-key-env", "OWN_KEY", "--dialect", "openai"]
    origins = ["--allow-origin", "app://mine", "--allow-origin", "http://box.example:8080"]
    proxy = serve(*options, *origins, env=harness.environment(OWN_KEY=KEY))
    assert browse(proxy, [("origin", "app://mine")]) == (200, True)
    assert browse(proxy, [], host="box.example:8080") == (200, True)
    for origin in ("app://mine.evil", "https://box.example:8080", "app://"):
        assert browse(proxy, [("origin", origin)]) == (403, False), origin
    assert browse(proxy, [], host="box.example") == (403, False)


def test_without_a_key_of_the_operator_a_page_is_the_upstreams_to_judge(shared):
    reply = http1.exchange(
        shared.data,
        http1.request("OPTIONS", "/v1/chat/completions", b"", [("origin", "https://a.example")]),
    )
    assert reply.status == 200
