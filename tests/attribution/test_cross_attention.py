"""Streams that read each other: the branches of CrossViT, and models that take pictures and words at once."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import hilrp
from helpers.models import randomised
from hilrp.attribution.stages import find_stages
from hilrp.attribution.texts import ImageText, ImageTower, Joint, similarity
from hilrp.targets import Detection

X = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
IDS = torch.tensor([[5, 9, 70, 3, 98, 2], [8, 4, 60, 61, 62, 98]])


# CrossViT
# ------------------------------------------------------------------------------------------------------------------


def crossvit():
    """Two branches, of 4 x 4 and of 2 x 2 patches, that read each other twice."""
    torch.manual_seed(1)
    return randomised(
        timm.models.crossvit.CrossVit(
            img_size=32,
            img_scale=(1.0, 1.0),
            patch_size=(8, 16),
            embed_dim=(24, 48),
            depth=((1, 2, 0), (1, 1, 0)),
            num_heads=(2, 4),
            mlp_ratio=(2, 2, 1),
            num_classes=5,
        )
    ).double()


@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
def test_both_branches_of_crossvit(rules):
    """Books close, and each branch has maps.

    What both hold at the patches, with the class tokens, is what reaches the pixels.
    """
    model = crossvit()
    with torch.no_grad():
        expected = model(X)[:, 3]
    stages = ["patch_embed.0", "patch_embed.1", "blocks.0", "blocks.1"]
    found = hilrp.explain(model, X, 3, rules, itemised=True, stages=stages)
    assert torch.equal(found.score, expected)
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
    grids = {name: tuple(stage.shape[1:]) for name, stage in found.stages.items()}
    assert grids == {
        "patch_embed.0": (4, 4),
        "patch_embed.1": (2, 2),
        "blocks.0": (4, 4),
        "blocks.0[1]": (2, 2),
        "blocks.1": (4, 4),
        "blocks.1[1]": (2, 2),
    }
    assert list(found.trace) == ["input", *grids]
    assert all(float(stage.abs().max()) > 0 for name, stage in found.stages.items() if not name.startswith("blocks.1"))
    # The embedding of patches loses to its biases alone, and to nothing relative to a reference: both branches hold the
    # pixels' part and that.
    booked = [value for name, value in found.ledger.entries.items() if "patch_embed" in name]
    assert len(booked) == (0 if rules == "secant" else 2)
    together = (found.trace["patch_embed.0"] + found.trace["patch_embed.1"]) * found.ledger.explained
    torch.testing.assert_close(together, sum(booked, found.ledger.pixels), rtol=1e-9, atol=1e-12)


def test_a_branch_holds_what_is_read_from_it():
    """Only the head of the first branch speaks.

    The second has what the first reads from it, and nothing where that is nothing.
    """
    model = crossvit()
    for constant in model.head[1].parameters():
        nn.init.zeros_(constant)
    read = hilrp.explain(model, X, 3, stages=["blocks.0"])
    assert float(read.stages["blocks.0[1]"].abs().sum()) > 1e-5
    for constant in model.blocks[1].fusion[0].attn.wv.parameters():
        nn.init.zeros_(constant)
    alone = hilrp.explain(model, X, 3, stages=["blocks.0"])
    assert float(alone.stages["blocks.0[1]"].abs().sum()) == 0
    assert float(alone.stages["blocks.0"].abs().sum()) > 1e-5


def test_the_zoos_crossvit():
    model = hilrp.load("zoo/crossvit").model
    found = hilrp.explain(model, torch.randn(1, 3, 128, 128))
    assert find_stages(model, "auto") == ["patch_embed.0", "patch_embed.1", "blocks.0", "blocks.1"]
    assert found.stages["blocks.0"].shape == (1, 16, 16)
    assert found.stages["blocks.0[1]"].shape == (1, 8, 8)
    assert float(found.ledger.residual) < 1e-4


# Pictures and words
# ----------------------------------------------------------------------------------------------------------


def joint_model(kind):
    """A small random model of transformers, with weights large enough for both to matter."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(2)
    size = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    words = size | {
        "vocab_size": 99,
        "max_position_embeddings": 20,
        "bos_token_id": 97,
        "eos_token_id": 98,
        "pad_token_id": 1,
    }
    picture = size | {"image_size": 32, "patch_size": 8}
    if kind == "blip":
        config = transformers.BlipConfig(
            text_config=words | {"encoder_hidden_size": 64, "sep_token_id": 98},
            vision_config=picture,
            image_text_hidden_size=24,
        )
        model = transformers.BlipForImageTextRetrieval(config)
    else:
        config = transformers.BridgeTowerConfig(
            **size, text_config=words | {"num_hidden_layers": 3}, vision_config=picture | {"num_hidden_layers": 3}
        )
        model = transformers.BridgeTowerForImageAndTextRetrieval(config)
    for module in model.modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.kaiming_normal_(module.weight, 1)
    return randomised(model).double().eval()


SCORES = {"blip": "itm_score", "bridgetower": "logits"}


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
@pytest.mark.parametrize("kind", SCORES)
def test_pixels_and_words_together(kind, rules):
    """The model's own value bit for bit; pixels, words and constants sum to it, and both have a part in it."""
    model = joint_model(kind)
    joint = Joint(model, {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}).eval()
    inputs = joint.inputs(X)
    reference = tuple(map(torch.zeros_like, inputs)) if rules == "secant" else None
    with torch.no_grad():
        own = model(pixel_values=X, input_ids=IDS, attention_mask=torch.ones_like(IDS))[SCORES[kind]][:, 1]
    found = hilrp.explain(joint, inputs, 1, rules, reference, itemised=True, stages=None)
    assert torch.equal(found.score, own)
    assert torch.equal(joint(X)[SCORES[kind]][:, 1], own)
    assert [tuple(r.shape) for r in found.relevance] == [(2, 3, 32, 32), (2, 6)]
    assert all(bool((r.flatten(1).abs().sum(1) > 1e-6).all()) for r in found.relevance)
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
    if rules == "secant":
        parts = sum(r.flatten(1).sum(1) for r in found.relevance)
        with torch.no_grad():
            nothing = joint(*reference)[SCORES[kind]][:, 1]
        torch.testing.assert_close(parts, own - nothing, rtol=1e-8, atol=1e-10)


def test_one_text_for_several_pictures():
    """As if each had its own; and with the words held fixed, the pixels alone."""
    model = joint_model("blip")
    one, each = Joint(model, IDS[0]).eval(), Joint(model, IDS[:1].expand(2, -1)).eval()
    a, b = (hilrp.explain(j, j.inputs(X), 1, stages=None, rules="hilrp") for j in (one, each))
    torch.testing.assert_close(a.relevance, b.relevance)
    fixed = hilrp.explain(one, X, 1, stages=None, rules="hilrp")
    assert torch.equal(fixed.score, a.score)
    torch.testing.assert_close(fixed.relevance, a.relevance[0])


def test_a_word_that_is_not_looked_at_has_no_relevance():
    """What the mask leaves out."""
    mask = torch.ones_like(IDS)
    mask[:, 4:] = 0
    joint = Joint(joint_model("blip"), {"input_ids": IDS, "attention_mask": mask, "pixel_values": X}).eval()
    found = hilrp.explain(joint, joint.inputs(X), 1, stages=None, rules="hilrp")
    assert float(found.relevance[1][:, 4:].abs().max()) == 0
    assert float(found.relevance[1][:, :4].abs().min()) > 0


def test_words_of_another_number():
    joint = Joint(joint_model("blip"), IDS).eval()
    with pytest.raises(hilrp.InputError, match=r"words has the shape \(2, 3\).*Joint.inputs"):
        hilrp.explain(joint, (X, torch.ones(2, 3).double()), 1)


# Books of several inputs
# ----------------------------------------------------------------------------------------------------


def test_books_tell_words_from_pixels():
    loaded = hilrp.load("zoo/towers")
    pair = loaded.texts.pair("a striped red star")
    x = torch.randn(2, 3, 128, 128, generator=torch.Generator().manual_seed(5))
    found = hilrp.explain(pair, pair.inputs(x), similarity, "hilrp")
    assert list(found.ledger.inputs) == ["pixels", "words"]
    for name, relevance in zip(("pixels", "words"), found.relevance, strict=True):
        torch.testing.assert_close(
            found.ledger.inputs[name], relevance.double().flatten(1).sum(1), rtol=1e-5, atol=1e-7
        )
        assert name in found.ledger.table()
    torch.testing.assert_close(found.ledger.pixels, sum(found.ledger.inputs.values()))
    assert "share of pixels and words" in repr(found)
    assert found.facts()["inputs"].keys() == {"pixels", "words"}
    assert not any("reference" in note for note in found.notes)
    relative = hilrp.explain(pair, pair.inputs(x), similarity, "secant")
    assert relative.notes["words: the same in the reference, and without relevance"] == 1
    alone = hilrp.explain(hilrp.load("zoo/vit").model, x)
    assert list(alone.ledger.arrived) == ["pixels"]
    assert "share of pixels " in repr(alone)


def test_counts_of_captions_and_pictures():
    loaded = hilrp.load("zoo/towers")
    x = torch.randn(2, 3, 128, 128)
    three = ImageText(loaded.texts.model, loaded.texts.ids("a red star").expand(3, -1)).eval()
    for ask in (lambda: three.inputs(x), lambda: three(x), lambda: three(x[:1])):
        with pytest.raises(hilrp.InputError, match=r"3 captions for [12] pictures"):
            ask()
    one = loaded.texts.pair("a red star")
    with pytest.raises(hilrp.InputError, match="one row of words for 2 pictures"):
        one(x, one.words)
    with pytest.raises(hilrp.InputError, match="a caption is one text"):
        loaded.texts.ids(["a red star"])


# Stages that are no maps
# -----------------------------------------------------------------------------------------------------


def test_queries_and_words_are_no_places():
    """Twelve queries are no 3 x 3 places of the picture, and four words no 2 x 2."""
    x = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(5))
    finder = hilrp.explain(hilrp.load("zoo/detector").model, x, Detection(3), stages=["layers.0", "levels.0"])
    assert list(finder.stages) == ["levels.0"]
    assert "layers.0" in finder.trace
    joint = Joint(joint_model("blip"), IDS[:, :4]).eval()
    read = hilrp.explain(joint, joint.inputs(X), 1)
    assert {tuple(stage.shape[1:]) for stage in read.stages.values()} == {(4, 4)}
    assert all("vision_model" in name for name in read.trace if name != "input")
    towers = hilrp.load("zoo/towers")
    for model in (towers.model, ImageTower(towers.texts.model)):
        seen = hilrp.explain(model.eval(), x, lambda output: output[:, 0])
        assert len(seen.stages) >= 5
        assert all("visual.blocks" in name or name.endswith("visual.patch_embed") for name in seen.stages)


@pytest.mark.parametrize("name", ["selecsls42b", "efficientvim_m1"])
def test_what_a_stage_hands_on_beside_its_features_is_no_stream(name):
    found = hilrp.explain(timm.create_model(name).eval(), torch.randn(1, 3, 96, 96), audit="warn")
    assert not any("[" in stage for stage in found.trace)
