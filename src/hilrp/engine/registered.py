"""Modules and autograd.Functions that the user has registered: each is one operation, whatever runs inside it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hilrp.method.composite import Surrogate
from hilrp.method.registered_functions import FunctionCall, class_name, with_values
from hilrp.method.registry import MODULES
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine


def run_module(engine: Engine, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Puts the module's rule on what it has just returned."""
    row, name = MODULES[type(module)][-1], class_name(type(module))
    if isinstance(row.rule, Surrogate):
        row = replace(row, rule=Surrogate(partial(row.rule.function, module), row.rule.unproven))
    given, value = tensors((args, kwargs)), map_tensors(Tensor.detach, output)
    varying = [t for t in given if engine.is_varying(t, name)]
    if not varying:
        return output

    def forward(*inputs: Any, **options: Any) -> Any:
        """What the module has just returned.

        It runs again only where a rule asks for other inputs, or for its own gradient.
        """
        own = tensors((inputs, options))
        if torch.is_grad_enabled() and any(t.requires_grad for t in own):
            return with_values(module.forward(*map_tensors(Tensor.clone, inputs), **options), value)
        if all(a is b for a, b in zip(own, given, strict=True)):
            return value
        with torch.no_grad():
            return module.forward(*map_tensors(Tensor.clone, inputs), **map_tensors(Tensor.clone, options))

    return engine.run(forward, name, args, kwargs, row, varying)


def run_function(engine: Engine, call: FunctionCall) -> Any:
    """Runs the forward of a registered autograd.Function, and remembers its arguments until its output is used."""
    call.args, call.kwargs = map_tensors(engine.current, (call.args, call.kwargs))
    with torch.no_grad(), torch._C.DisableTorchFunction():
        out = call.forward()
    engine.functions.add(call, out)
    return out


def settle(engine: Engine, tensor: Tensor) -> None:
    """Puts the rule of a registered autograd.Function on its output, if this is one that has not been used yet."""
    call = engine.functions.take(tensor)
    if call is None:
        return
    given = tensors((call.args, call.kwargs))
    varying = [t for t in given if engine.is_varying(t, call.name)]
    if not varying:
        engine.made(call.output)
        return
    # It ran where the model took gradients, or not; that may be otherwise where its output is used.
    grad = tensor.requires_grad or not any(t.requires_grad for t in varying)
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        out = engine.run(call.again, call.name, call.args, call.kwargs, call.row, varying)
    for old, new in zip(tensors(call.output), tensors(out), strict=True):
        engine.tracker.alias(old, new)
