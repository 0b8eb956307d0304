"""Custom autograd functions that the user has given a rule.

torch tells nobody of ``Function.apply``. So while a rule is registered for such a class, its ``forward`` is wrapped:
under an engine it says what it was called with, and the engine puts the rule on its output when that is used. Without
an engine it runs as it is.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from hilrp.method.autograd import linearised
from hilrp.method.table import TABLE, Row
from hilrp.util.nested import map_tensors, tensors

#: The rules in force, the latest last.
FUNCTIONS: dict[type[Function], list[Row]] = {}
_thread = threading.local()


@dataclass
class FunctionCall:
    """A call of a registered function: its class, its context (older functions take one) and its arguments."""

    function: type[Function]
    body: Callable[..., Any]
    context: tuple[Any, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = field(default=None)

    @property
    def name(self) -> str:
        """What the function is called as an operation."""
        return class_name(self.function)

    @property
    def row(self) -> Row:
        """The rule in force."""
        return FUNCTIONS[self.function][-1]

    def forward(self) -> Any:
        """Runs the function's own forward."""
        self.output = self.body(*self.context, *self.args, **self.kwargs)
        return self.output

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """What the function has just returned.

        It runs again only where a rule asks for other inputs, or for the function's own gradient.
        """
        own, value = tensors((args, kwargs)), map_tensors(Tensor.detach, self.output)
        if torch.is_grad_enabled() and any(t.requires_grad for t in own):
            with listening(None), torch._C.DisableTorchFunction():
                return with_values(self.function.apply(*map_tensors(Tensor.clone, args), **kwargs), value)
        if all(a is b for a, b in zip(own, tensors((self.args, self.kwargs)), strict=True)):
            return value
        with torch.no_grad(), listening(None), torch._C.DisableTorchFunction():
            return self.function.apply(*map_tensors(Tensor.clone, args), **map_tensors(Tensor.clone, kwargs))


def class_name(kind: type) -> str:
    """What a class is called as an operation: by its name, but never by that of an operation of torch's."""
    return kind.__name__ if kind.__name__ not in TABLE else f"{kind.__module__}.{kind.__name__}"


def with_values(output: Any, values: Any) -> Any:
    """What was computed once more with a graph, in the numbers of the first time."""
    first = dict(zip(map(id, tensors(output)), tensors(values), strict=True))
    return map_tensors(lambda t: linearised(t, first[id(t)]), output)


class Waiting:
    """Calls of registered functions whose output has not been used yet."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[weakref.ref[Tensor], FunctionCall]] = {}

    @property
    def waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

    def add(self, call: FunctionCall, output: Any) -> None:
        """Enters a call, but one that returns an input: that is written to, and not made."""
        made, given = tensors(output), {id(t) for t in tensors((call.args, call.kwargs))}
        if not any(id(t) in given for t in made):
            self._calls |= {id(t): (weakref.ref(t), call) for t in made}

    def take(self, tensor: Tensor) -> FunctionCall | None:
        """The call that made a tensor, which then no longer waits."""
        reference, call = self._calls.get(id(tensor), (None, None))
        if call is None or reference is None or reference() is not tensor:
            return None
        for t in tensors(call.output):
            self._calls.pop(id(t), None)
        return call

    def clear(self) -> None:
        """Forgets all of them."""
        self._calls.clear()


@contextmanager
def listening(listener: Callable[[FunctionCall], Any] | None) -> Iterator[None]:
    """Has the calls of registered functions in this thread run by a listener; by none, they run as they are."""
    before = getattr(_thread, "listener", None)
    _thread.listener = listener
    try:
        yield
    finally:
        _thread.listener = before


def wrap(function: type[Function]) -> Callable[[], None]:
    """Wraps the forward of a function; what is returned takes that back."""
    own, body = function.__dict__.get("forward"), function.forward
    takes_context = function.setup_context is Function.setup_context

    def forward(*received: Any, **kwargs: Any) -> Any:
        listener = getattr(_thread, "listener", None)
        if listener is None:
            return body(*received, **kwargs)
        context, args = (received[:1], received[1:]) if takes_context else ((), received)
        return listener(FunctionCall(function, body, context, args, kwargs))

    def unwrap() -> None:
        if own is None:
            del function.forward
        else:
            function.forward = own  # type: ignore[method-assign]

    function.forward = staticmethod(forward)  # type: ignore[method-assign]
    return unwrap


def is_users(node: Any) -> bool:
    """Whether a node of torch's graph is a custom function that isn't one of the engine's own."""
    function = getattr(node, "_forward_cls", None)
    # torch makes such functions for custom operations, which the engine has seen.
    return function is not None and not function.__module__.startswith(("hilrp.", "torch._library"))
