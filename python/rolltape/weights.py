"""Weights as folders of safetensors that an engine loads."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SHARD_BYTES_MAX = 4 << 30


def save_folder(
    tensors: Iterable[tuple[str, torch.Tensor]],
    folder: str | os.PathLike[str],
    *,
    shard_bytes_max: int = SHARD_BYTES_MAX,
) -> Path:
    """Writes named tensors as a folder in Hugging Face's form.

    It appears under its name when it is whole, in place of what had that name. One shard is in
    memory at a time.
    """
    from safetensors.torch import save_file

    folder = Path(folder)
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    places: dict[str, str] = {}
    names: list[str] = []
    for number, shard in enumerate(_shards(tensors, shard_bytes_max), 1):
        names.append(f"model-{number:05}.safetensors")
        save_file(shard, partial / names[-1], metadata={"format": "pt"})
        places |= dict.fromkeys(shard, names[-1])
    if len(names) == 1:
        (partial / names[0]).rename(partial / "model.safetensors")
    elif names:
        index = {"metadata": {}, "weight_map": places}
        (partial / "model.safetensors.index.json").write_text(json.dumps(index))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def _shards(
    tensors: Iterable[tuple[str, torch.Tensor]], bytes_max: int
) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in tensors:
        here = tensor.detach().cpu().contiguous()
        if shard and size + here.nbytes > bytes_max:
            yield shard
            shard, size = {}, 0
        shard[name] = here
        size += here.nbytes
    if shard:
        yield shard
