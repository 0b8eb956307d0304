"""Tensors that come into a pass without the engine having seen them being made.

Most are constants: parameters, buffers, what a model keeps between calls. But what another thread, numpy or an extension made of the
input looks the same. The engine keeps them apart, so that a second pass on another input can tell which of them depend on it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hilrp import messages
from hilrp.tracking import Tally, Tracker
from hilrp.tree import tensors


class Strangers:
    """Looks at constants that enter a pass.

    Args:
        model: What it holds is known.
        tally: Where strangers are entered.
        tracker: Knows the constants that were made in the pass.
    """

    def __init__(self, model: nn.Module, tally: Tally, tracker: Tracker) -> None:
        self._model, self._tally, self._tracker = model, tally, tracker
        self._held: dict[int, Tensor] | None = None

    def meet(self, tensor: Tensor, name: str, module: nn.Module | None, path: str) -> None:
        """Enters a constant that is neither the model's nor made in the pass; ``name`` is the operation that uses it."""
        if isinstance(tensor, nn.Parameter) or self._tracker.is_made(tensor) or self._tracker.is_choice(tensor):
            return
        if module is not None and any(tensor is buffer for buffer in module._buffers.values()):
            return
        if self._held is None:
            held = (t for module in self._model.modules() for t in tensors(_attributes(module)))
            self._held = {id(t): t for t in held}
        self._tracker.make(tensor)
        if id(tensor) not in self._held:
            self._tally.strangers.append((f"`{name}` in {messages.place(path)}", tensor))


def _attributes(module: nn.Module) -> list[Any]:
    """What a module holds itself."""
    return [value for name, value in vars(module).items() if name != "_modules"]
