"""`hilrp explain` with targets that are no classes: views, captions, regions, detections."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import hilrp
from hilrp.cli import app
from hilrp.jobs.target_text import ParsedTarget
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.scenes import Scenes
from hilrp.targets import Detection, Region

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
    path = tmp_path_factory.mktemp("pictures") / "scene.png"
    Image.fromarray(Scenes(seed=9)[2].image).save(path)
    return path


def saved(kind, folder):
    """A small random model in a folder, as transformers' own `save_pretrained` leaves it."""
    from hilrp.models.libraries.transformers import recipe

    torch.manual_seed(0)
    recipe(kind).model.save_pretrained(folder)
    processor = transformers.ViTImageProcessor(
        size={"height": 64, "width": 64}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    processor.save_pretrained(folder)
    if kind == "clip":
        words = ["<s>", "</s>", "a", "red", "striped", "star", "<unk>"]
        tokeniser = transformers.PreTrainedTokenizerFast(
            tokenizer_object=word_tokeniser(words), bos_token="<s>", eos_token="</s>", unk_token="<unk>"
        )
        tokeniser.save_pretrained(folder)
    return f"transformers/{folder}"


def word_tokeniser(words):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    made = Tokenizer(WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    return made


def run(*options):
    result = CliRunner().invoke(app, ["explain", *map(str, options)])
    return result, " ".join(result.output.split())


def facts(folder, name="scene"):
    return json.loads((folder / f"{name}.json").read_text())


def test_view(picture, tmp_path):
    result, said = run(picture, "--model", "zoo/vit", "--target", "view", "-o", tmp_path)
    assert result.exit_code == 0, said
    found = facts(tmp_path)
    assert found["names"] == ["cosine of the picture and its mirror image"]
    assert 0 < found["score"][0] <= 1
    assert found["residual"][0] < 1e-4
    assert "view" in (tmp_path / "index.html").read_text()
    again, said = run(picture, "--model", "zoo/vit", "--target", "view", "-o", tmp_path)
    assert again.exit_code == 0
    assert "by an earlier run" in said


def test_caption(picture, tmp_path):
    name = saved("clip", tmp_path / "clip")
    result, said = run(picture, "--model", name, "--target", "text:a striped red star", "-o", tmp_path / "out")
    assert result.exit_code == 0, said
    found = facts(tmp_path / "out")
    loaded = hilrp.load(name)
    with torch.no_grad():
        ids = torch.tensor([[0, 2, 4, 3, 5, 1]])
        assert torch.equal(loaded.texts.ids("a striped red star")[None], ids)
        text = loaded.texts.model.get_text_features(ids)
        text = getattr(text, "pooler_output", text)
        image = loaded.model(loaded.batch([picture]))
    assert found["score"][0] == pytest.approx(float(torch.cosine_similarity(image, text)), abs=1e-5)
    assert loaded.texts.pieces("a star") == ["<s>", "a", "star", "</s>"]
    for caption, message in (("", "the caption is empty"), ("a red star " * 10, "tokens, the text tower takes 16")):
        result, said = run(picture, "--model", name, "--target", f"text:{caption}", "-o", tmp_path / "bad")
        assert result.exit_code == 2
        assert message in said
        assert not (tmp_path / "bad").exists()


@pytest.mark.parametrize("kind", ["segformer", "upernet"])
def test_region(kind, picture, tmp_path):
    name = saved(kind, tmp_path / "model")
    mask = np.zeros((128, 128), np.uint8)
    mask[32:64, 16:96] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    result, said = run(
        picture, "--model", name, "--target", f"region:{tmp_path / 'mask.png'}:1", "-o", tmp_path / "out"
    )
    assert result.exit_code == 0, said
    first = facts(tmp_path / "out")
    assert first["residual"][0] < 1e-4
    # The same place as a box, in pixels of what the model sees.
    result, said = run(picture, "--model", name, "--target", "region:8,16,48,32:1", "-o", tmp_path / "box")
    assert result.exit_code == 0, said
    assert facts(tmp_path / "box")["score"][0] == pytest.approx(first["score"][0], abs=1e-5)


def test_region_of_torchvisions(picture, tmp_path):
    """A class by the name that the published weights have for it, in a model that keeps its logits in a dictionary."""
    from safetensors.torch import save_file
    from torchvision.models import get_model

    model = get_model("lraspp_mobilenet_v3_large", weights=None, weights_backbone=None)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    options = ("--model", "torchvision/lraspp_mobilenet_v3_large", "--checkpoint", tmp_path / "w.safetensors")
    result, said = run(picture, *options, "--target", "region:16,32,96,64:cat", "-o", tmp_path / "out")
    assert result.exit_code == 0, said
    loaded = hilrp.load("torchvision/lraspp_mobilenet_v3_large", tmp_path / "w.safetensors")
    with torch.no_grad():
        logits = loaded.model(loaded.batch([picture]))["out"][0, loaded.classes.index("cat"), 32:64, 16:96]
    assert facts(tmp_path / "out")["score"][0] == pytest.approx(float(logits.mean()), rel=1e-3)
    assert facts(tmp_path / "out")["residual"][0] < 1e-4


@pytest.mark.parametrize("kind", ["detr", "deformable_detr", "mask2former"])
def test_detection(kind, picture, tmp_path):
    name = saved(kind, tmp_path / "model")
    with torch.no_grad():
        loaded = hilrp.load(name)
        output = loaded.model(loaded.batch([picture]))
    logits = output.class_queries_logits if kind == "mask2former" else output.logits
    result, said = run(picture, "--model", name, "--target", "detection:3", "-o", tmp_path / "out")
    assert result.exit_code == 0, said
    assert facts(tmp_path / "out")["score"][0] == pytest.approx(float(logits[0, 3].max()), abs=1e-4)
    assert facts(tmp_path / "out")["residual"][0] < 1e-4
    result, said = run(picture, "--model", name, "--target", "detection:99", "-o", tmp_path / "out")
    assert result.exit_code == 1
    assert "query 99 is out of range" in said


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("text:a star", "has no text tower"),
        ("region:nothing.png:1", "neither a mask's file nor left,top,right,bottom"),
        ("detection:first:left", "is no number of a query"),
        ("detection:first", "knows no such class"),
        ("detection:", "which? Write detection:3"),
        ("detection:1:unicorn", "knows no such class"),
    ],
)
def test_bad_targets(target, message, picture, tmp_path):
    result, said = run(picture, "--model", "zoo/vit", "--target", target, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert message in said
    assert not (tmp_path / "out").exists()


def test_only_classes_are_contrasted(picture, tmp_path):
    result, said = run(picture, "--model", "zoo/vit", "--target", "view", "--against", "0", "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert "only a class can be contrasted" in said


def test_words_of_the_command_line(tmp_path):
    loaded = Loaded(
        "mine",
        torch.nn.Identity(),
        Preprocess(lambda image: torch.zeros(3, 8, 8), (0.0,) * 3, (1.0,) * 3),
        ["cat", "dog"],
    )
    for text, expected in (
        ("detection:4:dog", Detection(4, 1)),
        ("detection:4:left", Detection(4, side="left")),
        ("detection:dog", Detection(None, 1)),
    ):
        assert vars(ParsedTarget.parse(text, loaded).target) == vars(expected)
    region = ParsedTarget.parse("region:1,2,5,6:cat", loaded).target
    assert isinstance(region, Region)
    assert (region.label, region.box) == (0, (1, 2, 5, 6))
    assert ParsedTarget.parse("region:1,2,5,6", loaded).target.label is None
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "black.png")
    with pytest.raises(hilrp.InputError, match="black everywhere"):
        ParsedTarget.parse(f"region:{tmp_path / 'black.png'}:cat", loaded)
