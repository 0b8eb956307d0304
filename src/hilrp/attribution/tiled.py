"""Explaining a model tile by tile: the whole ledger closes, and one group of tiles is in memory at a time.

A first sweep runs all tiles without a graph, of the input and of the reference. The target is explained on what they
are put together to; what it makes of each of their outputs (a gradient, or the secant of a target that isn't linear)
is what each tile is then explained for, in a second sweep. Putting tiles together is linear, so that their relevance
adds up to that of the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.checks import near_zero, tolerance, zero_score
from hilrp.attribution.explainer import Audit, Explainer, named_by_places
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forward_backward import Pass, input_names
from hilrp.attribution.kinds import main_input
from hilrp.attribution.plain_passes import differ
from hilrp.attribution.tiles import Layout, Place, Plan, Pool, Stitched, Swept, Tiles, padded, sums
from hilrp.engine.tape import Tapes
from hilrp.method.ledger import REFERENCE, Books, Ledger
from hilrp.method.rules import DEFAULT_RULES, AnyRules
from hilrp.targets import Target, logits_of
from hilrp.targets.classes import Checked, Several
from hilrp.util.errors import BooksError, ModelError, TargetError
from hilrp.util.nested import map_tensors, tensors

#: The entry of what lies on the margins of an input that is smaller than a tile.
PADDING = "padding"


@dataclass(frozen=True, eq=False)
class Seeded:
    """The part of a score that the output of some tiles has: each number of it, times what it counts."""

    seeds: Tensor

    def __call__(self, output: Any) -> Tensor:
        """One number per tile."""
        logits = logits_of(output)
        return (logits.reshape(self.seeds.shape) * self.seeds).flatten(1).sum(1)


class TiledExplainer(Explainer):
    """A model that is run and explained tile by tile. See `Explainer`, and `Tiles`.

    References, chains and batches of samples are those of the whole; there are no maps of stages.

    Example:
        >>> model = nn.Conv2d(3, 2, 3, padding=1).eval()
        >>> explainer = TiledExplainer(model, Tiles(16), rules="epsilon")
        >>> explainer.attribute(torch.rand(2, 3, 40, 50), lambda output: output[:, 1].mean((1, 2))).shape
        torch.Size([2, 3, 40, 50])
    """

    def __init__(
        self,
        model: nn.Module,
        tiles: Tiles,
        rules: AnyRules = DEFAULT_RULES,
        reference: Any = None,
        audit: Audit = "strict",
        itemised: bool = False,
        recompute: str | list[str] | None = None,
        kind: str | None = None,
    ) -> None:
        #: What explains tiles; relative to their parts of the reference.
        self.of_tiles = Explainer(model, rules, reference, audit, None, itemised, False, recompute, kind=kind)
        self._stitched = Stitched(self.of_tiles.model, tiles, kind)
        whole = replace(self.of_tiles.rules, modules=())
        super().__init__(self._stitched, whole, reference, audit, None, itemised, False, kind=kind)
        self.rules = self.of_tiles.rules
        # What is made of the outputs of tiles: nothing more where they lie beside each other.
        self._heads = [
            Explainer(m, whole, reference, audit, None, itemised, False) for m in (nn.Identity(), Pool(tiles.blend))
        ]

    def _explain(
        self, x: Any, target: Target, batch: int, reference: Any, tapes: Tapes | None = None, is_step: bool = False
    ) -> Explanation:
        """Explains samples relative to one reference, or to none."""
        if isinstance(target, Several):
            raise TargetError("Tiles: several scores of one sample are no question to tiles; ask for one at a time.")
        with torch.no_grad():
            swept = self._stitched.sweep(x)
            before = None if reference is None else self._stitched.sweep(reference).output
        head = self._heads[0 if swept.layout is not None else 1]
        whole = head._explain(swept.output, target, batch, before, is_step=True)
        if whole.target is not None:
            target = Checked(whole.target, whole.against)
        seeds = self._seeds(head, swept, target, batch, before)
        del before
        whole = replace(whole, notes=whole.notes | self._of_sweep(swept, x))
        return self._second_sweep(whole, x, reference, swept.layout, seeds, is_step or tapes is not None)

    def _seeds(self, head: Explainer, swept: Swept, target: Target, batch: int, before: Tensor | None) -> Tensor:
        """What each number of the tiles' outputs counts in the score, but for the weight of its place in a tile."""
        books = Books(batch)
        run = Pass(head.model, swept.output, target, head.rules, books, self._problem, batch, reference=before)
        seeds: Tensor = run.gradients()
        return seeds if swept.layout is None else swept.layout.uncrop(seeds).div_(swept.layout.total)

    def _of_sweep(self, swept: Swept, x: Any) -> dict[str, int]:
        """What should be said of how the model takes tiles."""
        notes, (output, beside, others) = {}, swept.first
        if others:
            notes[
                f"the model returns several tensors: tiles are put together of the first, {tuple(output.shape[1:])} of "
                f"each, which alone the target is given, and not of {', '.join(map(str, others))}"
            ] = 1
        if not self._checks or beside == 1:
            return notes
        with torch.no_grad():
            alone = self._stitched.alone(x)
        limit = tolerance([output.dtype], output.device)
        if alone.shape != output.shape or differ(alone.flatten(1).double(), output.flatten(1).double(), limit):
            notes[
                f"tiles see each other, or how many there are: alone, one has another output than beside {beside - 1} "
                "others. Score and map are others with another Tiles(batch=...)"
            ] = 1
        return notes

    def _second_sweep(
        self, whole: Explanation, x: Any, reference: Any, layout: Layout | None, seeds: Tensor, is_step: bool
    ) -> Explanation:
        """Explains the tiles, and adds up their relevance and their ledgers to those of the whole.

        Args:
            whole: The explanation of the target on the output of the whole.
            x: The input.
            reference: What relevance is relative to.
            layout: How the tiles lie in the output.
            seeds: What each number of their outputs counts.
            is_step: Whether the ledger is checked as one of a chain.
        """
        number, plan = self._stitched.main(x)
        inputs = padded(x, number, plan)
        others = None if reference is None else padded(reference, number, plan)
        relevance = map_tensors(torch.zeros_like, inputs)
        ledgers: list[Ledger] = []
        owners: list[int] = []
        notes, unchecked, limit = Counter(whole.notes), dict.fromkeys(whole.unchecked), whole.tolerance
        for some, own in self._seeded(plan, layout, seeds, _held(inputs, plan.batch)):
            run = some + some[:1] * (len(own) - len(some))
            given = self._stitched.inputs(inputs, number, plan, run)
            before = None if others is None else self._stitched.inputs(others, number, plan, run)
            target = Seeded(own.to(tensors(given)[number].device))
            found = self.of_tiles._explain(given, target, len(run), before, is_step=True)
            found = found if len(run) == len(some) else found[: len(some)]
            _add(relevance, found.relevance, number, plan, some)
            ledgers.append(map_tensors(lambda t: t.to(whole.score.device), found.ledger))
            owners += [place.sample for place in some]
            notes, limit = notes + Counter(found.notes), max(limit, found.tolerance)
            unchecked |= dict.fromkeys(found.unchecked)
        main, margins = plan.unpad(tensors(relevance)[number])
        cut = tensors(relevance)[number]
        relevance = map_tensors(lambda t: main if t is cut else t, relevance)
        ledger = self._ledger(whole.ledger, ledgers, owners, margins, x, relevance)
        kind = main_input(x, self.kind, len(whole), self.of_tiles.model)
        scale = torch.ones_like(ledger.score) if is_step else ledger.explained
        if not is_step:
            notes.update(near_zero(ledger, limit))
        explanation = replace(
            whole,
            relevance=relevance,
            input=map_tensors(Tensor.detach, x),
            trace={"input": ledger.pixels / scale},
            ledger=named_by_places(ledger, x, kind),
            rules=self.rules,
            tolerance=limit,
            notes=dict(notes),
            reference=None if reference is None else map_tensors(Tensor.detach, reference),
            unchecked=tuple(unchecked),
            kind=None if kind is None else kind[1],
        )
        if not is_step and reference is None and (message := zero_score(explanation.score)) is not None:
            self._unsound(ModelError(message))
        if not is_step and self.rules.conserving and not bool((ledger.residual <= limit).all()):
            self._unsound(
                BooksError(
                    f"The ledger of the tiles doesn't close: {float(ledger.residual.max()):.1e} of the score is "
                    "unaccounted for. Does the model give a tile the same output at each call, whichever others are "
                    "beside it?"
                )
            )
        return explanation

    def _seeded(
        self, plan: Plan, layout: Layout | None, seeds: Tensor, held: set[int]
    ) -> Iterator[tuple[list[Place], Tensor]]:
        """As many tiles as run at once, with what their outputs count; those that count nothing are left out.

        Tiles that are as many as an input holds that is the same for all (``held``) would have it taken for theirs:
        the first is there once more, for what it counts, beyond the places.
        """

        def filled() -> tuple[list[Place], Tensor]:
            count = len(some)
            while count in held:
                count += 1
            return some, torch.cat(own + own[:1] * (count - len(some)))

        some: list[Place] = []
        own: list[Tensor] = []
        for place in plan.places():
            of_sample = seeds[place.sample : place.sample + 1]
            seed = of_sample[:, place.number] if layout is None else layout.cut(of_sample, place.starts)
            if bool(seed.any()):
                some.append(place)
                own.append(seed if layout is None else seed * layout.weights)
            if len(some) == self._stitched.tiles.batch:
                yield filled()
                some, own = [], []
        if some:
            yield filled()

    def _ledger(
        self, whole: Ledger, ledgers: list[Ledger], owners: list[int], margins: Tensor, x: Any, relevance: Any
    ) -> Ledger:
        """The ledger of the whole: what the target's constants kept, what those of the tiles did, and the input's."""
        batch, index = len(whole.score), torch.tensor(owners, device=whole.score.device)
        entries, leaks = dict(whole.entries), dict(whole.leaks)
        for joined in [Ledger.joined(ledgers)] if ledgers else []:
            for mine, theirs in ((entries, joined.entries), (leaks, joined.leaks)):
                for name, value in theirs.items():
                    if name != REFERENCE:
                        share = value.new_zeros(batch).index_add(0, index, value)
                        mine[name] = mine[name] + share if name in mine else share
        if bool(margins.any()):
            entries[PADDING] = margins.to(whole.score.device)
        names = input_names(self.of_tiles.model, x)
        rows = zip(names, tensors(x), tensors(relevance), strict=True)
        inputs = {
            name: sums(r).to(whole.score.device)
            for name, t, r in rows
            if t.is_floating_point() and t.shape[:1] == (batch,)
        }
        return replace(
            whole, pixels=torch.stack(list(inputs.values())).sum(0), inputs=inputs, entries=entries, leaks=leaks
        )


def _held(inputs: Any, batch: int) -> set[int]:
    """How long the inputs are that are the same for all samples."""
    return {len(t) for t in tensors(inputs) if t.ndim and t.is_floating_point() and len(t) != batch}


def _add(total: Any, relevance: Any, number: int, plan: Plan, places: list[Place]) -> None:
    """Adds the relevance of some tiles to that of the whole, with its margins."""
    for i, (held, own) in enumerate(zip(tensors(total), tensors(relevance), strict=True)):
        if i == number:
            for place, each in zip(places, own, strict=True):
                plan.cut(held, place).add_(each.to(held.device))
        elif held.is_floating_point() and held.shape[:1] == (plan.batch,):
            owners = torch.tensor([place.sample for place in places], device=held.device)
            held.index_add_(0, owners, own.to(held.device))
