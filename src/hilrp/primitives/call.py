"""One intercepted torch call, as a rule sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hilrp.rules import Rules
from hilrp.tree import map_tensors, tensors


class Level(IntEnum):
    """How much of a gate a tensor is. In a product the factor of the lowest level carries the relevance."""

    #: Values that attention weights have mixed: what they are contracted with next is the query of a linear attention.
    VALUE = -1
    SIGNAL = 0
    #: Non-negative kernel features (relu, exp): gates beside a signal, signals beside a gate.
    FEATURE = 1
    #: Sigmoid-like gates and statistics of the input (norms, variances, reciprocals).
    GATE = 2
    #: Attention weights: where products are split evenly, they are the gates that keep their share.
    ATTENTION = 3


class Reference(NamedTuple):
    """The same call as it ran in a recorded reference pass."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any


@dataclass(slots=True)
class Call:
    """An operation, its operands, and what the engine knows about them.

    Operands that are constants have been detached, so that ``run`` builds a graph through the operands
    that carry relevance and through nothing else.

    Attributes:
        func: The torch function, for the value.
        name: Its canonical name, as in the table.
        args: Positional arguments.
        kwargs: Keyword arguments.
        rules: The rule set in force.
        level: Gate level of a tensor (constants are signals).
        varies: Whether a tensor depends on the input, with or without a graph.
        book: ``book(output, constant, kind)``: enters what a constant keeps of the output's relevance.
        module: The innermost module that is running, if any.
        reference: The same call in the reference pass, where one is replayed.
    """

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rules: Rules
    level: Callable[[Tensor], Level]
    varies: Callable[[Tensor], bool]
    book: Callable[[Tensor, Tensor, str], None]
    module: torch.nn.Module | None = None
    reference: Reference | None = None

    def run(self, replace: Callable[[Tensor], Any] | None = None) -> Any:
        """The original function on the operands, each mapped by ``replace``."""
        if replace is None:
            return self.func(*self.args, **self.kwargs)
        args, kwargs = map_tensors(replace, (self.args, self.kwargs))
        return self.func(*args, **kwargs)

    def value(self) -> Any:
        """The original value, without a graph."""
        with torch.no_grad():
            return self.func(*self.args, **self.kwargs)

    def at_zero(self) -> Any:
        """The function with zeros for the operands that carry relevance: the constant part of an affine map."""
        with torch.no_grad():
            return self.run(lambda t: torch.zeros_like(t) if t.requires_grad else t)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    @property
    def operands(self) -> list[Tensor]:
        """All tensors among the arguments."""
        return tensors((self.args, self.kwargs))

    @property
    def carriers(self) -> list[Tensor]:
        """The operands through which relevance can flow."""
        return [t for t in self.operands if t.requires_grad]
