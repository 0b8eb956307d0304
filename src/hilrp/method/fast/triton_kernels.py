"""The functions of `kernels`, each as one Triton kernel: what lies between a rule's products is bound by memory.

Numbers are those of the plain functions up to the last digits. Sums of constants' shares are added up in float64 by
atomic operations.
"""

# Triton reads the annotations of its kernels.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

_BLOCK = 1024
_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@triton.jit
def _of_one(at, period, size: tl.constexpr, repeats: tl.constexpr):
    """Where a program's places are in a tensor that holds one sample for all of them, each ``period`` places long."""
    if repeats:
        own = (tl.program_id(0).to(tl.int64) * size) % period + tl.arange(0, size)
        at = tl.where(own < period, own, own - period)
    return at


@triton.jit
def _quotient_of(held, m, share):
    d = tl.abs(held) + share * m
    return tl.where(d == 0, 0.0, held / d)


@triton.jit
def _quotient(held_p, m_p, out_p, share, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    held = tl.load(held_p + at, inside, 0.0).to(tl.float32)
    tl.store(out_p + at, _quotient_of(held, tl.load(m_p + at, inside, 0.0).to(tl.float32), share), inside)


@triton.jit
def _shares_of(g_p, ratio_p, direct_p, through_p, share, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    g = tl.load(g_p + at, inside, 0.0).to(tl.float32)
    ratio = tl.load(ratio_p + at, inside, 0.0).to(tl.float32)
    tl.store(direct_p + at, g * tl.abs(ratio), inside)
    tl.store(through_p + at, g * ratio * share, inside)


@triton.jit
def _shared_out(
    g_p, held_p, m_p, direct_p, through_p, bias_p, total_p, g_step, held_step, rows_per_sample, columns, share, scale,
    books: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(2)
    own = tl.program_id(0) * height + tl.arange(0, height)
    column = tl.program_id(1) * width + tl.arange(0, width)
    inside = (own < rows_per_sample)[:, None] & (column < columns)[None, :]
    row = (sample.to(tl.int64) * rows_per_sample + own)[:, None]
    g = tl.load(g_p + row * g_step + column[None, :], inside, 0.0).to(tl.float32)
    held = tl.load(held_p + row * held_step + column[None, :], inside, 0.0).to(tl.float32)
    at = row * columns + column[None, :]
    m = tl.load(m_p + at, inside, 0.0).to(tl.float32)
    ratio = _quotient_of(held, m, share)
    direct, through = g * tl.abs(ratio), g * ratio * share
    tl.store(direct_p + at, direct, inside)
    tl.store(through_p + at, through, inside)
    if books:
        bias = tl.load(bias_p + column, column < columns, 0.0).to(tl.float32)[None, :]
        kept = tl.sum(bias * direct + tl.abs(bias) * through)
        tl.atomic_add(total_p + sample, kept.to(tl.float64) * scale)


@triton.jit
def _size_and_sign(
    x_p, before_p, size_p, sign_p, count, period, differs: tl.constexpr, repeats: tl.constexpr, block: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    x = tl.load(x_p + at, inside, 0.0)
    if differs:
        at0 = _of_one(at, period, block, repeats)
        x = (x.to(tl.float32) - tl.load(before_p + at0, inside, 0.0).to(tl.float32)).to(x.dtype)
    tl.store(size_p + at, tl.abs(x), inside)
    tl.store(sign_p + at, ((x > 0).to(tl.int8) - (x < 0).to(tl.int8)), inside)


@triton.jit
def _with_sign(g_p, x_p, more_p, out_p, count, adds: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    x, g = tl.load(x_p + at, inside, 0), tl.load(g_p + at, inside, 0.0)
    g = tl.where(x > 0, g, tl.where(x < 0, -g, 0.0))
    if adds:
        g += tl.load(more_p + at, inside, 0.0)
    tl.store(out_p + at, g, inside)


@triton.jit
def _times_slope(g_p, y_p, a_p, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    y, a = tl.load(y_p + at, inside, 0.0).to(tl.float32), tl.load(a_p + at, inside, 0.0).to(tl.float32)
    slope = y / a
    finite = tl.abs(slope) < float("inf")
    tl.store(y_p + at, tl.where(finite, slope, 0.0) * tl.load(g_p + at, inside, 0.0).to(tl.float32), inside)


@triton.jit
def _slope(y_p, a_p, before_p, out_p, count, period, differs: tl.constexpr, repeats: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    y = tl.load(y_p + at, inside, 0.0).to(tl.float32)
    if differs:
        y -= tl.load(before_p + _of_one(at, period, block, repeats), inside, 0.0).to(tl.float32)
    slope = y / tl.load(a_p + at, inside, 0.0).to(tl.float32)
    tl.store(out_p + at, tl.where(tl.abs(slope) < float("inf"), slope, 0.0), inside)


@triton.jit
def _chord(
    y_p, y0_p, now_p, before_p, limit_p, out_p, fine, count, period,
    domain: tl.constexpr, repeats: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside, at0 = at < count, _of_one(at, period, block, repeats)
    now, before = tl.load(now_p + at, inside, 0.0), tl.load(before_p + at0, inside, 0.0)
    limit, change = tl.load(limit_p + at, inside, 0.0), now - before
    size = tl.abs(now + before) * 0.5
    if not domain:
        size = tl.maximum(size, 1.0)
    close = tl.where(fine > 0, tl.abs(change) < size * fine, change == 0)
    if domain:
        close = close & (tl.abs(limit) < float("inf"))
    slope = (tl.load(y_p + at, inside, 0.0) - tl.load(y0_p + at0, inside, 0.0)) / change
    slope = tl.where(close, limit, slope)
    tl.store(out_p + at, tl.where(tl.abs(slope) < float("inf"), slope, 0.0), inside)


@triton.jit
def _derivative(x, kind: tl.constexpr):
    """That of an activation of `kernels.ACTIVATIONS`."""
    if kind == 0:
        return tl.where(x > 0, 1.0, 0.0)
    if kind == 1:
        return tl.where((x > 0) & (x < 6), 1.0, 0.0)
    if kind == 2:
        return tl.where(x <= -3, 0.0, tl.where(x < 3, x / 3 + 0.5, 1.0))
    if kind == 3:
        s = 1 / (1 + tl.exp(-x))
        return s * (1 + x * (1 - s))
    if kind == 4:
        return 0.5 * (1 + tl.erf(x * 0.7071067811865476)) + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    t = 1 - 2 / (tl.exp(2 * inner) + 1)
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * x * x)


@triton.jit
def _activation(x, kind: tl.constexpr):
    """An activation of `kernels.ACTIVATIONS`."""
    if kind == 0:
        return tl.maximum(x, 0.0)
    if kind == 1:
        return tl.minimum(tl.maximum(x, 0.0), 6.0)
    if kind == 2:
        return x * tl.minimum(tl.maximum(x + 3, 0.0), 6.0) / 6
    if kind == 3:
        return x / (1 + tl.exp(-x))
    if kind == 4:
        return 0.5 * x * (1 + tl.erf(x * 0.7071067811865476))
    return 0.5 * x * (2 - 2 / (tl.exp(1.5957691216057308 * (x + 0.044715 * x * x * x)) + 1))


@triton.jit
def _slope_of(
    now_p, before_p, y_p, y0_p, out_p, fine, count, period,
    kind: tl.constexpr, reads: tl.constexpr, repeats: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside, at0 = at < count, _of_one(at, period, block, repeats)
    now = tl.load(now_p + at, inside, 0.0).to(tl.float32)
    before = tl.load(before_p + at0, inside, 0.0).to(tl.float32)
    change, middle = now - before, (now + before) * 0.5
    close = change == 0
    if kind > 1:
        close = tl.abs(change) < tl.maximum(tl.abs(middle), 1.0) * fine
    if reads:
        y, y0 = tl.load(y_p + at, inside, 0.0).to(tl.float32), tl.load(y0_p + at0, inside, 0.0).to(tl.float32)
    else:
        y, y0 = _activation(now, kind), _activation(before, kind)
    slope = (y - y0) / change
    slope = tl.where(close, _derivative(middle, kind), slope)
    tl.store(out_p + at, tl.where(tl.abs(slope) < float("inf"), slope, 0.0), inside)


@triton.jit
def _weights(s):
    """The softmax of rows of scores, and its logarithm; a row without a finite score has no weights."""
    top = tl.max(s, 1)[:, None]
    s -= tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp(s), 1)
    logs = s - tl.log(tl.where(total > 0, total, 1.0))[:, None]
    return tl.exp(logs), logs


@triton.jit
def _log_mean(a, a0, logs, logs0):
    """The logarithmic mean of two weights, given their logarithms; zero where neither is there."""
    # What is no number is kept out, not sorted out later: compilers take it that an exponential is one.
    r = tl.abs(tl.where(tl.maximum(a, a0) > 0, logs - logs0, 0.0))
    # (1 - exp(-r)) / r: near zero by its series, since there the difference would lose its digits.
    series = 1 - r / 2 * (1 - r / 3 * (1 - r / 4 * (1 - r / 5 * (1 - r / 6 * (1 - r / 7 * (1 - r / 8))))))
    return tl.where(r < 0.3, series, (1 - tl.exp(-r)) / r) * tl.maximum(a, a0)


@triton.jit
def _centred_by(g, mean):
    """``L (g - sum(L g) / sum(L))`` of rows."""
    total = tl.sum(mean, 1)
    centre = tl.sum(mean * g, 1) / tl.where(total > 0, total, 1.0)
    return mean * (g - centre[:, None])


@triton.jit
def _through_weights(
    g_p, s_p, s0_p, weights_p, rows, columns, period, repeats: tl.constexpr, height: tl.constexpr, width: tl.constexpr
):
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    at0 = _of_one(row, period, height, repeats).to(tl.int64)[:, None] * columns + column[None, :]
    a, logs = _weights(tl.load(s_p + at, inside, float("-inf")).to(tl.float32))
    a0, logs0 = _weights(tl.load(s0_p + at0, inside, float("-inf")).to(tl.float32))
    mean = tl.where(inside, _log_mean(a, a0, logs, logs0), 0.0)
    tl.store(g_p + at, _centred_by(tl.load(g_p + at, inside, 0.0).to(tl.float32), mean), inside)
    tl.store(weights_p + at, (a + a0) * 0.5, inside)


@triton.jit
def _mean_weights(
    s_p, s0_p, out_p, rows, columns, period, repeats: tl.constexpr, height: tl.constexpr, width: tl.constexpr
):
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    at0 = _of_one(row, period, height, repeats).to(tl.int64)[:, None] * columns + column[None, :]
    a, logs = _weights(tl.load(s_p + at, inside, float("-inf")).to(tl.float32))
    a0, logs0 = _weights(tl.load(s0_p + at0, inside, float("-inf")).to(tl.float32))
    tl.store(out_p + at, _log_mean(a, a0, logs, logs0), inside)


@triton.jit
def _through_softmax(
    g_p, mean_p, out_p, rows, columns, period, repeats: tl.constexpr, height: tl.constexpr, width: tl.constexpr
):
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    mean = tl.load(mean_p + at, inside, 0.0).to(tl.float32)
    tl.store(out_p + at, _centred_by(tl.load(g_p + at, inside, 0.0).to(tl.float32), mean), inside)


@triton.jit
def _centred(x, inside, columns, eps, centre: tl.constexpr):
    if centre:
        x = tl.where(inside, x - (tl.sum(x, 1) / columns)[:, None], 0.0)
    return x, tl.sqrt(tl.sum(x * x, 1) / columns + eps)[:, None]


@triton.jit
def _through_norm(
    g_p, x_p, x0_p, scale_p, out_p, rows, columns, period, eps,
    scaled: tl.constexpr, centre: tl.constexpr, repeats: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    at0 = _of_one(row, period, height, repeats).to(tl.int64)[:, None] * columns + column[None, :]
    c, s = _centred(tl.load(x_p + at, inside, 0.0).to(tl.float32), inside, columns, eps, centre)
    c0, s0 = _centred(tl.load(x0_p + at0, inside, 0.0).to(tl.float32), inside, columns, eps, centre)
    inverse = 2 / (s + s0)
    h = tl.load(g_p + at, inside, 0.0).to(tl.float32) * inverse
    if scaled:
        h *= tl.load(scale_p + column, column < columns, 0.0).to(tl.float32)[None, :]
    change = (tl.sum(h * (c / s + c0 / s0) * 0.5, 1) / columns)[:, None] * inverse
    h -= (c + c0) * 0.5 * change
    if centre:
        h -= (tl.sum(h, 1) / columns)[:, None]
    tl.store(out_p + at, h, inside)


@triton.jit
def _change_of_norm(
    x_p, x0_p, scale_p, out_p, rows, columns, period, eps,
    scaled: tl.constexpr, centre: tl.constexpr, repeats: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    at0 = _of_one(row, period, height, repeats).to(tl.int64)[:, None] * columns + column[None, :]
    c, s = _centred(tl.load(x_p + at, inside, 0.0).to(tl.float32), inside, columns, eps, centre)
    c0, s0 = _centred(tl.load(x0_p + at0, inside, 0.0).to(tl.float32), inside, columns, eps, centre)
    change = c / s - c0 / s0
    if scaled:
        change *= tl.load(scale_p + column, column < columns, 0.0).to(tl.float32)[None, :]
    tl.store(out_p + at, change, inside)


@triton.jit
def _bounded_shares(g_p, left_p, direct_p, through_p, bound, count, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = at < count
    left, g = tl.load(left_p + at, inside, 0.0).to(tl.float32), tl.load(g_p + at, inside, 0.0).to(tl.float32)
    size = tl.abs(left)
    cut = tl.minimum(size, 1 / bound)
    aside = g * tl.maximum(1 - bound * size, 0.0) / (1 - cut * cut)
    tl.store(direct_p + at, g - aside, inside)
    tl.store(through_p + at, left * aside, inside)


@triton.jit
def _normalised_back(
    g_p, inverse_p, scale_p, out_p, rows, columns,
    scaled: tl.constexpr, centre: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * height + tl.arange(0, height), tl.arange(0, width)
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    at = row.to(tl.int64)[:, None] * columns + column[None, :]
    h = tl.load(g_p + at, inside, 0.0).to(tl.float32)
    if scaled:
        h *= tl.load(scale_p + column, column < columns, 0.0).to(tl.float32)[None, :]
    h *= tl.load(inverse_p + row, row < rows, 0.0).to(tl.float32)[:, None]
    if centre:
        h -= (tl.sum(h, 1) / columns)[:, None]
    tl.store(out_p + at, h, inside)


@triton.jit
def _add_shares(
    g_p, c_p, total_p, g_step, rows_per_sample, columns, period, scale,
    by_row: tl.constexpr, steps: tl.constexpr, height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(2)
    column = tl.program_id(1) * width + tl.arange(0, width)
    kept = tl.zeros([height, width], tl.float32)
    for step in range(steps):
        own = (tl.program_id(0) * steps + step) * height + tl.arange(0, height)
        inside = (own < rows_per_sample)[:, None] & (column < columns)[None, :]
        row = sample.to(tl.int64) * rows_per_sample + own
        g = tl.load(g_p + row[:, None] * g_step + column[None, :], inside, 0.0).to(tl.float32)
        if by_row:
            g *= tl.load(c_p + row % period, own < rows_per_sample, 0.0).to(tl.float32)[:, None]
        kept += g
    if not by_row:
        kept *= tl.load(c_p + column, column < columns, 0.0).to(tl.float32)[None, :]
    tl.atomic_add(total_p + sample, tl.sum(kept).to(tl.float64) * scale)


def takes(first: Tensor, *others: Tensor, before: tuple[Tensor, ...] = ()) -> bool:
    """Whether kernels over single values take these: one type, one dense layout.

    Those on the reference (``before``) may be one sample for all of them.
    """
    strides = first.stride()
    alike = [(t, t.stride() == strides) for t in others]
    one = len({t.stride() for t in before}) <= 1  # all of them, or none
    alike += [(t, one and (t.stride() == strides or _repeats(t, first))) for t in before]
    return (
        first.dtype in _TYPES
        and all(t.dtype == first.dtype and t.shape == first.shape and same for t, same in alike)
        and (first.is_contiguous() or (first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last)))
    )


def _repeats(before: Tensor, first: Tensor) -> bool:
    """Whether a tensor is one sample for all of those of another, and large enough for programs to begin within it."""
    strides = first.stride()
    return before.ndim > 1 and before.stride() == (0, *strides[1:]) and strides[0] >= 2 * _BLOCK and len(first) > 1


def _period(before: Tensor | None, columns: int = 1) -> tuple[int, bool]:
    """After how many places (or rows) a tensor repeats itself, and whether it does."""
    repeats = before is not None and before.ndim > 1 and before.stride(0) == 0 and len(before) > 1
    return (before[0].numel() // columns, True) if before is not None and repeats else (1, False)


def quotient(held: Tensor, m: Tensor, share: float) -> Tensor:
    """See `kernels.quotient`."""
    out = torch.empty_like(held)
    _quotient[_grid(out)](held, m, out, share, out.numel(), _BLOCK)
    return out


def shares_of(g: Tensor, ratio: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """See `kernels.shares_of`."""
    direct, through = torch.empty_like(g), torch.empty_like(g)
    _shares_of[_grid(g)](g, ratio, direct, through, share, g.numel(), _BLOCK)
    return direct, through


def shared_out(
    g: Tensor, held: Tensor, m: Tensor, share: float, bias: Tensor | None, total: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """See `kernels.shared_out`: of matrices whose rows may be parts of longer ones.

    What a bias keeps is added to the totals of samples.

    The first result takes the place of ``m``.
    """
    rows, columns = m.shape
    through, samples = torch.empty_like(m), 1 if total is None else len(total)
    width, height = _tile(columns)
    books = bias is not None and total is not None
    grid = (triton.cdiv(rows // samples, height), triton.cdiv(columns, width), samples)
    _shared_out[grid](
        g, held, m, m, through, bias if books else m, total if books else m, g.stride(0), held.stride(0),
        rows // samples, columns, share, scale, books, height, width,
    )  # fmt: skip
    return m, through


def size_and_sign(x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """See `kernels.size_and_sign`."""
    size, sign = torch.empty_like(x), torch.empty_like(x, dtype=torch.int8)
    differs = before is not None
    period, repeats = _period(before)
    _size_and_sign[_grid(x)](x, before if differs else x, size, sign, x.numel(), period, differs, repeats, _BLOCK)
    return size, sign


def with_sign(g: Tensor, x: Tensor, more: Tensor | None) -> Tensor:
    """See `kernels.with_sign`."""
    _with_sign[_grid(g)](g, x, g if more is None else more, g, g.numel(), more is not None, _BLOCK)
    return g


def times_slope(g: Tensor, y: Tensor, a: Tensor) -> Tensor:
    """See `kernels.times_slope`."""
    _times_slope[_grid(y)](g, y, a, y.numel(), _BLOCK)
    return y


def slope(y: Tensor, a: Tensor, before: Tensor | None = None) -> Tensor:
    """See `kernels.slope`."""
    out, differs = torch.empty_like(y), before is not None
    period, repeats = _period(before)
    _slope[_grid(y)](y, a, before if differs else y, out, y.numel(), period, differs, repeats, _BLOCK)
    return out


def chord(y: Tensor, y0: Tensor, now: Tensor, before: Tensor, limit: Tensor, fine: float, domain: bool) -> Tensor:
    """See `kernels.chord`."""
    out, (period, repeats) = torch.empty_like(y), _period(before)
    _chord[_grid(y)](y, y0, now, before, limit, out, fine, y.numel(), period, domain, repeats, _BLOCK)
    return out


def slope_of(kind: int, now: Tensor, before: Tensor, y: Tensor, y0: Tensor) -> Tensor:
    """See `kernels.slope_of`.

    Computing values once more is quicker than reading them; in half precision these are rounded, and have to be read.
    """
    out, reads = torch.empty_like(y, dtype=torch.float32), y.dtype != torch.float32
    fine, (period, repeats) = torch.finfo(out.dtype).eps ** 0.8, _period(before)
    _slope_of[_grid(y)](now, before, y, y0, out, fine, y.numel(), period, kind, reads, repeats, _BLOCK)
    return out


def through_weights(g: Tensor, s: Tensor, s0: Tensor) -> tuple[Tensor, Tensor]:
    """See `kernels.through_weights`; the results take the places of ``g`` and ``s``."""
    _by_rows(_through_weights, s0, g, s, s0, s)
    return g, s


def mean_weights(s: Tensor, s0: Tensor) -> Tensor:
    """See `kernels.mean_weights`."""
    return _by_rows(_mean_weights, s0, s, s0, torch.empty_like(s))


def through_softmax(g: Tensor, mean: Tensor) -> Tensor:
    """See `kernels.through_softmax`."""
    return _by_rows(_through_softmax, None, g, mean, torch.empty_like(g))


def _by_rows(kernel: triton.JITFunction, before: Tensor | None, *operands: Tensor) -> Tensor:
    """Runs a kernel over rows that it takes as a whole, and returns the last of what it is given.

    ``before`` is the one of them that may be one sample for all.
    """
    columns = operands[-1].shape[-1]
    rows = operands[-1].numel() // columns
    height, width = _rows(columns)
    kernel[(triton.cdiv(rows, height),)](*operands, rows, columns, *_period(before, columns), height, width)
    return operands[-1]


def through_norm(g: Tensor, x: Tensor, x0: Tensor, scale: Tensor | None, centre: bool, eps: float) -> Tensor:
    """See `kernels.through_norm`."""
    return _over_rows(_through_norm, torch.empty_like(g), (g, x, x0), scale, centre, eps)


def change_of_norm(x: Tensor, x0: Tensor, scale: Tensor | None, centre: bool, eps: float) -> Tensor:
    """See `kernels.change_of_norm`."""
    return _over_rows(_change_of_norm, torch.empty_like(x), (x, x0), scale, centre, eps)


def _over_rows(
    kernel: triton.JITFunction,
    out: Tensor,
    operands: tuple[Tensor, ...],
    scale: Tensor | None,
    centre: bool,
    eps: float,
) -> Tensor:
    """Runs a kernel that takes rows as a whole; the last operand may be one sample for all."""
    columns = out.shape[-1]
    rows, (period, repeats) = out.numel() // columns, _period(operands[-1], columns)
    height, width = _rows(columns)
    own, grid = operands[0] if scale is None else scale, (triton.cdiv(rows, height),)
    kernel[grid](*operands, own, out, rows, columns, period, eps, scale is not None, centre, repeats, height, width)
    return out


def bounded_shares(g: Tensor, left: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """See `kernels.bounded_shares`."""
    direct, through = torch.empty_like(g), torch.empty_like(g)
    _bounded_shares[_grid(g)](g, left, direct, through, bound, g.numel(), _BLOCK)
    return direct, through


def normalised_back(g: Tensor, inverse: Tensor, scale: Tensor | None, centre: bool) -> Tensor:
    """See `kernels.normalised_back`, for a norm over the last axis."""
    columns = g.shape[-1]
    rows, out = g.numel() // columns, torch.empty_like(g)
    height, width = _rows(columns)
    _normalised_back[(triton.cdiv(rows, height),)](
        g, inverse, inverse if scale is None else scale, out, rows, columns, scale is not None, centre, height, width
    )
    return out


def add_shares(total: Tensor, c: Tensor, g: Tensor, by_row: bool, scale: float) -> None:
    """Adds ``scale sum(c g)`` of each sample to its total.

    ``g`` is a matrix, the rows of which belong to the samples in turn. ``c`` has a value for each column, or
    (``by_row``) one for each row, again and again.
    """
    rows, columns = g.shape
    width, height = _tile(columns)
    rows //= len(total)
    steps = min(8, triton.next_power_of_2(triton.cdiv(rows, height)))
    grid = (triton.cdiv(rows, height * steps), triton.cdiv(columns, width), len(total))
    _add_shares[grid](g, c, total, g.stride(0), rows, columns, len(c), scale, by_row, steps, height, width)


def _tile(columns: int) -> tuple[int, int]:
    """Width and height of what a program takes of a matrix at once."""
    width = min(256, triton.next_power_of_2(columns))
    return width, 2048 // width


def _rows(columns: int) -> tuple[int, int]:
    """Height and width of what a program takes of a matrix whose rows it needs as a whole."""
    width = triton.next_power_of_2(columns)
    return max(1, 2048 // width), width


def _grid(t: Tensor) -> tuple[int]:
    return (triton.cdiv(t.numel(), _BLOCK),)
