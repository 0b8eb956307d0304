"""Methods and metrics of many passes against captum and loops.

The same results, from full batches without a picture too many.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from captum.attr import Occlusion, ShapleyValueSampling
from scipy import stats
from torch import nn
from torch.nn import functional as F

import hilrp
from hilrp.jobs.bench.batches import without_graph
from hilrp.jobs.bench.measures import randomised
from hilrp.jobs.bench.methods import find
from hilrp.jobs.bench.methods.perturbation import grid, rise_masks
from hilrp.jobs.bench.metrics.faithfulness import flip_areas, flipping
from hilrp.jobs.bench.metrics.shapley import orders, ranks, shapley_values


@pytest.fixture
def net():
    torch.manual_seed(2)
    layers = (nn.Conv2d(3, 6, 5, stride=3), nn.GELU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(54, 4))
    return nn.Sequential(*layers).eval()


@pytest.fixture
def seen(net):
    """The pictures that have gone through the model, a tensor for each pass."""
    passes: list[torch.Tensor] = []
    net.register_forward_pre_hook(lambda module, args: passes.append(args[0]))
    return passes


@pytest.mark.parametrize("size", [(32, 32), (30, 41), (9, 16)])
def test_occlusion_is_captums(size, net):
    """Also where the last windows reach over the edge."""
    x, target = torch.randn(3, 3, *size), torch.tensor([0, 3, 1])
    side = size[1] // 8
    theirs = Occlusion(net).attribute(
        x,
        sliding_window_shapes=(3, side, side),
        strides=(3, max(1, side // 2), max(1, side // 2)),
        baselines=x.mean((2, 3), keepdim=True).expand_as(x),
        target=target,
    )
    torch.testing.assert_close(find("occlusion")(net, x, target), theirs.sum(1), rtol=1e-4, atol=1e-6)


def test_rise_by_hand(net):
    """One mask at a time, each coarse grid enlarged and cut out at its shift."""
    x, target, count = torch.randn(2, 3, 30, 41), torch.tensor([1, 2]), 40
    chance = torch.Generator().manual_seed(0)
    coarse = (torch.rand(count, 1, 7, 7, generator=chance) < 0.5).float()
    down, right = torch.randint(5, (count,), generator=chance), torch.randint(6, (count,), generator=chance)
    found = find(f"rise:masks={count}")(net, x, target)
    for i in range(2):
        grey, masks, scores = x[i].mean((1, 2), keepdim=True), [], []
        for n in range(count):
            large = F.interpolate(coarse[n : n + 1], size=(40, 48), mode="bilinear", align_corners=False)[0, 0]
            masks.append(large[down[n] : down[n] + 30, right[n] : right[n] + 41])
            with torch.no_grad():
                scores.append(float(net((x[i] * masks[n] + grey * (1 - masks[n]))[None])[0, target[i]]))
        expected = sum((s - np.mean(scores)) * m for s, m in zip(scores, masks, strict=True)) / count / 0.5
        torch.testing.assert_close(found[i], expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(rise_masks(30, 41, count), torch.stack(masks))


def test_pictures_go_through_the_model_in_full_batches(net, seen):
    """Whatever images they are made of."""
    size = without_graph(torch.device("cpu"))
    count = size // 2 + 1
    find(f"rise:masks={count}")(net, torch.randn(4, 3, 30, 41), torch.tensor([0, 1, 2, 3]))
    assert [len(pictures) for pictures in seen] == [size, size, 4]


def test_shapley_values_are_captums_with_the_same_permutations(net):
    x, target = torch.randn(3, 3, 16, 16), torch.tensor([0, 3, 1])
    segments, baseline = grid(16, 16, 3), torch.zeros_like(x)
    theirs = ShapleyValueSampling(net)
    theirs.permutation_generator = lambda features, samples: orders(features, samples).tolist()
    expected = theirs.attribute(x, baseline, target=target, feature_mask=segments[None, None], n_samples=7)
    for i in range(3):
        ours = shapley_values(net, x[i], target[i], segments, baseline[i], 7)
        torch.testing.assert_close(ours[segments].float(), expected[i, 0], rtol=1e-4, atol=1e-6)


def test_no_picture_of_shapley_values_is_scored_twice(net, seen):
    shapley_values(net, torch.randn(3, 16, 16), torch.tensor(2), grid(16, 16, 2), torch.zeros(3, 16, 16), 60)
    pictures = torch.cat(seen).flatten(1)
    assert len(pictures) == len(torch.unique(pictures, dim=0)) == 2**4


@pytest.mark.parametrize("steps", [1, 5])
def test_areas_are_those_of_both_curves_with_shared_ends(net, seen, steps):
    x, maps = torch.randn(3, 3, 16, 16), torch.randn(3, 16, 16)
    baseline = torch.zeros_like(x)
    with torch.no_grad():
        target = (net(x) - net(baseline)).argmax(1)  # so that each picture has something to lose
    seen.clear()
    found = flip_areas(net, x, target, maps, baseline, steps)
    assert sum(len(pictures) for pictures in seen) == len(x) * 2 * steps
    for name, most_first in (("morf", True), ("lerf", False)):
        curve = flipping(net, x, target, maps, baseline, steps, most_first)
        relative = (curve - curve[:, -1:]) / (curve[:, :1] - curve[:, -1:])
        torch.testing.assert_close(found[name], torch.trapezoid(relative, dx=1 / steps, dim=1))


def test_randomised_parameters_keep_their_values_and_the_others_are_shared():
    model = hilrp.load("zoo/deit").model
    before = {name: p.clone() for name, p in model.named_parameters()}
    other, again = (dict(randomised(model, "half").named_parameters()) for _ in range(2))
    shuffled = {name for name, p in model.named_parameters() if p is not other[name]}
    assert {"head.weight", "head_dist.weight"} < shuffled < set(before)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert torch.equal(other[name], again[name])
        assert torch.equal(other[name].flatten().sort().values, p.flatten().sort().values)


def test_ranks_of_several_rows_are_scipys():
    values = np.random.default_rng(0).integers(0, 6, (2, 3, 15))
    np.testing.assert_allclose(ranks(torch.from_numpy(values)), stats.rankdata(values, axis=-1) - 1)
