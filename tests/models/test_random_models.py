"""Models by name: found, built, scaled, and refused with a reason."""

from __future__ import annotations

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import hilrp
from helpers.blocks import raises
from hilrp.models.random_models import build, calibrate, randomise_constants


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("test_vit", "timm/test_vit"),
        ("timm/test_vit", "timm/test_vit"),
        ("swin_t", "torchvision/swin_t"),
        ("clip", "transformers/clip"),
    ],
)
def test_a_name_is_found_in_its_library(name, full):
    pytest.importorskip(full.split("/")[0])
    assert build(name).name == full


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("swim_tiny", ["no model of that name", "swin"]),
        ("timm/vgg111", ["timm", "vgg11"]),
        ("torchvision/quantized_resnet18", ["quantised", "gradient"]),
        ("nowhere:make", ["nowhere", "importable"]),
        ("math:pi_", ["pi_", "function"]),
        ("transformers/vit@", ["no model"]),
        ("timm/owner/resnet18", ["no model of that name in timm"]),
        ("tim/resnet18", ["tim is none of the libraries", "timm"]),
    ],
)
def test_a_bad_name_gets_a_reason(name, words):
    if name.startswith("transformers/"):
        pytest.importorskip("transformers")
    with raises(hilrp.InputError, *words):
        build(name)


def test_a_size_that_does_not_fit():
    with raises(hilrp.InputError, "halonet26t", "100, 100", "size"):
        build("timm/halonet26t", size=100)


def test_a_factory(tmp_path, monkeypatch):
    (tmp_path / "own_models.py").write_text(
        "import torch\n"
        "def plain(): return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, 2))\n"
        "def full(): return torch.nn.Conv2d(3, 4, 3), torch.rand(2, 3, 8, 8), lambda out: out[:, 1].mean((1, 2))\n"
        "def wrong(): return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    built = build("own_models:plain")
    assert hilrp.audit(built.model, built.inputs, built.target).passed
    built = build("own_models:full")
    assert built.inputs.shape == (2, 3, 8, 8)
    assert hilrp.audit(built.model, built.inputs, built.target).passed
    with raises(hilrp.InputError, "int", "torch.nn.Module"):
        build("own_models:wrong")


def test_what_can_be_explained_can_be_audited(tmp_path, monkeypatch):
    """Functions that return a model with its preprocessing, and checkpoints."""
    (tmp_path / "explained_models.py").write_text(
        "import hilrp, torch\n"
        "net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()\n"
        "def turn(image): return torch.tensor([0.01 * c for c in image.resize((4, 1)).convert('L').getdata()] * 3)\n"
        "def pair(): return net, turn\n"
        "def loaded(): return hilrp.load('zoo/resnet')\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, shape in (("pair", (2, 12)), ("loaded", (2, 3, 128, 128))):
        built = build(f"explained_models:{name}", batch=2)
        assert built.inputs.shape == shape
        assert not torch.equal(built.inputs[0], built.inputs[1])
        assert hilrp.audit(built.model, built.inputs, built.target).passed


def test_weights_of_a_file(tmp_path):
    model = timm.create_model("test_vit", num_classes=7)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    built = build("test_vit", checkpoint=tmp_path / "w.safetensors", batch=2)
    assert built.pretrained
    assert torch.equal(built.model.head.weight, model.head.weight)
    assert built.inputs.shape == (2, 3, 160, 160)
    assert hilrp.audit(built.model, built.inputs, built.target).passed
    assert build("test_vit", checkpoint=tmp_path / "w.safetensors", size=64).inputs.shape == (1, 3, 64, 64)
    save_file(hilrp.load("zoo/resnet").model.state_dict(), tmp_path / "zoo.safetensors")
    with raises(hilrp.InputError, "--size 64", "zoo/resnet"):
        build("zoo/resnet", checkpoint=tmp_path / "zoo.safetensors", size=64)


def test_a_factorys_weights_stay_as_they_are(tmp_path, monkeypatch):
    (tmp_path / "fixed_model.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Conv2d(3, 1, 1)\n"
        "    torch.nn.init.ones_(model.weight)\n"
        "    return model, torch.ones(1, 3, 4, 4)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert bool((build("fixed_model:make").model.weight == 1).all())


def test_constants_get_values_and_weights_keep_theirs():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    nn.init.zeros_(model[0].bias)
    weight = model[0].weight.detach().clone()
    randomise_constants(model)
    assert torch.equal(model[0].weight, weight)
    for parameter in (model[0].bias, model[1].weight, model[1].bias):
        assert len(parameter.detach().unique()) == 4


def test_a_built_model_has_no_constant_parameters():
    """Heads, branches, biases and scales that start at zero or one: every path carries relevance."""
    model = build("timm/hiera_tiny_224").model
    for name, parameter in model.named_parameters():
        if parameter.numel() > 4:
            assert float(parameter.detach().std()) > 0.01, name


def test_building_leaves_the_callers_random_numbers_alone():
    torch.manual_seed(3)
    expected = torch.randn(4)
    torch.manual_seed(3)
    build("timm/test_vit")
    assert torch.equal(torch.randn(4), expected)


def test_calibration_keeps_signals_alive():
    """A deep stack whose signal fades by 1e-2 per layer has outputs of sane size afterwards, and no hooks left."""
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4, eps=1e-3))]
    model = nn.Sequential(*layers).eval()
    for layer in layers[::2]:
        nn.init.normal_(layer.weight, 0, 1e-3)
    x = torch.randn(4, 4, 8, 8)
    assert float(model(x).detach().std()) < 1e-10
    calibrate(model, x)
    assert 0.3 < float(model(x).detach().std()) < 3
    assert all(layer.momentum == 0.1 and not layer.training for layer in layers[1::2])
    assert not any(layer._forward_hooks for layer in layers)


def test_the_same_seed_gives_the_same_model():
    one, two, other = (build("timm/test_vit", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.inputs, two.inputs)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True))
    assert not torch.equal(one.inputs, other.inputs)
