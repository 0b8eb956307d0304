"""Agreement among figures: whether two of them rank the methods alike."""

from __future__ import annotations

from itertools import combinations

import torch

from hilrp.jobs.bench import methods
from hilrp.jobs.bench.metrics.shapley import spearman
from hilrp.jobs.bench.sections import COMPARED
from hilrp.jobs.bench.summary import Estimate, Table, estimate

#: A ranking of fewer methods says nothing.
_FEWEST = 4


def rankings(found: dict[str, Table], figures: dict[str, int] | None = None) -> dict[tuple[str, str], Estimate]:
    """Pairs of figures -> the Spearman correlation of their rankings of methods, in the mean over the models.

    On each model those methods are ranked that look at it and have both figures, the best first. A pair without any
    model that has enough of them is left out.

    Args:
        found: Tables by the names of their figures.
        figures: Name of a figure -> 1 if larger is better, -1 if smaller is; by default those of the report.
    """
    compared = COMPARED.figures if figures is None else figures
    pairs = {}
    for first, second in combinations([name for name in compared if name in found], 2):
        tables = [(found[name], compared[name]) for name in (first, second)]
        each = [_of_model(tables, model) for model in found[first].models if model in found[second].models]
        value = estimate(each)
        if value is not None:
            pairs[first, second] = value
    return pairs


def _of_model(tables: list[tuple[Table, int]], model: str) -> float | None:
    """The correlation on one model; not a number where a figure is the same for all methods."""
    (first, _), (second, _) = tables
    judged = [
        name
        for name in first.methods
        if methods.find(name).kind != "control" and (model, name) in first.cells and (model, name) in second.cells
    ]
    if len(judged) < _FEWEST:
        return None
    values = [
        torch.tensor([better * table.cells[model, name].mean for name in judged], dtype=torch.float64)
        for table, better in tables
    ]
    return float(spearman(*values))


def compared_figures(pairs: dict[tuple[str, str], Estimate]) -> list[str]:
    """The figures that some pair has, in the order of the report.

    Example:
        >>> compared_figures({("flip", "ROAD"): Estimate(1.0, 1.0, 1.0, 1, 0.0)})
        ['flip', 'ROAD']
    """
    named = {name for pair in pairs for name in pair}
    return [name for name in COMPARED.figures if name in named]
