"""Explains samples along chains of inputs, from a reference to the input: each state runs once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from hilrp.attribution.chains import Chains, check_ends_meet, mean_of_draws, pairs_of, summed
from hilrp.attribution.checks import near_zero
from hilrp.attribution.combined import weighted
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forward_backward import Outcome
from hilrp.attribution.kinds import Kind
from hilrp.attribution.runner import Runner
from hilrp.engine.tape import OtherWay, Tape, of_steps
from hilrp.targets import Target
from hilrp.util.errors import BooksError, HilrpError
from hilrp.util.nested import tensors

#: How many passes of chains are recorded at once.
_RECORDED_PASSES = 8


@dataclass(frozen=True)
class AlongChains:
    """How a model is explained along chains.

    Attributes:
        chains: Steps, draws, cells and fill.
        runner: What runs the model.
        explain: What explains a state relative to the one before, as a step of a chain where it is given tapes.
        conclude: What makes an explanation of what a recorded step has found.
        on_error: What to do about books that don't close.
        kind: What kind of thing the input is.
    """

    chains: Chains
    runner: Runner
    explain: Callable[..., Explanation]
    conclude: Callable[..., Explanation]
    on_error: Callable[[HilrpError], None]
    kind: Kind | None

    def mean(
        self, x: Any, target: Target, batch: int, reference: Any, fill: Any, tell: Callable[[int], None]
    ) -> Explanation:
        """The mean over chains from a reference to the input.

        Args:
            x: The input.
            target: What is explained.
            batch: The number of samples.
            reference: Where the chains begin.
            fill: What is where the input is not yet.
            tell: Called after each pass with how many are done.
        """
        chains, mean = self.chains, None
        relevance: list[Any] = []
        start: Tape | None = Tape()
        # What a recording of a pass holds is kept until it is replayed, hence some chains at a time.
        size = max(1, _RECORDED_PASSES // chains.steps) if tensors(x)[0].is_cuda else 1
        for first in range(0, chains.draws, size):
            draws = range(first, min(first + size, chains.draws))
            states_of = [list(chains.chain(x, reference, fill, batch, draw, self.kind)) for draw in draws]
            recorded = self.runner.chains(states_of, target, batch)
            for i, draw in enumerate(draws):
                states, tell_step = states_of[i], partial(_tell_step, tell, draw * chains.steps)
                steps = None if recorded is None else self._replayed(recorded[i], states, target, batch, tell_step)
                if steps is None or not self._close(steps):
                    steps, start = self._steps(states, target, batch, start, tell_step)
                check_ends_meet(steps)
                self._check(steps, states, target, batch)
                found = summed(steps)
                mean = found if mean is None else weighted([mean, found], [draw / (draw + 1), 1 / (draw + 1)])
                relevance.append(found.relevance)
        assert mean is not None
        notes = mean.notes | near_zero(mean.ledger, mean.tolerance)
        pairs = pairs_of(relevance, len(mean), mean.kind)
        return replace(mean, relevance=mean_of_draws(relevance), passes=chains.passes, pairs=pairs, notes=notes)

    def steps(self, states: list[Any], target: Target, batch: int) -> list[Explanation]:
        """The explanations of the steps of one chain whose states are given."""
        # With a single step there is no state that runs twice.
        start = Tape() if len(states) > 2 else None
        steps, _ = self._steps(states, target, batch, start, lambda _: None)
        check_ends_meet(steps)
        self._check(steps, states, target, batch)
        return [replace(each, notes=each.notes | near_zero(each.ledger, each.tolerance)) for each in steps]

    def _replayed(
        self, recorded: list[Outcome], states: list[Any], target: Target, batch: int, tell: Callable[[int], None]
    ) -> list[Explanation] | None:
        """The explanations of the steps of a chain that was recorded, unless the model reads numbers out."""
        if any(found.read_outs or found.strangers for found in recorded):
            return None
        steps = [
            self.conclude(found, True, state, target, batch, before, is_step=True)
            for found, (before, state) in zip(recorded, pairwise(states), strict=True)
        ]
        tell(len(steps))
        return steps

    def _steps(
        self, states: list[Any], target: Target, batch: int, start: Tape | None, tell: Callable[[int], None]
    ) -> tuple[list[Explanation], Tape | None]:
        """The explanations of the steps of a chain, and the tape of its first state.

        With that tape each state is run once, though it is the input of one step and the reference of the next.
        Without, each step runs on both of its states: the model's operations depend on the values of its input.
        """
        found: list[Explanation] = []
        try:
            for (before, state), tapes in zip(pairwise(states), of_steps(len(states) - 1, start), strict=True):
                found.append(self.explain(state, target, batch, before, tapes))
                tell(len(found))
        except OtherWay:
            return self._steps(states, target, batch, None, tell)
        if start is not None and not self._close(found):
            return self._steps(states, target, batch, None, tell)
        return found, start

    def _close(self, steps: list[Explanation]) -> bool:
        """Whether the books of a chain close, and those of each step: what is lost in one may be made in another."""
        if not self.runner.rules.conserving:
            return True
        found, largest = summed(steps), torch.stack([each.ledger.scale for each in steps]).amax(0)
        missing = torch.stack([each.ledger.difference.abs() for each in steps])
        closed = (missing <= found.tolerance * largest).all() & (found.ledger.residual <= found.tolerance).all()
        return bool(closed)

    def _check(self, steps: list[Explanation], states: list[Any], target: Target, batch: int) -> None:
        """Raises or warns where the books of a chain don't close, naming the operation if one can be found."""
        if self._close(steps):
            return
        worst = max(range(len(steps)), key=lambda i: float(steps[i].ledger.difference.abs().max()))
        self.explain(states[worst + 1], target, batch, states[worst])
        largest = max(float(each.ledger.residual.max()) for each in (*steps, summed(steps)))
        self.on_error(BooksError(f"The books of a chain don't close: {largest:.1e} of the score is unaccounted for."))


def _tell_step(tell: Callable[[int], None], before: int, step: int) -> None:
    tell(before + step)
