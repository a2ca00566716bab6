"""HTTP/1.1 as bytes: messages are cut out of what was on the wire and never written again."""

import socket
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"
NO_BODY = {204, 304}


@dataclass(frozen=True)
class Message:
    """A request or a reply as it was sent; the chunks of its body are joined."""

    first_line: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    whole: bool
    """Whether the body ended as its framing promised."""

    @property
    def status(self):
        """The status of a reply."""
        return int(self.first_line.split(" ")[1])

    @property
    def method(self):
        """The method of a request."""
        return self.first_line.split(" ")[0]

    @property
    def path(self):
        """The path of a request, with its query."""
        return self.first_line.split(" ")[1]

    def header(self, name):
        """The first value of a header, or None."""
        return next((value for key, value in self.headers if key == name), None)


def read(data, at=0, bodiless=False):
    """The message at `at` and where the next one starts; None where not even its head is there.

    A `bodiless` reply answers HEAD: its headers speak of a body that is not sent.
    """
    end = data.find(HEAD_END, at)
    if end < 0:
        return None
    first, *lines = data[at:end].decode("latin-1").split("\r\n")
    pairs = tuple((k.strip().lower(), v.strip()) for k, v in (l.split(":", 1) for l in lines))
    message = Message(first, pairs, b"", True)
    body, whole, after = _body(message, data, end + len(HEAD_END), bodiless)
    return Message(first, pairs, body, whole), after


def _body(message, data, at, bodiless):
    is_reply = message.first_line.startswith("HTTP/")
    if bodiless or (is_reply and (message.status < 200 or message.status in NO_BODY)):
        return b"", True, at
    if message.header("transfer-encoding") == "chunked":
        return _joined_chunks(data, at)
    length = message.header("content-length")
    if length is None:
        return (data[at:], True, len(data)) if is_reply else (b"", True, at)
    body = data[at : at + int(length)]
    return body, len(body) == int(length), at + len(body)


def _joined_chunks(data, at):
    body = bytearray()
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].split(b";")[0], 16)
        start = end + 2
        if size == 0:
            return bytes(body), data[start : start + 2] == b"\r\n", start + 2
        body += data[start : start + size]
        if len(data) < start + size + 2:
            break
        at = start + size + 2
    return bytes(body), False, len(data)


def request(method, path, body=b"", headers=()):
    """The bytes of a request that is alone on its connection."""
    lines = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", "connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    if body and not any(name == "transfer-encoding" for name, _ in headers):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join(lines).encode() + HEAD_END + body


def exchange(address, sent, timeout=20):
    """Sends bytes on a connection of their own, reads to its end and returns the reply."""
    with socket.create_connection(address, timeout=timeout) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(sent)
        received = bytearray()
        while piece := connection.recv(1 << 16):
            received += piece
    data, at = bytes(received), 0
    while True:
        found = read(data, at, bodiless=sent.startswith(b"HEAD "))
        assert found, f"no reply, only {data!r}"
        message, at = found
        if message.status >= 200:  # what comes before is interim, such as 100 Continue
            return message
