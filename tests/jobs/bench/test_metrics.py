"""The benchmark's metrics against Quantus, scikit-learn, scipy and captum."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from captum.attr import ShapleyValueSampling
from scipy import stats
from sklearn.metrics import average_precision_score
from torch import nn

from hilrp.jobs.bench.methods.perturbation import grid
from hilrp.jobs.bench.metrics import localisation
from hilrp.jobs.bench.metrics.faithfulness import (
    Subsets,
    faithfulness_correlation,
    flip_areas,
    flipping,
    pearson,
    subset_drops,
)
from hilrp.jobs.bench.metrics.shapley import per_segment, ranks, shapley_values, spearman

quantus = pytest.importorskip("quantus")
QUIET = {"disable_warnings": True, "display_progressbar": False}


@pytest.fixture
def net():
    torch.manual_seed(3)
    layers = (
        nn.Conv2d(3, 6, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(72, 4),
    )
    return nn.Sequential(*layers).eval()


@pytest.fixture
def batch():
    torch.manual_seed(4)
    x, maps = torch.randn(3, 3, 16, 16), torch.randn(3, 16, 16)
    masks = torch.zeros(3, 16, 16, dtype=torch.bool)
    masks[0, 2:7, 3:9] = masks[1, 10:, :4] = masks[2, ::2, ::3] = True
    return x, torch.tensor([0, 2, 3]), maps, masks


def theirs(metric, net, batch, **more):
    x, target, maps, masks = batch
    return np.asarray(
        metric(
            model=net, x_batch=x.numpy(), y_batch=target.numpy(), a_batch=maps[:, None].numpy(),
            s_batch=masks[:, None].numpy(), device="cpu", **more,
        )
    )  # fmt: skip


def test_pointing_is_quantus(net, batch):
    metric = quantus.PointingGame(abs=False, normalise=False, **QUIET)
    for shift in range(6):
        moved = (*batch[:2], batch[2].roll(shift, 1), batch[3])
        assert localisation.pointing(moved[2], moved[3]).tolist() == theirs(metric, net, moved).astype(float).tolist()


def test_energy_is_quantus_mass_accuracy_of_the_positive_part(net, batch):
    positive = (*batch[:2], batch[2].clamp(min=0), batch[3])
    metric = quantus.RelevanceMassAccuracy(abs=False, normalise=False, **QUIET)
    np.testing.assert_allclose(localisation.energy(batch[2], batch[3]), theirs(metric, net, positive), rtol=1e-5)
    area = batch[3].flatten(1).float().mean(1)
    torch.testing.assert_close(
        localisation.energy_excess(batch[2], batch[3]), localisation.energy(batch[2], batch[3]) - area
    )
    assert localisation.energy_excess(-torch.ones(3, 16, 16), batch[3]).tolist() == [0, 0, 0]
    torch.testing.assert_close(localisation.energy_excess(torch.ones(3, 16, 16), batch[3]), torch.zeros(3))


def test_iou_is_quantus_rank_accuracy(net, batch):
    """Theirs is the part of the strongest pixels that lie on the object; intersection over union follows from it."""
    metric = quantus.RelevanceRankAccuracy(abs=False, normalise=False, **QUIET)
    part = theirs(metric, net, batch)
    np.testing.assert_allclose(localisation.iou(batch[2], batch[3]), part / (2 - part), rtol=1e-5)


def test_average_precision_is_scikit_learns(batch):
    coarse = (2 * batch[2]).round()  # with ties
    for maps in (batch[2], coarse, torch.ones_like(coarse)):
        expected = [
            average_precision_score(mask.flatten().numpy(), m.flatten().numpy())
            for m, mask in zip(maps, batch[3], strict=True)
        ]
        np.testing.assert_allclose(localisation.average_precision(maps, batch[3]), expected, rtol=1e-5)


def test_ties_point_in_part():
    masks = torch.zeros(1, 4, 4, dtype=torch.bool)
    masks[0, 0] = True
    assert localisation.pointing(torch.ones(1, 4, 4), masks).tolist() == [0.25]


@pytest.fixture
def grey(batch):
    """Pictures of one channel: of several, Quantus changes single values and not whole pixels."""
    torch.manual_seed(5)
    layers = (nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(294, 4))
    return nn.Sequential(*layers).eval(), (batch[0][:, :1].contiguous(), *batch[1:])


def test_faithfulness_correlation_is_quantus(grey, monkeypatch):
    """With the same subsets: theirs are drawn by numpy, and put into ours."""
    net, (x, target, maps, masks) = grey
    drawn, real = [], np.random.choice

    def watch(*args, **options):
        drawn.append(real(*args, **options))
        return drawn[-1]

    monkeypatch.setattr(np.random, "choice", watch)
    metric = quantus.FaithfulnessCorrelation(
        nr_runs=30,
        subset_size=24,
        abs=False,
        normalise=False,
        perturb_baseline="black",
        return_aggregate=False,
        **QUIET,
    )
    expected = theirs(metric, net, (x, target, maps, masks), softmax=False)
    assert len(drawn) == 30 * 3
    chosen = torch.zeros(3, 30, 256, dtype=torch.bool)
    for number, indices in enumerate(drawn):
        run, i = divmod(number, 3)
        chosen[i, run, torch.as_tensor(indices)] = True
    chosen = chosen.reshape(3, 30, 16, 16)
    drops = []
    with torch.no_grad():
        for i in range(3):
            dark = torch.where(chosen[i][:, None], x[i].min(), x[i])  # Quantus's "black"
            drops.append(net(x[i : i + 1])[0, target[i]] - net(dark)[:, target[i]])
    squares = chosen.flatten(2).nonzero()[:, 2].reshape(3, 30, 24)
    monkeypatch.setattr(Subsets, "squares", lambda self, i, height, width: squares[i])
    ours = faithfulness_correlation(maps, Subsets(24, 1, 30), torch.stack(drops))
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_subsets(net, batch):
    x, target, *_ = batch
    subsets = Subsets(size=3, cell=4, runs=5)
    chosen = torch.stack([subsets.masks(i, 16, 16) for i in range(3)])
    assert chosen.shape == (3, 5, 16, 16)
    assert (chosen.flatten(2).sum(2) == 48).all()
    cells = chosen.unfold(2, 4, 4).unfold(3, 4, 4).flatten(4)
    assert (cells.all(-1) == cells.any(-1)).all()
    assert len({tuple(c.flatten().tolist()) for c in chosen.flatten(0, 1)}) > 10
    drops = subset_drops(net, x, target, torch.zeros_like(x), subsets)
    with torch.no_grad():
        changed = torch.where(chosen[1, 2], torch.zeros(()), x[1])
        expected = net(x[1:2])[0, 2] - net(changed[None])[0, 2]
    assert float(drops[1, 2]) == pytest.approx(float(expected), abs=1e-5)
    assert subsets.masks(0, 18, 17).shape == (5, 18, 17)
    assert torch.equal(subsets.masks(1, 16, 16), chosen[1])


def test_flipping_is_quantus(grey):
    net, (x, target, maps, masks) = grey
    metric = quantus.PixelFlipping(
        features_in_step=32, abs=False, normalise=False, perturb_baseline="black", return_auc_per_sample=False, **QUIET
    )
    expected = theirs(metric, net, (x, target, maps, masks), softmax=False)
    black = x.amin((1, 2, 3), keepdim=True).expand_as(x)
    curve = flipping(net, x, target, maps, black, 8, most_first=True)
    np.testing.assert_allclose(curve[:, 1:], expected.reshape(3, -1), atol=1e-4)


def test_flip_areas(net, batch):
    """A map that is the true contribution of each pixel of a linear model flips as well as any can."""
    x, *_ = batch
    linear = nn.Sequential(nn.Flatten(), nn.Linear(768, 2, bias=False)).eval()
    with torch.no_grad():
        target = linear(x).argmax(1)
        linear[1].weight[1 - target[2]] = -linear[1].weight[target[2]]  # so that the last picture has a class to lose
    target[2] = 1 - target[2]
    truth = (linear[1].weight[target].reshape(3, 3, 16, 16) * x).sum(1).detach()
    best = flip_areas(linear, x, target, truth, torch.zeros_like(x), 16)
    random = flip_areas(linear, x, target, torch.randn(3, 16, 16), torch.zeros_like(x), 16)
    gain = truth.flatten(1).sum(1)
    assert (gain[:2] > 0).all()
    assert (best["flip"] > random["flip"])[:2].all()
    torch.testing.assert_close(best["flip"][:2], (best["lerf"] - best["morf"])[:2])
    assert gain[2] < 0
    assert bool(best["flip"][2].isnan())


def exact_shapley(value, count):
    values = np.zeros(count)
    for order in itertools.permutations(range(count)):
        there: set[int] = set()
        for segment in order:
            before = value(there)
            there = there | {segment}
            values[segment] += value(there) - before
    return values / math.factorial(count)


def test_shapley_values_are_those_of_the_definition(net, batch):
    x, target, *_ = batch
    segments, baseline = grid(16, 16, 2), torch.zeros(3, 16, 16)

    def value(there):
        mask = torch.isin(segments, torch.tensor(sorted(there), dtype=torch.long))
        with torch.no_grad():
            return float(net(torch.where(mask, x[0], baseline)[None])[0, target[0]])

    exact = exact_shapley(value, 4)
    sampled = shapley_values(net, x[0], target[0], segments, baseline, 400)
    np.testing.assert_allclose(sampled, exact, atol=0.03 * np.abs(exact).max())
    full = value({0, 1, 2, 3}) - value(set())
    assert float(sampled.sum()) == pytest.approx(full, abs=1e-4)
    theirs = ShapleyValueSampling(net).attribute(
        x[:1], baseline[None], target=target[:1], feature_mask=segments[None, None], n_samples=400
    )
    first = [theirs[0, 0][segments == s][0].item() for s in range(4)]
    np.testing.assert_allclose(sampled, first, atol=0.06 * np.abs(exact).max())


def test_few_permutations_still_sum_to_the_whole(net, batch):
    x, target, *_ = batch
    segments = grid(16, 16, 4)
    for count in (1, 2, 3):
        values = shapley_values(net, x[1], target[1], segments, torch.zeros(3, 16, 16), count)
        with torch.no_grad():
            full = net(x[1:2]) - net(torch.zeros(1, 3, 16, 16))
        assert float(values.sum()) == pytest.approx(float(full[0, target[1]]), abs=1e-4)


def test_per_segment():
    maps, segments = torch.arange(16.0).reshape(4, 4), grid(4, 4, 2)
    assert per_segment(maps, segments).tolist() == [10, 18, 42, 50]


def test_rank_correlation_is_scipys():
    chance = np.random.default_rng(0)
    for _ in range(20):
        a, b = chance.integers(0, 6, 15).astype(float), chance.normal(size=15)
        ours = spearman(torch.from_numpy(a)[None], torch.from_numpy(b)[None])[0]
        assert float(ours) == pytest.approx(stats.spearmanr(a, b).statistic)
        assert float(pearson(torch.from_numpy(a), torch.from_numpy(b))) == pytest.approx(stats.pearsonr(a, b).statistic)
        np.testing.assert_allclose(ranks(torch.from_numpy(a)), stats.rankdata(a) - 1)
    assert bool(spearman(torch.ones(1, 4), torch.randn(1, 4)).isnan())
