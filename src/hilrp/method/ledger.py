"""The ledger: double-entry books of relevance.

Gradient x Input with local linearisation obeys an identity: the score is the sum over the pixels plus the sum
over every constant that entered the graph. Each constant's share is computed from the constant itself
(``c * g``) where it enters, never as the difference that it is checked against, so that the check can fail:
what no constant explains is a leak.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from hilrp.method.sample_axis import Layout, split_samples
from hilrp.util.replaceable import Replaceable


class Site(NamedTuple):
    """Where an operation ran: the module's path, the operation, and which of the module's calls it was."""

    module: str
    operation: str
    number: int = 0

    def __str__(self) -> str:
        repeated = f" #{self.number}" if self.number > 1 else ""
        return f"{self.module or '(model)'}: {self.operation}{repeated}"


#: The entry of the reference's own score.
REFERENCE = "reference"
#: The entry of relevance that lies on other samples of the batch, where samples see each other.
OTHERS = "other samples"


#: Kinds of constants that are a model's parameters, and no masks.
_PARAMETERS = frozenset(["bias", "norm shift"])


class UnknownLayout(Exception):
    """The samples of a batch could not be told apart at an entry; explained one by one, they can."""


def per_sample(c: Tensor, g: Tensor, layout: Layout | None, batch: int) -> Tensor:
    """``sum(c * g)`` over each sample's elements, ``c`` broadcast against ``g``.

    The result is float64, of length ``batch``.
    """
    if g.is_complex():
        # With torch's convention for complex gradients, relevance is Re(conj(c) g).
        c, g = torch.view_as_real(c.to(g.dtype).resolve_conj()), torch.view_as_real(g.resolve_conj())
    shape = (1,) * (g.ndim - c.ndim) + tuple(c.shape)
    if batch == 1:
        g, c = g.unsqueeze(0), c.reshape(1, *shape)
        sample_axis = 0
    elif layout is None:
        raise UnknownLayout
    else:
        axis = layout.axis
        g = g.reshape(split_samples(g.shape, layout, batch))
        spread = (1, 1, 1) if shape[axis] == 1 else g.shape[axis : axis + 3]
        c = c.reshape(*shape[:axis], *spread, *shape[axis + 1 :])
        sample_axis = axis + 1
    # Where the constant is the same along an axis, sum the gradient first: a bias costs one pass over g.
    alike = [i for i in range(g.ndim) if c.shape[i] == 1 and i != sample_axis]
    if alike:
        g = g.sum(alike, keepdim=True)
    shares = c.double() * g.double()
    others = [i for i in range(g.ndim) if i != sample_axis]
    return shares.sum(others) if others else shares  # torch takes an empty list for all axes


@Replaceable
def add_at_once(total: Tensor, constant: Tensor, g: Tensor, scale: float) -> bool:
    """Adds ``scale sum(constant g)`` of each sample to its total, if there is a kernel that can; says whether."""
    return False


def _without_masks(t: Tensor) -> Tensor:
    """Values that aren't finite are masks (of attention, of max-pooling's margin, of nanmean): they have no share.

    Their gradient is zero; if it weren't, the score itself would not be finite.
    """
    return t if t.is_complex() else t.nan_to_num(0.0, 0.0, 0.0)


_Key = TypeVar("_Key")


@dataclass
class Books:
    """What is written while an explanation runs.

    Attributes:
        batch: Number of samples.
        itemised: Keep an account per operation, and measure what each lets through.
        shares: What constants kept, by kind, or by site and kind if itemised.
        flows: For itemised books: relevance in minus relevance out, by site.
        unsplit: Whether an entry could not be told apart by sample.
        seed: What the backward pass was started with, where not one: float16 needs larger gradients.
    """

    batch: int
    itemised: bool = False
    shares: dict[tuple[Site | None, str], Tensor] = field(default_factory=dict)
    flows: dict[Site, Tensor] = field(default_factory=dict)
    unsplit: bool = False
    seed: float = 1.0

    def clear(self) -> None:
        """Begins new books for another backward pass of the same graph."""
        self.shares.clear()
        self.flows.clear()

    def account(self, kind: str, site: Site, layout: Layout | None) -> Account:
        """The account of a kind of constants at an operation whose output has its samples laid out like this."""
        return Account(self, (site if self.itemised else None, kind), layout)

    def measure(
        self, tensor: Tensor, sign: int, site: Site, layout: Layout | None, reference: Tensor | None = None
    ) -> None:
        """Itemised books: counts the relevance of ``tensor`` into (+1) or out of (-1) the operation at ``site``."""
        value = tensor.detach()

        def write(g: Tensor | None) -> None:
            # The copy is made here, where it lives for a moment, and not in the forward pass.
            held = value if reference is None else value - reference
            self._add(self.flows, site, _without_masks(held) * sign, g, layout)

        tensor.register_hook(write)

    def _add(
        self,
        accounts: dict[_Key, Tensor],
        account: _Key,
        constant: Tensor,
        g: Tensor | None,
        layout: Layout | None,
    ) -> None:
        if g is None:  # torch's way of saying that all of it is zero
            return
        if (
            g.is_cuda
            and self.in_turn(layout, g)
            and add_at_once(self.total(accounts, account, g), constant, g, 1 / self.seed)
        ):
            return
        try:
            share = per_sample(constant, g, layout, self.batch) / self.seed
        except UnknownLayout:
            self.unsplit = True
            return
        accounts[account] = accounts[account] + share if account in accounts else share

    def in_turn(self, layout: Layout | None, g: Tensor) -> bool:
        """Whether the samples of a tensor are one after the other in memory."""
        return self.batch == 1 or (layout is not None and layout.axis == 0 and layout.inner * self.batch == g.shape[0])

    def total(self, accounts: dict[_Key, Tensor], account: _Key, like: Tensor) -> Tensor:
        """What an account holds, to be added to in place."""
        if account not in accounts:
            accounts[account] = torch.zeros(self.batch, dtype=torch.float64, device=like.device)
        return accounts[account]


@dataclass(frozen=True, slots=True)
class Account:
    """Where a rule enters what its constants keep.

    Called with a constant, and with the gradient of the sum that it is part of.
    """

    books: Books
    key: tuple[Site | None, str]
    layout: Layout | None

    def __call__(self, constant: Tensor, g: Tensor | None) -> None:
        """Enters a share."""
        constant = constant if self.key[1] in _PARAMETERS else _without_masks(constant)
        self.books._add(self.books.shares, self.key, constant, g, self.layout)

    def total(self, g: Tensor) -> Tensor | None:
        """What samples have in the account so far, to be added to in place.

        ``None`` if their parts of ``g`` are not one after the other.
        """
        books = self.books
        return books.total(books.shares, self.key, g) if books.in_turn(self.layout, g) else None

    @property
    def scale(self) -> float:
        """What goes into the total must be multiplied with this."""
        return 1 / self.books.seed


@dataclass(frozen=True)
class Ledger:
    """Where every unit of relevance went, per sample.

    Attributes:
        score: What was explained, ``[B]``.
        pixels: What arrived at the input.
        entries: What constants kept: by kind (``"bias"``, ``"norm shift"``, ...), or in itemised books by
            ``"module: operation (kind)"``.
        leaks: Itemised books only: by operation, relevance in minus out minus what its constants explain.
        itemised: Whether the books are itemised.
        inputs: What arrived at each input, by name (``"pixels"``, ``"words"``, ``"features"``): ``pixels`` is the sum.
        relative_to: What the reference is called, where there is one.
        floor: What residual and leak are relative to at least, ``[B]``: a score that is near zero because large parts
            of it cancel is rounded as these are.
    """

    score: Tensor
    pixels: Tensor
    entries: dict[str, Tensor]
    leaks: dict[str, Tensor]
    itemised: bool
    inputs: dict[str, Tensor] = field(default_factory=dict)
    relative_to: str | None = None
    floor: Tensor | None = None

    @staticmethod
    def close(books: Books, score: Tensor, inputs: dict[str, Tensor], reference: Tensor | None = None) -> Ledger:
        """The finished ledger of a pass; with a reference, its score is the one constant there is."""
        pixels = torch.stack(list(inputs.values())).sum(0)
        entries: dict[str, Tensor] = {} if reference is None else {REFERENCE: reference.double()}
        explained: dict[Site, Tensor] = defaultdict(lambda: torch.zeros_like(pixels))
        for (site, kind), share in books.shares.items():
            name = kind if site is None else f"{site} ({kind})"
            entries[name] = entries[name] + share if name in entries else share
            if site is not None:
                explained[site] = explained[site] + share
        leaks = {str(site): flow - explained[site] for site, flow in books.flows.items()}
        relative_to = None if reference is None else "the reference"
        return Ledger(score.double(), pixels, entries, leaks, books.itemised, inputs, relative_to)

    @staticmethod
    def joined(ledgers: list[Ledger]) -> Ledger:
        """The ledgers of several samples as one."""
        return Ledger._together(ledgers, torch.cat)

    @staticmethod
    def weighted(ledgers: list[Ledger], weights: Sequence[float]) -> Ledger:
        """The weighted sum of ledgers of the same samples; with weights that add up to one, a mean."""
        return Ledger._together(
            ledgers, lambda parts: sum((w * t for w, t in zip(weights, parts, strict=True)), torch.zeros_like(parts[0]))
        )

    @staticmethod
    def of_chain(steps: list[Ledger]) -> Ledger:
        """The ledgers of steps, each relative to the state before it, as one of the last relative to the first."""
        total = Ledger.weighted(steps, [1.0] * len(steps))
        entries = total.entries | {REFERENCE: steps[0].entries[REFERENCE]}
        floor = _floor_of(steps, lambda floors: torch.stack(floors).amax(0))
        return replace(total, score=steps[-1].score, entries=entries, floor=floor)

    @staticmethod
    def _together(ledgers: list[Ledger], join: Callable[[list[Tensor]], Tensor]) -> Ledger:
        nothing = [torch.zeros_like(each.score) for each in ledgers]

        def by_name(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
            names = dict.fromkeys(name for part in parts for name in part)
            pairs = list(zip(parts, nothing, strict=True))
            return {name: join([part.get(name, none) for part, none in pairs]) for name in names}

        return Ledger(
            score=join([each.score for each in ledgers]),
            pixels=join([each.pixels for each in ledgers]),
            entries=by_name([each.entries for each in ledgers]),
            leaks=by_name([each.leaks for each in ledgers]),
            itemised=ledgers[0].itemised,
            inputs=by_name([each.inputs for each in ledgers]),
            relative_to=ledgers[0].relative_to,
            floor=_floor_of(ledgers, join),
        )

    @property
    def constants(self) -> Tensor:
        """The sum of all entries."""
        return sum(self.entries.values(), torch.zeros_like(self.score))

    @property
    def difference(self) -> Tensor:
        """``score - pixels - constants``: what is missing (positive) or too much (negative)."""
        return self.score - self.pixels - self.constants

    @property
    def residual(self) -> Tensor:
        """``|difference| / |score|``: zero, up to rounding, if the books close."""
        return self._relative(self.difference.abs())

    @property
    def own_residual(self) -> Tensor:
        """The residual relative to the score, or the larger of the two, however near to zero these are."""
        return replace(self, floor=None).residual

    @property
    def scale(self) -> Tensor:
        """What amounts are relative to: the score, or the larger of it and the reference's, or the floor."""
        scale = self.score.abs()
        if REFERENCE in self.entries:
            scale = torch.maximum(scale, self.entries[REFERENCE].abs())
        return scale if self.floor is None else torch.maximum(scale, self.floor)

    def _relative(self, amount: Tensor) -> Tensor:
        """An amount relative to the scale; with a reference it may be zero, as may be what is explained."""
        relative = amount / self.scale
        return torch.where(amount == 0, 0, relative) if REFERENCE in self.entries else relative

    @property
    def leak(self) -> Tensor:
        """Relevance that operations kept and no constant explains, relative to the score.

        Itemised books measure it at each operation and add up the sizes, so that opposite leaks don't cancel.
        Totals only know its net sum, which is the residual.
        """
        if not self.itemised:
            return self.residual
        return self._relative(sum((leak.abs() for leak in self.leaks.values()), torch.zeros_like(self.score)))

    @property
    def explained(self) -> Tensor:
        """What the pixels should hold: the score, less that of the reference, where there is one."""
        return self.score - self.entries.get(REFERENCE, torch.zeros_like(self.score))

    @property
    def contrast(self) -> Tensor:
        """How large what is explained is, beside the larger of score and reference's score (or the floor).

        Without a reference, one.
        """
        if REFERENCE not in self.entries:
            return torch.ones_like(self.score)
        return self._relative(self.explained.abs())

    @property
    def share(self) -> Tensor:
        """The pixels' share of what is explained; of several inputs, that of all of them."""
        return self.pixels / self.explained

    @property
    def arrived(self) -> dict[str, Tensor]:
        """What arrived at the input, by name: at the pixels (voxels, features), or at each of several inputs."""
        return self.inputs or {"pixels": self.pixels}

    def table(self, sample: int = 0, rows: int = 12) -> str:
        """The books of one sample as text, largest entries first.

        Relative to a reference, the score, that of the reference, and where the difference of the two comes from.
        """
        kept = {name: value for name, value in self.entries.items() if name != REFERENCE}
        named = sorted(((n, float(v[sample])) for n, v in kept.items()), key=lambda item: -abs(item[1]))
        lines = [*((name, float(value[sample])) for name, value in self.arrived.items()), *named[:rows]]
        if len(named) > rows:
            lines.append((f"{len(named) - rows} smaller entries", sum(v for _, v in named[rows:])))
        lines.append(("not accounted for", float(self.difference[sample])))
        heads, whole = [("score", float(self.score[sample]))], float(self.explained[sample])
        if REFERENCE in self.entries:
            heads += [(f"on {self.relative_to}", float(self.entries[REFERENCE][sample])), ("difference", whole)]
        width = max(len(name) for name, _ in [*heads, *lines])
        out = [f"{name:<{width}}  {value:>12.6g}" for name, value in heads]
        out[-1] += f"  {'share':>8}"
        out += [
            f"{name:<{width}}  {value:>12.6g}  {value / whole if whole else float('nan'):>8.4f}"
            for name, value in lines
        ]
        return "\n".join(out)


def _floor_of(ledgers: list[Ledger], join: Callable[[list[Tensor]], Tensor]) -> Tensor | None:
    """The floors of several ledgers, joined; ``None`` where none has one."""
    if all(each.floor is None for each in ledgers):
        return None
    return join([torch.zeros_like(each.score) if each.floor is None else each.floor for each in ledgers])
