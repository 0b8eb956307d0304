"""Scenes: what they promise about truth, balance and chance."""

from __future__ import annotations

import colorsys
import json
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from hilrp.jobs.bench.methods.controls import bell as centre_bell
from hilrp.scenes import CLASSES, VISIBLE, Scenes
from hilrp.scenes.folder import write
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES, radius, sprite
from hilrp.util.errors import InputError


@pytest.fixture(scope="module")
def scenes():
    return Scenes(seed=11, count=250)[:]


def grown(mask):
    """The mask and its neighbours."""
    padded = np.pad(mask, 1)
    height, width = mask.shape
    return np.any([padded[i : i + height, j : j + width] for i in range(3) for j in range(3)], axis=0)


def test_a_scene_does_not_depend_on_what_came_before():
    again, other = Scenes(seed=3), Scenes(seed=4)
    assert np.array_equal(Scenes(seed=3)[7].image, again[7].image)
    assert np.array_equal(Scenes(seed=3, count=9)[-2].image, again[7].image)
    assert not np.array_equal(other[7].image, again[7].image)
    assert [s.caption for s in again[5:8]] == [again[i].caption for i in (5, 6, 7)]


def test_objects(scenes):
    """One to four of different classes, with masks that don't overlap, of the promised size and visibility."""
    assert {len(s.things) for s in scenes} == {1, 2, 3, 4}
    for scene in scenes:
        assert scene.image.shape == (128, 128, 3)
        assert scene.image.dtype == np.uint8
        labels = [t.label for t in scene.things]
        assert len(set(labels)) == len(labels)
        assert np.flatnonzero(scene.labels).tolist() == sorted(labels)
        assert sum(t.mask.astype(int) for t in scene.things).max() == 1
        for thing in scene.things:
            assert VISIBLE <= thing.visible <= 1
            assert 0.018 < thing.mask.mean() / thing.visible < 0.13
            assert thing.name == f"{thing.colour} {thing.shape}" == CLASSES[thing.label]
            assert np.array_equal(scene.mask(thing.label), thing.mask)
    assert any(t.visible < 0.9 for s in scenes for t in s.things)


def test_neither_colour_nor_shape_tells_the_class(scenes):
    assert len(CLASSES) == 12
    pairs = [tuple(name.split()) for name in CLASSES]
    assert Counter(colour for colour, _ in pairs) == dict.fromkeys(COLOURS, len(SHAPES))
    assert Counter(shape for _, shape in pairs) == dict.fromkeys(SHAPES, len(COLOURS))
    textures = {label: {t.texture for s in scenes for t in s.things if t.label == label} for label in range(12)}
    assert all(found == set(TEXTURES) for found in textures.values())


def test_the_colour_is_what_it_is_called(scenes):
    """The hue of what is under the mask, by the standard library."""
    hues = {"red": 0.0, "yellow": 1 / 6, "blue": 2 / 3}
    right = []
    for scene in scenes:
        for thing in scene.things:
            hue = colorsys.rgb_to_hsv(*(scene.image[thing.mask].mean(0) / 255))[0]
            right.append(min(hues, key=lambda c: abs((hue - hues[c] + 0.5) % 1 - 0.5)) == thing.colour)
    assert np.mean(right) > 0.99


@pytest.mark.parametrize("shape", SHAPES)
def test_the_area_is_the_one_asked_for(shape):
    drawn = sprite(np.random.default_rng(0), shape, "red", "plain", 900.0, 40.3, 50.8)
    assert (drawn.opacity >= 0.5).sum() == pytest.approx(900, rel=0.02)
    assert drawn.opacity.sum() == pytest.approx(900, rel=0.02)
    rows, columns = np.nonzero(drawn.opacity >= 0.5)
    distance = np.hypot(rows + drawn.top - 40.3, columns + drawn.left - 50.8)
    assert distance.max() <= 1.07 * radius(shape, 900.0) + 1


def test_taking_an_object_away_changes_what_it_covered_and_nothing_else(scenes):
    for scene in scenes[:60]:
        for thing in scene.things:
            changed = (scene.without(thing.label) != scene.image).any(2)
            # Edges are smooth: the tip of a point fades out over two pixels, and what lies behind an edge shines
            # through.
            edges = [grown(t.mask) & grown(~t.mask) for t in scene.things if t is not thing]
            assert not (changed & ~np.any([grown(grown(thing.mask)), *edges], axis=0)).any()
            assert changed[thing.mask].mean() > 0.97
            for other in scene.things:
                if other is not thing:
                    inner = other.mask & ~grown(~other.mask) & ~grown(grown(thing.mask))
                    assert not changed[inner].any()


def test_taking_away_what_is_not_there():
    scene = Scenes(seed=0)[0]
    missing = int(np.flatnonzero(scene.labels == 0)[0])
    assert not scene.mask(missing).any()
    with pytest.raises(InputError, match="is not in this scene"):
        scene.without(missing)


def test_a_bell_in_the_middle_scores_as_chance_does():
    """By construction: the middle is covered no more often than the rest. 1500 scenes, about 3700 objects."""
    masks = [t.mask for s in Scenes(seed=21, count=1500) for t in s.things]
    coverage = np.mean(masks, axis=0)
    area = coverage.mean()
    for width in (0.05, 0.125, 0.25, 0.33):
        bell = centre_bell(128, 128, part=width).numpy()
        assert (coverage * bell).sum() / bell.sum() == pytest.approx(area, rel=0.12), width
    # The middle itself, where a bell points.
    assert coverage[60:68, 60:68].mean() == pytest.approx(area, rel=0.2)


def test_captions(scenes):
    for scene in scenes[:80]:
        assert all(thing.caption in scene.caption for thing in scene.things)
        two = sorted(scene.things, key=lambda t: -t.mask.sum())[:2]
        if len(two) < 2:
            continue
        (y, x), (other_y, other_x) = two[0].centre, two[1].centre
        truth = {"above": y < other_y, "below": y > other_y, "left of": x < other_x, "right of": x > other_x}
        word = scene.caption.removeprefix(two[0].caption + " ").split(" " + two[1].caption)[0]
        assert truth[word]


def test_backgrounds_are_textured(scenes):
    """Neighbours alike, distant places not: as in photographs, and unlike noise or a plain ground."""
    for scene in scenes[:40]:
        free = ~np.any([t.mask for t in scene.things], axis=0)
        grey = scene.image.mean(2)
        spread = grey[free].std()
        near = np.abs(np.diff(grey, axis=1))[free[:, 1:] & free[:, :-1]].mean()
        assert spread > 4
        assert near < 1.2 * spread


def test_files(tmp_path):
    index = write(Scenes(seed=0, count=3), tmp_path)
    assert json.loads((tmp_path / "index.json").read_text()) == index
    scene = Scenes(seed=0)[2]
    own = [item for item in index if item["file"] == "images/0002.png"]
    assert {item["label"] for item in own} == {t.label for t in scene.things}
    for item in own:
        mask = np.array(Image.open(tmp_path / item["mask"])) > 0
        assert np.array_equal(mask, scene.mask(item["label"]))
        x0, y0, x1, y1 = item["boxes"][0]
        assert mask[y0:y1, x0:x1].sum() == mask.sum()
        assert mask[y0].any() and mask[y1 - 1].any() and mask[:, x0].any() and mask[:, x1 - 1].any()  # noqa: PT018
        assert np.array_equal(np.array(Image.open(tmp_path / item["without"])), scene.without(item["label"]))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"objects": (0, 2)}, "objects="),
        ({"area": (0.1, 0.5)}, "area="),
        ({"size": 8}, "size=8"),
    ],
)
def test_what_can_not_be_drawn(options, words):
    with pytest.raises(InputError, match=words):
        Scenes(**options)
    with pytest.raises(IndexError):
        Scenes(count=3)[3]
