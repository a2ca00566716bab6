"""Finished attempts as a person reads them: a sample, with texts cut to a bound."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from rolltape.http import Json, RolltapeError
from rolltape.recording import Recording

LISTED_MAX = 10_000
"""Attempts that one look passes."""
MESSAGES_MAX = 100
"""Messages of one rollout, and calls of one."""
ROLLOUT_CHARS_MAX = 200_000
"""Characters of a rollout from which on its calls have no texts."""
LATE_S = 5.0
"""How much later than another an attempt may be found that was closed before it."""
CUT = "…"


@dataclass(frozen=True)
class Said:
    """A call of a rollout: when, how it ended, what was new in it and what the model said."""

    call_id: str
    model: str | None
    kind: str
    outcome: str | None
    finish_reason: str | None
    started_at: float
    duration_ms: float | None
    prompt_tokens: int | None
    sampled_tokens: int | None
    heard: list[Json] = field(default_factory=list)
    answer: Json = None


@dataclass(frozen=True)
class Rollout:
    """A finished attempt. Texts are empty where none are wanted."""

    episode_id: str
    attempt: int
    group_id: str | None
    task_id: str | None
    state: str
    reward: float | None
    version: str | None
    verdict: str
    reasons: list[str]
    calls: int
    prompt_tokens: int
    completion_tokens: int
    trainable_tokens: int
    started_at: float
    ended_at: float
    prompt: str | None
    answer: str | None
    messages: list[Json]
    said: list[Said]

    def row(self) -> dict[str, Any]:
        """One value for each of `COLUMNS`."""
        values = asdict(self) | {"reasons": ", ".join(self.reasons)}
        return {name: values[name] for name in COLUMNS} | {"seconds": self.seconds}

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.ended_at - self.started_at


COLUMNS = (
    "episode_id",
    "attempt",
    "group_id",
    "task_id",
    "state",
    "reward",
    "version",
    "verdict",
    "reasons",
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "trainable_tokens",
    "prompt",
    "answer",
)


class Finder:
    """Finds attempts that were closed since the last look, and reads a sample of them.

    `sample` is the share that is read: whole groups where there are groups, the same ones whenever
    and wherever they are looked for. `text_chars` cuts each text; 0 leaves texts out. Without
    `past`, the first look finds nothing, and later ones what was closed after it. An attempt that
    has no reward yet is left for later looks, until `reward_wait_s` after it was closed.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        sample: float,
        text_chars: int,
        past: bool = False,
        reward_wait_s: float = 0.0,
    ) -> None:
        self._recording = recording
        self._reward_wait_s = reward_wait_s
        self._unrewarded: list[Json] = []
        self._sample = sample
        self._text_chars = text_chars
        self._since: float | None = float("-inf") if past else None
        self._seen: dict[tuple[str, int], float] = {}
        self.unread = 0
        """Attempts of the sample that could not be read."""

    def look(self, is_last: bool = False) -> Iterator[Rollout]:
        """The sample of what was closed, the newest first. The last look leaves nothing."""
        if self._since is None:
            newest = self._closed(limit=1)
            self._since = next((one["closed_at"] for one in newest), float("-inf"))
            self._seen = {_key(one): one["closed_at"] for one in self._late(LISTED_MAX)}
            return
        found = [one for one in self._late(LISTED_MAX) if _key(one) not in self._seen]
        self._since = max([self._since, *(one["closed_at"] for one in found)])
        self._seen |= {_key(one): one["closed_at"] for one in found}
        late = self._since - LATE_S
        self._seen = {key: at for key, at in self._seen.items() if at >= late}
        sample = [one for one in found if _is_taken(one, self._sample)]
        sample, self._unrewarded = sample + self._unrewarded, []
        for one in sample:
            if not is_last and self._may_be_rewarded(one):
                self._unrewarded.append(one)
                continue
            rollout = self._read(one)
            if rollout is not None:
                yield rollout

    def _may_be_rewarded(self, one: Json) -> bool:
        """True while an attempt has no reward and its time is not over."""
        if one["reward"] is not None or time.time() > one["closed_at"] + self._reward_wait_s:
            return False
        try:
            now = self._recording.episode(one["episode_id"], one["attempt"])
        except RolltapeError:
            return False
        return now["reward"] is None

    def _closed(self, limit: int) -> Iterator[Json]:
        return self._recording.episodes(state="closed", sort="-closed", limit=limit)

    def _late(self, limit: int) -> Iterator[Json]:
        """Attempts that were closed after the last look, or shortly before."""
        for one in self._closed(limit):
            if one["closed_at"] < (self._since or 0.0) - LATE_S:
                return
            yield one

    def _read(self, one: Json) -> Rollout | None:
        wants = self._text_chars > 0
        try:
            tree = self._recording.tree(one["episode_id"], one["attempt"], messages=wants)
        except RolltapeError:
            # Pruned meanwhile, or more than readers may take.
            self.unread += 1
            return None
        return rollout(tree, self._text_chars)


def rollout(tree: Json, text_chars: int) -> Rollout:
    """What `GET /episodes/{id}/tree` says, with texts of at most `text_chars`; 0 for none."""
    episode, turns = tree["episode"], tree["turns"]
    calls = {call["call_id"]: call for call in tree.get("calls") or ()}
    said, left = [], ROLLOUT_CHARS_MAX
    for turn in turns[:MESSAGES_MAX]:
        said.append(_said(turn, calls.get(turn["call_id"]), text_chars if left > 0 else 0))
        left -= len(json.dumps([said[-1].heard, said[-1].answer]))
    main = [one for one in said if one.kind == "main"] or said
    messages = _shortened([m for one in main for m in (*one.heard, one.answer) if m])
    versions = [span["version"] for turn in turns for span in turn["versions"]]
    asked = (_text(message) for message in messages if message["role"] == "user")
    answered = (_text(one.answer) for one in reversed(main) if one.answer)
    return Rollout(
        episode_id=episode["episode_id"],
        attempt=episode["attempt"],
        group_id=episode["group_id"],
        task_id=episode["task_id"],
        state=episode["state"],
        reward=episode["reward"],
        version=versions[-1] if versions else None,
        verdict=tree["verdict"],
        reasons=[reason["reason"] for reason in tree["reasons"]],
        calls=episode["calls"],
        prompt_tokens=episode["prompt_tokens"],
        completion_tokens=episode["completion_tokens"],
        trainable_tokens=tree["trainable_tokens"],
        started_at=episode["opened_at"],
        ended_at=episode["closed_at"] or episode["last_call_at"] or episode["opened_at"],
        prompt=next(asked, None),
        answer=next(answered, None),
        messages=messages,
        said=said,
    )


def _said(turn: Json, call: Json, text_chars: int) -> Said:
    """A turn; its call has what was said, if texts are wanted."""
    heard: list[Json] = []
    answer = None
    if call is not None and text_chars:
        heard = _shortened([_cut(message, text_chars) for message in call["messages"]])
        index = turn["choice"]
        choices = [one["message"] for one in call["choices"] if one["index"] == index]
        answer = _cut(choices[0], text_chars) if choices else None
    return Said(
        call_id=turn["call_id"],
        model=turn["model"],
        kind=turn["kind"],
        outcome=turn["outcome"],
        finish_reason=turn["finish_reason"],
        started_at=turn["started_at"],
        duration_ms=turn["duration_ms"],
        prompt_tokens=turn["prompt_tokens"],
        sampled_tokens=turn["sampled_tokens"],
        heard=heard,
        answer=answer,
    )


def _cut(message: Json, text_chars: int) -> Json:
    """A message in the form of chat, its texts cut."""

    def cut(text: str) -> str:
        return text if len(text) <= text_chars else text[:text_chars] + CUT

    kept: dict[str, Any] = {"role": message.get("role") or "assistant"}
    kept["content"] = cut(_text(message))
    for name in ("name", "tool_call_id"):
        if message.get(name):
            kept[name] = message[name]
    if isinstance(message.get("reasoning"), str):
        kept["reasoning"] = cut(message["reasoning"])
    calls = message.get("tool_calls") or ()
    functions = [(call.get("id"), call.get("function") or {}) for call in calls]
    if functions:
        kept["tool_calls"] = [
            {
                "id": call_id,
                "type": "function",
                "function": {
                    "name": str(function.get("name") or ""),
                    "arguments": cut(str(function.get("arguments") or "")),
                },
            }
            for call_id, function in functions[:MESSAGES_MAX]
        ]
    return kept


def _text(message: Json) -> str:
    """The text of a message; what is no text is named."""
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    parts = (part if isinstance(part, dict) else {"text": str(part)} for part in content)
    return "\n".join(str(part.get("text") or f"[{part.get('type', 'part')}]") for part in parts)


def _shortened(messages: list[Json]) -> list[Json]:
    """The first and the last messages where there are too many."""
    over = len(messages) - MESSAGES_MAX
    if over <= 0:
        return messages
    half = MESSAGES_MAX // 2
    gap = {"role": "system", "content": f"{CUT} {over} messages are left out {CUT}"}
    return [*messages[:half], gap, *messages[half + over :]]


def _key(one: Json) -> tuple[str, int]:
    return one["episode_id"], one["attempt"]


def _is_taken(one: Json, sample: float) -> bool:
    """True for a share of all attempts: whole groups where there are groups."""
    name = one["group_id"] or f"{one['episode_id']}/{one['attempt']}"
    drawn = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return drawn < sample * 2**64
