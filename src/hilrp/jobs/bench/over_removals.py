"""Shapley agreement over four removals, and calibration, of the maps of a model's context."""

from __future__ import annotations

import torch
from torch import Tensor

from hilrp.jobs.bench.context import Context
from hilrp.jobs.bench.metrics.removals import REMOVALS, agreement, ceiling, energy_on
from hilrp.jobs.bench.metrics.shapley import per_segment

#: Name of a figure -> its value for each image (or pair, or shift).
Figures = dict[str, Tensor]

#: The mean over removals, and what the name of a figure's ceiling begins with.
AGREEMENT, CEILING = "Shapley agreement, four removals", "ceiling: "


def over_removals(context: Context, maps: Tensor, kind: str) -> Figures:
    """Agreement with Shapley values over four removals beside its ceiling, and calibration, on one kind of cells."""
    cells = context.cells(kind)
    figures: dict[str, list[Tensor]] = {}
    masks = context.inputs.masks
    for i, values in enumerate(context.removal_values(kind)):
        sums = per_segment(maps[i], cells[i])
        agreed, highest = agreement(sums, values), ceiling(values)
        found = {AGREEMENT: agreed.mean(), CEILING + AGREEMENT: highest.mean()}
        if masks is not None:
            mask = masks[i].double()
            inside = per_segment(mask, cells[i]) / per_segment(torch.ones_like(mask), cells[i])
            own, models_own = energy_on(sums, inside, mask.mean()), energy_on(values, inside, mask.mean())
            found |= {
                "calibration": (own - models_own).abs().mean(),
                "energy above the model's": own - models_own.mean(),
            }
        for removal, *both in zip(REMOVALS, agreed, highest, strict=True):
            name = f"Shapley agreement, {removal}"
            found |= {name: both[0], CEILING + name: both[1]}
        for name, value in found.items():
            figures.setdefault(f"{name} ({kind})", []).append(value)
    return {name: torch.stack(found) for name, found in figures.items()}
