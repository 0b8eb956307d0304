"""A function as a model, a small model with a body of the test's own, and a score that tells outputs apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import hilrp


class Apply(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class Net(nn.Module):
    """A convolution, what a test does with it, and a linear head."""

    def __init__(self, body: Callable[[Net, Tensor], Tensor]) -> None:
        super().__init__()
        self.body = body
        self.conv, self.head = nn.Conv2d(3, 3, 1).double(), nn.Linear(12, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)

    def logits(self, h: Tensor) -> Tensor:
        return self.head(h.flatten(1))


def net(body: Callable[[Net, Tensor], Tensor]) -> Net:
    torch.manual_seed(1)
    return Net(body).eval()


def pictures(samples: int = 2) -> Tensor:
    return torch.randn(samples, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def total(y: Tensor) -> Tensor:
    """A sum with weights: what is normalised has a plain sum of zero."""
    y = y.flatten(1)
    return (y * torch.linspace(0.5, 1.5, y.shape[1], dtype=y.dtype)).sum(1)


def explain_sum(function: Callable[..., Any], x: Any, rules: Any = "epsilon", **options: Any) -> hilrp.Explanation:
    """Relevance of the sum of a function's values, and the ledger."""
    options.setdefault("target", lambda out: out.flatten(1).sum(1))
    return hilrp.explain(Apply(function).eval(), x, rules=rules, stages=None, **options)
