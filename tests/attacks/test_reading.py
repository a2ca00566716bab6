"""Reading a recording over the control listener: who may, what a browser makes of it, its bounds."""

import json
import re
import socket
import subprocess
import time
from contextlib import ExitStack

import pytest

import harness
import hostile
import http1
from knocking import bearer, bytes_of, knock

SCRIPT = b"<html><script>fetch('/episodes')</script></html>"
BODY = hostile.BODY | {"messages": [{"role": "user", "content": SCRIPT.decode()}]}
STREAMS_MAX = 32
"""Streams of events at a time."""
ENDED_S = 5
VIEWS = ["/episodes", "/groups", "/tasks", "/stats", "/search?q=hi", "/events"]
OF_CALL = ["", "/tokens", "/request", "/reply"]


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    """A proxy with one call, whose request and reply are web pages."""
    page = hostile.reply(SCRIPT, content_type="text/html")
    with hostile.Stage(tmp_path_factory.mktemp("reading")) as stage:
        proxy = stage(answer=lambda request: page)
        hostile.post(proxy, "/e/a/v1/chat/completions", BODY)
        yield proxy


def call_id(proxy):
    """The id of the only call."""
    (row,) = hostile.rows(proxy, "SELECT call_id FROM call")
    return row["call_id"]


def opened(address, path, token):
    """An open stream of events, after its first bytes."""
    line = socket.create_connection(address, timeout=20)
    line.sendall(bytes_of("GET", path, [("host", "127.0.0.1"), bearer(token)]))
    received = b""
    while b": open\n" not in received and b"503" not in received:
        received += line.recv(1 << 16)
    return line, received


@pytest.mark.parametrize("path", [*VIEWS, "/episodes/a/tree"])
def test_an_agent_reads_nothing(proxy, path):
    assert hostile.get(proxy, path).status in (403, 404)
    assert hostile.get(proxy, "/e/a" + path).status in (403, 404)
    assert knock(proxy, "GET", path, token=None).status == 401


@pytest.mark.parametrize("part", OF_CALL)
def test_a_call_is_read_with_the_token_only(proxy, part):
    path = f"/calls/{call_id(proxy)}{part}"
    assert knock(proxy, "GET", path).status == 200
    assert knock(proxy, "GET", path, token=None).status == 401
    foreign = [("origin", "https://evil.example")]
    assert knock(proxy, "GET", path, headers=foreign).status == 403
    assert knock(proxy, "GET", path, host="evil.example").status == 403


@pytest.mark.parametrize("part", ["request", "reply"])
def test_a_recorded_page_is_text_that_may_do_nothing(proxy, part):
    read = knock(proxy, "GET", f"/calls/{call_id(proxy)}/{part}")
    assert SCRIPT in read.body.replace(b"\\", b"")
    assert read.header("content-type") == "text/plain; charset=utf-8"
    assert read.header("x-content-type-options") == "nosniff"
    assert "sandbox" in read.header("content-security-policy")
    assert read.header("cache-control") == "no-store"


HOSTILE_HEADERS = [
    ("set-cookie", "a=b"),
    ("access-control-allow-origin", "*"),
    ("access-control-allow-credentials", "true"),
    ("clear-site-data", '"*"'),
    ("refresh", "0; url=http://evil.example"),
    ("location", "http://evil.example"),
    ("link", "<http://evil.example>; rel=preload"),
    ("www-authenticate", "Basic realm=x"),
    ("x-rolltape-engines", "7"),
    ("content-security-policy", "default-src *"),
    ("x-request-id", "r-1"),
]


@pytest.mark.parametrize("upstreams, path", [(1, "/v1/models"), (2, "/get_world_size")])
def test_what_an_upstream_answers_on_control_may_do_nothing(tmp_path, upstreams, path):
    page = hostile.reply(SCRIPT, content_type="text/html", headers=HOSTILE_HEADERS)
    servers = [hostile.Upstream(lambda request: page) for _ in range(upstreams)]
    names = [word for server in servers for word in ("--upstream", server.url)]
    with harness.serve(tmp_path, *names, "--control-open") as proxy:
        read = knock(proxy, "GET", path, token=None)
        assert read.status == 200, read.body
        for name, value in HOSTILE_HEADERS[:-1]:
            assert read.header(name) != value, name
        assert read.header("x-request-id") == "r-1"
        assert read.header("content-type") == "text/html"
        assert read.header("x-content-type-options") == "nosniff"
        assert "sandbox" in read.header("content-security-policy")
    for server in servers:
        server.stop()


def test_the_page_loads_nothing_of_another_host(proxy):
    page = knock(proxy, "GET", "/", token=None)
    assert page.status == 200 and page.header("content-type").startswith("text/html")
    policy = page.header("content-security-policy")
    assert policy.startswith("default-src 'none'; script-src 'self'")
    assert "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert proxy.token.encode() not in page.body
    assert not re.search(rb"""(src|href)=["']?(https?:)?//""", page.body)
    # By a name of the web that leads here it is not served.
    assert knock(proxy, "GET", "/", token=None, host="evil.example").status == 403


def test_nothing_is_changed_by_reading(proxy):
    for path in [*VIEWS, "/episodes/a/tree", "/"]:
        for method in ("PUT", "DELETE", "PATCH"):
            assert knock(proxy, method, path.split("?")[0]).status in (404, 405), (method, path)
    assert hostile.is_clean(proxy)


@pytest.mark.parametrize(
    "path",
    [
        "/episodes?limit=99999999999999999999",
        "/episodes?offset=-1",
        "/episodes?since=1e999",
        "/episodes?name=%00%ff%25'--",
        "/episodes?label==",
        "/episodes?sort=e.episode_id;DROP",
        "/episodes/%2e%2e%2f%2e%2e/tree",
        "/episodes/a/tree?attempt=-1",
        "/calls/'%20OR%201=1/tokens",
        "/calls/00000000-0000-0000-0000-000000000000/tokens?from=99999999999999999999999",
        "/stats?buckets=0",
        "/stats?since=-1e300&until=1e300&buckets=500",
        "/search?q=" + "a" * 2000,
        "/search?q=a&cursor=-5",
    ],
)
def test_a_malformed_question_is_answered_in_words(proxy, path):
    read = knock(proxy, "GET", path)
    assert read.status in (200, 400, 404), read.body
    assert isinstance(json.loads(read.body), dict)
    assert hostile.is_alive(proxy)


def test_streams_of_events_are_bounded_and_end_when_their_readers_leave(proxy):
    with ExitStack() as held:
        for _ in range(STREAMS_MAX):
            line, received = opened(proxy.control, "/events", proxy.token)
            held.enter_context(line)
            assert b" 200 " in received
        line, received = opened(proxy.control, "/events", proxy.token)
        with line:
            assert b" 503 " in received and b"at most 32 streams" in received
        assert hostile.is_alive(proxy)

    until = time.monotonic() + ENDED_S
    while time.monotonic() < until:
        line, received = opened(proxy.control, "/events", proxy.token)
        line.close()
        if b" 200 " in received:
            return
        time.sleep(0.1)
    raise AssertionError("streams whose readers left still count")


def test_a_stream_of_events_does_not_hold_up_a_stop(serve):
    proxy = serve()
    line, received = opened(proxy.control, "/events", proxy.token)
    hostile.post(proxy, "/e/a/v1/chat/completions")
    with line:
        while b"event: call" not in received:
            received += line.recv(1 << 16)
        before = time.monotonic()
        proxy.process.stop()
        assert time.monotonic() - before < ENDED_S


def test_view_reads_with_the_token_of_its_link_and_does_nothing_else(serve, tmp_path):
    proxy = serve()
    hostile.post(proxy, "/e/a/v1/chat/completions")
    view = harness.Process("view", "--store", proxy.store, folder=tmp_path, stdout=subprocess.PIPE)
    try:
        link = re.match(r"http://([\d.]+):(\d+)/#token=(\S+)", view.child.stdout.readline().decode())
        address, token = (link[1], int(link[2])), link[3]

        def ask(method, path, *headers):
            sent = [("host", "127.0.0.1"), *headers]
            return http1.exchange(address, bytes_of(method, path, sent))

        assert ask("GET", "/episodes").status == 401
        assert ask("GET", "/episodes", bearer("x" * 20)).status == 401
        assert json.loads(ask("GET", "/episodes", bearer(token)).body)["total"] == 1
        for method, path in [("POST", "/episodes/a/close"), ("GET", "/metrics"), ("POST", "/pause")]:
            assert ask(method, path, bearer(token)).status == 404, path
    finally:
        view.stop()


def test_a_hundred_long_labels_make_no_long_list(serve):
    proxy = serve()
    for call in range(3):
        labels = [("x-episode-tag", f"n{call}-{n}={'v' * 500}") for n in range(32)]
        assert hostile.post(proxy, "/e/labels/v1/chat/completions", BODY, headers=labels).status == 200
    listed = knock(proxy, "GET", "/episodes")
    (row,) = json.loads(listed.body)["episodes"]
    assert len(listed.body) < 8 << 10
    assert 0 < len(row["labels"]) <= 16 and len(row["labels"]) + row["labels_left_out"] == 3 * 32
    tree = json.loads(knock(proxy, "GET", "/episodes/labels/tree").body)
    assert len(tree["episode"]["labels"]) == 3 * 32
