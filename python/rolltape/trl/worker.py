"""Rollouts for AsyncGRPOTrainer, from the feed."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rolltape.http import RolltapeError, patiently
from rolltape.client import Client
from rolltape.feed import LEASE_S, PATIENCE_S, Feed, Lease, Row
from rolltape.trl.samples import MetricsOf, to_sample, trains
from rolltape.trl.versions import newest_version

logger = logging.getLogger(__name__)

BUFFER_ROWS = 1024
GROUPS_PER_LEASE = 8
POLL_S = 0.5
WAIT_S = 2.0
LEASE_S_MIN = 8
"""A lease is renewed after half of its time, and checked at most every `WAIT_S`."""
STOP_WAIT_S = 30.0
SYNCS_TO_ACK = 3
"""What is taken is trained later: accelerate's dispatcher fetches a batch before it gives out the
one before, and TRL's batcher by tokens has then taken a sample that begins the batch after. Taken
during one step, that sample is trained two steps on, and the sync after that is the third. With a
fixed count it would be two."""

EpisodeKey = tuple[str, int]


@dataclass
class _Held:
    """A lease, and its rows that the trainer has not taken yet."""

    lease: Lease
    waiting: dict[EpisodeKey, int] = field(default_factory=dict)
    """Rows that are not taken yet, by episode."""
    taken: dict[EpisodeKey, int] = field(default_factory=dict)
    """Number of syncs when the last row of an episode was taken."""
    renewed_at: float = 0.0
    """By this machine's clock; the server's may differ."""

    def __post_init__(self) -> None:
        self.renewed_at = self.lease.received_at

    def take(self, key: EpisodeKey, syncs: int) -> None:
        self.waiting[key] -= 1
        if self.waiting[key] == 0:
            del self.waiting[key]
            self.taken[key] = syncs

    def trained(self, syncs: int) -> list[EpisodeKey]:
        return [key for key, at in self.taken.items() if syncs - at >= SYNCS_TO_ACK]


class _Buffer(queue.Queue):  # type: ignore[type-arg]
    """The queue that the trainer reads samples from; reports what it takes."""

    def __init__(self, maxsize: int, took: Callable[[_Held, EpisodeKey], None]) -> None:
        super().__init__(maxsize)
        self._took = took

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        sample, held, key = super().get(block, timeout)
        self._took(held, key)
        return sample


class RolloutWorker:
    """`rollout_worker` of AsyncGRPOTrainer: hands over the groups that agents have finished.

    Agents run wherever they run; this reads the feed as `consumer`, in a thread. Advantages are
    made by rolltape over each whole group. A group is leased, and acked once its rows have been
    trained; what is left when the trainer dies goes to the next reader of the same name.

    - `group_size`: attempts of a group, where groups are not announced with theirs.
    - `max_staleness`: older groups are dropped by the feed, and counted there. The trainer drops
      too, by its own `max_staleness`.
    - `lease_s`: seconds, at least 8, until what a dead trainer held is handed out again.
    - `buffer_rows`: rows that wait for the trainer in memory.
    - `metrics`: more numbers of a row for the trainer's log.
    - `on_group`: called with the rows of each group when the trainer is about to get them.
    - `on_dropped`: called with the number of attempts that the feed has dropped for this consumer
      since it was last called: `on_group` is never called of their groups.
    - `before`: the number of the last version before the trainer's first one, which it calls 1.
      The newest that is known when this is made, unless told; where a WeightTransfer has a `first`,
      tell one less.
    - `options`: parameters of the feed, such as `verdict`, `kind`, `task`. `model` is `policy`
      unless told: what a judge or another model said is not the trainer's to train.
    """

    def __init__(
        self,
        client: Client,
        *,
        consumer: str = "trainer",
        group_size: int | None = None,
        advantage: str = "grpo",
        max_staleness: int | None = None,
        lease_s: int = LEASE_S,
        buffer_rows: int = BUFFER_ROWS,
        groups_per_lease: int = GROUPS_PER_LEASE,
        metrics: MetricsOf | None = None,
        on_group: Callable[[list[Row]], None] | None = None,
        on_dropped: Callable[[int], None] | None = None,
        before: int | None = None,
        **options: Any,
    ) -> None:
        if lease_s < LEASE_S_MIN:
            raise ValueError(f"a lease of {lease_s} s would end while it is held: at least 8")
        asked = {"unit": "group", "group_size": group_size, "advantage": advantage}
        asked |= {"model": "policy"} | options
        asked |= {"rewarded": True, "group_stats": True}
        self.feed = Feed(client, consumer, lease_s=lease_s, **asked)
        self.rollout_buffer: queue.Queue[Any] = _Buffer(buffer_rows, self._took)
        self.metrics_queue: queue.Queue[dict[str, Any]] = queue.Queue()
        self.version = 0
        """The current version, in the trainer's own count."""
        self.before = newest_version(client) if before is None else before
        self._max_staleness = max_staleness
        self._groups_per_lease = groups_per_lease
        self.on_row: Callable[[Row], None] | None = None
        """Called with each row that becomes a sample."""
        self._metrics = metrics
        self._on_group = on_group
        self._on_dropped = on_dropped
        self._dropped = 0
        self._syncs = 0
        self._groups = 0
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._stopped = False
        """True once everything held is settled; later leases are given back at once."""
        self._beat = time.monotonic()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rolltape-feed", daemon=True)

    # What the trainer calls

    def start(self) -> None:
        """Starts reading the feed."""
        self._thread.start()

    def stop(self) -> None:
        """Stops, acks what was trained and gives the rest back."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(STOP_WAIT_S)
        with self._lock:
            self._stopped = True
            left, self._held = self._held, []
        for held in left:
            self._settle(held)

    def update_model_version(self, model_version: int) -> None:
        """Records the version that samples from now on."""
        self.version = model_version
        with self._lock:
            self._syncs += 1

    def check_health(self, stale_after_s: float) -> None:
        """Raises if the thread has failed, or made no progress for so many seconds."""
        if self._error is not None:
            raise RuntimeError("the feed could not be read") from self._error
        if time.monotonic() - self._beat > stale_after_s:
            raise RuntimeError(f"the feed has not answered for {stale_after_s:.0f} s")

    # The thread

    def _run(self) -> None:
        try:
            if self._on_dropped:
                self._dropped = self._count_dropped()
            while not self._stopping.is_set():
                self._tend()
                lease = self.feed.lease(limit=self._groups_per_lease, **self._wanted())
                if lease is not None:
                    self._hand_over(lease)
                self._tell_dropped()
        except BaseException as error:  # told to the trainer, whatever it is
            self._error = error
            logger.exception("the feed could not be read")

    def _count_dropped(self) -> int:
        standing = patiently(self.feed.standing, until_s=PATIENCE_S)
        dropped = standing["dropped"] if standing else {}
        return sum(count for why, count in dropped.items() if not why.startswith("member_"))

    def _tell_dropped(self) -> None:
        if self._on_dropped and not self._stopping.is_set():
            now = self._count_dropped()
            before, self._dropped = self._dropped, now
            if now > before:
                self._on_dropped(now - before)

    def _wanted(self) -> dict[str, Any]:
        wanted: dict[str, Any] = {"wait_s": WAIT_S}
        if self._max_staleness is not None:
            now = self.before + self.version
            wanted |= {"at_version": now, "max_staleness": self._max_staleness}
        return wanted

    def _hand_over(self, lease: Lease) -> None:
        """Puts the rows of a lease into the buffer, group by group."""
        held = _Held(lease)
        with self._lock:
            for row in lease.rows:
                key = _key(row)
                held.waiting[key] = held.waiting.get(key, 0) + 1
            late = self._stopped
            if not late:
                self._held.append(held)
        if late:
            lease.nack()
            return
        for rows in lease.items:
            self._groups += 1
            if self._on_group:
                self._on_group(rows)
            for row in rows:
                if not trains(row):
                    self._took(held, _key(row))
                    self.metrics_queue.put({"rollout/untrainable_total": 1.0})
                elif not self._put((self._sample(row), held, _key(row))):
                    return

    def _sample(self, row: Row) -> Any:
        if self.on_row:
            self.on_row(row)
        metrics = self._metrics(row) if self._metrics else None
        return to_sample(row, self._groups, metrics, self.before)

    def _put(self, item: tuple[Any, _Held, EpisodeKey]) -> bool:
        """Waits for room; False if it must stop."""
        while not self._stopping.is_set():
            try:
                self.rollout_buffer.put(item, timeout=POLL_S)
                return True
            except queue.Full:
                self._tend()
        return False

    def _tend(self) -> None:
        """Acks what was trained, and keeps the rest."""
        self._beat = time.monotonic()
        for held in list(self._held):
            with self._lock:
                done = held.trained(self._syncs)
                for key in done:
                    del held.taken[key]
                over = not held.waiting and not held.taken
            if done:
                self._tell(lambda: held.lease.ack(done))
            if over:
                with self._lock:
                    self._held = [one for one in self._held if one is not held]
            elif time.monotonic() - held.renewed_at > self.feed.lease_s / 2:
                now = time.monotonic()
                self._tell(lambda: held.lease.renew(self.feed.lease_s))
                held.renewed_at = now

    def _took(self, held: _Held, key: EpisodeKey) -> None:
        with self._lock:
            held.take(key, self._syncs)

    def _settle(self, held: _Held) -> None:
        done = held.trained(self._syncs)
        rest = [key for key in (*held.waiting, *held.taken) if key not in done]
        if done:
            self._tell(lambda: held.lease.ack(done))
        if rest:
            self._tell(lambda: held.lease.nack(rest))

    def _tell(self, say: Callable[[], None]) -> None:
        """Sends it. An expired lease is ignored: its rows are handed out again."""
        try:
            say()
        except RolltapeError as error:
            if error.status != 409:
                raise
            logger.warning("a lease had ended: its rows are handed out again")


def _key(row: Row) -> EpisodeKey:
    return row["episode_id"], row["attempt"]
