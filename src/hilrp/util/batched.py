"""Tensors that stand for several, under `torch.vmap`: many backward passes through one graph."""

from __future__ import annotations

import torch
from torch import Tensor


def is_batched(*operands: object) -> bool:
    """Whether one of some tensors stands for several.

    A kernel of our own can't read it, and a tensor that stands for itself can't take it in place.

    Example:
        >>> import torch
        >>> torch.vmap(lambda t: t * is_batched(t))(torch.ones(2)), is_batched(torch.ones(2))
        (tensor([1., 1.]), False)
    """
    return any(isinstance(t, Tensor) and torch._C._functorch.is_batchedtensor(t) for t in operands)
