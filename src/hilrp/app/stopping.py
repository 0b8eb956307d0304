"""Ends what nobody waits for, between two layers of the model."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook


class Stopped(Exception):
    """Somebody doesn't want to wait any longer."""


@contextmanager
def between_layers(*stops: threading.Event) -> Iterator[None]:
    """Raises when this thread comes to the next layer of any model once one of ``stops`` is set.

    A backward pass has no layers and is finished. `hilrp.app.comparison.Stoppable` looks before every operation, which
    takes a tenth of the time and more: methods with many passes are worth it, one explanation is not.
    """
    own = threading.get_ident()

    def look(*_: Any) -> None:
        if threading.get_ident() == own and any(stop.is_set() for stop in stops):
            raise Stopped

    look()
    hook = register_module_forward_pre_hook(look)
    try:
        yield
    except Exception:
        look()  # the explainer takes what is raised in a forward pass for a fault of the model
        raise
    finally:
        hook.remove()
    look()
