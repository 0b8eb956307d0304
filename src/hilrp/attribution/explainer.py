"""Explaining a model: one forward pass under the engine, one backward pass, and the books."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hilrp.attribution.along_chains import AlongChains
from hilrp.attribution.batches import Batch, at_once, in_batches, part_of_question
from hilrp.attribution.chains import Chains
from hilrp.attribution.checks import check_input, check_model, near_zero, ordinary, zero_score
from hilrp.attribution.combined import mean_of
from hilrp.attribution.cuda_graphs import Recorder
from hilrp.attribution.diagnosis import leak, non_finite
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forward_backward import Outcome, Pass, input_names
from hilrp.attribution.kinds import Kind, check_kind, main_input
from hilrp.attribution.plain_passes import Comparison, Findings, parts_differ
from hilrp.attribution.reference_names import name_of
from hilrp.attribution.references import DEFAULT, ByForm, Given, Question, Reference, asked, find
from hilrp.attribution.runner import Runner
from hilrp.attribution.single_samples import one_by_one
from hilrp.attribution.stages import find_kept, find_stages, of_stage
from hilrp.attribution.tiles import Tiles
from hilrp.engine import messages
from hilrp.engine.module_rules import ModuleRules
from hilrp.engine.recompute import find_recomputed
from hilrp.engine.tape import OtherWay, Tapes
from hilrp.method.ledger import OTHERS, Books, Ledger, Site
from hilrp.method.rules import DEFAULT_RULES, AnyRules, Rules
from hilrp.targets import Target, score_of, settled
from hilrp.targets.classes import Checked
from hilrp.util.errors import AuditWarning, HilrpError, InputError, ModelError
from hilrp.util.nested import map_tensors, tensors

Audit = Literal["strict", "warn", "off"]
#: Called with how many passes are done, and how many there are.
Progress = Callable[[int, int], None]
#: What models of transformers call an input that has places: said of it is what these are.
_SEEN = {"pixel_values", "input_values", "input_features"}


def explain(
    model: nn.Module,
    x: Any,
    target: Target = None,
    rules: AnyRules = DEFAULT_RULES,
    reference: Any = None,
    audit: Audit = "strict",
    stages: str | Sequence[str] | None = "auto",
    itemised: bool = False,
    batch: Batch = None,
    passes: int | Chains = 1,
    progress: Progress | None = None,
    kind: str | None = None,
    tiles: Tiles | None = None,
) -> Explanation:
    """Says how much higher a model's score is than on a reference, and decomposes that difference over the input.

    Args:
        model: Any PyTorch vision model, in evaluation mode. It is not changed.
        x: The input ``[B,C,H,W]``, preprocessed as the model expects; a tuple of positional inputs, or a mapping of
            keyword inputs (``{"pixel_values": x}``).
        target: What to explain: ``None`` for the predicted class, a class index, one per sample, one of
            `hilrp.targets`, or a function of the model's output that returns one scalar per sample.
        rules: A preset's name or a `Rules`. The default, ``"secant"``, is relative to a reference; ``"hilrp"``, the
            paper's preset, needs none: it decomposes the score itself, of which constants keep a share. A mapping
            gives modules rules of their own, by path or class: ``{"blocks.0.*": Rules(gamma=0.5), "*": "hilrp"}``
            (`Rules.named`).
        reference: What relevance is relative to: ``"neutral"``, ``"black"``, ``"grey"``, ``"white"``, ``"mean"``,
            ``"blurred"``, a number, an input like ``x``, one of `hilrp.references`, a function of a `Question` that
            returns a list of such inputs (``lambda question: [question.x * 0]``), or a list of several to average over.
            The pixels hold ``f(x) - f(reference)`` exactly. By default each sample's mean per channel for pictures,
            volumes and videos, and zero for other inputs (`hilrp.references.ByForm`); none with rules that need none.
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
        kind: What kind of thing the input is, for `Explanation.map` and figures: ``"picture"``, ``"bands"``,
            ``"volume"``, ``"video"``, ``"frames"``, ``"sound"``, ``"table"`` or ``"tokens"``. By default it is told by
            the axes of the input and by the model (`hilrp.Kind.of`).
        tiles: For pictures and volumes that are larger than what the model takes: how they are cut (`hilrp.Tiles`). The
            model runs, and is explained, some tiles at a time; the map and the ledger are those of the whole.

    Example:
        >>> import torch, hilrp
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> explanation = hilrp.explain(model, torch.randn(1, 3, 8, 8), target=1)
        >>> explanation.map.shape, bool(explanation.ledger.residual < 1e-4)
        (torch.Size([1, 8, 8]), True)
    """
    if tiles is None:
        explainer = Explainer(model, rules, reference, audit, stages, itemised, kind=kind)
    else:
        from hilrp.attribution.tiled import TiledExplainer  # which is an explainer, too

        if stages not in ("auto", None):
            raise InputError("stages: there are no maps of stages of tiles. Leave them out, or explain one tile.")
        explainer = TiledExplainer(model, tiles, rules, reference, audit, itemised, kind=kind)
    return explainer.explain(x, target, batch, passes, progress)


class Explainer:
    """A model with a rule set, ready to explain many inputs. See `explain` for the arguments.

    The first explanation of a model calls it some more times without a graph, also on changed inputs: what is explained
    is compared with what the model does (`audit="off"` leaves that out). What was found is remembered for the model as
    long as it lives.

    An explainer keeps nothing between calls but which layers and how many classes the model has, whether a reference of
    all samples can run as one of them, which batch fitted into memory, and recordings. It may be used from several
    threads.

    With inputs on a GPU, an explanation is recorded as a CUDA graph when inputs of a form (shapes, types) come for the
    second time, and replayed from then on: at small batches a GPU else waits for Python. Values of weights may change
    between calls. Targets are classes and contrasts; others run without a recording, and so does a model that asks the
    device for numbers while it runs. A recording keeps the memory that it needs. What a model prints happens only in
    the recording, as do warnings about its operations. With ``compile="auto"`` nothing is recorded of a model that has
    forward hooks or counts its calls, nor where less than a quarter of the device's memory is free. ``True`` records
    these, too, and notes what can't be; ``False`` records nothing.

    With ``recompute="auto"`` the repeated blocks of a model (or the modules of a list of paths) keep their inputs
    alone, and run again in the backward pass: very deep models and large pictures then need memory for one block at a
    time, and a third more time.

    ``keep`` is a list of module paths: the relevance at their outputs is kept whole, in `Explanation.layers`
    (``"layer4:input"``: of what that module is given, by position). In a network of one path it sums to what the
    pixels' does, at every layer. Not of modules in blocks that run again (``recompute``), nor of views of memory that
    the model writes to: these are errors.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
        >>> hilrp.Explainer(model, rules="epsilon").attribute(torch.randn(2, 3, 2, 2), target=[0, 4]).shape
        torch.Size([2, 3, 2, 2])
    """

    def __init__(
        self,
        model: nn.Module,
        rules: AnyRules = DEFAULT_RULES,
        reference: Any = None,
        audit: Audit = "strict",
        stages: str | Sequence[str] | None = "auto",
        itemised: bool = False,
        compile: bool | Literal["auto"] = "auto",
        recompute: str | Sequence[str] | None = None,
        keep: Sequence[str] = (),
        kind: str | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise InputError(f"model is a {type(model).__name__}, not a torch.nn.Module.")
        if isinstance(model, torch.jit.ScriptModule):
            raise ModelError(
                "The model is TorchScript, which can't be looked into. Explain the Python model that it was made of."
            )
        if audit not in ("strict", "warn", "off"):
            raise InputError(f'audit={audit!r}: use "strict", "warn" or "off".')
        if compile not in (True, False, "auto"):
            raise InputError(f'compile={compile!r}: use "auto", True or False.')
        self.model = unwrap(model)
        self.rules = Rules.named(rules)
        if reference is not None or self.rules.constants == "reference":
            self.rules = self.rules.relative()
            reference = find(DEFAULT if reference is None else reference)
        ModuleRules(self.model, self.rules).check()
        self.reference: Reference | None = reference
        self._audit, self.itemised = audit, itemised
        self.kind = Kind.named(kind)
        self.stages = find_stages(self.model, stages)
        self._stages_named = not isinstance(stages, str)
        self._recomputed = find_recomputed(self.model, recompute)
        kept = find_kept(self.model, keep, self._recomputed)
        self._runner = Runner(
            self.model, self.rules, self.stages, itemised, self._recomputed, kept,
            Recorder(self.model, compile == "auto") if compile else None, self._problem, self._ran,
        )  # fmt: skip
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
        check_kind(x, self.kind, batch_size)
        question = Question(self.model, x, target, batch_size, self.kind)
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

    def explain_chain(
        self, states: Sequence[Any], target: Target = None, passes: int | Chains = 1
    ) -> list[Explanation]:
        """Explains each of some states relative to the one before: the differences add up to that of the ends.

        Each state runs once, though it is the input of one step and the reference of the next; with more than one pass
        each step has chains of its own.

        Args:
            states: Inputs of one form, from the reference of all to the input.
            target: What is explained, the same of each state.
            passes: How many passes to spend on each step. See `explain`.

        Example:
            >>> import torch
            >>> explainer = Explainer(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 1)).eval())
            >>> states = [torch.zeros(1, 3, 2, 2), torch.ones(1, 3, 2, 2), torch.rand(1, 3, 2, 2)]
            >>> first, second = explainer.explain_chain(states, 0)
            >>> bool(torch.isclose(first.score.double(), second.score - second.ledger.explained).all())
            True
        """
        states = [states] if isinstance(states, (Tensor, Mapping)) else list(states)
        if len(states) < 2:
            raise InputError(
                "explain_chain takes a list of two states or more: a reference, and what is relative to it."
            )
        batches = {check_input(state) for state in states}
        if len(batches) > 1:
            raise InputError(f"explain_chain: the states have {sorted(batches)} samples. Give states of one form.")
        if not self.rules.relative() == self.rules:
            raise InputError('explain_chain: a chain is relative to its first state. Use rules="secant".')
        check_model(self.model)
        states, chains = [ordinary(state) for state in states], Chains.of(passes)
        question = Question(self.model, states[-1], target, batches.pop(), self.kind)
        check_kind(question.x, self.kind, question.batch)
        states = [*(_in_form(state, number, question) for number, state in enumerate(states[:-1])), states[-1]]
        target = settled(target, states[-1], question.output)
        if not callable(target) and not isinstance(target, Checked):  # what is asked of the input is asked of all
            named = score_of(question.output(states[-1]), target, question.batch)
            assert named.classes is not None
            target = Checked(named.classes, named.against)
        along = self._along(chains, question)
        if chains.passes == 1:
            return along.steps(states, target, question.batch)
        return [
            self._at_once(replace(question, x=state, target=target), Given(before), chains, None)
            for before, state in pairwise(states)
        ]

    def run_again(self, found: Explanation, target: Target) -> Pass:
        """The forward pass of an explanation once more, with its graph, for other backward passes.

        Args:
            found: What `explain` returned, relative to one reference or to none.
            target: What was explained, if that was a function.
        """
        chosen = target if callable(target) or found.target is None else Checked(found.target, found.against)
        batch = len(found)
        return self._runner.forward(found.input, chosen, batch, Books(batch, self.itemised), reference=found.reference)

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
        references = asked(reference, replace(question, target=target))
        if not references:
            raise InputError("reference is an empty list: give at least one reference.")
        if chains.passes == 1:
            found = [self._explain(x, target, batch, each) for each in references]
            return _together(found, notes, name_of(reference, question))
        if not callable(target):  # what is asked of the input is asked of every state
            named = score_of(question.output(x), target, batch)
            assert named.classes is not None
            target = Checked(named.classes, named.against)
        fills = [None] if chains.fill is None else asked(find(chains.fill), replace(question, target=target))
        if len(fills) != 1:
            raise InputError("Chains(fill=...) is a list of several: give one.")
        along = self._along(chains, question)
        found = []
        for i, each in enumerate(references):
            tell = _part_of_progress(progress, i, len(references), chains.passes)
            found.append(along.mean(x, target, batch, each, each if fills[0] is None else fills[0], tell))
        return _together(found, notes, name_of(reference, question))

    def _along(self, chains: Chains, question: Question) -> AlongChains:
        kind = None if question.main is None else question.main[1]
        return AlongChains(chains, self._runner, self._explain, self._explained, self._unsound, kind)

    def _explain(
        self, x: Any, target: Target, batch: int, reference: Any, tapes: Tapes | None = None, is_step: bool = False
    ) -> Explanation:
        """Explains samples relative to one reference, or to none.

        As a step of a chain, or a part of something else whose ledger is checked, where there are tapes or ``is_step``.
        """
        is_step = is_step or tapes is not None
        found, recorded = self._runner.outcome(x, target, batch, reference, tapes)
        if tapes is not None and tapes.played is not None and (found.read_outs or found.strangers):
            raise OtherWay("The model reads numbers out, which may be others on the reference.")
        if not found.shared:
            return self._explained(found, recorded, x, target, batch, reference, is_step)
        try:
            return self._explained(found, recorded, x, target, batch, reference, is_step)
        except OtherWay:
            self._runner.shares = False
            return self._explain(x, target, batch, reference, tapes, is_step)

    def _explained(
        self, found: Outcome, recorded: bool, x: Any, target: Target, batch: int, reference: Any, is_step: bool
    ) -> Explanation:
        """The explanation that a pass leaves, compared with plain passes."""
        ledger, limit, notes = found.ledger, found.limit, dict(found.notes)
        sound = bool(found.sound)
        doubted = found.unsplit or (not sound and batch > 1 and self._samples_mixed_up(ledger, limit))
        plain = self._beside_plain_passes(found, x, target, batch, reference, doubted, recorded)
        if found.shared and (not sound or doubted or plain.mixed):
            raise OtherWay("What was found may be due to the reference, which ran as one sample.")
        notes |= dict.fromkeys(plain.notes, 1)
        if doubted or plain.mixed:
            run = self._runner.forward(x, target, batch, Books(1, self.itemised), self.stages, reference=reference)
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
        if reference is not None and len(ledger.inputs) > 1 and not is_step:
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
        if self.rules.conserving and not is_step:
            notes |= near_zero(ledger, limit)
        if not sound:
            self._check(found, ledger, x, target, batch, reference, is_step)
        order = [name for stage in self.stages for name in of_stage(stage, found.sums)]
        # That of a chain is relative to its whole difference: that of a step may be zero.
        scale = torch.ones_like(ledger.score) if is_step else ledger.explained
        main = main_input(x, self.kind, batch, self.model)
        return Explanation(
            relevance=found.relevance,
            input=map_tensors(Tensor.detach, x),
            score=found.score,
            target=found.classes,
            against=found.against,
            output=found.output,
            stages={name: found.maps[name] for name in order if name in found.maps},
            trace={"input": ledger.pixels / scale} | {name: found.sums[name] / scale for name in order},
            ledger=named_by_places(ledger, x, main),
            rules=self.rules,
            tolerance=limit,
            notes=notes,
            reference=None if reference is None else map_tensors(Tensor.detach, reference),
            unchecked=tuple(unchecked),
            layers=found.layers,
            layer_rows=found.layer_rows,
            kind=None if main is None else main[1],
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
        if found.shared and findings.errors:
            raise OtherWay("What was found may be due to the reference, which ran as one sample.")
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

    def _ran(self, run: Pass) -> None:
        """What is noted of each pass: nothing, unless it is an audit."""

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
        batch: int,
        reference: Any,
        is_step: bool,
    ) -> None:
        """Raises or warns about a result that can't be trusted; the books of a chain are checked as a whole."""
        if self._audit == "off":
            return

        def run(inspect: Callable[[Site, Tensor], None] | None = None) -> Pass:
            return self._runner.forward(x, target, batch, Books(1, itemised=True), (), inspect, reference)

        limit = found.limit
        results = [t for t in tensors((found.relevance, found.score)) if t.is_floating_point()]
        if not all(bool(t.isfinite().all()) for t in results):
            self._unsound(non_finite(self.model, run))
        elif reference is None and not is_step and (message := zero_score(found.score)) is not None:
            self._unsound(ModelError(message))
        elif (
            self.rules.conserving
            and not is_step
            and not bool((ledger.leak <= limit).all() and (ledger.residual <= limit).all())
        ):
            self._unsound(leak(run(), ledger))

    def _samples_mixed_up(self, ledger: Ledger, limit: float) -> bool:
        """Whether the books close in total but not for each sample: the samples were not told apart."""
        if not self.rules.conserving or bool((ledger.residual <= limit).all()):
            return False
        return bool(ledger.difference.sum().abs() < 0.01 * ledger.difference.abs().sum())


def named_by_places(ledger: Ledger, x: Any, main: tuple[Tensor, Kind] | None) -> Ledger:
    """The ledger with what arrived at a single input named by what that consists of: pixels, voxels."""
    if main is not None and (isinstance(x, Tensor) or (len(ledger.inputs) == 1 and set(ledger.inputs) <= _SEEN)):
        return replace(ledger, inputs={main[1].places: ledger.pixels})
    return ledger


def _in_form(state: Any, number: int, question: Question) -> Any:
    """A state of a chain in the form of the last one."""
    try:
        return Given(state)(question)[0]
    except InputError as error:
        raise InputError(
            f"explain_chain: state {number}, as a reference of the last one, has to be like it in form and in what is "
            f"held fixed. {error}"
        ) from error


def _sum_of_all(output: Any, count: int) -> Tensor:
    """A score that depends on all numbers of an output, for each of some samples."""
    return torch.stack([t.double().sum() for t in tensors(output) if t.is_floating_point()]).sum().expand(count)


def _together(found: list[Explanation], notes: dict[str, int], relative_to: str) -> Explanation:
    """The mean of explanations relative to several references, with what should be said of these."""
    one = found[0] if len(found) == 1 else mean_of(found)
    return replace(one, notes=notes | one.notes, ledger=replace(one.ledger, relative_to=relative_to))


def _part_of_progress(progress: Progress | None, number: int, count: int, passes: int) -> Callable[[int], None]:
    """Tells of the passes of one of several references."""

    def tell(done: int) -> None:
        if progress is not None:
            progress(number * passes + done, count * passes)

    return tell


def unwrap(model: nn.Module) -> nn.Module:
    """What is inside DataParallel, DistributedDataParallel and torch.compile."""
    while True:
        inner = model._modules.get("_orig_mod")
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        if inner is None:
            return model
        model = inner
