"""What an answer about a model holds for: the form of its input, what is asked, and which rules are in force.

An answer is remembered by such a form. What can't be looked into is known by its identity, and forgotten with it. (The
globals that a function of the user's reads are not looked at.)
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.method.composite import Surrogate
from hilrp.method.registered_functions import FUNCTIONS
from hilrp.method.registry import MODULES, OPERATIONS
from hilrp.targets import Target
from hilrp.targets.classes import is_own

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


class _Same:
    """An object as a key, by its identity. It does not keep the object alive, which may hold the model."""

    def __init__(self, value: Any) -> None:
        self._hash = id(value)
        try:
            self._value: Any = weakref.ref(value)
        except TypeError:
            self._value = None  # nobody can say that it is the same: it equals nothing else

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._value is None or other._value is None:
            return self is other
        mine = self._value()
        return mine is not None and mine is other._value()


def described(value: Any, within: tuple[int, ...] = ()) -> Hashable:
    """Something as a key: plain values by what they are, functions by their code and what they hold.

    What holds itself (a function that calls itself) is ``within`` itself, by identity.

    Example:
        >>> one, other, third = ((lambda y, k=k: y[:, k]) for k in (1, 1, 2))
        >>> described(one) == described(other), described(one) == described(third)
        (True, False)
    """
    if isinstance(value, _PLAIN):
        return type(value), value
    if id(value) in within:
        return "itself", within.index(id(value))
    inner = partial(described, within=(*within, id(value)))
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(inner, value))
    if isinstance(value, Mapping):
        return type(value), tuple((inner(key), inner(each)) for key, each in value.items())
    if isinstance(value, partial):
        return partial, inner(value.func), inner(value.args), inner(value.keywords)
    if isinstance(value, types.MethodType):
        return inner(value.__func__), _Same(value.__self__)
    if isinstance(value, types.FunctionType):
        held = [_content(cell) for cell in value.__closure__ or ()]
        return value.__code__, *map(inner, (held, value.__defaults__ or (), value.__kwdefaults__ or {}))
    if isinstance(value, (types.BuiltinFunctionType, types.ModuleType)):
        return value
    return _Same(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def of_target(target: Target) -> Hashable:
    """What is asked, as far as answers about the model depend on it: a function, but not the class."""
    if not callable(target):
        return None
    return _of_own(target) if is_own(target) else described(target)


def _of_own(value: Any) -> Hashable:
    """One of hilrp's own targets, or what it holds: its tensors (an embedding, a mask) are data, as the input is."""
    if isinstance(value, Tensor):
        return "tensor"
    if is_dataclass(value) and not isinstance(value, type):
        return type(value), tuple((field.name, _of_own(getattr(value, field.name))) for field in fields(value))
    if isinstance(value, types.FunctionType) and is_own(value):
        return value.__code__, tuple(_of_own(_content(cell)) for cell in value.__closure__ or ())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_of_own, value))
    return described(value) if callable(value) or isinstance(value, _PLAIN) else type(value).__name__


def of_input(x: Any) -> Hashable:
    """The form of an input: shapes of samples and types of its tensors, names, and whatever else is given."""
    if isinstance(x, Tensor):
        return tuple(x.shape[1:]), x.dtype, x.device
    if isinstance(x, Mapping):
        return type(x), tuple((described(name), of_input(part)) for name, part in x.items())
    if isinstance(x, (list, tuple)):
        return type(x), tuple(map(of_input, x))
    return described(x)


def of_registered() -> Hashable:
    """The rules of the user's that are in force."""
    found = []
    for table in (OPERATIONS, MODULES, FUNCTIONS):
        for key, rows in table.items():
            rule = rows[-1].rule
            kind = described(rule.function) if isinstance(rule, Surrogate) else (rule, rows[-1].level)
            found.append((key if isinstance(key, str) else _Same(key), kind))
    return tuple(found)


def of_model(model: nn.Module) -> Hashable:
    """The structure of a model, its modes and its hooks."""
    return hash(tuple((type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()))


def circumstances(model: nn.Module, x: Any) -> Hashable:
    """All that an answer about a model holds for, whatever is asked."""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    autocast = tuple((device, torch.get_autocast_dtype(device)) for device in devices)
    return of_input(x), of_model(model), of_registered(), autocast
