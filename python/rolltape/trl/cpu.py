"""Attention over packed rows, which AsyncGRPOTrainer lacks on a machine without CUDA."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.nn.functional as F


class _Masks:
    """The mask of the last packed row: all layers of a forward ask for the same one."""

    def __init__(self) -> None:
        self._row: weakref.ref[torch.Tensor] | None = None
        self._mask: torch.Tensor | None = None

    def of(
        self, index: torch.Tensor, starts_q: torch.Tensor, starts_k: torch.Tensor, n: int
    ) -> torch.Tensor:
        """[n, n], true where a position may see another: the path from its root down to it."""
        if self._row is None or self._row() is not index or self._mask is None:
            self._row, self._mask = weakref.ref(index), _mask(index, starts_q, starts_k, n)
        return self._mask


def _mask(
    index: torch.Tensor, starts_q: torch.Tensor, starts_k: torch.Tensor, n: int
) -> torch.Tensor:
    mask = torch.zeros(n, n, dtype=torch.bool, device=index.device)
    q, k = starts_q.tolist(), starts_k.tolist()
    for at, (begin, end) in enumerate(zip(q, q[1:])):
        path = index[k[at] : k[at + 1]]
        shape = (end - begin, len(path))
        seen = torch.ones(shape, dtype=torch.bool, device=index.device)
        mask[begin:end, path] = seen.tril(len(path) - (end - begin))
    return mask


_masks = _Masks()


def tree_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    tree_kv_index: torch.Tensor,
    tree_cu_seqlens_q: torch.Tensor,
    tree_cu_seqlens_k: torch.Tensor,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """TRL's attention over a row of packed trees, with torch only.

    `query` is [1, heads, n, width], `key` and `value` [1, kv heads, n, width]; gives
    [1, n, heads, width]. Memory grows with n squared, so it is for small rows.
    """
    if sliding_window is not None or softcap is not None:
        raise NotImplementedError("sliding windows and soft caps need TRL's CUDA kernel")
    mask = _masks.of(tree_kv_index, tree_cu_seqlens_q, tree_cu_seqlens_k, query.shape[2])
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return out.transpose(1, 2), None


def use_cpu() -> None:
    """Lets AsyncGRPOTrainer train on a CPU; call it before one is created.

    Two functions that its module calls are replaced: the one that names the attention kernel, which
    is CUDA's alone, and the one that asks CUDA how fast it is.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface
    from trl.experimental.async_grpo import async_grpo_trainer as theirs
    from trl.experimental.async_grpo.packing import TREE_ATTENTION

    def register() -> None:
        AttentionInterface.register(TREE_ATTENTION, tree_attention)
        AttentionMaskInterface.register(TREE_ATTENTION, lambda **_: None)

    theirs.register_tree_attention = register
    theirs.get_peak_flops_per_device = lambda *_: None
