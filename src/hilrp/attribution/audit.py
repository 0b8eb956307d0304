"""The audit of a model: what it is made of, whether its value is untouched, and whether its books close."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.checks import tolerance, zero_score
from hilrp.attribution.explainer import Explainer, unwrap
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forward_backward import Pass, as_written, call_model
from hilrp.method.ledger import REFERENCE, Ledger
from hilrp.method.rules import DEFAULT_RULES, REFERENCE_IS_DEFAULT, AnyRules
from hilrp.targets import Target
from hilrp.util.errors import HilrpError
from hilrp.util.nested import jsonable, map_tensors, tensors

#: The names of the primitives and the paper's short forms, in its order.
SHORT_NAMES = {"linear": "lin", "bilinear": "bil", "normalisation": "nrm", "reindexing": "idx", "recurrence": "rec"}

#: How many times the tolerance the pixels' share must be for the books to say something about it.
VISIBLE = 10


@dataclass(frozen=True)
class AuditReport:
    """What the audit of a model found.

    Attributes:
        operations: Primitive -> operation -> how often it ran.
        problems: Operations without a rule and hidden ones, as messages.
        notes: Even splits that relevance went through, with counts.
        gates: What products held fixed, where relevance went through them, with counts.
        forward_difference: Largest difference between the explained and the plain output; 0.0 means equal bit for bit.
        residual: Largest residual of the books over the samples.
        leak: Largest leak over the samples, measured at each operation.
        share: Pixels' share of the score, or of its difference to that on the reference, per sample.
        kept: Who kept how much: kind of constant -> share of the same, per sample, largest first.
        contrast: How large that difference is beside the larger of the two scores; without a reference, one.
        relative_to: What the reference is called, if there is one.
        tolerance: What residual and leak may be at the precision of the pass.
        error: Why the model could not be explained, if so.
    """

    operations: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    gates: dict[str, int] = field(default_factory=dict)
    forward_difference: float = float("nan")
    residual: float = float("nan")
    leak: float = float("nan")
    share: list[float] = field(default_factory=list)
    kept: dict[str, list[float]] = field(default_factory=dict)
    contrast: list[float] = field(default_factory=list)
    relative_to: str | None = None
    tolerance: float = float("nan")
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether the model's explanations can be trusted."""
        sound = self.error is None and not self.problems and self.forward_difference == 0.0
        return sound and self.residual <= self.tolerance and self.leak <= self.tolerance

    @property
    def visible(self) -> bool:
        """Whether so much arrives at the pixels that an error in it would show beside the tolerance."""
        arrived = [abs(share * contrast) for share, contrast in zip(self.share, self.contrast, strict=True)]
        return bool(arrived) and min(arrived) >= VISIBLE * self.tolerance

    @property
    def of_what(self) -> str:
        """What the shares are shares of."""
        return "the score" if self.relative_to is None else f"the score's difference to that on {self.relative_to}"

    @property
    def splits(self) -> dict[str, int]:
        """The even splits, modules of the same name in different blocks taken together.

        Example:
            >>> notes = {"even split of mul in blocks.0.mlp": 1, "even split of mul in blocks.1.mlp": 1}
            >>> AuditReport(notes=notes).splits
            {'mul in blocks.*.mlp': 2}
        """
        counts: Counter[str] = Counter()
        for note, count in self.notes.items():
            if note.startswith(_SPLIT):
                counts[re.sub(r"(?<=\.)\d+(?=\.|$)", "*", note.removeprefix(_SPLIT))] += count
        return dict(counts)

    def as_dict(self) -> dict[str, Any]:
        """The report for machines: fields and verdict, with ``None`` for figures that aren't there."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        found |= {"passed": self.passed, "visible": self.visible, "splits": self.splits}
        plain: dict[str, Any] = jsonable(found)
        return plain

    def __str__(self) -> str:
        if self.error is not None:
            return "\n".join(["FAIL", *self.problems, self.error])
        lines = ["PASS" if self.passed else "FAIL"]
        for primitive, names in self.operations.items():
            counted = ", ".join(f"{name} {count}" for name, count in sorted(names.items(), key=lambda item: -item[1]))
            lines.append(f"{primitive:<14} {counted}")
        figures = (
            f"forward difference {self.forward_difference:.2g}, residual {self.residual:.2g}, leak {self.leak:.2g}"
        )
        shares = ", ".join(f"{s:.3f}" for s in self.share)
        lines.append(f"{figures} (tolerance {self.tolerance:.0e}); pixels' share of {self.of_what} {shares}")
        lines += [f"gate: {gate} ({count} x)" for gate, count in self.gates.items()]
        lines += [f"even split: {split} ({count} x)" for split, count in self.splits.items()]
        lines += [f"note: {note} ({count} x)" for note, count in self.notes.items() if not note.startswith(_SPLIT)]
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)


_SPLIT = "even split of "


def audit(model: nn.Module, x: Any, target: Target = None, rules: AnyRules = DEFAULT_RULES) -> AuditReport:
    """Audits a model on an input: operations by primitive, unknown ones, forward difference, books.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 5)).eval()
        >>> hilrp.audit(model, torch.randn(2, 3, 2, 2)).passed
        True
    """
    explainer = _Auditor(model, rules, audit="off", stages=None, itemised=True)
    try:
        found = explainer.explain(x, target)
    except HilrpError as error:
        return AuditReport(problems=explainer.problems, error=str(error))
    operations: dict[str, dict[str, int]] = {}
    for (primitive, name), count in sorted(explainer.counts.items(), key=lambda item: item[0][0].value):
        operations.setdefault(primitive.value, {})[name] = count
    report = AuditReport(
        operations=operations,
        problems=explainer.problems,
        notes=found.notes,
        gates=dict(explainer.gates),
        forward_difference=forward_difference(model, x, found.output),
        residual=float(found.ledger.residual.max()),
        leak=float(found.ledger.leak.max()),
        share=found.ledger.share.tolist(),
        kept=_kept(found.ledger),
        contrast=found.ledger.contrast.tolist(),
        relative_to=found.relative_to,
        tolerance=tolerance(explainer.dtypes, found.score.device),
    )
    same = (found.ledger.explained == 0).nonzero()
    if found.reference is not None and len(same):
        report.problems.append(
            f"The score of sample {int(same[0])} is the same on the reference: there is no difference to decompose. "
            f"Choose another target or input. {REFERENCE_IS_DEFAULT}."
        )
    if not report.passed and not report.problems:
        report.problems.append(_reason(report, found, model, x))
    return report


def _kept(ledger: Ledger) -> dict[str, list[float]]:
    """What each kind of constant kept of what is explained."""
    totals: dict[str, Tensor] = {}
    for name, value in ledger.entries.items():
        if name == REFERENCE:
            continue
        kind = name[name.rindex("(") + 1 : -1] if name.endswith(")") else name
        totals[kind] = totals[kind] + value if kind in totals else value
    shares = {kind: total / ledger.explained for kind, total in totals.items()}
    return {kind: shares[kind].tolist() for kind in sorted(shares, key=lambda kind: -float(shares[kind].abs().max()))}


def _reason(report: AuditReport, found: Explanation, model: nn.Module, x: Any) -> str:
    """Why a model without unknown operations fails all the same."""
    zero = zero_score(found.score)
    if zero is not None:
        return zero
    if report.forward_difference != 0:
        again = forward_difference(model, x, _plain_outputs(model, x)[0])
        if again != 0:
            return (
                "The model isn't deterministic: two plain passes on the same input differ. "
                "Fix its seed or switch the chance off."
            )
        return "The explained output differs from the plain one: please report this."
    worst = max(found.ledger.leaks, key=lambda name: float(found.ledger.leaks[name].abs().max()))
    return f"The books do not close; the largest leak is at `{worst}`."


class _Auditor(Explainer):
    """An explainer that collects problems instead of raising them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.problems: list[str] = []
        self.counts: Counter[Any] = Counter()
        self.gates: Counter[str] = Counter()
        self.dtypes: set[torch.dtype] = set()

    #: An audit takes nothing for known.
    _checks, _anew = True, True

    def _unsound(self, error: HilrpError) -> None:
        if str(error) not in self.problems:
            self.problems.append(str(error))

    _problem = _unsound

    def _ran(self, run: Pass) -> None:
        self.counts, self.gates, self.dtypes = run.engine.counts, run.engine.gates, run.dtypes


def forward_difference(model: nn.Module, x: Any, output: Any) -> float:
    """Largest difference between ``output`` and the model's own.

    torch itself picks other kernels for some operations when gradients are recorded (`nn.MultiheadAttention`,
    attention with a learned mask), so that the model's own output can have two values that differ by
    rounding. The difference to the nearer of them is returned.
    """
    candidates = _plain_outputs(model, x)
    explained = tensors(output)
    return min(
        max((_difference(a, b) for a, b in zip(each, explained, strict=True)), default=0.0) for each in candidates
    )


def _plain_outputs(model: nn.Module, x: Any) -> list[list[Tensor]]:
    """What the model returns in inference and, where it can run so, under autograd."""

    def run(inputs: Any) -> list[Tensor]:
        with as_written():
            return tensors(call_model(unwrap(model), inputs))

    # In this order: leaving inference mode switches gradients on.
    with torch.inference_mode(False), torch.no_grad():
        found = [run(map_tensors(Tensor.clone, x))]
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        suppress(RuntimeError),
    ):  # out= arguments can't run under autograd
        # Multiplied by one, so that a model may write to its input.
        found.append(
            run(
                map_tensors(
                    lambda t: t.detach().clone().requires_grad_() * 1 if t.is_floating_point() else t.clone(), x
                )
            )
        )
    return found


def _difference(a: Tensor, b: Tensor) -> float:
    if torch.equal(a, b):
        return 0.0
    return float((a.detach().double() - b.detach().double()).abs().max())
