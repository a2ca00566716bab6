"""Connections as bytes: requests sent in parts, what comes back, and servers that run short."""

import json
import os
import re
import select
import socket
import time

import harness
import hostile
import http1

WAIT_S = 8
"""Room for a busy machine; what is waited for comes sooner."""
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def connect(address):
    """A connection without delay."""
    line = socket.create_connection(address, timeout=WAIT_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def is_closed(line, within_s=WAIT_S):
    """Whether the other side ends the connection, after whatever it still sends."""
    until = time.monotonic() + within_s
    try:
        while (left := until - time.monotonic()) > 0:
            line.settimeout(left)
            if not line.recv(1 << 16):
                return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return False


def is_answered(line):
    """Whether something has come on a connection, or its end."""
    waiting = select.poll()
    waiting.register(line, select.POLLIN)
    return bool(waiting.poll(0))


def head(method, path, length=None, kept=True):
    """The head of a request of JSON."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "content-type: application/json"]
    lines += [] if kept else ["connection: close"]
    lines += [] if length is None else [f"content-length: {length}"]
    return "\r\n".join(lines).encode() + http1.HEAD_END


def chat(path=hostile.CHAT, kept=True, **more):
    """The bytes of a call."""
    body = json.dumps(hostile.BODY | more).encode()
    return head("POST", path, len(body), kept) + body


def whole(line):
    """One whole reply of a connection that stays."""
    received = bytearray()
    while piece := line.recv(1 << 16):
        received += piece
        found = http1.read(bytes(received))
        if found and found[0].whole:
            return found[0]
    raise AssertionError(f"no whole reply, only {bytes(received)!r}")


def to_end(line):
    """Everything up to the end of the connection."""
    received = bytearray()
    while piece := line.recv(1 << 16):
        received += piece
    return bytes(received)


def control(proxy, path):
    """A page of the control listener."""
    headers = [("authorization", f"Bearer {proxy.token}")] if proxy.token else []
    return http1.exchange(proxy.control, http1.request("GET", path, b"", headers), timeout=WAIT_S)


def metric(proxy, name):
    """The value of a metric, by its name and what stands in braces behind it."""
    page = control(proxy, "/metrics").body.decode()
    (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    return float(value)


def stream(pieces):
    """A chunked stream of events; a piece that is a function is called in between."""
    yield (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        b"transfer-encoding: chunked\r\n\r\n"
    )
    for piece in pieces:
        if callable(piece):
            piece()
        else:
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def limited(folder, descriptors):
    """A program that runs rolltape with so many file descriptors."""
    program = folder / f"rolltape-{descriptors}"
    program.write_text(f'#!/bin/sh\nulimit -n {descriptors}\nexec {harness.binary()} "$@"\n')
    program.chmod(0o755)
    return str(program)


def is_v1_models(request):
    return request.path == "/v1/models"


MODELS = hostile.reply({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]})
"""What an upstream says of its models, so that calls are not held up."""


def descriptors(proxy):
    """The file descriptors that a server has open."""
    return len(os.listdir(f"/proc/{proxy.process.child.pid}/fd"))
