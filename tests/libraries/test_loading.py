"""Published and saved models of libraries that few have, and a YOLO's own objects beside ultralytics'."""

from __future__ import annotations

import importlib

import pytest
import torch
from PIL import Image

import hilrp
from hilrp import InputError
from hilrp.models.resolve import library
from hilrp.targets import Detection, Mask, Region
from hilrp.util.errors import ModelError, TargetError


@pytest.mark.parametrize(
    ("place", "name", "found"),
    [
        ("monai", "spleen_ct_segmentation", "spleen_ct_segmentation"),
        ("monai", "vit_tiny_patch16_224", None),
        ("segmentation_models_pytorch", "unet-resnet34", "unet-resnet34"),
        ("segmentation_models_pytorch", "smp-hub/segformer-b0", "smp-hub/segformer-b0"),
        ("ultralytics", "YOLO11n-seg.pt", "yolo11n-seg"),
        ("ultralytics", "yolov8x", "yolov8x"),
        ("torchxrayvision", "densenet121-res224-nih", "densenet121-res224-nih"),
    ],
)
def test_names_of_published_weights_are_found(place, name, found):
    pytest.importorskip(place)
    assert library(place).find(name) == found


@pytest.mark.parametrize(
    ("place", "name", "said"),
    [
        ("monai", "UNet", "is a small model for audits"),
        ("segmentation_models_pytorch", "unet-resnet34", "Give yours"),
        ("torchxrayvision", "DenseNet", "is a small model for audits"),
        ("ultralytics", "yolov5n", "is a small model for audits"),
    ],
)
def test_kinds_of_networks_have_no_weights(place, name, said):
    pytest.importorskip(place)
    with pytest.raises(InputError, match=said):
        hilrp.load(f"{place}/{name}")


def test_a_checkpoint_of_smp_is_loaded_and_explained(tmp_path):
    smp = pytest.importorskip("segmentation_models_pytorch")
    torch.manual_seed(0)
    own = smp.Unet("resnet18", encoder_weights=None, classes=3).eval()
    torch.save(own.state_dict(), tmp_path / "unet.pt")
    loaded = hilrp.load(
        "segmentation_models_pytorch/unet-resnet18", tmp_path / "unet.pt", classes=["road", "car", "sky"]
    )
    x = loaded.batch([Image.new("RGB", (70, 50), (90, 120, 30))])
    assert x.shape == (1, 3, 64, 64)
    assert torch.allclose(loaded.model(x), own(x))
    assert loaded.index("car") == 1
    found = hilrp.explain(loaded.model, torch.rand(1, 3, 64, 96), Region(1), tiles=hilrp.Tiles(64))
    assert float(found.ledger.residual) < 1e-5


def test_a_pickled_network_of_torchxrayvision_is_read_without_running_code(tmp_path, monkeypatch):
    """What the library publishes is a pickle of a whole model: its layers are made, and nothing else can be."""
    xrv = pytest.importorskip("torchxrayvision")
    own = library("torchxrayvision")
    torch.manual_seed(0)
    network = xrv.models.DenseNet(weights=None, num_classes=18)
    name = "densenet121-res224-all"
    torch.save(network, tmp_path / "pickled.pt")
    monkeypatch.setattr(xrv.models, "get_weights", lambda name: str(tmp_path / "pickled.pt"))
    monkeypatch.setattr(own, "download", lambda name, make, url: make())
    loaded = hilrp.load(f"torchxrayvision/{name}")
    x = loaded.batch([Image.new("L", (300, 240), 128)])
    assert x.shape == (1, 1, 224, 224)
    assert torch.allclose(loaded.model(x), network.eval()(x))
    assert "Effusion" in loaded.classes
    assert loaded.picture(x).shape == (1, 3, 224, 224)

    class Evil:
        def __reduce__(self):
            return (print, ("code ran",))

    torch.save(Evil(), tmp_path / "pickled.pt")
    with pytest.raises(Exception, match=r"WeightsUnpickler|weights_only|Unsupported"):
        hilrp.load(f"torchxrayvision/{name}")


def yolo(name: str, classes: int = 5):
    tasks = importlib.import_module("ultralytics.nn.tasks")
    torch.manual_seed(0)
    kind = tasks.SegmentationModel if name.endswith("-seg") else tasks.DetectionModel
    model = kind(f"{name}.yaml", ch=3, nc=classes, verbose=False)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.weight.uniform_(0.8, 1.2)
        for head in (model.model[-1].cv3, getattr(model.model[-1], "one2one_cv3", None) or []):
            for each in head:
                each[-1].bias.fill_(1.0)  # a fresh model finds nothing
    return model.eval()


@pytest.mark.parametrize("name", ["yolov8n", "yolo11n-seg", "yolo26n"])
def test_yolo_finds_what_ultralytics_finds(name):
    """Boxes, classes and probabilities are those of ultralytics' own selection."""
    pytest.importorskip("ultralytics")
    nms = importlib.import_module("ultralytics.utils.nms")
    from hilrp.models.libraries.yolo import Yolo

    raw, x = yolo(name), torch.rand(2, 3, 96, 64)
    found = Yolo(raw, confidence=0.25, overlap=0.7, most=20).eval()(x)
    predictions = raw(x)[0]
    predictions = predictions[0] if isinstance(predictions, tuple) else predictions
    expected = nms.non_max_suppression(predictions, 0.25, 0.7, max_det=20, nc=5, end2end=raw.model[-1].end2end)
    for i, each in enumerate(expected):
        count = int((found["labels"][i] >= 0).sum())
        assert count == len(each) > 0
        corners = found["corners"][i, :count] * torch.tensor([64, 96, 64, 96])
        assert torch.allclose(found["scores"][i, :count], each[:, 4], atol=1e-5)
        assert torch.allclose(corners, each[:, :4], atol=1e-3)
        assert found["labels"][i, :count].tolist() == each[:, 5].long().tolist()
        of_label = found["logits"][i, torch.arange(count), found["labels"][i, :count]]
        assert torch.allclose(of_label.sigmoid(), each[:, 4], atol=1e-5)


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_classes_sides_and_masks_of_a_yolo(rules):
    pytest.importorskip("ultralytics")
    ops = importlib.import_module("ultralytics.utils.ops")
    nms = importlib.import_module("ultralytics.utils.nms")
    from hilrp.models.libraries.yolo import Yolo

    raw, x = yolo("yolo11n-seg"), torch.rand(1, 3, 64, 64)
    model = Yolo(raw).eval()
    for target in (Detection(0), Detection(1, label=2), Detection(0, side="right"), Mask(0)):
        if rules == "hilrp" and getattr(
            target, "side", None
        ):  # a side is a sum of a softmax: gates without a reference
            with pytest.raises(ModelError, match="only through gates"):
                hilrp.explain(model, x, target, rules, stages=None)
            continue
        found = hilrp.explain(model, x, target, rules, stages=None)
        assert float(found.ledger.residual.max()) < 1e-4
    own = model(x)
    (predictions, proto), _ = raw(x)
    first = nms.non_max_suppression(predictions, 0.25, 0.7, nc=5)[0][:1]
    drawn = ops.process_mask(proto[0], first[:, 6:], first[:, :4], (64, 64), upsample=False)[0].bool()
    logits = own["masks"][0, 0]
    assert torch.equal((logits > 0) & drawn, drawn)  # ultralytics cuts masks at the box
    outline = Mask(0).outline((64, 64), own, 1)
    assert outline.shape == (1, 64, 64)


def test_a_published_yolo_is_read_without_running_code(tmp_path, monkeypatch):
    """What is published is a pickle of a whole model: ultralytics' restricted loading makes its layers alone."""
    pytest.importorskip("ultralytics")
    own, model = library("ultralytics"), yolo("yolo11n", 80)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    file = tmp_path / "checkpoints" / "yolo11n.pt"
    torch.save({"model": model, "ema": None}, file)
    loaded = hilrp.load("ultralytics/yolo11n")
    x = loaded.batch([Image.new("RGB", (300, 200), (90, 120, 30))])
    assert x.shape == (1, 3, 640, 640)
    assert torch.allclose(loaded.model.model(x)[0], model(x)[0], atol=1e-4)
    assert len(loaded.classes) == 80
    assert "AGPL" in repr(loaded)
    assert own.find("yolo11n") in own.trained()

    class Evil:
        def __reduce__(self):
            return (print, ("code ran",))

    torch.save({"model": Evil(), "ema": None}, file)
    with pytest.raises(InputError, match="could not be loaded"):
        hilrp.load("ultralytics/yolo11n")


def test_a_raw_yolo_is_told_the_line_that_works():
    pytest.importorskip("ultralytics")
    raw, x = yolo("yolov8n"), torch.rand(1, 3, 64, 64)
    for target in (None, Detection(0)):
        with pytest.raises(TargetError, match=r"libraries.yolo.Yolo\(model\)"):
            hilrp.explain(raw, x, target)
    from hilrp.models.libraries.yolo import Yolo

    with pytest.raises(InputError, match="no YOLO that finds boxes"):
        Yolo(torch.nn.Identity())
    with pytest.raises(InputError, match="from 0 to 1"):
        Yolo(raw, confidence=2)
    nothing = Yolo(raw, confidence=1.0).eval()
    with pytest.raises(TargetError, match="there is no object 0 in sample 0: the model finds 0"):
        hilrp.explain(nothing, x, Detection(0))
