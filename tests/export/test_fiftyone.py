"""Heatmaps on samples of FiftyOne, in memory: no data set, and so no database."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from helpers.models import small_classifier
from hilrp.export import to_fiftyone
from hilrp.util.errors import InputError

# Read when it is imported.
os.environ.setdefault("FIFTYONE_DO_NOT_TRACK", "true")


class StandIn(dict):
    """A sample, where FiftyOne isn't installed; it counts how often it was saved."""

    def __init__(self, filepath, in_dataset=False):
        super().__init__()
        self.filepath, self.in_dataset, self.saved = filepath, in_dataset, 0

    def save(self):
        self.saved += 1


@pytest.fixture(params=["fiftyone", "a stand-in"])
def sample_of(request, monkeypatch):
    """Makes a sample of a file: FiftyOne's own, and one that has no more than is asked for."""
    if request.param == "fiftyone":
        return pytest.importorskip("fiftyone").Sample
    monkeypatch.setitem(sys.modules, "fiftyone", SimpleNamespace(Heatmap=lambda **about: SimpleNamespace(**about)))
    return StandIn


@pytest.fixture
def explanation():
    return hilrp.explain(small_classifier(), torch.randn(2, 3, 8, 8), [1, 4])


def test_the_heatmap_is_the_map(sample_of, explanation):
    samples, names = [sample_of(filepath=f"{i}.png") for i in (0, 1)], ["cat", "dog", "cow", "ant", "bee"]
    to_fiftyone(samples, explanation, "why", names)
    facts = explanation.facts()
    for i, sample in enumerate(samples):
        found, own = sample["why"], explanation.map[i].numpy()
        assert np.array_equal(found.map, own)
        assert list(found.range) == [-float(np.abs(own).max()), float(np.abs(own).max())]
        assert (found.sentence, found.verdict) == (explanation.sentence(i, names), "valid")
        assert (found.score, found.residual) == (facts["score"][i], facts["residual"][i])


def test_one_sample_is_enough(sample_of, explanation):
    sample = sample_of(filepath="a.png")
    to_fiftyone(sample, explanation[1])
    assert np.array_equal(sample["relevance"].map, explanation.map[1].numpy())


def test_a_map_of_zeros_has_a_range(sample_of, explanation):
    sample = sample_of(filepath="a.png")
    to_fiftyone(sample, replace(explanation, relevance=torch.zeros(2, 3, 8, 8))[:1])
    assert list(sample["relevance"].range) == [-1, 1]


@pytest.mark.parametrize("size", [(300, 200), (90, 120)])
def test_it_lies_where_the_model_looked(size, sample_of, tmp_path):
    """One pixel of the map has all relevance: the heatmap has it where that pixel of the model's input is from."""
    file, loaded = tmp_path / "photo.png", hilrp.load("zoo/swin")
    Image.effect_noise(size, 60).convert("RGB").save(file)
    found, sample = hilrp.explain(loaded.model, loaded.batch([file])), sample_of(filepath=str(file))
    to_fiftyone(sample, found, loaded=loaded)
    heat = sample["relevance"].map
    assert heat.shape[1] / heat.shape[0] == pytest.approx(size[0] / size[1], rel=0.02)
    assert float(heat.sum()) == pytest.approx(float(found.map.sum()), rel=1e-3)

    side, (row, column) = found.map.shape[-1], (10, 50)
    single = torch.zeros_like(found.relevance)
    single[0, 0, row, column] = 2.0
    to_fiftyone(sample, replace(found, relevance=single), loaded=loaded)
    heat = sample["relevance"].map
    window = loaded.window(file)
    across = window.left + (column + 0.5) * (window.right - window.left) / side
    down = window.top + (row + 0.5) * (window.bottom - window.top) / side
    rows, columns = np.indices(heat.shape) + 0.5
    assert float((columns * heat).sum() / heat.sum()) * size[0] / heat.shape[1] == pytest.approx(across, abs=1.5)
    assert float((rows * heat).sum() / heat.sum()) * size[1] / heat.shape[0] == pytest.approx(down, abs=1.5)
    assert float(heat.sum()) == pytest.approx(2)


def test_a_picture_that_was_seen_whole_has_the_map_itself(sample_of, tmp_path):
    file, loaded = tmp_path / "photo.png", hilrp.load("zoo/swin")
    Image.effect_noise((200, 200), 60).convert("RGB").save(file)
    found, sample = hilrp.explain(loaded.model, loaded.batch([file])), sample_of(filepath=str(file))
    to_fiftyone(sample, found, loaded=loaded)
    assert loaded.window(file).is_whole
    assert np.array_equal(sample["relevance"].map, found.map[0].numpy())


def test_samples_of_a_data_set_are_saved(explanation, monkeypatch):
    monkeypatch.setitem(sys.modules, "fiftyone", SimpleNamespace(Heatmap=dict))
    samples = [StandIn("a.png", in_dataset=True), StandIn("b.png")]
    to_fiftyone(iter(samples), explanation)
    assert [each.saved for each in samples] == [1, 0]


def test_what_does_not_fit_is_named(sample_of, explanation, tmp_path):
    one, file = sample_of(filepath="a.png"), str(tmp_path / "photo.png")
    Image.new("RGB", (300, 200)).save(file)
    loaded = hilrp.load("zoo/swin")
    strange = replace(loaded, preprocess=replace(loaded.preprocess, function=lambda _: torch.zeros(3, 8, 8)))
    cases = [
        (([one], explanation), {}, "samples has 1, the explanation 2: give as many, in the same order"),
        ((3, explanation), {}, r"samples is a int, which has no __setitem__\(\): give a fiftyone.Sample"),
        ((["a", "b"], explanation), {}, "one of samples is a str, which has no __setitem__"),
        ((one, "map"), {}, "explanation is a str"),
        ((one, explanation[:1]), {"field": "a b"}, "field='a b': give the name of a field"),
        ((sample_of(filepath=file), explanation[:1]), {"loaded": loaded}, "loaded: its preprocessing makes .* 8 x 8"),
        ((sample_of(filepath=file), explanation[:1]), {"loaded": strange}, "loaded: which part of .* can't be told"),
    ]
    for given, options, said in cases:
        with pytest.raises(InputError, match=f"^{said}"):
            to_fiftyone(*given, **options)
