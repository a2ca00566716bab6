"""A tracker beside a run: one thread reads, another sends, and nobody waits for either."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from rolltape.client import Client
from rolltape.http import RolltapeError
from rolltape.track import trackers
from rolltape.track.numbers import numbers, tables
from rolltape.track.rollouts import Finder
from rolltape.track.source import Source

QUEUE_MAX = 256
"""Items that wait for the tracker."""
BATCH_MAX = 50
"""Rollouts of one item."""
REST = 9
"""Pause after a look, as a multiple of its time: a large recording is not read all the time."""
TEXT_CHARS = 2000
REWARD_WAIT_S = 60.0
CLOSE_WAIT_S = 30.0

log = logging.getLogger("rolltape.track")


@dataclass(frozen=True)
class Item:
    """Something to send: how, and how much of what it is."""

    kind: str
    count: int
    send: Callable[[trackers.Sink], None]


class Tracker:
    """Sends the numbers and a sample of the rollouts of a recording to a tracker.

    `to` is `wandb`, `mlflow` or `trackio`; `run` names the run that is made in `project`, beside
    the trainer's own. What is read is that of `client`, or of `control` or `store` as for
    `rolltape.track.source.Source`. `sample` is the share of finished attempts that are sent, in
    whole groups. `text_chars` cuts each text, and 0 keeps texts here. An attempt without a reward
    is sent `reward_wait_s` after its end at the latest.

    Raises ValueError for an argument that cannot be, MissingLibrary without the library. Once
    started it raises nothing: what cannot be sent in time is dropped and counted in `dropped`, and
    `error` is what went wrong last. `log` and `start` never wait.
    """

    def __init__(
        self,
        to: str,
        project: str,
        run: str | None = None,
        *,
        client: Client | None = None,
        control: str | None = None,
        store: str | None = None,
        every_s: float = 10.0,
        sample: float = 0.05,
        text_chars: int = TEXT_CHARS,
        reward_wait_s: float = REWARD_WAIT_S,
        past: bool = False,
        queue_max: int = QUEUE_MAX,
        sink: Callable[[], trackers.Sink] | None = None,
    ) -> None:
        if to not in trackers.LIBRARIES:
            raise ValueError(f"`{to}` is none of {', '.join(trackers.LIBRARIES)}")
        is_negative = min(text_chars, reward_wait_s) < 0
        if not 0 <= sample <= 1 or every_s <= 0 or is_negative or queue_max < 1:
            raise ValueError("a share is from 0 to 1, times and bounds are positive")
        if sink is None:
            trackers.library(to)
        self._make_sink = sink or (lambda: trackers.sink(to, project, run))
        self._open = (lambda: client) if client else None
        self._where = (control, store)
        self._every_s, self._past = every_s, past
        self._sample, self._text_chars = sample, text_chars
        self._reward_wait_s = reward_wait_s
        self._waiting: queue.Queue[Item | None] = queue.Queue(queue_max)
        self._stop, self._sent = threading.Event(), Counter[str]()
        self._dropped, self._counting = Counter[str](), threading.Lock()
        self._step: int | None = None
        self._looks, self._is_broken = 0, False
        self._ends_at: float | None = None
        self._threads: list[threading.Thread] = []
        self.error: Exception | None = None
        """What went wrong last."""

    # In a training loop

    def start(self) -> Tracker:
        """Begins to read and to send."""
        if self._threads:
            raise RuntimeError("the tracker runs already")
        for name, work in (("read", self._read), ("send", self._send)):
            # Of its own: some libraries keep the trainer's run in the context.
            work = (lambda work: lambda: contextvars.Context().run(work))(work)
            thread = threading.Thread(target=work, name=f"rolltape-track-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def once(self, wait_s: float) -> None:
        """Reads once, sends that within `wait_s`, and ends. In place of `start`."""
        self._stop.set()
        self.start().close(wait_s)

    def log(self, step: int, values: Mapping[str, float] | None = None) -> None:
        """Says at which step the trainer is; `values` are numbers of its own to send."""
        self._step = step
        if values:
            told = dict(values)
            self._offer(Item("numbers", 1, lambda sink: sink.numbers(told, step)))

    def close(self, wait_s: float = CLOSE_WAIT_S) -> None:
        """Looks a last time and ends the run; what is not sent in `wait_s` is dropped."""
        self._ends_at = time.monotonic() + wait_s
        self._stop.set()
        for thread in self._threads:
            thread.join(max(0.0, self._ends_at - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            self._fail(TimeoutError(f"the tracker did not take everything in {wait_s:g} s"))
        self._drop_the_rest()

    @property
    def runs(self) -> bool:
        """False once it has ended, or can neither read nor send any more."""
        alive = all(thread.is_alive() for thread in self._threads)
        return alive and not self._is_broken

    @property
    def dropped(self) -> dict[str, int]:
        """How much was not sent, by its kind."""
        with self._counting:
            return dict(self._dropped)

    @property
    def sent(self) -> dict[str, int]:
        """How much was sent, by its kind."""
        with self._counting:
            return dict(self._sent)

    def __enter__(self) -> Tracker:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # The thread that reads

    def _read(self) -> None:
        """Looks until it is told to stop, and then once more."""
        try:
            with _opened(self._open, self._where) as client:
                finder = Finder(
                    client.recording,
                    sample=self._sample,
                    text_chars=self._text_chars,
                    past=self._past,
                    reward_wait_s=self._reward_wait_s,
                )
                self._look_on(client, finder)
        except Exception as error:
            self._fail(error)
        finally:
            self._end()

    def _look_on(self, client: Client, finder: Finder) -> None:
        since: float | None = None
        stops = False
        while not stops:
            stops = self._stop.is_set()
            begun, at = time.monotonic(), time.time()
            try:
                self._look(client, finder, since, stops)
                since = at
                if stops:
                    for table in tables(client):
                        self._offer_at("tables", 1, lambda sink, s, t=table: sink.table(t, s))
            except RolltapeError as error:
                self._fail(error)
            took = time.monotonic() - begun
            if not stops:
                self._stop.wait(max(self._every_s, REST * took))

    def _look(self, client: Client, finder: Finder, since: float | None, is_last: bool) -> None:
        """Reads once."""
        found = numbers(client, since)
        batch: list[Any] = []
        for rollout in finder.look(is_last):
            batch.append(rollout)
            if len(batch) == BATCH_MAX:
                self._offer_rollouts(batch)
                batch = []
        self._offer_rollouts(batch)

        with self._counting:
            self._dropped["unread"] += finder.unread
        finder.unread = 0
        lost = self.dropped
        found |= {f"rolltape/tracker/{kind}_dropped": float(n) for kind, n in lost.items() if n}
        self._offer_at("numbers", 1, lambda sink, step: sink.numbers(found, step))
        self._looks += 1

    def _offer_rollouts(self, batch: list[Any]) -> None:
        if batch:
            count = len(batch)
            self._offer_at("rollouts", count, lambda sink, step: sink.rollouts(batch, step))

    def _offer_at(
        self, kind: str, count: int, send: Callable[[trackers.Sink, int], None]
    ) -> None:
        """Offers something of the trainer's step, or of this look."""
        step = self._looks if self._step is None else self._step
        item = Item(kind, count, lambda sink: send(sink, step))
        # What is over can be read as slowly as it is sent.
        self._offer_patiently(item) if self._past else self._offer(item)

    # Between the threads

    def _offer(self, item: Item) -> None:
        """Has an item sent, unless too many wait."""
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._count(self._dropped, item)

    def _offer_patiently(self, item: Item) -> None:
        """Has an item sent, and waits for room until the tracker is closed."""
        while not self._is_late():
            with contextlib.suppress(queue.Full):
                return self._waiting.put(item, timeout=0.1)
        self._count(self._dropped, item)

    def _count(self, counts: Counter[str], item: Item) -> None:
        with self._counting:
            counts[item.kind] += item.count

    def _fail(self, error: Exception) -> None:
        if repr(error) != repr(self.error):
            log.warning("%s", error)
        self.error = error

    def _end(self) -> None:
        """Tells the sender that nothing more comes, once there is room."""
        while not self._is_late():
            with contextlib.suppress(queue.Full):
                return self._waiting.put(None, timeout=0.1)

    def _is_late(self) -> bool:
        return self._ends_at is not None and time.monotonic() > self._ends_at

    def _drop_the_rest(self) -> None:
        """Counts what still waits as dropped."""
        while True:
            try:
                item = self._waiting.get_nowait()
            except queue.Empty:
                return
            if item is not None:
                self._count(self._dropped, item)

    # The thread that sends

    def _send(self) -> None:
        """Sends what is offered until there is nothing more."""
        sink: trackers.Sink | None = None
        try:
            sink = self._make_sink()
        except Exception as error:
            self._is_broken = True
            self._fail(error)
        while (item := self._waiting.get()) is not None:
            if sink is None or self._is_late():
                self._count(self._dropped, item)
                continue
            try:
                item.send(sink)
                self._count(self._sent, item)
            except Exception as error:
                self._count(self._dropped, item)
                self._fail(error)
        if sink is not None:
            try:
                sink.close()
            except Exception as error:
                self._fail(error)


class _opened:
    """The client to read with, whose source ends with the block."""

    def __init__(
        self, given: Callable[[], Client] | None, where: tuple[str | None, str | None]
    ) -> None:
        self._given, self._where = given, where
        self._source: Source | None = None

    def __enter__(self) -> Client:
        if self._given is not None:
            return self._given()
        control, store = self._where
        self._source = Source(control, store)
        return self._source.client

    def __exit__(self, *_: object) -> None:
        if self._source is not None:
            self._source.close()
