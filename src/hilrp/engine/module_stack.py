"""Which module is running: the paths that messages, books and stages speak of.

The model's own hooks aren't touched. torch has hooks for all modules of the process; they see those of every
thread, so each watch minds the thread that it was opened in.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as registry
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleWatch:
    """The stack of running modules of one thread.

    Args:
        model: The model whose modules have paths.
        on_enter: Called with (module, positional arguments) when a module begins; what it returns, if anything,
            replaces the arguments.
        on_leave: Called with (module, positional arguments, keyword arguments, output) when it ends, the arguments as
            hooks of its own left them; what it returns, if anything, replaces the output.
    """

    def __init__(
        self,
        model: nn.Module,
        on_enter: Callable[[nn.Module, tuple[Any, ...]], tuple[Any, ...] | None],
        on_leave: Callable[[nn.Module, tuple[Any, ...], dict[str, Any], Any], Any],
    ) -> None:
        modules = list(model.named_modules(remove_duplicate=False))
        self._paths = {id(module): path for path, module in reversed(modules)}
        self._stack: list[nn.Module] = []
        #: The stack when a module raised, until the model goes on.
        self._failed: list[nn.Module] = []
        self._on_enter, self._on_leave = on_enter, on_leave
        self._handles: list[Any] = []

    def open(self) -> None:
        """Begins to watch the modules that run in this thread."""
        thread = threading.get_ident()

        def before(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if threading.get_ident() == thread:
                self._failed = []
                self._stack.append(module)
                return self._on_enter(module, args)
            return None

        def after(module: nn.Module, args: tuple[Any, ...], *rest: Any) -> Any:
            if threading.get_ident() != thread or not self.is_running(module):
                return None
            while self._stack[-1] is not module:  # they raised, and the model went on
                self._stack.pop()
            # Where a module raises, torch gives no keyword arguments to this hook, whatever it asked for.
            kwargs, output = rest if len(rest) == 2 else ({}, None)
            if len(rest) < 2 or (output is None and sys.exc_info()[0] is not None):
                self._failed = self._failed or [*self._stack]
                self._stack.pop()
                return None
            self.went_on()
            replaced = self._on_leave(module, args, kwargs, output)
            self._stack.pop()
            return replaced

        self._handles = [
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, with_kwargs=True, always_call=True),
        ]

    def close(self) -> None:
        """Stops watching. Where modules raised, their path stays, so that the error can be placed."""
        for handle in self._handles:
            handle.remove()
            # torch leaves these entries of a global hook behind.
            for table in ("_global_forward_hooks_with_kwargs", "_global_forward_hooks_always_called"):
                getattr(registry, table, {}).pop(handle.id, None)

    def went_on(self) -> None:
        """Says that the model did not end with the module that raised."""
        if self._failed:
            self._failed = []

    def is_running(self, module: nn.Module) -> bool:
        """Whether the module has begun and not ended."""
        return any(each is module for each in self._stack)

    @property
    def path(self) -> str:
        """Path of the innermost running module that the model knows by name."""
        return next((self._paths[id(m)] for m in reversed(self._failed or self._stack) if id(m) in self._paths), "")

    @property
    def innermost(self) -> nn.Module | None:
        """The innermost running module."""
        return next(reversed(self._failed or self._stack), None)
