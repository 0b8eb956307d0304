"""Conditional maps are those of zennit (and of zennit-crp, where it is installed), where the rules are the same.

Both are comparators only. The rules that agree are those of epsilon without its stabiliser, on ReLU networks.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from hilrp.concepts import Concepts
from hilrp.models.random_models import randomise_constants

zennit = pytest.importorskip("zennit")
torchvision = pytest.importorskip("torchvision")
from zennit.composites import LayerMapComposite  # noqa: E402
from zennit.layer import Sum  # noqa: E402
from zennit.rules import Epsilon, Norm, Pass  # noqa: E402
from zennit.torchvision import ResNetCanonizer  # noqa: E402
from zennit.types import Activation, AvgPool, BatchNorm, Convolution  # noqa: E402
from zennit.types import Linear as AnyLinear  # noqa: E402

TARGET = 3


def resnet() -> nn.Module:
    """Without the epsilon of batch norms: zennit, which merges them into convolutions, applies it once more."""
    torch.manual_seed(0)
    model = randomise_constants(torchvision.models.resnet18(num_classes=5)).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 0.0
    return model


def vgg() -> nn.Module:
    """Convolutions, pooling and linear layers one after the other, as VGG has them."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 12, 3, padding=1)]
    head = [nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12 * 64, 16), nn.ReLU(), nn.Linear(16, 5)]
    return randomise_constants(nn.Sequential(*convolutions, *head)).double().eval()


MODELS = {"resnet": (resnet, "layer3", 64, [ResNetCanonizer]), "vgg": (vgg, "4", 32, [])}
CHANNELS = [1, 5, 7]


def composite(canonizers):
    sums = [(each, Norm(stabilizer=1e-12)) for each in (Sum, AvgPool)]
    weighted = [(each, Epsilon(1e-12)) for each in (Convolution, AnyLinear)]
    rules = [(Activation, Pass()), *sums, (BatchNorm, Pass()), *weighted]
    return LayerMapComposite(rules, canonizers=[each() for each in canonizers])


@pytest.mark.parametrize("name", MODELS)
def test_maps_are_those_of_zennit(name):
    make, at, side, canonizers = MODELS[name]
    model, x = make(), torch.randn(1, 3, side, side).double()
    made = Concepts(model, at, rules="epsilon", axis=1).maps(x, TARGET, CHANNELS)
    for i, channel in enumerate(CHANNELS):
        leaf = x.clone().requires_grad_()
        with composite(canonizers).context(make()) as changed:
            mask = torch.zeros(1, made.relevance.shape[1], 1, 1).double()
            mask[:, channel] = 1
            handle = dict(changed.named_modules())[at].register_forward_hook(
                lambda _, __, output, mask=mask: output.register_hook(lambda r: r * mask) and None
            )
            output = changed(leaf)
            start = torch.zeros_like(output)
            start[:, TARGET] = output[:, TARGET].detach()
            (relevance,) = torch.autograd.grad(output, leaf, start)
            handle.remove()
        own = made.maps[:, i]
        assert float(own.abs().sum()) > 1e-6
        assert float((relevance.sum(1) - own).abs().sum() / own.abs().sum()) < 1e-8


@pytest.mark.skipif(find_spec("crp") is None, reason="zennit-crp is not installed")
@pytest.mark.parametrize("name", MODELS)
def test_maps_are_those_of_zennit_crp(name):
    from crp.attribution import CondAttribution

    make, at, side, canonizers = MODELS[name]
    model, x = make(), torch.randn(1, 3, side, side).double()
    made = Concepts(model, at, rules="epsilon", axis=1).maps(x, TARGET, CHANNELS)
    found = CondAttribution(make())(
        x.clone().requires_grad_(), [{"y": [TARGET], at: [k]} for k in CHANNELS], composite(canonizers)
    )
    own = made.maps[0]
    assert float((found.heatmap - own).abs().sum() / own.abs().sum()) < 1e-8
