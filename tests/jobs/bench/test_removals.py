"""Shapley agreement over four removals, calibration, and seams: against captum, enumeration and maps that are known."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from captum.attr import ShapleyValues
from scipy import ndimage, stats
from torch import nn

import hilrp
from hilrp.jobs.bench import methods
from hilrp.jobs.bench.context import CELLS, Context, Effort
from hilrp.jobs.bench.data import find, inputs_for
from hilrp.jobs.bench.grid import Cell
from hilrp.jobs.bench.measures import MEASURES
from hilrp.jobs.bench.metrics import shapley
from hilrp.jobs.bench.metrics.cells import numbered, superpixels, voronoi
from hilrp.jobs.bench.metrics.removals import REMOVALS, agreement, ceiling, energy_on, removed, values_over_removals
from hilrp.jobs.bench.metrics.seams import borders, seam_ratio
from hilrp.jobs.bench.over_removals import AGREEMENT, CEILING, over_removals
from hilrp.jobs.bench.report import markdown

EFFORT = Effort(
    images=3, few=1, changed=1, runs=1, steps=1, shapley_images=2, permutations=2, cells=4, removal_permutations=2
)
BLACK = torch.tensor([-2.0, -1.5, -1.0])


@pytest.fixture
def net():
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 6, 3, stride=2), nn.Tanh(), nn.Conv2d(6, 8, 3, stride=2), nn.SiLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(32, 4)).eval().double()


@pytest.fixture
def pictures():
    torch.manual_seed(4)
    return torch.randn(2, 3, 12, 12, dtype=torch.float64), torch.tensor([1, 3])


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    loaded = hilrp.load("zoo/resnet")
    return Context(loaded, inputs_for(loaded, find("scenes", 3)), EFFORT, tmp_path_factory.mktemp("shared"))


# Shapley values ---------------------------------------------------------------------------------------------------


def all_orders(count, permutations, seed=0):
    return torch.tensor(list(itertools.permutations(range(count))))


def enumerated(net, x, fill, target, cells):
    """Shapley values from the sum over all subsets (Shapley, 1953), one picture at a time."""
    count = int(cells.max()) + 1

    @functools.cache
    def score(there):
        with torch.no_grad():
            return float(
                net(torch.where(torch.isin(cells, torch.tensor(there, dtype=torch.long)), x, fill)[None])[0, target]
            )

    found = []
    for cell in range(count):
        others, total = [c for c in range(count) if c != cell], 0.0
        for size in range(count):
            for there in itertools.combinations(others, size):
                gain = score(tuple(sorted((*there, cell)))) - score(there)
                total += gain / math.comb(count - 1, size) / count
        found.append(total)
    return found


def test_with_every_order_they_are_the_exact_values(net, pictures, monkeypatch):
    """Pictures with other numbers of cells, all removals, in one call, in float64; captum adds up in float32."""
    x, target = pictures
    cells = torch.stack([voronoi(12, 12, seed=0, points=5), voronoi(12, 12, seed=1, points=4)])
    fills = removed(net, x, BLACK)
    monkeypatch.setattr(shapley, "orders", all_orders)
    found = values_over_removals(net, x, target, cells, fills, math.factorial(5))
    for i, kind in itertools.product(range(2), range(len(REMOVALS))):
        exact = enumerated(net, x[i], fills[kind, i], target[i], cells[i])
        np.testing.assert_allclose(found[i][kind], exact, rtol=0, atol=1e-12)
        theirs = ShapleyValues(net).attribute(
            x[i : i + 1], fills[kind, i : i + 1], target=target[i : i + 1], feature_mask=cells[i][None, None]
        )
        own = [float(theirs[0, 0][cells[i] == cell][0]) for cell in range(len(exact))]
        np.testing.assert_allclose(found[i][kind], own, rtol=0, atol=1e-7)


def test_sampled_they_sum_to_the_whole_and_removals_have_orders_of_their_own(net, pictures, monkeypatch):
    x, target = pictures
    cells = torch.stack([voronoi(12, 12, seed=i, points=6) for i in range(2)])
    fills = removed(net, x, BLACK)
    drawn, real = [], shapley.orders
    monkeypatch.setattr(shapley, "orders", lambda *args: drawn.append(real(*args)) or drawn[-1])
    found = values_over_removals(net, x, target, cells, fills, 4)
    with torch.no_grad():
        gain = [net(x[i : i + 1]) - net(fills[:, i]) for i in range(2)]
    for i in range(2):
        torch.testing.assert_close(found[i].sum(1), gain[i][:, target[i]])
    assert len({tuple(order.flatten().tolist()) for order in drawn}) == 2 * len(REMOVALS)
    torch.testing.assert_close(values_over_removals(net, x, target, cells, fills, 4), found)


def test_removals(net, pictures):
    x, _ = pictures
    mean, blurred, black, shuffled = removed(net, x, BLACK)
    torch.testing.assert_close(mean[1, 2], x[1, 2].mean().expand(12, 12))
    scipys = ndimage.gaussian_filter(x[0, 1].numpy(), 1.2, mode="mirror", radius=3)
    np.testing.assert_allclose(blurred[0, 1], scipys, atol=1e-9)
    assert torch.equal(black[0], BLACK.double().reshape(3, 1, 1).expand(3, 12, 12))
    # Whole pixels change their places, and no two pictures in the same way.
    for own, moved in zip(x.flatten(2).mT, shuffled.flatten(2).mT, strict=True):
        assert sorted(map(tuple, own.tolist())) == sorted(map(tuple, moved.tolist()))
        assert not torch.equal(own, moved)
    alike = removed(net, x[:1].expand(2, -1, -1, -1), BLACK)[3]
    assert not torch.equal(alike[0], alike[1])


# Figures ----------------------------------------------------------------------------------------------------------


def test_agreement_and_ceiling_are_scipys():
    torch.manual_seed(0)
    values, sums = torch.randn(4, 20, dtype=torch.float64), torch.randn(20, dtype=torch.float64)
    expected = [stats.spearmanr(sums, each).statistic for each in values]
    np.testing.assert_allclose(agreement(sums, values), expected, atol=1e-9)
    table = stats.spearmanr(values.T).statistic
    np.testing.assert_allclose(ceiling(values), (table.sum(1) - 1) / 3, atol=1e-9)
    np.testing.assert_allclose(ceiling(values).mean(), table[np.triu_indices(4, 1)].mean(), atol=1e-9)


def test_energy_on_an_object():
    inside, area = torch.tensor([1.0, 0.0, 0.25]), torch.tensor(0.4)
    assert float(energy_on(torch.tensor([2.0, 1.0, 1.0]), inside, area)) == pytest.approx((2 + 0.25) / 4)
    assert float(energy_on(torch.tensor([-2.0, -1.0, 0.0]), inside, area)) == pytest.approx(0.4)


@pytest.mark.parametrize("kind", CELLS)
def test_a_map_that_is_the_models_own_is_calibrated_and_reaches_the_ceiling(context, kind):
    cells, values = context.cells(kind), context.removal_values(kind)
    for removal in range(len(REMOVALS)):
        maps = torch.stack([(v[removal] / torch.bincount(c.flatten()))[c] for v, c in zip(values, cells, strict=True)])
        found = over_removals(context, maps, kind)
        assert found[f"Shapley agreement, {REMOVALS[removal]} ({kind})"].tolist() == pytest.approx([1, 1])
        others = (4 * found[f"{AGREEMENT} ({kind})"] - 1) / 3
        torch.testing.assert_close(others, found[f"{CEILING}Shapley agreement, {REMOVALS[removal]} ({kind})"])
    for i, own in enumerate(values):  # spread evenly over their cells, pixel by pixel
        spread = (own.clamp(min=0) / torch.bincount(cells[i].flatten()))[:, cells[i]]
        energy = (spread * context.inputs.masks[i]).sum((1, 2)) / spread.sum((1, 2))
        calibration = float(found[f"calibration ({kind})"][i])
        assert calibration == pytest.approx(float((energy[-1] - energy).abs().mean()), abs=1e-6)


def test_a_map_that_exaggerates_is_told_from_one_that_says_too_little(context):
    """All relevance on the object is more than the model's own; the same everywhere is less."""
    for maps, sign in ((context.inputs.masks.float(), 1), (torch.ones_like(context.inputs.masks).float(), -1)):
        found = over_removals(context, maps, "Voronoi")
        above = sign * found["energy above the model's (Voronoi)"]
        assert bool((above > 0).all())
        # The mean of the sizes is no smaller than the size of the mean.
        assert bool((found["calibration (Voronoi)"] >= above - 1e-9).all())


def test_values_are_computed_once(context, monkeypatch):
    first = context.removal_values("Voronoi")
    monkeypatch.setattr(shapley, "orders", lambda *args: pytest.fail("computed again"))
    again = Context(context.loaded, context.inputs, context.effort, context.folder).removal_values("Voronoi")
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[0].shape[0] == len(REMOVALS)


def test_cells():
    cells = voronoi(40, 60, seed=3)
    assert cells.unique().tolist() == list(range(45))
    assert torch.equal(cells, voronoi(40, 60, seed=3))
    assert not torch.equal(cells, voronoi(40, 60, seed=4))
    assert numbered(torch.tensor([[5, 9], [9, 7]])).tolist() == [[0, 2], [2, 1]]
    half = torch.zeros(3, 32, 32)
    half[:, :, 16:] = 1
    found = superpixels(half, 4)
    assert not set(found[:, :16].flatten().tolist()) & set(found[:, 16:].flatten().tolist())


def test_the_report_shows_the_ceiling_as_a_row(context):
    method = methods.find("secant")
    maps = method(context.loaded.model, context.inputs.x, context.inputs.labels)
    figures = MEASURES["removals"].function(context, method, maps)
    values = {name: value.tolist() for name, value in figures.items()}
    text = markdown([Cell("zoo/resnet", "secant", "removals", values)], "T", {"effort": {}})
    section = text.split("## Agreement with Shapley values over four removals")[1].split("\n## ")[0]
    assert section.count("| ceiling: the removals among themselves |") == 2 + len(REMOVALS)
    assert "ceiling" not in text.split("## Calibration")[1]
    assert "**ceiling" not in text


# Seams ------------------------------------------------------------------------------------------------------------


def test_borders_of_hard_cells_are_those_of_the_cells():
    cells = voronoi(24, 24, seed=0, points=2)
    found = borders(hilrp.Chains(steps=2, draws=2, cells=cells), torch.randn(1, 3, 24, 24))
    assert found.masks == 2
    assert torch.equal(found.down[0] > 0, cells[1:] != cells[:-1])
    assert torch.equal(found.across[0] > 0, cells[:, 1:] != cells[:, :-1])
    steps = cells.double()[None]
    assert bool(torch.isinf(seam_ratio(steps, found)).all())  # it changes nowhere else
    slope = torch.arange(24.0).expand(1, 24, 24) + torch.arange(24.0)[:, None]
    assert seam_ratio(slope, found).tolist() == pytest.approx([1.0])


@pytest.mark.parametrize("family", ["resnet", "vit"])
def test_hard_cells_show_and_the_default_does_not(family):
    loaded = hilrp.load(f"zoo/{family}")
    inputs = inputs_for(loaded, find("scenes", 4))
    explainer = hilrp.Explainer(loaded.model, "secant", audit="off", stages=None)
    soft = hilrp.Chains.of(8)
    cells = torch.stack([voronoi(128, 128, seed=100 + i, points=49) for i in range(len(inputs.x))])
    hard = replace(soft, cells=cells)
    before = explainer.explain(inputs.x, inputs.labels).map
    ratios = {}
    for name, chains in (("soft", soft), ("hard", hard)):
        found = borders(chains, inputs.x)
        maps = explainer.explain(inputs.x, inputs.labels, passes=chains).map
        ratios[name] = float((seam_ratio(maps, found) / seam_ratio(before, found)).mean())
    assert ratios["hard"] > 1.5
    assert ratios["soft"] < 1.1
