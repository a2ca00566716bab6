"""Rows of the feed in TRL's formats."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolltape.feed import Row

NO_VERSION = -1


def trains(row: Row) -> bool:
    """True if a row has a trainable token and an advantage."""
    return row.get("advantage") is not None and any(row["loss_mask"])


def to_sample(
    row: Row,
    group_number: int,
    metrics: Mapping[str, float] | None = None,
    before: int = 0,
) -> Any:
    """A RolloutSample of AsyncGRPOTrainer.

    Its version is the oldest that sampled a trained token, so that a trainer's bound on staleness
    holds for each of them; counted as the trainer counts, whose first version is `before` + 1.
    """
    import numpy as np
    from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

    oldest = row["policy_version_min"]
    return RolloutSample(
        prompt=messages(row["prompt"]),
        completion=messages(row["completion"]),
        input_ids=np.asarray(row["input_ids"], np.int64),
        completion_mask=np.asarray(row["loss_mask"], np.int64),
        old_log_probs=np.asarray(row["logprobs"], np.float32),
        advantage=float(row["advantage"]),
        model_version=NO_VERSION if oldest is None else int(oldest) - before,
        group_id=group_number,
        metrics={"reward": float(row["reward"]), **(metrics or {})},
        enqueued_at=time.time(),
    )


def messages(told: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Messages without the fields that they do not have."""
    return [{k: v for k, v in message.items() if v is not None} for message in told or ()]


def to_columns(rows: Sequence[Row | None], empty_ids: tuple[int, int]) -> dict[str, list[Any]]:
    """The result of a `rollout_func` of GRPOTrainer: one row per place, in order.

    None is a place of which nothing was recorded: `empty_ids` stand for its prompt and completion,
    and nothing of it is trained.
    """
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in (_empty(empty_ids) if row is None else _split(row)).items():
            columns.setdefault(name, []).append(value)
    return columns


def _split(row: Row) -> dict[str, Any]:
    start = row["prompt_len"]
    return {
        "prompt_ids": row["input_ids"][:start],
        "completion_ids": row["input_ids"][start:],
        "logprobs": row["logprobs"][start:],
        "env_mask": row["loss_mask"][start:],
        "reward": row["reward"],
        "trajectory_id": row["trajectory_id"],
        "group_id": row["group_id"],
        "policy_version": row["policy_version_min"],
    }


def _empty(ids: tuple[int, int]) -> dict[str, Any]:
    return {
        "prompt_ids": [ids[0]],
        "completion_ids": [ids[1]],
        "logprobs": [0.0],
        "env_mask": [0],
        "reward": None,
        "trajectory_id": None,
        "group_id": None,
        "policy_version": None,
    }


def recorded_reward(
    prompts: Sequence[Any], completions: Sequence[Any], reward: Sequence[float | None], **_: Any
) -> list[float | None]:
    """A reward function of GRPOTrainer: the recorded reward of each episode."""
    return list(reward)


MetricsOf = Callable[[Row], Mapping[str, float]]
