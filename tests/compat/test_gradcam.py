"""pytorch-grad-cam's contract, kept: its targets, its layers, its examples, and what its pictures are drawn of."""

from __future__ import annotations

import warnings

import cv2
import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.models import randomised, small_swin, small_vit
from hilrp.attribution.marking import smoothed
from hilrp.compat.gradcam import HiLRPCAM

theirs = pytest.importorskip("pytorch_grad_cam")
from pytorch_grad_cam.utils.image import show_cam_on_image  # noqa: E402
from pytorch_grad_cam.utils.model_targets import (  # noqa: E402
    BinaryClassifierOutputTarget,
    ClassifierOutputReST,
    ClassifierOutputSoftmaxTarget,
    ClassifierOutputTarget,
    FasterRCNNBoxScoreTarget,
    FinerWeightedTarget,
    SemanticSegmentationTarget,
)
from pytorch_grad_cam.utils.reshape_transforms import fasterrcnn_reshape_transform  # noqa: E402


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def network(outputs: int = 4) -> nn.Sequential:
    layers = nn.Conv2d(3, 8, 3, 2), nn.ReLU(inplace=True), nn.Conv2d(8, 8, 3, 2), nn.GELU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, outputs))


X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def well_formed(maps: np.ndarray, x: torch.Tensor = X) -> None:
    assert maps.dtype == np.float32
    assert maps.shape == (len(x), *x.shape[2:])
    assert maps.min() >= 0
    assert np.allclose(maps.reshape(len(x), -1).max(1), 1)


# The contract ---------------------------------------------------------------------------------------------------


def test_the_map_is_the_positive_part_of_relevance():
    model = network()
    with HiLRPCAM(model=model) as cam:
        maps = cam(input_tensor=X, targets=[ClassifierOutputTarget(1), ClassifierOutputTarget(3)])
        well_formed(maps)
        assert torch.equal(cam.outputs, model(X))
    assert not model.training
    wanted = hilrp.explain(model, X, [1, 3])
    assert torch.equal(cam.explanation.map, wanted.map)
    positive = smoothed(wanted.map).clamp(min=0)
    assert np.allclose(maps, positive / positive.amax((1, 2), keepdim=True), atol=1e-6)
    drawn = show_cam_on_image(X[0].permute(1, 2, 0).sigmoid().numpy(), maps[0], use_rgb=True)
    assert (drawn.shape, drawn.dtype) == ((32, 32, 3), np.uint8)


def test_without_targets_it_is_the_predicted_class():
    cam = HiLRPCAM(network())
    maps = cam(X)
    assert torch.equal(cam.explanation.target, cam.outputs.argmax(1))
    assert np.array_equal(maps, cam(X, [ClassifierOutputTarget(int(i)) for i in cam.outputs.argmax(1)]))


TARGETS = [
    ClassifierOutputSoftmaxTarget(2),
    ClassifierOutputReST(2),
    FinerWeightedTarget(2, [0, 1], 0.5),
    lambda output: output[2] - output[0],
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: type(target).__name__)
def test_their_targets_are_functions_of_each_pictures_output(target):
    model = network().double()
    x = X.double()
    cam = HiLRPCAM(model)
    well_formed(cam(x, [target, ClassifierOutputTarget(0)]))
    found = cam.explanation
    with torch.no_grad():
        assert torch.allclose(found.score, torch.stack([target(model(x)[0]), model(x)[1, 0]]))
        black = model(found.reference)
        difference = found.score - torch.stack([target(black[0]), black[1, 0]])
    assert torch.allclose(found.map.sum((1, 2)), difference, rtol=1e-9, atol=1e-12)


def test_a_target_of_the_same_name_is_asked_itself():
    """A script's own class may compute anything."""
    model = network()
    cam = HiLRPCAM(model)
    for name in ("ClassifierOutputTarget", "ClassifierOutputReST"):
        own = type(name, (), {"category": 2, "__call__": lambda self, output: output[2] - output[0]})()
        cam(X, [own] * 2)
        assert torch.allclose(cam.explanation.score, model(X)[:, 2] - model(X)[:, 0])


def test_binary_targets_turn_the_sign():
    model = network(1)
    cam = HiLRPCAM(model)
    cam(X, [BinaryClassifierOutputTarget(1)] * 2)
    positive = cam.explanation.map
    cam(X, [BinaryClassifierOutputTarget(0)] * 2)
    assert torch.allclose(cam.explanation.map, -positive, atol=1e-6)


def test_layers():
    model = network().double()
    cam = HiLRPCAM(model, [model[2]])
    x = X.double()
    maps = cam(x, [ClassifierOutputTarget(1)] * 2)
    well_formed(maps)
    layer = hilrp.Explainer(model, keep=["2"]).explain(x, 1).layers["2"].sum(1, keepdim=True)
    positive = F.interpolate(layer, (32, 32), mode="bilinear", align_corners=False)[:, 0].clamp(min=0)
    assert np.allclose(maps, positive / positive.amax((1, 2), keepdim=True), atol=1e-6)
    both = HiLRPCAM(model, [model[2], model[0]])(x, [ClassifierOutputTarget(1)] * 2)
    well_formed(both)
    assert np.abs(both - maps).max() > 0.05


class ChannelsLast(nn.Module):
    def forward(self, x):
        return x.permute(0, 2, 3, 1) * 1.0


def test_a_layer_whose_shape_does_not_tell_where_channels_are_is_refused():
    """Eight channels of eight by eight places."""
    layers = nn.Conv2d(3, 8, 1), nn.ReLU(), ChannelsLast(), nn.Flatten(), nn.Linear(512, 2)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 3, 8, 8)
    with pytest.raises(hilrp.InputError, match=r"`2` has \(1, 8, 8, 8\).*Give reshape_transform="):
        HiLRPCAM(model, [model[2]])(x)
    last = HiLRPCAM(model, [model[2]], lambda t: t.permute(0, 3, 1, 2))(x)
    first = HiLRPCAM(model, [model[0]], lambda t: t)(x)
    assert np.allclose(last, first, atol=1e-5)


def test_models_in_others_and_other_types():
    model = network()
    inside = HiLRPCAM(nn.DataParallel(model), [model[2]])(X)
    assert np.array_equal(inside, HiLRPCAM(model, [model[2]])(X))
    double = HiLRPCAM(model.double())(X.double())
    assert double.dtype == np.float32
    with pytest.raises(hilrp.ModelError, match="shape, type and device"):
        HiLRPCAM(model)(X)
    with pytest.raises(hilrp.InputError, match="no floating-point tensor"):
        HiLRPCAM(model)(X.byte())


def test_where_nothing_speaks_for_the_target_the_map_is_zero():
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 2))
    with torch.no_grad():
        model[1].weight[0].fill_(-1)
    x = torch.eye(8).expand(1, 3, 8, 8)
    maps = HiLRPCAM(model, reference=0.0)(x, [ClassifierOutputTarget(0)])
    assert maps.max() == 0
    assert not np.isnan(maps).any()


def test_where_only_the_class_token_has_relevance_the_zero_map_is_said():
    model, x = small_vit(), torch.randn(1, 3, 32, 32)
    cam = HiLRPCAM(model, [model.blocks[-1]])
    with pytest.warns(UserWarning, match=r"`blocks.\d` has no relevance at its places.*blocks\[-1\].norm1"):
        assert cam(x).max() == 0
    assert any("the map is zero" in note for note in cam.explanation.notes)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        earlier = HiLRPCAM(model, [model.blocks[-1].norm1])
        assert earlier(x).max() == 1
    assert not any("the map is zero" in note for note in earlier.explanation.notes)


@pytest.mark.parametrize("layers", [False, True])
def test_as_many_pictures_at_once_as_batch_size_says(layers):
    """Scripts set it on pytorch-grad-cam's objects."""
    model, x = network(), torch.randn(5, 3, 32, 32)
    seen = []
    model[0].register_forward_hook(lambda module, given, output: seen.append(len(output)))
    cam = HiLRPCAM(model, [model[2]] if layers else None)
    for targets in (None, [ClassifierOutputTarget(1)] * 5, [ClassifierOutputSoftmaxTarget(i % 4) for i in range(5)]):
        cam.batch_size = None
        whole = cam(x, targets)
        cam.batch_size = 2
        seen.clear()
        assert np.allclose(cam(x, targets), whole, atol=1e-5)
        assert max(seen) == 2
        assert cam.explanation.map.shape == (5, 32, 32)
        assert cam.outputs.shape == (5, 4)
    for wrong in (0, 1.5, True):
        cam.batch_size = wrong
        with pytest.raises(hilrp.InputError, match="batch_size="):
            cam(x)


def test_test_time_augmentation():
    pytest.importorskip("ttach")
    model = network()
    plain, smooth = HiLRPCAM(model)(X), HiLRPCAM(model)(X, aug_smooth=True)
    assert smooth.shape == plain.shape
    assert smooth.dtype == np.float32
    assert np.abs(smooth - plain).max() > 1e-3
    mirrored = HiLRPCAM(model)(X.flip(3), aug_smooth=True)
    target = model(X).argmax(1)
    if torch.equal(target, model(X.flip(3)).argmax(1)):  # the mean over mirrored pictures is mirrored with them
        assert np.allclose(smooth, mirrored[:, :, ::-1], atol=1e-4)
    import ttach

    one = HiLRPCAM(model, tta_transforms=ttach.Compose([ttach.Multiply([1])]))
    assert np.array_equal(one(X, aug_smooth=True), plain)


def test_volumes():
    model = nn.Sequential(nn.Conv3d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 216, 2))
    x = torch.randn(1, 1, 8, 8, 8)
    for layers in (None, [model[0]]):
        maps = HiLRPCAM(model, layers)(x)
        assert maps.shape == (1, 8, 8, 8)
        assert maps.max() == 1


# Their examples, by one changed import --------------------------------------------------------------------------


def swin_reshape(tensor, height=8, width=8):
    return tensor.reshape(tensor.size(0), height, width, tensor.size(-1)).permute(0, 3, 1, 2)


def vit_reshape(tensor, height=4, width=4):
    return tensor[:, 1:].reshape(tensor.size(0), height, width, tensor.size(2)).permute(0, 3, 1, 2)


EXAMPLES = {
    "swin": (small_swin, lambda m: m.layers[-1].blocks[-1].norm1, swin_reshape, 64),
    "vit": (small_vit, lambda m: m.blocks[-1].norm1, vit_reshape, 32),
    "resnet": (lambda: randomised(timm.create_model("resnet10t", num_classes=5)), lambda m: m.layer4[-1], None, 64),
    "convnext": (
        lambda: randomised(timm.create_model("convnext_atto", num_classes=5)),
        lambda m: m.stages[-1],
        None,
        64,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_classifiers_with_and_without_layers_and_reshape(name):
    make, layer_of, reshape, side = EXAMPLES[name]
    model, x = make(), torch.randn(1, 3, side, side)
    with torch.no_grad():
        higher = model(x) - model(x.mean((2, 3), keepdim=True).expand_as(x))
    wanted = [ClassifierOutputTarget(int(higher.argmax()))]
    for arguments in (
        {},
        {"target_layers": [layer_of(model)]},
        {"target_layers": [layer_of(model)], "reshape_transform": reshape},
    ):
        with HiLRPCAM(model, **arguments) as cam:
            well_formed(cam(input_tensor=x, targets=wanted), x)
            assert torch.allclose(
                cam.explanation.map.sum((1, 2)).double(), cam.explanation.ledger.explained, rtol=1e-4, atol=1e-5
            )
    grid = HiLRPCAM(model, [layer_of(model)])(x, wanted)  # tokens are laid out without being told how
    if reshape is not None:
        assert np.array_equal(grid, HiLRPCAM(model, [layer_of(model)], reshape)(x, wanted))


class OnlyOut(nn.Module):
    """Their wrapper of a segmenter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)["out"]


def test_segmentation():
    torchvision = pytest.importorskip("torchvision")
    segmenter = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=3
    )
    model = OnlyOut(randomised(segmenter)).eval()
    x = torch.randn(1, 3, 64, 64)
    mask = (model(x)[0].argmax(0) == 1).numpy().astype(np.float32)
    mask[:8] = 1
    target = SemanticSegmentationTarget(1, mask)
    cam = HiLRPCAM(model, target_layers=[segmenter.backbone["16"]])
    well_formed(cam(x, [target]), x)
    assert torch.allclose(cam.explanation.score[0], target(model(x)[0]), rtol=1e-5)
    # The output is a mapping: `out` is taken from it.
    plain = HiLRPCAM(segmenter)
    plain(x, [target])
    assert torch.allclose(plain.explanation.score, cam.explanation.score)


FASTER_RCNN = "fasterrcnn_mobilenet_v3_large_320_fpn"


def detector(name: str = FASTER_RCNN) -> nn.Module:
    """A small detector whose batch norms have the statistics of pictures: else its output hardly depends on these."""
    torchvision = pytest.importorskip("torchvision")
    options = {"num_classes": 5, "weights": None, "weights_backbone": None}
    options |= {f"{'box_' * ('rcnn' in name)}{key}": value for key, value in OF_OBJECTS.items()}
    options |= {} if "ssd" in name else {"min_size": 64, "max_size": 96}
    model = randomised(torchvision.models.get_model(name, **options))
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.train().momentum = None
    with torch.no_grad():
        model.backbone(torch.randn(4, 3, 64, 96))
    return model.eval()


OF_OBJECTS = {"score_thresh": 0.0, "detections_per_img": 5}


@pytest.mark.parametrize("name", [FASTER_RCNN, "ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn"])
def test_detection(name):
    """Their target: how well a box is found again, and how sure its label is."""
    model, x = detector(name), torch.rand(1, 3, 64, 96)
    with torch.no_grad():
        found = model(x)[0]
    boxes, labels = found["boxes"][:2].numpy(), found["labels"][:2]
    target = FasterRCNNBoxScoreTarget(labels, boxes)
    with HiLRPCAM(model, rules="secant") as cam:
        well_formed(cam(x, targets=[target]), x)
    assert torch.allclose(cam.explanation.score, target(found), atol=1e-3)
    assert cam.explanation.ledger.explained.abs() > 0.05
    assert set(cam.outputs[0]) == {"boxes", "labels", "scores"}
    assert np.allclose(cam.outputs[0]["boxes"][:2], boxes, atol=1e-2)


def boxes_of(model: nn.Module, x: torch.Tensor) -> list[FasterRCNNBoxScoreTarget]:
    with torch.no_grad():
        return [FasterRCNNBoxScoreTarget(each["labels"][:3], each["boxes"][:3].numpy()) for each in model(x)]


def test_layers_of_a_detector():
    """Their tutorial names the backbone. It runs twice: where objects are is found on the picture first."""
    model, x = detector(), torch.rand(2, 3, 64, 96)
    targets = boxes_of(model, x)
    seen = []

    def reshape(features):
        seen.append({name: tuple(t.shape) for name, t in features.items()})
        return fasterrcnn_reshape_transform(features)

    for layer, own in ((model.backbone, reshape), (model.backbone, None), (model.backbone.body, None)):
        maps = HiLRPCAM(model, [layer], own)(x, targets)  # of mappings of several maps
        assert maps.shape == (2, 64, 96)
        assert (maps.reshape(2, -1).max(1) > 0).all()
    assert seen == [{name: tuple(t.shape) for name, t in model.backbone(x).items()}]
    whole = HiLRPCAM(model, [model.backbone])
    together = whole(x, targets)
    kept = [t for name, t in whole.explanation.layers.items() if name.startswith("model.detector.backbone")]
    assert len(kept) > 1
    assert torch.allclose(sum(t.sum((1, 2, 3)) for t in kept), whole.explanation.map.sum((1, 2)), rtol=1e-3)
    large = [F.interpolate(t.sum(1, keepdim=True), x.shape[2:], mode="bilinear")[:, 0] * t[0, 0].numel() for t in kept]
    positive = sum(large).clamp(min=0)
    assert np.allclose(together, positive / positive.amax((1, 2), keepdim=True), atol=1e-5)
    for i in (0, 1):
        assert np.allclose(HiLRPCAM(model, [model.backbone])(x[i : i + 1], targets[i : i + 1]), together[i], atol=1e-3)


def test_what_a_detectors_layers_can_not_be():
    model, x = detector(), torch.rand(1, 3, 64, 96)
    targets = boxes_of(model, x)
    with pytest.raises(hilrp.ModelError, match=r"`rpn.head` runs on nothing that depends .*\(which objects are found"):
        HiLRPCAM(model, [model.rpn.head])(x, targets)
    with pytest.raises(hilrp.InputError, match=r"`roi_heads.box_head` has \(5, 1024\), which is no map"):
        HiLRPCAM(model, [model.roi_heads.box_head])(x, targets)
    elsewhere = FasterRCNNBoxScoreTarget([99], np.array([[0.0, 0.0, 3.0, 3.0]]))
    with pytest.raises(hilrp.TargetError, match=r"targets: they return the same.*none of its boxes"):
        HiLRPCAM(model)(x, [elsewhere])


class ClipClassifier(nn.Module):
    """Their wrapper of CLIP: captions are classes."""

    def __init__(self, clip: nn.Module, ids: torch.Tensor) -> None:
        super().__init__()
        self.clip, self.ids = clip, ids

    def forward(self, x):
        return self.clip(
            pixel_values=x, input_ids=self.ids, attention_mask=torch.ones_like(self.ids)
        ).logits_per_image.softmax(1)


def test_clip():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.CLIPConfig(
        text_config=sizes | {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        vision_config=sizes | {"image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    model = ClipClassifier(transformers.CLIPModel(config).eval(), torch.tensor([[1, 5, 6, 2], [1, 7, 8, 2]]))
    x = torch.randn(1, 3, 32, 32)
    layer = model.clip.vision_model.encoder.layers[-1].layer_norm1
    for arguments in ({}, {"target_layers": [layer], "reshape_transform": vit_reshape}):
        with HiLRPCAM(model, **arguments) as cam:
            well_formed(cam(x, [ClassifierOutputTarget(1)]), x)
        difference = model(x)[0, 1] - model(cam.explanation.reference)[0, 1]
        assert torch.allclose(cam.explanation.map.sum(), difference, atol=1e-5)


class SimilarityToConceptTarget:
    """Their target for embeddings."""

    def __init__(self, features):
        self.features = features

    def __call__(self, model_output):
        return nn.CosineSimilarity(dim=0)(model_output, self.features)


def test_embeddings():
    model = randomised(timm.create_model("resnet10t", num_classes=0))
    concept = model(torch.randn(1, 3, 64, 64))[0].detach()
    x = torch.randn(2, 3, 64, 64)
    with HiLRPCAM(model, target_layers=[model.layer4[-1]]) as cam:
        well_formed(cam(x, targets=[SimilarityToConceptTarget(concept)] * 2), x)
    wanted = F.cosine_similarity(model(x), concept[None])
    assert torch.allclose(cam.explanation.score, wanted, atol=1e-6)
    assert torch.allclose(cam.explanation.map, hilrp.explain(model, x, hilrp.targets.Cosine(concept)).map, atol=1e-5)


# What is wrong is said ------------------------------------------------------------------------------------------


def test_arguments_that_make_no_sense():
    model = network()
    cam = HiLRPCAM(model)
    with pytest.raises(hilrp.InputError, match=r"eigen_smooth=True.*passes=8"):
        cam(X, eigen_smooth=True)
    with pytest.raises(hilrp.InputError, match=r"use_cuda= is no argument of HiLRPCAM: .*model.cuda\(\)"):
        HiLRPCAM(model, use_cuda=True)
    with pytest.raises(hilrp.InputError, match=r"target_category= .*targets=\[ClassifierOutputTarget\(category\)\]"):
        cam(X, target_category=1)
    with pytest.raises(hilrp.TargetError, match="targets is a Tensor: give a list"):
        cam(X, torch.tensor([1, 1]))
    with pytest.raises(hilrp.InputError, match=r"layer= is no argument"):
        HiLRPCAM(model, layer=1)
    with pytest.raises(hilrp.InputError, match=r"target_layers=\[model.layer4\[-1\]\]"):
        HiLRPCAM(model, model[0])
    with pytest.raises(hilrp.InputError, match="target_layers is empty"):
        HiLRPCAM(model, [])
    with pytest.raises(hilrp.InputError, match="is no module of the model"):
        HiLRPCAM(model, [nn.ReLU()])
    for layers in (["layer4"], "layer4"):
        with pytest.raises(hilrp.InputError, match="target_layers='layer4' is a str"):
            HiLRPCAM(model, layers)
    with pytest.raises(hilrp.InputError, match="reshape_transform is for what layers have"):
        HiLRPCAM(model, reshape_transform=vit_reshape)
    with pytest.raises(hilrp.InputError, match=r"not a torch.nn.Module"):
        HiLRPCAM(lambda x: x)
    with pytest.raises(hilrp.InputError, match=r"\(3, 32, 32\): give pictures"):
        cam(X[0])
    with pytest.raises(hilrp.TargetError, match="1 entries for 2 pictures"):
        cam(X, [ClassifierOutputTarget(1)])
    with pytest.raises(hilrp.TargetError, match=r"ClassifierOutputTarget\(281\)"):
        cam(X, [281, 281])
    with pytest.raises(hilrp.TargetError, match="targets is a ClassifierOutputTarget: give a list"):
        cam(X, ClassifierOutputTarget(1))
    with pytest.raises(hilrp.TargetError, match=r"returned \(4,\) for a picture"):
        cam(X, [lambda output: output] * 2)
    with pytest.raises(hilrp.TargetError, match="out of range"):
        cam(X, [ClassifierOutputTarget(4)] * 2)
    with pytest.raises(hilrp.InputError, match=r"`6` has \(2, 4\), which is no map of places"):
        HiLRPCAM(model, [model[6]])(X)


def test_errors_within_the_context_are_not_swallowed():
    """pytorch-grad-cam prints an IndexError within its context, and goes on."""
    with pytest.raises(IndexError, match="mine"), HiLRPCAM(network()):
        raise IndexError("mine")


def test_the_picture_can_be_written(tmp_path):
    maps = HiLRPCAM(network())(X)
    drawn = show_cam_on_image(X[0].permute(1, 2, 0).sigmoid().numpy(), maps[0])
    assert cv2.imwrite(str(tmp_path / "cam.jpg"), drawn)


def test_tokens_that_come_before_samples_are_no_map():
    class Turned(nn.Module):
        def forward(self, x):
            return x.flatten(2).permute(2, 0, 1)

    class Back(nn.Module):
        def forward(self, x):
            return x.permute(1, 2, 0)

    model = nn.Sequential(nn.Conv2d(3, 4, 2, 2), Turned(), Back(), nn.Flatten(), nn.Linear(64, 2)).eval()
    cam = HiLRPCAM(model, target_layers=[model[1]])
    with pytest.raises(hilrp.InputError, match="no map of places"):
        cam(torch.randn(16, 3, 8, 8))
