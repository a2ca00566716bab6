"""What an upstream said of its tokens, read from the raw replies that a tap kept."""

import json
import re
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Choice:
    """One choice of a reply."""

    prompt: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """As JSON carried them, before any rounding."""
    versions: list[int] = field(default_factory=list)
    """Policy version of each id; -1 where it is not a number."""
    finish_reason: str | None = None

    def add(self, part, prompt):
        """Takes in a choice of a reply, or of one chunk of it."""
        self.prompt = self.prompt or part.get("prompt_token_ids") or prompt or []
        self.ids += part.get("token_ids") or []
        self.logprobs += _logprobs(part.get("logprobs"))
        self.finish_reason = part.get("finish_reason") or self.finish_reason
        for span in part.get("weight_versions") or []:
            self.versions += [_version(span["version"])] * (span["end"] - span["start"])

    @property
    def key(self):
        """All that training needs of it, comparable bit by bit."""
        return tuple(self.prompt), tuple(self.ids), bits(self.logprobs), tuple(self.versions)


@dataclass
class Reply:
    """One reply: its id and its choices."""

    id: str
    choices: list[Choice]


def bits(numbers):
    """The bits of numbers as float32."""
    return np.asarray(numbers, dtype=np.float64).astype(np.float32).tobytes()


def documents(message):
    """The JSON documents of a reply: the body, or each event of a stream but the last, `[DONE]`."""
    if not (message.header("content-type") or "").startswith("text/event-stream"):
        return [json.loads(message.body)]
    events = message.body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""], events[-2:]
    return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]


def read(message):
    """What a reply reports."""
    parts = documents(message)
    choices = {}
    for document in parts:
        for part in document["choices"]:
            choice = choices.setdefault(part["index"], Choice())
            choice.add(part, document.get("prompt_token_ids"))
    found = [choices[index] for index in sorted(choices)]
    for choice in found:
        assert choice.prompt and choice.ids, "the upstream reported no token ids"
        assert len(choice.ids) == len(choice.logprobs) == len(choice.versions)
    return Reply(parts[0]["id"], found)


def _version(word):
    """The number of a label: docs/feed.md says what it is."""
    number = re.fullmatch(r"(?:|.*v|.+[-_])([0-9]+)", word, re.DOTALL)
    return int(number[1]) if number else 0 if word == "default" else -1


def _logprobs(given):
    if not given:
        return []
    if "content" in given:
        return [entry["logprob"] for entry in given["content"]]
    return given["token_logprobs"]
