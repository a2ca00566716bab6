"""HTTP/1.1 as it must be read: an upstream that keeps all bytes and takes only what is clear."""

import json
import re
from dataclasses import dataclass

import hostile
import http1
import lines

FIRST_LINE = re.compile(rb"[A-Z]+ /[!-~]* HTTP/1\.1")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([^\x00-\x08\x0a-\x1f\x7f]*)")
FRAMING = ("content-length", "transfer-encoding")
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}")


@dataclass(frozen=True)
class Request(http1.Message):
    """A request that can be read in one way only."""

    trailers: tuple[tuple[str, str], ...] = ()


class Upstream(hostile.Upstream):
    """Repeats what a call says. It leaves whoever says what two servers may read differently."""

    def __init__(self, answer=None):
        self.raw = []
        """The bytes of each connection."""
        super().__init__(answer or repeat)

    def unclear(self):
        """The bytes of every connection that are not part of a clear request."""
        return [rest for rest in map(_rest, self.raw) if rest]

    def _serve(self, line):
        received, at = bytearray(), 0
        self.raw.append(received)
        try:
            while piece := line.recv(1 << 16):
                received += piece
                while found := read(bytes(received), at):
                    request, at = found
                    self.heard.append(request)
                    self._answer(line, request)
        except (OSError, ValueError):
            pass
        finally:
            self._lines.discard(line)
            line.close()


def read(data, at=0):
    """The request at `at` and where the next one starts; None where it is not whole."""
    end = data.find(http1.HEAD_END, at)
    if end < 0:
        return None
    first, *fields = data[at:end].split(b"\r\n")
    if not FIRST_LINE.fullmatch(first):
        raise ValueError(f"not a request: {first!r}")
    headers, start = _pairs(fields), end + len(http1.HEAD_END)
    framing = [pair for pair in headers if pair[0] in FRAMING]
    if len(framing) > 1:
        raise ValueError(f"framed twice: {framing}")
    found = _body(data, start, *framing[0]) if framing else (b"", (), start)
    if found is None:
        return None
    body, trailers, after = found
    return Request(first.decode(), headers, body, True, trailers), after


def _rest(raw):
    at = 0
    try:
        while found := read(bytes(raw), at):
            at = found[1]
    except ValueError as error:
        return error
    return bytes(raw[at:])


def _pairs(fields):
    found = [FIELD.fullmatch(field) for field in fields]
    if not all(found):
        raise ValueError(f"not fields: {fields}")
    return tuple((one[1].decode().lower(), one[2].decode("latin-1").strip()) for one in found)


def _body(data, at, name, value):
    if name == "transfer-encoding":
        if value != "chunked":
            raise ValueError(f"an encoding that is not chunked: {value!r}")
        return _chunks(data, at)
    if not re.fullmatch("[0-9]+", value):
        raise ValueError(f"not a length: {value!r}")
    end = at + int(value)
    return (data[at:end], (), end) if len(data) >= end else None


def _chunks(data, at):
    body = bytearray()
    while (end := data.find(b"\r\n", at)) >= 0:
        if not CHUNK_SIZE.fullmatch(data[at:end]):
            raise ValueError(f"not the size of a chunk: {data[at:end]!r}")
        size, start = int(data[at:end], 16), end + 2
        if size == 0:
            return _trailers(bytes(body), data, end)
        at = start + size + 2
        if len(data) < at:
            return None
        if data[at - 2 : at] != b"\r\n":
            raise ValueError("a chunk that does not end")
        body += data[start : at - 2]
    return None


def _trailers(body, data, at):
    end = data.find(http1.HEAD_END, at)
    if end < 0:
        return None
    return body, _pairs(data[at:end].split(b"\r\n")[1:]), end + len(http1.HEAD_END)


def says(text):
    """The body of a call that says this."""
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


def document(text):
    """A reply of this text."""
    choice = hostile.REPLY["choices"][0]
    message = {"role": "assistant", "content": text}
    return hostile.REPLY | {"choices": [choice | {"message": message}]}


def repeat(request):
    """A reply that repeats the text of a call."""
    if request.method == "GET":
        return lines.MODELS
    return hostile.reply(document(asked(request)))


def asked(request):
    """The text of a call; none if it has no body."""
    return json.loads(request.body)["messages"][-1]["content"] if request.body else ""


def answered(reply):
    """The text of a reply."""
    return json.loads(reply.body)["choices"][0]["message"]["content"]


def replies(received):
    """All replies in the bytes of a connection."""
    found, at = [], 0
    while at < len(received) and (read_one := http1.read(received, at)):
        found.append(read_one[0])
        at = read_one[1]
    assert at == len(received), f"bytes that are no reply: {received[at:]!r}"
    return found
