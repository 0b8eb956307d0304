"""Tensors that come into a pass without the engine having seen them being made.

Most are constants: parameters, buffers, what a model keeps between calls. But what another thread, numpy or an
extension made of the input looks the same. The engine keeps them apart, so that a second pass on another input can tell
which of them depend on it.
"""

from __future__ import annotations

from torch import Tensor, nn

from hilrp.engine import messages
from hilrp.engine.tensor_info import Tally, Tracker, writes_to


class Strangers:
    """Looks at constants that enter a pass.

    Args:
        model: Its parameters and buffers are known, as they are before the pass.
        tally: Where strangers are entered.
        tracker: Knows the constants that were made in the pass.
    """

    def __init__(self, model: nn.Module, tally: Tally, tracker: Tracker) -> None:
        self._tally, self._tracker = tally, tracker
        self._held = {id(t): writes_to(t) for t in (*model.parameters(), *model.buffers())}

    def meet(self, tensor: Tensor, name: str, path: str) -> None:
        """Enters a constant that is neither the model's nor made in the pass.

        ``name`` is the operation that uses it.
        """
        if self._held.get(id(tensor)) == writes_to(tensor):
            return
        if not (self._tracker.is_made(tensor) or self._tracker.is_choice(tensor)):
            self._tracker.vouch(tensor)
            # A copy: its memory may be written to before it is compared.
            self._tally.strangers.append((f"`{name}` in {messages.place(path)}", tensor.detach().clone()))
