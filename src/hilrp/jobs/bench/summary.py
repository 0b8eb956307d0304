"""From cells to tables: means over images with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hilrp.jobs.bench.grid import Cell

#: Resamples of a bootstrap interval.
_RESAMPLES = 1000


@dataclass(frozen=True)
class Estimate:
    """A mean over images with its 95 % bootstrap interval.

    Attributes:
        mean: The mean; of ratios to the score, the median.
        low, high: The interval; the mean itself where there is one value.
        count: How many values.
        spread: Their standard deviation.
    """

    mean: float
    low: float
    high: float
    count: int
    spread: float


#: Ratios to a score that may be near zero: their median is given instead of the mean.
_MEDIANS = ("pixels' share", "trace ")


def estimate(values: Iterable[float | None], median: bool = False, seed: int = 0) -> Estimate | None:
    """The estimate of some values; ``None`` if there are none. Those that are not numbers are left out.

    Example:
        >>> estimate([1.0, 1.0]).mean
        1.0
    """
    return _estimate(tuple(v for v in values if v is not None and np.isfinite(v)), median, seed)


@lru_cache(maxsize=100_000)
def _estimate(values: tuple[float, ...], median: bool, seed: int) -> Estimate | None:
    """The same values are asked for by the page, the text and the data of a report."""
    if not values:
        return None
    known = np.array(values)
    chance = np.random.default_rng(seed)
    middle = np.median if median else np.mean
    means = middle(known[chance.integers(len(known), size=(_RESAMPLES, len(known)))], axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Estimate(float(middle(known)), float(low), float(high), len(known), float(known.std()))


@dataclass(frozen=True)
class Table:
    """One figure of all methods on all models.

    Attributes:
        figure: Its name.
        models, methods: Columns and rows.
        cells: Model and method -> estimate; missing where there is none.
        undefined: Model and method -> why the method has no meaning there.
    """

    figure: str
    models: list[str]
    methods: list[str]
    cells: dict[tuple[str, str], Estimate]
    undefined: dict[tuple[str, str], str]

    def column(self, model: str, among: Iterable[str]) -> dict[str, Estimate]:
        """The estimates of one model, of some methods."""
        return {m: self.cells[model, m] for m in among if (model, m) in self.cells}

    def over_models(self, method: str) -> Estimate | None:
        """The mean of a method over several models, each counted once.

        ``None`` unless it has a value on all of them.
        """
        means = [self.cells[model, method].mean for model in self.models if (model, method) in self.cells]
        return estimate(means) if len(means) == len(self.models) > 1 else None


def tables(cells: Iterable[Cell]) -> dict[str, Table]:
    """All figures, by name; each with the models that have it."""
    cells = list(cells)
    values: dict[str, dict[tuple[str, str], Estimate]] = {}
    for cell in cells:
        for name, figures in cell.figures.items():
            value = estimate(figures, name.startswith(_MEDIANS))
            if value is not None:
                values.setdefault(name, {})[cell.model, cell.method] = value
    methods = list(dict.fromkeys(cell.method for cell in cells))
    undefined = {(c.model, c.method): c.undefined for c in cells if c.undefined is not None}
    found = {}
    for name, known in values.items():
        models = [model for model in dict.fromkeys(c.model for c in cells) if any(model == m for m, _ in known)]
        found[name] = Table(name, models, methods, known, undefined)
    return found


def differences(cells: Iterable[Cell], method: str, other: str) -> dict[tuple[str, str], Estimate]:
    """Figure and model -> by how much a method is above another on the same images, in the mean.

    Figures that both don't have for all of them are left out.
    """
    known = {(c.model, c.method, name): values for c in cells for name, values in c.figures.items()}
    found = {}
    for (model, by, name), values in known.items():
        others = known.get((model, other, name), [])
        if by != method or len(values) != len(others):
            continue
        pairs = zip(values, others, strict=True)
        value = estimate(a - b if a is not None and b is not None else None for a, b in pairs)
        if value is not None:
            found[name, model] = value
    return found
