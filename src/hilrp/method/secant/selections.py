"""Maxima, orders and choices relative to a reference, which makes its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hilrp.method.autograd import linearised
from hilrp.method.call import Call
from hilrp.method.secant import functions
from hilrp.method.secant.affine import affine
from hilrp.method.secant.elementwise import elementwise
from hilrp.method.secant.shares import along, shared, sized
from hilrp.method.table import no_form


def pool(call: Call) -> Any:
    """Max-pooling: the winner on the input and the winner on the reference share."""
    a = call.argument(0, "input")
    dims = int(call.name[call.name.index("pool") + 4])
    base = f"adaptive_max_pool{dims}d" if call.name.startswith("adaptive") else f"max_pool{dims}d"
    function = getattr(torch.nn.functional, base)
    names = (
        ("output_size",)
        if call.name.startswith("adaptive")
        else ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    )
    options = dict(zip(names, call.args[1:], strict=False)) | {k: v for k, v in call.kwargs.items() if k in names}
    if options.get("stride") == []:
        options.pop("stride")
    axes = (a.ndim - dims, a.ndim - 1)
    with torch.no_grad():
        index, index0 = (function(t, **options, return_indices=True)[1].flatten(*axes) for t in (a, call.before(a)))
    return _winners(call, (a, call.before(a)), (index, index0), axes)


def _winners(call: Call, a: tuple[Tensor, Tensor], index: tuple[Tensor, Tensor], axes: tuple[int, int]) -> Any:
    """The values at two indices; of an operation that returns indices, too, with those of the input."""
    value, before = call.value(), call.output_before
    if isinstance(value, Tensor):
        return functions.selected(a, (value, before), index, axes)
    out = functions.selected(a, (value[0], before[0]), index, axes)
    return (out, *value[1:]) if type(value) is tuple else type(value)((out, *value[1:]))


def extreme(call: Call) -> Any:
    """max, min, amax and amin, over an axis or all; of two tensors, elementwise."""
    a, second = call.argument(0, "input"), call.argument(1, "other")
    if isinstance(second, Tensor):
        return elementwise(call)
    if not a.ndim:
        return _itself(call, a)
    flat = along(a, call.argument(1, "dim")), along(call.before(a), call.argument(1, "dim"))
    lowest = call.name in ("min", "amin")
    with torch.no_grad():
        index, index0 = ((t.argmin if lowest else t.argmax)(-1, keepdim=True) for t in flat)
    return _winners(call, flat, (index, index0), (-1, -1))


def ordered(call: Call) -> Any:
    """sort, topk, median and kthvalue over an axis: at the place on the input and at that on the reference."""
    a, value, before = call.argument(0, "input"), call.value(), call.output_before
    if not a.ndim:
        return _itself(call, a)
    if isinstance(value, Tensor):  # the median of all
        flat = a.flatten(), call.before(a).flatten()
        index, index0 = (t.median(0, keepdim=True).indices for t in flat)
        return functions.selected(flat, (value, before), (index, index0), (0, 0), rest=True)
    position = {"topk": 2, "kthvalue": 2}.get(call.name, 1)
    dim = call.argument(position, "dim", -1)
    dim = (-1 if not isinstance(dim, int) or isinstance(dim, bool) else dim) % a.ndim
    index, index0 = value[1], before[1]
    if call.name == "sort":  # among equal values torch's order depends on what else is in the batch
        down = bool(call.argument(2, "descending", False))
        index, index0 = (t.sort(dim=dim, descending=down, stable=True).indices for t in (a.detach(), call.before(a)))
    if index.ndim < a.ndim:
        index, index0 = index.unsqueeze(dim), index0.unsqueeze(dim)
    out = functions.selected((a, call.before(a)), (value[0], before[0]), (index, index0), (dim, dim), rest=True)
    return type(value)((out, value[1]))


def _itself(call: Call, a: Tensor) -> Any:
    """What is selected from a single number."""
    value = call.value()
    if isinstance(value, Tensor):
        return linearised(a, value)
    return type(value)((linearised(a, value[0]), *value[1:]))


def quantile(call: Call) -> Tensor:
    """Between two neighbours in the order of the values: a mean of the two, each selected like those of a sort."""
    a, q, dim = call.argument(0, "input"), call.argument(1, "q"), call.argument(2, "dim")
    if isinstance(q, Tensor) and call.changes(q):
        raise no_form(call.name)
    flat, before = along(a, dim), along(call.before(a), dim)
    with torch.no_grad():
        (values, index), (values0, index0) = flat.sort(-1), before.sort(-1)
        place = torch.as_tensor(q, dtype=a.dtype, device=a.device).flatten() * (flat.shape[-1] - 1)
        low, high = place.floor().long(), place.ceil().long()
        weight = {
            "linear": place - low, "lower": torch.zeros_like(place), "higher": torch.ones_like(place),
            "midpoint": torch.full_like(place, 0.5), "nearest": place.round() - low,
        }[call.argument(4, "interpolation", "linear")]  # fmt: skip
    ordered = functions.selected((flat, before), (values, values0), (index, index0), (-1, -1), rest=True)
    value: Tensor = call.value()
    found = ordered[..., low] * (1 - weight) + ordered[..., high] * weight
    return linearised(found.movedim(-1, 0).reshape(value.shape), value)


def choose(call: Call) -> Tensor:
    """Where and masked_fill: as they are, if the choice is the same on the reference.

    Else by the sizes of the changes.
    """
    carriers = call.carriers
    if not call.fixed or not carriers:
        return affine(call)
    y = call.value()
    with torch.no_grad():
        differs = torch.zeros_like(y, dtype=torch.bool)
        for t, t0 in call.choices:
            differs |= t != t0
        parts, total = sized(call, carriers, y)
        slopes = []
        for one, slope in zip(carriers, parts, strict=True):
            taken = _alone(call, one, torch.ones_like(one)) - _alone(call, one, torch.zeros_like(one))
            slopes.append(torch.where(differs, slope, taken).nan_to_num_(0.0, 0.0, 0.0))
        left = (y - call.output_before).nan_to_num_(0.0, 0.0, 0.0) * (differs & (total == 0))
    out = shared(call, carriers, slopes)
    if bool(left.any()):
        call.book(out, left, "selection")
    return out


def _alone(call: Call, one: Tensor, value: Tensor) -> Tensor:
    """The operation with a value for one operand and zeros for the other numbers."""
    y: Tensor = call.run(lambda t: value if t is one else torch.zeros_like(t) if t.is_floating_point() else t)
    return y
