"""Measures as other papers publish them: the grid pointing game, ROAD, SaCo, and insertion and deletion."""

from __future__ import annotations

from torch import Tensor

from hilrp.jobs.bench.context import Context
from hilrp.jobs.bench.methods import Method
from hilrp.jobs.bench.metrics import localisation
from hilrp.jobs.bench.metrics.grids import cell_masks, fits
from hilrp.jobs.bench.metrics.insertion import insertion_deletion
from hilrp.jobs.bench.metrics.road import road
from hilrp.jobs.bench.metrics.saco import saco
from hilrp.jobs.bench.over_removals import Figures

#: Cells a side of the grids, where the pictures are large enough.
SIDES = (2, 3)


def grid_pointing(context: Context, method: Method, maps: Tensor) -> Figures:
    """The part of the positive relevance in the right cell, in the mean over the classes of each grid."""
    if method.kind == "perturbation" and not context.effort.again:
        return {}
    height, width = context.inputs.x.shape[-2:]
    figures = {}
    for side in SIDES:
        if not fits(height, width, side):
            continue
        pictures, classes = context.grids(side)
        if not len(pictures):
            continue
        cells = side * side
        found = method(context.loaded.model, pictures.repeat_interleave(cells, 0), classes.flatten())
        masks = cell_masks(height, width, side).to(found.device).repeat(len(pictures), 1, 1)
        energy = localisation.energy(found, masks)
        figures[f"grid pointing ({side} x {side})"] = energy.unflatten(0, (-1, cells)).mean(1)
    return figures


def road_figures(context: Context, method: Method, maps: Tensor) -> Figures:
    """ROAD of the first images."""
    x, labels, _ = context.changed
    return road(context.loaded.model, x, labels, maps[: len(x)], context.effort.road, context.read)


def saco_figures(context: Context, method: Method, maps: Tensor) -> Figures:
    """SaCo of the first images."""
    x, labels, baseline = context.changed
    own, whole = maps[: len(x)], context.ends[:, 0]
    return {"SaCo": saco(context.loaded.model, x, labels, own, baseline, whole, context.effort.groups, context.read)}


def insertion_figures(context: Context, method: Method, maps: Tensor) -> Figures:
    """Insertion and deletion of the first images."""
    x, labels, _ = context.changed
    steps = context.effort.insertion_steps
    return insertion_deletion(context.loaded.model, x, labels, maps[: len(x)], context.ends, steps, context.read)
