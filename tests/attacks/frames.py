"""HTTP/2 as frames: each is written as it is given, also where no client would write it."""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, CONTINUATION = 0, 1, 3, 4, 6, 7, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
REFUSED_STREAM, CANCEL, ENHANCE_YOUR_CALM = 7, 8, 11
HEAD_BYTES = 9


def frame(kind, flags, stream, payload=b""):
    """One frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


START = PREFACE + frame(SETTINGS, 0, 0)
"""What a client says first."""


def integer(value, prefix_bits, flags=0):
    """A number of HPACK behind the flags of its first byte."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([flags | value])
    encoded, value = [flags | most], value - most
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def literal(name, value, flags=0):
    """A header with a new name that is not compressed, and by its flags not indexed either."""
    texts = [text if isinstance(text, bytes) else text.encode() for text in (name, value)]
    return bytes([flags]) + b"".join(integer(len(text), 7) + text for text in texts)


def head(method, path, *headers, authority="127.0.0.1"):
    """The header block of a request."""
    pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", authority)]
    return b"".join(literal(*pair) for pair in [*pseudo, *headers])


def request(stream, method, path, *headers, body=b"", authority="127.0.0.1"):
    """The frames of a whole request."""
    block = head(method, path, *headers, authority=authority)
    if not body:
        return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
    return frame(HEADERS, END_HEADERS, stream, block) + frame(DATA, END_STREAM, stream, body)


def read(received):
    """The whole frames in bytes, each as kind, flags, stream and payload."""
    at = 0
    while len(received) >= at + HEAD_BYTES:
        end = at + HEAD_BYTES + int.from_bytes(received[at : at + 3], "big")
        if len(received) < end:
            return
        kind, flags, stream = struct.unpack_from(">BBI", received, at + 3)
        yield kind, flags, stream, bytes(received[at + HEAD_BYTES : end])
        at = end


def pong(line):
    """What comes until the other side has read all that was sent, as frames."""
    line.sendall(frame(PING, 0, 0, b"abcdefgh"))
    received = bytearray()
    while piece := line.recv(1 << 16):
        received += piece
        found = list(read(received))
        is_whole = len(received) == sum(HEAD_BYTES + len(payload) for *_, payload in found)
        if is_whole and any(kind == PING and flags & ACK for kind, flags, *_ in found):
            return found
    raise AssertionError(f"the connection ended after {list(read(received))}")


def reply(line, stream=1):
    """The body of the reply on a stream of a connection."""
    received = bytearray()
    while piece := line.recv(1 << 16):
        received += piece
        own = [one for one in read(received) if one[2] == stream and one[0] in (DATA, HEADERS)]
        if own and own[-1][1] & END_STREAM:
            return b"".join(payload for kind, _, _, payload in own if kind == DATA)
    raise AssertionError(f"the connection ended after {bytes(received)!r}")
