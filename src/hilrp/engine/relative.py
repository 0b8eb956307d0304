"""The same operations on the reference, for passes that are relative to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from hilrp.engine.tape import described
from hilrp.method.call import Level, Reference
from hilrp.util.errors import ModelError
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine


def on_reference(engine: Engine, func: Any, name: str, args: Any, kwargs: Any) -> Reference:
    """An operation on the reference: run there, or as it was when the model ran on the reference before."""
    tracker, tapes = engine.tracker, engine.tapes
    given = tensors((args, kwargs))
    call = described(name, args, kwargs, engine.names) if tapes.used else None
    constant = [tracker.level(t) is Level.CONSTANT for t in given]
    changed = [tracker.reference(t) is not None and not own for t, own in zip(given, constant, strict=True)]
    args, kwargs = map_tensors(tracker.on_reference, (args, kwargs))
    if tapes.played is not None:
        output = tapes.next(call)
    else:
        with torch.no_grad():
            output = func(*args, **kwargs)
        if tapes.references is not None:
            tapes.references.keep(call, output)
    return Reference(tensors((args, kwargs)), changed, output, tracker.has_choices)


def refer(engine: Engine, out: Any, reference: Any) -> None:
    """Enters what the results of an operation are on the reference."""
    for t, t0 in zip(tensors(out), tensors(reference), strict=True):
        if t.shape != t0.shape:
            raise ModelError(
                f"The model took another way on the reference than on the input: at {engine.path or '(model)'} a "
                f"result has the shape {tuple(t0.shape)} there and {tuple(t.shape)} here. Use a reference of the "
                "same shape, and a model whose control flow doesn't depend on pixel values."
            )
        engine.tracker.refer(t, t0)


def keep(engine: Engine, name: str, args: Any, kwargs: Any, out: Any) -> None:
    """Keeps a result for a pass that is relative to this one's input."""
    if engine.tapes.inputs is not None:
        engine.tapes.inputs.keep(described(name, args, kwargs, engine.names), out)
    if engine.tapes.used:
        engine.names.add(out)
