"""Raw requests to the control listener: any method, Host, headers and token, over HTTP/1 and 2."""

import json
import socket

import frames
import http1

JSON = ("content-type", "application/json")


def bearer(token):
    """The header that carries a token."""
    return ("authorization", f"Bearer {token}")


def bytes_of(method, path, headers, body=b"", version="1.1"):
    """A request with these headers and no other one but its length."""
    lines = [f"{method} {path} HTTP/{version}"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body:
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "connection: close"]).encode() + http1.HEAD_END + body


def knock(proxy, method, path, body=b"", headers=(), token=True, host="127.0.0.1", **options):
    """One request on the control listener, with its token unless told; gives the reply."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = [] if host is None else [("host", host)]
    sent += [bearer(proxy.token)] if token is True and proxy.token else []
    sent += [bearer(token)] if isinstance(token, str) else []
    return http1.exchange(proxy.control, bytes_of(method, path, [*sent, *headers], body, **options))


def http2(proxy, method, path, headers=(), authority="127.0.0.1", body=b""):
    """The body of the reply to one request over HTTP/2, as JSON."""
    request = frames.request(1, method, path, *headers, body=body, authority=authority)
    with socket.create_connection(proxy.control, timeout=20) as line:
        line.sendall(frames.START + request)
        return json.loads(frames.reply(line))
