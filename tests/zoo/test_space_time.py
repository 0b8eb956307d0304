"""The zoo's models of volumes and films: what their cards say, how they are trained, and what their maps find."""

from __future__ import annotations

import json
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.paths import script
from hilrp.jobs.bench.metrics.faithfulness import flip_areas
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.models.libraries import zoo
from hilrp.models.random_models import build
from hilrp.scenes.films import CHANGES, Films
from hilrp.scenes.volumes import TISSUES, Volumes
from hilrp.targets import Region
from hilrp.util.errors import InputError
from hilrp.zoo.space_time import FilmNet, UNet3D

NAMES = ("unet3d", "film")


@pytest.fixture(scope="module")
def training():
    return script("train_space_time")


@pytest.fixture(scope="module")
def measuring():
    return script("measure_space_time")


def some(training, name, seed, count):
    """What a model sees of some scenes, and what is true of them."""
    task = training.TASKS[name]
    pairs = [task.kept(each) for each in task.scenes(seed, count)]
    return tuple(torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True))


def test_a_unet_is_what_it_is_called():
    """Against the same layers called one by one."""
    torch.manual_seed(0)
    net = UNet3D(2).double().eval()
    x = torch.randn(1, 1, 16, 8, 12, dtype=torch.float64)
    fine = net.down[0](x)
    middle = net.down[1](F.max_pool3d(fine, 2))
    coarse = net.down[2](F.max_pool3d(middle, 2))
    middle = net.join[0](torch.cat([middle, net.up[0](coarse)], 1))
    fine = net.join[1](torch.cat([fine, net.up[1](middle)], 1))
    assert torch.equal(net(x), net.head(fine))
    assert net(x).shape == (1, 2, 16, 8, 12)


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("name", NAMES)
def test_books_close(name, rules):
    torch.manual_seed(1)
    model = (UNet3D(2) if name == "unet3d" else FilmNet(4)).double().eval()
    x = torch.randn(2, 1, 8, 8, 8).double() if name == "unet3d" else torch.randn(2, 3, 4, 16, 16).double()
    target = Region(1, box=(1, 2, 2, 6, 7, 6)) if name == "unet3d" else 2
    found = hilrp.explain(model, x, target, rules, stages=None)
    assert float(found.ledger.residual.max()) < 1e-10
    assert found.kind == ("volume" if name == "unet3d" else "video")
    assert found.map.shape == (2, *x.shape[2:])


@pytest.mark.parametrize("name", NAMES)
def test_turning_keeps_what_is_true_of_each_place(name, training):
    task = training.TASKS[name]
    torch.manual_seed(0)
    chance = np.random.RandomState(0)
    shape = tuple(side + axis for axis, side in enumerate(task.shapes[0][1:])) if name != "unet3d" else (6, 6, 6)
    x = torch.randint(255, (2, task.shapes[0][0], *shape), dtype=torch.uint8)
    x = x if name == "unet3d" else x[..., : min(x.shape[-2:]), : min(x.shape[-2:])]
    for _ in range(8):
        if name == "unet3d":
            y = x.repeat(1, 2, 1, 1, 1)
            turned, truth = training.turned(x, y, task, chance)
            assert torch.equal(truth, turned.repeat(1, 2, 1, 1, 1))
        else:
            turned, truth = training.turned(x, torch.ones(2, 4), task, chance)
            assert torch.equal(truth, torch.ones(2, 4))
            # Frames stay frames: turned alike, in order or backwards.
            frames = {t: x[:, :, t].sum((1, 2, 3)).tolist() for t in range(x.shape[2])}
            order = [turned[:, :, t].sum((1, 2, 3)).tolist() for t in range(x.shape[2])]
            assert order in (list(frames.values()), list(frames.values())[::-1])
        assert sorted(turned.flatten().tolist()) == sorted(x.flatten().tolist())


@pytest.mark.parametrize("name", NAMES)
def test_training_learns(name, training):
    torch.manual_seed(0)
    task = training.TASKS[name]
    images, truth = some(training, name, 5, 3)
    model = training.OTHERS[name].make().train()
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(5):
        loss = task.loss(model(training.normalise(images)), truth.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_perfect_answer_scores_so(training):
    _, places = some(training, "unet3d", 6, 6)
    right = training.places_score(2.0 * places - 1, places)
    assert right["dice_blob"] == right["dice_lesion"] == right["lesions_seen_where_one_is"] == 1
    assert right["lesions_seen_where_none_is"] == 0
    assert float(training.places_loss(40.0 * places - 20, places.float())) < 5e-3  # one voxel's worth of smoothing
    wrong = training.places_score(1.0 - 2.0 * places, places)
    assert wrong["dice_lesion"] == 0
    # Half of the lesion's voxels: a Dice of two thirds.
    half = places.clone().float()
    flat = half[:, 1].flatten()
    there = flat.nonzero()[:, 0]
    flat[there[: len(there) // 2]] = 0
    half[:, 1] = flat.view_as(half[:, 1])
    assert training.places_score(2 * half - 1, places)["dice_lesion"] == pytest.approx(2 / 3, abs=0.01)
    labels = torch.tensor([[1.0, 0], [0, 1], [1, 1]])
    assert training.labels_score(2 * labels - 1, labels) == {"mean_average_precision": 1.0, "right_answers": 1.0}


def test_the_command_trains(training, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train", "film", "--steps", "0.001", "--scenes", "0.0016", "--held-out", "25",
                                      "--device", "cpu", "--output", str(tmp_path)])  # fmt: skip
    assert training.main() == 0
    card = json.loads((tmp_path / "film.json").read_text())
    assert card["steps"] == 3
    assert (tmp_path / "film.safetensors").stat().st_size > 1e5
    assert "film: 41 drawn" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["train", "movie"])
    with pytest.raises(SystemExit):
        training.main()
    assert "no such model: movie" in capsys.readouterr().err


# What was trained
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_model_is_what_its_card_says(name, training):
    card = zoo.card(name)
    model = zoo.model(name).eval()
    assert f"{type(model).__module__}.{type(model).__name__}" == card["class"]
    assert sum(p.numel() for p in model.parameters()) == card["parameters"]
    # Others than those that the card was measured on, which are the first 500.
    task = training.TASKS[name]
    held = task.scenes(training.HELD_OUT, 560)[500:]
    images, truth = (torch.from_numpy(np.stack(part)) for part in zip(*map(task.kept, held), strict=True))
    with torch.no_grad():
        logits = torch.cat([model(training.normalise(part)) for part in images.split(20)])
    words, value = zoo.figure(name)
    measured = task.score(logits, truth)
    assert value >= 0.85, words
    assert {key: measured[key] for key in measured} == pytest.approx({key: card[key] for key in measured}, abs=0.08)


def test_both_are_small():
    sizes = [len((files("hilrp.zoo") / "weights" / f"{name}.safetensors").read_bytes()) for name in NAMES]
    assert sum(sizes) <= 4e6


def test_loading():
    volume, film = hilrp.load("zoo/unet3d"), hilrp.load("zoo/film")
    assert tuple(volume.classes) == TISSUES
    assert tuple(film.classes) == CHANGES
    assert not film.model.training
    with pytest.raises(InputError, match=r"takes tensors of the shape \[B,1,32,32,32\]"):
        volume.batch([Image.new("RGB", (32, 32))])
    built = build("zoo/film", batch=1)
    assert built.pretrained
    assert built.inputs.shape == (1, 3, 8, 48, 48)
    with pytest.raises(InputError, match="32 x 32 x 32"):
        build("zoo/unet3d", size=64)


def test_removing_what_was_planted_lowers_the_score(measuring):
    """The counterfactual: the true effect of a lesion, and of a change, on the score that is explained."""
    volumes = [v for v in Volumes(seed=7, count=30) if len(v.lesions) == 1]
    asked = measuring.Amount(hilrp.load("zoo/unet3d").model, 1)
    films = [(f, c) for f in Films(seed=7, count=25) for c in f.labels.nonzero()[0]]
    model = hilrp.load("zoo/film").model
    with torch.no_grad():
        drops = [
            float(asked(measuring.scaled(v.image[None, None], "cpu")) - asked(measuring.scaled(w[None, None], "cpu")))
            for v, w in ((v, v.without(0)) for v in volumes)
        ]
        lost = []
        for film, change in films:
            both = np.stack([film.frames, film.without(int(change))]).transpose(0, 4, 1, 2, 3)
            before, after = model(measuring.scaled(both, "cpu"))
            lost.append(float((before - after)[change]))
    assert np.mean(np.array(drops) > 0.2) > 0.9
    assert np.mean(np.array(lost) > 1) > 0.85


def test_maps_find_what_was_planted(measuring):
    """Pointing and energy of the default rules, far above those of chance."""
    for name, chance, cases in (
        ("unet3d", 0.01, measuring.volumes(14, "cpu")),
        ("film", 0.02, measuring.films(12, "cpu")),
    ):
        found = [measuring.measured(case, measuring.METHODS["secant"]) for case in cases]
        first = next(key for key in found[0] if key.startswith("energy"))
        assert len(found) >= 8
        assert np.mean([each["pointing"] for each in found]) > 0.5, name
        assert np.mean([each[first] for each in found]) > 10 * chance, name
        assert np.mean([each["flip"] for each in found]) > 0.3, name


def test_grad_cam_by_hand(measuring):
    """Its equation on a network whose gradients are known: a weight for each channel, the same at each place."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Module()
            self.inner.maps = nn.Conv3d(1, 2, 1, bias=False)
            self.inner.maps.weight.data[:] = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1, 1)
            self.model = self.inner

        def forward(self, x):
            return (self.model.maps(x) * torch.tensor([3.0, 1.0]).view(1, 2, 1, 1, 1)).flatten(1).sum(1, keepdim=True)

    x = torch.randn(2, 1, 3, 4, 5)
    found = measuring.grad_cam("maps")(Net(), x, torch.zeros(2, dtype=torch.long))
    torch.testing.assert_close(found, F.relu(3 * x - x)[:, 0])


def test_flipping_along_three_axes():
    """Against the score of volumes changed one by one."""
    torch.manual_seed(0)
    weights = torch.randn(1, 4, 4, 4).abs()

    class Sum(nn.Module):
        def forward(self, x):
            return (x * weights).flatten(1).sum(1, keepdim=True)

    x = torch.ones(2, 1, 4, 4, 4)
    maps = (x * weights)[:, 0]
    found = flip_areas(Sum(), x, torch.zeros(2, dtype=torch.long), maps, torch.zeros_like(x), steps=8)
    order = weights.flatten().sort(descending=True).values
    kept = torch.stack([order[i:].sum() for i in range(0, 65, 8)]) / order.sum()
    assert found["morf"].tolist() == pytest.approx([float(torch.trapezoid(kept, dx=1 / 8))] * 2)
    assert float(found["flip"][0]) > 0.3


def test_figures_of_a_map_that_is_the_truth(measuring):
    """A change lasts two frames, and is seen in four; nothing of it is anywhere else."""
    case = next(measuring.films(3, "cpu"))
    first, changed, whole, frames, other = case.truth.values()
    assert float(pointing(first.float(), first)) == 1
    assert [int(mask.any((2, 3)).sum()) for mask in (first, changed, whole, frames)] == [4, 2, 8, 4]
    assert not (changed & ~first).any()
    assert not (first & ~(whole & frames)).any()
    found = {name: float(energy(first.float(), mask)) for name, mask in case.truth.items()}
    assert found["object"] == found["frames around the change"] == found["object around its change"] == 1
    assert found["object while it is changed"] == float(changed.sum() / first.sum())
    assert found["other object that changes"] == float((first & other).sum() / first.sum())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_measuring_and_training_on_a_gpu(measuring, training, tmp_path, monkeypatch):
    """The figures are those of the CPU; the command trains there."""
    for cases in (measuring.volumes, measuring.films):
        here, there = next(cases(4, "cpu")), next(cases(4, "cuda"))
        for name in ("secant", "hilrp", "saliency"):
            expected = measuring.measured(here, measuring.METHODS[name])
            assert measuring.measured(there, measuring.METHODS[name]) == pytest.approx(expected, abs=0.02)
    options = ["unet3d", "--steps", "0.002", "--scenes", "0.004", "--held-out", "25", "--device", "cuda"]
    monkeypatch.setattr(sys, "argv", ["train", *options, "--output", str(tmp_path)])
    assert training.main() == 0
    assert (tmp_path / "unet3d.safetensors").is_file()
