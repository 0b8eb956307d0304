"""A function as a model, a small model with a body of the test's own, a score that tells outputs apart, and scores that
are small since large parts of them cancel.
"""

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


class Cancelling(nn.Module):
    """A network whose first 40 class scores are parts of about 3 that cancel in one sample, beside 60 others."""

    def __init__(self, x: Tensor, score: float) -> None:
        super().__init__()
        self.hidden, self.relu = nn.Linear(64, 256, bias=False), nn.ReLU()
        self.last = nn.Linear(256, 100, bias=False)
        with torch.no_grad():
            self.last.weight *= 4
            hidden = self.hidden(x).relu()[0]
            rows = self.last.weight[:40].double()
            rows -= ((rows @ hidden.double() - score) / hidden.double().square().sum())[:, None] * hidden
            self.last.weight[:40] = rows

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.hidden(x)))


def cancelling(score: float, dtype: torch.dtype) -> tuple[Cancelling, Tensor]:
    """Such a network of that type, and its sample."""
    torch.manual_seed(0)
    x = torch.randn(1, 64)
    model = Cancelling(x, score).eval().to(dtype)
    others = model(x.to(dtype))[0, 40:].abs()
    assert 2 < others.max() < 5
    return model, x.to(dtype)


class Leaking(nn.Module):
    """The same with a part of one score whose rule loses relevance."""

    def __init__(self, model: nn.Module, part: float) -> None:
        super().__init__()
        self.model, self.part = model, part

    def forward(self, x: Tensor) -> Tensor:
        lost = self.part * torch.special.i1(x[:, :4].sum(1, keepdim=True) / 4)
        return self.model(x) + nn.functional.pad(lost, (0, 99))
