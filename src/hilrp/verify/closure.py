"""Closure: models put together from primitives at random must conserve relevance whatever they are made of.

A recipe is a list of step names; each step maps a feature map ``[B,C,H,W]`` to another of the same number of channels.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.audit import forward_difference
from hilrp.attribution.explainer import explain
from hilrp.util.errors import HilrpError
from hilrp.verify.report import Row
from hilrp.verify.taxonomy import randomised

CHANNELS, SIDE, CLASSES = 8, 8, 6
BOUND = 1e-10


class Step(nn.Module):
    """A function of a map and of some layers."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """The function, with the layers after the map."""
        return self.function(x, *self.layers)


def _tokens(x: Tensor) -> Tensor:
    return x.flatten(2).transpose(1, 2)


def _map(tokens: Tensor, like: Tensor) -> Tensor:
    return tokens.transpose(1, 2).reshape(like.shape)


def _heads(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(part.unflatten(-1, (2, -1)).transpose(1, 2) for part in x.chunk(3, -1))


def _on_tokens(x: Tensor, layer: nn.Module) -> Tensor:
    return _map(layer(_tokens(x)), x)


def _attention(x: Tensor, qkv: nn.Module, proj: nn.Module) -> Tensor:
    q, k, v = _heads(qkv(_tokens(x)))
    mixed = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1) @ v
    return _map(proj(mixed.transpose(1, 2).flatten(2)), x)


def _fused_attention(x: Tensor, qkv: nn.Module, proj: nn.Module) -> Tensor:
    q, k, v = _heads(qkv(_tokens(x)))
    mixed = F.scaled_dot_product_attention(q, k, v)
    return _map(proj(mixed.transpose(1, 2).flatten(2)), x)


def _rolled_windows(x: Tensor, qkv: nn.Module, proj: nn.Module) -> Tensor:
    side = x.shape[-1] // 2
    cut = x.roll((-1, -1), (2, 3)).unflatten(3, (2, side)).unflatten(2, (2, side)).permute(0, 2, 4, 1, 3, 5)
    mixed = _fused_attention(cut.flatten(0, 2), qkv, proj).reshape(cut.shape).permute(0, 3, 1, 4, 2, 5)
    return mixed.reshape(x.shape).roll((1, 1), (2, 3))


def _linear_attention(x: Tensor, qkv: nn.Module, proj: nn.Module) -> Tensor:
    q, k, v = _heads(qkv(_tokens(x)))
    q, k = q.relu() + 1e-3, k.relu() + 1e-3
    mixed = q @ (k.transpose(-2, -1) @ v) / (q @ k.sum(-2, keepdim=True).transpose(-2, -1))
    return _map(proj(mixed.transpose(1, 2).flatten(2)), x)


def _merge(x: Tensor, norm: nn.Module, reduction: nn.Module) -> Tensor:
    four = torch.cat([x[:, :, r::2, c::2] for c in (0, 1) for r in (0, 1)], 1)
    return reduction(norm(four.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)


def _squeeze_excite(x: Tensor, squeeze: nn.Module, excite: nn.Module) -> Tensor:
    return x * excite(F.relu(squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()


def _shuffle(x: Tensor) -> Tensor:
    return x.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2).flip(3)


def _tokens_step(layer: nn.Module) -> Step:
    return Step(_on_tokens, layer)


def _projections() -> tuple[nn.Module, nn.Module]:
    return nn.Linear(CHANNELS, 3 * CHANNELS), nn.Linear(CHANNELS, CHANNELS)


class Positions(nn.Module):
    """Adds a constant per channel and place."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, CHANNELS, side, side))

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.table


#: Step -> how it is made for a map of that side.
STEPS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda side: _tokens_step(nn.Linear(CHANNELS, CHANNELS)),
    "conv": lambda side: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
    "depthwise conv": lambda side: nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, groups=CHANNELS),
    "layer norm": lambda side: _tokens_step(nn.LayerNorm(CHANNELS)),
    "rms norm": lambda side: _tokens_step(nn.RMSNorm(CHANNELS, eps=1e-6)),
    "group norm": lambda side: nn.GroupNorm(2, CHANNELS),
    "batch norm": lambda side: nn.BatchNorm2d(CHANNELS),
    "gelu": lambda side: nn.GELU(),
    "silu": lambda side: nn.SiLU(),
    "relu": lambda side: nn.ReLU(),
    "attention": lambda side: Step(_attention, *_projections()),
    "fused attention": lambda side: Step(_fused_attention, *_projections()),
    "rolled windows": lambda side: Step(_rolled_windows, *_projections()),
    "linear attention": lambda side: Step(_linear_attention, *_projections()),
    "sigmoid gate": lambda side: Step(lambda x, gate: x * gate(x).sigmoid(), nn.Conv2d(CHANNELS, CHANNELS, 1)),
    "swiglu": lambda side: Step(
        lambda x, a, b: F.silu(a(x)) * b(x), nn.Conv2d(CHANNELS, CHANNELS, 1), nn.Conv2d(CHANNELS, CHANNELS, 1)
    ),
    "squeeze-excite": lambda side: Step(_squeeze_excite, nn.Conv2d(CHANNELS, 4, 1), nn.Conv2d(4, CHANNELS, 1)),
    "positions": Positions,
    "shuffle": lambda side: Step(_shuffle),
    "unit length": lambda side: Step(lambda x: F.normalize(x, dim=1)),
}
#: Steps that halve the map, and one that doubles it.
HALVING: dict[str, Callable[[], nn.Module]] = {
    "merge": lambda: Step(_merge, nn.LayerNorm(4 * CHANNELS), nn.Linear(4 * CHANNELS, CHANNELS, bias=False)),
    "strided conv": lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, stride=2, padding=1),
    "max pool": lambda: nn.MaxPool2d(2),
    "average pool": lambda: nn.AvgPool2d(2),
}
DOUBLING = "interpolation"
BRANCHES = ("residual", "concat")


class Branch(nn.Module):
    """``x + inner(x)``, or both concatenated and projected back."""

    def __init__(self, inner: nn.Module, project: nn.Module | None) -> None:
        super().__init__()
        self.inner, self.project = inner, project

    def forward(self, x: Tensor) -> Tensor:
        """The sum or the projection."""
        return x + self.inner(x) if self.project is None else self.project(torch.cat([x, self.inner(x)], 1))


def compose(seed: int) -> tuple[list[str], nn.Module]:
    """A recipe of 3 to 12 steps and its model, which maps ``[B,8,8,8]`` to ``[B,6]``.

    Example:
        >>> recipe, model = compose(0)
        >>> 3 <= len(recipe) <= 12
        True
    """
    chance = random.Random(seed)
    names: list[str] = []
    steps: list[nn.Module] = []
    side = SIDE
    for _ in range(chance.randint(3, 12)):
        choices = [*STEPS, *BRANCHES, *BRANCHES]
        choices += HALVING if side > 2 else []
        choices += [DOUBLING] if side < SIDE else []
        name = chance.choice(choices)
        if name in HALVING:
            steps.append(HALVING[name]())
            side //= 2
        elif name == DOUBLING:
            steps.append(nn.Upsample(scale_factor=2, mode=chance.choice(["bilinear", "nearest"])))
            side *= 2
        elif name in BRANCHES:
            inner = [chance.choice(list(STEPS)) for _ in range(chance.randint(1, 3))]
            project = nn.Conv2d(2 * CHANNELS, CHANNELS, 1) if name == "concat" else None
            steps.append(Branch(nn.Sequential(*(STEPS[each](side) for each in inner)), project))
            name = f"{name}({', '.join(inner)})"
        else:
            steps.append(STEPS[name](side))
        names.append(name)
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES))
    return names, randomised(nn.Sequential(*steps, *head), seed)


def measure(seed: int) -> tuple[list[str], dict[str, float]]:
    """The recipe of a seed, how well its model conserves, and the input's share of the score."""
    recipe, model = compose(seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, CHANNELS, SIDE, SIDE, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        signs = model(x).sign()  # so that the score isn't near zero
    found = explain(model, x, lambda out: (out * signs).sum(1), "hilrp", audit="off", stages=None, itemised=True)
    return recipe, {
        "residual": float(found.ledger.residual.max()),
        "leak": float(found.ledger.leak.max()),
        "forward": forward_difference(model, x, found.output),
        "not finite": float(not bool(found.relevance.isfinite().all())),
        "share": float(found.ledger.share.abs().mean()),
    }


def check(count: int = 300) -> Row:
    """Many recipes; the worst numbers, and the recipe that leaks most."""
    results = [_measured(seed) for seed in range(count)]
    bounds = {"residual": BOUND, "leak": BOUND, "forward": 0.0, "not finite": 0.0}
    errors = {name: max((numbers[name] for _, numbers in results), key=_nan_first) for name in bounds}
    # Books also close where constants keep everything: the input must have its part.
    errors["share, median"] = statistics.median(numbers["share"] for _, numbers in results)
    recipe, numbers = max(results, key=lambda result: _nan_first(result[1]["leak"]))
    return Row(
        f"{count} random compositions",
        errors,
        bounds,
        {"share, median": 0.05},
        remark=f"worst leak {numbers['leak']:.1e}: {', '.join(recipe)}; the share is the input's, of the score",
    )


def _measured(seed: int) -> tuple[list[str], dict[str, float]]:
    """`measure`, with no numbers for a recipe that can't be explained."""
    try:
        return measure(seed)
    except HilrpError:
        names = ("residual", "leak", "forward", "not finite", "share")
        return compose(seed)[0], dict.fromkeys(names, math.nan)


def _nan_first(value: float) -> float:
    """NaN is worse than any number."""
    return math.inf if math.isnan(value) else value
