"""A reference that is the same for all samples: it runs as one of them, once.

A plain colour or a healthy scan is the same for every picture of a batch. So the model runs on it as on a single
sample, operation by operation, and the pass on the batch is handed the results (`hilrp.engine.tape`). Where the model
takes another way for one sample than for many, or where a result can't be laid out for all of them, the reference runs
as a batch, as it always did.
"""

from __future__ import annotations

from collections import deque
from copy import copy
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.forward_backward import as_written, autocast_without_cache, call_model
from hilrp.engine.engine import Engine
from hilrp.engine.tape import OtherWay, Tape, Tapes
from hilrp.method.ledger import Books
from hilrp.method.rules import Rules
from hilrp.method.sample_axis import Layout, is_one_for_all
from hilrp.util.memory import shortage
from hilrp.util.nested import map_tensors, tensors


def is_shared(x: Any, reference: Any, batch: int) -> bool:
    """Whether all samples have one reference: an expanded tensor, as `hilrp.references` make it of one colour.

    Inputs that differ from sample to sample and are held fixed (words) leave it to the batch.
    """
    if batch < 2 or reference is None:
        return False
    pairs = list(zip(tensors(x), tensors(reference), strict=True))
    own = [(t, t0) for t, t0 in pairs if t.shape[:1] == (batch,)]
    return bool(own) and all(t.is_floating_point() and is_one_for_all(t0) for t, t0 in own)


def run_as_one_sample(model: nn.Module, rules: Rules, reference: Any, batch: int, compares: bool) -> Tapes:
    """What the model computes on one sample of a shared reference, to be played beside a batch.

    Args:
        model: The model.
        rules: The rules.
        reference: The reference of all samples.
        batch: How many these are.
        compares: Whether constants may be compared by value: not while a CUDA graph is recorded.

    Raises:
        OtherWay: Where the model does not run on a single sample, or notes on itself that it did.
    """
    tape = Tape()
    engine = Engine(model, rules, Books(1), _pass_over, relative=True, tapes=Tapes(inputs=tape, alone=True))

    def watched(t: Tensor) -> Tensor:
        if not (t.is_floating_point() and t.shape[:1] == (batch,)):
            return t
        one = t[:1].detach().clone()
        return engine.tracker.watch(one.requires_grad_(), Layout(0, 1), one.detach())

    before = _Kept.of(model)
    try:
        with torch.inference_mode(False), torch.enable_grad(), as_written(), autocast_without_cache():
            inputs = map_tensors(watched, reference)
            for t in tensors(inputs):
                engine.tracker.make(t)
            with engine:
                call_model(model, inputs)
    except Exception as error:
        if shortage(error) is not None:
            raise
        raise OtherWay(f"The model does not run on one sample of the reference: {error}") from error
    finally:
        engine.release()
        changed = before.restore()
    if changed:
        raise OtherWay("The model keeps something of what it has seen.")
    if engine.tally.read_outs or engine.tally.strangers or engine.tally.problems:
        raise OtherWay("What the model does on one sample of the reference can't be seen in full.")
    return Tapes(tape, batch=batch, compares=compares)


@dataclass(frozen=True)
class _Kept:
    """What a model keeps on its modules, and in what these hold: names, lists, other objects, as they were.

    A model that has seen one sample of the reference first would else go on with what it kept of that: a mean, a size.

    Attributes:
        holders: The dictionaries, lists and sets, with what was in them.
    """

    holders: list[tuple[Any, Any]]

    @classmethod
    def of(cls, model: nn.Module) -> _Kept:
        """What the model keeps now."""
        holders: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        waiting: list[Any] = [vars(module) for module in model.modules()]
        while waiting:
            held = waiting.pop()
            if id(held) in seen or isinstance(held, _NO_HOLDERS):
                continue
            seen.add(id(held))
            if len(seen) > _MOST_HELD:
                raise OtherWay("The model holds too much to see whether it keeps something of its input.")
            if isinstance(held, dict):
                holders.append((held, dict(held)))
                waiting += held.values()
            elif isinstance(held, (list, tuple, set, frozenset, deque)):
                holders += [] if isinstance(held, (tuple, frozenset)) else [(held, copy(held))]
                waiting += held
            else:
                waiting.append(getattr(held, "__dict__", None))
        return cls(holders)

    def restore(self) -> bool:
        """Puts everything back, and says whether anything was another one."""
        changed = [(held, before) for held, before in self.holders if not _is_same(held, before)]
        for held, before in changed:
            held.clear()
            held.extend(before) if isinstance(held, (list, deque)) else held.update(before)
        return bool(changed)


#: What holds nothing that a model would keep of its input: tensors, values, classes and functions.
_NO_HOLDERS = (Tensor, nn.Module, type, FunctionType, ModuleType, str, bytes, int, float, complex, type(None))


#: How many lists, dictionaries and other objects are looked into.
_MOST_HELD = 100_000


def _is_same(now: Any, before: Any) -> bool:
    if isinstance(now, dict):
        return now.keys() == before.keys() and all(now[name] is value for name, value in before.items())
    if isinstance(now, set):
        return bool(now == before)
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def _pass_over(_: Exception) -> None:
    """What is wrong with an operation is told of where the input runs."""
