"""Detectors of torchvision: what is explained is the detector's own, and books close, of one stage and of two."""

from __future__ import annotations

import json
import threading

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torchvision import models
from torchvision.models.detection import faster_rcnn, keypoint_rcnn, mask_rcnn
from torchvision.models.detection.backbone_utils import BackboneWithFPN
from torchvision.ops import FrozenBatchNorm2d
from typer.testing import CliRunner

import hilrp
from hilrp.cli import app
from hilrp.models.libraries.detectors import Detector
from hilrp.targets import Detection, Keypoint, Mask
from hilrp.util.errors import TargetError

X = torch.rand(2, 3, 48, 40, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
ONE_STAGE = {"score_thresh": 0.0, "detections_per_img": 6, "topk_candidates": 200}
TWO_STAGES = {"box_score_thresh": 0.0, "box_detections_per_img": 6, "rpn_post_nms_top_n_test": 50}
SMALL = {"min_size": 64, "max_size": 96}


def narrow_pyramid():
    """A pyramid of features like torchvision's, of a small ResNet and with an eighth of the channels."""
    body = models.resnet.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], norm_layer=FrozenBatchNorm2d)
    layers = {f"layer{i}": str(i) for i in range(1, 5)}
    return BackboneWithFPN(body, layers, [64, 128, 256, 512], out_channels=32)


def retinanet():
    return models.detection.RetinaNet(narrow_pyramid(), 6, **SMALL, **ONE_STAGE)


def fcos():
    return models.detection.FCOS(narrow_pyramid(), 6, **SMALL, **ONE_STAGE)


def fasterrcnn():
    """With a narrow second stage, too."""
    head, predictor = faster_rcnn.TwoMLPHead(32 * 7**2, 64), faster_rcnn.FastRCNNPredictor(64, 6)
    return models.detection.FasterRCNN(narrow_pyramid(), box_head=head, box_predictor=predictor, **SMALL, **TWO_STAGES)


def ssdlite():
    model = named("ssdlite320_mobilenet_v3_large", **ONE_STAGE)
    model.transform.fixed_size = (128, 128)
    return model


def named(name, **options):
    return models.get_model(name, weights=None, weights_backbone=None, num_classes=6, **options)


KINDS = {
    "fasterrcnn": fasterrcnn,
    "ssdlite": ssdlite,
    "retinanet": retinanet,
    "fcos": fcos,
}


def made(kind):
    """A small random detector whose head is large enough for objects to differ."""
    torch.manual_seed(4)
    model = KINDS[kind]()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)) and "rpn" not in name:
            nn.init.kaiming_normal_(module.weight, 1.5)
            if "bbox" in name or "regression_head.module_list" in name:
                module.weight.data *= 0.1
            if module.bias is not None:
                nn.init.normal_(module.bias, std=0.3)
    # Statistics of what it sees, as training leaves them: without, the pixels of a deep random model have next to no
    # part in its score.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.backbone.train()(torch.rand(4, 3, 96, 96))
    return model.double().eval()


def scores_of(kind, logits, own):
    """What the detector makes of logits; in FCOS the centre has a part in it, which is left out here."""
    return (logits.softmax(-1) if kind in ("fasterrcnn", "ssdlite") else logits.sigmoid()).gather(1, own[:, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_objects_are_the_detectors_own(kind):
    model = made(kind)
    with torch.no_grad():
        own, found = model(list(X)), Detector(model)(X)
    extent = torch.tensor([40, 48, 40, 48])
    for i, objects in enumerate(own):
        count = len(objects["labels"])
        assert count > 1
        assert torch.equal(found["labels"][i, :count], objects["labels"])
        assert torch.equal(found["scores"][i, :count], objects["scores"])
        assert bool((objects["scores"].diff() <= 0).all())
        boxes = found["corners"][i, :count].clamp(0, 1) * extent
        torch.testing.assert_close(boxes, objects["boxes"], atol=1e-4, rtol=0)
        if kind != "fcos":
            scores = scores_of(kind, found["logits"][i, :count], objects["labels"])
            torch.testing.assert_close(scores, objects["scores"])


def test_logits_of_fcos_are_those_of_the_place():
    """Its score has the centre's in it: with that at one, the class's is the square of the score."""
    model = made("fcos")
    centre = model.head.regression_head.bbox_ctrness
    nn.init.zeros_(centre.weight)
    nn.init.constant_(centre.bias, 40.0)
    with torch.no_grad():
        objects, found = model(list(X))[0], Detector(model)(X)
    count = len(objects["labels"])
    torch.testing.assert_close(scores_of("fcos", found["logits"][0, :count], objects["labels"]), objects["scores"] ** 2)


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
@pytest.mark.parametrize("kind", KINDS)
def test_books_close(kind, rules):
    model = Detector(made(kind)).eval()
    with torch.no_grad():
        output = model(X)
    own = output["labels"][:, 1]
    for target, value, checks in (
        (Detection(1), output["logits"][:, 1].gather(1, own[:, None])[:, 0], "strict"),
        # What is asserted below is all that is asked of these.
        (Detection(0, label=3), output["logits"][:, 0, 3], "off"),
        (Detection(1, side="bottom"), output["corners"][:, 1, 3], "off"),
    ):
        found = hilrp.explain(model, X, target, rules, stages=None, audit=checks)
        torch.testing.assert_close(found.score, value)
        assert float(found.ledger.residual.max()) < 1e-10
        assert float(found.ledger.leak.max()) < 1e-10
        assert found.relevance.shape == X.shape
        assert float(found.relevance.abs().sum()) > 1e-3
        if rules == "secant":  # the pixels hold all of the difference, and the objects are those of the picture
            difference = found.score - found.ledger.entries["reference"]
            torch.testing.assert_close(found.relevance.sum((1, 2, 3)), difference, rtol=1e-7, atol=1e-12)


def test_objects_that_are_not_there():
    model = made("ssdlite")
    model.score_thresh = 0.9999
    with pytest.raises(hilrp.TargetError, match="no object 0 in sample 0: the model finds 0"):
        hilrp.explain(Detector(model).eval(), X, Detection(0))
    counts = [len(each["labels"]) for each in made("ssdlite")(list(X))]
    with pytest.raises(hilrp.TargetError, match=f"no object 7 in sample 0: the model finds {counts[0]}"):
        hilrp.explain(Detector(made("ssdlite")).eval(), X, Detection(7))


def test_pictures_with_more_and_with_fewer_objects():
    """The one with fewer says so; the other is explained as if it were alone."""
    model = made("ssdlite").requires_grad_(False)
    scores = [each["scores"] for each in model(list(X))]
    model.score_thresh = float((scores[0][1] + scores[1][1]) / 2)
    few, many = sorted(range(2), key=lambda i: len(model([X[i]])[0]["labels"]))
    wrapped = Detector(model).eval()
    query = len(model([X[few]])[0]["labels"])
    assert query < len(model([X[many]])[0]["labels"])
    with pytest.raises(hilrp.TargetError, match=f"no object {query} in sample {few}: the model finds {query}"):
        hilrp.explain(wrapped, X, Detection(query))
    assert float(hilrp.explain(wrapped, X[[many]], Detection(query), stages=None).ledger.residual) < 1e-10


def test_other_models_are_no_detectors():
    with pytest.raises(hilrp.InputError, match="Linear is no detector of torchvision"):
        Detector(nn.Linear(2, 2))


def test_command_line(tmp_path):
    """A checkpoint, a picture, the strongest object."""
    model = models.get_model("ssdlite320_mobilenet_v3_large", weights=None, weights_backbone=None)
    for module in model.head.classification_head.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=0.4)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    Image.fromarray((torch.rand(60, 70, 3) * 255).byte().numpy()).save(tmp_path / "p.png")
    options = ["--model", "torchvision/ssdlite320_mobilenet_v3_large", "--checkpoint", tmp_path / "w.safetensors"]
    result = CliRunner().invoke(
        app, ["explain", *map(str, [tmp_path / "p.png", *options, "--target", "detection:0", "-o", tmp_path / "out"])]
    )
    assert result.exit_code == 0, result.output
    facts = json.loads((tmp_path / "out" / "p.json").read_text())
    loaded = hilrp.load("torchvision/ssdlite320_mobilenet_v3_large", tmp_path / "w.safetensors")
    with torch.no_grad():
        found = loaded.model(loaded.batch([tmp_path / "p.png"]))
    assert facts["score"][0] == pytest.approx(float(found["logits"][0, 0, found["labels"][0, 0]]), rel=1e-4)
    assert facts["residual"][0] < 1e-4


def test_no_proposals():
    """A first stage that proposes nothing: there is no object to ask for, and that is said."""
    model = named("fasterrcnn_mobilenet_v3_large_320_fpn", **SMALL, **TWO_STAGES, rpn_score_thresh=1.0).double().eval()
    with pytest.raises(hilrp.TargetError, match="no object 0 in sample 0: the model finds 0"):
        hilrp.explain(Detector(model).eval(), X, Detection(0))


def test_other_threads_are_not_listened_to():
    """A pass of another thread between what this one runs and what it reads."""
    model = made("retinanet")
    alone = Detector(model)(X)
    other = torch.rand(1, 3, 48, 40, dtype=torch.float64)
    original = model.postprocess_detections

    def disturbed(*args, **options):
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=lambda: model(list(other)))
            thread.start()
            thread.join()
        return original(*args, **options)

    model.postprocess_detections = disturbed
    with torch.no_grad():
        found = Detector(model)(X)
    assert torch.equal(found["labels"], alone["labels"])
    torch.testing.assert_close(found["logits"], alone["logits"])


def with_masks():
    """Mask R-CNN, with a narrow second stage."""
    own = {
        "mask_head": mask_rcnn.MaskRCNNHeads(32, (16, 16), 1),
        "mask_predictor": mask_rcnn.MaskRCNNPredictor(16, 16, 6),
    }
    return models.detection.MaskRCNN(narrow_pyramid(), **narrow_heads(), **own, **SMALL, **TWO_STAGES)


def narrow_heads():
    return {
        "box_head": faster_rcnn.TwoMLPHead(32 * 7**2, 64),
        "box_predictor": faster_rcnn.FastRCNNPredictor(64, 6),
    }


def with_keypoints():
    """Keypoint R-CNN with four joints, with a narrow second stage."""
    own = {
        "keypoint_head": keypoint_rcnn.KeypointRCNNHeads(32, (16, 16)),
        "keypoint_predictor": keypoint_rcnn.KeypointRCNNPredictor(16, 4),
    }
    return models.detection.KeypointRCNN(narrow_pyramid(), **narrow_heads(), **own, **SMALL, **TWO_STAGES)


@pytest.fixture(scope="module", params=[with_masks, with_keypoints], ids=["masks", "keypoints"])
def with_more(request):
    torch.manual_seed(1)
    return Detector(request.param().double().eval()).eval()


def test_masks_and_keypoints_are_the_detectors_own(with_more):
    """The logits are those of the head that torchvision runs on the boxes that it has found."""
    heads = with_more.detector.roi_heads
    predictor = heads.mask_predictor if heads.has_mask() else heads.keypoint_predictor
    kept = []
    handle = predictor.register_forward_hook(lambda module, inputs, output: kept.append(output))
    objects = with_more.detector(list(X))
    handle.remove()
    found = with_more(X)
    labels = torch.cat([each["labels"] for each in objects])
    own = kept[-1][torch.arange(len(labels)), labels] if heads.has_mask() else kept[-1]
    ours = found["box_masks" if heads.has_mask() else "keypoints"]
    ours = torch.cat([rows[: len(each["labels"])] for rows, each in zip(ours, objects, strict=True)])
    torch.testing.assert_close(ours, own)
    assert len(own) > 2


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_books_of_masks_and_keypoints_close(with_more, rules):
    has_mask = with_more.detector.roi_heads.has_mask()
    for target in (Mask(0), Mask([1, 0])) if has_mask else (Keypoint(0), Keypoint(3, [1, 0])):
        found = hilrp.explain(with_more, X, target, rules, stages=None)
        assert float(found.ledger.residual.max()) < 1e-10
        assert float(found.map.abs().amax()) > 0
        batched = hilrp.explain(with_more, X, target, rules, stages=None, batch=1)
        torch.testing.assert_close(found.relevance, batched.relevance)


def test_the_value_of_a_mask_and_of_a_joint(with_more):
    found = with_more(X)
    if "box_masks" in found:
        mask = found["box_masks"][:, 1]
        expected = [float(m[m > 0].mean() if bool((m > 0).any()) else m.max()) for m in mask]
        assert Mask(1).prepare(X, with_more)(found).tolist() == pytest.approx(expected)
        outline = Mask(0).outline((48, 40), found, 2)
        assert outline.shape == (2, 48, 40)
        left, top, right, bottom = (found["corners"][0, 0] * torch.tensor([40, 48, 40, 48])).tolist()
        rows, columns = outline[0].nonzero().unbind(1)
        if len(rows):
            assert left - 1 <= int(columns.min()) <= int(columns.max()) <= right + 1
            assert top - 1 <= int(rows.min()) <= int(rows.max()) <= bottom + 1
    else:
        assert (
            Keypoint(2, 1).prepare(X, with_more)(found).tolist()
            == found["keypoints"][:, 1, 2].flatten(1).amax(1).tolist()
        )


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (Mask(99), "no object 99 in sample 0|no mask for each"),
        (Mask(0.5), "give one whole number|no mask for each"),
        (Keypoint(9), "the model knows 4, from 0|no keypoints for each"),
        (Keypoint(0, -1), "no object -1|no keypoints for each"),
    ],
)
def test_masks_and_joints_that_are_not_there(with_more, target, said):
    with pytest.raises(TargetError, match=said):
        hilrp.explain(with_more, X, target)


def test_what_is_returned_after_selection_is_told_the_line_that_works(with_more):
    with pytest.raises(TargetError, match=r"libraries.detectors.Detector\(model\) instead"):
        Detection(0)(with_more.detector(list(X)))
