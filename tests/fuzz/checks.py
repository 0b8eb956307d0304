"""What must hold of every explanation, whatever the model: the properties that random models are checked for.

A finding is a property that doesn't hold. Models that no method could decompose in floating point are left out by
criteria that are computed from the plain model alone (`Plain.reason`), never from an explanation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import hilrp
from hilrp.attribution.audit import forward_difference
from hilrp.attribution.explanation import Explanation
from hilrp.method.rules import Rules
from hilrp.util.nested import map_tensors, tensors

#: How far the books may be from closing, relative to the score.
BOOKS = 1e-9
#: How far twins, or relevance and gradient x input, may be apart, relative to the largest relevance.
SAME = 1e-9
#: How far the pixels may be from f(x) - f(x0), relative to the larger of the two (and to no less than `FLOOR`).
SUM, FLOOR = 1e-8, 1e-3
#: How many times the score the terms that it is summed of may be, and gradient x input: beyond it digits are lost.
CANCELLATION = 1e3

#: Rules relative to a reference: those of the preset, and the exact secant.
RELATIVE: dict[str, Rules] = {
    "secant": Rules.named("secant"),
    "exact secant": Rules(linear="epsilon", constants="reference"),
}

#: Answers that are right though they are errors, and why.
REFUSALS = {
    "only through gates": "the gates keep what reaches them, and nothing is left to show",
    "does not depend on the input": "there is nothing to explain",
    "there is nothing to decompose": "the score is zero",
    "is active in": "chance",
    "uses the statistics of the batch": "samples would explain each other",
    "derivative for aten::": "torch has no derivative",
    "is not differentiable with respect to argument": "torch has no derivative",
    "`quantile` has no form relative to": "which order statistic is meant depends on the input",
    "that `instance_norm` uses in the model itself was written to": "it updates running statistics that are explained",
    "Tensors that `detach` in the model itself use depend": "running statistics that a norm updates",
    "took another way on the reference": "the shapes of a masked selection are those of its mask",
}


@dataclass(frozen=True)
class Finding:
    """A property that doesn't hold: which, and how far from it."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass
class Case:
    """A model, its input, and what is asked of it.

    Attributes:
        model: The model.
        x: Its input: a tensor or a tuple of them, samples first.
        target: A function of the output, or the class of each sample.
        listed: Whether every operation is one of the table: only then a refusal is a finding.
        chooses: Whether masks depend on the input, so that the books may have an entry for what choices leave.
    """

    model: nn.Module
    x: Any
    target: Callable[[Tensor], Tensor] | Tensor
    listed: bool = True
    chooses: bool = False

    def of(self, model: nn.Module) -> Case:
        """The same question to another model."""
        return Case(model, self.x, self.target, self.listed, self.chooses)

    def at(self, x: Any) -> Case:
        """The same question about another input."""
        return Case(self.model, x, self.target, self.listed, self.chooses)

    def sample(self, i: int) -> Case:
        """The question about one sample alone."""
        target = self.target[i : i + 1] if isinstance(self.target, Tensor) else self.target
        x = map_tensors(lambda t: t[i : i + 1], self.x)
        return Case(self.model, x, target, self.listed, self.chooses)


class Plain:
    """What the model does by itself."""

    def __init__(self, case: Case) -> None:
        with torch.no_grad():
            self.output = run(case.model, case.x)
            again = run(case.model, case.x)
        self.same = torch.equal(self.output, again) or not bool(self.output.isfinite().all())
        self.score = score_of(case, self.output)

    def reason(self) -> str | None:
        """Why the model can't be decomposed in floating point, if so."""
        if not self.same:
            return "chance"
        if not bool(self.output.isfinite().all()) or not bool(self.score.isfinite().all()):
            return "not finite"
        if self.output.abs().max() > 1e6 or self.score.abs().min() < 1e-6:
            return "too large or too small a score"
        return None


def run(model: nn.Module, x: Any) -> Tensor:
    """The output of a plain pass; the model may write to its input."""
    x = map_tensors(lambda t: t.detach().clone(), x)
    return model(*x) if isinstance(x, tuple) else model(x)


def score_of(case: Case, output: Tensor) -> Tensor:
    """The scalars that are explained."""
    if isinstance(case.target, Tensor):
        return output.gather(1, case.target[:, None])[:, 0]
    return case.target(output)


def gradient_times_input(case: Case, at: Any = None) -> list[Tensor] | None:
    """Of the plain model, by autograd; ``at``: the gradient at the input, times the difference to this.

    ``None`` if torch can't.
    """
    leaves = [t.detach().clone().requires_grad_() for t in tensors(case.x)]
    own = tuple(leaf * 1 for leaf in leaves)
    try:
        with torch.enable_grad():
            output = case.model(*own) if isinstance(case.x, tuple) else case.model(own[0])
            found = torch.autograd.grad(score_of(case, output).sum(), leaves, allow_unused=True)
    except RuntimeError:  # writes that autograd forbids
        return None
    before = [0] * len(leaves) if at is None else tensors(at)
    pairs = zip(leaves, found, before, strict=True)
    return [torch.zeros_like(t) if g is None else (t.detach() - t0) * g for t, g, t0 in pairs]


def ill_conditioned(case: Case, twin: Case | None = None, reference: Any = None) -> bool:
    """Whether digits are lost in the plain model: gradient x input is much larger than the score, or not finite."""
    for asked in (case,) if reference is None else (case, case.at(reference)):
        model = asked if twin is None else twin.at(asked.x)
        found = gradient_times_input(model, None if reference is None else _other(case, asked, reference))
        if found is None:
            continue
        score = Plain(asked).score.abs().clamp_min(FLOOR if reference is not None else 0.0)
        gross = sum(t.abs().reshape(len(t), -1).sum(1) for t in found)
        if not bool((gross <= CANCELLATION * score).all()):
            return True
    return False


def _other(case: Case, asked: Case, reference: Any) -> Any:
    return reference if asked is case else case.x


def explain(
    case: Case, rules: str | Rules, reference: Any = None, itemised: bool = False
) -> Explanation | Finding | None:
    """The explanation, or what is wrong with the answer, or ``None`` for an error that is a right answer."""
    name = rules if isinstance(rules, str) else rules.linear
    label = f"{name}{', itemised' if itemised else ''}{'' if reference is None else ', reference'}"
    x = map_tensors(lambda t: t.clone(memory_format=torch.preserve_format), case.x)
    options: dict[str, Any] = {"reference": reference, "stages": None, "itemised": itemised}
    try:
        return hilrp.explain(case.model, x, case.target, rules, **options)
    except hilrp.BooksError as error:
        found = hilrp.explain(case.model, x, case.target, rules, audit="off", **options)
        if float(found.ledger.residual.max()) <= BOOKS and float(found.ledger.leak.max()) <= BOOKS:
            return found
        return Finding("books", f"({label}) {error}")
    except hilrp.HilrpError as error:
        if any(known in str(error) for known in REFUSALS):
            return None
        hidden = error.__cause__
        if hidden is not None and not isinstance(hidden, hilrp.HilrpError):
            return Finding("raw exception", f"({label}) {type(hidden).__name__}: {hidden}")
        if not case.listed:
            return None
        return Finding("refusal", f"({label}) {type(error).__name__}: {error}")
    except Exception as error:
        return Finding("raw exception", f"({label}) {type(error).__name__}: {error}")


def check(case: Case, rules: str, itemised: bool = False) -> tuple[list[Finding], Explanation | None]:
    """Without a reference: the value is the model's, the class is the predicted one, the books close."""
    found = explain(case, rules, itemised=itemised)
    if found is None or isinstance(found, Finding):
        return ([] if found is None else [found]), None
    findings = _value(case, found, rules)
    residual, leak = float(found.ledger.residual.max()), float(found.ledger.leak.max())
    if not (residual <= BOOKS and leak <= BOOKS):
        findings.append(Finding("books", f"({rules}) residual {residual:.2g}, leak {leak:.2g}, and no error"))
    return findings, found


def _value(case: Case, found: Explanation, rules: Any) -> list[Finding]:
    findings = []
    difference = forward_difference(case.model, case.x, found.output)
    if difference != 0:
        findings.append(Finding("forward", f"({rules}) the output differs by {difference:.2g}"))
    plain = Plain(case)
    if not torch.allclose(found.score, plain.score, rtol=1e-10, atol=1e-12):
        findings.append(Finding("score", f"explained {found.score.tolist()}, plain {plain.score.tolist()}"))
    return findings


def check_prediction(case: Case, rules: str) -> list[Finding]:
    """Without a target, the predicted class is explained."""
    try:
        found = hilrp.explain(case.model, case.x, rules=rules, stages=None, audit="off")
    except hilrp.HilrpError:
        return []  # found by the other checks
    predicted = Plain(case).output.argmax(1)
    if torch.equal(found.target, predicted):
        return []
    return [Finding("target", f"explained {found.target.tolist()}, predicted {predicted.tolist()}")]


def check_reference(case: Case, name: str, reference: Any, itemised: bool = False) -> tuple[list[Finding], Any]:
    """Relative to a reference: the pixels sum to the difference of two plain passes."""
    found = explain(case, RELATIVE[name], reference, itemised)
    if found is None or isinstance(found, Finding):
        return ([] if found is None else [found]), None
    findings = _value(case, found, name)
    plain = Plain(case)
    with torch.no_grad():
        before = score_of(case, run(case.model, reference))
    scale = torch.maximum(plain.score.abs(), before.abs()).clamp_min(FLOOR)
    pixels = sum(t.reshape(len(t), -1).sum(1) for t in tensors(found.relevance))
    others = {key: value for key, value in found.ledger.entries.items() if "reference" not in key}
    chosen = {key: value for key, value in others.items() if "selection" in key}
    unasked = others if not case.chooses else {key: value for key, value in others.items() if key not in chosen}
    held = {key: float((value.abs() / scale).max()) for key, value in unasked.items()}
    if any(value > SUM for value in held.values()):
        findings.append(Finding("entries", f"({name}) {held}"))
    missing = plain.score - before - pixels - sum(chosen.values(), torch.zeros_like(pixels))
    if not bool((missing.abs() <= SUM * scale).all()):
        worst = float((missing.abs() / scale).max())
        detail = f"pixels {pixels.tolist()}, f(x) - f(x0) {(plain.score - before).tolist()}"
        findings.append(Finding("sum rule", f"({name}) off by {worst:.2g}: {detail}"))
    return findings, found


def digits_lost(case: Case, reference: Any) -> float:
    """How far relevance may be apart because the two scores of the plain model agree in most of their digits."""
    with torch.no_grad():
        score, before = Plain(case).score, score_of(case, run(case.model, reference))
    lost = 1e-14 * torch.maximum(score.abs(), before.abs()) / (score - before).abs()
    return min(float(lost.max()), 1e-4)  # where nothing is left of the difference, there is no map to compare


def check_same(kind: str, one: Any, other: Any, score: Tensor | None = None, lost: float = 0.0) -> list[Finding]:
    """Twins: two relevances that must be equal, but for digits that are lost."""
    findings = []
    for a, b in zip(tensors(one), tensors(other), strict=True):
        scale = torch.maximum(a.abs().max(), b.abs().max()) if a.numel() else a.new_zeros(())
        if score is not None:  # relevance that is nothing but the rounding of a score
            scale = torch.maximum(scale, 1e-6 * score.abs().max())
        difference = (a - b).abs().max() if a.numel() else a.new_zeros(())
        if not bool(difference <= max(SAME, lost) * scale):
            findings.append(Finding(kind, f"differ by {float(difference / scale):.2g} of the largest relevance"))
    return findings


def check_shared(case: Case, name: str, kind: str, reference: Any, twin: Case | None = None) -> list[Finding]:
    """One reference for all samples (the last one's), which runs as one of them, and the same one for each."""
    one = map_tensors(lambda t: t[-1:].expand(len(t), *t.shape[1:]), reference)
    each = map_tensors(lambda t: torch.empty_like(t).copy_(t[-1:]), reference)
    try:
        with torch.no_grad():
            if not bool(run(case.model, each).isfinite().all()) or ill_conditioned(case, twin, each):
                return []
    except (RuntimeError, ValueError):  # a domain that torch checks
        return []
    findings, expected = check_reference(case, name, each)
    if expected is None:
        return findings
    found = explain(case, RELATIVE[name], one)
    if isinstance(found, Finding):
        return [*findings, Finding(f"{found.kind}, shared reference", f"[{kind}] {found.detail}")]
    if found is None:
        return [*findings, Finding("refusal, shared reference", f"[{kind}] one for each is explained")]
    kind = f"a shared reference and one each ({name}, {kind})"
    return findings + check_same(kind, found.relevance, expected.relevance, found.score, digits_lost(case, each))


def references(x: Any, generator: torch.Generator) -> dict[str, Any]:
    """Zeros, another input, the input darkened, and the input but for a few elements (none in its first sample)."""

    def noise(t: Tensor) -> Tensor:
        return torch.randn(t.shape, dtype=t.dtype, generator=generator)

    def nearly(t: Tensor) -> Tensor:
        few = torch.rand(t.shape, generator=generator) < 0.2
        few[0] = False
        return torch.where(few, noise(t), t)

    ways: dict[str, Callable[[Tensor], Tensor]] = {
        "zeros": torch.zeros_like,
        "another": noise,
        "half": lambda t: 0.5 * t,
        "nearly the input": nearly,
    }

    def laid_out(way: Callable[[Tensor], Tensor]) -> Any:
        return map_tensors(lambda t: torch.empty_like(t).copy_(way(t)), x)  # as the input is

    return {name: laid_out(way) for name, way in ways.items()}
