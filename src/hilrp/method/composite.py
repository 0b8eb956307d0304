"""Operations that torch runs as one and that are made of others.

Each is written out in torch operations, which the engine runs under their own rules; the value stays that of the
original call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hilrp.method.call import Call


class Surrogate:
    """A rule given as a function of the call's arguments, which the engine runs under its own rules.

    ``unproven`` marks a user's: its value is then compared with the original's.
    """

    def __init__(self, function: Callable[..., Any], unproven: bool = False) -> None:
        self.function, self.unproven = function, unproven

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


def by_parts(norm: Callable[..., Tensor], position: int, channels: bool = False) -> Callable[..., Tensor]:
    """A normalisation whose scale or shift depends on the input: the norm without them, then a product and a sum.

    The scale has that position among the arguments, and the shift the next; where they belong to ``channels``, they
    are laid along these.
    """

    def parts(input: Tensor, *rest: Any, **options: Any) -> Tensor:
        given, parameters = [input, *rest], []
        for at, name in enumerate(("weight", "bias"), position):
            parameter = options.get(name)
            if parameter is not None:
                options[name] = None
            elif at < len(given) and isinstance(given[at], Tensor):
                parameter, given[at] = given[at], None
            parameters.append(parameter)
        y = norm(*given, **options)
        return _scaled(y, *(_by_channel(input, *parameters) if channels else parameters))

    return parts


def batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, *options: Any
) -> Tensor:
    """The same with statistics that are constant, or depend on the input themselves."""
    _, _, eps, _ = options  # training, momentum, eps, cudnn
    mean, var = _by_channel(input, mean, var)
    return _scaled((input - mean) / (var + eps).sqrt(), *_by_channel(input, weight, bias))


def prelu(input: Tensor, weight: Tensor) -> Tensor:
    """A slope that depends on the input: ``relu(a) - w relu(-a)``."""
    (slope,) = _by_channel(input, weight) if weight.numel() > 1 else (weight.reshape(()),)
    return input.relu() - slope * (-input).relu()


def _scaled(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _by_channel(x: Tensor, *parameters: Any) -> tuple[Any, ...]:
    """Parameters, so that they broadcast against the channels, which are the second axis."""
    return tuple(None if p is None else p.reshape(-1, *[1] * (x.ndim - 2)) for p in parameters)
