"""The grid pointing game, ROAD, SaCo, insertion and deletion against other libraries and loops in float64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pytorch_grad_cam.metrics import road as cam_road
from pytorch_grad_cam.utils.model_targets import ClassifierOutputSoftmaxTarget
from scipy.ndimage import gaussian_filter
from torch import nn

import hilrp
from hilrp.jobs.bench import methods
from hilrp.jobs.bench.batches import each_class, one_class
from hilrp.jobs.bench.context import Context, Effort
from hilrp.jobs.bench.data import find, inputs_for
from hilrp.jobs.bench.measures import MEASURES
from hilrp.jobs.bench.metrics.grids import candidates, cell_masks, composites
from hilrp.jobs.bench.metrics.insertion import blur, end_probabilities, insertion_deletion
from hilrp.jobs.bench.metrics.road import linear_imputation, road
from hilrp.jobs.bench.metrics.saco import coefficient, saco

quantus = pytest.importorskip("quantus")
QUIET = {"disable_warnings": True, "display_progressbar": False}
EFFORT = Effort(
    images=24, few=2, changed=3, runs=4, steps=4, shapley_images=2, permutations=2, cells=4, grids=2, road=(30, 70)
)


@pytest.fixture
def net():
    torch.manual_seed(3)
    layers = (nn.Conv2d(3, 6, 3, stride=2), nn.GELU(), nn.Conv2d(6, 8, 3, stride=2), nn.GELU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(72, 4)).double().eval()


@pytest.fixture
def batch():
    chance = torch.Generator().manual_seed(4)
    x, maps = (torch.randn(shape, generator=chance, dtype=torch.float64) for shape in ((3, 3, 16, 16), (3, 16, 16)))
    return x, torch.tensor([0, 2, 3]), maps


def probability(net, picture, target):
    with torch.no_grad():
        logits = net(picture[None])[0].numpy()
    powers = np.exp(logits - logits.max())
    return float(powers[int(target)] / powers.sum())


# ROAD -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [0.05, 0.5, 0.9])
def test_imputation_is_that_of_grad_cam_and_of_quantus(part, batch):
    x = batch[0]
    missing = torch.rand(3, 16, 16, generator=torch.Generator().manual_seed(1)) < part
    missing[:, :4, :4] = True  # a hole at the border
    found = linear_imputation(x, missing)
    for i in range(3):
        cam = cam_road.NoisyLinearImputer(noise=0)(x[i].float(), (~missing[i]).float())
        torch.testing.assert_close(found[i].float(), cam, rtol=1e-5, atol=1e-5)
        indices = missing[i].flatten().nonzero()[:, 0].numpy()
        theirs = quantus.functions.perturb_func.noisy_linear_imputation(x[i].numpy(), indices, noise=0.0)
        np.testing.assert_allclose(found[i], theirs, atol=1e-12)
    assert torch.equal(linear_imputation(x, torch.zeros_like(missing)), x)


def test_road_is_that_of_grad_cam(net, batch, monkeypatch):
    """Theirs names the percentages that stay."""
    x, target, maps = batch
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)
    metric = cam_road.ROADCombined(percentiles=[25, 50, 75])
    single = net.float()
    theirs = metric(x.float(), maps.numpy(), [ClassifierOutputSoftmaxTarget(int(t)) for t in target], single)
    found = road(single, x.float(), target, maps, (25, 50, 75), noise=0.0)["ROAD"]
    np.testing.assert_allclose(found, theirs, atol=1e-6)


def test_road_accuracy_is_that_of_quantus(batch):
    """On one channel: of several, Quantus counts single values. It says the mean over images at each percentage."""
    torch.manual_seed(5)
    grey = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(294, 4)).eval()
    x, maps = batch[0][:, :1].float().repeat(4, 1, 1, 1), batch[2].repeat(4, 1, 1)
    x = x + 0.3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        target = grey(x).argmax(1)
    percentages = [10, 30, 50, 70, 90]
    metric = quantus.ROAD(percentages=percentages, noise=0.0, abs=False, normalise=False, **QUIET)
    theirs = metric(model=grey, x_batch=x.numpy(), y_batch=target.numpy(), a_batch=maps[:, None].numpy(), device="cpu")
    assert len(set(theirs.values())) > 2
    for percentage in percentages:
        found = road(grey, x, target, maps, (percentage,), noise=0.0)["ROAD accuracy, MoRF"]
        assert float(found.mean()) == pytest.approx(theirs[percentage])
    reverse = road(grey, x, target, -maps, percentages, noise=0.0)
    same = road(grey, x, target, maps, percentages, noise=0.0)
    torch.testing.assert_close(same["ROAD accuracy, LeRF"], reverse["ROAD accuracy, MoRF"])
    torch.testing.assert_close(same["ROAD"], -reverse["ROAD"])


def test_the_noise_of_road_is_the_images_own(net, batch):
    x, target, maps = batch
    first = road(net, x, target, maps, (30, 60))
    assert all(torch.equal(value, road(net, x, target, maps, (30, 60))[name]) for name, value in first.items())
    alone = road(net, x[:1], target[:1], maps[:1], (30, 60))["ROAD"]
    torch.testing.assert_close(alone, first["ROAD"][:1])
    assert not torch.equal(first["ROAD"], road(net, x, target, maps, (30, 60), noise=0.0)["ROAD"])


# SaCo -----------------------------------------------------------------------------------------------------------


def test_saco_is_the_loop_of_its_paper(net, batch):
    """Algorithm 1, with numpy: salience in descending order, K groups, all pairs."""
    x, target, maps = batch
    grey = x.mean((2, 3), keepdim=True).expand_as(x)
    whole = torch.tensor([probability(net, x[i], target[i]) for i in range(3)], dtype=torch.float64)
    found = saco(net, x, target, maps, grey, whole, groups=8)
    for i in range(3):
        order = np.argsort(-maps[i].numpy().ravel(), kind="stable").reshape(8, 32)
        salience, drops = [], []
        for group in order:
            changed = x[i].clone().reshape(3, -1)
            changed[:, group] = grey[i].reshape(3, -1)[:, group]
            salience.append(maps[i].numpy().ravel()[group].sum())
            drops.append(float(whole[i]) - probability(net, changed.reshape(3, 16, 16), target[i]))
        coefficient_, total = 0.0, 0.0
        for a in range(7):
            for b in range(a + 1, 8):
                weight = salience[a] - salience[b]
                if drops[a] < drops[b]:
                    weight = -weight
                coefficient_, total = coefficient_ + weight, total + abs(weight)
        assert float(found[i]) == pytest.approx(coefficient_ / total, abs=1e-9)
    same = torch.full_like(maps, 0.1)
    assert bool(saco(net, x, target, same, grey, whole, groups=10).isnan().all())  # groups of 25 and of 26 pixels


def test_saco_of_a_linear_model_is_one():
    """The map that says what each pixel adds: groups lose as much as they have."""
    salience = torch.tensor([5.0, 2.0, 1.0, -3.0])
    assert coefficient(salience, 0.1 * salience).item() == 1
    assert coefficient(salience, -salience).item() == -1


# Insertion and deletion -----------------------------------------------------------------------------------------


def test_insertion_and_deletion_are_loops(net, batch):
    """One step after the other, as RISE's paper describes them; the area by the trapezoidal rule."""
    x, target, maps = batch
    steps = 8
    found = insertion_deletion(net, x, target, maps, end_probabilities(net, x, target), steps)
    coarse = blur(x)
    for i in range(3):
        order = np.argsort(-maps[i].numpy().ravel(), kind="stable")
        for name, start, end in (("insertion", coarse[i], x[i]), ("deletion", x[i], torch.zeros_like(x[i]))):
            picture, scores = start.clone().reshape(3, -1), [probability(net, start, target[i])]
            for step in range(steps):
                chosen = order[32 * step : 32 * (step + 1)]
                picture[:, chosen] = end.reshape(3, -1)[:, chosen]
                scores.append(probability(net, picture.reshape(3, 16, 16), target[i]))
            area = (sum(scores) - scores[0] / 2 - scores[-1] / 2) / steps
            assert float(found[name][i]) == pytest.approx(area, abs=1e-9)


def test_the_blur_is_rises(batch):
    """A kernel of 11 x 11 pixels, made by scipy, and zero beyond the border."""
    point = np.zeros((11, 11))
    point[5, 5] = 1
    kernel = gaussian_filter(point, 5)
    picture = np.pad(batch[0][0, 1].numpy(), 5)
    expected = [[(picture[r : r + 11, c : c + 11] * kernel).sum() for c in range(16)] for r in range(16)]
    np.testing.assert_allclose(blur(batch[0])[0, 1], expected)


def test_what_is_read_of_logits():
    logits, target = torch.tensor([[2.0, -1.0, 3.0], [0.0, 4.0, -2.0]]), torch.tensor([0, 1])
    torch.testing.assert_close(one_class(logits, target)[:, 0], logits.softmax(1)[[0, 1], target])
    assert one_class(logits, target)[:, 1].tolist() == [0, 1]
    torch.testing.assert_close(each_class(logits, target)[:, 0], torch.tensor([2.0, 4.0]).sigmoid())
    assert each_class(logits, target)[:, 1].tolist() == [1, 1]  # two classes may be there


# Grids ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "edges"), [(2, [0, 14, 29]), (3, [0, 10, 19, 29])])
def test_grids_hold_shrunken_pictures(side, edges):
    """Shrunk as pillow shrinks them, also where the cells are not of one size."""
    pictures = torch.rand(12, 3, 29, 29, generator=torch.Generator().manual_seed(0))
    numbers = torch.randperm(12, generator=torch.Generator().manual_seed(1))[None, : side * side]
    found, masks = composites(pictures, numbers, side)[0], cell_masks(29, 29, side)
    assert (masks.sum(0) == 1).all()
    for cell, number in enumerate(numbers[0]):
        row, column = divmod(cell, side)
        height, width = edges[row + 1] - edges[row], edges[column + 1] - edges[column]
        for channel in range(3):
            whole = Image.fromarray(pictures[number, channel].numpy())
            expected = np.asarray(whole.resize((width, height), Image.Resampling.BILINEAR)).ravel()
            np.testing.assert_allclose(found[channel][masks[cell]], expected, atol=1e-5)


def test_no_cell_shows_the_class_of_another():
    labels = [0, 0, 1, 2, 3, 4, 5]
    shown = [{0}, {0, 2}, {1, 3}, {2}, {3}, {4}, {5, 4}]
    found = candidates(labels, shown, 2, 40)
    assert found.shape[1] == 4
    assert 20 < len(found) <= 40  # not every picture that one begins with has three others
    assert len({tuple(sorted(grid)) for grid in found.tolist()}) > 2
    for grid in found.tolist():
        assert all(labels[a] not in shown[b] for a in grid for b in grid if a != b)
    assert candidates([0, 0, 1], [{0}, {0}, {1}], 2, 5).shape == (0, 4)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    loaded = hilrp.load("zoo/tinyvit")
    return Context(loaded, inputs_for(loaded, find("scenes", 24)), EFFORT, tmp_path_factory.mktemp("c"))


def test_grid_pointing_is_quantus(context):
    """Its mass accuracy of the positive part, on the cell of each class, in the mean over the cells of a grid."""
    method, model = methods.find("hilrp"), context.loaded.model
    found = MEASURES["grid-pointing"].function(context, method, torch.zeros(0))
    assert list(found) == ["grid pointing (2 x 2)"]  # cells of 42 pixels are too small
    pictures, classes = context.grids(2)
    assert pictures.shape == (2, 3, 128, 128)
    metric = quantus.RelevanceMassAccuracy(abs=False, normalise=False, **QUIET)
    for i in range(2):
        maps = torch.stack([method(model, pictures[i : i + 1], label[None])[0] for label in classes[i]])
        theirs = metric(
            model=model, x_batch=pictures[i : i + 1].expand(4, -1, -1, -1).numpy(), y_batch=classes[i].numpy(),
            a_batch=maps.clamp(min=0)[:, None].numpy(), s_batch=cell_masks(128, 128, 2)[:, None].numpy(), device="cpu",
        )  # fmt: skip
        assert float(found["grid pointing (2 x 2)"][i]) == pytest.approx(np.mean(theirs), abs=1e-4)
    assert float(found["grid pointing (2 x 2)"].mean()) > 0.5
    uniform = MEASURES["grid-pointing"].function(context, methods.find("uniform"), torch.zeros(0))
    torch.testing.assert_close(uniform["grid pointing (2 x 2)"], torch.full((2,), 0.25))


def test_grids_are_those_in_which_the_model_sees_all_classes(context, tmp_path):
    pictures, classes = context.grids(2)
    with torch.no_grad():
        seen = context.loaded.model(pictures).gather(1, classes)
    assert bool((seen > 0).all())
    assert all(len(set(grid.tolist())) == 4 for grid in classes)
    again = Context(context.loaded, context.inputs, context.effort, tmp_path)
    assert torch.equal(again.grids(2)[0], pictures)
    few = Context(context.loaded, inputs_for(context.loaded, find("scenes", 2)), EFFORT, tmp_path / "few")
    assert MEASURES["grid-pointing"].function(few, methods.find("uniform"), torch.zeros(0)) == {}
    assert few.grids(2)[0].shape == (0, 3, 128, 128)


def test_grids_are_skipped_where_methods_of_many_passes_are_not_run_again(context, tmp_path):
    cheap = Context(context.loaded, context.inputs, replace(EFFORT, again=False), tmp_path)
    assert MEASURES["grid-pointing"].function(cheap, methods.find("rise"), torch.zeros(0)) == {}


def test_figures_of_a_context(context):
    """On scenes the probability is that the class is there; a figure has a value for each changed image."""
    assert context.read is each_class
    method = methods.find("hilrp")
    x, labels, _ = context.changed
    maps = method(context.loaded.model, context.inputs.x, context.inputs.labels)
    found = {}
    for name in ("insertion-deletion", "road", "saco"):
        found |= MEASURES[name].function(context, method, maps)
    assert list(found) == [
        "insertion", "deletion", "ROAD", "ROAD accuracy, MoRF", "ROAD accuracy, LeRF", "SaCo",
    ]  # fmt: skip
    assert all(value.shape == (3,) and bool(value.isfinite().all()) for value in found.values())
    expected = insertion_deletion(
        context.loaded.model, x, labels, maps[:3], end_probabilities(context.loaded.model, x, labels, each_class), 16,
        each_class,
    )  # fmt: skip
    torch.testing.assert_close(found["insertion"], expected["insertion"])
    assert float(found["insertion"].mean()) > float(found["deletion"].mean())
    assert float(found["ROAD"].mean()) > 0


def test_the_background_is_the_runs_and_not_the_batchs(context):
    assert context.background.shape == (24, 3, 128, 128)
    assert sorted(context.background.sum((1, 2, 3)).tolist()) == sorted(context.inputs.x.sum((1, 2, 3)).tolist())
    assert not torch.equal(context.background, context.inputs.x)
