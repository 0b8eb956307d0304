"""Reference blocks with attention within windows, shifted windows, grids and neighbourhoods.

They are coded by moving tokens about. On paper they are attention to all tokens with the weights of some pairs left
out, so that the two have little in common.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hilrp.verify.attention import Attention, Block, Mlp, join_heads, split_heads
from hilrp.verify.textbook import Quantity, Sheet

Same = Callable[[int, int], bool]
"""Whether two places along an axis may see each other."""


def pairs_left_out(height: int, width: int, rows: Same, columns: Same) -> Tensor:
    """``[N,N]``: 0 for pairs of places in an ``height x width`` grid that may see each other, ``-inf`` for others."""
    places = [(r, c) for r in range(height) for c in range(width)]
    seen = [[0.0 if rows(r, s) and columns(c, d) else -math.inf for s, d in places] for r, c in places]
    return torch.tensor(seen, dtype=torch.float64)


class Partitioned(nn.Module, ABC):
    """Pre-norm attention within the parts of a map ``[H,W,C]``, with relative positions, and an MLP."""

    def __init__(self, height: int, width: int, dim: int, part: int) -> None:
        super().__init__()
        self.height, self.width, self.part = height, width, part
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention, self.mlp = Attention(dim, 2), Mlp(dim)
        self.relative = nn.Parameter(torch.empty(2, 2 * part - 1, 2 * part - 1))

    def forward(self, x: Tensor) -> Tensor:
        """As coded."""
        normed = self.norm1(x)
        parts = self.partition(normed).flatten(2, 3)
        bias = self.bias_in_part()
        mask = self.mask()
        if mask is not None:
            bias = bias + mask.repeat(len(x), 1, 1).unsqueeze(1)
        mixed = self.attention(parts.flatten(0, 1), bias)
        x = x + self.restore(mixed.reshape(len(x), -1, self.part, self.part, x.shape[-1]))
        return x + self.mlp(self.norm2(x))

    def bias_in_part(self) -> Tensor:
        """Relative position biases ``[heads, part^2, part^2]``."""
        along = torch.arange(self.part)
        r, c = (t.flatten() for t in torch.meshgrid(along, along, indexing="ij"))
        offset = self.part - 1
        return self.relative[:, r[:, None] - r + offset, c[:, None] - c + offset]

    @abstractmethod
    def partition(self, x: Tensor) -> Tensor:
        """``[B,H,W,C]`` to ``[B,parts,part,part,C]``."""

    @abstractmethod
    def restore(self, parts: Tensor) -> Tensor:
        """The way back."""

    def mask(self) -> Tensor | None:
        """Summand for the logits of each part, ``[parts, part^2, part^2]``."""
        return None

    @abstractmethod
    def same(self, a: int, b: int, length: int) -> bool:
        """On paper: whether places a and b along an axis of that length are in the same part."""

    def offset(self, a: int, b: int, length: int) -> int:
        """On paper: how far they are from each other within the part."""
        return a - b

    def textbook(self, sheet: Sheet, x: Quantity) -> Quantity:
        """On paper: attention over all tokens, with the pairs that are in different parts left out."""
        h, w = self.height, self.width
        bias = pairs_left_out(h, w, lambda a, b: self.same(a, b, h), lambda a, b: self.same(a, b, w)).repeat(2, 1, 1)
        for i in range(h * w):
            for j in range(h * w):
                if bias[0, i, j] == 0:
                    rows, columns = self.offset(i // w, j // w, h), self.offset(i % w, j % w, w)
                    bias[:, i, j] = self.relative[:, rows + self.part - 1, columns + self.part - 1]
        tokens = sheet.reindex(x, lambda t: t.flatten(1, 2))
        mixed = self.attention.textbook(sheet, sheet.layer_norm(tokens, self.norm1), bias)
        tokens = sheet.add(tokens, mixed)
        tokens = sheet.add(tokens, self.mlp.textbook(sheet, sheet.layer_norm(tokens, self.norm2)))
        return sheet.reindex(tokens, lambda t: t.unflatten(1, (h, w)))


class Windows(Partitioned):
    """Swin's windows, shifted cyclically; a mask keeps apart what the shift has brought together."""

    def __init__(self, height: int, width: int, dim: int, part: int, shift: int = 0) -> None:
        super().__init__(height, width, dim, part)
        self.shift = shift

    def partition(self, x: Tensor) -> Tensor:
        """Rolled, then cut up."""
        x = x.roll((-self.shift, -self.shift), (1, 2))
        cut = x.unflatten(2, (-1, self.part)).unflatten(1, (-1, self.part))
        return cut.transpose(2, 3).flatten(1, 2)

    def restore(self, parts: Tensor) -> Tensor:
        """Put together, then rolled back."""
        grid = parts.unflatten(1, (self.height // self.part, self.width // self.part))
        return grid.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll((self.shift, self.shift), (1, 2))

    def mask(self) -> Tensor | None:
        """Swin's: -100 for pairs of different regions."""
        if not self.shift:
            return None
        region = torch.zeros(1, self.height, self.width, 1, dtype=torch.float64)
        cuts = (slice(0, -self.part), slice(-self.part, -self.shift), slice(-self.shift, None))
        for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
            region[:, rows, columns] = number
        cut = (
            region.unflatten(2, (-1, self.part)).unflatten(1, (-1, self.part)).transpose(2, 3).reshape(-1, self.part**2)
        )
        return (cut[:, :, None] != cut[:, None, :]) * -100.0

    def same(self, a: int, b: int, length: int) -> bool:
        """Windows whose edges lie at ``shift + n part``; those at the border are smaller."""
        return (a - self.shift) // self.part == (b - self.shift) // self.part


class Grid(Partitioned):
    """MaxViT's grid attention: tokens at equal distances, spread over the whole map."""

    def partition(self, x: Tensor) -> Tensor:
        """``part x part`` places, each ``H / part`` rows and ``W / part`` columns from the next."""
        spread = x.unflatten(2, (self.part, -1)).unflatten(1, (self.part, -1))
        return spread.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)

    def restore(self, parts: Tensor) -> Tensor:
        """The way back."""
        grid = parts.unflatten(1, (self.height // self.part, self.width // self.part))
        return grid.permute(0, 3, 1, 4, 2, 5).flatten(3, 4).flatten(1, 2)

    def same(self, a: int, b: int, length: int) -> bool:
        """Places whose distance is a multiple of ``length / part``."""
        return (a - b) % (length // self.part) == 0

    def offset(self, a: int, b: int, length: int) -> int:
        """Counted in steps of the grid."""
        return (a - b) // (length // self.part)


class Neighbourhood(nn.Module):
    """NAT's attention: each token of a map ``[H,W,C]`` reads ``size x size`` neighbours, ``dilation`` apart."""

    def __init__(self, height: int, width: int, dim: int, size: int, dilation: int) -> None:
        super().__init__()
        self.height, self.width, self.size, self.dilation = height, width, size, dilation
        self.norm1, self.attention = nn.LayerNorm(dim), Attention(dim, 2)

    def forward(self, x: Tensor) -> Tensor:
        """As coded: keys and values gathered for each query."""
        q, k, v = (split_heads(part, 2) for part in self.attention.qkv(self.norm1(x).flatten(1, 2)).chunk(3, -1))
        rows, columns = self._neighbours(self.height), self._neighbours(self.width)
        index = (rows[:, None, :, None] * self.width + columns[None, :, None, :]).reshape(-1, self.size**2)
        logits = torch.einsum("bhnd,bhnkd->bhnk", q, k[:, :, index]) * q.shape[-1] ** -0.5
        mixed = torch.einsum("bhnk,bhnkd->bhnd", logits.softmax(-1), v[:, :, index])
        return x + self.attention.proj(join_heads(mixed)).reshape(x.shape)

    def _neighbours(self, length: int) -> Tensor:
        """Indices ``[length, size]`` along an axis; the neighbourhood is moved inwards at the border."""
        place = torch.arange(length)
        residue, step = place % self.dilation, place // self.dilation
        last = (length - residue - 1) // self.dilation + 1 - self.size
        first = torch.minimum((step - self.size // 2).clamp(min=0), last)
        return (first[:, None] + torch.arange(self.size)) * self.dilation + residue[:, None]

    def textbook(self, sheet: Sheet, x: Quantity) -> Quantity:
        """On paper: attention over all tokens but those that aren't among the nearest."""

        def near(a: int, b: int, length: int) -> bool:
            reachable = range(a % self.dilation, length, self.dilation)
            return b in sorted(reachable, key=lambda place: abs(place - a))[: self.size]

        h, w = self.height, self.width
        left_out = pairs_left_out(h, w, lambda a, b: near(a, b, h), lambda a, b: near(a, b, w))
        tokens = sheet.reindex(x, lambda t: t.flatten(1, 2))
        mixed = self.attention.textbook(sheet, sheet.layer_norm(tokens, self.norm1), left_out)
        return sheet.reindex(sheet.add(tokens, mixed), lambda t: t.unflatten(1, (h, w)))


class InTurn(Block):
    """Two blocks, one after the other, on a map ``[H,W,C]``."""

    def __init__(self, first: Partitioned | Neighbourhood, second: Partitioned | Neighbourhood) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.shapes = ((first.height, first.width, first.norm1.normalized_shape[0]),)

    def forward(self, x: Tensor) -> Tensor:
        """As coded."""
        return self.second(self.first(x))

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper."""
        return self.second.textbook(sheet, self.first.textbook(sheet, streams[0]))
