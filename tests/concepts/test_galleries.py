"""Examples of concepts over a data set: those that are strongest, found again by a scan that was stopped."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from hilrp.concepts import Concepts, Directions
from hilrp.concepts.galleries import Gallery, box_of
from hilrp.jobs.run.items import find
from hilrp.jobs.run.preparing import Preparer


@pytest.fixture(scope="module")
def loaded():
    return hilrp.load("zoo/resnet")


def gallery(loaded, folder, at="layer4", **options) -> Gallery:
    return Gallery(loaded, Concepts(loaded.model, at), folder, batch=4, piece=4, **options)


def test_the_strongest_are_those_of_every_picture(loaded, tmp_path):
    made = gallery(loaded, tmp_path)
    assert [*made.scan("scenes:0:10")] == [4, 4, 2]
    x = torch.stack([Preparer([loaded])(item).inputs[0] for item in find("scenes:0:10")])
    own = Concepts(loaded.model, "layer4").relevance(x)
    with torch.no_grad():
        features = loaded.model.forward_features(x)
    assert torch.allclose(own.activations, features.amax((2, 3)), atol=1e-5)
    for by, values in (("relevance", own.relevance), ("activation", own.activations)):
        order = values[:, 3].argsort(descending=True)[:3].tolist()
        found = made.strongest(3, 3, by)
        assert [each.item["id"] for each in found] == [[*find("scenes:0:10")][i]["id"] for i in order]
        assert np.allclose([each.value for each in found], values[order, 3], rtol=1e-4, atol=1e-6)
    top = own.relevance.argsort(1, descending=True)[:, :5]
    assert made.counts(5).tolist() == [int((top == k).sum()) for k in range(own.relevance.shape[1])]
    own_classes = made.classes(int(top[0, 0]))
    assert sum(count for count, _ in own_classes.values()) == made.counts(5)[int(top[0, 0])]


def test_a_scan_that_was_stopped_goes_on(loaded, tmp_path, monkeypatch):
    whole = gallery(loaded, tmp_path / "whole")
    [*whole.scan("scenes:0:10")]
    made = gallery(loaded, tmp_path / "cut")
    next(scan := made.scan("scenes:0:10"))
    scan.close()
    with pytest.raises(hilrp.InputError, match="2 of 3 pieces are not done"):
        made.strongest(0)
    damaged = tmp_path / "cut" / "concepts" / "part-000000.npz"
    damaged.write_bytes(damaged.read_bytes()[:100])
    asked = []
    own = made.concepts.relevance
    monkeypatch.setattr(made.concepts, "relevance", lambda x, target: asked.append(len(x)) or own(x, target))
    # Two scans beside each other, as Ray or a cluster would run them.
    assert [*made.scan("scenes:0:10", shard=(1, 2))] == [4, 2]
    assert [*made.scan("scenes:0:10", shard=(2, 2))] == [4]
    assert asked == [4, 2, 4]
    assert "part-000000" in made.damaged[0]
    assert [*made.scan("scenes:0:10")] == [4, 4, 2]
    assert asked == [4, 2, 4]
    for k in (0, 5):
        assert [e.item["id"] for e in made.strongest(k)] == [e.item["id"] for e in whole.strongest(k)]


def test_other_settings_are_another_scan(loaded, tmp_path):
    [*gallery(loaded, tmp_path).scan("scenes:0:4")]
    with pytest.raises(hilrp.InputError, match=r"at: \"layer4\" there, \"layer3\" now"):
        [*gallery(loaded, tmp_path, "layer3").scan("scenes:0:4")]
    with pytest.raises(hilrp.InputError, match="target"):
        [*gallery(loaded, tmp_path, target=2).scan("scenes:0:4")]
    other = Gallery(loaded, Concepts(loaded.model, "layer4", reference=0.5), tmp_path, piece=4)
    with pytest.raises(hilrp.InputError, match="reference"):
        [*other.scan("scenes:0:4")]


def test_pictures_that_can_not_be_read_are_left_out(loaded, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(rng.integers(0, 255, (128, 128, 3), np.uint8)).save(folder / f"{i}.png")
    (folder / "0broken.png").write_bytes(b"no picture")
    made = gallery(loaded, tmp_path / "out")
    made = Gallery(loaded, made.concepts, tmp_path / "out", piece=1)  # one of its pieces has no picture at all
    assert [*made.scan(str(folder))] == [1, 1, 1, 1]
    assert sorted(each.item["id"] for each in made.strongest(0)) == ["0.png", "1.png", "2.png"]
    assert made.counts(1).sum() <= 3


def test_a_layer_that_is_not_there_is_told_at_once(loaded, tmp_path):
    made = Gallery(loaded, Concepts(loaded.model, "layer4", axis=9), tmp_path, piece=4)
    with pytest.raises(hilrp.InputError, match="axis=9"):
        next(made.scan("scenes:0:4"))
    assert not [*(tmp_path / "concepts").iterdir()]


def test_crops_lie_where_the_map_does(loaded, tmp_path):
    made = gallery(loaded, tmp_path, "layer2")
    [*made.scan("scenes:3:4")]
    concept = int(made.counts(1).argmax())
    (example,) = made.strongest(concept, 1)
    (crop,) = made.crops(concept, [example])
    left, top, right, bottom = crop.box
    assert crop.picture.size == (right - left, bottom - top)
    positive = crop.map.clamp(min=0)
    assert float(positive[top:bottom, left:right].sum() / positive.sum()) > 0.75
    assert float(crop.map.sum()) == pytest.approx(example.value, rel=1e-3, abs=1e-5)
    sheet = made.sheet([concept, 0], count=2, side=32)
    assert sheet.size == (120 + 2 * 36, 72)
    assert len({*sheet.getdata()}) > 20


@pytest.mark.parametrize(("place", "sign"), [((4, 9, 10, 15), 1), ((0, 5, 15, 20), -1), ((7, 8, 3, 4), 1)])
def test_boxes_hold_what_prevails(place, sign):
    top, bottom, left, right = place
    m = torch.zeros(20, 20)
    m[top:bottom, left:right] = sign
    m[12, 2] = -0.01 * sign
    box = box_of(m)
    assert box[0] <= left
    assert box[1] <= top
    assert box[2] >= right
    assert box[3] >= bottom
    assert box[2] - box[0] <= 5
    assert box[3] - box[1] <= 5
    assert box_of(m * 0) == (0, 0, 20, 20)


def test_bad_input_is_told(loaded, tmp_path):
    other = hilrp.load("zoo/resnet")
    with pytest.raises(hilrp.InputError, match="another model"):
        Gallery(other, Concepts(loaded.model, "layer4"), tmp_path)
    with pytest.raises(hilrp.InputError, match="batch=0"):
        Gallery(loaded, Concepts(loaded.model, "layer4"), tmp_path, batch=0)
    made = gallery(loaded, tmp_path)
    with pytest.raises(hilrp.InputError, match="shard="):
        [*made.scan("scenes:0:4", shard=(3, 2))]
    [*made.scan("scenes:0:4")]
    with pytest.raises(hilrp.InputError, match="concept=9999"):
        made.strongest(9999)
    with pytest.raises(hilrp.InputError, match="by='size'"):
        made.strongest(0, by="size")
    with pytest.raises(hilrp.InputError, match="top=0"):
        made.counts(0)
    for wrong in (-1, 9999):
        with pytest.raises(hilrp.InputError, match=f"concept={wrong}"):
            made.classes(wrong)


class TopK(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        found = h.topk(self.count, -1)
        return torch.zeros_like(h).scatter(-1, found.indices, found.values)


def test_an_encoder_is_known_by_all_that_it_was_set_to(loaded, tmp_path):
    """Encoders without weights of their own: how many codes are kept is in none of them."""
    channels = gallery(loaded, tmp_path).concepts.relevance(torch.randn(1, 3, 128, 128), 0).relevance.shape[1]

    def of(encoder) -> Gallery:
        concepts = Concepts(loaded.model, "layer4", Directions(torch.eye(channels), encoder))
        return Gallery(loaded, concepts, tmp_path, piece=4)

    [*of(TopK(3).eval()).scan("scenes:0:2")]
    assert [*of(TopK(3).eval()).scan("scenes:0:2")] == [2]
    for other in (TopK(4), torch.nn.ReLU(), torch.nn.Sequential(TopK(3))):
        with pytest.raises(hilrp.InputError, match="basis"):
            [*of(other.eval()).scan("scenes:0:2")]
    with pytest.raises(hilrp.InputError, match="is a function"):
        [*of(lambda h: h.relu()).scan("scenes:0:2")]
