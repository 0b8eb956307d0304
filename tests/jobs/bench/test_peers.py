"""Expected Gradients, LibraGrad and DAVE against captum, torchvision, and formulas written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from captum import attr
from scipy import ndimage
from torch import nn
from torch.nn import functional as F
from torchvision.transforms.v2.functional import InterpolationMode, affine

import hilrp
from hilrp.jobs.bench.methods import Undefined, find
from hilrp.jobs.bench.methods import dave as dave_module
from hilrp.jobs.bench.methods.dave import Changed, draws


@pytest.fixture(scope="module")
def vit():
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=5
    )
    for parameter in model.parameters():  # biases that aren't zero
        nn.init.normal_(parameter, std=0.2)
    return model.double().eval()


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(2, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


TARGET = torch.tensor([1, 4])


class LibraViT:
    """A timm ViT with LibraGrad's operations (section 3.5 of its paper), from the model's own weights.

    Attributes:
        inputs: What goes into each block.
        biases: Every bias at every token, as leaves.
    """

    def __init__(self, model):
        self.model, self.inputs, self.biases = model, [], []

    def linear(self, t, layer):
        return t @ layer.weight.T + self.bias(layer, t.shape[:-1])

    def bias(self, layer, shape):
        leaf = layer.bias.detach().expand(*shape, -1).clone().requires_grad_()
        self.biases.append(leaf)
        return leaf

    def norm(self, t, layer):
        centred = t - t.mean(-1, keepdim=True)
        size = (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt().detach()
        return centred / size * layer.weight + self.bias(layer, t.shape[:-1])

    def attention(self, t, layer):
        q, k, v = self.linear(t, layer.qkv).reshape(len(t), -1, 3, layer.num_heads, layer.head_dim).unbind(2)
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        weights = (q @ k.mT / layer.head_dim**0.5).softmax(-1).detach()
        return self.linear((weights @ v).transpose(1, 2).flatten(2), layer.proj)

    def mlp(self, t, layer):
        hidden = self.linear(t, layer.fc1)
        gate = (0.5 * (1 + torch.erf(hidden / 2**0.5))).detach()
        return self.linear(hidden * gate, layer.fc2)

    def __call__(self, x):
        tokens = self.model._pos_embed(self.model.patch_embed(x))
        for block in self.model.blocks:
            tokens.retain_grad()
            self.inputs.append(tokens)
            tokens = tokens + self.attention(self.norm(tokens, block.norm1), block.attn)
            tokens = tokens + self.mlp(self.norm(tokens, block.norm2), block.mlp)
        return self.linear(self.norm(tokens, self.model.norm)[:, 0], self.model.head)


def test_expected_gradients_are_captums(inputs, vit, monkeypatch):
    """captum draws references from a distribution as well: it gets ours, and our places on the way."""
    background, samples = inputs.flip(3).repeat(2, 1, 1, 1)[:3] + 0.5, 7
    method = find(f"expected-gradients:samples={samples}").with_background(background)
    found = method(vit, inputs, TARGET)
    parts = torch.rand(samples, 1, 1, 1, generator=torch.Generator().manual_seed(0)).flatten().double().numpy()
    monkeypatch.setattr(np.random, "uniform", lambda low, high, count: parts)
    monkeypatch.setattr(np.random, "choice", lambda total, count: np.arange(count) % total)
    for i in range(2):
        theirs = attr.GradientShap(vit).attribute(
            inputs[i : i + 1], background, n_samples=samples, stdevs=0.0, target=TARGET[i : i + 1]
        )
        torch.testing.assert_close(found[i], theirs[0].sum(0))


def test_expected_gradients_by_hand(inputs, vit):
    """The mean over references and places on the way, one by one."""
    background = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    found = find("expected-gradients:samples=6").with_background(background)(vit, inputs, TARGET)
    parts = torch.rand(6, 1, 1, 1, generator=torch.Generator().manual_seed(0)).flatten().tolist()
    for i in range(2):
        total = torch.zeros(3, 32, 32, dtype=torch.float64)
        for k, part in enumerate(parts):
            reference = background[k % 4]
            place = (reference + part * (inputs[i] - reference)).requires_grad_()
            (gradient,) = torch.autograd.grad(vit(place[None])[0, TARGET[i]], place)
            total += (inputs[i] - reference) * gradient / 6
        torch.testing.assert_close(found[i], total.sum(0), rtol=1e-5, atol=1e-7)


def test_expected_gradients_need_a_background(inputs, vit):
    method = find("expected-gradients:samples=2")
    with pytest.raises(Undefined, match="background"):
        method(vit, inputs, TARGET)
    bound = method.with_background(inputs)
    assert bound == method  # what it is called and does; the pictures are the run's
    assert find("saliency").with_background(inputs) is find("saliency")


def test_libragrad_by_hand(inputs, vit):
    """FullGrad+ of a ViT whose attention, norms and gates are constants in the backward pass."""
    libra = LibraViT(vit)
    logits = libra(inputs.clone().requires_grad_())
    torch.testing.assert_close(logits, vit(inputs))
    score = logits.gather(1, TARGET[:, None])[:, 0]
    score.sum().backward()
    first = (libra.inputs[0] * libra.inputs[0].grad).flatten(1).sum(1)
    biases = sum((b * b.grad).flatten(1).sum(1) for b in libra.biases)
    torch.testing.assert_close(first + biases, score)  # FG-complete
    tokens = sum((t * t.grad).sum(-1) for t in libra.inputs)
    tokens = tokens + sum((b * b.grad).sum(-1) for b in libra.biases if b.ndim == 3)
    patches = tokens[:, 1:].reshape(2, 1, 4, 4).detach() * 16 / 32**2
    expected = F.interpolate(patches, size=(32, 32), mode="bilinear", align_corners=False)[:, 0]
    torch.testing.assert_close(find("libragrad")(vit, inputs, TARGET), expected)


def test_libragrad_of_a_convolutional_net_is_fullgrad():
    """Nets of convolutions and ReLU need no correction; without blocks in a row the picture is the only layer's input.

    A norm in evaluation adds beta - mu gamma / sigma.
    """
    torch.manual_seed(2)
    layers = (nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 64, 4))
    model = nn.Sequential(*layers).double().eval()
    norm = model[1]
    for t in (norm.running_mean, norm.weight.data, norm.bias.data):
        t.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    places = (2, 6, 8, 8)
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    first = model[0].bias.detach()[:, None, None].expand(places).clone().requires_grad_()
    second = (norm.bias - norm.running_mean * scale).detach()[:, None, None].expand(places).clone().requires_grad_()
    hidden = F.relu(scale[:, None, None] * (F.conv2d(x, model[0].weight, padding=1) + first) + second)
    logits = hidden.flatten(1) @ model[4].weight.T + model[4].bias
    torch.testing.assert_close(logits, model(x))
    target = torch.tensor([0, 3])
    logits.gather(1, target[:, None]).sum().backward()
    expected = sum((t * t.grad).sum(1) for t in (x, first, second)).detach()
    found = find("libragrad")(model, x.detach(), target)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["resnet", "swin", "pvt_v2", "maxvit", "crossvit"])
def test_libragrad_of_other_architectures(name):
    """Blocks of one class, also those that stand alone in their stage, and the hooks are gone."""
    from hilrp.jobs.bench.methods.libragrad import _layers

    model = hilrp.load(f"zoo/{name}").model
    assert len(_layers(model)) == {"resnet": 8, "swin": 7, "pvt_v2": 7, "maxvit": 5, "crossvit": 10}[name]
    found = find("libragrad")(model, torch.randn(1, 3, 128, 128), torch.tensor([2]))
    assert found.shape == (1, 128, 128)
    assert bool(found.isfinite().all())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def effective(model, x, k, affine_maps, noise, strength):
    """The effective transformation of the ``k``-th changed picture times the image, by hand."""
    leaf = x.clone().requires_grad_()
    grid = F.affine_grid(affine_maps[k : k + 1].expand(len(x), -1, -1).to(x), list(x.shape), align_corners=False)
    moved = F.grid_sample(leaf, grid, align_corners=False)
    kept = 1 - float(strength[k])
    logits = LibraViT(model)(kept * moved + (1 - kept**2) ** 0.5 * noise[k].to(x))
    (gradient,) = torch.autograd.grad(logits.gather(1, TARGET[:, None]).sum(), leaf)
    return (leaf * gradient).detach().numpy()


def test_dave_by_hand(inputs, vit):
    """Each changed picture on its own; medians by sorting; the filter by scipy."""
    samples, amount = 5, 0.3
    drawn = draws(samples, inputs.shape[1:], amount)
    each = np.stack([effective(vit, inputs, k, *drawn) for k in range(samples)])
    centre = np.sort(each, 0)[(samples - 1) // 2]
    spread = 1.4826 * np.sort(abs(each - centre), 0)[(samples - 1) // 2]
    near = abs(each - centre) <= 2.5 * spread
    assert 0 < (~near).sum() < near.sum()
    maps = ((each * near).sum(0) / near.sum(0)).sum(1)
    reach, width = 1, 7 / 224 * 32  # of 32 pixels
    bell = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * width**2))
    kernel = np.outer(bell, bell) / np.outer(bell, bell).sum()
    expected = [(m + ndimage.convolve(m, kernel, mode="constant")) / 2 for m in maps]
    found = find(f"dave:samples={samples},noise={amount}")(vit, inputs, TARGET)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-9)


def test_changes_of_dave_are_torchvisions(monkeypatch):
    """Rotations with scales, and shifts, of a picture that isn't square; and mirrors."""
    x = torch.randn(1, 3, 24, 40)
    seen = nn.Identity().eval()

    def changed(k, maps):
        still = torch.zeros(len(maps))
        model = Changed(seen, maps, torch.zeros(len(maps), 3, 24, 40), still)
        model.numbers = torch.tensor([k])
        return model(x)

    plain = draws(6, x.shape[1:], 0.0)[0]
    monkeypatch.setattr(dave_module, "_SHIFT", 0.0)
    turned = draws(6, x.shape[1:], 0.0)[0]
    inner = (..., slice(8, 16), slice(12, 28))
    mirrored = 0
    for k in range(6):
        mirror = bool(turned[k, 0, 0] < 0)
        mirrored += mirror
        factor = float(turned[k, 1, 1].square() + turned[k, 0, 1].square() * (40 / 24) ** 2) ** 0.5
        angle = np.degrees(np.arctan2(-float(turned[k, 1, 0]) * 24 / 40, float(turned[k, 1, 1])))
        picture = x.flip(3) if mirror else x
        theirs = affine(picture, angle, [0, 0], 1 / factor, [0.0, 0.0], InterpolationMode.BILINEAR)
        torch.testing.assert_close(changed(k, turned)[inner], theirs[inner], rtol=1e-4, atol=1e-4)
        assert abs(angle) <= 20
        assert 0.9 <= 1 / factor <= 1.1
        assert (plain[k, :, 2].abs() <= 0.2).all()  # a tenth of the picture, whose sides are two long
    assert 0 < mirrored < 6
    shift = torch.tensor([[[1.0, 0.0, 2 * 4 / 40], [0.0, 1.0, 2 * -3 / 24]]])
    torch.testing.assert_close(changed(0, shift)[..., 3:, :-4], x[..., :-3, 4:])
