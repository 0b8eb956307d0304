"""How many pictures go through a model at once: what a processor's memory holds, and what keeps a GPU busy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from hilrp.memory import in_parts
from hilrp.targets import logits_of


def without_graph(device: torch.device) -> int:
    """Pictures at once where nothing is kept for a backward pass."""
    return 512 if device.type == "cuda" else 128


def with_graph(device: torch.device) -> int:
    """Pictures at once where everything is kept."""
    return 256 if device.type == "cuda" else 32


def scores(model: nn.Module, pictures: Tensor, target: Tensor, fast: bool = True) -> Tensor:
    """The logits of the classes ``target``, one for each picture, without a graph; fast ones in `TensorFloat-32`, where a GPU has it."""

    def run(part: slice) -> Tensor:
        return logits_of(model(pictures[part])).gather(1, target[part, None])[:, 0]

    with torch.no_grad(), _fast() if fast else nullcontext():
        parts, _ = in_parts(run, len(pictures), without_graph(pictures.device))
    return torch.cat(parts)


@contextmanager
def _fast() -> Iterator[None]:
    """Products in TensorFloat-32 where a GPU has it: what millions of changed pictures score needs no more digits than that."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def gradients(model: nn.Module, pictures: Tensor, target: Tensor) -> Tensor:
    """The gradients of the logits of the classes ``target``, one for each picture."""
    leaf = pictures.detach().requires_grad_()
    with torch.enable_grad():
        score = logits_of(model(leaf)).gather(1, target[:, None]).sum()
        return torch.autograd.grad(score, leaf)[0]
