"""What the engine knows about tensors, in a side table of its own: nothing is stuck on a user's tensor.

The table is keyed weakly, so that it keeps no tensor alive. A tensor in it depends on the input.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hilrp.method.call import Level
from hilrp.method.graph import graph_nodes
from hilrp.method.sample_axis import Layout
from hilrp.method.table import Primitive


def writes_to(tensor: Tensor) -> int:
    """How often a tensor was written to; of tensors made in inference mode torch does not count it."""
    return 0 if tensor.is_inference() else tensor._version


def _base(tensor: Tensor) -> Tensor:
    """The tensor that torch takes for the owner of this one's memory."""
    return tensor if tensor._base is None else tensor._base


@dataclass(slots=True)
class Info:
    """What is known of a tensor that depends on the input.

    Attributes:
        level: How much of a gate it is.
        carries: Whether relevance can flow through it.
        layout: Where the samples are in it.
        version: torch's count of writes to it, when it was entered.
        hidden: Whether it was made by an operation that the engine did not see.
        ends: Whether no gradient comes through it, whatever torch says.
    """

    level: Level
    carries: bool
    layout: Layout | None
    version: int
    hidden: bool = False
    ends: bool = False


@dataclass(frozen=True)
class Tally:
    """What a pass counts, also where parts of it run again.

    Attributes:
        counts: Operations, by primitive.
        notes: What is worth saying.
        gates: What products held fixed.
        dtypes: The types that the pass computed in.
        sites: Calls of an operation in a module.
        read_outs: Where values that depend on the input left torch, as numbers or arrays.
        values_read: Of these, those that were no whole numbers, by operation.
        strangers: Where a tensor came in that the engine had not seen being made, and that tensor.
        problems: What a strict audit raises.
        unchecked: What nobody can see.
        ran_in: The paths of modules in which an operation had a rule, where modules have rules of their own.
    """

    counts: Counter[tuple[Primitive, str]] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    gates: Counter[str] = field(default_factory=Counter)
    dtypes: set[torch.dtype] = field(default_factory=set)
    sites: Counter[tuple[str, str]] = field(default_factory=Counter)
    read_outs: Counter[str] = field(default_factory=Counter)
    values_read: Counter[str] = field(default_factory=Counter)
    strangers: list[tuple[str, Tensor]] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    ran_in: set[str] = field(default_factory=set)


class Tracker:
    """The side table, and which tensors stand for others after in-place operations."""

    def __init__(self) -> None:
        self._info: dict[int, tuple[weakref.ref[Tensor], Info]] = {}
        self._views: dict[int, list[weakref.ref[Tensor]]] = {}
        self._aliases: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._detached: dict[int, tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = {}
        self._input_nodes: list[Any] = []
        self._references: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        self._choices: dict[int, weakref.ref[Tensor]] = {}
        self._reshaped: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}
        #: Constants whose making the engine saw, with torch's count of writes to them that it saw, and by their memory.
        self._constants: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._sharing: dict[int, list[weakref.ref[Tensor]]] = {}
        self._used: dict[int, weakref.ref[Tensor]] = {}
        #: Of tensors that were written to in parts, what they are made of (`in_place.Pieces`).
        self.pieces: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        self.has_choices = False

    def info(self, tensor: Tensor) -> Info | None:
        """The tensor's entry, if it depends on the input."""
        found = self._info.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def varies(self, tensor: Tensor) -> bool:
        """Whether the tensor depends on the input."""
        return self.info(tensor) is not None

    def level(self, tensor: Tensor) -> Level:
        """The tensor's gate level."""
        info = self.info(tensor)
        return Level.SIGNAL if info is None else info.level

    def layout(self, tensor: Tensor) -> Layout | None:
        """Where the samples are in the tensor."""
        info = self.info(tensor)
        return None if info is None else info.layout

    def track(
        self,
        tensor: Tensor,
        level: Level,
        layout: Layout | None,
        tap: bool = False,
        hidden: bool = False,
        ends: bool = False,
    ) -> None:
        """Enters a tensor that depends on the input.

        The model never holds a ``tap``, which needs no keeping as a view.
        """
        info = Info(level, tensor.requires_grad and not ends, layout, writes_to(tensor), hidden, ends)
        self._info[id(tensor)] = (weakref.ref(tensor), info)
        root = self.root(tensor)
        if root is not None and not tap and id(tensor) not in self._detached:
            self._views.setdefault(id(root), []).append(weakref.ref(tensor))

    def choose(self, tensor: Tensor) -> None:
        """Enters a mask, an index or another tensor of whole numbers that depends on the input, and carries nothing."""
        self._choices[id(tensor)] = weakref.ref(tensor)

    def is_choice(self, tensor: Tensor) -> bool:
        """Whether the tensor depends on the input, but holds whole numbers or truth values."""
        found = [(each, self._choices.get(id(each))) for each in (tensor, tensor._base) if each is not None]
        return any(reference is not None and reference() is each for each, reference in found)

    @property
    def has_masks(self) -> bool:
        """Whether any mask or index depends on the input."""
        return bool(self._choices)

    def make(self, tensor: Tensor) -> None:
        """Enters a constant that the engine saw being made; not a view of one that was written to unseen."""
        base = _base(tensor)
        known = self._constants.get(id(base))
        if base is tensor or known is None or known[0]() is not base or self.is_made(base):
            self.vouch(tensor)

    def vouch(self, tensor: Tensor) -> None:
        """Enters a constant as it is now."""
        if id(tensor) not in self._constants or self._constants[id(tensor)][0]() is not tensor:
            self._sharing.setdefault(id(_base(tensor)), []).append(weakref.ref(tensor))
        self._constants[id(tensor)] = weakref.ref(tensor), writes_to(tensor)

    def wrote(self, tensor: Tensor, before: int) -> None:
        """Notes a write to a constant that the engine saw: what was known of its memory before, is so now."""
        for reference in self._sharing.get(id(_base(tensor)), ()):
            each = reference()
            if each is not None and _base(each) is _base(tensor) and self._constants[id(each)][1] == before:
                self._constants[id(each)] = reference, writes_to(tensor)

    def use(self, tensor: Tensor) -> None:
        """Notes a constant that a graph may keep, so that it must not be written to."""
        root = _base(tensor)
        self._used[id(root)] = weakref.ref(root)

    def is_used(self, tensor: Tensor) -> bool:
        """Whether a graph may keep a constant, or another part of its memory."""
        root = _base(tensor)
        found = self._used.get(id(root))
        return found is not None and found() is root

    def is_made(self, tensor: Tensor) -> bool:
        """Whether the engine saw a constant being made, and all that was written to it since."""
        found = self._constants.get(id(tensor))
        return found is not None and found[0]() is tensor and found[1] == writes_to(tensor)

    def watch(self, leaf: Tensor, layout: Layout | None, reference: Tensor | None = None) -> Tensor:
        """The model's input for this pass: a copy of ``leaf`` that is tracked, so that the model may write to it."""
        x = leaf.clone()
        self._input_nodes.append(x.grad_fn)
        self.track(x, Level.SIGNAL, layout)
        if reference is not None:
            self.refer(x, reference)
        return x

    def refer(self, tensor: Tensor, reference: Tensor) -> None:
        """Enters what a tensor is on the reference input; masks and indices may have one, too."""
        # What has no graph carries nothing: it chooses, be it with numbers.
        self.has_choices |= not tensor.requires_grad
        key, table = id(tensor), self._references
        table[key] = (weakref.ref(tensor, lambda _: table.pop(key, None)), reference)

    def reference(self, tensor: Tensor) -> Tensor | None:
        """What a tensor is on the reference input; ``None`` if that is the same."""
        found = self._references.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def on_reference(self, tensor: Tensor) -> Tensor:
        """What a tensor is on the reference input: a constant is the same."""
        found = self.reference(tensor)
        return tensor if found is None else found

    def reaches_input(self, tensor: Tensor) -> bool:
        """Whether the tensor's graph leads to an input that is watched."""
        return any(node in self._input_nodes for node in graph_nodes(tensor))

    def detached(self, tensor: Tensor, source: Tensor) -> None:
        """Notes a tensor that shares its memory with another, unknown to autograd."""
        root = self.root(source)
        root = source if root is None else root
        key, table = id(tensor), self._detached
        table[key] = weakref.ref(tensor, lambda _: table.pop(key, None)), weakref.ref(root)
        self._views.setdefault(id(root), []).append(weakref.ref(tensor))

    def is_detached(self, tensor: Tensor) -> bool:
        """Whether the tensor came out of ``detach()`` or ``.data``, or is a view of one that did."""
        return self._detached_from(tensor) is not None

    def root(self, tensor: Tensor) -> Tensor | None:
        """The tensor that this one is a view of, or shares the memory of."""
        source = self._detached_from(tensor)
        return tensor._base if source is None else source

    def _detached_from(self, tensor: Tensor) -> Tensor | None:
        for each in (tensor, tensor._base) if self._detached else ():
            found = self._detached.get(id(each))
            if found is not None and found[0]() is each:
                return found[1]()
        return None

    # In-place operations --------------------------------------------------------------------------------------

    def current(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for this one after in-place operations, in the shape that they gave it."""
        while (found := self._reshaped.get(id(tensor)) or self._aliases.get(id(tensor))) and found[0]() is tensor:
            tensor = found[1]
        return tensor

    def memory(self, tensor: Tensor) -> Tensor:
        """The tensor that holds what is in this one's memory, in its first shape: that of its views."""
        while (found := self._aliases.get(id(tensor))) is not None and found[0]() is tensor:
            tensor = found[1]
        return tensor

    def alias(self, old: Tensor, new: Tensor) -> None:
        """From now on ``new`` stands for ``old``."""
        key, table = id(old), self._aliases
        table[key] = (weakref.ref(old, lambda _: table.pop(key, None)), new)

    def reshape(self, old: Tensor, new: Tensor) -> None:
        """From now on the model's name for ``old`` means ``new``, a view of it.

        Other views still are views of ``old``.
        """
        key, table = id(old), self._reshaped
        table[key] = (weakref.ref(old, lambda _: table.pop(key, None)), new)

    @property
    def has_aliases(self) -> bool:
        """Whether any tensor stands for another."""
        return bool(self._aliases or self._reshaped)

    def views(self, root: Tensor) -> list[Tensor]:
        """The live views of a tensor that the engine has met, detached ones among them."""
        found = (ref() for ref in self._views.get(id(root), ()))
        return [view for view in found if view is not None and self.root(view) is root]

    def release(self) -> None:
        """Lets go of the pass's tensors."""
        for table in (
            self._info, self._views, self._aliases, self._detached, self._input_nodes, self._references, self._choices,
            self._constants, self._sharing, self._used, self.pieces, self._reshaped,
        ):  # fmt: skip
            table.clear()
