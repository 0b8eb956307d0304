"""Seeing into the functions that torch writes in Python."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from typing import Any

_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


@cache
def opened(func: types.FunctionType) -> Callable[..., Any]:
    """The same torch function without its own dispatch, so that the engine meets what it is made of.

    torch's Python functions begin with ``if has_torch_function(...): return handle_torch_function(...)``, which
    under a mode always sends the call to the mode as one piece. A copy whose ``has_torch_function`` says no runs
    torch's own body, whatever the version.
    """
    names = {**func.__globals__, **dict.fromkeys(_CHECKS, lambda *_: False)}
    copy = types.FunctionType(func.__code__, names, func.__name__, func.__defaults__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy
