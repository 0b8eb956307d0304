"""Stages: where maps of a model's inside are read, and how features become maps."""

from __future__ import annotations

import pytest
import torch
from PIL import Image
from torch import nn

import hilrp
from helpers.blocks import raises
from helpers.models import randomised, small_swin, small_vit, transformers_models
from hilrp.attribution.stages import find_stages, streams, to_features, to_map
from hilrp.scenes import Scenes

# Which modules --------------------------------------------------------------------------------------------------------


def layer(width: int = 8) -> nn.Module:
    return nn.Conv2d(width, width, 1)


class Named(nn.Module):
    """A model whose parts have names."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)


def blocks(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(layer(), nn.ReLU()) for _ in range(count)))


def classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(8, 8))


STRUCTURES = {
    "containers side by side": (
        Named(stem=layer(1), layer1=blocks(2), layer2=blocks(2), head=classifier()),
        ["stem", "layer1", "layer2"],
    ),
    "one container": (
        Named(stem=layer(), blocks=blocks(3), head=nn.Linear(8, 8)),
        ["stem", "blocks.0", "blocks.1", "blocks.2"],
    ),
    "one container inside of the largest part": (
        Named(encoder=Named(embed=layer(1), layers=blocks(2)), head=nn.Linear(1, 1)),
        ["encoder.layers.0", "encoder.layers.1"],
    ),
    "lists are never called": (
        Named(left=nn.ModuleList([layer(), layer()]), right=nn.ModuleList([layer()])),
        ["left.0", "left.1", "right.0"],
    ),
    "parts without parameters": (Named(blocks=nn.Sequential(layer(), nn.ReLU(), layer())), ["blocks.0", "blocks.2"]),
    "no container": (Named(a=layer(), b=nn.ReLU(), c=layer()), ["a", "c"]),
    "the tower of pictures": (
        Named(text=blocks(4), visual=Named(blocks=blocks(2))),
        ["visual.blocks.0", "visual.blocks.1"],
    ),
    "patches by a convolution": (
        Named(conv1=nn.Conv2d(3, 8, 4, stride=4), blocks=blocks(2)),
        ["conv1", "blocks.0", "blocks.1"],
    ),
    "a convolution that makes no patches": (
        Named(conv1=nn.Conv2d(3, 8, 4, stride=2), layer1=blocks(2), layer2=blocks(2)),
        ["layer1", "layer2"],
    ),
    "nothing": (nn.Identity(), []),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_of_models_that_say_nothing_of_themselves(name):
    model, expected = STRUCTURES[name]
    assert find_stages(model, "auto") == expected


def test_what_a_model_says_of_itself_comes_first():
    """Of names that the model has, each once."""
    model = Named(stem=layer(), blocks=blocks(2))
    model.feature_info = [{"module": "stem"}, {"module": "stem"}, {"module": "gone"}, {"module": "blocks.1"}, {}]
    assert find_stages(model, "auto") == ["stem", "blocks.1"]


def test_of_an_embedding_before_each_stage_the_one_of_the_picture_comes_first():
    model = Named(patch_embeds=nn.ModuleList([layer(3), layer()]), blocks=blocks(2))
    model.feature_info = [{"module": "blocks.0"}, {"module": "blocks.1"}]
    assert find_stages(model, "auto") == ["patch_embeds.0", "blocks.0", "blocks.1"]


def test_names_of_the_user():
    model = Named(stem=layer(), blocks=blocks(2))
    assert find_stages(model, None) == []
    assert find_stages(model, ["blocks.1", "stem"]) == ["blocks.1", "stem"]
    with raises(hilrp.InputError, "no module named 'steem'", "hilrp would choose"):
        find_stages(model, ["stem", "steem"])
    for wrong in ("automatic", 3):
        with raises(hilrp.InputError, f"stages={wrong!r}"):
            find_stages(model, wrong)


# Features as maps -----------------------------------------------------------------------------------------------------


def test_tokens_are_laid_out_row_by_row():
    """Two tokens before a grid of 2 x 3 for a picture of 32 x 48."""
    tokens = torch.arange(8.0)[None, :, None] + torch.tensor([0.0, 100.0])
    found = to_features(tokens, (32, 48))
    assert found.tolist() == [[[[2, 3, 4], [5, 6, 7]], [[102, 103, 104], [105, 106, 107]]]]
    assert to_map(tokens, (32, 48)).tolist() == [[[104, 106, 108], [110, 112, 114]]]


def test_where_channels_are():
    """By the proportions of the picture; where they don't tell, as is said."""
    features = torch.arange(48.0).reshape(1, 2, 4, 6)
    assert torch.equal(to_features(features, (64, 96)), features)
    last = features.permute(0, 2, 3, 1)
    assert torch.equal(to_features(last, (64, 96)), features)
    cube = torch.arange(64.0).reshape(1, 4, 4, 4)
    assert torch.equal(to_features(cube, (8, 8)), cube)
    assert torch.equal(to_features(cube, (8, 8), last=True), cube.permute(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("count", "image", "expected"),
    [
        (197, (224, 224), (14, 14)),
        (50, (224, 224), (7, 7)),
        (257, (224, 224), (16, 16)),
        (1374, (518, 518), (37, 37)),
        (169, (100, 100), (13, 13)),
        (12, (128, 128), None),
        (100, (800, 1066), None),
    ],
)
def test_tokens_that_are_places_and_those_that_are_none(count, image, expected):
    found = to_map(torch.zeros(1, count, 8), image)
    assert (None if found is None else tuple(found.shape[1:])) == expected


def test_streams():
    """Token sequences side by side are several; feature maps beside another, or what has no graph, are not."""
    tokens, other, features, flat = (
        torch.zeros(shape, requires_grad=True) for shape in ((1, 4, 8), (1, 9, 8), (1, 8, 2, 2), (1, 8))
    )
    for output, expected in (
        ([tokens, other, tokens], [tokens, other]),
        ({"a": features, "b": tokens}, [features]),
        ((flat, features), [features]),
        ([tokens.detach(), flat], []),
        (tokens, [tokens]),
    ):
        found = streams(output)
        assert [id(t) for t in found] == [id(t) for t in expected]


# Of explanations ------------------------------------------------------------------------------------------------------


class TestStages:
    def test_of_timm_models(self, swin, x):
        found = hilrp.explain(swin, x)
        assert list(found.stages) == ["patch_embed", "layers.0", "layers.1"]
        assert [m.shape for m in found.stages.values()] == [(3, 16, 16), (3, 16, 16), (3, 8, 8)]
        assert list(found.trace) == ["input", "patch_embed", "layers.0", "layers.1"]
        for name, stage in found.stages.items():
            torch.testing.assert_close(
                stage.double().sum((1, 2)) / found.ledger.explained, found.trace[name], rtol=1e-4, atol=1e-5
            )

    def test_class_tokens_are_not_part_of_the_map(self):
        found = hilrp.explain(small_vit(reg_tokens=4), torch.randn(2, 3, 32, 32))
        assert {m.shape for m in found.stages.values()} == {(2, 4, 4)}

    def test_named_by_the_user(self, swin, x):
        found = hilrp.explain(swin, x, stages=["patch_embed", "layers.0.blocks.1"])
        assert list(found.stages) == ["patch_embed", "layers.0.blocks.1"]
        assert hilrp.explain(swin, x, stages=None).stages == {}

    def test_of_torchvision_and_transformers(self):
        models = pytest.importorskip("torchvision.models")
        found = hilrp.explain(randomised(models.get_model("swin_t", weights=None)), torch.randn(1, 3, 64, 64))
        assert [tuple(m.shape[1:]) for m in found.stages.values()] == [(16, 16)] * 2 + [(8, 8)] * 2 + [(4, 4)] * 2 + [
            (2, 2)
        ] * 2
        resnet = hilrp.explain(randomised(models.resnet18(weights=None)), torch.randn(1, 3, 64, 64))
        assert [*resnet.stages] == ["layer1", "layer2", "layer3", "layer4"]
        efficientnet = hilrp.explain(randomised(models.efficientnet_b0(weights=None)), torch.randn(1, 3, 64, 64))
        assert len(efficientnet.stages) == 9
        model = randomised(transformers_models()["swin"])
        found = hilrp.explain(model, {"pixel_values": torch.randn(1, 3, 64, 64)})
        layers = ["swin.encoder.layers.0", "swin.encoder.layers.1"]
        assert list(found.stages) == ["swin.embeddings.patch_embeddings", *layers]
        model = randomised(transformers_models()["dinov2"])
        found = hilrp.explain(model, {"pixel_values": torch.randn(1, 3, 64, 64)})
        assert [m.shape for m in found.stages.values()] == [(1, 4, 4)] * 3

    def test_the_last_stage_holds_the_score_up_to_the_heads_constants(self):
        """Trace and ledger agree: what the last stage lacks is what the head's constants kept."""
        model = small_swin().double()
        found = hilrp.explain(model, torch.randn(2, 3, 64, 64).double(), rules="hilrp", itemised=True)
        after = [v for n, v in found.ledger.entries.items() if n.startswith(("norm:", "head"))]
        torch.testing.assert_close(found.trace["layers.1"] * found.ledger.score + sum(after), found.ledger.score)


def test_a_stage_whose_shape_does_not_tell_where_its_channels_are():
    """The first stage of the zoo's Swin is 32 x 32 with 32 channels: the others tell that channels come last."""
    loaded = hilrp.load("zoo/swin")
    scene = Scenes(seed=1)[3]
    found = hilrp.explain(loaded.model, loaded.batch([Image.fromarray(scene.image)]), scene.things[0].label)
    stage = found.stages["layers.0"][0]
    assert stage.shape == (32, 32)
    # What is summed over 4 x 4 pixels is nearly the map of the patches; summed over the wrong axis it is nothing like
    # it.
    pixels = found.map[0].unflatten(0, (32, 4)).unflatten(2, (32, 4)).sum((1, 3))
    alike = torch.corrcoef(torch.stack([stage.flatten(), pixels.flatten()]))[0, 1]
    assert float(alike) > 0.6
