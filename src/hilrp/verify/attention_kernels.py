"""Reference blocks whose attention isn't a softmax over pairs.

Kernels, separable, channel and coordinate gates, sampling.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.verify.attention import Block
from hilrp.verify.textbook import Quantity, Sheet


class LinearAttention(Block):
    """EfficientViT's: relu features of queries and keys at two scales, with their denominator."""

    shapes = ((4, 4, 4),)

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Conv2d(4, 12, 1)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.pointwise = nn.Conv2d(12, 12, 1, groups=6)
        self.proj, self.norm = nn.Conv2d(8, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        """As coded: queries times (keys times values), and a column of ones among the values for the denominator."""
        qkv = self.qkv(x)
        scales = torch.cat([qkv, self.pointwise(self.depthwise(qkv))], 1)
        q, k, v = scales.reshape(len(x), 4, 6, -1).transpose(-1, -2).chunk(3, -1)
        q, k, v = F.relu(q), F.relu(k), F.pad(v, (0, 1), value=1.0)
        out = q @ (k.transpose(-1, -2) @ v)
        out = out[..., :-1] / (out[..., -1:] + 1e-9)
        return x + self.norm(self.proj(out.transpose(-1, -2).reshape(len(x), 8, *x.shape[2:])))

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper: mixing weights ``relu(q_i) relu(k_j) / sum_j'``, held fixed."""
        qkv = sheet.linear(streams[0], self.qkv)
        scales = sheet.concat([qkv, sheet.linear(sheet.linear(qkv, self.depthwise), self.pointwise)])
        q, k, _ = scales.value.reshape(4, 6, 16).transpose(1, 2).chunk(3, -1)
        weights = torch.einsum("hid,hjd->hij", q.clamp(min=0), k.clamp(min=0))
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-9)
        v = sheet.reindex(scales, lambda t: t.reshape(-1, 4, 6, 16)[:, :, 4:].permute(0, 3, 1, 2).flatten(2))
        mixed = sheet.reindex(sheet.attend(weights, v), lambda t: t.transpose(1, 2).unflatten(2, (4, 4)))
        return sheet.add(streams[0], sheet.batch_norm(sheet.linear(mixed, self.proj), self.norm))


class SeparableAttention(Block):
    """MobileViT-v2's: one score per token, a context vector, and relu values; ``[C, pixels, patches]``."""

    shapes = ((4, 3, 5),)

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.proj = nn.GroupNorm(1, 4), nn.Conv2d(4, 9, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """As coded."""
        q, k, v = self.qkv(self.norm(x)).split([1, 4, 4], 1)
        context = (k * q.softmax(-1)).sum(-1, keepdim=True)
        return x + self.proj(F.relu(v) * context.expand_as(v))

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper: ``y_n = relu(v_n) sum_m s_m k_m``, where the keys are the signal and all else is held fixed."""
        normed = sheet.norm(streams[0], (1, -1), self.norm.eps)
        normed = sheet.gate(normed, self.norm.weight[:, None, None], self.norm.bias[:, None, None])
        qkv = sheet.linear(normed, self.qkv)
        q, _, v = qkv.value.split([1, 4, 4])
        scores = (q[0] - q[0].amax(-1, keepdim=True)).exp()
        scores = scores / scores.sum(-1, keepdim=True)
        k = sheet.reindex(qkv, lambda t: t[:, 1:5])
        eye, pixels = torch.eye(4, dtype=torch.float64), torch.eye(3, dtype=torch.float64)
        matrix = torch.einsum("cpn,pm,cd,pq->cpndqm", v.clamp(min=0), scores, eye, pixels)
        return sheet.add(streams[0], sheet.linear(sheet.mix(k, matrix.reshape(60, 60), (4, 3, 5)), self.proj))


class SqueezeExcite(Block):
    """A convolution, batch normalisation and relu, gated per channel, with a residual."""

    shapes = ((4, 4, 4),)

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.squeeze, self.excite = nn.Conv2d(4, 2, 1), nn.Conv2d(2, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """As coded."""
        features = F.relu(self.norm(self.conv(x)))
        gate = self.excite(F.relu(self.squeeze(features.mean((2, 3), keepdim=True)))).sigmoid()
        return x + features * gate

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper."""
        features = sheet.activation(sheet.batch_norm(sheet.linear(streams[0], self.conv), self.norm), relu)
        squeezed = relu(pointwise(features.value.mean((1, 2))[:, None], self.squeeze))
        return sheet.add(streams[0], sheet.gate(features, sigmoid(pointwise(squeezed, self.excite))[:, :, None]))


class CoordinateAttention(Block):
    """A convolution, gated per row and per column of each channel, with a residual."""

    shapes = ((4, 4, 5),)

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.shared, self.norm = nn.Conv2d(4, 3, 1), nn.BatchNorm2d(3)
        self.rows, self.columns = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        """As coded: both pooled vectors go through one convolution as one."""
        features = self.conv(x)
        pooled = torch.cat([features.mean(3, keepdim=True), features.mean(2, keepdim=True).transpose(-1, -2)], 2)
        rows, columns = F.hardswish(self.norm(self.shared(pooled))).split([4, 5], 2)
        return x + features * self.rows(rows).sigmoid() * self.columns(columns.transpose(-1, -2)).sigmoid()

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper: two gates, each computed on its own."""
        features = sheet.linear(streams[0], self.conv)

        def gate(pooled: Tensor, last: nn.Conv2d) -> Tensor:
            shared = Sheet().given(pointwise(pooled, self.shared)[:, :, None])
            normed = Sheet().batch_norm(shared, self.norm).value[:, :, 0]
            return sigmoid(pointwise(normed * (normed + 3).clamp(0, 6) / 6, last))

        by_row = sheet.gate(features, gate(features.value.mean(2), self.rows)[:, :, None])
        both = sheet.gate(by_row, gate(features.value.mean(1), self.columns)[:, None, :])
        return sheet.add(streams[0], both)


class DeformableAttention(Block):
    """Deformable DETR's: each token reads two maps at points that it chooses itself, by bilinear sampling."""

    shapes = ((20, 4),)
    levels = ((4, 4), (2, 2))
    heads, points = 2, 3

    def __init__(self) -> None:
        super().__init__()
        numbers = self.heads * len(self.levels) * self.points
        self.norm, self.value, self.proj = nn.LayerNorm(4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.offsets, self.weights = nn.Linear(4, 2 * numbers), nn.Linear(4, numbers)

    def forward(self, x: Tensor) -> Tensor:
        """As coded: the tokens of both maps in one sequence, sampled with torch's ``grid_sample``."""
        normed = self.norm(x)
        value = self.value(normed).unflatten(-1, (self.heads, -1))
        shape = (self.heads, len(self.levels), self.points)
        weights = self.weights(normed).unflatten(-1, (self.heads, -1)).softmax(-1).unflatten(-1, shape[1:])
        places = self.reference()[:, None, None, None] + 0.3 * self.offsets(normed).unflatten(-1, (*shape, 2))
        sampled = []
        for level, (part, size) in enumerate(
            zip(value.split([h * w for h, w in self.levels], 1), self.levels, strict=True)
        ):
            maps = part.permute(0, 2, 3, 1).flatten(0, 1).unflatten(-1, size)
            grid = (2 * places[:, :, :, level] - 1).transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(maps, grid, "bilinear", "zeros", align_corners=False))
        gates = weights.permute(0, 2, 1, 3, 4).reshape(-1, 1, x.shape[1], shape[1] * shape[2])
        mixed = (torch.cat(sampled, -1) * gates).sum(-1)
        return x + self.proj(mixed.reshape(len(x), -1, x.shape[1]).transpose(1, 2))

    def reference(self) -> Tensor:
        """Where the tokens are themselves: centres of the cells of their maps, as ``(x, y)`` in 0 to 1."""
        places = [((c + 0.5) / w, (r + 0.5) / h) for h, w in self.levels for r in range(h) for c in range(w)]
        return torch.tensor(places, dtype=torch.float64)

    def textbook(self, sheet: Sheet, *streams: Quantity) -> Quantity:
        """On paper: a mixing matrix per head, with the four corners of each sampled point, place by place."""
        normed = sheet.layer_norm(streams[0], self.norm)
        offsets = sheet.linear(normed, self.offsets).value.reshape(20, self.heads, 2, self.points, 2)
        logits = sheet.linear(normed, self.weights).value.reshape(20, self.heads, -1)
        weights = logits.exp() / logits.exp().sum(-1, keepdim=True)
        places = self.reference()
        mixing = torch.zeros(self.heads, 20, 20, dtype=torch.float64)
        for token in range(20):
            for head in range(self.heads):
                start = 0
                for level, (h, w) in enumerate(self.levels):
                    for point in range(self.points):
                        x, y = (places[token] + 0.3 * offsets[token, head, level, point]).tolist()
                        weight = weights[token, head, level * self.points + point]
                        for r, c, share in corners(x * w - 0.5, y * h - 0.5):
                            if 0 <= r < h and 0 <= c < w:
                                mixing[head, token, start + r * w + c] += weight * share
                    start += h * w
        mixed = sheet.attend(mixing, sheet.linear(normed, self.value))
        return sheet.add(streams[0], sheet.linear(mixed, self.proj))


def corners(x: float, y: float) -> list[tuple[int, int, float]]:
    """The four cells around a point as row, column and weight, by bilinear interpolation."""
    c, r = math.floor(x), math.floor(y)
    right, down = x - c, y - r
    return [
        (r, c, (1 - down) * (1 - right)),
        (r, c + 1, (1 - down) * right),
        (r + 1, c, down * (1 - right)),
        (r + 1, c + 1, down * right),
    ]


def pointwise(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """A 1 x 1 convolution of ``[C,places]`` as a product of matrices."""
    assert layer.bias is not None
    return layer.weight[:, :, 0, 0] @ x + layer.bias[:, None]


def sigmoid(x: Tensor) -> Tensor:
    """``1 / (1 + exp(-x))``."""
    return 1 / (1 + (-x).exp())


def relu(x: Tensor) -> Tensor:
    """``max(x, 0)``."""
    return x.clamp(min=0)
