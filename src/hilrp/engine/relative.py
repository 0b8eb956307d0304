"""The same operations on the reference, for passes that are relative to one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.engine import messages
from hilrp.engine.tape import OtherWay, described
from hilrp.method.call import Call, Level, Reference
from hilrp.method.sample_axis import Layout, spread
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine


def on_reference(
    engine: Engine,
    func: Any,
    name: str,
    args: Any,
    kwargs: Any,
    follow: Callable[[Tensor], Layout | None] = lambda _: None,
) -> Reference:
    """An operation on the reference: run there, or as it was when the model ran on the reference before.

    ``follow`` says where the samples are in a result.
    """
    tracker, tapes = engine.tracker, engine.tapes
    if tapes.alone:
        _check_indices(engine, name, args, kwargs)
    given = tensors((args, kwargs))
    call = described(name, args, kwargs, engine.names) if tapes.used else None
    constant = [tracker.level(t) is Level.CONSTANT for t in given]
    changed = [tracker.reference(t) is not None and not own for t, own in zip(given, constant, strict=True)]
    args, kwargs = map_tensors(tracker.on_reference, (args, kwargs))
    laid_out: Callable[[Any], Any] | None = None
    output = None
    if tapes.alone:
        laid_out = _without_graph
    elif tapes.played is not None:
        output = tapes.next(call)
        if tapes.batch > 1:
            laid_out = _beside(output, follow, tapes.batch)
    else:
        with torch.no_grad():
            output = func(*args, **kwargs)
        if tapes.references is not None:
            tapes.references.keep(call, output)
    return Reference(tensors((args, kwargs)), changed, output, tracker.has_choices, laid_out)


#: Operations that take positions along the axis that their second argument names.
_ALONG = frozenset(["index_select", "gather", "take_along_dim", "scatter", "scatter_add", "index_add", "index_copy"])


def _check_indices(engine: Engine, name: str, args: Any, kwargs: Any) -> None:
    """Raises where samples are taken by number: there is one, and a GPU does not survive asking for another."""
    layout = engine.tracker.layout(args[0]) if args and isinstance(args[0], Tensor) else None
    if name == "getitem":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if layout is not None and not any(each is None or each is Ellipsis for each in index):
            index = index[layout.axis : layout.axis + 1]
        among = any(isinstance(each, (Tensor, list)) for each in index)
    elif name in _ALONG:
        dim = args[1] if len(args) > 1 and isinstance(args[1], int) else kwargs.get("dim")
        among = dim is None or layout is None or dim % args[0].ndim == layout.axis
    else:
        among = name in ("take", "index_put")
    if among:
        raise OtherWay("The model takes some of its samples by number.")


def _without_graph(output: Any) -> Any:
    return map_tensors(Tensor.detach, output)


def _beside(one: Any, follow: Callable[[Tensor], Layout | None], batch: int) -> Callable[[Any], Any]:
    """Lays out what an operation gave on one sample beside what it gives on a batch."""

    def laid_out(output: Any) -> Any:
        found = {}
        for t, out in zip(tensors(one), tensors(output), strict=True):
            layout = follow(out)
            if layout is None or t.ndim != out.ndim or t.shape[layout.axis] % layout.inner:
                raise OtherWay("A result on the reference can't be laid out for every sample.")
            found[id(t)] = spread(_in_order_of(out, t), layout, batch)
            if found[id(t)].shape != out.shape:
                raise OtherWay("A result on the reference has another form than on the input.")
        return map_tensors(lambda t: found[id(t)], one)

    return laid_out


def _in_order_of(many: Tensor, one: Tensor) -> Tensor:
    """One sample with its axes in the order in memory that a batch has: kernels take the two side by side.

    A convolution of a single sample may answer in another order than that of a batch.
    """
    if one.shape != many[:1].shape or one.stride()[1:] == many.stride()[1:]:
        return one
    return torch.empty_like(many[:1], dtype=one.dtype).copy_(one)


def values(call: Call) -> Any:
    """What an operation gives, as tensors of which each is the beginning of a graph: nobody will go back."""
    carries = bool(call.carriers)
    return map_tensors(lambda t: t.requires_grad_() if carries and _is_number(t) else t, call.value())


def _is_number(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def refer(engine: Engine, out: Any, reference: Any) -> None:
    """Enters what the results of an operation are on the reference."""
    for t, t0 in zip(tensors(out), tensors(reference), strict=True):
        if t.shape != t0.shape:
            raise messages.other_shape(engine.path, tuple(t0.shape), tuple(t.shape))
        engine.tracker.refer(t, t0)


def keep(engine: Engine, name: str, args: Any, kwargs: Any, out: Any) -> None:
    """Keeps a result for a pass that is relative to this one's input."""
    if engine.tapes.inputs is not None:
        engine.tapes.inputs.keep(described(name, args, kwargs, engine.names), out)
    if engine.tapes.used:
        engine.names.add(out)
