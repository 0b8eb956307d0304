"""Rules for a user's own operations and modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.autograd import Function

from hilrp.method import normalisation, reindexing
from hilrp.method.call import Level
from hilrp.method.composite import Surrogate
from hilrp.method.registered_functions import FUNCTIONS, wrap
from hilrp.method.sample_axis import aligned, kept
from hilrp.method.table import TABLE, Primitive, Row
from hilrp.method.torch_calls import operation_name
from hilrp.util.errors import InputError

#: Rules that `register` knows by name.
KINDS: dict[str, Row] = {
    "reindexing": Row(Primitive.REINDEXING, reindexing.native, "affine", kept),
    "activation": Row(Primitive.NORMALISATION, normalisation.offset_activation, "elementwise", aligned),
    "gate": Row(Primitive.NORMALISATION, normalisation.offset_activation, "elementwise", aligned, Level.GATE),
    "stop": Row(Primitive.NORMALISATION, normalisation.stop, "same", aligned, Level.GATE),
}

#: The rules in force, the latest last.
OPERATIONS: dict[str, list[Row]] = {}
MODULES: dict[type[nn.Module], list[Row]] = {}


#: What takes back the wrapping of a custom function.
_unwrap: dict[Any, Callable[[], None]] = {}


class Registration:
    """A rule in force. `remove` (or leaving the ``with`` block) takes it out again."""

    def __init__(self, rows: dict[Any, list[Row]], key: Any, row: Row) -> None:
        self._rows, self._key, self._row = rows, key, row
        if rows is FUNCTIONS and key not in rows:
            _unwrap[key] = wrap(key)
        rows.setdefault(key, []).append(row)

    def remove(self) -> None:
        """Takes the rule out; one that was registered before it is in force again."""
        rows = [row for row in self._rows.get(self._key, []) if row is not self._row]
        if rows:
            self._rows[self._key] = rows
        elif self._rows.pop(self._key, None) is not None and self._key in _unwrap:
            _unwrap.pop(self._key)()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register(
    target: Callable[..., Any] | type[nn.Module] | type[Function], rule: str | Callable[..., Any]
) -> Registration:
    """Gives an operation, a module class or an autograd.Function of your own a rule.

    Args:
        target: A torch function (``torch.special.i0``, ``torch.ops.mine.op``), an ``nn.Module`` class, or a class of
            ``torch.autograd.Function``. A class is then treated as one operation, whatever runs inside it.
        rule: One of

            - ``"reindexing"``: linear without constants, a selection, or homogeneous of degree one: the
              native gradient conserves relevance;
            - ``"activation"``: elementwise in one operand;
            - ``"gate"``: elementwise, and a gate in products;
            - ``"stop"``: a gate that keeps the relevance that reaches it;
            - a function of the same arguments (for a module: the module, then its inputs) that returns a
              *surrogate*: the same value up to rounding, written in torch operations whose rules apply. The
              value stays that of the original.

    Returns:
        A handle whose ``remove()`` takes the rule out again; it is also a context manager.

    Example:
        >>> import torch, hilrp
        >>> with hilrp.register(torch.special.entr, "activation"):
        ...     pass
    """
    is_module = isinstance(target, type) and issubclass(target, nn.Module)
    is_function = isinstance(target, type) and issubclass(target, Function)
    if isinstance(target, nn.Module):
        raise InputError(
            f"hilrp.register takes a module's class, not a module: register({type(target).__name__}, ...)."
        )
    if not is_module and not is_function and not _is_torchs(target):
        raise InputError(
            f"hilrp.register: {target!r} is no torch function, nn.Module class or autograd.Function class. Calls of "
            "other Python functions can't be seen; register the class of the module that makes them."
        )
    if isinstance(rule, str):
        if rule not in KINDS:
            raise InputError(
                f"hilrp.register: {rule!r} is not a rule. Use one of {', '.join(KINDS)}, or a surrogate function."
            )
        row = replace(KINDS[rule], users=True)
    elif callable(rule):
        row = Row(Primitive.LINEAR, Surrogate(rule, unproven=True), "", kept, users=True)
    else:
        raise InputError(
            f"hilrp.register: rule={rule!r} is neither a name ({', '.join(KINDS)}) nor a surrogate function."
        )
    if is_module or is_function:
        return Registration(MODULES if is_module else FUNCTIONS, target, row)
    return Registration(OPERATIONS, operation_name(target)[0], row)  # type: ignore[arg-type]


def _is_torchs(target: Any) -> bool:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return True
    owner = getattr(target, "__objclass__", None) or getattr(target, "__self__", None)
    module = getattr(target, "__module__", None) or getattr(owner, "__module__", None) or ""
    return callable(target) and (module == "torch" or module.startswith("torch."))


def is_registered(name: str) -> bool:
    """Whether the user has given the operation a rule."""
    return name in OPERATIONS


def row_of(name: str) -> Row | None:
    """The rule of an operation: the user's latest, or the table's."""
    return OPERATIONS[name][-1] if name in OPERATIONS else TABLE.get(name)
