"""Tensors piece by piece: what is computed between operands and result then stays small."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

#: How many values a piece has: on a processor as many as its caches hold, on a GPU as many as keep it busy.
_ON_PROCESSOR, _ON_GPU = 2**18, 2**21


def in_pieces(*operands: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same values of tensors of one shape, some at a time, as views that may be written to.

    A chain of elementwise operations is bound by memory: a processor runs it several times as fast where what is
    between them does not leave its caches, and anywhere it takes less memory. Where tensors lie so differently in
    memory that there are no pieces of a fair size, they come as they are.

    Example:
        >>> a, b = torch.arange(600_000.0), torch.zeros(600_000)
        >>> for part, out in in_pieces(a, b):
        ...     _ = out.copy_(part.square())
        >>> torch.equal(b, a.square())
        True
    """
    first = operands[0]
    size = _ON_GPU if first.is_cuda else _ON_PROCESSOR
    if first.numel() <= size:
        yield operands
    elif all(t.is_contiguous() for t in operands):
        yield from zip(*(t.view(-1).split(size) for t in operands), strict=True)
    elif first.ndim == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in operands):
        yield from in_pieces(*(t.permute(0, 2, 3, 1) for t in operands))
    elif first[0].numel() * 8 >= size:  # some may be one sample for all of the others
        for parts in zip(*(t.unbind(0) for t in operands), strict=True):
            yield from in_pieces(*parts)
    else:
        yield operands
