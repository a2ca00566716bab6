"""A `rollout_func` for GRPOTrainer that lets agents play through rolltape."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rolltape.client import Client
from rolltape.episodes import Episode, episode
from rolltape.feed import Row, rows_of
from rolltape.http import RolltapeError, patiently
from rolltape.trl.samples import to_columns

logger = logging.getLogger(__name__)

Play = Callable[[Episode, Any], "float | None"]
"""Runs an agent on a prompt against an episode's base URL, and gives its reward, None if it cannot
be scored. Called in threads, several at once."""

PLAYERS = 8
ROWS_WAIT_S = 60
ROWS_POLL_S = 0.1


def rollout_func(
    client: Client, play: Play, *, players: int = PLAYERS, task_id: str | None = None
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """What GRPOTrainer takes as `rollout_func`: one episode for each prompt that it gives.

    Repetitions of a prompt are a group. Of an episode with several rows the one that trains most is
    taken, because the trainer has one place for each. An agent that fails leaves an episode that
    is `failed` and has no reward. Use `recorded_reward` as the trainer's reward function.
    """

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        size = trainer.num_generations
        run = f"{uuid.uuid4().hex[:12]}-{trainer.state.global_step}"
        names = [f"{run}-{place // size}-{place % size}" for place in range(len(prompts))]

        def one(place: int) -> None:
            group = f"{run}-{place // size}"
            try:
                with episode(client, names[place], group_id=group, task_id=task_id) as made:
                    made.reward(play(made, prompts[place]))
            except Exception:
                logger.exception("an agent failed: its place in the batch is left out")

        with ThreadPoolExecutor(players) as pool:
            list(pool.map(one, range(len(prompts))))
        best = best_rows(whole(client, names))
        tokenizer = trainer.processing_class
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        filler = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        return to_columns([best.get(name) for name in names], filler)

    return rollout


def whole(client: Client, names: Sequence[str], wait_s: float = ROWS_WAIT_S) -> list[Row]:
    """The rows of all these episodes that were closed and have any; waits for them.

    An episode whose last call is still under way is finished after it was closed. One of which no
    tokens were recorded has no rows, and is not waited for.
    """
    end = time.monotonic() + wait_s
    rows: list[Row] = []
    left = list(names)
    while left:
        found = rows_of(client, episodes=left)
        rows += found
        seen = {row["episode_id"] for row in found}
        left = [name for name in left if name not in seen and _has_rows(client, name)]
        if left and time.monotonic() > end:
            logger.warning("%d episodes are left out: they did not finish", len(left))
            break
        if left:
            time.sleep(ROWS_POLL_S)
    return rows


def _has_rows(client: Client, name: str) -> bool:
    """Whether an episode was closed and has tokens to be read."""
    try:
        told = patiently(lambda: client.show(name))
    except RolltapeError as error:
        if error.status == 404:
            return False
        raise
    return bool(told["closed"] and told["with_ids"])


def best_rows(rows: Sequence[Row]) -> dict[str, Row]:
    """Of each episode the row that trains the most tokens, the first of equal ones."""
    best: dict[str, Row] = {}
    for row in rows:
        held = best.get(row["episode_id"])
        if held is None or sum(row["loss_mask"]) > sum(held["loss_mask"]):
            best[row["episode_id"]] = row
    return best
