"""A case: an agent's request, and what there is to answer."""

import json
from dataclasses import dataclass

from maker.script import Script
from maker.text import write


@dataclass(frozen=True)
class Case:
    upstream: str
    wire: str
    short: str
    request: object  # a dict, or the text of a body
    script: Script
    shows: str
    opted_in: bool = False
    frame: str | None = None
    refused: tuple | None = None  # (status, body) of the answer to what we ask for
    raw: tuple | None = None  # (kind, text) of a reply that is the same, asked or not
    facts: dict | None = None  # of a raw reply

    @property
    def name(self):
        return f"{self.upstream}/{self.wire}/{self.short}"

    @property
    def body(self):
        return self.request if isinstance(self.request, str) else write(self.request)

    @property
    def stream(self):
        return bool(json.loads(self.body).get("stream"))
