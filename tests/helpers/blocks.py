"""A small model with one exchangeable operation in a named place, and errors with all of some words."""

from __future__ import annotations

import pytest
import torch
from torch import nn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A small model with one exchangeable operation in a named place."""

    def __init__(self, middle):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.middle = middle if isinstance(middle, nn.Module) else Middle(middle)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.middle(self.stem(x)).mean((2, 3)))


class Middle(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def raises(error, *words):
    """An error of that class whose message has all of these words."""
    pattern = "(?s)" + "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(error, match=pattern)
