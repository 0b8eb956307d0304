"""An explanation beside plain passes of the same model.

Is the score the model's, the reference's score, and each sample's its own?

The ledger shows that relevance was neither lost nor made. It can't show that what was decomposed is what the model
computes. Plain passes can, without a graph and without the engine: they run when a model is first explained, and again
where there is reason to doubt.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.checks import tolerance
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forms import circumstances, of_target
from hilrp.attribution.forward_backward import Outcome, as_written, autocast_without_cache, call_model
from hilrp.engine import messages
from hilrp.targets import Target, logits_of, score_of
from hilrp.targets.classes import is_own
from hilrp.util.errors import AuditError, HilrpError
from hilrp.util.memory import shortage
from hilrp.util.nested import map_tensors, tensors


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
    mixed: dict[Hashable, bool | None] = field(default_factory=dict)
    constant: dict[str, list[Tensor]] = field(default_factory=dict)

    def remember(self, form: Hashable) -> None:
        """Enters a form that was checked; where each call has one of its own, older ones are forgotten."""
        if len(self.checked) >= _MOST_FORMS:
            self.checked.clear()
            self.mixed.clear()
        self.checked.add(form)

    def knows(self, place: str, tensor: Tensor) -> bool:
        """Whether a tensor has the value of one that was found to be constant there."""
        return any(t.shape == tensor.shape and torch.equal(t, tensor) for t in self.constant.get(place, ()))


#: How many forms are remembered of a model.
_MOST_FORMS = 500
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
        setting: What else it depends on how the model runs under the engine (modules that run again).
        recorded: Whether the explanation was replayed from a recording, in which nothing is read out.
        follow: Runs the engine on another input, and returns the tensors whose making it did not see.
        predict: Runs the engine on samples and beside them on as many others, and returns what it takes for the
            model's output on the others.
    """

    model: nn.Module
    x: Any
    target: Target
    batch: int
    reference: Any
    found: Outcome
    setting: Hashable
    recorded: bool
    follow: Callable[[Any], list[tuple[str, Tensor]]]
    predict: Callable[[Any, Any, int], Any]

    def run(self, anew: bool = False, doubted: bool = False) -> Findings:
        """Makes the comparisons that are due.

        Args:
            anew: Make them all, whatever is known of the model.
            doubted: Whether the ledger could not be followed sample by sample.
        """
        memory = _memory.setdefault(self.model, _Memory())
        form = self._form()
        first = anew or form not in memory.checked
        findings = Findings(notes=[messages.read_out(where) for where in self.found.read_outs])
        # At every call: numbers may be read out where nobody sees it (in another thread, in scripted code).
        related = self.reference is not None and (first or not self.recorded)
        unknown = [each for each in self.found.strangers if anew or not memory.knows(*each)]
        mixing = self.batch > 1 and (first or doubted or (form, self.batch) not in memory.mixed)
        if first or related or unknown or mixing:
            with _as_it_was(self.x):
                try:
                    decided = self._compare(first, related, bool(unknown), mixing, findings)
                except Exception as error:
                    if isinstance(error, HilrpError) or shortage(error):
                        raise
                    reason = f"anything beside a plain pass, which raised {type(error).__name__}: {error}"
                    findings.unchecked.append(reason)
                    return findings
            if unknown and decided:
                memory.constant = {}
                for place, t in self.found.strangers:
                    memory.constant.setdefault(place, []).append(t)
        if mixing:
            memory.mixed[form, self.batch] = findings.mixed
        findings.mixed = bool(memory.mixed.get((form, self.batch)))
        if not findings.errors and not findings.unchecked:
            memory.remember(form)
        return findings

    def _compare(self, first: bool, related: bool, unknown: bool, mixing: bool, findings: Findings) -> bool:
        """Runs the model, and says whether tensors from elsewhere are known to be constants.

        On the input last, so that what it keeps of a call is of that one; not where the reference alone was asked for,
        which can be at every call.
        """
        if related:
            self._check_reference(findings)
        about_reference = len(findings.errors)
        constant = unknown and self._check_strangers(findings)
        changed = self._scores_of_changed(findings) if mixing else []
        if first or unknown or mixing:
            state = self._state_of_changed(bool(changed)) if first else None
            if first and not findings.errors:
                self._check_prediction(findings)
            plain = self._output(self.x)
            if first:
                self._check_score(plain, findings)
                self._check_state(state, findings)
            findings.mixed = self._mixes(plain, changed, findings)
        # What is wrong on the input itself comes first: it is wrong on the reference for the same reason.
        findings.errors = findings.errors[about_reference:] + findings.errors[:about_reference]
        return constant

    def _form(self) -> Hashable:
        asked = of_target(self.target)
        return circumstances(self.model, self.x), asked, self.batch > 1, self.reference is not None, self.setting

    def _output(self, x: Any) -> Any:
        return _output(self.model, x)

    def _score(self, output: Any) -> Tensor:
        target = self.target if callable(self.target) else self.found.chosen
        with torch.no_grad():
            return score_of(output, target, self.batch).value.detach()

    def _scale(self, score: Tensor, output: Any) -> Tensor:
        """What differences are relative to, for each sample.

        The score, or the size of most scores that it is one of.
        """
        scale = torch.maximum(self.found.score.abs(), score.abs()).double().nan_to_num(0.0, 0.0, 0.0)
        if callable(self.target):
            return scale
        return torch.maximum(scale, _median(logits_of(output).detach().reshape(self.batch, -1).double()))

    def _apart(self, a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        """Whether two scores differ by more than rounding, for each sample."""
        a, b = a.double(), b.double()
        same = (a == b) | (a.isnan() & b.isnan())
        return ~(same | ((a - b).abs() <= self.found.limit * scale))

    def _other_logits(self, plain: Any, explained: Any) -> Tensor:
        """Where any class has another score than in the explained output, by sample.

        The next question may be about that one.
        """
        ours, theirs = (logits_of(each).detach().reshape(self.batch, -1).double() for each in (explained, plain))
        if ours.shape != theirs.shape:
            return torch.ones(self.batch, dtype=torch.bool, device=ours.device)
        scale = torch.maximum(theirs.abs().nan_to_num(0.0, 0.0, 0.0), _median(theirs)[:, None])
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
        if not bool(apart.any()):
            return
        if callable(self.target) and self._same_output(plain, scale):
            # hilrp's own choose by the input what they ask for, and so do those that read out which class it is.
            if not is_own(self.target) and not self.found.target_chooses:
                findings.unchecked.append(
                    "the reference's score: the target reads numbers out of the output, and is another function there"
                )
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

    def _check_strangers(self, findings: Findings) -> bool:
        """Whether all of the tensors whose making wasn't seen are the same on another input."""
        held = getattr(self.model, "holds_fixed", None)
        if held is not None:
            findings.notes.append(f"held fixed, and without relevance: {held}")
            return True
        try:
            others = self.follow(map_tensors(partial(_changed, batch=self.batch), self.x))
            # What a model keeps between calls comes from elsewhere the second time only.
            changed = [each for each in self.found.strangers if not _is_among(each, others)]
            again = self.follow(self.x) if changed else []
        except Exception as error:
            if shortage(error):
                raise
            findings.unchecked.append("whether tensors from outside the pass depend on the input")
            return False
        # Where nothing from elsewhere is used on the other input, there is nothing to compare with.
        places = {place for place, _ in others}
        dependent = [place for place, t in changed if place in places and _is_among((place, t), again)]
        random = [place for place, _ in changed if place not in dependent]
        if dependent:
            findings.errors.append(messages.unseen_origin(dependent))
        if random:
            findings.unchecked.append(
                "whether tensors from outside the pass depend on the input: "
                f"those that {', '.join(dict.fromkeys(random))} use are not the same from call to call"
            )
        return not changed

    def _rows(self, output: Any) -> Tensor:
        """All that may be asked of an output, a row for each sample: its logits, or the score of a function."""
        if callable(self.target):
            return self._score(output)[:, None]
        return logits_of(output).detach().reshape(self.batch, -1)

    def _scores_of_changed(self, findings: Findings) -> list[tuple[Tensor, Tensor]]:
        """Which samples were kept, and the rows of all, while others were changed."""
        found = []
        for kept in separating(self.batch).to(self.found.score.device):
            try:
                rows = self._rows(self._output(map_tensors(partial(_changed, batch=self.batch, kept=kept), self.x)))
            except Exception as error:
                if shortage(error):
                    raise
                findings.unchecked.append("whether samples see each other: the model does not run on a changed batch")
                return []
            found.append((kept, rows))
        return found

    def _check_prediction(self, findings: Findings) -> None:
        """Whether all that depends on the input was seen: what was followed must give the output on another input.

        Where numbers are read out in sight, it need not, and that is told already.
        """
        if self.found.read_outs or getattr(self.model, "holds_fixed", None) is not None:
            return
        reasons = []
        # Of one sample; some models take no single ones.
        for count in dict.fromkeys((1, self.batch)):
            try:
                differs = self._foresees_less(count)
            except Exception as error:  # it takes another way there, or has an operation without a form
                if shortage(error):
                    raise
                reasons.append(f"{type(error).__name__}: {error}")
                continue
            if differs:
                findings.unchecked.append(
                    "whether all that depends on the input was seen: on another input the model gives other numbers "
                    "than what was followed (values that left torch in another thread, in scripted code or in an "
                    "extension)"
                )
            return
        findings.unchecked.append(
            f"whether all that depends on the input was seen: what was followed does not run beside another input "
            f"({reasons[-1]})"
        )

    def _foresees_less(self, count: int) -> bool:
        """Whether what was followed of some samples gives something else on other inputs than the model."""
        some = map_tensors(lambda t: t[:count] if t.shape[:1] == (self.batch,) else t, self.x)
        other = map_tensors(partial(_changed, batch=count), some)
        followed = self._asked(self.predict(some, other, count), count)
        plain = self._asked(self._output(other), count)
        if [t.shape for t in followed] != [t.shape for t in plain]:
            return False  # the model took another way, which it says
        apart = [differ(a, b, self.found.limit) for a, b in zip(plain, followed, strict=True)]
        if not any(apart):
            return False
        again = self._asked(self._output(other), count)
        return all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(plain, again, strict=True))

    def _asked(self, output: Any, count: int) -> list[Tensor]:
        """What is asked of the output for some samples, as rows: the logits, or a function's scores.

        A function that takes no other number of samples may be asking for any number of the output.
        """
        if not callable(self.target):
            found = [logits_of(output)]
        else:
            try:
                found = [score_of(output, self.target, count).value[:, None]]
            except Exception:  # it is the user's, and holds what it likes for each sample
                found = [t for t in tensors(output) if t.is_floating_point() and t.numel()]
        return [t.detach().double().reshape(len(t) if t.ndim > 1 else 1, -1) for t in found]

    def _state_of_changed(self, just_ran: bool) -> list[tuple[int, float, float]] | None:
        """The model's parameters and buffers after a pass on another input, as far as one can tell them apart."""
        try:
            if not just_ran:
                self._output(map_tensors(partial(_changed, batch=self.batch), self.x))
        except Exception as error:
            if shortage(error):
                raise
            return None  # it doesn't run on that
        return _state(self.model)

    def _check_state(self, changed: list[tuple[int, float, float]] | None, findings: Findings) -> None:
        """Whether the model's own tensors hold what depends on the input, though nobody saw it being written."""
        state, names = _state(self.model), [*dict(self.model.named_parameters()), *dict(self.model.named_buffers())]
        if changed is None or len(changed) != len(state):
            return
        unseen = [i for i, (a, b) in enumerate(zip(state, changed, strict=True)) if a[0] == b[0] and a != b]
        if not unseen:
            return
        self._output(self.x)
        again = _state(self.model)
        own = [names[i] for i in unseen]
        if all(again[i] == state[i] for i in unseen):
            findings.errors.append(messages.unseen_state(own))
        else:
            findings.unchecked.append(f"whether {', '.join(own)} depends on the input: it changes from call to call")

    def _mixes(self, plain: Any, changed: list[tuple[Tensor, Tensor]], findings: Findings) -> bool:
        """Whether a sample's score changes with the others."""
        if not changed:
            return False
        rows = self._rows(plain)
        scale = torch.maximum(rows.abs().double().nan_to_num(0.0, 0.0, 0.0), _median(rows.double())[:, None])
        moved = [
            kept & (self._apart(rows, other, scale) & other.isfinite()).any(1) if rows.shape == other.shape else kept
            for kept, other in changed
        ]
        if not bool(torch.stack(moved).any()):
            return False
        again = self._rows(self._output(self.x))
        if again.shape != rows.shape or bool(self._apart(rows, again, scale).any()):
            findings.unchecked.append("whether samples see each other: the model isn't deterministic")
            return False
        return True


def run_first(model: nn.Module, x: Any) -> None:
    """Runs a model on the input, if it has not been looked at: what it keeps of its first call is of that."""
    if model in _memory:
        return
    _memory[model] = _Memory()
    with _as_it_was(x), suppress(Exception):  # what is wrong with it is said where it is explained
        _output(model, x)


def separating(count: int) -> Tensor:
    """Sets of samples ``[sets, count]`` in which for any two samples there is one with the first and not the second.

    Each sample is in half of the sets, and no two in the same ones (Sperner): seven sets for 32 samples.

    Example:
        >>> separating(4).int().tolist()
        [[1, 1, 1, 0], [1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0]]
    """
    sets = next(n for n in itertools.count(2) if math.comb(n, n // 2) >= count)
    members = list(itertools.islice(itertools.combinations(range(sets), sets // 2), count))
    return torch.tensor([[number in own for own in members] for number in range(sets)])


def _state(model: nn.Module) -> list[tuple[int, float, float]]:
    """Of each parameter and buffer, torch's count of writes to it, and two sums of its values."""
    counts, sums = [], []
    for t in (*model.parameters(), *model.buffers()):
        plain = not (t.is_meta or t.is_sparse or t.is_quantized or t.is_inference())
        values = torch.view_as_real(t.detach()) if t.is_complex() else t.detach()
        values = (values if plain else torch.zeros(1)).flatten()
        ends = values[:: max(1, len(values) // 64)].double()  # the sum alone would not tell an exchange
        order = torch.linspace(1, 2, len(ends), dtype=torch.float64, device=ends.device)
        counts.append(t._version if plain else 0)
        sums.append(torch.stack([values.sum(dtype=torch.float64), ends @ order]).nan_to_num())
    by_device = {device: [s for s in sums if s.device == device] for device in {s.device for s in sums}}
    read = {device: iter(torch.stack(own).tolist()) for device, own in by_device.items()}
    return [(count, *next(read[s.device])) for count, s in zip(counts, sums, strict=True)]


def parts_differ(model: nn.Module, x: Any, target: Target, found: Explanation, size: int) -> bool | None:
    """Whether samples that were explained in parts have other scores in larger ones; ``None`` if nobody can say.

    That is so where samples see each other. It is found out once for each form of input and size of the parts.

    Args:
        model: The model.
        x: Two parts as one: all of them may be more than memory holds.
        target: What was explained, as classes or as a function of the output.
        found: The explanation of the two parts.
        size: How many samples a part has.
    """
    known, count = _memory.setdefault(model, _Memory()).mixed, len(found.score)
    form = circumstances(model, x), of_target(target), count, size
    if form not in known:
        with _as_it_was(x):
            known[form] = _others_together(model, x, target, found)
    return known[form]


def _others_together(model: nn.Module, x: Any, target: Target, found: Explanation) -> bool | None:
    """Whether samples that are run at once have other scores than in their parts."""
    count = len(found.score)
    ours = found.score[:, None] if callable(target) else logits_of(found.output).reshape(count, -1)
    runs = []
    for _ in range(2):
        try:
            output = _output(model, x)
            with torch.no_grad():
                score = score_of(output, target, count).value[:, None] if callable(target) else logits_of(output)
            runs.append(score.detach().reshape(count, -1))
        except Exception:  # it takes fewer samples, or memory does
            return None
    if not torch.equal(runs[0].nan_to_num(), runs[1].nan_to_num()):
        return None
    if runs[0].shape != ours.shape:
        return True
    return differ(runs[0].double(), ours.double(), tolerance([ours.dtype], ours.device))


def differ(a: Tensor, b: Tensor, limit: float) -> bool:
    """Whether any numbers of two outputs, a row for each sample, differ by more than rounding."""
    apart = (a - b).abs() > limit * torch.maximum(b.abs(), _median(b)[:, None]).nan_to_num(0.0, 0.0, 0.0)
    return bool((apart | (a.isfinite() != b.isfinite())).any())


def _output(model: nn.Module, x: Any) -> Any:
    """What the model returns without the engine; with gradients only where it needs them (hooks on them)."""
    with torch.inference_mode(False), as_written(), autocast_without_cache():
        try:
            with torch.no_grad():
                return call_model(model, map_tensors(lambda t: t.detach().clone(), x))
        except RuntimeError as error:
            if shortage(error):
                raise
            without_gradients = error
        try:
            with torch.enable_grad():
                return call_model(
                    model,
                    map_tensors(lambda t: t.detach().clone().requires_grad_(t.is_floating_point()) * 1, x),
                )
        except RuntimeError:
            raise without_gradients from None


def _changed(t: Tensor, batch: int, kept: Tensor | None = None) -> Tensor:
    """An input with samples changed, but those that are kept.

    They are mirrored, negated, paler and shifted, so that neither a mean nor a mean square stays what it was.
    """
    if not t.is_floating_point() or t.shape[:1] != (batch,):
        return t
    other = 0.3 * t.detach().abs().amax() - 0.5 * t.detach().flip(-1)
    rows = (other == t).reshape(batch, -1).all(1).reshape(-1, *[1] * (t.ndim - 1))
    other = torch.where(rows, other + 1, other)
    return other if kept is None else torch.where(kept.to(t.device).reshape(rows.shape), t.detach(), other)


def _median(logits: Tensor) -> Tensor:
    """The size of most scores of each sample: a class that is masked out has a huge one, or none at all."""
    finite = torch.where(logits.isfinite(), logits.abs(), torch.nan)
    return finite.nanmedian(1).values.nan_to_num(0.0)


def _is_among(stranger: tuple[str, Tensor], others: list[tuple[str, Tensor]]) -> bool:
    place, t = stranger
    return any(place == where and t.shape == o.shape and torch.equal(t, o) for where, o in others)


@contextmanager
def _as_it_was(x: Any) -> Iterator[None]:
    """Leaves torch's random numbers as they were."""
    devices = sorted({t.device.index or 0 for t in tensors(x) if t.is_cuda})
    with torch.random.fork_rng(devices):
        yield
