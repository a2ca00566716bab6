"""OpenEnv's capture contract, from what rolltape recorded.

`training_trace` gives the `TrainingTrace` of an episode, and `SessionFactory` what TRL's
`HarnessRolloutWorker` takes as its `harness_session_factory`: unmodified agents that play through
rolltape, with OpenEnv's own types between the two. `rolltape.sessions` serves the same over HTTP.

OpenEnv is imported when one of its types is made, not before.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from rolltape.client import Client
from rolltape.episodes import Episode, episode
from rolltape.feed import Row, rows_of

Run = Callable[[Episode, Any], "float | None"]
"""Runs an agent on a task against an episode's base URL; returns its reward, None if it cannot be scored."""

AGENT_WAIT_S = 3600.0
ROWS_WAIT_S = 60.0
AGENT_KINDS = ("main", "subagent", "compaction")
"""OpenEnv's name for the agent's own turns; others are auxiliary or discarded."""


def trace_entries(
    rows: Iterable[Row], kinds: tuple[str, ...] = AGENT_KINDS
) -> list[dict[str, Any]]:
    """One entry per sampled turn, in order, each once.

    A turn that several rows hold is taken from the row that trains it, with its mask.
    """
    entries: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] not in kinds:
            continue
        for entry in _entries(row):
            name = entry["metadata"]["node_id"]
            held = entries.get(name)
            if held is None:
                entries[name] = entry
            elif not any(held["loss_mask"]):
                held["loss_mask"] = entry["loss_mask"]
    return list(entries.values())


def training_trace(client: Client, episode_id: str, *, wait_s: float = 0) -> Any:
    """The `openenv.core.harness.TrainingTrace` of a closed episode.

    Raises ValueError where OpenEnv finds a turn malformed, and where nothing was recorded that
    could be trained.
    """
    from openenv.core.harness import TrainingTrace

    entries = trace_entries(rows_of(client, episodes=[episode_id], wait_s=wait_s))
    if not entries:
        raise ValueError(f"{episode_id}: no finished attempt with sampled ids was recorded")
    return TrainingTrace.from_entries(entries)


def rollout_document(session_id: str, rows: list[Row]) -> dict[str, Any]:
    """The answer of OpenEnv's capture server to `GET /sessions/{id}/rollout`."""
    sequences = [_sequence(row) for row in rows]
    trainable = [sequence for sequence in sequences if sequence["trainable"]]
    tokens = sum(sequence["n_trainable"] for sequence in trainable)
    turns = {turn["node_id"]: turn for row in rows for turn in _turns(row)}
    return {
        "session_id": session_id,
        "metadata": rows[0]["metadata"] if rows else {},
        "budget_stop_count": 0,
        "turns": list(turns.values()),
        "stats": {
            "n_turns": len(turns),
            "n_sequences": len(sequences),
            "n_trainable_sequences": len(trainable),
            "n_trainable_tokens": tokens,
        },
        "sequences": sequences,
        "validation": sorted({reason for row in rows for reason in row["reasons"]}),
        "trainable": bool(trainable),
        "capture_level": "tokens" if rows else "text",
        "rollout_type": "train" if rows else "eval",
    }


def _entries(row: Row) -> Iterator[dict[str, Any]]:
    messages = [*(row["prompt"] or ()), *(row["completion"] or ())]
    for turn in row["turns"]:
        start, end = turn["start"], turn["end"]
        request: dict[str, Any] = {}
        response: dict[str, Any] = {"choices": [{"finish_reason": turn["finish_reason"]}]}
        if (at := turn["message"]) is not None:
            before = [_message(m) for m in messages[:at]]
            request = {"messages": before, "tools": row["tools"] or []}
            response["choices"][0]["message"] = _message(messages[at])
        else:
            response["choices"][0]["message"] = {"role": "assistant", "content": ""}
        yield {
            "request": request,
            "response": response,
            "prompt_token_ids": row["input_ids"][:start],
            "completion_token_ids": row["input_ids"][start:end],
            "per_token_logps": row["logprobs"][start:end],
            "loss_mask": [0] * start + row["loss_mask"][start:end],
            "metadata": {
                "node_id": _node(turn, row),
                "model": row["model"],
                "trajectory_id": row["trajectory_id"],
                "versions": row["versions"][start:end],
                "temperature": turn["temperature"],
            },
        }


def _node(turn: dict[str, Any], row: Row) -> str:
    """A name of a sampled turn that is the same in every row that has it."""
    return f"{turn['call_id']}/{turn.get('choice') or 0}"


def _message(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if value is not None}


def _turns(row: Row) -> Iterator[dict[str, Any]]:
    for turn in row["turns"]:
        yield {
            "node_id": _node(turn, row),
            "n_sampled": turn["end"] - turn["start"],
            "n_prompt": turn["start"],
            "finish_reason": turn["finish_reason"],
            "sampling_params": {"temperature": turn["temperature"]},
            "sampled_logprobs": row["logprobs"][turn["start"] : turn["end"]],
            "discarded": row["kind"] in ("retry", "sibling"),
        }


def _sequence(row: Row) -> dict[str, Any]:
    agent = row["kind"] in AGENT_KINDS
    trained = sum(row["loss_mask"])
    discarded = row["kind"] in ("retry", "sibling")
    return {
        "role": "agent" if agent else "discarded" if discarded else "auxiliary",
        "root_id": row["trajectory_id"],
        "node_ids": [_node(turn, row) for turn in row["turns"]],
        "n_turns": len(row["turns"]),
        "prompt_len": row["prompt_len"],
        "n_trainable": trained,
        "turn_lengths": [turn["end"] - turn["start"] for turn in row["turns"]],
        "input_ids": row["input_ids"],
        "loss_mask": row["loss_mask"],
        "logprobs": row["logprobs"],
        "trainable": agent and trained > 0 and row["verdict"] != "unusable",
        "validation": list(row["reasons"]),
    }


class Session:
    """OpenEnv's TrainableSession: an agent that plays one episode through rolltape."""

    def __init__(self, client: Client, run: Run, task: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._task = task
        self._reward: float | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._open = ExitStack()
        made = self._open.enter_context(episode(client, name, announce=False))
        self._thread = threading.Thread(target=self._play, args=(run, made), daemon=True)
        self._thread.start()

    def _play(self, run: Run, made: Episode) -> None:
        try:
            self._reward = run(made, self._task)
            made.reward(self._reward)
        except BaseException as error:  # raised to whoever waits
            made.status = "failed"
            self._error = error
        finally:
            self._ended.set()

    def initial_messages(self) -> list[dict[str, Any]]:
        return list(self._task) if isinstance(self._task, list) else []

    def list_tools(self) -> list[Any]:
        """None: the agent has its own."""
        return []

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        raise NotImplementedError("the agent calls its own tools")

    def wait_for_completion(self, timeout_s: float | None = AGENT_WAIT_S) -> int:
        """Waits for the agent; raises TimeoutError, or what the agent raised."""
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"{self._name} has not ended within {timeout_s} s")
        if self._error is not None:
            raise self._error
        return 0

    def fetch_training_trace(self) -> Any:
        """Closes the episode and returns its recording."""
        self._open.close()
        return training_trace(self._client, self._name, wait_s=ROWS_WAIT_S)

    def verify(self, transcript: list[dict[str, Any]], final_state: Any | None = None) -> Any:
        """The reward that the agent's runner gave."""
        from openenv.core.harness import VerifyResult

        return VerifyResult(env_reward=self._reward, done=self._ended.is_set())

    def close(self) -> None:
        """Closes the episode; an agent that still runs gets 409 on its next call."""
        self._open.close()


class SessionFactory:
    """OpenEnv's ResourceSessionFactory, for `HarnessRolloutWorker(harness_session_factory=...)`.

    Give it as `functools.partial(SessionFactory, client, run)`: the worker calls it with the
    `sampling` of its policy, which every call of the episodes gets (`force_sampling`). The worker
    lives in another process, so `run` must be one that can be pickled: a function of a module.
    """

    def __init__(self, client: Client, run: Run, *, sampling: dict[str, Any] | None = None) -> None:
        self._client = client
        self._run = run
        self._force = forced(sampling or {})

    def create(self, task: Any, seed: int | None = None, episode_id: str | None = None) -> Session:
        """A session; `seed` is the number of its group."""
        name = episode_id or f"openenv-{uuid.uuid4().hex}"
        group = None if seed is None else f"openenv-{seed}"
        self._client.announce(name, group_id=group, force_sampling=self._force)
        return Session(self._client, self._run, task, name)


def forced(sampling: dict[str, Any]) -> str | None:
    """Sampling parameters as `force_sampling` writes them; None if there are none."""
    filters = {"top_k": 0, "top_p": 1, "min_p": 0}
    words = []
    for name, value in sampling.items():
        off = name == "top_k" and value <= 0 or name in filters and value == filters[name]
        words.append(f"{name}={'off' if off else value}")
    return ",".join(words) or None
