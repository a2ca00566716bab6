"""Continues the version numbers of an earlier trainer."""

from __future__ import annotations

import re

from rolltape.client import Client
from rolltape.http import RolltapeError, patiently

NUMBER = re.compile(r"(?:^|[-_v])(\d+)$")
"""The number of a label, as in docs/feed.md."""


def newest_version(client: Client) -> int:
    """The highest number of a version that the recorder or its engine knows; 0 if there is none.

    The store remembers what an engine that was restarted has forgotten, and the engine what a
    recorder with a new store never saw.
    """
    known = [one["number"] for one in patiently(client.versions)]
    return max((int(n) for n in (*known, _served(client)) if n is not None), default=0)


def _served(client: Client) -> int | None:
    """The number of the engine's weights, if it reports one."""
    try:
        label = patiently(client.weight_info)["weight_version"]
    except (RolltapeError, KeyError, TypeError):
        return None
    found = NUMBER.search(str(label))
    return int(found[1]) if found else None
