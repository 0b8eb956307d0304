"""What `verify` found: rows of measured errors beside their bounds, by section."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hilrp.attribution.audit import SHORT_NAMES, audit
from hilrp.util.nested import jsonable

Verdict = Literal["passed", "failed", "measured", "not run"]


@dataclass(frozen=True)
class Realisation:
    """A real architecture that uses a mechanism, audited in float64 with random weights.

    Attributes:
        model: Its name, or names.
        verdict: Whether its audit passed; ``"not run"`` where it could not be built.
        residual: Largest residual of its books.
        leak: Largest leak.
        tolerance: What both may be at the precision that the model computes in.
        remark: What is to be said about it.
    """

    model: str
    verdict: Verdict
    residual: float = math.nan
    leak: float = math.nan
    tolerance: float = math.nan
    remark: str = ""


@dataclass(frozen=True)
class Row:
    """One statement that was checked.

    Attributes:
        name: What was checked.
        errors: Measured numbers by name.
        bounds: The largest that each may be; numbers without a bound are measurements.
        at_least: The smallest that some must be: controls, which show that a check can fail.
        primitives: Those that the audit found in it, in the paper's short forms.
        realised: The mechanism in a real architecture, if one was audited.
        remark: What is to be said about it.
        missing: Why the row was not run.
        error: Why the check could not be finished, which counts as a failure.
    """

    name: str
    errors: dict[str, float] = field(default_factory=dict)
    bounds: dict[str, float] = field(default_factory=dict)
    at_least: dict[str, float] = field(default_factory=dict)
    primitives: tuple[str, ...] = ()
    realised: Realisation | None = None
    remark: str = ""
    missing: str = ""
    error: str = ""

    @property
    def verdict(self) -> Verdict:
        """``"failed"`` if a number is out of bounds (or no number), or the real architecture's audit failed."""
        if self.error:
            return "failed"
        if self.missing:
            return "not run"
        # Written so that NaN fails.
        small = all(self.errors.get(name, math.nan) <= bound for name, bound in self.bounds.items())
        large = all(self.errors.get(name, math.nan) >= bound for name, bound in self.at_least.items())
        if not (small and large) or (self.realised is not None and self.realised.verdict == "failed"):
            return "failed"
        return "passed" if self.bounds or self.at_least else "measured"

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.verdict != "failed"


@dataclass(frozen=True)
class Section:
    """Rows that belong together. ``name`` is what `verify` calls it, ``title`` what it shows."""

    name: str
    title: str
    rows: list[Row]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether all rows passed."""
        return all(row.passed for row in self.rows)


@dataclass(frozen=True)
class VerifyReport:
    """All sections of a verification."""

    sections: list[Section]

    @property
    def passed(self) -> bool:
        """Whether all sections passed."""
        return all(section.passed for section in self.sections)

    @property
    def failures(self) -> list[str]:
        """The failed rows, each with what is wrong."""
        return [
            f"{section.title}, {row.name}: {reason}"
            for section in self.sections
            for row in section.rows
            if not row.passed
            for reason in _reasons(row)
        ]

    def as_dict(self) -> dict[str, Any]:
        """The report in the form of JSON; numbers that aren't finite are ``None``."""
        sections = []
        for section in self.sections:
            rows = [
                asdict(row) | {"verdict": row.verdict, "passed": row.passed, "primitives": list(row.primitives)}
                for row in section.rows
            ]
            sections.append(
                {"name": section.name, "title": section.title, "passed": section.passed, "seconds": section.seconds}
                | {"rows": rows}
            )
        found: dict[str, Any] = jsonable({"passed": self.passed, "failures": self.failures, "sections": sections})
        return found

    def __str__(self) -> str:
        lines = []
        for section in self.sections:
            lines.append(f"{section.title} ({section.seconds:.1f} s)")
            for row in section.rows:
                numbers = ", ".join(f"{name} {value:.2g}" for name, value in row.errors.items()) or row.missing
                lines.append(f"  {row.verdict:<9} {row.name}: {numbers}")
                if row.realised is not None:
                    lines.append(f"            on {row.realised.model}: {row.realised.verdict}")
        lines += self.failures
        return "\n".join([*lines, "PASS" if self.passed else "FAIL"])


def _reasons(row: Row) -> list[str]:
    found = [f"{n} is {row.errors.get(n, math.nan):.3g}, may be {b:.0e}" for n, b in row.bounds.items()
             if not row.errors.get(n, math.nan) <= b]  # fmt: skip
    found += [f"{n} is {row.errors.get(n, math.nan):.3g}, must be at least {b:.0e}" for n, b in row.at_least.items()
              if not row.errors.get(n, math.nan) >= b]  # fmt: skip
    if row.error:
        found.append(row.error)
    if row.realised is not None and row.realised.verdict == "failed":
        found.append(f"the audit of {row.realised.model} failed: {row.realised.remark}")
    return found


# What several sections measure ------------------------------------------------------------------------------------


def primitives_of(model: nn.Module, x: Any) -> set[str]:
    """The primitives that the audit finds in a model with one output, in the paper's short forms."""

    def score(out: Tensor) -> Tensor:
        return out.sum(tuple(range(1, out.ndim)))

    with torch.no_grad():
        out = model(*x) if isinstance(x, tuple) else model(x)
    # What the score alone is made of is no part of the model.
    of_score = audit(nn.Identity(), out, score, "hilrp").operations
    found = audit(model, x, score, "hilrp").operations
    return {
        SHORT_NAMES[primitive]
        for primitive, names in found.items()
        if any(count > of_score.get(primitive, {}).get(name, 0) for name, count in names.items())
    }


def in_order(primitives: set[str]) -> tuple[str, ...]:
    """In the paper's order."""
    return tuple(name for name in SHORT_NAMES.values() if name in primitives)


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest expected value. NaN where either isn't finite."""
    if not bool(found.isfinite().all() and expected.isfinite().all()):
        return math.nan
    return float((found - expected).abs().max() / expected.abs().max())


def worst(*measured: Mapping[str, float]) -> dict[str, float]:
    """The largest of each number; NaN if one is."""
    names = dict.fromkeys(name for each in measured for name in each)
    return {
        name: float(torch.tensor([each[name] for each in measured if name in each], dtype=torch.float64).max())
        for name in names
    }
