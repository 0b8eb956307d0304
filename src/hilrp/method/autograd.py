"""The few backward passes that torch doesn't have: everything else in this package is native autograd.

Relevance is Gradient x Input: a tensor ``y`` with gradient ``g`` holds the relevance ``y * g``. A rule is
therefore a choice of backward pass. Each function here returns its value untouched, bit for bit, and
changes only what flows back. (Values are passed on with ``detach``, which keeps the strides; ``view_as`` need not,
and kernels are chosen by strides.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks

from hilrp.method.fast import kernels


class _Linearised(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, slope: Tensor | float) -> Tensor:
        ctx.dtype = x.dtype
        ctx.number = None if isinstance(slope, Tensor) else slope
        if isinstance(slope, Tensor):
            ctx.save_for_backward(slope)
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        slope = ctx.saved_tensors[0] if ctx.number is None else ctx.number
        if isinstance(slope, Tensor) and slope.is_complex():
            slope = slope.conj()
        return (g if ctx.number == 1 else g * slope).to(ctx.dtype), None, None


def linearised(x: Tensor, value: Tensor, slope: Tensor | float = 1.0) -> Tensor:
    """``value``, taken for ``slope * x`` plus a constant: ``x`` gets ``slope`` times the gradient.

    ``slope`` broadcasts against ``value``, which has the shape of ``x``.
    """
    return _Linearised.apply(x, value, slope) if x.requires_grad else value


def scale_gradient(y: Tensor, factor: float) -> Tensor:
    """``y``, with ``factor`` times the gradient."""
    return y if factor == 1 else linearised(y, y, factor)


def secant(a: Tensor, y: Tensor, origin: Tensor | None = None) -> Tensor:
    """An elementwise ``y = f(a)`` as the straight line from ``(0, f(0))`` to ``(a, f(a))``.

    ``y = f(0) + a * ((f(a) - f(0)) / a)`` with the slope held fixed. For ``f(0) = 0`` this is the identity
    rule: all relevance of ``y`` goes to ``a``; otherwise the constant ``f(0)`` keeps its share.
    """
    with torch.no_grad():
        slope = kernels.slope(y if origin is None else y - origin, a)
    return linearised(a, y, slope)


class _ThroughOrigin(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(a)
        ctx.activation = f
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        (a,) = ctx.saved_tensors
        return kernels.times_slope(g, ctx.activation(a), a), None, None


def through_origin(a: Tensor, y: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
    """`secant` of a ``f`` with ``f(0) = 0``, which runs again in the backward pass.

    What it keeps is ``a``, which the layer before may keep, too.
    """
    return _ThroughOrigin.apply(a, y, f)


def hand_over(y: Tensor, d: Tensor, stabiliser: float) -> Tensor:
    """``y``, whose relevance is handed to another sum ``d``: ``g_d = g y / (d + sign(d) stabiliser)``.

    The stabiliser keeps ``stabiliser / (|d| + stabiliser)`` of it.
    """
    with torch.no_grad():
        slope = (y / (d + torch.copysign(d.new_full((), stabiliser), d))).nan_to_num_(0.0, 0.0, 0.0)
    return linearised(d, y, slope)


class _Redistribute(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, m: Tensor, weight: float, change: Tensor | None) -> Tensor:
        held = y if change is None else change
        ctx.save_for_backward(kernels.quotient(held, m, weight))
        ctx.weight = weight
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        (ratio,) = ctx.saved_tensors
        return *kernels.shares_of(g, ratio, ctx.weight), None, None


def redistribute(y: Tensor, m: Tensor, weight: float, change: Tensor | None = None) -> Tensor:
    """``y``, whose relevance is handed to the two products ``y`` and ``m >= |y|`` that explain it.

    With ``s = sign(y)``, ``d = y + s weight m`` and ``t = g y / d``, the products get the gradients ``t`` and
    ``s weight t``, so that ``y t + m (s weight t) = d t = y g``: what comes in goes out. Since ``|d| >= |y|``, the
    quotient is at most one; where both are zero, nothing flows. Where relevance is that of a ``change`` of ``y``, that
    takes the place of ``y``, and ``m`` is the sum of the sizes of its parts.
    """
    return _Redistribute.apply(y, m, weight, change)


class _Bounded(Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, m: Tensor, bound: Callable[[], float], change: Tensor | None) -> Tensor:
        held = y if change is None else change
        ctx.save_for_backward(kernels.slope(held, m))
        ctx.bound = bound
        return y.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        bound = ctx.bound()
        if bound == float("inf"):
            return g, None, None, None
        (left,) = ctx.saved_tensors
        return *kernels.bounded_shares(g, left, bound), None, None


def live_layers(node: Any) -> set[int]:
    """The numbers of the bounded layers that a node of the graph leads to."""
    found: set[int] = set()
    for each in graph_nodes(node):
        place = getattr(getattr(each, "bound", None), "place", None)
        if place is not None:
            found.add(place.number)
    return found


def graph_nodes(node: Any) -> Iterator[Any]:
    """The nodes of torch's graph that one leads to, itself among them."""
    seen, queue = set(), [node]
    while queue:
        each = queue.pop()
        if each is not None and each not in seen:
            seen.add(each)
            yield each
            queue += [parent for parent, _ in each.next_functions]


def bounded(y: Tensor, m: Tensor, bound: Callable[[], float], change: Tensor | None = None) -> Tensor:
    """`redistribute` with the `kernels.least_weight` of each unit, under a bound known in the backward pass."""
    return _Bounded.apply(y, m, bound, change)


class Signs(NamedTuple):
    """Where the signs of values come from in the backward pass.

    Bytes, values that are kept anyway, or a function of such.
    """

    kept: Tensor
    f: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def known(cls, x: Tensor) -> Signs | None:
        """Those of a tensor that can be had from what the graph keeps.

        The output of a layer that waits, or of an activation.
        """
        node = (x if x._base is None else x._base).grad_fn
        if getattr(node, "keeps_output", False):
            return cls(x.detach())
        activation = getattr(node, "activation", None)
        # A processor would take longer to compute it again than to keep it.
        if x._base is None and activation is not None and x.is_cuda:
            return cls(node.saved_tensors[0].detach(), activation)  # type: ignore[union-attr]
        return None

    def read(self) -> Tensor:
        """Values with these signs."""
        return self.kept if self.f is None else self.f(self.kept)


class _Magnitude(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, origin: Tensor | None, signs: Signs | None) -> Tensor:
        change = x if origin is None else x - origin
        if signs is None:
            # A byte for each sign; torch's own backward pass would keep the values.
            size, sign = kernels.size_and_sign(change)
            signs = Signs(sign)
        else:
            size = change.abs()
        ctx.save_for_backward(signs.kept)
        ctx.f = signs.f
        return size

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return kernels.with_sign(g, Signs(ctx.saved_tensors[0], ctx.f).read()), None, None


def magnitude(x: Tensor, origin: Tensor | None = None) -> Tensor:
    """The sizes of values, or of what they are more than an origin."""
    if x.is_complex() or not x.requires_grad:
        return (x if origin is None else x - origin).abs()
    return _Magnitude.apply(x, origin, None if origin is not None else Signs.known(x))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Within, the graph keeps the shapes of tensors that carry relevance, and not their values.

    For maps that are linear in them: the backward pass needs no more, but that of torch's convolutions keeps the values
    as well. Only the map itself may run within: what an absolute value or a clamp keeps is needed.
    """
    hooks = saved_tensors_hooks(_kept, _restored)
    try:
        hooks.__enter__()
    except RuntimeError:  # the caller has forbidden such hooks
        yield
        return
    try:
        yield
    finally:
        hooks.__exit__()


def _kept(t: Tensor) -> tuple[Any, ...]:
    return (t.shape, t.stride(), t.dtype, t.device) if t.requires_grad else (t, t._version)


def _restored(kept: tuple[Any, ...]) -> Tensor:
    if isinstance(kept[0], Tensor):
        constant, version = kept
        if constant._version != version:  # torch's own check doesn't see what hooks keep
            raise RuntimeError(
                f"a weight of the shape {tuple(constant.shape)} that is needed for the backward pass was modified by "
                "an in-place operation"
            )
        return constant
    shape, stride, dtype, device = kept
    return torch.empty_strided(shape, stride, dtype=dtype, device=device)


def standardised(x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """``(x - mean) / std`` over the last axis, the mean, and ``1 / std``, in one pass.

    On a CPU torch's ``var`` takes ten times as long.
    """
    normal, mean, inverse = torch.native_layer_norm(x, x.shape[-1:], None, None, eps)
    return normal, mean, inverse


class _Normalise(Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, value: Tensor, inverse: Tensor, groups: tuple[int, ...], scale: Tensor | None, centre: bool
    ) -> Tensor:
        ctx.save_for_backward(inverse, scale)
        ctx.groups, ctx.centre, ctx.dtype = groups, centre, x.dtype
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        inverse, scale = ctx.saved_tensors
        back = kernels.normalised_back(g, inverse, scale, ctx.groups, ctx.centre)
        return back.to(ctx.dtype), None, None, None, None, None


def normalise(
    x: Tensor, value: Tensor, inverse: Tensor, groups: tuple[int, ...], scale: Tensor | None, centre: bool
) -> Tensor:
    """``(x - mean) inverse scale`` over the last axis of ``x.reshape(groups)``, with the divisor held fixed.

    The mean stays: it is a linear map. ``centre=False`` is the root-mean-square form.
    """
    return _Normalise.apply(x, value, inverse, groups, scale, centre)


def inverse_deviation(x: Tensor, groups: tuple[int, ...], centre: bool, eps: float) -> Tensor:
    """``1 / std`` over the last axis of ``x.reshape(groups)``, or one over the root of the mean square."""
    with torch.no_grad():
        grouped = x.reshape(groups)
        wide = grouped if grouped.dtype in (torch.float32, torch.float64) else grouped.float()
        return standardised(wide, eps)[2] if centre else (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
