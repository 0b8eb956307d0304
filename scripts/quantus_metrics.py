"""All metrics of Quantus with hilrp's maps: which run, what they need, and which of Quantus' own faults keep others.

    python scripts/quantus_metrics.py

Writes docs/results/quantus.csv (every metric: what it needs, its verdict, the message, its mean score, how many maps it
asked for, and the seconds that it took) and docs/results/quantus.md. A metric runs if it asked hilrp for maps, and its
scores are finite and others than those of random maps. Where one doesn't, a method of Quantus' own takes hilrp's place:
if that fails alike, the fault is Quantus' own. quantus_faults.py has its faults, quantus_runs.py what metrics run on.
"""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import quantus
import torch
from quantus_faults import FAULTS
from quantus_runs import OURS, THEIRS, Case, Explained, Outcome, black, case, outcome, quadrant, shifted

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
COLUMNS = ("metric", "category", "needs", "verdict", "message", "score", "maps", "seconds")
#: Verdicts. The last one would be a fault of hilrp's.
RUNS, THEIR_FAULT, FAILS = "runs", "fails by Quantus' own fault", "fails"


@dataclass(frozen=True)
class Remedy:
    """What mends a fault of Quantus, in a line of a script, and the same for a while."""

    line: str
    applied: Callable[[Explained], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Setting:
    """How a metric is run.

    Attributes:
        options: Of its constructor; what isn't there is Quantus' default.
        needs: What it needs beside a model, pictures and classes.
        of: The case that has it.
        call: Further arguments of its call, of the case.
        explained: Arguments of ``explain_func``.
        remedy: What to do where Quantus' fault keeps it from running.
    """

    options: dict[str, Any] = field(default_factory=dict)
    needs: str = ""
    of: str = "scenes"
    call: Callable[[Case], dict[str, Any]] = lambda given: {}
    explained: dict[str, Any] = field(default_factory=dict)
    remedy: Remedy | None = None


def masked(**options: Any) -> Setting:
    """A metric that compares maps with masks."""
    return Setting(options, "masks: s_batch", call=lambda given: {"s_batch": given.masks})


def sampled(**options: Any) -> Setting:
    """A metric that explains changed inputs."""
    return Setting({"nr_samples": 5, **options})


STEPS = {"features_in_step": 1024}
STABLE = {"return_nan_when_prediction_changes": False}
TRAPZ = Remedy("np.trapz = np.trapezoid", lambda explained: mock.patch.object(np, "trapz", np.trapezoid, create=True))
EXPLAIN = Remedy("quantus.explain = explain_func", lambda explained: mock.patch.object(quantus, "explain", explained))
#: Settings are smaller than Quantus' defaults where these take long.
SETTINGS = {
    "FaithfulnessCorrelation": Setting({"nr_runs": 20}),
    "FaithfulnessEstimate": Setting(STEPS),
    "PixelFlipping": Setting(STEPS),
    "RegionPerturbation": Setting({"patch_size": 16}),
    "Monotonicity": Setting({"features_in_step": 8192}),
    "MonotonicityCorrelation": Setting({**STEPS, "nr_samples": 5}),
    "Selectivity": Setting({"patch_size": 16}),
    "SensitivityN": Setting(STEPS, "two samples or more in a batch"),
    "IROF": Setting(needs="pictures with one channel", of="grey", remedy=TRAPZ),
    "ROAD": Setting({"percentages": [10, 30, 50, 70, 90]}, "pictures with one channel", "grey"),
    "Infidelity": Setting({"perturb_patch_sizes": [16], "n_perturb_samples": 2}, "sides that the patches divide"),
    "Sufficiency": Setting({"threshold": 0.9}, "several samples"),
    "Continuity": Setting({"nr_steps": 8}),
    "LocalLipschitzEstimate": sampled(),
    "MaxSensitivity": sampled(),
    "AvgSensitivity": sampled(),
    "Consistency": Setting({"discretise_func": quadrant}, "several samples, and a discretise_func of the whole map"),
    "RelativeInputStability": sampled(**STABLE),
    "RelativeOutputStability": sampled(**STABLE),
    "RelativeRepresentationStability": sampled(**STABLE),
    "PointingGame": masked(),
    "TopKIntersection": masked(),
    "RelevanceMassAccuracy": masked(),
    "RelevanceRankAccuracy": masked(),
    "AttributionLocalisation": masked(),
    "AUC": masked(),
    "Focus": Setting({}, "mosaics, and where the class is in them: custom_batch", "mosaics",
                     lambda given: {"custom_batch": given.mosaics}),
    "Sparseness": Setting(),
    "Complexity": Setting(),
    "EffectiveComplexity": Setting(),
    "MPRT": Setting(needs="modules with reset_parameters"),
    "SmoothMPRT": Setting({"nr_samples": 2, "skip_layers": True}, "modules with reset_parameters", remedy=EXPLAIN),
    "EfficientMPRT": Setting(needs="modules with reset_parameters"),
    "RandomLogit": Setting({"num_classes": 12}, "the number of classes: num_classes"),
    "Completeness": Setting(
        {"normalise": False}, 'maps with channels (reduce_axes=()), relative to its baseline ("black")',
        explained={"reduce_axes": (), "reference": black},
    ),
    "NonSensitivity": Setting({}, "small pictures: a pass for each value", "crops"),
    "InputInvariance": Setting(
        {"perturb_func": shifted},
        "a convolution with a bias as the first module; a perturb_func that shifts every value; a_batch=None", "plain",
        lambda given: {"a_batch": None},
    ),
}  # fmt: skip


class Row(NamedTuple):
    """What is said of a metric."""

    metric: str
    category: str
    needs: str
    verdict: str
    found: Outcome
    remedy: str = ""
    mended: Outcome | None = None

    def cells(self) -> list[str]:
        """The row of the csv."""
        score = "" if self.found.score is None else f"{self.found.score:.4g}"
        said = self.found.message
        if self.mended is not None:
            said += f". It runs after {self.remedy} (score {self.mended.score:.3g}, {self.mended.maps} maps)"
        cells = self.metric, self.category, self.needs, self.verdict, said, score, str(self.found.maps)
        return [*cells, f"{self.found.seconds:.1f}"]


def metrics() -> Iterator[tuple[str, str, type]]:
    """The category, the name and the class of each metric of Quantus."""
    for category, found in quantus.AVAILABLE_METRICS.items():
        for each in found.values():
            yield category, each.__name__, each


def alike(first: str, second: str) -> bool:
    """Whether two messages are the same but for their numbers."""
    return re.sub(r"\d+", "0", first) == re.sub(r"\d+", "0", second)


def row(category: str, name: str, metric: type) -> Row:
    """Runs a metric; where it fails also with Quantus' own method, and with the fault mended."""
    setting = SETTINGS[name]
    given = case(setting.of)

    def run(by: Any, *remedied: Any) -> Outcome:
        shared = {key: value for key, value in setting.explained.items() if by is OURS or key == "reduce_axes"}
        asked = by[0], by[1] | shared
        return outcome(
            lambda: metric(disable_warnings=True, **setting.options), given, asked, setting.call(given), *remedied
        )

    found = run(OURS)
    if found.kind == "runs":
        return Row(name, category, setting.needs, RUNS, found)
    theirs = run(THEIRS)
    verdict = THEIR_FAULT if theirs.kind == found.kind and alike(theirs.message, found.message) else FAILS
    if setting.remedy is not None:
        mended = run(OURS, setting.remedy.applied)
        if mended.kind == "runs":
            return Row(name, category, setting.needs, verdict, found, setting.remedy.line, mended)
    return Row(name, category, setting.needs, verdict, found)


def beginning(message: str) -> str:
    """What a message begins with, for a cell of a table."""
    return (message if len(message) <= 160 else f"{message[:157]}...").replace("|", chr(92) + "|")


def fault_rows() -> Iterator[str]:
    """A line of the table for each fault: what was said, with hilrp's maps and with Quantus' own."""
    for each in FAULTS:
        ours, theirs = each.shown(OURS), each.shown(THEIRS)
        same = "the same" if ours == theirs else "the same, other numbers" if alike(ours, theirs) else beginning(theirs)
        cells = each.metrics, f"`{each.file}`: {each.reason}", beginning(ours), same
        yield f"| {' | '.join(cells)} |"


def page(rows: list[Row], faults: list[str]) -> str:
    """The document."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("quantus", "numpy", "torch", "captum"))
    kept = [each.metric for each in rows if each.verdict != RUNS]
    mended = [f"{each.metric} runs after `{each.remedy}`" for each in rows if each.mended]
    about = (
        f"{len(rows) - len(kept)} of Quantus' {len(rows)} metrics run with "
        f"`explain_func=hilrp.compat.quantus.explain_func`. {listed(kept)} don't, nor with Saliency: by "
        f"[faults of Quantus' own](#faults-of-quantus-own). {listed(mended)}."
    )
    how = (
        "A metric *runs* if it asked hilrp for maps, and its scores are finite and not those of random maps. Where one "
        "doesn't, `quantus.explain` with Saliency takes hilrp's place: that it fails alike shows whose fault it is. "
        "*Score* is the mean over all that the metric returns, *maps* how many it asked for. Settings are smaller than "
        "Quantus' defaults where these take long (`SETTINGS` in the script): a score says that a metric ran, and not "
        "how good a map is. Of some metrics lower is better."
    )
    on = (
        "Six scenes of one object and the zoo's ResNet; for *mosaics* two by two of these, for *pictures with one "
        "channel* the mean of their three, for NonSensitivity parts of 32 x 32 pixels, and for InputInvariance a "
        "small net with random weights."
    )
    last = (
        "Each was run with hilrp's maps and with those of Quantus' Saliency (of a linear map InputXGradient). Files "
        "are in the package `quantus`."
    )
    return "\n".join(
        [
            "# The metrics of Quantus",
            "",
            *paragraph(f"By `scripts/quantus_metrics.py`, with {versions}, torch on one thread of a processor."),
            *paragraph(about), *paragraph(how), *paragraph(on),
            "| category | metric | needs | verdict | score | maps | seconds |",
            "|---|---|---|---|---|---|---|",
            *(f"| {' | '.join(shown(each))} |" for each in rows),
            "",
            "## Faults of Quantus' own",
            "",
            *paragraph(last),
            "| of | where, and what is wrong | what happens | with Quantus' own method |",
            "|---|---|---|---|",
            *faults,
            "",
            "[quantus.csv](quantus.csv) has the rows of the first table, with whole messages.",
            "",
        ]
    )  # fmt: skip


def shown(each: Row) -> tuple[str, ...]:
    """A row of the document's table."""
    _, _, _, _, _, score, maps, seconds = each.cells()
    verdict = each.verdict if each.verdict == RUNS else f"{each.verdict}: {beginning(each.found.message)}"
    return each.category, each.metric, each.needs or "–", verdict, score or "–", maps, seconds


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def paragraph(text: str) -> list[str]:
    """A paragraph in lines, and an empty one."""
    return [*textwrap.wrap(text, 120, break_on_hyphens=False), ""]


def main() -> None:
    """Runs all, and writes both files."""
    torch.set_num_threads(1)
    rows = []
    for category, name, metric in metrics():
        rows.append(row(category, name, metric))
        print(" | ".join(rows[-1].cells()), flush=True)
    with (RESULTS / "quantus.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(each.cells() for each in rows)
    (RESULTS / "quantus.md").write_text(page(rows, list(fault_rows())))


if __name__ == "__main__":
    main()
