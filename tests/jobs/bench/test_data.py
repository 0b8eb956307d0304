"""The benchmark's data: scenes, folders with an index, VOC, ImageNet-S, and how masks follow pictures."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import hilrp
from helpers.datasets import imagenet_s, voc
from helpers.real_data import shared
from hilrp.jobs.bench.data import contents, find, inputs_for, marked
from hilrp.jobs.bench.grid import Grid
from hilrp.jobs.bench.suites import suite
from hilrp.jobs.labels import label_index
from hilrp.scenes import Scenes
from hilrp.scenes.folder import write
from hilrp.util.errors import InputError


def test_scenes():
    samples = find("scenes", 5)
    assert len(samples) == 5
    for i, sample in enumerate(samples):
        scene = Scenes(500_000)[i]
        assert np.array_equal(np.asarray(sample.open()), scene.image)
        assert np.array_equal(sample.place(), scene.mask(sample.label))
    assert find("scenes:7", 1)[0].scene.caption == Scenes(7)[0].caption


def test_a_folder_with_an_index(tmp_path):
    write(Scenes(seed=2, count=3), tmp_path)
    samples = find(str(tmp_path))
    index = json.loads((tmp_path / "index.json").read_text())
    assert [s.label for s in samples] == [entry["label"] for entry in index]
    assert np.array_equal(samples[1].place(), np.array(Image.open(tmp_path / index[1]["mask"])) > 0)
    for entry in index:
        del entry["mask"]
    (tmp_path / "index.json").write_text(json.dumps(index))
    x0, y0, x1, y1 = index[1]["boxes"][0]
    place = find(str(tmp_path))[1].place()
    assert place[y0:y1, x0:x1].all()
    assert place.sum() == (y1 - y0) * (x1 - x0)
    assert len(find(str(tmp_path), 2)) == 2


def test_voc(tmp_path):
    root = voc(tmp_path)
    for folder in (root, root.parent, tmp_path):
        samples = find(str(folder))
        assert [s.name for s in samples] == ["000001", "000002"]
    assert samples[0].label is None
    assert samples[0].place().sum() == 11 * 21 + 11 * 9  # corners are counted from one, the last pixel included
    assert samples[1].place().sum() == 11 * 21
    assert samples[0].place().shape == (40, 50)


def test_imagenet_s(tmp_path):
    root = imagenet_s(tmp_path)
    for folder in (root, tmp_path):
        samples = find(str(folder))
        assert [s.label for s in samples] == [0, 299]
        assert [s.name for s in samples] == ["ILSVRC2012_val_00000001.JPEG", "ILSVRC2012_val_00000300.JPEG"]
        assert [int(s.place().sum()) for s in samples] == [200, 200]
    picture = root / "validation" / "n01440764" / "ILSVRC2012_val_00000001.JPEG"
    picture.rename(picture.with_name("other.JPEG"))
    with pytest.raises(InputError, match="its picture is not in"):
        find(str(root))
    (root / "validation-segmentation" / "n01443537").rmdir()
    with pytest.raises(InputError, match="918 folders"):  # the numbers of all that follow would be wrong
        find(str(root))


def test_the_border_that_annotators_were_unsure_of_is_no_part_of_the_object():
    """One definition for `hilrp bench` and `hilrp run`; masks of zeros and ones mean their ones."""
    assert marked(Image.fromarray(np.array([[0, 128, 255]], np.uint8))).tolist() == [[False, False, True]]
    assert marked(Image.fromarray(np.array([[0, 1, 1]], np.uint8))).tolist() == [[False, True, True]]
    assert not marked(Image.new("L", (2, 2))).any()


def test_unknown_data(tmp_path):
    for spec in (str(tmp_path), "scenes:x"):
        with pytest.raises(InputError, match="scenes"):
            find(spec)
    (tmp_path / "index.json").write_text('[{"file": "a.png", "label": 1}]')
    with pytest.raises(InputError, match="neither mask nor boxes"):
        find(str(tmp_path))


def test_masks_go_through_the_models_own_preprocessing():
    """Scaled to a short side of 248 or so and cropped to 224, as DeiT's pictures are."""
    loaded = hilrp.load("deit_tiny_patch16_224", shared("checkpoints", "deit_tiny_patch16_224.safetensors"))
    mask = np.zeros((256, 384), bool)
    mask[:, 192:] = True  # the right half
    seen = loaded.seen_mask(mask)
    assert seen.shape == (224, 224)
    assert not seen[:, :108].any()
    assert seen[:, 116:].all()


def test_photographs_with_boxes_and_masks():
    loaded = hilrp.load("deit_tiny_patch16_224", shared("checkpoints", "deit_tiny_patch16_224.safetensors"))
    for folder in ("imagenet_val", "pets"):
        inputs = inputs_for(loaded, find(str(shared("images", folder)), 6))
        assert inputs.x.shape[1:] == (3, 224, 224)
        assert 0.02 < float(inputs.masks.float().mean()) < 0.95
        assert float((inputs.predicted == inputs.labels).float().mean()) >= 0.3


@pytest.mark.parametrize("names", [("red_star", "blue ring"), ("0", "10")], ids=["names", "numbers"])
def test_a_folder_for_each_class(names, tmp_path):
    """As torchvision's ImageFolder has them: classes by folder, and nobody says where the objects are."""
    loaded = hilrp.load("zoo/resnet")
    classes = [loaded.index(name) for name in names]
    for name, scene in zip(names, Scenes(seed=2, count=2), strict=True):
        (tmp_path / name / "deeper").mkdir(parents=True)
        Image.fromarray(scene.image).save(tmp_path / name / "a.png")
        Image.fromarray(scene.image).save(tmp_path / name / "deeper" / "b.png")
    samples = find(str(tmp_path))
    inputs = inputs_for(loaded, samples)
    assert sorted(inputs.labels.tolist()) == sorted(2 * classes)
    assert inputs.masks is None
    assert len(find(str(tmp_path), 2)) == 2
    assert contents(samples) != contents(samples[:1])
    (tmp_path / names[1]).rename(tmp_path / "green hat")
    with pytest.raises(InputError, match="'green hat', which is the name of a folder"):
        inputs_for(loaded, find(str(tmp_path)))


def test_folders_of_imagenet_are_known_to_models_of_some_of_its_classes(tmp_path):
    loaded = hilrp.load("zoo/mobilevitv2-photo")
    for synset in ("n03000684", "n03888257"):
        (tmp_path / synset).mkdir()
        Image.new("RGB", (40, 30)).save(tmp_path / synset / "x.JPEG")
    inputs = inputs_for(loaded, find(str(tmp_path)))
    assert [loaded.named(i) for i in inputs.labels.tolist()] == ["chain saw", "parachute"]
    assert label_index(loaded, "n02084071") is None


def test_without_places_what_needs_none_is_measured(tmp_path):
    for name, scene in zip(("red star", "blue ring"), Scenes(seed=2, count=2), strict=True):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.fromarray(scene.image).save(tmp_path / "data" / name / "a.png")
    small = replace(suite("quick", str(tmp_path / "data")), models=("zoo/resnet",), methods=("hilrp",))
    measures = ("localisation", "misclassified", "conservation", "removals")
    cells = {cell.measure: cell for cell in Grid(replace(small, measures=measures), tmp_path / "out").run()}
    assert not any(cell.error for cell in cells.values())
    assert cells["localisation"].figures == cells["misclassified"].figures == {}
    assert len(cells["conservation"].figures["residual"]) == 2
    assert not [name for name in cells["removals"].figures if "calibration" in name or "energy" in name]
    assert "Shapley agreement, four removals (Voronoi)" in cells["removals"].figures


def test_models_that_do_not_know_the_classes(tmp_path):
    loaded = hilrp.load("zoo/resnet")
    with pytest.raises(InputError, match="doesn't know the classes of scenes"):
        inputs_for(replace(loaded, classes=["a"] * 12), find("scenes", 2))
    write(Scenes(seed=2, count=2), tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    index[0]["label"] = 500
    (tmp_path / "index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="has 12 classes, but the data has a class 500"):
        inputs_for(loaded, find(str(tmp_path)))
