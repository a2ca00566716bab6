"""Weights from TRL's trainers to the engine, as folders and without NCCL."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolltape.client import Client
from rolltape.trl.versions import newest_version
from rolltape.weights import save_folder

if TYPE_CHECKING:
    import torch

KEPT = 2


class WeightTransfer:
    """`weight_transfer` of AsyncGRPOTrainer: a folder for each version, then the engine's API.

    `folder` is one that the engine can read. A trainer counts its versions from 1 in each run; the
    engine labels its weights with that count above the newest version that was known when this was
    made, or with `first` and those after it. The last `kept` folders stay; None keeps all. `sent`
    is called with each label after it is served.

    The engine is not paused: it reads and checks the folder while it samples, and exchanges all
    weights between two steps. With `reload`, the server is vLLM in dev mode, which reads the folder
    in place while it is paused (`Client.reload_weights`).
    """

    def __init__(
        self,
        client: Client,
        folder: str | os.PathLike[str],
        *,
        first: int | None = None,
        kept: int | None = KEPT,
        reload: bool = False,
        sent: Callable[[int], None] | None = None,
    ) -> None:
        self.client = client
        self.folder = Path(folder)
        self._first = newest_version(client) + 1 if first is None else first
        self.version = self._first - 1
        """The label that was sent last."""
        self._kept = kept
        self._take = client.reload_weights if reload else client.update_weights
        self._sent = sent

    def folder_of(self, version: int) -> Path:
        """The folder of a version's weights."""
        return self.folder / f"v{version}"

    def init_weight_transfer(self) -> None:
        """Raises unless the recorder runs and can record."""
        self.client.ready()

    def pause(self) -> None:
        """Nothing: the engine needs no pause, and vLLM is paused while it reads."""

    def resume(self) -> None:
        """Nothing: the engine needed no pause."""

    def send_weights(self, iterator: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Writes the folder, and tells the engine to load it."""
        version = self.version + 1
        folder = save_folder(iterator, self.folder_of(version))
        self._take(folder, version)
        self.version = version
        if self._kept is not None and version - self._kept >= self._first:
            shutil.rmtree(self.folder_of(version - self._kept), ignore_errors=True)
        if self._sent:
            self._sent(version)

    def destroy(self) -> None:
        """Leaves the folders; closes the connection."""
        with suppress(OSError):
            self.client.close_connections()


class _Sender:
    """Takes the place of GRPOTrainer's vLLM engine: sends weights, nothing else."""

    def __init__(self, trainer: Any, transfer: WeightTransfer) -> None:
        self._trainer = trainer
        self._transfer = transfer

    def sync_weights(self) -> None:
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._transfer.send_weights(_named(model))


def _named(model: torch.nn.Module) -> Iterable[tuple[str, torch.Tensor]]:
    """Each weight once, under the name that it has in a checkpoint."""
    for name, weight in model.named_parameters():
        plain = name.removeprefix("module.").replace("_checkpoint_wrapped_module.", "")
        full = weight.full_tensor() if hasattr(weight, "full_tensor") else weight
        yield plain, full.detach()


def sync_weights(trainer: Any, transfer: WeightTransfer) -> None:
    """Makes a GRPOTrainer with a `rollout_func` send its weights before each rollout.

    Also makes it weigh rows by trainer's over recorded logprobs, as it does with vLLM. To be called
    before `train()`, on a trainer made with `use_vllm=False`; the model must not be a PEFT model.
    """
    if trainer.rollout_func is None:
        raise ValueError("without a rollout_func the trainer would ask vLLM for completions")
    trainer.use_vllm = True
    trainer.vllm_generation = _Sender(trainer, transfer)
    trainer._last_loaded_step = -1
