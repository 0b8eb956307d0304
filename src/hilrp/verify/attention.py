"""Reference blocks: what they share, and softmax attention to all tokens or to a reduced map.

Each block has its ``forward`` as such models are coded and, beside it, its ``textbook``: the same on a sheet of
explicit matrices.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.verify.textbook import Quantity, Sheet, attention_weights


class Block(nn.Module, ABC):
    """A reference block. ``shapes`` has that of each input stream, without the batch axis."""

    shapes: tuple[tuple[int, ...], ...]

    @abstractmethod
    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """The block on a sheet, for one sample."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """``[B,N,heads*width]`` as ``[B,heads,N,width]``."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """The way back."""
    return x.transpose(1, 2).flatten(2)


class Mlp(nn.Module):
    """Two linear layers with a gelu in between."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """As coded."""
        return self.fc2(F.gelu(self.fc1(x)))

    def textbook(self, sheet: Sheet, x: Quantity) -> Quantity:
        """On paper."""
        return sheet.linear(sheet.activation(sheet.linear(x, self.fc1), gelu), self.fc2)


def gelu(x: Tensor) -> Tensor:
    """``x Phi(x)``, written out."""
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


class Attention(nn.Module):
    """Multi-head attention with one projection for queries, keys and values. ``bias`` is added to the logits."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.dim = heads, dim
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """As coded, without torch's fused kernel."""
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, -1))
        logits = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1)
        if bias is not None:
            logits = logits + bias
        return self.proj(join_heads(logits.softmax(-1) @ v))

    def textbook(self, sheet: Sheet, x: Quantity, bias: Tensor | None = None) -> Quantity:
        """On paper."""
        qkv = sheet.linear(x, self.qkv)
        q, k, _ = qkv.value.chunk(3, -1)
        v = sheet.reindex(qkv, lambda t: t[..., 2 * self.dim :])
        weights = attention_weights(q, k, self.heads, bias)
        return sheet.linear(sheet.attend(weights, v), self.proj)


class SelfAttention(Block):
    """An encoder block of a ViT: class token, positions, fused attention, MLP, pre-norm and residuals."""

    shapes = ((6, 8),)

    def __init__(self) -> None:
        super().__init__()
        self.cls, self.positions = nn.Parameter(torch.empty(1, 1, 8)), nn.Parameter(torch.empty(1, 7, 8))
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.attention, self.mlp = Attention(8, 2), Mlp(8)

    def forward(self, x: Tensor) -> Tensor:
        """As coded."""
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        q, k, v = (split_heads(part, 2) for part in self.attention.qkv(self.norm1(x)).chunk(3, -1))
        x = x + self.attention.proj(join_heads(F.scaled_dot_product_attention(q, k, v)))
        return x + self.mlp(self.norm2(x))

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper."""
        x = sheet.add(sheet.concat([self.cls[0], streams[0]]), self.positions[0])
        x = sheet.add(x, self.attention.textbook(sheet, sheet.layer_norm(x, self.norm1)))
        return sheet.add(x, self.mlp.textbook(sheet, sheet.layer_norm(x, self.norm2)))


class SpatialReduction(Block):
    """PVT's attention: all tokens of a map read keys and values of a map reduced by a strided convolution."""

    shapes = ((16, 6),)

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_reduced = nn.LayerNorm(6), nn.LayerNorm(6)
        self.reduce = nn.Conv2d(6, 6, 2, stride=2)
        self.q, self.kv, self.proj = nn.Linear(6, 6), nn.Linear(6, 12), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        """As coded, on tokens of a 4 x 4 map."""
        normed = self.norm(x)
        reduced = self.reduce(normed.transpose(1, 2).unflatten(2, (4, 4))).flatten(2).transpose(1, 2)
        k, v = (split_heads(part, 2) for part in self.kv(self.norm_reduced(reduced)).chunk(2, -1))
        mixed = F.scaled_dot_product_attention(split_heads(self.q(normed), 2), k, v)
        return x + self.proj(join_heads(mixed))

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper."""
        normed = sheet.layer_norm(streams[0], self.norm)
        reduced = sheet.linear(sheet.reindex(normed, lambda t: t.transpose(1, 2).unflatten(2, (4, 4))), self.reduce)
        tokens = sheet.layer_norm(sheet.reindex(reduced, lambda t: t.flatten(2).transpose(1, 2)), self.norm_reduced)
        kv = sheet.linear(tokens, self.kv)
        weights = attention_weights(sheet.linear(normed, self.q).value, kv.value[:, :6], 2)
        mixed = sheet.attend(weights, sheet.reindex(kv, lambda t: t[..., 6:]))
        return sheet.add(streams[0], sheet.linear(mixed, self.proj))
