"""The recording that answers an episode's calls: all of them, or those of its first turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Replay:
    """A recorded attempt that answers the calls of another one (docs/replay.md)."""

    episode_id: str
    attempt: int = 0
    until: int | None = None
    """Turns that the recording answers; later calls are live. It answers all of them if None."""
    mode: Literal["strict", "loose"] = "strict"
    """`strict` refuses a call that differs; `loose` gives it the nearest recorded reply."""
    ignore: Sequence[str] = ()
    """What does not matter in a request: `clocks`, `ids`, `paths`, `numbers`, a /FIELD, re:..."""
    keeps_time: bool = False
    """True if replies take the time that they took."""

    def body(self) -> dict[str, Any]:
        """The form that `POST /episodes` takes."""
        return asdict(self) | {"ignore": list(self.ignore)}
