"""The commands around the zoo: models, scenes, the demonstration; and what all commands share."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from PIL import Image

import hilrp
import hilrp.zoo.architectures
from helpers.commands import invoke, words
from hilrp.scenes import Scenes


def test_models():
    assert "zoo/swin" in invoke("models").output
    named = json.loads(invoke("models", "maxvit_tiny", "--json").stdout)
    assert "timm/maxvit_tiny_tf_224.in1k" in named
    assert all("maxvit_tiny" in name for name in named)
    assert json.loads(invoke("models", "zoo/*vit", "--json").stdout)[0] == "zoo/vit"
    nothing = invoke("models", "nothing-like-it")
    assert nothing.exit_code == 1
    assert "nothing-like-it" in nothing.output
    for name in json.loads(invoke("models", "swin", "--json").stdout):
        assert not name.startswith("transformers/")
        assert "3d" not in name
    result = invoke("models", "--library", "keras")
    assert result.exit_code == 2
    assert "choose from zoo" in words(result)


def test_scenes(tmp_path):
    result = invoke("scenes", 2, "-o", tmp_path / "s", "--seed", 5)
    assert result.exit_code == 0, result.output
    found = np.array(Image.open(tmp_path / "s/images/0001.png"))
    assert np.array_equal(found, Scenes(seed=5)[1].image)
    assert "images/0000.png" in (tmp_path / "s/index.json").read_text()


@pytest.fixture
def one_scene(monkeypatch):
    """One scene is shown, not three: two questions to each model."""
    monkeypatch.setattr("hilrp.jobs.demo._SHOWN", 1)


@pytest.mark.usefixtures("one_scene")
def test_demo(tmp_path):
    result = invoke("demo", "-o", tmp_path / "demo", "--objects", 2, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert len(found["families"]) == 12
    assert max(row["residual"] for row in found["families"]) < 1e-4
    assert found["objects"] == 2
    page = (tmp_path / "demo" / "index.html").read_text()
    for row in found["families"]:
        assert f"<b>{row['family']}</b>" in page
    assert not re.search(r'(src|href)="(?!data:)[a-z]+:', page)


@pytest.mark.usefixtures("one_scene")
def test_the_demos_table(tmp_path, monkeypatch):
    monkeypatch.setattr("hilrp.jobs.demo.ARCHITECTURES", {"resnet": hilrp.zoo.architectures.ARCHITECTURES["resnet"]})
    result = invoke("demo", "-o", tmp_path / "demo", "--objects", 3)
    assert result.exit_code == 0, result.output
    assert "of 3" in result.output
    assert "ResNet" in result.output
    assert "Look at" in result.output


@pytest.mark.parametrize("command", ["explain", "models", "scenes", "demo", "audit", "coverage", "verify"])
def test_every_command_explains_itself(command):
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert command in invoke("--help").output
    assert hilrp.__version__ in invoke("--version").output
