"""Values that leave the engine's sight: as numbers, through operations without a rule, through hooks on gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.engine import messages
from hilrp.engine.tensor_info import writes_to
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine


def read_out(engine: Engine, func: Any, name: str, args: Any, kwargs: Any) -> Any:
    """A call that takes values out of torch. What the model makes of them, the engine can't follow.

    That is told.
    """
    tell_read_out(engine, name)
    engine.tally.values_read[name] += any(t.is_floating_point() or t.is_complex() for t in tensors((args, kwargs)))
    with torch.no_grad():
        return func(*map_tensors(Tensor.detach, args), **map_tensors(Tensor.detach, kwargs))


def tell_read_out(engine: Engine, name: str, how: str = "") -> None:
    """Counts a place where values left torch."""
    engine.tally.read_outs[f"`{name}` in {messages.place(engine.path)}{how}"] += 1


def run_unknown(
    engine: Engine, run: Callable[[], Any], func: Any, name: str, operands: list[Tensor], *, carries: bool
) -> Any:
    """Runs an operation that isn't in the table.

    It has no rule, unless it makes masks, indices or numbers of its operands.
    """
    before = [writes_to(t) for t in operands]
    out = run()
    found = tensors(out)
    if not found:
        tell_read_out(engine, name)
    numbers = [t for t in found if t.is_floating_point() or t.is_complex()]
    writes = any(writes_to(t) != count for t, count in zip(operands, before, strict=True))
    if any(t.requires_grad for t in found) or (numbers and carries) or writes:
        engine.problem(messages.unknown_operation(func, name, engine.path, engine.module, engine.relative))
    return out


def watched_hook(engine: Engine, hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """A hook of the model's on a tensor: where it changes gradients, the map is no longer the rules' own."""
    path, problems, on_problem = engine.path, engine.tally.problems, engine.on_problem  # a hook holds no engine

    @wraps(hook)
    def watched(gradient: Tensor) -> Any:
        count = writes_to(gradient)
        found = hook(gradient)
        changed = writes_to(gradient) != count
        recorded = gradient.is_cuda and torch.cuda.is_current_stream_capturing()  # it ran before, and was looked at
        if found is not None and found is not gradient and not recorded:
            changed = changed or not torch.equal(found.nan_to_num(), gradient.nan_to_num())
        if changed:
            error = messages.changed_gradient(path)
            problems[str(error)] += 1
            on_problem(error)
        return found

    return watched
