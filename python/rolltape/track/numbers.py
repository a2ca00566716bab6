"""The numbers of a recording, each under one name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rolltape.client import Client
from rolltape.http import Json, RolltapeError

PREFIX = "rolltape"
GROUPS_MAX = 200
"""Newest groups that are looked at."""
SERIES_MAX = 1000
"""Numbers of one look."""
ROWS_MAX = 1000
"""Rows of a table."""
POINT = re.compile(r'^rolltape_upstream_(\w+?)(?:_total)?\{upstream="((?:[^"\\]|\\.)*)"\} (\S+)$')
"""A line of the metrics that is about one engine."""
BY_ENGINE = ("calls_in_flight", "threads", "calls_begun", "calls_moved", "failures", "absorbed")
RECENT = (
    "calls",
    "failed",
    "episodes",
    "prompt_tokens",
    "completion_tokens",
    "first_byte_ms",
    "duration_ms",
    "staleness",
    "scored",
    "reward",
)
VERSIONS = ("number", "label", "calls", "completion_tokens", "scored", "reward", "solved")
HEALTH = ("check", "verdict", "looked_at", "units", "sentence")
GROUPS = ("group_id", "episodes", "closed", "scored", "mean", "std", "min", "max", "calls")


@dataclass(frozen=True)
class Table:
    """Rows under the names of their columns."""

    name: str
    columns: tuple[str, ...]
    rows: list[list[Any]]


def numbers(client: Client, since: float | None = None) -> dict[str, float]:
    """All numbers as they are now: totals, outcomes, the newest version, groups and engines.

    `since` is the time of the last look: `recent` is what came since. What is not known is left
    out. Raises RolltapeError if the recording cannot be read.
    """
    stats = client.recording.stats(buckets=1)
    found = dict(_named("", stats["totals"]))
    found |= _named("outcome/", stats["outcomes"])
    found |= _of_versions(stats["versions"])
    if since is not None:
        recent = client.recording.stats(buckets=1, since=since)["buckets"]
        told = recent[-1] if recent else {}
        found |= _named("recent/", {name: told.get(name) for name in RECENT})
    found |= _of_groups(list(client.recording.groups(limit=GROUPS_MAX)))
    found |= _of_engines(client)
    return dict(list(found.items())[:SERIES_MAX])


def tables(client: Client) -> list[Table]:
    """Numbers by policy version and by group, the newest groups first, and checks of the run."""
    versions = client.recording.stats(buckets=1)["versions"][-ROWS_MAX:]
    groups = client.recording.groups(limit=ROWS_MAX)
    return [
        Table("versions", VERSIONS, [[row.get(name) for name in VERSIONS] for row in versions]),
        Table("groups", GROUPS, [[row.get(name) for name in GROUPS] for row in groups]),
        *_health(client),
    ]


def _health(client: Client) -> list[Table]:
    """The checks, those with findings first; none while another one judges the run."""
    try:
        checks = client.recording.checks()["checks"]
    except RolltapeError:
        return []
    return [Table("health", HEALTH, [[row.get(name) for name in HEALTH] for row in checks])]


def _named(part: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{PREFIX}/{part}{name}", float(value)


def _of_versions(versions: list[Json]) -> dict[str, float]:
    """The newest version that sampled something."""
    if not versions:
        return {}
    newest = max(versions, key=lambda one: (one["number"] is not None, one["number"] or 0))
    names = ("number", "calls", "completion_tokens", "scored", "reward", "solved")
    return dict(_named("version/", {name: newest.get(name) for name in names}))


def _of_groups(groups: list[Json]) -> dict[str, float]:
    """How the newest groups with two scores or more look to GRPO."""
    scored = [group for group in groups if group["scored"] >= 2 and group["std"] is not None]
    if not scored:
        return {}
    found = {
        "scored": len(scored),
        "mean": sum(group["mean"] for group in scored) / len(scored),
        "std": sum(group["std"] for group in scored) / len(scored),
        "no_signal": sum(group["std"] == 0 for group in scored) / len(scored),
    }
    return dict(_named("groups/", found))


def _of_engines(client: Client) -> dict[str, float]:
    """What a server counts by its upstreams; nothing for a store without one."""
    try:
        status, page, _ = client.http.raw("GET", "/metrics")
    except RolltapeError:
        return {}
    points = map(POINT.match, page.decode(errors="replace").splitlines()) if status == 200 else ()
    return {
        f"{PREFIX}/engine/{point[2]}/{point[1]}": float(point[3])
        for point in points
        if point and point[1] in BY_ENGINE
    }
