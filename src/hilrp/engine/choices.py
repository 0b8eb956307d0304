"""Masks, indices and other whole numbers that depend on the input: they carry nothing, and choose what others carry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.engine import messages
from hilrp.engine.read_outs import tell_read_out
from hilrp.engine.relative import keep, on_reference, refer
from hilrp.method import torch_calls
from hilrp.method.call import Level
from hilrp.util.nested import tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine


def depends_on_choices(engine: Engine, operands: list[Tensor]) -> bool:
    """Whether an operand depends on the input without carrying anything.

    A mask, an index, a table looked up by one.
    """
    if engine.relative:
        tracker = engine.tracker
        return any(tracker.reference(t) is not None and tracker.level(t) is not Level.CONSTANT for t in operands)
    return engine.tracker.has_masks and any(map(engine.tracker.is_choice, operands))


def depends(engine: Engine, t: Tensor) -> bool:
    """Whether a tensor depends on the input, in whatever way."""
    return engine.tracker.varies(t) or engine.tracker.is_choice(t) or engine.tracker.reference(t) is not None


def note_values(engine: Engine, name: str, operands: list[Tensor]) -> None:
    """Notes whole numbers or truth values that depend on the input and are taken as values, or as places to write to.

    What a mask or an index selects needs no note.
    """
    chosen = [t for t in operands if engine.tracker.is_choice(t)] if engine.tracker.has_masks else []
    if name in ("where", "masked_fill"):
        chosen = [t for t in chosen if t.dtype != torch.bool]
    if chosen and name in torch_calls.TAKES_WHOLE_NUMBERS:
        engine.tally.notes[messages.whole_numbers(name, engine.path)] += 1
    elif chosen and name in torch_calls.WRITES_TO_PLACES:
        engine.tally.notes[messages.places(name, engine.path)] += 1


def run_on_choices(engine: Engine, func: Any, name: str, args: Any, kwargs: Any, written: list[Tensor]) -> Any:
    """An operation on masks and indices alone: it carries no relevance, but is another one on the reference."""
    with torch.no_grad():
        out = func(*args, **kwargs)
    found = [*tensors(out), *written]
    if not found:
        tell_read_out(engine, name)
    choose(engine, found, name)
    if engine.relative:
        refer(engine, out, on_reference(engine, func, name, args, kwargs).beside(out))
        keep(engine, name, args, kwargs, out)
    return out


def choose(engine: Engine, found: list[Tensor], name: str) -> None:
    """Enters what an operation made of masks and indices alone."""
    for t in found:
        for each in (t,) if t._base is None else (t, t._base):
            if not (each.is_floating_point() or each.is_complex()):
                engine.tracker.choose(each)
            elif not engine.tracker.varies(each):
                engine.tracker.track(each, Level.GATE, None)
                engine.tally.notes[messages.by_choice(name, engine.path)] += each is t
