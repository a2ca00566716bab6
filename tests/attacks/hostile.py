"""What attacks are made of: an upstream that sends any bytes, raw requests, a process's costs."""

import json
import os
import socket
import sqlite3
import threading
from contextlib import ExitStack

import harness
import http1

CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
REPLY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def reply(body=b"", status="200 OK", content_type="application/json", headers=()):
    """The bytes of a whole reply; what is not bytes is written as JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + http1.HEAD_END + body


class Upstream:
    """A server whose `answer(request)` gives the bytes of a reply, or pieces of them."""

    def __init__(self, answer=lambda request: reply(REPLY)):
        self.answer = answer
        self.heard = []
        """Every request that came, in order."""
        self.pieces = 0
        """How many pieces of replies were taken from it."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = self._listener.getsockname()
        self.url = f"http://{harness.text(self.address)}"
        self._lines = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def calls(self):
        """The requests that asked for tokens."""
        return [request for request in self.heard if request.method == "POST"]

    def stop(self):
        """Ends the listener and every connection."""
        self._listener.close()
        for line in list(self._lines):
            line.close()

    def _accept(self):
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            self._lines.add(line)
            threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _serve(self, line):
        received, wanted = bytearray(), 0
        try:
            while piece := line.recv(1 << 16):
                received += piece
                # A body is read as a whole: to try it with each piece would take a minute of it.
                while len(received) >= wanted and (found := http1.read(bytes(received))):
                    request, end = found
                    if not request.whole:
                        wanted = end - len(request.body) + int(request.header("content-length") or 0)
                        break
                    wanted = 0
                    del received[:end]
                    self.heard.append(request)
                    self._answer(line, request)
        except (OSError, ConnectionError):
            pass
        finally:
            self._lines.discard(line)
            line.close()

    def _answer(self, line, request):
        said = self.answer(request)
        for piece in [said] if isinstance(said, bytes) else said:
            line.sendall(piece)
            self.pieces += 1


class Stage:
    """Starts servers and upstreams, and ends them in the order in which they depend."""

    def __init__(self, folder):
        self.folder = folder
        self._held = ExitStack()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        return self._held.__exit__(*raised)

    def __call__(self, *arguments, answer=None, upstream=None, env=None):
        """A proxy before `upstream`, else before a new one that gives `answer`; `upstream` is
        then the attribute of that name."""
        upstream = upstream or (Upstream(answer) if answer else Upstream())
        self._held.callback(upstream.stop)
        where = ("--upstream", upstream.url)
        proxy = self._held.enter_context(
            harness.serve(self.folder, *where, *arguments, env=env)
        )
        proxy.upstream = upstream
        return proxy


def post(proxy, path=CHAT, body=BODY, headers=(), **options):
    """Posts on the data listener; what is not bytes is written as JSON."""
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = [("content-type", "application/json"), *headers]
    return http1.exchange(proxy.data, http1.request("POST", path, body, headers), **options)


def get(proxy, path, headers=(), **options):
    """Gets a path of the data listener."""
    return http1.exchange(proxy.data, http1.request("GET", path, b"", headers), **options)


def rows(proxy, query, *values):
    """What the store says."""
    with sqlite3.connect(proxy.store) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(query, values).fetchall()]


def is_clean(proxy):
    """Whether `rolltape verify` finds the store whole."""
    return json.loads(proxy.command("verify", "--json"))["clean"]


def peak_mib(proxy):
    """The most memory that the server has had resident so far, in MiB."""
    return _status_mib(proxy, "VmHWM")


def resident_mib(proxy):
    """The memory that the server has resident now, in MiB."""
    return _status_mib(proxy, "VmRSS")


def _status_mib(proxy, field):
    with open(f"/proc/{proxy.process.child.pid}/status") as status:
        (line,) = (line for line in status if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def cpu_s(proxy):
    """The processor time that the server has taken so far, in seconds."""
    with open(f"/proc/{proxy.process.child.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_alive(proxy):
    """Whether the server runs and answers on its control listener."""
    if proxy.process.child.poll() is not None:
        return False
    return http1.exchange(proxy.control, http1.request("GET", "/health")).status == 200
