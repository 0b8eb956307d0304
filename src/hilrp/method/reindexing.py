"""Reindexing (Definition 4), sums and selections: the native backward pass is exact.

A map with one source per output copies relevance; a sum, a mean, an interpolation or a Fourier transform is
linear without constants; a maximum, a relu or a norm is homogeneous of degree one. For all of them
``sum(a * grad_a) = sum(y * grad_y)`` by Euler's theorem.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hilrp.method.autograd import linearised, shared
from hilrp.method.call import Call, Level
from hilrp.util.nested import tensors


def native(call: Call) -> Any:
    """The operation as it is."""
    return call.run()


def average_pool(call: Call) -> Tensor:
    """Average pooling.

    Torch's backward is wrong on CUDA for overlapping windows in channels-last order (seen in 2.11).
    """
    x = call.argument(0, "input")
    if not x.is_cuda or x.is_contiguous():
        y: Tensor = call.run()
        return y
    return linearised(call.run(Tensor.contiguous), call.value())


def unpool(call: Call) -> Tensor:
    """max_unpool: where several values go to one place, the one that is there in the end gets its relevance.

    Equal ones share it.
    """
    return linearised(spread(call).run(), call.value())


def spread(call: Call) -> Call:
    """max_unpool as a sum, in which each value counts as much as it is in the result."""
    axes = 2 if call.name.endswith("2d") else 3
    value, x, index = call.value(), call.argument(0, "input"), call.argument(1, "indices")
    flat = index.flatten(-axes)
    with torch.no_grad():
        there = (value.flatten(-axes).gather(-1, flat) == x.flatten(-axes)).to(x.dtype)
        empty = torch.zeros_like(value).flatten(-axes)
        parts = there / empty.scatter_add(-1, flat, there).gather(-1, flat).clamp(min=1)

    def scattered(x: Tensor, parts: Tensor) -> Tensor:
        return empty.scatter_add(-1, flat, x.flatten(-axes) * parts).reshape(value.shape)

    return replace(call, func=scattered, args=(x, parts), kwargs={})


def add(call: Call) -> Tensor:
    """Sums and differences: relevance follows the summands, constants keep their share."""
    y: Tensor = call.run()
    operands = (call.argument(0, "input"), call.argument(1, "other"))
    if not y.requires_grad or all(map(_carries, operands)):
        return y
    alpha = call.argument(2, "alpha", 1)
    weights = {"add": (1, alpha), "sub": (1, -alpha), "rsub": (-alpha, 1)}[call.name]
    constant, weight = (operands[1], weights[1]) if _carries(operands[0]) else (operands[0], weights[0])
    # In the type of the sum: small whole numbers would wrap around.
    value = constant.to(y.dtype) if isinstance(constant, Tensor) else y.new_full((), constant)
    call.book(y, value * weight, call.kind([constant], "constant"))
    return y


def hypot(call: Call) -> Tensor:
    """``y = sqrt(a^2 + c^2)`` is of degree one in both: each has its square over ``y``, also one that doesn't carry."""
    value: Tensor = call.value()
    with torch.no_grad():
        # torch's own backward divides zero by zero where both are.
        slopes = {id(t): (t / value).nan_to_num_(0.0) for t in call.operands}
    carriers = call.carriers
    if not carriers:
        return value
    y = shared(value, carriers, [slopes[id(t)] for t in carriers])
    for c in call.operands:
        if not c.requires_grad:
            call.book(y, c * slopes[id(c)], call.kind([c], "constant"))
    return y


def affine(call: Call, kind: str = "constant") -> Any:
    """An affine map ``y = A a + c`` of any form (cat, pad, where, masked_fill): the constant is its value at zero."""
    call, y = placed(call)
    if isinstance(y, Tensor) and y.requires_grad and _has_constant(call):
        call.book(y, call.at_zero(), call.kind(call.operands, kind))
    return y


def unpacked(call: Call) -> Any:
    """Packed sequences as rows of one length: what they are filled up with is a constant."""
    y, lengths = call.run()
    if y.requires_grad and call.argument(3, "padding_value"):
        call.book(y, call.at_zero()[0], "constant")
    return y, lengths


def placed(call: Call) -> tuple[Call, Any]:
    """An affine call and its result.

    A call that writes to places by index becomes a selection from what was there and what is written.

    Of several writes to one place the last counts, but torch's backward gives all of them their part. (On a GPU torch
    doesn't say which is the last.)
    """
    numbers = [t for t in call.operands if t.is_floating_point() or t.is_complex()]
    plain = call.kwargs.get("reduce") is None and not (
        call.name == "index_put" and call.argument(3, "accumulate", False)
    )
    by_mask = any(t.dtype in (torch.bool, torch.uint8) for t in call.operands)
    if call.name not in _PLACED or len(numbers) < 2 or not plain or by_mask:
        return call, call.run()
    with torch.no_grad():
        ends = list(itertools.accumulate(t.numel() for t in numbers))
        places = {
            id(t): torch.arange(end - t.numel(), end, device=t.device).reshape(t.shape)
            for t, end in zip(numbers, ends, strict=True)
        }
        sources = call.run(lambda t: places.get(id(t), t))

    def taken(*args: Any, **kwargs: Any) -> Tensor:
        given = [t for t in tensors((args, kwargs)) if t.is_floating_point() or t.is_complex()]
        return torch.cat([t.to(given[0]).flatten() for t in given])[sources]

    selection = replace(call, func=taken)
    return selection, linearised(selection.run(), call.value())


#: Operations that write to places by index.
_PLACED = frozenset(["scatter", "index_copy", "index_put", "set_item"])


def _has_constant(call: Call) -> bool:
    if call.name == "pad":
        return call.argument(2, "mode", "constant") == "constant" and bool(call.argument(3, "value"))
    return call.name not in ("cat", "stack", "hstack", "vstack") or not all(map(_carries, call.operands))


def detach(call: Call) -> Tensor:
    """The model's own stop-gradient: from here on a gate."""
    y: Tensor = call.value()
    return y


def detached_level(call: Call) -> Level:
    """A gate; relative to a reference, where it carries, what it was before."""
    return Level.GATE if call.reference is None else call.level(call.operands[0])


def _carries(operand: Any) -> bool:
    return isinstance(operand, Tensor) and operand.requires_grad
