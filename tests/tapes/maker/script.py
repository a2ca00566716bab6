"""What an engine sampled, without any server's words for it."""

import struct
from dataclasses import dataclass, field


def f32(x):
    """Servers widen float32 to double."""
    return struct.unpack("f", struct.pack("f", x))[0]


@dataclass(frozen=True)
class Token:
    """A sampled token. `top` are the alternatives after it: (text, logprob)."""

    id: int
    text: str
    logprob: float | None
    top: tuple = ()
    raw: tuple | None = None

    @property
    def bytes(self):
        return list(self.text.encode() if self.raw is None else self.raw)


def T(id, text, logprob, *top, raw=None):
    return Token(id, text, logprob, top, raw)


@dataclass(frozen=True)
class Step:
    """One output of the engine: its tokens, and the delta that the server's parsers make of it.

    A delta has `content`, `reasoning`, `refusal` or `tools`, a list of (index, id, name, piece).
    None is a step that parsers swallow. `raw` is put on the wire as it is, `error` ends a stream.
    """

    tokens: tuple = ()
    delta: dict | None = None
    index: int = 0
    finish: str | None = None
    stop: object = None
    raw: str | None = None
    error: str | None = None


@dataclass(frozen=True)
class Script:
    prompts: tuple
    steps: tuple
    parsers: bool = False
    fault: tuple | None = None  # (status, body) instead of an answer
    version: str = "7"
    spans: tuple | None = None  # of versions, when the weights changed on the way
    reasoning_tokens: int | None = None
    texts: tuple = ("",)  # the rendered prompts
    notes: dict = field(default_factory=dict)

    def indexes(self):
        return sorted({s.index for s in self.steps if s.raw is None and s.error is None})

    def of(self, index):
        return [s for s in self.steps if s.index == index and s.raw is None and s.error is None]

    def tokens(self, index):
        return [t for s in self.of(index) for t in s.tokens]

    def versions(self, index):
        spans = self.spans or ((self.version, 0, None),)
        end = len(self.tokens(index))
        return [{"version": v, "start": a, "end": end if b is None else b} for v, a, b in spans]

    def counts(self, n=1):
        return sum(map(len, self.prompts)), sum(len(self.tokens(i)) for i in self.indexes())

    def message(self, index):
        """Content, reasoning, refusal and tool calls of a choice, its deltas joined."""
        joined, calls = {}, {}
        for step in self.of(index):
            for key, value in (step.delta or {}).items():
                if key != "tools":
                    if value is not None:
                        joined[key] = joined.get(key, "") + value
                    continue
                for at, id, name, piece in value:
                    call = calls.setdefault(at, [id, name, ""])
                    call[2] += piece
        return joined, list(calls.values())

    def end(self, index):
        return self.of(index)[-1]
