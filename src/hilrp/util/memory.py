"""Where memory doesn't suffice: it is noticed, what was held is let go, and the work goes on with less at once."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

#: What torch says of memory where it has no error of its own for it: on processors, on Apple's GPUs, in libraries that
#: it calls (the last two are oneDNN's words).
_SAID = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "bad_alloc",
    "ALLOC_FAILED",
    "could not create a primitive",
    "could not create a memory",
)

_Made = TypeVar("_Made")


def shortage(error: BaseException) -> str | None:
    """What an error says of memory that doesn't suffice, if that is its reason, or of one that it was raised from.

    Example:
        >>> shortage(MemoryError("no room")), shortage(ValueError("no room"))
        ('no room', None)
    """
    found, each = None, error
    while each is not None:
        said = " ".join(str(each).split())
        if isinstance(each, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(each, RuntimeError) and any(text in said for text in _SAID)
        ):
            found = said[:200] or type(each).__name__
        each = each.__cause__  # type: ignore[assignment]
    return found


def in_parts(run: Callable[[slice], _Made], count: int, size: int) -> tuple[list[_Made], int]:
    """Runs ``run`` on ``count`` samples, ``size`` at once; where memory doesn't suffice, on half as many.

    What is done is kept.

    Returns:
        What it returned for each part, in order, and how many at once it was in the end.

    Raises:
        MemoryError: If memory doesn't suffice for one.

    Example:
        >>> in_parts(lambda part: (part.start, part.stop), 5, 2)
        ([(0, 2), (2, 4), (4, 5)], 2)
    """
    found: list[_Made] = []
    done = 0
    while done < count or not found:
        part, reason = slice(done, min(done + size, count)), None
        try:
            found.append(run(part))
        except Exception as error:
            reason = shortage(error)
            if reason is None:
                raise
        if reason is None:
            done = part.stop
            continue
        # Only here the error is gone, and with it the tensors that the frames of its traceback hold.
        free()
        size = (part.stop - done) // 2
        if not size:
            raise MemoryError(reason)
    return found, size


def free() -> None:
    """Gives back what nobody holds any more."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
