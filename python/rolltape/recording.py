"""Reading what was recorded (docs/reading.md): the same documents as on the page."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

from rolltape.http import Http, Json, Query, RolltapeError, segment

PAGE = 200
"""Entries that are asked for at a time."""
SILENCE_S = 60.0
"""Longest silence of a stream of events, which says something every 15 seconds."""
CHECKS_WAIT_S = 60.0
"""Longest wait for the checks, which read for 20 seconds."""


class Recording:
    """What a server, or `rolltape view`, has on record. Documents are as docs/reading.md has them.

    Made by `Client.recording`. Every method raises RolltapeError where the server refuses, with the
    status 404 where there is no such episode or call.
    """

    def __init__(self, http: Http) -> None:
        self._http = http

    def episodes(self, *, limit: int | None = None, **filters: Any) -> Iterator[Json]:
        """Attempts, the newest first, page by page; `limit` of them at most.

        `filters` are those of the route: `name`, `group`, `task`, `label`, `state`, `since`,
        `until`, `min_reward`, `max_reward`, `sort`; with `text=1` they say what was asked first,
        answered last and went wrong last.
        """
        return self._pages("/episodes", "episodes", limit, filters)

    def episode(self, episode_id: str, attempt: int = 0) -> Json:
        """The counts of an attempt: calls, tokens, reward."""
        return self._http.get(f"/episodes/{segment(episode_id)}", {"attempt": attempt})

    def checks(self, *, limit: int | None = None, **filters: Any) -> Json:
        """What `rolltape health` finds in the newest attempts."""
        return self._http.get("/checks", {"limit": limit, **filters}, timeout_s=CHECKS_WAIT_S)

    def groups(self, *, limit: int | None = None, **filters: Any) -> Iterator[Json]:
        """Groups, the newest first, page by page: `name`, `since`, `until`, `sort`."""
        return self._pages("/groups", "groups", limit, filters)

    def tasks(self, *, limit: int | None = None, **filters: Any) -> Iterator[Json]:
        """Tasks with tries, rewards and last version, by name: `name`, `since`, `until`,
        `solved_at`.
        """
        return self._pages("/tasks", "tasks", limit, filters)

    def tree(
        self, episode_id: str, attempt: int | None = None, *, messages: bool = False
    ) -> Json:
        """An attempt as turns, with verdict, forks and rewards; the newest attempt by default.

        With `messages` it has `calls` as well, each with the messages that are new in it.
        """
        query = {"attempt": attempt, "messages": 1 if messages else None}
        return self._http.get(f"/episodes/{segment(episode_id)}/tree", query)

    def call(self, call_id: str) -> Json:
        """What was said in a call."""
        return self._http.get(f"/calls/{segment(call_id)}")

    def tokens(
        self, call_id: str, *, choice: int = 0, start: int = 0, count: int | None = None
    ) -> Json:
        """The tokens of a call from position `start`: arrays of one length."""
        query = {"choice": choice, "from": start, "count": count}
        return self._http.get(f"/calls/{segment(call_id)}/tokens", query)

    def request(self, call_id: str) -> bytes:
        """The body that the agent sent."""
        return self._bytes(f"/calls/{segment(call_id)}/request")

    def reply(self, call_id: str) -> bytes:
        """The body that the agent received."""
        return self._bytes(f"/calls/{segment(call_id)}/reply")

    def stats(self, **filters: Any) -> Json:
        """Numbers over time and by policy version: `since`, `until`, `group`, `buckets`, ..."""
        return self._http.get("/stats", filters)

    def search(self, text: str, *, limit: int | None = None, **filters: Any) -> Iterator[Json]:
        """Messages that have a text, the newest first; `limit` of them at most."""
        cursor, found = None, 0
        while True:
            page = self._http.get("/search", {"q": text, "cursor": cursor, **filters})
            for hit in page["hits"]:
                if limit is not None and found == limit:
                    return
                found += 1
                yield hit
            cursor = page["next"]
            if cursor is None:
                return

    def events(self, **filters: Any) -> Iterator[tuple[str, Json]]:
        """What changes from now on: the kind of each event and its document.

        `filters`: `episode`, `group`, `task`, and `text=1` for excerpts. Has a connection of its
        own, which ends with the iterator.
        """
        line, reply = self._http.begin("GET", "/events", filters, timeout_s=SILENCE_S)
        try:
            kind = ""
            for raw in reply:
                field, _, value = raw.decode().rstrip("\n").partition(": ")
                if field == "event":
                    kind = value
                elif field == "data":
                    yield kind, json.loads(value)
        except (http.client.HTTPException, OSError) as gone:
            raise RolltapeError(f"the stream of events broke off: {gone!r}") from gone
        finally:
            line.close()

    def _pages(self, path: str, name: str, limit: int | None, filters: Query) -> Iterator[Json]:
        offset = 0
        while limit is None or offset < limit:
            size = PAGE if limit is None else min(PAGE, limit - offset)
            page = self._http.get(path, {**filters, "limit": size, "offset": offset})[name]
            yield from page
            offset += len(page)
            if len(page) < size:
                return

    def _bytes(self, path: str) -> bytes:
        status, data, _ = self._http.raw("GET", path)
        if status >= 400:
            raise self._http.refused(f"GET {path}", status, data)
        return data
