"""Finished episodes for a trainer, handed out on a lease (docs/feed.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from rolltape.http import BrokenOff, Http, Json, RolltapeError, patiently, segment
from rolltape.client import Client

Row = dict[str, Any]
"""A row of the `trajectories` schema (docs/export.md), with JSON columns as objects, and the
`feed_item` that it belongs to (docs/feed.md)."""

LEASE_S = 300
WAIT_S = 30.0
WAIT_S_MAX = 600.0
LIMIT = 16
LIMIT_MAX = 1024
ANSWER_S = 60.0
PATIENCE_S = 120.0
"""Longest wait for a server that restarts, in seconds."""


@dataclass
class Lease:
    """Rows that are leased to this reader until `expires_at`, in seconds since 1970."""

    id: str
    expires_at: float
    rows: list[Row]
    version: str | None
    """Label of the newest policy version that the recorder knows."""
    _http: Http = field(repr=False)
    received_at: float = field(default_factory=time.monotonic, repr=False)
    """Time of arrival by `time.monotonic()`."""

    @property
    def items(self) -> list[list[Row]]:
        """The rows by item: those of one attempt, or of one group."""
        return [list(rows) for _, rows in groupby(self.rows, itemgetter("feed_item"))]

    def ack(self, episodes: Iterable[tuple[str, int]] | None = None) -> None:
        """Marks all rows, or these (id, attempt), as done: this name never gets them again."""
        self._say("ack", _named(episodes))

    def nack(
        self, episodes: Iterable[tuple[str, int]] | None = None, *, delay_s: float = 0
    ) -> None:
        """Gives all rows, or these, back, to be handed out again after `delay_s` seconds."""
        self._say("nack", _named(episodes) | ({"delay_s": delay_s} if delay_s else {}))

    def renew(self, lease_s: int = LEASE_S) -> None:
        """Extends the lease to `lease_s` seconds from now."""
        self._say("renew", {"lease_s": lease_s})

    def _say(self, word: str, body: dict[str, Json]) -> None:
        route = f"/feed/leases/{segment(self.id)}/{word}"
        patiently(lambda: self._http.post(route, body), until_s=PATIENCE_S)


class Feed:
    """A named reader of the feed.

    Readers with one `consumer` share the items; every name gets all of them, at least once.
    `options` are parameters of `POST /feed`, such as `unit="group"`, `advantage="grpo"`,
    `max_staleness=4`, `verdict="usable"`.
    """

    def __init__(
        self, client: Client, consumer: str = "trainer", *, lease_s: int = LEASE_S, **options: Any
    ) -> None:
        self.consumer = consumer
        self.lease_s = lease_s
        self._http = client.http
        self._options = options

    def lease(self, *, limit: int = LIMIT, wait_s: float = WAIT_S, **options: Any) -> Lease | None:
        """Leases up to `limit` items; None if none was finished within `wait_s`.

        A server that is away is waited for, `PATIENCE_S`. What it had handed out in a reply that
        broke off is given back; in one that never began, it comes again when that lease ends.
        """
        asked = {"consumer": self.consumer, "lease_s": self.lease_s, "limit": limit}
        asked |= {"wait_s": round(wait_s)} | self._options | options
        rows, headers = patiently(lambda: self._take(asked, wait_s), until_s=PATIENCE_S)
        name = headers.get("x-rolltape-lease")
        if not rows or name is None:
            return None
        end = float(headers.get("x-rolltape-lease-expires", 0))
        return Lease(name, end, rows, headers.get("x-rolltape-version"), self._http)

    def _take(
        self, asked: Mapping[str, Any], wait_s: float
    ) -> tuple[list[Row], Mapping[str, str]]:
        try:
            return _read(self._http, asked, wait_s)
        except BrokenOff as broken:
            name = broken.headers.get("x-rolltape-lease")
            if name is not None:
                with suppress(RolltapeError):  # it may hold nothing, or have ended
                    Lease(name, 0, [], None, self._http).nack()
            raise

    def __iter__(self) -> Iterator[Lease]:
        """Yields leases without end. Ack or nack each of them."""
        while True:
            lease = self.lease()
            if lease is not None:
                yield lease

    def standing(self) -> dict[str, Json] | None:
        """Depth, age, and counts of leased, acked and dropped; None before the first lease."""
        told = self._http.get("/feed/consumers")["consumers"]
        return next((one for one in told if one["consumer"] == self.consumer), None)


def rows_of(
    client: Client,
    *,
    episodes: Iterable[str] | None = None,
    groups: Iterable[str] | None = None,
    wait_s: float = 0,
    **options: Any,
) -> list[Row]:
    """The rows of finished episodes, by their ids or those of their groups; nothing is leased.

    Without names those of all. With `wait_s` it waits for the first of each name, so wait only for
    what is closed already or about to be.
    """
    asked = [{"episode": name} for name in episodes or ()]
    asked += [{"group": name} for name in groups or ()]
    if episodes is None and groups is None:
        asked = [{}]
    return [row for one in asked for row in _walk(client.http, one | options, wait_s)]


def _walk(http: Http, asked: Mapping[str, Any], wait_s: float) -> Iterator[Row]:
    """All rows from the beginning, cursor after cursor."""
    cursor = "0"
    while True:
        query = {"limit": LIMIT_MAX, "cursor": cursor, "wait_s": round(wait_s)} | dict(asked)
        found, headers = patiently(partial(_read, http, query, wait_s), until_s=PATIENCE_S)
        yield from found
        if not found or headers.get("x-rolltape-cursor", cursor) == cursor:
            return
        cursor, wait_s = headers["x-rolltape-cursor"], 0


def _read(
    http: Http, asked: Mapping[str, Any], wait_s: float
) -> tuple[list[Row], Mapping[str, str]]:
    """The rows of one reply and its headers, names in small letters."""
    status, body, headers = http.raw(
        "POST", "/feed", query=asked, timeout_s=min(wait_s, WAIT_S_MAX) + ANSWER_S
    )
    if status == 204:
        return [], headers
    if status != 200:
        raise http.refused("POST /feed", status, body)
    return [json.loads(line) for line in body.splitlines()], headers


def _named(episodes: Iterable[tuple[str, int]] | None) -> dict[str, Json]:
    if episodes is None:
        return {}
    return {"episodes": [{"episode_id": name, "attempt": n} for name, n in episodes]}
