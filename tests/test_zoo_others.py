"""The zoo's models that are no classifiers: what they are made of, and how they are trained."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torchvision.ops import generalized_box_iou

import hilrp
from hilrp.errors import InputError
from hilrp.scenes import Scenes
from hilrp.targets import Detection, Region
from hilrp.texts import ImageText, similarity
from hilrp.zoo.architectures import detector, segmenter, towers
from hilrp.zoo.towers import LENGTH, WORDS, pieces, tokenise

X = torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.fixture(scope="module")
def training():
    scripts = str(Path(__file__).parent.parent / "scripts")
    sys.path.insert(0, scripts)
    try:
        return importlib.import_module("train_others")
    finally:
        sys.path.remove(scripts)


@pytest.fixture(scope="module")
def objectives(training):
    return importlib.import_module("objectives")


@pytest.fixture(scope="module")
def batch(training, tmp_path_factory):
    """Some scenes as training sees them."""
    path = str(tmp_path_factory.mktemp("scenes") / "some")
    scenes = Scenes(seed=5, count=12)
    training.arrays(path, 12, "w+")
    training.fill((0, 12), path, scenes)
    return training.load(path, 12, "cpu")


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_books_close(rules):
    torch.manual_seed(3)
    finder, painter, both = (make().double().eval() for make in (detector, segmenter, towers))
    for layer in finder.layers:
        torch.nn.init.normal_(layer.offsets.weight, std=0.1)  # where it looks depends on what it sees
    pair = ImageText(both, torch.stack([tokenise("a striped red star"), tokenise("a blue ring above a yellow cross")]))
    words = pair.words.double()
    reference = (torch.zeros_like(X), torch.zeros_like(words)) if rules == "secant" else None
    found = [
        hilrp.explain(finder, X, Detection(3), rules, stages=None),
        hilrp.explain(finder, X, Detection(3, side="top"), rules, stages=None),
        hilrp.explain(painter, X, Region(4, box=(16, 16, 64, 80)), rules, stages=None),
        hilrp.explain(pair, (X, words), similarity, rules, reference, stages=None),
    ]
    for each in found:
        assert float(each.ledger.residual.max()) < 1e-9


def test_captions_are_words():
    longest = max((scene.caption for scene in Scenes(seed=2, count=300)), key=lambda text: len(pieces(text)))
    assert len(pieces(longest)) <= LENGTH
    ids = tokenise(longest)
    assert [WORDS[i] for i in ids if i] == pieces(longest)
    with pytest.raises(InputError, match="knows no word 'dog'"):
        tokenise("a red dog")


def test_words_that_fill_up_are_not_seen():
    """The embedding of a caption is the same, however long what fills it up is."""
    model = towers().double().eval()
    ids = tokenise("a dotted blue cross")[None]
    torch.testing.assert_close(model.encode_text(ids), model.encode_text(ids[:, :4]))


def test_scenes_as_training_sees_them(batch):
    for i, scene in enumerate(Scenes(seed=5, count=12)):
        assert torch.equal(batch["textures"][i] > 0, torch.from_numpy(scene.labels > 0))
        for thing in scene.things:
            x, y, width, height = (128 * batch["boxes"][i, thing.label]).tolist()
            rows, columns = thing.mask.nonzero()
            assert (columns.min(), columns.max() + 1) == pytest.approx((x - width / 2, x + width / 2))
            assert (rows.min(), rows.max() + 1) == pytest.approx((y - height / 2, y + height / 2))
            seen = (batch["places"][i] == thing.label + 1).sum() * 16
            assert int(seen) == pytest.approx(int(thing.mask.sum()), rel=0.35)


def test_overlap_is_torchvisions(objectives):
    boxes = torch.rand(2, 6, 4, generator=torch.Generator().manual_seed(2)) * 0.5
    a, b = objectives.corners(boxes)
    expected = generalized_box_iou(a, b)
    torch.testing.assert_close(objectives.overlap(a[:, None], b[None])[1], expected)


def test_a_perfect_detector(objectives, batch):
    """One query for each class, and it is right; and one that is right in half of the pictures."""

    class Right(torch.nn.Module):
        def __init__(self, part):
            super().__init__()
            self.part = part

        def forward(self, x):
            there = (batch["textures"] > 0).float()
            there[int(self.part * len(there)) :] = 0
            return {"logits": 20 * torch.diag_embed(there) - 10, "pred_boxes": batch["boxes"]}

    assert objectives.detector_score(Right(1), [batch])["average_precision_50"] == pytest.approx(1, abs=0.08)
    assert objectives.detector_score(Right(0.5), [batch])["average_precision_50"] < 0.75


@pytest.mark.parametrize("name", ["towers", "vit-views", "vit-masked", "segmenter", "detector"])
def test_training_learns(name, training, batch):
    """A few steps on a few scenes lower the loss."""
    torch.manual_seed(0)
    task = training.TASKS[name]
    model = task.make().train()
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(6):
        torch.manual_seed(1)  # the same captions, views and covers each time
        loss = task.loss(model, batch)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    with torch.no_grad():
        (measured,) = task.score(model.eval(), [batch]).values()
    assert 0 <= measured <= 1
