"""The zoo: what its cards say is true of the weights that are shipped."""

from __future__ import annotations

import hashlib
import importlib
from importlib.resources import files

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import average_precision_score

import hilrp
from hilrp.jobs.bench.metrics.localisation import pointing
from hilrp.models.libraries import zoo
from hilrp.scenes import CLASSES, Scenes
from hilrp.util.errors import InputError
from hilrp.zoo.accuracy import average_precision, mean_average_precision

WEIGHTS = files("hilrp.zoo") / "weights"
#: The seed of the scenes that training held out; others than those the cards were measured on.
HELD_OUT = range(4000, 4150)


@pytest.fixture(scope="module")
def scenes():
    collection = Scenes(seed=1_000_002, count=HELD_OUT.stop)
    return [collection[i] for i in HELD_OUT]


@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30))
def test_average_precision_is_scikit_learns(pairs):
    scores, labels = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    labels[0] = 1
    assert average_precision(scores, labels) == pytest.approx(average_precision_score(labels, scores))


def test_every_family_of_the_paper_is_there_and_small():
    assert zoo.names() == [
        "resnet", "convnext", "vit", "deit", "beit", "swin", "pvt_v2", "mobilevitv2", "efficientvit", "maxvit",
        "crossvit", "tinyvit",
    ]  # fmt: skip
    sizes = [len((WEIGHTS / f"{name}.safetensors").read_bytes()) for name in zoo.names()]
    assert max(sizes) <= 4e6
    assert sum(sizes) <= 32e6


@pytest.mark.parametrize("name", zoo.names())
def test_a_model_is_what_its_card_says(name, scenes):
    card = zoo.card(name)
    data = (WEIGHTS / f"{name}.safetensors").read_bytes()
    assert hashlib.sha256(data).hexdigest() == card["sha256"]
    loaded = hilrp.load(f"zoo/{name}")
    module, _, kind = card["class"].rpartition(".")
    assert module.startswith("timm.models")
    assert type(loaded.model) is getattr(importlib.import_module(module), kind)
    assert sum(p.numel() for p in loaded.model.parameters()) == card["parameters"]
    with torch.no_grad():
        pictures = loaded.batch([Image.fromarray(s.image) for s in scenes])
        scores = torch.cat([loaded.model(part) for part in pictures.split(16)])
    precision = mean_average_precision(scores.numpy(), np.stack([s.labels for s in scenes]))
    assert card["mean_average_precision"] >= 0.95
    assert precision >= 0.95
    assert precision == pytest.approx(card["mean_average_precision"], abs=0.02)


@pytest.mark.parametrize("name", zoo.names())
def test_a_model_is_explained(name, scenes):
    """Books close, the model's output is its own, and the map lies on the object far more often than by chance."""
    loaded = hilrp.load(f"zoo/{name}")
    chosen = scenes[:24]
    x = loaded.batch([Image.fromarray(s.image) for s in chosen])
    labels = [s.things[0].label for s in chosen]
    hilrp.explain(loaded.model, x[:2], labels[:2])  # with all checks, which raise
    # Books and output are looked at below.
    found = hilrp.explain(loaded.model, x, labels, audit="off", stages=None)
    assert float(found.ledger.residual.max()) < 1e-5
    with torch.no_grad():
        assert torch.equal(found.output, loaded.model(x))
    masks = torch.stack([torch.from_numpy(s.mask(label)) for s, label in zip(chosen, labels, strict=True)])
    assert float(pointing(found.map, masks).mean()) >= 0.6  # by chance 0.05


def test_removing_an_object_lowers_its_score(scenes):
    """The counterfactual: the true effect of an object on the logit of its class."""
    loaded = hilrp.load("zoo/tinyvit")
    things = [(s, t.label) for s in scenes[:20] for t in s.things]
    with torch.no_grad():
        before = loaded.model(loaded.batch([Image.fromarray(s.image) for s, _ in things]))
        after = loaded.model(loaded.batch([Image.fromarray(s.without(label)) for s, label in things]))
    own = torch.tensor([label for _, label in things]).unsqueeze(1)
    drop = (before - after).gather(1, own).squeeze(1)
    others = (before - after).scatter(1, own, 0).abs().sum(1) / (len(CLASSES) - 1)
    assert float((drop > 5).float().mean()) > 0.95
    assert float(others.median()) < 0.3 * float(drop.median())


def test_audits_use_the_trained_weights():
    from hilrp.models.random_models import build

    built = build("zoo/vit", batch=1)
    assert built.pretrained
    assert torch.equal(built.model.head.weight, hilrp.load("zoo/vit").model.head.weight)
    with pytest.raises(InputError, match="128 x 128"):
        build("zoo/vit", size=64)


def test_tampered_weights_are_noticed(tmp_path, monkeypatch):
    for ending in ("json", "safetensors"):
        data = (WEIGHTS / f"resnet.{ending}").read_bytes()
        (tmp_path / f"resnet.{ending}").write_bytes(data if ending == "json" else data[:-1] + b"\1")
    monkeypatch.setattr(zoo, "_WEIGHTS", tmp_path)
    with pytest.raises(InputError, match="not those that were shipped"):
        hilrp.load("zoo/resnet")


def test_pictures_of_any_size_are_taken():
    loaded = hilrp.load("zoo/resnet")
    scene = Image.fromarray(Scenes(seed=0)[1].image)
    assert loaded.preprocess(scene.resize((300, 200))).shape == (3, 128, 128)
    back = loaded.preprocess.picture(loaded.preprocess(scene))
    assert np.abs(back.permute(1, 2, 0).numpy() * 255 - np.asarray(scene)).max() < 0.01
