"""Reads a GGUF file of version 2 or 3: its fields, and its tensors as 32-bit floats."""

import math
import struct

import numpy

MAGIC = b"GGUF"
SCALARS = ("B", "b", "H", "h", "I", "i", "f", "?", None, None, "Q", "q", "d")
STRING, ARRAY = 8, 9
F32, F16, Q4_0, Q4_1, Q8_0 = 0, 1, 2, 3, 8
BLOCK = 32


class Reader:
    """What a file says, in its order."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        """The next numbers of a form of `struct`, little-endian."""
        size = struct.calcsize(f"<{form}")
        found = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += size
        return found

    def text(self):
        """The next string."""
        (length,) = self.take("Q")
        self.at += length
        return bytes(self.data[self.at - length : self.at]).decode()

    def value(self, kind):
        """The next value of a kind."""
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.take(SCALARS[kind])[0]
        inner, count = self.take("IQ")
        if inner in (STRING, ARRAY):
            return [self.value(inner) for _ in range(count)]
        return list(self.take(f"{count}{SCALARS[inner]}"))


def read(path):
    """The fields of a file by name, and a function that reads a tensor by name, with the names."""
    data = numpy.memmap(path, mode="r", dtype=numpy.uint8)
    reader = Reader(data)
    assert bytes(data[:4]) == MAGIC, f"{path} is no GGUF file"
    reader.at = len(MAGIC)
    version, tensors, fields = reader.take("IQQ")
    assert version in (2, 3), f"GGUF of version {version}"

    found = {}
    for _ in range(fields):
        name = reader.text()
        (kind,) = reader.take("I")
        found[name] = reader.value(kind)
    places = {}
    for _ in range(tensors):
        name = reader.text()
        (rank,) = reader.take("I")
        # The fastest dimension is the first one here, and the last one elsewhere.
        shape = reader.take(f"{rank}Q")[::-1]
        places[name] = (shape, *reader.take("IQ"))
    step = found.get("general.alignment", BLOCK)
    start = math.ceil(reader.at / step) * step
    return found, {
        name: lambda shape=shape, kind=kind, at=start + at: widened(data[at:], shape, kind)
        for name, (shape, kind, at) in places.items()
    }


def widened(data, shape, kind):
    """A tensor as 32-bit floats."""
    count = math.prod(shape)
    if kind in (F32, F16):
        of = numpy.float32 if kind == F32 else numpy.float16
        flat = data[: count * numpy.dtype(of).itemsize].view(of).astype(numpy.float32)
        return flat.reshape(shape)
    half, size = numpy.float16, {Q4_0: 18, Q4_1: 20, Q8_0: 34}[kind]
    blocks = data[: count // BLOCK * size].reshape(-1, size)
    numbers = lambda first, end: blocks[:, first:end].copy().view(half).astype(numpy.float32)
    if kind == Q8_0:
        return (numbers(0, 2) * blocks[:, 2:].copy().view(numpy.int8)).reshape(shape)

    # The low halves of all bytes come first.
    head = size - BLOCK // 2
    nibbles = numpy.concatenate([blocks[:, head:] & 15, blocks[:, head:] >> 4], axis=1)
    if kind == Q4_0:
        return (numbers(0, 2) * (nibbles.astype(numpy.float32) - 8)).reshape(shape)
    return (numbers(0, 2) * nibbles + numbers(2, 4)).reshape(shape)
