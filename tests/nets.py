"""A small model with a body of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


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
