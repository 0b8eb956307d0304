"""An explanation beside plain passes of the same model: is the score the model's, the reference's score, and each sample's its own?

The ledger shows that relevance was neither lost nor made. It can't show that what was decomposed is what the model computes. Plain passes
can, without a graph and without the engine: they run when a model is first explained, and again where there is reason to doubt.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hilrp import messages
from hilrp.errors import AuditError, HilrpError
from hilrp.memory import shortage
from hilrp.passes import Outcome, as_written, autocast_without_cache, call_model
from hilrp.targets import Target, logits_of, score_of
from hilrp.tree import map_tensors, tensors


@dataclass
class Findings:
    """What plain passes say of an explanation.

    Attributes:
        errors: Why it is wrong.
        notes: What is worth saying.
        unchecked: What could not be checked.
        mixed: Whether samples see each other.
    """

    errors: list[AuditError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    mixed: bool = False


@dataclass
class _Memory:
    """What was found out about a model.

    Attributes:
        checked: Forms of input whose score was checked.
        mixed: Whether samples see each other.
        constant: Tensors from elsewhere that were found to be constants, by where they are used.
    """

    checked: set[Hashable] = field(default_factory=set)
    mixed: dict[Hashable, bool] = field(default_factory=dict)
    constant: dict[str, list[Tensor]] = field(default_factory=dict)

    def knows(self, place: str, tensor: Tensor) -> bool:
        """Whether a tensor has the value of one that was found to be constant there."""
        return any(t.shape == tensor.shape and torch.equal(t, tensor) for t in self.constant.get(place, ()))


_memory: weakref.WeakKeyDictionary[nn.Module, _Memory] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Comparison:
    """An explanation, to be compared with plain passes.

    Attributes:
        model: The model.
        x: Its input.
        target: What is explained.
        batch: The number of samples.
        reference: What relevance is relative to, if anything.
        found: What the explanation found.
        follow: Runs the engine on another input, and returns the tensors whose making it did not see.
    """

    model: nn.Module
    x: Any
    target: Target
    batch: int
    reference: Any
    found: Outcome
    follow: Callable[[Any], list[tuple[str, Tensor]]]

    def run(self, anew: bool = False, doubted: bool = False) -> Findings:
        """Makes the comparisons that are due.

        Args:
            anew: Make them all, whatever is known of the model.
            doubted: Whether the ledger could not be followed sample by sample.
        """
        memory = _memory.setdefault(self.model, _Memory())
        form = self._form()
        first = anew or form not in memory.checked
        findings = Findings()
        doubtful = bool(self.found.read_outs or self.found.strangers)
        findings.notes += map(messages.read_out, self.found.read_outs)
        mixing = self.batch > 1 and (first or doubted or form not in memory.mixed)
        with _as_it_was(self.x):
            try:
                plain = self._output(self.x) if first or mixing else None
                if first:
                    self._check_score(plain, findings)
                if self.reference is not None and (first or doubtful):
                    self._check_reference(findings)
            except Exception as error:
                if isinstance(error, HilrpError) or shortage(error):
                    raise
                findings.unchecked.append(f"anything beside a plain pass, which raised {type(error).__name__}: {error}")
                return findings
            if self.found.strangers and (anew or not all(memory.knows(*each) for each in self.found.strangers)):
                self._check_strangers(findings)
                if not findings.errors:
                    memory.constant = {}
                    for place, t in self.found.strangers:
                        memory.constant.setdefault(place, []).append(t)
            if mixing:
                memory.mixed[form] = self._mixes(plain, findings)
        findings.mixed = memory.mixed.get(form, False)
        if not findings.errors and not findings.unchecked:
            memory.checked.add(form)
        return findings

    def _form(self) -> Hashable:
        kinds = tuple((tuple(t.shape[1:]), t.dtype, t.device) for t in tensors(self.x))
        structure = hash(
            tuple((type(m), m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in self.model.modules())
        )
        # Not the function itself, which may hold the model.
        target = getattr(self.target, "__code__", type(self.target)) if callable(self.target) else None
        autocast = tuple(torch.is_autocast_enabled(d) for d in ("cpu", "cuda"))
        return kinds, structure, target, self.batch > 1, self.reference is not None, autocast

    def _output(self, x: Any) -> Any:
        """What the model returns without the engine, in inference or, where it needs gradients (hooks on them), with those."""
        with torch.inference_mode(False), as_written(), autocast_without_cache():
            try:
                with torch.no_grad():
                    return call_model(self.model, map_tensors(lambda t: t.detach().clone(), x))
            except RuntimeError as error:
                if shortage(error):
                    raise
            with torch.enable_grad():
                return call_model(
                    self.model, map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()) * 1, x)
                )

    def _score(self, output: Any) -> Tensor:
        target = self.target if callable(self.target) else self.found.chosen
        with torch.no_grad():
            return score_of(output, target, self.batch).value.detach()

    def _scale(self, score: Tensor, output: Any) -> Tensor:
        """What differences are relative to, for each sample: the score, or the size of most scores that it is one of."""
        scale = torch.maximum(self.found.score.abs(), score.abs()).double().nan_to_num(0.0, 0.0, 0.0)
        if callable(self.target):
            return scale
        # The median: a class that is masked out has a huge score.
        return torch.maximum(scale, logits_of(output).detach().reshape(self.batch, -1).abs().double().median(1).values)

    def _apart(self, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        """Whether two scores differ by more than rounding, for each sample."""
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        return ~(same | ((a - b).abs() <= self.found.limit * scale))

    def _other_logits(self, plain: Any, explained: Any) -> Tensor:
        """Where any class has another score than in the explained output, by sample: the next question may be about that one."""
        ours, theirs = (logits_of(each).detach().reshape(self.batch, -1).double() for each in (explained, plain))
        if ours.shape != theirs.shape:
            return torch.ones(self.batch, dtype=torch.bool, device=ours.device)
        scale = torch.maximum(theirs.abs(), theirs.abs().median(1, keepdim=True).values)
        return self._apart(theirs, ours, scale).any(1)

    # What is compared ---------------------------------------------------------------------------------------------

    def _check_score(self, plain: Any, findings: Findings) -> None:
        score = self._score(plain)
        scale = self._scale(score, plain)
        apart = self._apart(score, self.found.score, scale)
        classes = None
        if not callable(self.target):
            apart = apart | self._other_logits(plain, self.found.output)
        if not callable(self.target) and self.target is None and self.found.classes is not None:
            logits = logits_of(plain).detach().reshape(self.batch, -1)
            classes = logits.argmax(1)
            best = logits.amax(1).to(self.found.score.dtype)
            apart = apart | ((classes != self.found.classes) & self._apart(best, self.found.score, scale))
        if not bool(apart.any()):
            return
        again = self._score(self._output(self.x))
        if bool(self._apart(score, again, scale).any()):
            findings.unchecked.append("the score beside a plain pass: the model isn't deterministic")
            return
        sample = int(apart.nonzero()[0])
        if classes is not None and int(classes[sample]) != int(self.found.classes[sample]):  # type: ignore[index]
            error = messages.other_class(int(classes[sample]), int(self.found.classes[sample]), sample)  # type: ignore[index]
        else:
            error = messages.other_score(float(score[sample]), float(self.found.score[sample]), sample)
        findings.errors.append(error)

    def _check_reference(self, findings: Findings) -> None:
        held = getattr(self.model, "holds_fixed", None)
        if held is not None:
            findings.notes.append(f"held fixed on the reference: {held}")
            return
        followed = self.found.reference_score
        assert followed is not None
        plain = self._output(self.reference)
        score = self._score(plain)
        scale = torch.maximum(self._scale(score, plain), followed.abs().double())
        apart = self._apart(score, followed, scale)
        if not callable(self.target):
            apart = apart | self._other_logits(plain, self.found.reference_output)
        if bool(apart.any()) and callable(self.target) and self._same_output(plain, scale):
            return  # the target chooses by the input what it asks for
        if not bool(apart.any()):
            return
        again = self._score(self._output(self.reference))
        if bool(self._apart(score, again, scale).any()):
            findings.unchecked.append("the reference's score beside a plain pass: the model isn't deterministic")
            return
        sample = int(apart.nonzero()[0])
        strangers = [place for place, _ in self.found.strangers]
        scores = float(score[sample]), float(followed[sample])
        findings.errors.append(messages.false_reference(*scores, sample, list(self.found.read_outs), strangers))

    def _same_output(self, plain: Any, scale: Tensor) -> bool:
        ours = tensors(self.found.reference_output)
        pairs = list(zip(tensors(plain), ours, strict=False))
        limit = self.found.limit * float(scale.max())
        return len(tensors(plain)) == len(ours) and all(
            a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0, atol=limit, equal_nan=True)
            for a, b in pairs
            if a.is_floating_point()
        )

    def _check_strangers(self, findings: Findings) -> None:
        """Which of the tensors whose making wasn't seen are others on another input."""
        held = getattr(self.model, "holds_fixed", None)
        if held is not None:
            findings.notes.append(f"held fixed, and without relevance: {held}")
            return
        try:
            others = self.follow(map_tensors(self._changed, self.x))
        except Exception as error:
            if shortage(error):
                raise
            findings.unchecked.append("whether tensors from outside the pass depend on the input")
            return
        same: dict[str, list[Tensor]] = {}
        for place, t in others:
            same.setdefault(place, []).append(t)
        # What a model keeps between calls comes from elsewhere the second time only.
        places = [
            place
            for place, t in self.found.strangers
            if not any(t.shape == o.shape and torch.equal(t, o) for o in same.get(place, ()))
        ]
        if places:
            findings.errors.append(messages.unseen_origin(places))

    def _mixes(self, plain: Any, findings: Findings) -> bool:
        """Whether a sample's score changes with the others: half of them are changed, then the other half."""
        score = self._score(plain)
        scale = self._scale(score, plain)
        for parity in (0, 1):
            kept = torch.arange(self.batch, device=score.device) % 2 == parity
            try:
                other = self._score(self._output(map_tensors(partial(self._changed, kept=kept), self.x)))
            except Exception as error:
                if shortage(error):
                    raise
                findings.unchecked.append("whether samples see each other: the model does not run on a changed batch")
                return False
            moved = kept & self._apart(score, other, scale) & other.isfinite()
            if bool(moved.any()):
                again = self._score(self._output(self.x))
                if bool(self._apart(score, again, scale).any()):
                    findings.unchecked.append("whether samples see each other: the model isn't deterministic")
                    return False
                return True
        return False

    def _changed(self, t: Tensor, kept: Tensor | None = None) -> Tensor:
        """An input with samples changed, but those that are kept.

        They are mirrored, negated, paler and shifted, so that neither a mean nor a mean square stays what it was.
        """
        if not t.is_floating_point() or t.shape[:1] != (self.batch,):
            return t
        other = 0.3 * t.detach().abs().amax() - 0.5 * t.detach().flip(-1)
        rows = (other == t).reshape(self.batch, -1).all(1).reshape(-1, *[1] * (t.ndim - 1))
        other = torch.where(rows, other + 1, other)
        return other if kept is None else torch.where(kept.to(t.device).reshape(rows.shape), t.detach(), other)


@contextmanager
def _as_it_was(x: Any) -> Iterator[None]:
    """Leaves torch's random numbers as they were."""
    devices = sorted({t.device.index or 0 for t in tensors(x) if t.is_cuda})
    with torch.random.fork_rng(devices):
        yield
