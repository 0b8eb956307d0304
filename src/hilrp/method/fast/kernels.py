"""What is computed value by value between the products of a rule.

Each function is written in torch; on a GPU that has Triton, `triton_kernels` runs it as one kernel. ``HILRP_FUSED=0``
in the environment turns that off.
"""

from __future__ import annotations

import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hilrp.method.linear import least_aside
from hilrp.util.batched import is_batched
from hilrp.util.pieces import in_pieces

if TYPE_CHECKING:
    from hilrp.method.call import Call
    from hilrp.method.ledger import Account
    from hilrp.method.normalisation import Norm


def quotient(held: Tensor, m: Tensor, share: float) -> Tensor:
    """``held / (|held| + share m)``: with the sign of ``held``, what of it is left in ``held + sign(held) share m``.

    Zero where both are.
    """
    if (fused := _fused(held, m)) is not None:
        return fused.quotient(held, m, share)
    # One buffer, and few passes over it: these tensors are as large as the layers' outputs.
    d = held.abs().add_(m, alpha=share)
    return torch.div(held, d, out=d).nan_to_num_(0.0, 0.0, 0.0)


def shares_of(g: Tensor, ratio: Tensor, share: float) -> tuple[Tensor, Tensor]:
    """The gradients of the two products, ``t = g |ratio|`` and ``sign(ratio) share t``."""
    if (fused := _fused(g, ratio)) is not None:
        return fused.shares_of(g, ratio, share)
    if is_batched(g):
        return g * ratio.abs(), g * (ratio * share)
    through = torch.mul(g, ratio)
    return torch.copysign(through, g), through.mul_(share)


def shared_out(
    g: Tensor, held: Tensor, m: Tensor, share: float, bias: Tensor | None, book: Account
) -> tuple[Tensor, Tensor]:
    """The same without a quotient that was kept; what a bias, which is part of ``held``, keeps is booked."""
    rows = held.dtype == g.dtype == m.dtype and held.stride(-1) == g.stride(-1) == 1 and m.is_contiguous()
    fused = _fused(m) if rows and not is_batched(g) and (bias is None or bias.ndim == 1) else None
    if fused is None:
        direct, through = shares_of(g, quotient(held, m, share), share)
        total = None
    else:
        total = None if bias is None else book.total(g)
        total = None if total is None or len(total) > _MOST_SAMPLES else total
        matrices, own = [t.flatten(0, -2) for t in (g, held, m)], None if bias is None else bias.contiguous()
        direct, through = (t.view(m.shape) for t in fused.shared_out(*matrices, share, own, total, book.scale))
    if bias is not None and total is None:
        book(bias, direct)
        book(bias.abs(), through)
    return direct, through


def bounded_shares(g: Tensor, left: Tensor, bound: float) -> tuple[Tensor, Tensor]:
    """The gradients of the two products, of which the second gets the `least_aside` of each unit.

    ``left`` has the sign of what is shared out.
    """
    if (fused := _fused(g, left)) is not None:
        return fused.bounded_shares(g, left, bound)
    if is_batched(g):  # what all have in common is computed once
        aside = least_aside(left.abs(), bound)
        return g * (1 - aside), g * (left * aside)
    direct, through = torch.empty_like(g), torch.empty_like(g)
    for own, part, to_direct, to_through in in_pieces(g, left, direct, through):
        aside = least_aside(part.abs(), bound).mul_(own)
        torch.sub(own, aside, out=to_direct)
        torch.mul(part, aside, out=to_through)
    return direct, through


def size_and_sign(x: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """``|x|``, and the sign as a byte; of what ``x`` is more than ``before``, where that is given."""
    if (fused := _fused(x, before=() if before is None else (before,))) is not None:
        return fused.size_and_sign(x, before)
    x = x if before is None else x - before
    return x.abs(), x.sign().to(torch.int8)


def with_sign(g: Tensor, x: Tensor, more: Tensor | None = None) -> Tensor:
    """``g sign(x)``, and what is to be added, in the memory of ``g``; ``x`` may be its sign."""
    if g.stride() == x.stride() and (fused := _fused(g) if more is None else _fused(g, more)) is not None:
        return fused.with_sign(g, x, more)
    found = g.mul_(x if x.dtype == torch.int8 else x.sign())
    return found if more is None else found.add_(more)


def slope(y: Tensor, a: Tensor, before: Tensor | None = None) -> Tensor:
    """``y / a``, or ``(y - before) / a``; zero where that isn't finite."""
    if (fused := _fused(y, a, before=() if before is None else (before,))) is not None:
        return fused.slope(y, a, before)
    return torch.div(y if before is None else y - before, a).nan_to_num_(0.0, 0.0, 0.0)


def chord(
    y: Tensor, y0: Tensor, now: Tensor, before: Tensor, limit: Tensor, fine: float, domain: bool
) -> Tensor | None:
    """`secant.elementwise.chord` as one kernel."""
    fused = _fused(y, now, limit, before=(y0, before)) if y.dtype == torch.float32 else None
    return None if fused is None else fused.chord(y, y0, now, before, limit, fine, domain)


def through_weights(g: Tensor, s: Tensor, s0: Tensor) -> tuple[Tensor, Tensor] | None:
    """`secant.functions.through_weights` as one kernel."""
    s0 = s0.expand_as(s)
    takes = g.dtype == torch.float32 and 0 < g.shape[-1] <= _WIDEST and g.is_contiguous()
    fused = _fused(g, s, before=(s0,)) if takes else None
    return None if fused is None else fused.through_weights(g, s, s0)


def mean_weights(s: Tensor, s0: Tensor, value: Tensor, value0: Tensor, dim: int) -> Tensor | None:
    """`secant.functions.mean_weights` as one kernel, over the last axis."""
    fused = _over_last(s, dim) and _fused(s, value, before=(s0,))
    return fused.mean_weights(s, s0) if fused else None


def through_softmax(g: Tensor, mean: Tensor, dim: int) -> Tensor | None:
    """`secant.functions.through_softmax` as one kernel, over the last axis."""
    fused = _over_last(g, dim) and _fused(g, mean)
    return fused.through_softmax(g, mean) if fused else None


def _over_last(t: Tensor, dim: int) -> bool:
    """Whether an axis is the last one, and short enough to be taken as a whole."""
    return t.ndim > 0 and dim % t.ndim == t.ndim - 1 and 0 < t.shape[-1] <= _WIDEST and t.is_contiguous()


def slope_of(call: Call, a: Tensor, operands: tuple[Tensor, ...]) -> Tensor | None:
    """`secant.elementwise.slope_of` of common activations as one kernel, their derivatives included."""
    name = f"gelu {call.argument(1, 'approximate', 'none')}" if call.name == "gelu" else call.name
    now, before, y, y0 = operands
    fused = _fused(now, y, before=(before, y0)) if name in ACTIVATIONS else None
    return None if fused is None else fused.slope_of(ACTIVATIONS.index(name), *operands)


#: Activations whose slopes a kernel computes; it knows them by number.
ACTIVATIONS = ("relu", "relu6", "hardswish", "silu", "gelu none", "gelu tanh")


def through_norm(g: Tensor, x: Tensor, x0: Tensor, norm: Norm) -> Tensor | None:
    """`secant.functions.through_norm` as one kernel, for norms over the last axis."""
    over_last = norm.groups == (-1, g.shape[-1]) and g.shape[-1] <= _WIDEST and g.is_contiguous()
    fused = _fused(g, x, before=(x0,)) if over_last else None
    if fused is None:
        return None
    scale = None if norm.scale is None else norm.scale.contiguous()
    return fused.through_norm(g, x, x0, scale, norm.centre, norm.eps)


def change_of_norm(x: Tensor, x0: Tensor, norm: Norm) -> Tensor:
    """How much more a norm over the last axis gives on ``x`` than on ``x0``."""
    scale = None if norm.scale is None else norm.scale.contiguous()
    if (fused := _fused(x, before=(x0,)) if x.shape[-1] <= _WIDEST else None) is not None:
        return fused.change_of_norm(x, x0, scale, norm.centre, norm.eps)
    change = standard(x, norm.centre, norm.eps) - standard(x0, norm.centre, norm.eps)
    return (change if scale is None else change * scale).to(x.dtype)


def standard(x: Tensor, centre: bool, eps: float) -> Tensor:
    """A norm over the last axis, without scale and shift."""
    if centre:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps)
    return torch.nn.functional.rms_norm(x, x.shape[-1:], eps=eps)


def times_slope(g: Tensor, y: Tensor, a: Tensor) -> Tensor:
    """``g y / a``, in the memory of ``y``."""
    if (fused := _fused(y, a, g)) is not None:
        return fused.times_slope(g, y, a)
    slope = y.div_(a).nan_to_num_(0.0, 0.0, 0.0)
    return slope * g if is_batched(g) else slope.mul_(g)


def normalised_back(g: Tensor, inverse: Tensor, scale: Tensor | None, groups: tuple[int, ...], centre: bool) -> Tensor:
    """``h = g scale inverse``, less its mean over the last axis of ``groups`` where that was taken off."""
    over_last = groups == (-1, g.shape[-1]) and g.shape[-1] <= _WIDEST and g.is_contiguous()
    if over_last and (fused := _fused(g)) is not None:
        return fused.normalised_back(g, inverse, None if scale is None else scale.contiguous(), centre)
    h = g if scale is None else g * scale
    h = h.reshape(groups) * inverse
    if centre:
        h -= h.mean(-1, keepdim=True)
    return h.reshape(g.shape)


def add_shares(total: Tensor, c: Tensor, g: Tensor, scale: float) -> bool:
    """Adds ``scale sum(c g)`` of each sample to its total, if that can be done in one go.

    The samples of ``g`` are one after the other; ``c`` broadcasts against it, and differs along the last axis or the
    second alone.
    """
    fused = _fused(g) if g.ndim > 1 else None
    if fused is None or g.shape[0] % len(total) or len(total) > _MOST_SAMPLES:
        return False
    own = [i for i, size in enumerate(c.shape, g.ndim - c.ndim) if size > 1]
    if g.ndim == 4 and not g.is_contiguous() and own in ([], [1]):
        g, own = g.permute(0, 2, 3, 1), [3] if own else []
    if not g.is_contiguous() or own not in ([], [1], [g.ndim - 1]):
        return False
    by_row = own != [g.ndim - 1]
    matrix = g.flatten(2).flatten(0, 1) if by_row and g.ndim > 2 else g.flatten(0, -2)
    fused.add_shares(total, c.contiguous().flatten(), matrix, by_row, scale)
    return True


#: How many programs there may be along the third axis of a grid.
_MOST_SAMPLES = 65535
#: The longest rows that a kernel takes as a whole.
_WIDEST = 8192


def _fused(*operands: Tensor, before: tuple[Tensor, ...] = ()) -> ModuleType | None:
    """The kernels, if there are any for these operands; those of the reference may be one sample for all."""
    module = _triton() if operands[0].is_cuda and not is_batched(*operands) else None
    return module if module is not None and module.takes(*operands, before=before) else None


@cache
def _triton() -> ModuleType | None:
    if os.environ.get("HILRP_FUSED") == "0":
        return None
    try:
        from hilrp.method.fast import triton_kernels
    except ImportError:
        return None
    return triton_kernels
