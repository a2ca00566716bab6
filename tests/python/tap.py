"""A tap on the line between rolltape and its upstream.

It copies bytes both ways as they arrive and keeps them. HTTP is read out of what it kept only
when a test asks, so nothing that it does can change what either side sees.
"""

import socket
import threading
from collections import defaultdict
from dataclasses import dataclass

import http1

GENERATION_PATHS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True)
class Exchange:
    """One request and its reply as they went over the tap."""

    request: http1.Message
    reply: http1.Message

    @property
    def generates(self):
        """Whether tokens were asked for."""
        return self.request.method == "POST" and self.request.path in GENERATION_PATHS


class _Line:
    """One relayed connection and every byte that passed."""

    def __init__(self, agent, upstream, gate):
        self.sides = (agent, upstream)
        self._gate = gate
        self.sent, self.received = bytearray(), bytearray()
        self.asks = True
        """Whether rolltape may still send something: it has not left."""
        for side in self.sides:
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def copy(self):
        """Begins to pass bytes on; whoever asks must know the line by then."""
        agent, upstream = self.sides
        answered = (upstream, agent, self.received, self._gate)
        threading.Thread(target=self._copy_requests, args=(agent, upstream), daemon=True).start()
        threading.Thread(target=_copy, args=answered, daemon=True).start()

    def _copy_requests(self, agent, upstream):
        _copy(agent, upstream, self.sent)
        self.asks = False

    def exchanges(self):
        """The exchanges so far; a reply that has not begun yet is left out."""
        sent, received = bytes(self.sent), bytes(self.received)
        asked = answered = 0
        while found := http1.read(sent, asked):
            request, asked = found
            reply = http1.read(received, answered, bodiless=request.method == "HEAD")
            if reply is None:
                return
            answered = reply[1]
            yield Exchange(request, reply[0])

    def close(self):
        for side in self.sides:
            _quietly(side.shutdown, socket.SHUT_RDWR)
            side.close()


class _Gate:
    """Holds replies back once a number of bytes has passed on their connection."""

    def __init__(self):
        self._open = threading.Event()
        self._open.set()
        self._left = defaultdict(int)

    def close_after(self, size):
        self._left = defaultdict(lambda: size)
        self._open.clear()

    def open(self):
        self._open.set()

    def passed(self, line, size):
        """Returns at once, or when the gate opens."""
        self._left[line] -= size
        if self._left[line] <= 0:
            self._open.wait()


def _copy(source, target, kept, gate=None):
    """Copies until one side ends; each piece is kept before it is passed on."""
    try:
        while piece := source.recv(1 << 16):
            kept += piece
            target.sendall(piece)
            if gate:
                gate.passed(source, len(piece))
    except OSError:
        _quietly(source.shutdown, socket.SHUT_RDWR)
    _quietly(target.shutdown, socket.SHUT_WR)


def _quietly(act, *arguments):
    try:
        act(*arguments)
    except OSError:
        pass  # the other side was faster


class Tap:
    """Listens on a free port in front of `upstream`, a (host, port)."""

    def __init__(self, upstream):
        self._upstream = upstream
        self._lines = []
        self._gate = _Gate()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        """Where rolltape is to find its upstream."""
        return f"http://{self.address[0]}:{self.address[1]}"

    def _accept(self):
        while True:
            try:
                agent, _ = self._listener.accept()
            except OSError:
                return  # stopped
            try:
                upstream = socket.create_connection(self._upstream)
            except OSError:
                agent.close()
                continue
            self._lines.append(_Line(agent, upstream, self._gate))
            self._lines[-1].copy()

    def exchanges(self):
        """Every exchange so far, connection by connection."""
        return [exchange for line in self._lines for exchange in line.exchanges()]

    def generations(self):
        """The exchanges that asked for tokens."""
        return [exchange for exchange in self.exchanges() if exchange.generates]

    def left(self):
        """The exchanges that asked for tokens, of connections that rolltape has ended since."""
        lines = [line for line in self._lines if not line.asks]
        return [exchange for line in lines for exchange in line.exchanges() if exchange.generates]

    def hold_after(self, size):
        """Holds the replies of each connection back once `size` bytes more have passed there, until
        `release`."""
        self._gate.close_after(size)

    def release(self):
        self._gate.open()

    def stop(self):
        """Ends the listener and every connection."""
        self.release()
        _quietly(self._listener.shutdown, socket.SHUT_RDWR)
        self._listener.close()
        for line in self._lines:
            line.close()
