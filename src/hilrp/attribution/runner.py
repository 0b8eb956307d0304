"""Runs a model for explanations: by a pass under the engine, or by replaying a recording of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.cuda_graphs import Recorder
from hilrp.attribution.forward_backward import Outcome, Pass
from hilrp.attribution.plain_passes import run_first
from hilrp.attribution.shared_reference import is_shared, run_as_one_sample
from hilrp.engine.recompute import Outdated
from hilrp.engine.tape import OtherWay, Tape, Tapes, of_steps
from hilrp.method.call import KnownLayers
from hilrp.method.ledger import Books, Site
from hilrp.method.rules import Rules
from hilrp.targets import Target, logits_of
from hilrp.targets.classes import Checked, checked, question_of
from hilrp.util.errors import HilrpError
from hilrp.util.nested import tensors


@dataclass(eq=False)
class Runner:
    """Runs a model forward and backward, and remembers what the next run can do without.

    Attributes:
        model: The model.
        rules: The rule set.
        stages: Modules whose outputs get a map.
        itemised: Whether the books are kept per operation.
        recomputed: Modules that run again in the backward pass, by identity.
        keep: Modules whose relevance is kept whole.
        recorder: What records passes, where that is wanted.
        on_problem: What to do about an operation without a rule.
        on_pass: What to do with each pass that was run.
        shares: Whether a reference of all samples can run as one of them.
    """

    model: nn.Module
    rules: Rules
    stages: Sequence[str]
    itemised: bool
    recomputed: frozenset[int]
    keep: Sequence[str]
    recorder: Recorder[Any] | None
    on_problem: Callable[[HilrpError], None]
    on_pass: Callable[[Pass], None]
    shares: bool = True
    _layers: tuple[Any, KnownLayers] | None = None
    _classes: int | None = None

    def __post_init__(self) -> None:
        if self.recomputed:
            self.shares = False

    def outcome(self, x: Any, target: Target, batch: int, reference: Any, tapes: Tapes | None) -> tuple[Outcome, bool]:
        """What a pass finds, and whether it was replayed from a recording."""

        def step(inputs: tuple[Any, ...]) -> Outcome:
            x, target, reference = inputs[:3]
            return self._run(x, target, batch, reference, tapes)

        if self.recorder is None:
            try:
                return step((x, target, reference)), False
            except Outdated:
                return step((x, target, reference)), False

        # What a pass takes from another one lies elsewhere the next time: such passes are recorded as whole chains.
        alone = tapes is None or not tapes.used
        inputs, found = self.recordable(x, target, batch, reference) if alone else None, None
        if inputs is not None:
            with torch.cuda.device(tensors(x)[0].device):
                found = self.recorder.run(inputs, step)
        if found is not None:
            return found, True
        return self._met(step((x, target, reference)), x, target, batch, reference), False

    def chains(self, states_of: list[list[Any]], target: Target, batch: int) -> list[list[Outcome]] | None:
        """What the steps of some chains find, by a recording of all of them, where there is one.

        Args:
            states_of: The states of each chain, from the reference to the input.
            target: What is explained.
            batch: The number of samples.
        """
        x, reference = states_of[0][-1], states_of[0][0]
        inputs = self.recordable(x, target, batch, reference)
        if inputs is None or self.recorder is None:
            return None

        def of_chain(states: list[Any], target: Target, start: Tape | None) -> list[Outcome]:
            steps = zip(pairwise(states), of_steps(len(states) - 1, start), strict=True)
            return [self._run(state, target, batch, before, tapes) for (before, state), tapes in steps]

        def step(inputs: tuple[Any, ...]) -> list[list[Outcome]]:
            states_of, target = inputs[:2]
            try:
                start = Tape()
                return [of_chain(states, target, start) for states in states_of]
            except OtherWay:
                return [of_chain(states, target, None) for states in states_of]

        with torch.cuda.device(tensors(x)[0].device):
            return self.recorder.run((states_of, *inputs[1:2], "chains", inputs[-1]), step)

    def forward(
        self,
        x: Any,
        target: Target,
        batch: int,
        books: Books,
        stages: Sequence[str] = (),
        inspect: Callable[[Site, Tensor], None] | None = None,
        reference: Any = None,
        tapes: Tapes | None = None,
    ) -> Pass:
        """Runs the model forward under the engine; twice, where it takes another way than the last time."""
        question, known = question_of(target), self._layers  # another target may ask for another head
        expected = known[1] if known is not None and inspect is None and known[0] == question else None
        recomputed = self.recomputed if inspect is None else frozenset()
        found: Pass | None = None
        for layers in (expected, None):
            del found  # it holds a graph
            found = Pass(
                self.model, x, target, self.rules, books, self.on_problem, batch, stages, inspect, reference, layers,
                recomputed, tapes, self.keep,
            )  # fmt: skip
            if found.as_expected:
                break
        assert found is not None
        self._layers = question, found.engine.layers.known
        self.on_pass(found)
        return found

    def _run(self, x: Any, target: Target, batch: int, reference: Any, tapes: Tapes | None) -> Outcome:
        """Runs the model forward and backward. A reference that all samples share runs as one of them."""

        def run(tapes: Tapes | None) -> Outcome:
            books = Books(batch, self.itemised)
            return self.forward(x, target, batch, books, self.stages, reference=reference, tapes=tapes).outcome()

        if tapes is None and self.shares and is_shared(x, reference, batch):
            run_first(self.model, x)
            compares = self.recorder is None or not self.recorder.is_recording
            try:
                found = run(run_as_one_sample(self.model, self.rules, reference, batch, compares))
                if not (found.read_outs or found.strangers or found.problems):
                    return replace(found, shared=True)
            except HilrpError:
                pass  # what is wrong with the model itself is found again with a reference for each
            self.shares = False
        return run(tapes)

    def recordable(self, x: Any, target: Target, batch: int, reference: Any) -> tuple[Any, ...] | None:
        """What a recording takes, where there can be one.

        What a target that is a function does on the host, nobody knows.
        """
        if self.recorder is None or callable(target) or not all(t.is_cuda for t in tensors((x, reference))):
            return None
        if not self.recorder.same_model():
            self._classes = None  # one with another head may have other classes
        if not self.recorder.is_welcome(tensors(x)[0].device):
            return None
        devices = {t.device for t in tensors((x, reference))} | self.recorder.devices
        if self._classes is None or len(devices) > 1:
            return None
        logits = tensors(x)[0].new_empty(1).expand(batch, self._classes)
        # How it is explained is part of the form.
        target = target if isinstance(target, Checked) else checked(target, logits)
        return x, target, reference, repr((self.rules, self.stages, self.keep, self.itemised, self.shares))

    def _met(self, found: Outcome, x: Any, target: Target, batch: int, reference: Any) -> Outcome:
        """Notes what a recording needs to know, and why there is none."""
        assert self.recorder is not None
        logits = None if found.classes is None else logits_of(found.output)
        # One number for each sample is one class.
        count = 0 if logits is None else logits.shape[-1] if logits.ndim > 1 else 1
        self._classes = count or None
        inputs = self.recordable(x, target, batch, reference)
        if inputs is not None:
            self.recorder.meet(inputs)
        if self.recorder.failure is None or self.recorder.automatic:
            return found
        note = f"runs without a CUDA graph, which could not be recorded ({self.recorder.failure})"
        return replace(found, notes=found.notes | {note: 1})
