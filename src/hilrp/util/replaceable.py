"""Functions of which another module may enter a faster form, without being imported by the first."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Replaceable(Generic[P, R]):
    """A function with a faster form.

    The faster form is asked first. It returns ``None`` for arguments that it does not take; then the function itself
    runs.

    Example:
        >>> @Replaceable
        ... def double(x: int) -> int:
        ...     return x + x
        >>> double.faster = lambda x: x << 1 if x >= 0 else None
        >>> double(3), double(-3)
        (6, -6)
    """

    def __init__(self, plain: Callable[P, R]) -> None:
        update_wrapper(self, plain)
        self.plain = plain
        self.faster: Callable[..., Any] | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Runs the faster form, or the function itself."""
        found: R | None = None if self.faster is None else self.faster(*args, **kwargs)
        return self.plain(*args, **kwargs) if found is None else found
