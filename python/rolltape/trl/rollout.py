"""A `rollout_func` for GRPOTrainer that lets agents play through rolltape."""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from rolltape.client import Client
from rolltape.episodes import Episode, episode
from rolltape.feed import Row, rows_of
from rolltape.http import RolltapeError, patiently
from rolltape.trl.samples import to_columns

logger = logging.getLogger(__name__)

Play = Callable[[Episode, Any], "float | None"]
"""Runs an agent on a prompt against an episode's base URL, and returns its reward, None if it
cannot be scored. Called in threads, several at once."""

PLAYERS = 8
ROWS_WAIT_S = 60
ROWS_POLL_S = 0.1


def rollout_func(
    client: Client, play: Play, *, players: int = PLAYERS, task_id: str | None = None
) -> Callable[[list[Any], Any], dict[str, list[Any]]]:
    """A `rollout_func` for GRPOTrainer: one episode for each prompt.

    Repetitions of a prompt are a group. Of an episode's main rows the one that trains the most
    tokens is taken, as in `rolltape export --format trl`, because the trainer has one place for
    each; the columns `rows_left_out` and `tokens_left_out` say how many others there were and how
    many tokens they would have trained, and a warning says it for the batch. An agent that fails
    leaves an episode that is `failed` and has no reward. Use `recorded_reward` as the trainer's
    reward function.
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
        rows = whole(client, names)
        best, left = best_rows(rows), left_out(rows)
        for what, count in left.total().items():
            logger.warning("%d %s are left out: TRL has one place for each prompt", count, what)
        tokenizer = trainer.processing_class
        tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        filler = (tokenizer.pad_token_id, tokenizer.eos_token_id)
        columns = to_columns([best.get(name) for name in names], filler)
        return columns | left.columns(names)

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
        found = rows_of(client, episodes=left, model="policy")
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
    """True if an episode is closed and has tokens."""
    try:
        told = patiently(lambda: client.show(name))
    except RolltapeError as error:
        if error.status == 404:
            return False
        raise
    return bool(told["closed"] and told["with_ids"])


def best_rows(rows: Sequence[Row]) -> dict[str, Row]:
    """Of each episode's main rows the one that trains the most tokens, the first of equal ones.

    A row that trains no token is not taken.
    """
    best: dict[str, Row] = {}
    for row in rows:
        held = best.get(row["episode_id"])
        if row["kind"] == "main" and trained(row) > (trained(held) if held else 0):
            best[row["episode_id"]] = row
    return best


def trained(row: Row) -> int:
    """The number of trained tokens of a row."""
    return sum(row["loss_mask"])


@dataclass
class LeftOut:
    """Counts of the rows that are left out for the row that is taken, by episode."""

    rows: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def total(self) -> dict[str, int]:
        """Rows and tokens of all episodes, if there are any."""
        counted = {"rows": self.rows.total(), "trained tokens": self.tokens.total()}
        return {what: count for what, count in counted.items() if count}

    def columns(self, names: Sequence[str]) -> dict[str, list[int]]:
        """One number per place, for reward functions and logs."""
        return {
            "rows_left_out": [self.rows[name] for name in names],
            "tokens_left_out": [self.tokens[name] for name in names],
        }


def left_out(rows: Sequence[Row]) -> LeftOut:
    """The rows with trained tokens that `best_rows` does not take."""
    taken = {row["trajectory_id"] for row in best_rows(rows).values()}
    left = LeftOut()
    for row in rows:
        if trained(row) and row["trajectory_id"] not in taken:
            left.rows[row["episode_id"]] += 1
            left.tokens[row["episode_id"]] += trained(row)
    return left
