"""Encoders without labels: view similarity, its maps, and how those of two models are compared."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from hilrp.cli import app
from hilrp.jobs.bench.data import find
from hilrp.jobs.bench.views import MethodMaps, agreement, agreements, encoder, entropy, model_inputs, rows_of, study
from hilrp.util.errors import InputError


@pytest.fixture(scope="module")
def pictures():
    return model_inputs(encoder("zoo/vit"), find("scenes", 4))


def test_the_classifier_is_taken_off(pictures):
    with torch.no_grad():
        assert pictures.loaded.model(pictures.x).shape == (4, 128)


def test_all_objects_of_a_scene_count(pictures):
    """Without a label none of them is meant more than the others."""
    things = [sample.scene.things for sample in find("scenes", 4)]
    expected = [sum(thing.mask.sum() for thing in each) for each in things]
    assert pictures.masks.sum((1, 2)).tolist() == pytest.approx(expected, rel=0.02)


def test_maps_find_objects(pictures):
    found = {f.method: f for f in study(pictures, "zoo/vit", ("hilrp", "secant", "saliency", "class-token", "uniform"))}
    for name in ("hilrp", "secant"):
        assert torch.tensor(found[name].figures["energy excess"]).mean() > 0.2, name
    assert torch.tensor(found["uniform"].figures["energy excess"]).abs().max() < 1e-6
    assert found["uniform"].figures["entropy"] == pytest.approx([1.0] * 4)
    assert all(f.maps.shape == (4, 128, 128) for f in found.values())


def test_a_method_without_a_meaning():
    swin = model_inputs(encoder("zoo/swin"), find("scenes", 2))
    (found,) = study(swin, "zoo/swin", ("class-token",))
    assert found.maps is None
    assert found.undefined == "it has no attention over tokens"
    assert rows_of([found], "pointing")[1][0].cells[0].why == found.undefined
    assert agreement(found, found) == []


def test_agreement():
    maps = torch.rand(3, 112, 112, generator=torch.Generator().manual_seed(1))
    one, same, other = (MethodMaps(f"m{i}", "hilrp", m, {}) for i, m in enumerate((maps, 2 * maps + 1, -maps)))
    assert agreement(one, same) == pytest.approx([1.0] * 3)
    assert agreement(one, other) == pytest.approx([-1.0] * 3)
    models, rows = agreements([one, same, other], "hilrp")
    assert models == ["m0", "m1", "m2"]
    assert [round(c.value.mean) if c.value else None for c in rows[0].cells] == [None, 1, -1]


def test_entropy_of_a_map_without_positive_relevance():
    assert entropy(-torch.ones(1, 4, 4)).tolist() == [0.0]


def test_command(tmp_path):
    out = tmp_path / "out"
    options = "views --model zoo/vit --model zoo/deit --images 2 --method hilrp --method centre-gaussian".split()
    result = CliRunner().invoke(app, [*options, "-o", str(out)])
    assert result.exit_code == 0, result.output
    text = (out / "report.md").read_text()
    assert "## Agreement of HiLRP" in text
    assert "| centre Gaussian |" in text
    values = json.loads((out / "report.json").read_text())
    assert {(v["model"], v["method"]) for v in values} == {
        (m, k) for m in ("zoo/vit", "zoo/deit") for k in ("hilrp", "centre-gaussian")
    }
    assert (out / "index.html").read_text().count("<img") == 2 * 2 * 3


def test_a_model_that_fails_does_not_keep_the_others(tmp_path):
    out = tmp_path / "out"
    models = ["--model", "zoo/vit@nowhere.safetensors", "--model", "zoo/vit"]
    result = CliRunner().invoke(app, ["views", *models, "--images", "1", "--method", "uniform", "-o", str(out)])
    assert result.exit_code == 1
    assert "nowhere.safetensors" in result.output
    assert {v["model"] for v in json.loads((out / "report.json").read_text())} == {"zoo/vit"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "zoo/vit", "--method", "magic"], "choose from hilrp"),
        (["--model", "zoo/vit", "--size", "64"], "only models of timm"),
        (["--model", "zoo/vit", "--data", "nowhere"], "no data that the benchmark knows"),
    ],
)
def test_bad_input(options, message, tmp_path):
    result = CliRunner().invoke(app, ["views", *options, "-o", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out" / "index.html").exists()


def test_another_size_of_images():
    timm = pytest.importorskip("timm")
    from hilrp.models.libraries.loaded import Loaded
    from hilrp.models.libraries.timm import preprocessing, resized

    model = timm.create_model("vit_tiny_patch16_224", num_classes=0).eval()
    loaded = resized(Loaded("timm/vit_tiny_patch16_224", model, preprocessing(model)), 96)
    x = loaded.batch([sample.open() for sample in find("scenes", 1)])
    assert x.shape == (1, 3, 96, 96)
    assert loaded.model(x).shape == (1, 192)
    cnn = timm.create_model("resnet18", num_classes=0).eval()
    with pytest.raises(InputError, match="takes any"):
        resized(Loaded("timm/resnet18", cnn, preprocessing(cnn)), 96)
