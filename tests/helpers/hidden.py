"""Custom functions, whose inside the engine does not see, and a model with a place for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import Function

import hilrp

#: The presets under which the books must close.
CONSERVING = [name for name, rules in hilrp.PRESETS.items() if rules.conserving]


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))


class Scaled(Function):
    """In the newer form, with an argument that is no tensor, and two outputs."""

    @staticmethod
    def forward(x, by):
        return x.sigmoid() * by * x, x * by

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.by = inputs[1]

    @staticmethod
    def backward(ctx, g, h):
        return (g + h) * ctx.by, None


class Doubling(Function):
    """Writes to its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Model(nn.Module):
    def __init__(self, middle) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.middle = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), middle

    def forward(self, x):
        return self.head(self.middle(self.conv(x)).mean((2, 3)))


def make(middle) -> nn.Module:
    return Model(middle).double().eval()


def picture() -> Tensor:
    return torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
