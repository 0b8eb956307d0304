"""The command line, used as a person would."""

from __future__ import annotations

import json

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from typer.testing import CliRunner

from hilrp.cli import app


@pytest.fixture
def checkpoint(tmp_path):
    """Weights of a small model with seven classes of its own."""
    model = timm.create_model("test_convnext", num_classes=7)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.fixture
def picture(tmp_path):
    Image.fromarray((torch.rand(120, 90, 4) * 255).byte().numpy(), "RGBA").save(tmp_path / "cat.png")
    return tmp_path / "cat.png"


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args])


def test_explain(checkpoint, picture, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"not an image")
    out = tmp_path / "out"
    result = invoke("explain", picture, broken, "--model", "test_convnext", "--checkpoint", checkpoint, "-o", out)
    assert result.exit_code == 1, result.output
    assert "broken.jpg" in result.output.replace("\n", "")
    assert "1 of 2 written" in result.output
    assert sorted(p.name for p in out.iterdir()) == ["cat.json", "cat.npz", "cat.png"]
    facts = json.loads((out / "cat.json").read_text())
    assert 0 <= facts["target"][0] < 7
    assert facts["residual"][0] < 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "test_convnxt"], "no such model"),
        (["--model", "test_convnext", "--checkpoint", "missing.safetensors"], "not a readable safetensors"),
        (["--model", "test_resnet", "--checkpoint", "CHECKPOINT"], "does not fit"),
        (["--model", "test_convnext", "--checkpoint", "CHECKPOINT", "--rules", "magic"], "not a preset"),
    ],
)
def test_errors(checkpoint, picture, tmp_path, options, words):
    options = [str(checkpoint) if o == "CHECKPOINT" else o for o in options]
    result = invoke("explain", picture, *options, "-o", tmp_path / "out")
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())
    assert not list((tmp_path / "out").iterdir())


def test_bad_output(checkpoint, picture):
    result = invoke("explain", picture, "--model", "test_convnext", "--checkpoint", checkpoint, "-o", picture)
    assert result.exit_code == 2
    assert "error" in result.output


def test_images_of_the_same_name_do_not_overwrite_each_other(checkpoint, picture, tmp_path):
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / "cat.png"
    other.write_bytes(picture.read_bytes())
    result = invoke(
        "explain", picture, other, "--model", "test_convnext", "--checkpoint", checkpoint, "-o", tmp_path / "out"
    )
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in (tmp_path / "out").glob("*.png")) == ["cat-1.png", "cat-2.png"]


def test_demo(tmp_path):
    result = invoke("demo", "-o", tmp_path / "demo", "--steps", 3)
    assert result.exit_code == 0, result.output
    assert "passed" in result.output
    assert (tmp_path / "demo" / "demo.png").exists()
