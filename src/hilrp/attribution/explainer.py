"""Explaining a model: one forward pass under the engine, one backward pass, and the books."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hilrp.attribution.batches import Batch, at_once, in_batches, part_of_question
from hilrp.attribution.chains import Chains, check_ends_meet, mean_of_draws, pairs_of, summed
from hilrp.attribution.checks import check_input, check_model, ordinary, zero_score
from hilrp.attribution.cuda_graphs import Recorder
from hilrp.attribution.diagnosis import leak, non_finite
from hilrp.attribution.explanation import Explanation, mean_of, weighted
from hilrp.attribution.forward_backward import Outcome, Pass, input_names
from hilrp.attribution.plain_passes import Comparison, Findings, parts_differ
from hilrp.attribution.references import DEFAULT, ByForm, Question, Reference, find
from hilrp.attribution.single_samples import one_by_one
from hilrp.attribution.stages import find_stages, of_stage
from hilrp.engine import messages
from hilrp.engine.recompute import Outdated, find_recomputed
from hilrp.engine.tape import OtherWay, Tape, Tapes
from hilrp.method.call import KnownLayers
from hilrp.method.ledger import OTHERS, Books, Ledger, Site
from hilrp.method.rules import Rules
from hilrp.targets import Target, logits_of, score_of, settled
from hilrp.targets.classes import Checked, checked, question_of
from hilrp.util.errors import AuditWarning, BooksError, HilrpError, InputError, ModelError
from hilrp.util.nested import map_tensors, tensors

Audit = Literal["strict", "warn", "off"]
#: Called with how many passes are done, and how many there are.
Progress = Callable[[int, int], None]


def explain(
    model: nn.Module,
    x: Any,
    target: Target = None,
    rules: str | Rules = "hilrp",
    reference: Any = None,
    audit: Audit = "strict",
    stages: str | Sequence[str] | None = "auto",
    itemised: bool = False,
    batch: Batch = None,
    passes: int | Chains = 1,
    progress: Progress | None = None,
) -> Explanation:
    """Decomposes a model's prediction over its input.

    Args:
        model: Any PyTorch vision model, in evaluation mode. It is not changed.
        x: The input ``[B,C,H,W]``, preprocessed as the model expects; a tuple of positional inputs, or a mapping of
            keyword inputs (``{"pixel_values": x}``).
        target: What to explain: ``None`` for the predicted class, a class index, one per sample, one of
            `hilrp.targets`, or a function of the model's output that returns one scalar per sample.
        rules: A preset's name or a `Rules`.
        reference: What relevance is relative to: ``"neutral"``, ``"black"``, ``"grey"``, ``"white"``, ``"mean"``,
            ``"blurred"``, a number, an input like ``x``, one of `hilrp.references`, a function of a `Question` that
            returns a list of such inputs (``lambda question: [question.x * 0]``), or a list of several to average over.
            The pixels then hold ``f(x) - f(reference)`` exactly. Without one, constants keep their share of the score;
            the rules ``"secant"`` then take each sample's mean per channel for pictures, volumes and videos, and zero
            for other inputs (`hilrp.references.ByForm`).
        audit: ``"strict"`` raises where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        stages: Modules whose outputs get a map: ``"auto"``, a list of module paths, or ``None``. A module of several
            streams (the branches of CrossViT) gets one for each: ``blocks.0``, ``blocks.0[1]``.
        itemised: Keep the books per operation, not only in total. Slower.
        batch: How many samples are explained at once: ``None`` for all, a number, or ``"auto"`` for as many as fit into
            memory (where they don't, half as many, and so on). The result is the same, unless samples see each other;
            functions of the user's (a target, a reference) are given each part in turn.
        passes: Relative to a reference, how many passes to spend: with more than one, the map is the mean over random
            chains from the reference to the input, which is nearer to the model's Shapley values and has error bars
            (`Explanation.stderr`, `Explanation.region`). It sums to the same difference at every number. See
            `hilrp.Chains`, which sets all of it.
        progress: With more than one pass, called after each with how many are done of the samples at hand, and how
            many there are.

    Example:
        >>> import torch, hilrp
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> explanation = hilrp.explain(model, torch.randn(1, 3, 8, 8), target=1)
        >>> explanation.map.shape, bool(explanation.ledger.residual < 1e-4)
        (torch.Size([1, 8, 8]), True)
    """
    return Explainer(model, rules, reference, audit, stages, itemised).explain(x, target, batch, passes, progress)


class Explainer:
    """A model with a rule set, ready to explain many inputs. See `explain` for the arguments.

    The first explanation of a model calls it some more times without a graph, also on changed inputs: what is explained
    is compared with what the model does (`audit="off"` leaves that out). What was found is remembered for the model as
    long as it lives.

    An explainer keeps nothing between calls but which layers and how many classes the model has, which batch fitted
    into memory, and recordings, if it is told to make them. It may be used from several threads.

    With ``compile=True`` and inputs on a GPU, an explanation is recorded as a CUDA graph when inputs of a form (shapes,
    types) come for the second time, and replayed from then on: at small batches a GPU else waits for Python. Values of
    weights may change between calls. What a model does on the host (its hooks, what it prints or counts) happens only
    in the recording, as do warnings about its operations; a model that asks the device for numbers while it runs can't
    be recorded, and runs as without it, with a note. Targets are classes and contrasts; others run as without it. A
    recording keeps the memory that it needs.

    With ``recompute="auto"`` the repeated blocks of a model (or the modules of a list of paths) keep their inputs
    alone, and run again in the backward pass: very deep models and large pictures then need memory for one block at a
    time, and a third more time.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
        >>> hilrp.Explainer(model, rules="epsilon").attribute(torch.randn(2, 3, 2, 2), target=[0, 4]).shape
        torch.Size([2, 3, 2, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        rules: str | Rules = "hilrp",
        reference: Any = None,
        audit: Audit = "strict",
        stages: str | Sequence[str] | None = "auto",
        itemised: bool = False,
        compile: bool = False,
        recompute: str | Sequence[str] | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module.")
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError(
                "The model is TorchScript, which can't be looked into. Explain the Python model that it was made of."
            )
        if audit not in ("strict", "warn", "off"):
            raise InputError(f'audit={audit!r}: use "strict", "warn" or "off".')
        if not isinstance(compile, bool):
            raise InputError(f"compile={compile!r}: use True or False.")
        self.model = unwrap(model)
        self.rules = Rules.named(rules)
        if reference is not None or self.rules.constants == "reference":
            self.rules = replace(self.rules, constants="reference")
            reference = find(DEFAULT if reference is None else reference)
        self.reference: Reference | None = reference
        self._audit, self.itemised = audit, itemised
        self.stages = find_stages(self.model, stages)
        self._stages_named = not isinstance(stages, str)
        self._recomputed = find_recomputed(self.model, recompute)
        self._layers: tuple[Any, KnownLayers] | None = None
        self._classes: int | None = None
        self._recorder: Recorder[Outcome] | None = Recorder(self.model) if compile else None
        self._fitted: dict[Hashable, int] = {}

    def attribute(self, x: Any, target: Target = None, batch: Batch = None, passes: int | Chains = 1) -> Any:
        """The relevance alone, in the form of the input: captum's contract."""
        return self.explain(x, target, batch, passes).relevance

    def explain(
        self,
        x: Any,
        target: Target = None,
        batch: Batch = None,
        passes: int | Chains = 1,
        progress: Progress | None = None,
    ) -> Explanation:
        """Explains samples, all at once or in batches. See `explain`."""
        batch_size, x = check_input(x), ordinary(x)
        question = Question(self.model, x, target, batch_size)
        check_model(self.model)
        chains = Chains.of(passes)
        if chains.passes > 1 and self.reference is None:
            raise InputError(
                f'passes={passes}: chains go from a reference to the input. Use rules="secant", or give reference=.'
            )
        at_once_of = partial(self._at_once, chains=chains, progress=progress)
        if batch is None:
            return at_once_of(question, self.reference)
        found = in_batches(at_once_of, question, self.reference, batch, self._fitted)
        size = at_once(question, batch, self._fitted)
        if self._checks and size < batch_size:
            self._beside_larger_parts(found, question, size)
        return found

    def _beside_larger_parts(self, found: Explanation, question: Question, size: int) -> None:
        """Notes whether samples that were explained in parts have the same scores in larger ones."""
        first = slice(0, min(question.batch, 2 * size))
        part = part_of_question(question, first)
        target, own = settled(part.target, part.x, part.output), found[first]
        chosen = target if callable(target) or own.target is None else Checked(own.target, own.against)
        mixed = parts_differ(self.model, part.x, chosen, own, size)
        if mixed:
            parts = "one at a time" if size == 1 else f"in parts of {size}"
            found.notes[
                f"samples see each other: explained {parts}, each has the score and the map that it has there, which "
                "are others in larger parts"
            ] = question.batch
        elif mixed is None:
            found.notes["not checked: whether samples see each other, since the model does not run on more at once"] = 1

    def _at_once(
        self, question: Question, reference: Reference | None, chains: Chains, progress: Progress | None
    ) -> Explanation:
        x, batch = question.x, question.batch
        target = settled(question.target, x, question.output)
        if reference is None:
            return self._explain(x, target, batch, None)
        notes = dict.fromkeys(reference.notes(question), 1) if isinstance(reference, ByForm) else {}
        references = _asked(reference, replace(question, target=target))
        if not references:
            raise InputError("reference is an empty list: give at least one reference.")
        if chains.passes == 1:
            found = [self._explain(x, target, batch, each) for each in references]
            return _together(found, notes)
        if not callable(target):  # what is asked of the input is asked of every state
            asked = score_of(question.output(x), target, batch)
            assert asked.classes is not None
            target = Checked(asked.classes, asked.against)
        fills = [None] if chains.fill is None else _asked(find(chains.fill), replace(question, target=target))
        if len(fills) != 1:
            raise InputError("Chains(fill=...) is a list of several: give one.")
        found = []
        for i, each in enumerate(references):
            tell = _part_of_progress(progress, i, len(references), chains.passes)
            found.append(self._along(chains, x, target, batch, each, each if fills[0] is None else fills[0], tell))
        return _together(found, notes)

    def _along(
        self, chains: Chains, x: Any, target: Target, batch: int, reference: Any, fill: Any, tell: Callable[[int], None]
    ) -> Explanation:
        """The mean over chains from the reference to the input.

        Each state is run once, though it is the input of one step and the reference of the next.
        """
        mean: Explanation | None = None
        draws: list[Any] = []
        # A recording of a pass on the GPU has a place for its reference, and runs on it itself.
        start = Tape() if self._recorder is None else None
        for draw in range(chains.draws):
            states = list(chains.chain(x, reference, fill, batch, draw))
            tell_step = partial(_tell_step, tell, draw * chains.steps)
            steps = self._steps(states, target, batch, start, tell_step)
            if steps is None or (start is not None and not self._closes(summed(steps))):
                start = None  # the model's operations depend on the values of its input: each runs on both
                steps = self._steps(states, target, batch, None, tell_step)
            assert steps is not None
            found = summed(steps)
            check_ends_meet(steps)
            self._check_chain(found, steps, states, target, batch)
            mean = found if mean is None else weighted([mean, found], [draw / (draw + 1), 1 / (draw + 1)])
            draws.append(found.relevance)
        assert mean is not None
        return replace(mean, relevance=mean_of_draws(draws), passes=chains.passes, pairs=pairs_of(draws, batch))

    def _steps(
        self, states: list[Any], target: Target, batch: int, start: Tape | None, tell: Callable[[int], None]
    ) -> list[Explanation] | None:
        """The explanations of the steps of a chain; ``None`` if the model takes another way on another state.

        With a tape for the first state, each state is run once.
        """
        found: list[Explanation] = []
        played = start if start is not None and start.entries else None
        for number, (before, state) in enumerate(pairwise(states)):
            kept = Tape() if start is not None and number + 2 < len(states) else None
            tapes = Tapes(played, kept, start if number == 0 and played is None else None)
            try:
                found.append(self._explain(state, target, batch, before, tapes))
            except OtherWay:
                return None
            played = kept
            tell(len(found))
        return found

    def _closes(self, found: Explanation) -> bool:
        return not self.rules.conserving or bool((found.ledger.residual <= found.tolerance).all())

    def _check_chain(
        self, found: Explanation, steps: list[Explanation], states: list[Any], target: Target, batch: int
    ) -> None:
        """Raises or warns where the books of a chain don't close, naming the operation if one can be found."""
        if self._closes(found):
            return
        worst = max(range(len(steps)), key=lambda i: float(steps[i].ledger.difference.abs().max()))
        self._explain(states[worst + 1], target, batch, states[worst])
        largest = float(found.ledger.residual.max())
        self._unsound(BooksError(f"The books of a chain don't close: {largest:.1e} of the score is unaccounted for."))

    def _explain(self, x: Any, target: Target, batch: int, reference: Any, tapes: Tapes | None = None) -> Explanation:
        """Explains samples relative to one reference, or to none; as a step of a chain where there are tapes."""
        found, recorded = self._outcome(x, target, batch, reference, tapes)
        if tapes is not None and tapes.played is not None and (found.read_outs or found.strangers):
            raise OtherWay("The model reads numbers out, which may be others on the reference.")
        ledger, limit, notes = found.ledger, found.limit, dict(found.notes)
        sound = bool(found.sound)
        doubted = found.unsplit or (not sound and self._samples_mixed_up(ledger, limit))
        plain = self._beside_plain_passes(found, x, target, batch, reference, doubted, recorded)
        notes |= dict.fromkeys(plain.notes, 1)
        if doubted or plain.mixed:
            run = self._pass(x, target, batch, Books(1, self.itemised), self.stages, reference=reference)
            found = one_by_one(run, found)
            ledger, sound = found.ledger, False
        if doubted:
            notes["books kept in one more backward pass per sample, since the batch could not be followed"] = batch
        if plain.mixed or OTHERS in ledger.entries:
            notes[
                "samples see each other: each score was propagated alone, and what landed on other samples is the "
                f"entry `{OTHERS}`. Explained in other batches, the samples have other maps"
            ] = batch
        if not callable(target) and isinstance(found.output, (tuple, list)):
            numbers = [t for t in tensors(found.output) if t.is_floating_point() and t.ndim in (1, 2)]
            scores = [tuple(t.shape) for t in numbers if len(t) == batch]
            if len(scores) > 1:
                notes[messages.several_outputs(scores)] = 1
        unchecked = [
            *plain.unchecked,
            *found.unchecked,
            *(f"what an audit would have raised ({error})" for error in found.problems),
        ]
        if unchecked:
            notes[f"not checked: {'; '.join(unchecked)}"] = 1
        if reference is not None and len(ledger.inputs) > 1 and tapes is None:
            pairs = zip(input_names(self.model, x), tensors(x), tensors(reference), strict=False)
            same = [name for name, t, t0 in pairs if name in ledger.inputs and torch.equal(t, t0)]
            notes |= {f"{name}: the same in the reference, and without relevance": 1 for name in same}
        if not self.rules.conserving and bool((ledger.residual > limit).any()):
            notes["these rules do not conserve: relevance is unaccounted for"] = int((ledger.residual > limit).sum())
        for name in self.stages if self._stages_named else ():
            if name not in found.maps:
                notes[
                    f"stage {name} has no map: its output is no feature map or token grid of the image's proportions"
                ] = 1
        if not sound:
            self._check(found, ledger, x, target, reference, is_step=tapes is not None)
        order = [name for stage in self.stages for name in of_stage(stage, found.sums)]
        # That of a chain is relative to its last score: one between may be zero.
        scale = ledger.score if tapes is None else torch.ones_like(ledger.score)
        return Explanation(
            relevance=found.relevance,
            input=map_tensors(Tensor.detach, x),
            score=found.score,
            target=found.classes,
            against=found.against,
            output=found.output,
            stages={name: found.maps[name] for name in order if name in found.maps},
            trace={"input": ledger.pixels / scale} | {name: found.sums[name] / scale for name in order},
            ledger=ledger,
            rules=self.rules,
            tolerance=limit,
            notes=notes,
            reference=None if reference is None else map_tensors(Tensor.detach, reference),
            unchecked=tuple(unchecked),
        )

    def _beside_plain_passes(
        self, found: Outcome, x: Any, target: Target, batch: int, reference: Any, doubted: bool, recorded: bool
    ) -> Findings:
        """Compares with what the model does without the engine; raises or warns where that is something else."""
        if not self._checks:
            notes = [messages.read_out(where) for where in found.read_outs]
            return Findings(notes=notes, unchecked=['the score and the samples beside plain passes (audit="off")'])

        def follow(other: Any) -> list[tuple[str, Tensor]]:
            chosen = target if callable(target) else found.chosen
            books = Books(batch)
            run = Pass(self.model, other, chosen, self.rules, books, lambda _: None, batch, reference=reference)
            return run.engine.tally.strangers

        def predict(some: Any, others: Any, count: int) -> Any:
            rules = Rules(linear="epsilon", constants="reference")
            whole = partial(_sum_of_all, count=count)
            run = Pass(self.model, some, whole, rules, Books(1), lambda _: None, count, reference=others)
            run.close()
            return run.reference_output

        comparison = Comparison(
            self.model, x, target, batch, reference, found, self._recomputed, recorded, follow, predict
        )
        findings = comparison.run(self._anew, doubted)
        for error in findings.errors:
            self._unsound(error)
            findings.unchecked.append(f"what an audit would have raised ({error})")
        return findings

    @property
    def _checks(self) -> bool:
        """Whether explanations are compared with plain passes."""
        return self._audit != "off"

    #: Whether all comparisons are made, whatever is known of the model.
    _anew = False

    def _outcome(self, x: Any, target: Target, batch: int, reference: Any, tapes: Tapes | None) -> tuple[Outcome, bool]:
        """What was found, and whether it was replayed from a recording."""

        def step(inputs: tuple[Any, ...]) -> Outcome:
            x, target, reference = inputs[:3]
            books = Books(batch, self.itemised)
            return self._pass(x, target, batch, books, self.stages, reference=reference, tapes=tapes).outcome()

        if self._recorder is None:
            try:
                return step((x, target, reference)), False
            except Outdated:
                return step((x, target, reference)), False

        inputs, found = self._recordable(x, target, batch, reference), None
        if inputs is not None:
            with torch.cuda.device(tensors(x)[0].device):
                found = self._recorder.run(inputs, step)
        if found is not None:
            return found, True
        return self._met(step((x, target, reference)), x, target, batch, reference), False

    def _recordable(self, x: Any, target: Target, batch: int, reference: Any) -> tuple[Any, ...] | None:
        """What a recording takes, where there can be one.

        What a target that is a function does on the host, nobody knows.
        """
        if self._recorder is None or callable(target) or not all(t.is_cuda for t in tensors((x, reference))):
            return None
        if not self._recorder.same_model():
            self._classes = None  # one with another head may have other classes
        devices = {t.device for t in tensors((x, reference))} | self._recorder.devices
        if self._classes is None or len(devices) > 1:
            return None
        logits = tensors(x)[0].new_empty(1).expand(batch, self._classes)
        # How it is explained is part of the form.
        return x, checked(target, logits), reference, repr((self.rules, self.stages, self.itemised))

    def _met(self, found: Outcome, x: Any, target: Target, batch: int, reference: Any) -> Outcome:
        """Notes what a recording needs to know, and why there is none."""
        assert self._recorder is not None
        logits = None if found.classes is None else logits_of(found.output)
        # One number for each sample is one class.
        count = 0 if logits is None else logits.shape[-1] if logits.ndim > 1 else 1
        self._classes = count or None
        inputs = self._recordable(x, target, batch, reference)
        if inputs is not None:
            self._recorder.meet(inputs)
        if self._recorder.failure is None:
            return found
        note = f"runs without a CUDA graph, which could not be recorded ({self._recorder.failure})"
        return replace(found, notes=found.notes | {note: 1})

    def _pass(
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
        recomputed = self._recomputed if inspect is None else frozenset()
        found: Pass | None = None
        for layers in (expected, None):
            del found  # it holds a graph
            found = Pass(
                self.model, x, target, self.rules, books, self._problem, batch, stages, inspect, reference, layers,
                recomputed, tapes,
            )  # fmt: skip
            if found.as_expected:
                break
        assert found is not None
        self._layers = question, found.engine.layers.known
        return found

    def _problem(self, error: HilrpError) -> None:
        """An operation without a rule. A rule set that doesn't claim to conserve may have those."""
        if self.rules.conserving:
            self._unsound(error)

    def _unsound(self, error: HilrpError) -> None:
        if self._audit == "strict":
            raise error
        if self._audit == "warn":
            warnings.warn(str(error), AuditWarning, stacklevel=2)

    # Checks ---------------------------------------------------------------------------------------------------

    def _check(
        self,
        found: Outcome,
        ledger: Ledger,
        x: Any,
        target: Target,
        reference: Any,
        is_step: bool,
    ) -> None:
        """Raises or warns about a result that can't be trusted; the books of a chain are checked as a whole."""
        if self._audit == "off":
            return

        def run(inspect: Callable[[Site, Tensor], None] | None = None) -> Pass:
            return self._pass(x, target, len(found.score), Books(1, itemised=True), (), inspect, reference)

        limit = found.limit
        results = [t for t in tensors((found.relevance, found.score)) if t.is_floating_point()]
        if not all(bool(t.isfinite().all()) for t in results):
            self._unsound(non_finite(self.model, run))
        elif reference is None and (message := zero_score(found.score)) is not None:
            self._unsound(ModelError(message))
        elif (
            self.rules.conserving
            and not is_step
            and not bool((ledger.leak <= limit).all() and (ledger.residual <= limit).all())
        ):
            self._unsound(leak(run(), ledger))

    def _samples_mixed_up(self, ledger: Ledger, limit: float) -> bool:
        """Whether the books close in total but not for each sample: the samples were not told apart."""
        if len(ledger.score) == 1 or not self.rules.conserving or bool((ledger.residual <= limit).all()):
            return False
        return bool(ledger.difference.sum().abs() < 0.01 * ledger.difference.abs().sum())


def _sum_of_all(output: Any, count: int) -> Tensor:
    """A score that depends on all numbers of an output, for each of some samples."""
    return torch.stack([t.double().sum() for t in tensors(output) if t.is_floating_point()]).sum().expand(count)


def _together(found: list[Explanation], notes: dict[str, int]) -> Explanation:
    """The mean of explanations relative to several references, with what should be said of these."""
    one = found[0] if len(found) == 1 else mean_of(found)
    return replace(one, notes=notes | one.notes)


def _tell_step(tell: Callable[[int], None], before: int, step: int) -> None:
    tell(before + step)


def _part_of_progress(progress: Progress | None, number: int, count: int, passes: int) -> Callable[[int], None]:
    """Tells of the passes of one of several references."""

    def tell(done: int) -> None:
        if progress is not None:
            progress(number * passes + done, count * passes)

    return tell


def _asked(reference: Reference, question: Question) -> list[Any]:
    """The references for a question; what a function of the user's is given and returns is said where it fails."""
    try:
        found = reference(question)
    except (TypeError, AttributeError) as error:
        if isinstance(error, HilrpError):
            raise
        raise InputError(
            f"The reference {reference!r} raised {type(error).__name__}: {error}. A function as a reference is given "
            "a hilrp.references.Question and returns a list of inputs like question.x: reference=lambda question: "
            "[question.x * 0]."
        ) from error
    for each in found if isinstance(found, (list, tuple)) else ():
        if [t.shape for t in tensors(each)] != [t.shape for t in tensors(question.x)]:
            given, wanted = (", ".join(str(tuple(t.shape)) for t in tensors(tree)) for tree in (each, question.x))
            raise InputError(
                f"The reference {reference!r} returned an input of shape {given or 'nothing'}, where the model is "
                f"given {wanted}: reference=lambda question: [question.x * 0]."
            )
    if not isinstance(found, (list, tuple)):
        raise InputError(
            f"The reference {reference!r} returned {type(found).__name__}, not a list of inputs: reference=lambda "
            "question: [question.x * 0]."
        )
    return list(found)


def unwrap(model: nn.Module) -> nn.Module:
    """What is inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = model._modules.get("_orig_mod")
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner
