"""What measures the zoo's detector: D-RISE and ODAM against their papers' equations, written out; and its figures."""

from __future__ import annotations

import math

import pytest
import torch
from PIL import Image, ImageChops
from torch import nn
from torch.nn import functional as F

from helpers.paths import script
from hilrp.jobs.bench.methods.perturbation import rise_masks
from hilrp.jobs.bench.metrics.localisation import pointing
from hilrp.scenes import Scenes


@pytest.fixture(scope="module")
def measuring():
    return script("measure_detector")


class TwoQueries(nn.Module):
    """A box on either half of a picture; how sure each is goes by how bright its half is."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Conv2d(3, 4, 3, 4, 1)

    def forward(self, x):
        halves = torch.stack([half.mean((1, 2, 3)) for half in x.chunk(2, 3)], 1)
        features = F.relu(self.maps(x)).mean((2, 3))
        width = 0.5 + 0.1 * halves.tanh()
        boxes = torch.stack([torch.tensor([0.25, 0.75]).expand_as(width), torch.full_like(width, 0.5), width, width], 2)
        logits = torch.stack([3 * halves, features[:, :2], features[:, 2:]], 2)
        return {"logits": logits, "pred_boxes": boxes}


def of_a_scene(measuring, x, query=0):
    scene = Scenes(seed=1)[1]
    return measuring.Found(measuring.SceneObject(scene, scene.things[0]), x, query)


def test_d_rise_is_its_paper(measuring):
    """In a loop: overlap times the cosine of the classes, the largest over what is found under each mask."""
    torch.manual_seed(0)
    model, x = TwoQueries().eval(), torch.randn(1, 3, 24, 32)
    found = measuring.d_rise(model, of_a_scene(measuring, x, query=1), masks=6)
    masks, grey = rise_masks(24, 32, 6, cells=16), x.mean((2, 3), keepdim=True)

    @torch.no_grad()
    def proposals(picture):
        output = model(picture)
        for (cx, cy, w, h), logits in zip(output["pred_boxes"][0].tolist(), output["logits"][0], strict=True):
            yield (cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), logits.sigmoid().tolist()

    def overlap(a, b):
        width, height = (max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1))
        areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
        return width * height / (sum(areas) - width * height)

    def cosine(p, q):
        return sum(i * j for i, j in zip(p, q, strict=True)) / (math.hypot(*p) * math.hypot(*q))

    box, likely = list(proposals(x))[1]
    total = torch.zeros(24, 32)
    for mask in masks:
        seen = proposals(grey + mask * (x - grey))
        total += mask * max(overlap(box, other) * cosine(likely, p) for other, p in seen)
    torch.testing.assert_close(found[0], total / 6, rtol=1e-4, atol=1e-6)


def test_odam_is_its_paper(measuring):
    """The gradient at each place, smoothed, times the features; what is positive of the sum. Grad-CAM: its mean."""
    torch.manual_seed(1)
    model, x = TwoQueries().eval(), torch.randn(1, 3, 32, 32)
    found = measuring.of_question(measuring.grad_cam("maps"))
    one = of_a_scene(measuring, x)
    object.__setattr__(one.one.thing, "label", 1)  # a class that the features tell
    maps = measuring.odam("maps")(model, one)
    with torch.no_grad():
        features = model.maps(x)
    # The score is the mean of channel 0, rectified: its gradient is 1 / places where that is positive.
    gradient = torch.zeros_like(features)
    gradient[:, 0] = (features[:, 0] > 0) / features[0, 0].numel()
    line = [math.exp(-0.5 * i**2) for i in range(-2, 3)]
    wide, smooth = F.pad(gradient, (2, 2, 2, 2)), torch.zeros_like(gradient)
    for i, a in enumerate(line):
        for j, b in enumerate(line):
            smooth += a * b / sum(line) ** 2 * wide[:, :, i : i + 8, j : j + 8]
    expected = F.interpolate(F.relu((smooth * features).sum(1, keepdim=True)), (32, 32), mode="bilinear")
    torch.testing.assert_close(maps, expected[:, 0], rtol=1e-4, atol=1e-7)
    cam = F.relu((gradient.mean((2, 3), keepdim=True) * features).sum(1, keepdim=True))
    expected = F.interpolate(cam, (32, 32), mode="bilinear")
    torch.testing.assert_close(found(model, one), expected[:, 0], rtol=1e-4, atol=1e-7)


def test_maps_of_the_detector_find_its_objects(measuring):
    """Ours far more often than those of coarse features; each method says something of an object."""
    model, told, there = measuring.objects(5, "cpu")
    assert there - 1 <= len(told) <= there
    rates = {}
    for name in ("secant", "hilrp", "odam:fine", "odam:coarse", "random"):
        maps = [measuring.METHODS[name](model, found).detach() for found in told]
        masks = [torch.from_numpy(found.one.thing.mask)[None] for found in told]
        assert all(each.shape == (1, 128, 128) and bool(each.isfinite().all()) for each in maps)
        rates[name] = sum(float(pointing(m, t)) for m, t in zip(maps, masks, strict=True)) / len(told)
    assert min(rates["secant"], rates["hilrp"]) > 0.9 > rates["odam:fine"] > rates["random"]


@pytest.mark.parametrize("name", ["volume", "film", "detector"])
def test_figures(name, measuring, monkeypatch, tmp_path):
    figures = script("truth_figures")
    monkeypatch.setattr(figures, "DOCS", tmp_path)
    monkeypatch.setitem(measuring.METHODS, "d-rise", measuring.METHODS["odam:fine"])  # faster
    figures.main([name])
    picture = Image.open(tmp_path / "truth" / f"{name}.webp").convert("RGB")
    assert picture.width > 900
    red, _, blue = picture.split()
    assert ImageChops.subtract(red, blue).getextrema()[1] > 80  # relevance is drawn
