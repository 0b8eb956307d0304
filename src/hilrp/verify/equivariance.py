"""Conditional equivariance: where the forward pass commutes with a shift of the image, so does the relevance.

The model is the idealised one of the theorem: windows shifted cyclically without a mask, circular padding, no
positions. Its windows, merges and patches are aligned to a period of pixels; shifts by multiples of it commute with
every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.explainer import explain
from hilrp.verify.attention import join_heads, split_heads
from hilrp.verify.report import Row, in_order, primitives_of, relative_error
from hilrp.verify.taxonomy import randomised

SIDE, PATCH, WINDOW, DIM = 16, 2, 2, 8
#: Pixels by which all of the model repeats: a window of patches, and a merge of two.
PERIOD = PATCH * WINDOW
BOUND = 1e-12
#: What a control must be above, to show that the check can fail.
CONTROL = 1e-3


class CyclicAttention(nn.Module):
    """Pre-norm attention on a map ``[B,H,W,C]``: within windows shifted cyclically, without a mask, or global."""

    def __init__(self, window: int | None, shift: int = 0) -> None:
        super().__init__()
        self.window, self.shift = window, shift
        self.norm, self.qkv, self.proj = nn.LayerNorm(DIM), nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, with a residual connection around it."""
        window = self.window or x.shape[1]
        y = self.norm(x).roll((-self.shift, -self.shift), (1, 2))
        cut = y.unflatten(2, (-1, window)).unflatten(1, (-1, window)).transpose(2, 3)
        q, k, v = (split_heads(part, 2) for part in self.qkv(cut.flatten(3, 4).flatten(0, 2)).chunk(3, -1))
        mixed = self.proj(join_heads(F.scaled_dot_product_attention(q, k, v))).reshape(cut.shape)
        return x + mixed.transpose(2, 3).flatten(3, 4).flatten(1, 2).roll((self.shift, self.shift), (1, 2))


class CyclicModel(nn.Module):
    """Patches, windows, shifted windows, merging, circular depthwise convolution, global attention, mean, head."""

    def __init__(self, positions: bool = False) -> None:
        super().__init__()
        side = SIDE // PATCH
        self.patches = nn.Conv2d(3, DIM, PATCH, stride=PATCH)
        self.positions = nn.Parameter(torch.empty(1, side, side, DIM)) if positions else None
        self.windows, self.shifted = CyclicAttention(WINDOW), CyclicAttention(WINDOW, WINDOW // 2)
        self.norm, self.reduction = nn.LayerNorm(4 * DIM), nn.Linear(4 * DIM, DIM, bias=False)
        self.depthwise = nn.Conv2d(DIM, DIM, 3, padding=1, padding_mode="circular", groups=DIM)
        self.everywhere, self.last, self.head = CyclicAttention(None), nn.LayerNorm(DIM), nn.Linear(DIM, 5)

    def forward(self, image: Tensor) -> Tensor:
        """``[B,3,16,16]`` to ``[B,5]``."""
        x = self.patches(image).permute(0, 2, 3, 1)
        if self.positions is not None:
            x = x + self.positions
        x = self.shifted(self.windows(x))
        four = torch.cat([x[:, r::2, c::2] for c in (0, 1) for r in (0, 1)], -1)
        x = self.reduction(self.norm(four))
        x = x + F.gelu(self.depthwise(x.permute(0, 3, 1, 2))).permute(0, 2, 3, 1)
        return self.head(self.last(self.everywhere(x)).mean((1, 2)))


def errors_under(model: nn.Module, shifts: list[tuple[int, int]], seed: int = 0) -> dict[str, float]:
    """Worst over the shifts: the premise ``f(pi x) = f(x)``, and the theorem ``R(pi x) = pi R(x)``, both relative."""
    x = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        target = int(model(x).abs().argmax())
    rolled = torch.cat([x.roll(shift, (2, 3)) for shift in shifts])
    plain = explain(model, x, target, "hilrp", audit="off", stages=None)
    moved = explain(model, rolled, target, "hilrp", audit="off", stages=None)
    expected = torch.cat([plain.relevance.roll(shift, (2, 3)) for shift in shifts])
    return {
        "score": relative_error(moved.score, plain.score.expand(len(shifts))),
        "relevance": relative_error(moved.relevance, expected),
    }


def check() -> list[Row]:
    """The theorem for all aligned shifts, and two controls in which it must not hold."""
    aligned = [(r, c) for r in range(0, SIDE, PERIOD) for c in range(0, SIDE, PERIOD)][1:]
    model = randomised(CyclicModel(), 0)
    x = torch.randn(1, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bounds, control = {"score": BOUND, "relevance": BOUND}, {"relevance": CONTROL}
    return [
        Row(
            "cyclic model, aligned shifts",
            errors_under(model, aligned),
            bounds,
            primitives=in_order(primitives_of(model, x)),
            remark=f"all {len(aligned)} shifts by multiples of {PERIOD} pixels",
        ),
        Row(
            "control: with absolute positions",
            errors_under(randomised(CyclicModel(positions=True), 0), aligned),
            at_least=control,
            remark="the forward pass doesn't commute: the relevance must not",
        ),
        Row(
            "control: shifts by single pixels",
            errors_under(model, [(1, 0), (0, 1), (1, 1)]),
            at_least=control,
            remark="shifts that patches and windows aren't aligned to",
        ),
    ]
