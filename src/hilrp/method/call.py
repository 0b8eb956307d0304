"""One intercepted torch call, as a rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hilrp.method.ledger import Account
from hilrp.method.rules import Rules
from hilrp.util.nested import map_tensors, tensors


class Level(IntEnum):
    """How much of a gate a tensor is. In a product the factor of the lowest level carries the relevance."""

    #: Values that attention weights have mixed: what they are contracted with next is the query of a linear attention.
    VALUE = -1
    SIGNAL = 0
    #: Non-negative kernel features (relu, exp): gates beside a signal, signals beside a gate.
    FEATURE = 1
    #: Sigmoid-like gates and statistics of the input (norms, variances, reciprocals).
    GATE = 2
    #: Relative to a reference, one over something: as a factor it is a divisor.
    RECIPROCAL = 3
    #: Attention weights: where products are split evenly, they are the gates that keep their share.
    ATTENTION = 4
    #: A part of a tensor that holds nothing but constants, though others of its elements depend on the input.
    CONSTANT = 5


@dataclass(slots=True)
class Reference:
    """The same call on the reference.

    Attributes:
        operands: Its operands, in the order of the call's.
        changed: Which of them differ there.
        output: What it gave there.
        choosing: Whether masks or indices that depend on the input have been met in the pass.
        laid_out: Where the output is known in another form: what it is beside an output of the call.
    """

    operands: list[Tensor]
    changed: list[bool]
    output: Any
    choosing: bool = False
    laid_out: Callable[[Any], Any] | None = None

    def beside(self, output: Any) -> Any:
        """What the call gave on the reference, in the form of what it gives on the input."""
        if self.laid_out is not None:
            self.output, self.laid_out = self.laid_out(output), None
        return self.output


class KnownLayers(NamedTuple):
    """The layers of a pass: how many ran, and the numbers of those that the score depends on."""

    total: int
    live: tuple[int, ...]


@dataclass(slots=True)
class Layers:
    """Numbers the layers of a pass, and knows how deep each is.

    A layer's depth is its rank among those that the graph of the score leads to, so that a head which nobody asked for
    changes nothing. A branch that is joined and then cut off, or multiplied by zero, is in that graph, and counts.

    Attributes:
        expected: What was found when the model ran before, if it did.
        count: How many have run.
    """

    expected: KnownLayers | None = None
    count: int = 0
    _ranks: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.expected is not None:
            self.settle(self.expected.live)

    def as_expected(self, live: Iterable[int]) -> bool:
        """Whether what was taken for known is so, given the layers that the score was seen to depend on."""
        return self.expected is None or self.expected == KnownLayers(self.count, tuple(sorted(set(live))))

    @property
    def known(self) -> KnownLayers:
        """What was found, for when the model runs again."""
        return KnownLayers(self.count, tuple(self._ranks))

    def settle(self, live: Iterable[int]) -> None:
        """Says which layers the score depends on."""
        self._ranks = {number: rank for rank, number in enumerate(sorted(set(live)))}

    def enter(self) -> int:
        """Counts a layer; its number."""
        self.count += 1
        return self.count - 1

    def depth(self, number: int) -> float:
        """From 0 to 1; of a layer that carries nothing, 1."""
        last = len(self._ranks) - 1
        return self._ranks.get(number, last) / max(1, last) if self._ranks else 1.0


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
        account: ``account(output, kind)``: where to enter what constants of a kind keep of the output's relevance.
        module: The innermost module that is running, if any.
        reference: The same call on the reference input, where there is one.
        layers: Where linear layers are counted.
        depends: Whether a tensor depends on the input in any way, be it as whole numbers.
        operands: All tensors among the arguments.
    """

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rules: Rules
    level: Callable[[Tensor], Level]
    varies: Callable[[Tensor], bool]
    account: Callable[[Tensor, str], Account]
    module: torch.nn.Module | None = None
    reference: Reference | None = None
    layers: Layers = field(default_factory=Layers)
    depends: Callable[[Tensor], bool] = lambda _: False
    operands: list[Tensor] = field(init=False)
    _value: list[Any] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.operands = tensors((self.args, self.kwargs))

    def run(self, replace: Callable[[Tensor], Any] | None = None) -> Any:
        """The original function on the operands, each mapped by ``replace``."""
        if replace is None:
            return self.func(*self.args, **self.kwargs)
        args, kwargs = map_tensors(replace, (self.args, self.kwargs))
        return self.func(*args, **kwargs)

    def value(self) -> Any:
        """The original value, without a graph. It is computed once."""
        if not self._value:
            with torch.no_grad():
                self._value.append(self.func(*self.args, **self.kwargs))
        return self._value[0]

    def at_zero(self) -> Any:
        """The function with zeros for the operands that carry relevance: the constant part of an affine map."""
        with torch.no_grad():
            return self.run(lambda t: torch.zeros_like(t) if t.requires_grad else t)

    def book(self, output: Tensor, constant: Tensor, kind: str) -> None:
        """Enters, once the gradient of ``output`` is known, what a constant in it keeps of its relevance."""
        if not output.requires_grad:
            return
        constant, write = constant.detach(), self.account(output, kind)
        output.register_hook(lambda g: write(constant, g))

    def kind(self, constants: Iterable[Any], otherwise: str) -> str:
        """What an account of constants is called: ``"gate"``, if one of them depends on the input."""
        given = [t for t in constants if isinstance(t, Tensor) and not t.requires_grad]
        return "gate" if any(self.varies(t) or self.depends(t) for t in given) else otherwise

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    @property
    def output_before(self) -> Any:
        """What the operation gives on the reference."""
        assert self.reference is not None
        return self.reference.output if self.reference.laid_out is None else self.reference.beside(self.value())

    def before(self, tensor: Tensor) -> Tensor:
        """What an operand is on the reference; a constant is the same."""
        assert self.reference is not None
        pairs = zip(self.operands, self.reference.operands, strict=True)
        return next((t0 for t, t0 in pairs if t is tensor), tensor)

    def changes(self, tensor: Tensor) -> bool:
        """Whether an operand depends on the input, be it through choices alone (a mask of numbers)."""
        assert self.reference is not None
        return any(t is tensor and changed for t, changed in zip(self.operands, self.reference.changed, strict=True))

    def difference(self, tensor: Tensor) -> Tensor:
        """What an operand is more than on the reference."""
        return tensor - self.before(tensor)

    def held(self, tensor: Tensor) -> Tensor:
        """What relevance is held of: an operand that varies or, with a reference, its change. Constants as they are."""
        return self.difference(tensor) if self.reference is not None and self.changes(tensor) else tensor

    def middle(self, tensor: Tensor) -> Tensor:
        """The mean of an operand and what it is on the reference, without a graph."""
        with torch.no_grad():
            return (tensor + self.before(tensor)) / 2 if self.changes(tensor) else tensor

    @property
    def fixed(self) -> list[Tensor]:
        """Operands that depend on the input through choices alone (a mask, an index), and carry nothing."""
        return [t for t in self.operands if self.changes(t) and not t.requires_grad]

    @property
    def choices(self) -> list[tuple[Tensor, Tensor]]:
        """Masks and indices that depend on the input, with what they are on the reference."""
        whole = [t for t in self.operands if not (t.is_floating_point() or t.is_complex())]
        return [(t, self.before(t)) for t in whole if self.changes(t)]

    @property
    def carriers(self) -> list[Tensor]:
        """The operands through which relevance can flow."""
        return [t for t in self.operands if t.requires_grad]
