"""Upgrades: no bytes pass beside the recording."""

import socket

import hostile
import http1
import paths
import pytest

WEBSOCKET = [
    ("connection", "keep-alive, Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "eA=="),
]


def switch(protocol):
    """A reply that agrees to a switch, whatever was asked."""
    return (
        f"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: {protocol}\r\n\r\n"
    ).encode()


def agreeing(request):
    """Agrees to every switch, and then answers what comes."""
    asked = request.header("upgrade")
    return switch(asked) if asked else hostile.reply(hostile.REPLY)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A server whose upstream agrees to every switch."""
    with hostile.Stage(tmp_path_factory.mktemp("upgrades")) as stage:
        yield stage("--dialect", "openai", answer=agreeing)


def ask(proxy, path, headers=WEBSOCKET, method="GET", body=b""):
    """The reply to a request whose `connection` header is only that of `headers`."""
    lines = [f"{method} {path} HTTP/1.1", "host: test"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines += [f"content-length: {len(body)}"] * bool(body)
    with socket.create_connection(proxy.data, timeout=10) as connection:
        connection.sendall("\r\n".join(lines).encode() + http1.HEAD_END + body)
        received = b""
        while True:
            found = http1.read(received)
            if found and found[0].whole:
                return found[0]
            piece = connection.recv(1 << 16)
            assert piece, received
            received += piece


def heard_upgrades(proxy):
    """The protocols that the upstream was asked for."""
    return [r.header("upgrade") for r in proxy.upstream.heard if r.header("upgrade")]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses",
        "/e/a/v1/responses",
        "//v1/./responses/",
        "/v1/%72esponses",
        "/v1/chat/completions?x=1",
        "/generate",
    ],
)
def test_a_websocket_on_a_sampling_route_is_a_426(shared, path):
    assert ask(shared, path).status == 426
    assert not heard_upgrades(shared)


@pytest.mark.parametrize(
    "path", ["/v1/realtime", "/ws", "/", "/v1/models", "/health", "/e/a/v1/models/m", "/v1/files"]
)
def test_a_websocket_elsewhere_is_refused(shared, path):
    reply = ask(shared, path)
    assert reply.status == 403 and "relays no WebSockets" in paths.error_of(reply)
    assert not heard_upgrades(shared)


@pytest.mark.parametrize(
    "protocols",
    [
        ["h2c"],
        ["h2c, x"],
        ["x"],
        ["x, h2c"],
        ["websocket, h2c"],
        ["websocket", "h2c"],
        ["h2c", "websocket"],
        ["websocket/13"],
        ["TLS/1.0"],
        ["connect-udp"],
        [""],
    ],
)
def test_no_other_protocol_is_switched_to(shared, protocols):
    headers = [("connection", "upgrade"), *(("upgrade", one) for one in protocols)]
    assert ask(shared, "/v1/models", headers).status in (200, 403)
    body = b'{"messages":[]}'
    assert ask(shared, "/v1/chat/completions", headers, "POST", body).status == 200
    assert not heard_upgrades(shared)


def test_an_offer_of_h2c_with_its_settings_is_declined_and_answered(shared):
    headers = [
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQCAAAAAAIAAAAA"),
    ]
    assert ask(shared, "/v1/models", headers).status == 200
    heard = shared.upstream.heard[-1]
    assert heard.header("http2-settings") is None and heard.header("connection") is None


def test_a_websocket_by_another_method_is_a_plain_call(shared):
    assert ask(shared, "/v1/chat/completions", WEBSOCKET, "POST", b"{}").status == 200
    assert ask(shared, "/v1/embeddings", WEBSOCKET, "POST").status == 200
    assert not heard_upgrades(shared)


def test_connect_is_refused(shared):
    before = len(shared.upstream.heard)
    for target in ("example.com:443", "127.0.0.1:22"):
        reply = paths.raw(shared, f"CONNECT {target} HTTP/1.1", [("host", target)])
        assert reply.status >= 400
    assert len(shared.upstream.heard) == before


def test_an_allowed_path_gives_no_websocket(serve):
    options = ["--allow-path", "GET /v1/*", "--allow-path", "GET /ws"]
    proxy = serve("--dialect", "openai", *options, answer=agreeing)
    assert ask(proxy, "/v1/responses").status == 426
    assert ask(proxy, "/v1/messages").status == 426
    assert ask(proxy, "/v1/realtime").status == 403
    assert ask(proxy, "/ws").status == 403
    assert ask(proxy, "/v1/../ws").status == 403
    assert not heard_upgrades(proxy)


def test_an_upstream_that_switches_unasked_gets_no_tunnel(serve):
    proxy = serve(
        "--dialect", "openai", "--allow-path", "GET /ws", answer=lambda request: switch("h2c")
    )
    assert ask(proxy, "/ws", []).status == 502
