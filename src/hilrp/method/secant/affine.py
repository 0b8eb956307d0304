"""Linear maps and sums relative to a reference: as they are, since constants have no difference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hilrp.method.autograd import linearised
from hilrp.method.call import Call
from hilrp.method.reindexing import placed, spread
from hilrp.util.nested import tensors


def affine(call: Call) -> Any:
    """Linear maps and sums, as they are: constants have no difference.

    Where a mask or an index is another one in the reference pass, what that changes is booked.
    """
    call, y = placed(call)
    assert call.reference is not None
    if not call.reference.choosing:
        return y
    same_shape = [t.shape for t in tensors(y)] == [t.shape for t in tensors(call.output_before)]
    numbers = any(t.is_floating_point() or t.is_complex() for t in call.fixed)
    if same_shape and (numbers or any(not torch.equal(t, t0) for t, t0 in call.choices)):
        for out, before, moved in zip(*map(tensors, (y, call.output_before, _on_differences(call))), strict=True):
            if out.requires_grad:
                call.book(out, out.detach() - before - moved, "selection")
    return y


def unpool(call: Call) -> Tensor:
    """max_unpool: a sum; what other places, and others that are there in the end, change on the reference is booked."""
    summed, x = spread(call), call.argument(0, "input")
    out = linearised(summed.run(), call.value())
    parts = summed.args[1]
    assert call.reference is not None
    if call.reference.choosing or bool((parts != 1).any()):
        with torch.no_grad():
            moved = summed.func(call.difference(x), parts)
        call.book(out, out.detach() - call.output_before - moved, "selection")
    return out


def _on_differences(call: Call) -> Any:
    """An affine map without its constants."""
    with torch.no_grad():
        at = [call.run(lambda t: call.difference(t) if t.requires_grad else t), call.at_zero()]
    return at[0] - at[1] if isinstance(at[0], Tensor) else [a - b for a, b in zip(*at, strict=True)]


def detach(call: Call) -> Tensor:
    """The model's own stop-gradient: its value depends on the input all the same."""
    (a,) = call.operands[:1]
    return linearised(a, call.value())
