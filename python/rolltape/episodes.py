"""One episode around a block of code."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from rolltape.client import Client, Status
from rolltape.http import RolltapeError
from rolltape.replay import Replay

PLACEHOLDER_KEY = "rolltape"
REMOVED = (
    "ROLLTAPE_",
    "PG",
    "DATABASE_URL",
    "AWS_",
    "AZURE_STORAGE_",
    "AZURE_CLIENT_",
    "AZURE_FEDERATED_",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
)
"""Beginnings of the names that an agent does not get, as in `rolltape run`."""
NAMES_OF_SECRETS = ("ROLLTAPE_CONTROL_TOKEN_ENV", "ROLLTAPE_UPSTREAM_KEY_ENV")
"""Variables that name the variables of secrets."""


@dataclass
class Episode:
    """An agent's base URL and key, and the reward and status of its episode."""

    client: Client
    id: str
    attempt: int
    base_url: str
    """For OPENAI_BASE_URL; ends in /v1."""
    api_key: str
    """For OPENAI_API_KEY: a signed key if `key=True`, else any word."""
    headers: dict[str, str] = field(default_factory=dict)
    """For `default_headers`, if the episode was not announced: its group, task and labels."""
    status: Status | None = None
    """The end of the run; set it inside the block to override the default."""

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that most agents read their base URL and key from."""
        root = self.base_url.removesuffix("/v1")
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "HOSTED_VLLM_API_BASE": self.base_url,
            "HOSTED_VLLM_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": self.api_key,
            # Its nonce in the system prompt would make every request a new history.
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
            "ROLLTAPE_EPISODE": self.id,
            "ROLLTAPE_ATTEMPT": str(self.attempt),
        }

    def environ(self) -> dict[str, str]:
        """This process's environment with `environment` in it, for a child that plays.

        Without the control listener's token and the upstream's key, wherever they are: an agent
        that has them can reward itself, and call past the recorder. Without variables of rolltape,
        of PostgreSQL and of object stores either.
        """
        return without_secrets(os.environ, self.client.http.token) | self.environment

    def reward(self, value: float | None, **options: str | int | None) -> None:
        """Appends a reward; see `Client.reward`."""
        self.client.reward(self.id, value, self.attempt, **options)  # type: ignore[arg-type]


def without_secrets(environ: Mapping[str, str], token: str | None = None) -> dict[str, str]:
    """Variables without those that rolltape reads, that hold its secrets, or that hold `token`."""
    named = {environ[name] for name in NAMES_OF_SECRETS if name in environ}
    return {
        name: held
        for name, held in environ.items()
        if name not in named and not name.startswith(REMOVED) and held != (token or None)
    }


@contextmanager
def episode(
    client: Client,
    episode_id: str | None = None,
    attempt: int | Literal["next"] = 0,
    *,
    group_id: str | None = None,
    task_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    key: bool = False,
    announce: bool = True,
    replay: Replay | None = None,
) -> Iterator[Episode]:
    """An episode that is closed when the block ends: `failed` if by an exception.

    `attempt` may be `next`: the first that is not recorded; see `Client.next_attempt`.

    `key` asks for an API key that names the episode, for agents that must not name another one;
    their base URL then carries no tag. Without `announce` nothing is sent before the first call,
    and group, task and labels stand in `headers` instead; where no call comes there is no episode.
    A recording answers its calls if `replay` names one; the episode is announced then.
    """
    if replay is not None and not announce:
        raise ValueError("a replay is announced: headers have no room for it")
    name = episode_id or f"ep-{uuid.uuid4().hex}"
    if attempt == "next":
        attempt = client.next_attempt(name)
    headers: dict[str, str] = {}
    if announce:
        try:
            client.announce(
                name, attempt, group_id=group_id, task_id=task_id, labels=labels, replay=replay
            )
        except RolltapeError as error:
            if "is closed" not in str(error):
                raise
            told = f'{error}; give another attempt, or "next"'
            raise RolltapeError(told, error.status, error.body) from error
    else:
        tags = {"x-group-id": group_id, "x-task-id": task_id}
        headers = {header: value for header, value in tags.items() if value is not None}
        headers |= {"x-episode-tag": f"{k}={v}" for k, v in list((labels or {}).items())[:1]}
        if len(labels or {}) > 1:
            raise ValueError("headers have room for one label: announce the episode")
    url = client.base_url() if key else client.base_url(name, attempt)
    api_key = client.mint_key(name, attempt).api_key if key else PLACEHOLDER_KEY
    made = Episode(client, name, attempt, url, api_key, headers)
    try:
        yield made
    except BaseException:
        # What the block raised says more than that nobody could be told of it.
        with suppress(RolltapeError):
            _close(made, "failed", announce)
        raise
    _close(made, "completed", announce)


def fork(
    client: Client,
    replay: Replay,
    attempts: int = 4,
    *,
    episode_id: str | None = None,
    group_id: str | None = None,
) -> Iterator[Episode]:
    """Branches that go on from a turn of a recording, one after the other: `replay.until`.

    They are attempts of one episode and one group, named as `rolltape fork` names them unless told.
    Each is closed when the loop asks for the next one: `failed` if the loop was left instead.
    """
    if replay.until is None:
        raise ValueError("`until` says behind how many turns a branch is live")
    of_attempt = f".{replay.attempt}" if replay.attempt else ""
    name = episode_id or f"{replay.episode_id}{of_attempt}.turn{replay.until}"
    for attempt in range(attempts):
        with episode(client, name, attempt, group_id=group_id or name, replay=replay) as branch:
            yield branch


def _close(made: Episode, ended: Status, announced: bool) -> None:
    try:
        made.client.close(made.id, made.status or ended, made.attempt)
    except RolltapeError as error:
        # One that was not announced is made by its first call.
        if announced or error.status != 404:
            raise
