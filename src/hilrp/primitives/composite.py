"""Operations that torch runs as one and that are made of others.

Each is written out in torch operations, which the engine runs under their own rules; the value stays that of the
original call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hilrp.primitives.call import Call


class Surrogate:
    """A rule given as a function of the call's arguments, which the engine runs under its own rules."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, call: Call) -> Any:
        """The surrogate, with a graph; the engine puts the exact value on it."""
        return self.function(*call.args, **call.kwargs)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta a + alpha b c`` with a matrix product."""
    return beta * input + alpha * (mat1 @ mat2)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """The same for batches of matrices."""
    return addmm(input, batch1, batch2, beta=beta, alpha=alpha)


def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """``a + value b c``."""
    return input + value * (tensor1 * tensor2)


def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    """``a + value b / c``."""
    return input + value * (tensor1 / tensor2)


def lerp(input: Tensor, end: Tensor, weight: Any) -> Tensor:
    """``input + weight (end - input)``."""
    return input + weight * (end - input)


def glu(input: Tensor, dim: int = -1) -> Tensor:
    """``a sigmoid(b)`` over the two halves of an axis."""
    a, b = input.chunk(2, dim)
    return a * b.sigmoid()


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``a b / (|a| |b|)``: the norms are divisors, hence held fixed."""
    a, b = torch.broadcast_tensors(x1, x2)
    return (a * b).sum(dim) / (a.norm(dim=dim).clamp_min(eps) * b.norm(dim=dim).clamp_min(eps))


def var_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The variance is a statistic, the mean a linear map."""
    return torch.var(input, *args, **kwargs), _mean_like_var(input, *args, **kwargs)


def std_mean(input: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """The same with the standard deviation."""
    return torch.std(input, *args, **kwargs), _mean_like_var(input, *args, **kwargs)


def _mean_like_var(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    dim = next((a for a in args if not isinstance(a, bool)), kwargs.get("dim"))
    keepdim = kwargs.get("keepdim", args[2] if len(args) > 2 else False)
    return x.mean() if dim is None else x.mean(dim, keepdim=keepdim)


def lstm(
    x: Tensor,
    state: Any,
    weights: list[Tensor],
    has_biases: bool,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A long short-term memory, unrolled: ``c = f c + i g``, ``h = o tanh(c)`` with the sigmoids i, f, o as gates."""
    x = x.transpose(0, 1) if batch_first else x
    directions = 2 if bidirectional else 1
    per_cell = 4 if has_biases else 2
    last_h, last_c = [], []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            cell = layer * directions + direction
            w_in, w_state, *biases = weights[cell * per_cell : (cell + 1) * per_cell]
            b_in, b_state = biases if biases else (None, None)
            h, c = state[0][cell], state[1][cell]
            steps = range(x.shape[0])
            entering = torch.nn.functional.linear(x, w_in, b_in)
            hidden = []
            for t in reversed(steps) if direction else steps:
                i, f, g, o = (entering[t] + torch.nn.functional.linear(h, w_state, b_state)).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * _squashed(g)
                h = o.sigmoid() * _squashed(c)
                hidden.append(h)
            outputs.append(torch.stack(hidden[::-1] if direction else hidden))
            last_h.append(h)
            last_c.append(c)
        x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
    out = x.transpose(0, 1) if batch_first else x
    return out, torch.stack(last_h), torch.stack(last_c)


def _squashed(x: Tensor) -> Tensor:
    """Tanh as a signal: elsewhere it counts as a gate, but here it is what the gates are applied to."""
    return x * torch.where(x == 0, 1.0, x.tanh() / x).detach()
