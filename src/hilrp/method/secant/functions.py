"""Backward passes of relevance relative to a reference.

With a reference input every tensor ``y`` has a second value ``y0``, and holds the relevance ``g * (y - y0)``. Each
function here returns its value untouched and passes on exactly what comes in: ``sum(g_a * (a - a0)) = sum(g_y * (y -
y0))``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hilrp.method.autograd import standardised
from hilrp.method.normalisation import Norm
from hilrp.method.sample_axis import one_of_all
from hilrp.util.replaceable import Replaceable

#: Queries whose attention weights are in memory at once, when they are computed anew in the backward pass.
_ROWS = 1024


def log_mean(a: Tensor, a0: Tensor, ratio: Tensor) -> Tensor:
    """``(a - a0) / ln(a / a0)``, the logarithmic mean of two weights whose ratio has the given logarithm.

    Where both are zero (a mask), so is the mean.
    """
    # max(a, a0) (1 - exp(-|r|)) / |r| has no difference of values that are close; at zero the least number stands for
    # the limit.
    size = ratio.abs().clamp_(min=torch.finfo(ratio.dtype).tiny).neg_()
    return torch.expm1(size).div_(size).mul_(torch.maximum(a, a0)).nan_to_num_(0.0, 0.0, 0.0)


@Replaceable
def mean_weights(s: Tensor, s0: Tensor, value: Tensor, value0: Tensor, dim: int) -> Tensor:
    """The logarithmic mean of the softmaxes of two scores."""
    return log_mean(value, value0, s.log_softmax(dim) - s0.log_softmax(dim))


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, s: Tensor, s0: Tensor, value: Tensor, value0: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(mean_weights(s, s0, value, value0, dim))
        ctx.dim = dim
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (mean,) = ctx.saved_tensors
        return through_softmax(g, mean, ctx.dim), None, None, None, None


#: Softmax weights. ``A - A0 = L (D s - sum(L D s) / sum(L))`` with the logarithmic mean ``L`` of the two, exactly.
softmax = _Softmax.apply


@Replaceable
def through_softmax(g: Tensor, mean: Tensor, dim: int) -> Tensor:
    """``L (g - sum(L g) / sum(L))``.

    A softmax is its logarithmic mean ``L`` times centred differences of the scores.
    """
    total = mean.sum(dim, keepdim=True)
    centre = (mean * g).sum(dim, keepdim=True) / total.where(total > 0, 1)
    return mean * (g - centre)


class _Normalise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, x0: Tensor, value: Tensor, norm: Norm) -> Tensor:
        # Of the two inputs all else can be computed again.
        ctx.save_for_backward(x, x0, norm.scale)
        ctx.norm = norm._replace(x=x.new_empty(0), scale=None, shift=None)  # the graph holds no tensor twice
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, x0, scale = ctx.saved_tensors
        return through_norm(g, x, x0, ctx.norm._replace(scale=scale)).to(x.dtype), None, None, None


@Replaceable
def through_norm(g: Tensor, x: Tensor, x0: Tensor, norm: Norm) -> Tensor:
    """The gradient of what is normalised: ``h - cbar mean(h ybar) / sbar`` with ``h = g scale / sbar``, centred."""
    (c, n, s), (c0, n0, s0) = (_centred(each.reshape(norm.groups), norm.centre, norm.eps) for each in (x, x0))
    middle, normal, inverse = (c + c0).mul_(0.5), (n + n0).mul_(0.5), 2 / (s + s0)
    h = (g if norm.scale is None else g * norm.scale).reshape(norm.groups).to(middle.dtype) * inverse
    found = h - middle * (inverse * (h * normal).mean(-1, keepdim=True))
    if norm.centre:
        found = found - found.mean(-1, keepdim=True)
    return found.reshape(g.shape)


def _centred(x: Tensor, centre: bool, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is normalised, what becomes of it, and what it is divided by."""
    x = x if x.dtype == torch.float64 else x.float()
    if not centre:
        divisor = (x.square().mean(-1, keepdim=True) + eps).sqrt()
        return x, x / divisor, divisor
    normal, mean, inverse = standardised(x, eps)
    return x - mean, normal, 1 / inverse


def normalise(norm: Norm, x0: Tensor, value: Tensor) -> Tensor:
    """``(x - mean) / std * scale`` over the last axis of ``x.reshape(groups)``, with a divisor that varies, too.

    With ``c = x - mean``, the standard deviation ``s``, ``y = c / s`` and bars for the mean of the two passes, ``c = y
    s`` gives ``D y = (D c - ybar D s) / sbar`` with ``D s = mean(cbar D c) / sbar``. This holds also where one of the
    two has next to no spread.
    """
    return _Normalise.apply(norm.x, x0, value, norm)


class _Attention(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, q0: Tensor, k0: Tensor, v0: Tensor,
                mask0: Tensor | None, value: Tensor, scale: float, causal: bool) -> Tensor:  # fmt: skip
        ctx.save_for_backward(q, k, v, mask, q0, k0, v0, mask0)
        ctx.scale, ctx.causal = scale, causal
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        needed = ctx.needs_input_grad
        q, k, v, mask, q0, k0, v0, mask0 = _prepared([*saved[:4], *map(one_of_all, saved[4:])], ctx.scale)
        g = g.to(q.dtype)
        middle_q, middle_k, middle_v = (torch.lerp(t, t0, 0.5) for t, t0 in ((q, q0), (k, k0), (v, v0)))
        shares: list[list[Tensor]] = [[], [], [], []]
        for start in range(0, q.shape[-2], _ROWS):
            rows = slice(start, start + _ROWS)
            part = g[..., rows, :]
            scores = [_scores(*own, rows, ctx.causal) for own in ((q, k, mask), (q0, k0, mask0))]
            g_s, weights = through_weights(part @ middle_v.transpose(-2, -1), *scores)
            shares[0].append(g_s @ middle_k)
            shares[1].append(g_s.transpose(-2, -1) @ middle_q[..., rows, :])
            shares[2].append(weights.transpose(-2, -1) @ part)
            if needed[3]:
                shares[3].append(g_s)
        found: list[Any] = [
            torch.cat(shares[0], -2).mul_(ctx.scale),
            sum(shares[1]),
            sum(shares[2]),
            torch.cat(shares[3], -2) if needed[3] else None,
        ]
        return *(_fitted(t, o) if n else None for t, o, n in zip(found, saved, needed, strict=False)), *[None] * 7


#: ``softmax(q k^T) v``: midpoints for both products, and `softmax` between them. The weights are computed anew in the
#: backward pass, some queries at a time.
attention = _Attention.apply


def _prepared(operands: Sequence[Tensor | None], scale: float) -> list[Any]:
    """Operands in one type, of at least single precision, with as many keys as queries; the scale is in the queries."""
    q, k = operands[0], operands[1]
    assert q is not None
    assert k is not None
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    groups = q.shape[-3] // k.shape[-3] if q.ndim > 2 and k.ndim > 2 and k.shape[-3] not in (1, q.shape[-3]) else 1
    found: list[Any] = []
    for number, t in enumerate(operands):
        place = number % 4
        if t is None or t.dtype == torch.bool:
            found.append(t)
            continue
        t = t.to(wide)
        if place == 0:
            t = t * scale
        elif place in (1, 2) and groups > 1:
            t = t.repeat_interleave(groups, -3)
        found.append(t)
    return found


def _weights(s: Tensor, s0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The attention weights of scores on the input and on the reference, and their logarithmic mean."""
    logs, logs0 = s.log_softmax(-1), s0.log_softmax(-1)
    # A query that may look nowhere has no weights.
    a, a0 = (t.exp().nan_to_num_(0.0) for t in (logs, logs0))
    return a, a0, log_mean(a, a0, logs.sub_(logs0))


@Replaceable
def through_weights(g: Tensor, s: Tensor, s0: Tensor) -> tuple[Tensor, Tensor]:
    """From the gradient of attention weights that of their scores, and the mean of the two weights.

    What is given may be written to.
    """
    a, a0, mean = _weights(s, s0)
    return through_softmax(g, mean, -1), torch.lerp(a, a0, 0.5)


def _fitted(share: Tensor, operand: Tensor) -> Tensor:
    """A gradient in the shape of an operand that was repeated or broadcast."""
    if share.ndim > 2 and operand.ndim > 2 and share.shape[-3] != operand.shape[-3] and operand.shape[-3] > 1:
        share = share.unflatten(-3, (operand.shape[-3], -1)).sum(-3)
    return share.sum_to_size(operand.shape).to(operand.dtype)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, rows: slice, causal: bool) -> Tensor:
    s = q[..., rows, :] @ k.transpose(-2, -1)
    if causal:
        allowed = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        s = s.masked_fill(~allowed[rows], float("-inf"))
    if mask is None:
        return s
    part = mask[..., rows, :] if mask.ndim > 1 and mask.shape[-2] > 1 else mask
    return s.masked_fill(~part, float("-inf")) if part.dtype == torch.bool else s + part


def beyond_masks(
    operands: list[Tensor],
    operands0: list[Tensor],
    masks: tuple[Tensor | None, Tensor | None],
    scale: float,
    causal: bool,
) -> Tensor:
    """What of attention's difference comes from masks that differ, and not from queries, keys and values."""
    q, k, v, mask, q0, k0, v0, mask0 = _prepared([*operands, masks[0], *operands0, masks[1]], scale)
    rows = slice(None)
    a, a0, mean = _weights(_scores(q, k, mask, rows, causal), _scores(q0, k0, mask0, rows, causal))
    change = _scores(q, k, None, rows, False) - _scores(q0, k0, None, rows, False)
    return ((a - a0 - through_softmax(change, mean, -1)) @ ((v + v0) / 2)).to(operands[0].dtype)


class _Selected(Function):
    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        value: Tensor,
        index: Tensor,
        index0: Tensor,
        part: Tensor,
        left: Tensor | None,
        change: Tensor,
        axes: tuple[int, int],
    ) -> Tensor:
        ctx.save_for_backward(index, index0, part, left, change)
        ctx.axes, ctx.shape, ctx.dtype = axes, a.shape, a.dtype
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        index, index0, part, left, change = ctx.saved_tensors
        start = ctx.axes[0]
        g = g.reshape(index.shape)
        flat = (
            g.new_zeros(change.shape).scatter_add_(start, index, g * part).scatter_add_(start, index0, g * (1 - part))
        )
        if left is not None:
            total = change.abs().sum(start, keepdim=True)
            flat += (g * left).sum(start, keepdim=True) * change.sign() / total.where(total > 0, 1)
        return flat.reshape(ctx.shape).to(ctx.dtype), *[None] * 7


def selected(
    a: tuple[Tensor, Tensor],
    value: tuple[Tensor, Tensor],
    index: tuple[Tensor, Tensor],
    axes: tuple[int, int],
    rest: bool = False,
) -> Tensor:
    """Values selected from ``a``, flattened over some axes, at an index. Each is given now and on the reference.

    A maximum's difference lies between those of its two winners, ``D y = t D_i + (1 - t) D_i0``: these are the parts
    that they get. For other selections (the second largest) it need not; what is left (``rest``) goes to all along the
    axis by the sizes of their changes.
    """
    start, stop = axes
    with torch.no_grad():
        change = (a[0] - a[1]).nan_to_num_(0.0, 0.0, 0.0)  # both may be minus infinity: a mask
        change = change.flatten(start, stop) if change.ndim else change.reshape(1)
        own, other = (change.gather(start, each) for each in index)
        wanted = (value[0] - value[1]).reshape(index[0].shape)
        apart = own - other
        part = ((wanted - other) / apart.where(apart != 0, 1)).clamp_(0, 1).masked_fill_(apart == 0, 0.5)
        left = (wanted - part * own - (1 - part) * other).nan_to_num_(0.0, 0.0, 0.0) if rest else None
    return _Selected.apply(a[0], value[0], *index, part, left, change, axes)


class _Moved(Function):
    @staticmethod
    def forward(ctx: Any, change: Tensor, places_last: bool, slopes: list[Tensor], *positions: Tensor) -> Tensor:
        ctx.save_for_backward(change, *slopes)
        ctx.last = places_last
        return torch.zeros_like(change)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        change, *slopes = ctx.saved_tensors
        amount = (g * change).sum(1)
        amount = amount.unsqueeze(-1 if ctx.last else 1)
        return None, None, None, *(amount * slope for slope in slopes)


def moved(positions: list[Tensor], slopes: list[Tensor], change: Tensor, places_last: bool) -> Tensor:
    """Zero, whose gradient goes to the positions that something was read at.

    What reading elsewhere changes, by the slopes.

    ``change`` is ``[B,C,...]``; positions have their axis of coordinates last (``[B,...,2]``) or in the place of the
    channels.
    """
    return _Moved.apply(change, places_last, slopes, *positions)
