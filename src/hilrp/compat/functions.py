"""A function or method that runs a model, as a module: captum takes any function, an explanation needs a module.

Which of the numbers that a function uses are the model's own parameters is not written on them. So the modules that it
refers to are looked for (in its object, its closure, its arguments and the globals that it names) and made children of
one module, whose forward pass is the function.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from hilrp.attribution.stages import OF_INPUT
from hilrp.targets import logits_of
from hilrp.util.errors import InputError

#: How far objects are looked into: a function's closure, an object's attributes, a list of modules.
_DEPTH = 4
#: What inputs that are held fixed are called, among the named inputs of a model; and outputs of layers.
HELD, LAYER = "argument_", "layer_"
#: What holds no modules, or too many: those of a package that a function calls are none of the model's.
_NO_MODULES = (Tensor, str, bytes, int, float, type(None), type, ModuleType)
_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Function(nn.Module):
    """A function as a module, with arguments that are held fixed, and its output as one row for each sample.

    Args:
        function: The function, or a module.

    Attributes:
        arguments: What the function is given, in order; ``None`` where that is an input of this module's.
        places: Where named inputs are among these, and the type that the function is given them in.
        layers: Modules whose outputs are inputs of this module's, by their names (`LAYER` and a number).
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = [function]  # in a list, so that a module is not entered twice
        self.arguments: tuple[Any, ...] = ()
        self.places: dict[str, tuple[int, torch.dtype | None]] = {}
        self.layers: dict[str, list[nn.Module]] = {}  # in lists, as above
        self.parts = nn.ModuleList(modules_of(function))
        if not self.parts:
            raise InputError(
                f"forward_func={function!r} uses no torch.nn.Module that hilrp could find (in its object, closure, "
                "arguments or globals), so that the model's own numbers can't be told from others. Give the model "
                "itself, a bound method of it, or a function that names it."
            )
        first = self.parts[0]
        self.pretrained_cfg = getattr(first, "pretrained_cfg", None)

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The function's scores, ``[B,outputs]``."""
        given = [*inputs, *self.arguments[len(inputs) :]]
        instead: dict[int, Tensor] = {}
        for name, value in named.items():
            if name in self.layers:
                instead[id(self.layers[name][0])] = value
                continue
            place, kind = self.places[name]
            given[place] = value if kind is None else value.view(kind)
        with outputs_of(instead, lambda layer, *_: instead[layer]):
            found = logits_of(self._function[0](*given))
        return found.flatten(1) if found.ndim > 1 else found


@contextmanager
def outputs_of(modules: Collection[int], seen: Callable[[int, Any, Any], Any]) -> Iterator[None]:
    """Calls a function whenever one of some modules has run, which returns another output, or ``None``.

    The modules have no hook: torch has one for all modules, which sees those of every thread.

    Args:
        modules: The modules, by ``id``.
        seen: What is called, with the module's ``id``, its arguments and its output.
    """
    own = threading.get_ident()

    def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        if id(module) in modules and threading.get_ident() == own:
            return seen(id(module), (args, kwargs), output)
        return None

    handle = register_module_forward_hook(hook, with_kwargs=True) if modules else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


def input_name(number: int, count: int) -> str:
    """What an input of several is called beside those that are held fixed.

    Example:
        >>> input_name(0, 1), input_name(1, 2)
        ('inputs', 'inputs_1')
    """
    return "inputs" if count == 1 else f"inputs_{number}"


def shown_path(model: nn.Module, name: str) -> str:
    """The path of a layer in the user's model, which may be in a `Function`.

    Example:
        >>> shown_path(Function(nn.Sequential(nn.Linear(3, 2))), "parts.0.0:input")
        '0'
    """
    path = name.removesuffix(OF_INPUT)
    return re.sub(r"^parts\.\d+(\.|$)", "", path) if isinstance(model, Function) else path


def held_name(number: int, argument: Tensor) -> str:
    """What an argument that is held fixed is called, with its place and its type."""
    return f"{HELD}{number}_{str(argument.dtype).removeprefix('torch.')}"


def as_held(argument: Tensor) -> Tensor:
    """A tensor as whole numbers with the same bits: nobody explains them, and they are cut with the samples."""
    return argument.detach().view(_WHOLE[argument.element_size()]) if argument.is_floating_point() else argument


def modules_of(function: Any) -> list[nn.Module]:
    """The modules that a function refers to, in the order in which they are found.

    Example:
        >>> model = nn.Linear(3, 2)
        >>> modules_of(lambda x: model(x).softmax(-1))
        [Linear(in_features=3, out_features=2, bias=True)]
    """
    return list({id(module): module for module in _found(function, _DEPTH, set())}.values())


def _found(each: Any, depth: int, seen: set[int]) -> Iterator[nn.Module]:
    if depth < 0 or id(each) in seen or isinstance(each, _NO_MODULES):
        return
    seen.add(id(each))
    if isinstance(each, nn.Module):
        yield each
        return
    for inner in _inside(each):
        yield from _found(inner, depth - 1, seen)


def _inside(each: Any) -> Iterator[Any]:
    """What an object refers to."""
    if isinstance(each, functools.partial):
        yield from (each.func, *each.args, *each.keywords.values())
    elif isinstance(each, Mapping):
        yield from each.values()
    elif isinstance(each, (tuple, list, set)):
        yield from each
    elif hasattr(each, "__self__") and hasattr(each, "__func__"):
        yield from (each.__self__, each.__func__)
    elif hasattr(each, "__code__"):
        yield from _of_function(each)
    elif hasattr(each, "__dict__"):
        yield from vars(each).values()
        yield vars(type(each)).get("__call__")


def _of_function(function: Any) -> Iterator[Any]:
    """What a function has from outside: its closure, its defaults, and the globals that its code names."""
    yield getattr(function, "__wrapped__", None)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]


def _names(code: CodeType) -> Iterator[str]:
    """The global names in a function's code, and in the functions that are defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
