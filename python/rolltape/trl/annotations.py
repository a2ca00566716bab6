"""The trainer's word back: numbers that TRL's trainers compute for the tokens that they train on."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rolltape.client import Client
from rolltape.feed import Row

logger = logging.getLogger(__name__)

ROWS_KEPT = 4096
"""Rows that a trainer was handed and may still train on."""
BATCHES_WAITING = 64
"""Micro-batches that wait to be sent; further ones are not sent."""
NUMBERS_PER_REQUEST = 400_000
END_WAIT_S = 60.0


@dataclass(frozen=True)
class _Trained:
    """A row that was handed to a trainer."""

    trajectory_id: str
    input_ids: Sequence[int]
    places: Sequence[int]
    """The positions of its trained tokens."""


class _Rows:
    """Rows by what a trainer still knows of them. Those that are alike come in turn."""

    def __init__(self) -> None:
        self._rows: OrderedDict[Any, deque[_Trained]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, key: Any, row: _Trained) -> None:
        with self._lock:
            self._rows.setdefault(key, deque(maxlen=ROWS_KEPT)).append(row)
            self._rows.move_to_end(key)
            while len(self._rows) > ROWS_KEPT:
                self._rows.popitem(last=False)

    def clear(self) -> None:
        with self._lock:
            self._rows.clear()

    def find(self, key: Any) -> _Trained | None:
        with self._lock:
            alike = self._rows.get(key)
            if not alike:
                return None
            alike.rotate(-1)
            return alike[-1]


class Annotator:
    """Sends what a trainer says, in a thread. `sent` and `lost` count micro-batches."""

    def __init__(self, client: Client) -> None:
        self.sent = 0
        self.lost = 0
        self._client = client
        self._waiting: queue.Queue[list[dict[str, Any]] | None] = queue.Queue(BATCHES_WAITING)
        self._thread = threading.Thread(target=self._run, name="rolltape-annotations", daemon=True)
        self._thread.start()

    def say(self, batch: list[dict[str, Any]]) -> None:
        """Queues annotations of one micro-batch."""
        try:
            self._waiting.put_nowait(batch)
        except queue.Full:
            self.lost += 1
            logger.warning("annotations of a batch are left out: the server is too slow")

    def end(self) -> None:
        """Waits until all that was said is sent."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(END_WAIT_S)

    def _run(self) -> None:
        while (batch := self._waiting.get()) is not None:
            try:
                for part in _parts(batch):
                    self._client.annotate_all(part)
                self.sent += 1
            except Exception:
                self.lost += 1
                logger.exception("annotations of a batch were not taken")


def annotate(trainer: Any, client: Client) -> Annotator:
    """Sends what a trainer computes for its tokens to rolltape; call it before `train()`.

    Of an AsyncGRPOTrainer with a `RolloutWorker`: `trainer_logprobs`, `entropies`, `advantages` and
    `loss_weights`, the factors of the advantages in the loss, under the version that was pushed
    last. Of a GRPOTrainer with `rollout_func`: the first three, under its step. Only the process
    that is handed the rows sends.
    """
    annotator = Annotator(client)
    if hasattr(trainer, "rollout_worker"):
        _follow_async(trainer, annotator)
    else:
        _follow_grpo(trainer, annotator)
    trainer.add_callback(_end_of(annotator))
    return annotator


def _end_of(annotator: Annotator) -> Any:
    from transformers import TrainerCallback

    class End(TrainerCallback):  # type: ignore[misc]
        def on_train_end(self, *_: Any, **__: Any) -> None:
            annotator.end()

    return End()


# AsyncGRPOTrainer


def _follow_async(trainer: Any, annotator: Annotator) -> None:
    rows = _Rows()
    worker, compute_loss = trainer.rollout_worker, trainer.compute_loss
    worker.on_row = lambda row: rows.add(*_of_row(row))

    def followed(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        seen: list[Any] = []
        hook = model.register_forward_hook(lambda _model, _args, output: seen.append(output))
        try:
            loss = compute_loss(model, inputs, *args, **kwargs)
        finally:
            hook.remove()
        if seen:
            annotator.say(_said_async(trainer, rows, inputs, seen[0]))
        return loss

    trainer.compute_loss = followed


def _of_row(row: Row) -> tuple[Any, _Trained]:
    """A row by its trained tokens, their logprobs and its advantage.

    TRL trains no first token: it has nothing to be predicted from.
    """
    import numpy as np

    places = [at for at, mask in enumerate(row["loss_mask"]) if mask and at]
    ids = np.asarray(row["input_ids"], np.int64)[places]
    logprobs = np.asarray(row["logprobs"], np.float32)[places]
    key = (ids.tobytes(), logprobs.tobytes(), np.float32(row["advantage"]).tobytes())
    return key, _Trained(row["trajectory_id"], row["input_ids"], places)


def _said_async(trainer: Any, rows: _Rows, inputs: Any, output: Any) -> list[dict[str, Any]]:
    """What the trainer says of the completions of a packed batch."""
    import torch

    with torch.no_grad():
        picked = inputs["token_index"] >= 0
        index = inputs["token_index"][picked]
        labels = inputs["shift_labels"][inputs["attention_mask"].bool()][index]
        old, advantages = inputs["old_log_probs"][picked], inputs["advantages"][picked]
        logprobs = output.log_probs.flatten()[index].float()
        ratio = torch.exp(logprobs - old)
        clipped = ratio.clamp(1 - trainer.epsilon_low, 1 + trainer.epsilon_high)
        # TRL takes the smaller product, which is the larger factor where the advantage is negative.
        weights = torch.where(advantages < 0, ratio.maximum(clipped), ratio.minimum(clipped))
        streams = {
            "trainer_logprobs": logprobs,
            "entropies": output.entropy.flatten()[index].float(),
            "advantages": advantages,
            "loss_weights": weights,
        }
        segments = inputs["segment_id"][picked].cpu().numpy()
        labels, old = labels.cpu().numpy(), old.float().cpu().numpy()
        columns = {name: values.cpu().numpy() for name, values in streams.items()}

    worker = trainer.rollout_worker
    said = []
    for segment in sorted(set(segments.tolist())):
        here = segments == segment
        advantage = columns["advantages"][here][0].astype("float32")
        row = rows.find((labels[here].tobytes(), old[here].tobytes(), advantage.tobytes()))
        if row is not None:
            told = {name: values[here].tolist() for name, values in columns.items()}
            said.append(_annotation(row, worker.before + worker.version, told))
    return said


# GRPOTrainer


def _follow_grpo(trainer: Any, annotator: Annotator) -> None:
    rows = _Rows()
    rollout, compute_loss = trainer.rollout_func, trainer._compute_loss
    score = trainer._get_per_token_logps_and_entropies
    seen: list[Any] = []

    def followed_rollout(prompts: Any, *args: Any) -> Any:
        columns = rollout(prompts, *args)
        # Other tokens of the same ids were sampled under other weights.
        rows.clear()
        for place in range(len(columns["prompt_ids"])):
            _add_column(rows, columns, place)
        return columns

    def followed_score(*args: Any, **kwargs: Any) -> Any:
        result = score(*args, **kwargs)
        seen.append(result)
        return result

    def followed_loss(model: Any, inputs: Any) -> Any:
        seen.clear()
        loss = compute_loss(model, inputs)
        if seen:
            annotator.say(_said_grpo(trainer, rows, inputs, seen[0]))
        seen.clear()
        return loss

    trainer.rollout_func = followed_rollout
    trainer._get_per_token_logps_and_entropies = followed_score
    trainer._compute_loss = followed_loss


def _add_column(rows: _Rows, columns: Mapping[str, Any], place: int) -> None:
    """Remembers one place of a `rollout_func`'s result, unless nothing was recorded of it."""
    prompt, completion = columns["prompt_ids"][place], columns["completion_ids"][place]
    trajectory_id = columns["trajectory_id"][place]
    if trajectory_id is not None:
        places = [len(prompt) + at for at, mask in enumerate(columns["env_mask"][place]) if mask]
        ids = [*prompt, *completion]
        rows.add(tuple(ids), _Trained(trajectory_id, ids, places))


def _said_grpo(trainer: Any, rows: _Rows, inputs: Any, scored: Any) -> list[dict[str, Any]]:
    """What the trainer says of the completions of a padded batch."""
    logprobs, entropies = scored[0], scored[1]
    prompt_mask = inputs["prompt_mask"].bool()
    completion_mask = inputs["completion_mask"].bool()
    said = []
    for place in range(logprobs.shape[0]):
        prompt = inputs["prompt_ids"][place][prompt_mask[place]].tolist()
        completion = inputs["completion_ids"][place][completion_mask[place]].tolist()
        row = rows.find((*prompt, *completion))
        if row is None or not row.places:
            continue
        wanted = [at - len(prompt) for at in row.places]
        advantages = inputs["advantages"][place].expand(logprobs.shape[1])
        columns = {"trainer_logprobs": logprobs[place], "advantages": advantages}
        if entropies is not None:
            columns["entropies"] = entropies[place]
        told = {
            name: [values.detach().float().tolist()[at] for at in wanted]
            for name, values in columns.items()
        }
        said.append(_annotation(row, trainer.state.global_step, told))
    return said


def _annotation(
    row: _Trained, version: int, told: Mapping[str, Sequence[float]]
) -> dict[str, Any]:
    """One entry of `POST /annotations`, from the first trained token to the last."""
    start, end = row.places[0], row.places[-1] + 1
    streams: dict[str, list[float | None]] = {}
    for name, values in told.items():
        streams[name] = [None] * (end - start)
        for at, value in zip(row.places, values, strict=True):
            streams[name][at - start] = value if abs(value) < float("inf") else None
    return {
        "trajectory_id": row.trajectory_id,
        "version": version,
        "start": start,
        "token_ids": list(row.input_ids[start:end]),
        "streams": streams,
    }


def _parts(batch: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The annotations in requests of so many numbers each."""
    parts: list[list[dict[str, Any]]] = []
    room = 0
    for annotation in batch:
        numbers = len(annotation["token_ids"]) * (1 + len(annotation["streams"]))
        if not parts or numbers > room:
            parts.append([])
            room = NUMBERS_PER_REQUEST
        parts[-1].append(annotation)
        room -= numbers
    return parts
