"""Methods that read attention matrices.

Attention Rollout, and the attention-gradient method of Chefer, Gur and Wolf (2021).

They are defined where every block has one attention matrix over all tokens of one grid. No model is changed: a function
mode sees the attention calls while the model runs, and computes the matrix that the fused kernel would have hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from hilrp.jobs.bench.methods.base import Undefined
from hilrp.targets import logits_of


def rollout(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The product of all blocks' attention, averaged over heads, with half of each for the residual path.

    Knows no class.
    """
    with torch.no_grad():
        _, matrices = _run(model, x)
    itself = torch.eye(matrices[0].shape[-1]).to(matrices[0])
    paths = itself.expand(len(x), -1, -1)
    for matrix in matrices:
        paths = 0.5 * (matrix.mean(1) + itself) @ paths
    return _to_pixels(model, paths, x)


def attention_gradient(model: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Each block adds its attention, weighted by the positive part of the class's gradient, averaged over heads."""
    with torch.enable_grad():
        logits, matrices = _run(model, x.detach().requires_grad_())
        score = logits.gather(1, target[:, None]).sum()
        gradients = torch.autograd.grad(score, matrices)
    itself = torch.eye(matrices[0].shape[-1]).to(matrices[0])
    paths = itself.expand(len(x), -1, -1)
    for matrix, gradient in zip(matrices, gradients, strict=True):
        paths = paths + (matrix * gradient).clamp(min=0).mean(1).detach() @ paths
    return _to_pixels(model, paths - itself, x)


def class_token(model: nn.Module, x: Tensor) -> Tensor:
    """What the class token of the last block attends to, averaged over heads. Knows no class, and no objective."""
    with torch.no_grad():
        _, matrices = _run(model, x)
    if not _prefix(model, matrices[0].shape[-1]):
        raise Undefined("it has no class token")
    return _to_pixels(model, matrices[-1].mean(1), x, pooled=False)


class _Watch(TorchFunctionMode):
    """Keeps the matrices of attention calls."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices: list[Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is not F.scaled_dot_product_attention:
            return function(*args, **(kwargs or {}))
        return self._attention(*args, **(kwargs or {}))

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        scale = options.get("scale") or 1 / math.sqrt(q.shape[-1])
        scores = scale * q @ k.transpose(-2, -1)
        matrix = (scores if attn_mask is None else scores + attn_mask).softmax(-1)
        self.matrices.append(matrix)
        return matrix @ v


def _run(model: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The class scores and the attention matrices, ``[B,heads,N,N]`` each."""
    with _Watch() as watch:
        logits = logits_of(model(x))
    if not watch.matrices:
        raise Undefined("it has no attention over tokens")
    shapes = {tuple(matrix.shape[:1] + matrix.shape[-2:]) for matrix in watch.matrices}
    (batch, rows, columns), *others = shapes
    if others or batch != len(x) or rows != columns or _prefix(model, rows) is None:
        raise Undefined("its attention is not one matrix over one grid of tokens in every block")
    return logits, watch.matrices


def _prefix(model: nn.Module, tokens: int) -> int | None:
    """How many tokens come before a square grid of patches; ``None``, if that is not how the tokens are arranged."""
    said = getattr(model, "num_prefix_tokens", None)
    counts = range(6) if said is None else [int(said)]
    return next((count for count in counts if math.isqrt(tokens - count) ** 2 == tokens - count), None)


def _to_pixels(model: nn.Module, paths: Tensor, x: Tensor, pooled: bool | None = None) -> Tensor:
    """What the tokens that the classifier reads take from each patch, enlarged to the picture."""
    count = _prefix(model, paths.shape[-1]) or 0
    if pooled is None:
        pooled = count == 0 or getattr(model, "global_pool", "token") == "avg"
    readers = (paths[:, count:] if pooled else paths[:, :count]).mean(1)
    side = math.isqrt(paths.shape[-1] - count)
    patches = readers[:, count:].reshape(len(x), 1, side, side)
    return F.interpolate(patches, size=x.shape[-2:], mode="bilinear", align_corners=False)[:, 0]
