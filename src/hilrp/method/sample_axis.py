"""Where the samples of the batch are in an intermediate tensor.

The ledger is kept per sample, but models fold the batch axis into others (windows, heads, sequence-first
layouts). A `Layout` says which axis holds the samples and how: with ``b`` samples, the element at index ``i``
of that axis belongs to sample ``(i // inner) % b``. It follows a tensor through the operations; where it
can't be followed it is ``None``, and the explainer then explains the samples one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hilrp.util.nested import map_tensors, tensors


class Layout(NamedTuple):
    """The axis that holds the samples, and how many consecutive indices belong to one."""

    axis: int
    inner: int


Placed = Sequence[tuple[Tensor, "Layout | None"]]
"""The operands that depend on the input, with their layouts."""


def split_samples(shape: Sequence[int], layout: Layout, batch: int) -> tuple[int, ...]:
    """``shape`` with the sample axis split into (outer, batch, inner)."""
    axis, inner = layout
    return (*shape[:axis], shape[axis] // (batch * inner), batch, inner, *shape[axis + 1 :])


def spread(one: Tensor, layout: Layout, batch: int) -> Tensor:
    """A tensor of one sample as that of a batch of which every sample is this one; a view of it, where that can be.

    Example:
        >>> spread(torch.tensor([[1, 2]]), Layout(0, 1), 2).tolist()
        [[1, 2], [1, 2]]
    """
    axis, inner = layout
    split = one.unflatten(axis, (-1, 1, inner))
    return split.expand(*split.shape[: axis + 1], batch, *split.shape[axis + 2 :]).flatten(axis, axis + 2)


def is_one_for_all(t: Tensor) -> bool:
    """Whether all samples of a tensor are one in memory, as those of a reference that they share."""
    return t.ndim > 1 and len(t) > 1 and t.stride(0) == 0


def one_of_all(t: Tensor | None) -> Tensor | None:
    """One sample of a tensor in which all are the same in memory; others as they are. It broadcasts against them."""
    return t[:1] if t is not None and is_one_for_all(t) else t


def copied(t: Tensor) -> Tensor:
    """A tensor in memory of its own, without a graph; of samples that are one in memory, one."""
    return t[:1].detach().clone().expand_as(t) if is_one_for_all(t) else t.detach().clone()


def _fits(shape: Sequence[int], layout: Layout, batch: int) -> bool:
    return 0 <= layout.axis < len(shape) and shape[layout.axis] % (batch * layout.inner) == 0


def aligned(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Elementwise operations with broadcasting: axes correspond from the right."""
    for tensor, layout in placed:
        if layout is None:
            continue
        moved = Layout(out.ndim - tensor.ndim + layout.axis, layout.inner)
        if _fits(out.shape, moved, batch) and out.shape[moved.axis] == tensor.shape[layout.axis]:
            return moved
    return None


def kept(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Operations that keep the axes and change the size of others (linear, convolution, slicing, cat)."""
    for tensor, layout in placed:
        if layout is None or (out.ndim != tensor.ndim and layout.axis != 0) or out.ndim == 0:
            continue
        if out.shape[layout.axis] == tensor.shape[layout.axis]:
            return layout
    return None


def values_kept(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Attention: the values carry the relevance."""
    values = tensors(args)[2]
    return kept([(t, layout) for t, layout in placed if t is values], out, batch, args, func)


def row_major(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """View and kin: the order of the elements stays."""
    tensor, layout = placed[0]
    if layout is None:
        return None
    stride = layout.inner * math.prod(tensor.shape[layout.axis + 1 :])
    for axis in range(out.ndim):
        below = math.prod(out.shape[axis + 1 :])
        if below and stride % below == 0 and (below * out.shape[axis]) % (stride * batch) == 0:
            return Layout(axis, stride // below)
    return None


def traced(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Permutations and reductions: run on an empty tensor whose axes have distinct sizes, and see where ours went."""
    tensor, layout = placed[0]
    if layout is None:
        return None
    try:
        axis = _trace(func, tensor.ndim, layout.axis, *_hashable(args, tensor))
    except Exception:  # an operation that can't run on such a shape can't be followed
        return None
    if axis is None or axis >= out.ndim or out.shape[axis] != tensor.shape[layout.axis]:
        return None
    return Layout(axis, layout.inner)


_MARK = "the operand"


def _hashable(args: Any, tensor: Tensor) -> tuple[Any, Any]:
    positional, named = map_tensors(lambda t: _MARK if t is tensor else None, args)
    return _freeze(positional), _freeze(tuple(named.items()))


def _freeze(tree: Any) -> Any:
    return tuple(map(_freeze, tree)) if isinstance(tree, (tuple, list)) else tree


@lru_cache(maxsize=4096)
def _trace(func: Callable[..., Any], ndim: int, axis: int, positional: Any, named: Any) -> int | None:
    probe = torch.empty([101 + i for i in range(ndim)], device="meta")
    result = func(*(probe if item == _MARK else item for item in positional), **dict(named))
    first = tensors(result)[0]
    sizes = list(first.shape)
    return sizes.index(101 + axis) if sizes.count(101 + axis) == 1 else None


def aligned_or_traced(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Max and min: of two tensors elementwise, of one over an axis."""
    return (aligned if len(tensors(args)) == 2 else traced)(placed, out, batch, args, func)


def multiplied(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Matmul and kin: leading axes align, rows come from the first factor and columns from the second."""
    first, second = tensors(args)[:2]
    for tensor, layout in placed:
        if layout is None:
            continue
        from_right = tensor.ndim - layout.axis
        if from_right == (1 if tensor is first or tensor.ndim == 1 else 2):  # summed over
            continue
        # A vector has no axis of its own in the product.
        from_right -= (second if tensor is first else first).ndim == 1
        moved = Layout(out.ndim - from_right, layout.inner)
        if _fits(out.shape, moved, batch) and out.shape[moved.axis] == tensor.shape[layout.axis]:
            return moved
    return None


def summed_by_letters(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """einsum: the letter of the sample axis names it in the output."""
    equation, *operands = args[0]
    if not isinstance(equation, str) or "->" not in equation:
        return None
    operands = tensors(operands)
    inputs, output = equation.replace(" ", "").split("->")
    dots = max(
        (t.ndim - len(i.replace("...", "")) for i, t in zip(inputs.split(","), operands, strict=True)), default=0
    )
    # An ellipsis stands for the axes without letters: give them digits, aligned from the right.
    digits = "".join(map(str, range(dots)))
    output = output.replace("...", digits)
    for letters, operand in zip(inputs.split(","), operands, strict=True):
        letters = letters.replace("...", digits[dots - (operand.ndim - len(letters.replace("...", ""))) :])
        for tensor, layout in placed:
            if tensor is operand and layout is not None and letters[layout.axis] in output:
                return Layout(output.index(letters[layout.axis]), layout.inner)
    return None


def indexed(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Indexing: most often the samples come first and are all kept."""
    tensor, layout = placed[0]
    index = args[0][1] if isinstance(args[0][1], tuple) else (args[0][1],)
    whole = index[0] is Ellipsis or (isinstance(index[0], slice) and index[0] == slice(None))
    if whole and layout is not None and layout.axis == 0 and out.shape[:1] == tensor.shape[:1]:
        return layout
    return probed(placed, out, batch, args, func)


def stacked(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """stack: a new axis comes in before or after ours."""
    positional, named = args
    dim = named.get("dim", positional[1] if len(positional) > 1 else 0) % out.ndim
    layout = placed[0][1]
    return None if layout is None else Layout(layout.axis + (dim <= layout.axis), layout.inner)


_probed: dict[str, Layout | None] = {}


def probed(placed: Placed, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    """Any other reindexing: run it on the samples' own numbers and read off where they went."""
    tensor, layout = placed[0]
    if len(placed) != 1 or layout is None:
        return None
    if not _plain(args, tensor):
        return _probe(tensor, layout, out, batch, args, func)
    shown = map_tensors(lambda t: (tuple(t.shape), t.stride()), args)
    key = repr((func, shown, tuple(out.shape), layout, batch))
    if key not in _probed:
        if len(_probed) >= 4096:
            _probed.clear()
        _probed[key] = _probe(tensor, layout, out, batch, args, func)
    return _probed[key]


def _plain(tree: Any, tensor: Tensor) -> bool:
    """Whether the arguments besides the operand are numbers, slices and the like, which ``repr`` tells apart."""
    if isinstance(tree, (tuple, list)):
        return all(_plain(item, tensor) for item in tree)
    if isinstance(tree, dict):
        return all(_plain(item, tensor) for item in tree.values())
    return tree is tensor or tree is None or tree is Ellipsis or isinstance(tree, (int, float, str, slice, torch.dtype))


def _probe(tensor: Tensor, layout: Layout, out: Tensor, batch: int, args: Any, func: Any) -> Layout | None:
    split = split_samples(tensor.shape, layout, batch)
    ids = torch.arange(batch, dtype=torch.int32).reshape(
        [batch if i == layout.axis + 1 else 1 for i in range(len(split))]
    )
    ids = torch.empty_like(tensor, dtype=torch.int32, device="cpu").copy_(ids.expand(split).reshape(tensor.shape))
    try:
        positional, named = map_tensors(lambda t: ids if t is tensor else t.cpu(), args)
        numbers = next(n for n in tensors(func(*positional, **named)) if n.shape == out.shape).reshape(-1)
    except Exception:  # not every operation takes integers: then it can't be followed
        return None
    stride = int((numbers != numbers[0]).to(torch.uint8).argmax()) if numbers.numel() else 0
    if not stride or not torch.equal(numbers, (torch.arange(numbers.numel()) // stride % batch).to(numbers.dtype)):
        return None
    flat = torch.empty(out.numel(), device="meta")
    return row_major([(flat, Layout(0, stride))], out, batch, args, func)
