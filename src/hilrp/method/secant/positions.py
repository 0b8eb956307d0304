"""Reading at positions that depend on the input, relative to a reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hilrp.method.autograd import linearised
from hilrp.method.call import Call
from hilrp.method.secant import functions


def sample(call: Call) -> Tensor:
    """grid_sample: linear in what is read, at the mean of both grids; the grid gets what reading elsewhere changes."""
    a, grid = call.args[:2]
    return _read(call, a, [grid], lambda positions: lambda t: call.func(t, *positions, *call.args[2:], **call.kwargs))


def deformable(call: Call) -> Tensor:
    """Deformable convolution: linear in its input; offsets and mask get what reading elsewhere changes."""
    x, weight, offset, mask, bias, *geometry = call.args
    without = torch.zeros_like(bias)

    def at(positions: list[Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda t: call.func(t, weight, *positions, without, *geometry)

    return _read(call, x, [offset, mask], at)


def pooled_regions(call: Call) -> Any:
    """roi_align: linear in the feature map; what moved boxes change is booked."""
    assert call.reference is not None
    value = call.value()
    if not isinstance(value, Tensor):  # ps_roi_align also says which channel it read
        func, reference = call.func, replace(call.reference, output=call.output_before[0])
        alone = replace(call, func=lambda *args, **kwargs: func(*args, **kwargs)[0], reference=reference)
        return pooled_regions(alone), *value[1:]
    a, boxes, *rest = call.args

    def at(positions: list[Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda t: call.func(t, positions[0], *rest, **call.kwargs)

    return _read(call, a, [boxes], at)


def _read(
    call: Call, a: Tensor, positions: list[Tensor], at: Callable[[list[Tensor]], Callable[[Tensor], Tensor]]
) -> Tensor:
    value = call.value()
    now, then = at([p.detach() for p in positions]), at([call.before(p) for p in positions])
    varying = [p for p in positions if call.changes(p)]
    if not varying:
        return linearised(now(a), value)
    read = (now(a) + then(a)) / 2
    with torch.no_grad():
        own, before = a.detach(), call.before(a)
        moved = ((now(own) - then(own)) + (now(before) - then(before))) / 2
    carriers = [p for p in varying if p.requires_grad]
    # One place of the output for each place of the positions: else the books say what moved.
    if not carriers or any(p.shape[0] != value.shape[0] for p in carriers) or call.name.endswith("roi_align"):
        out = linearised(read, value)
        call.book(out, moved, "positions")
        return out
    last = call.name == "grid_sampler"
    changes = [call.difference(p).detach() for p in carriers]
    axis = -1 if last else 1
    size = torch.stack([c.abs().sum(axis, keepdim=True) for c in changes]).sum(0)
    slopes = [(c.sign() / torch.where(size > 0, size, 1)) for c in changes]
    moved_to = functions.moved(carriers, slopes, moved, last)
    return linearised(read + moved_to, value) if a.requires_grad else linearised(moved_to, value)
