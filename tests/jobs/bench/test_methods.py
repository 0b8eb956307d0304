"""The benchmark's methods against captum and formulas written out by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import timm
import torch
from captum import attr
from captum._utils.models.linear_model import SkLearnRidge
from PIL import Image
from torch.nn import functional as F

import hilrp
from hilrp.jobs.bench.methods import METHODS, Undefined, find
from hilrp.jobs.bench.methods.gradients import NOISE
from hilrp.jobs.bench.methods.perturbation import grid, rise_masks
from hilrp.scenes import Scenes
from hilrp.util.errors import InputError


@pytest.fixture(scope="module")
def scene_inputs():
    scenes = Scenes(seed=3)[:2]
    x = hilrp.load("zoo/resnet").batch([Image.fromarray(s.image) for s in scenes])
    return x, torch.tensor([s.things[0].label for s in scenes])


@pytest.fixture(scope="module")
def small_vit():
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=3, num_heads=3, num_classes=5
    ).eval()


def attention_by_hand(model, x):
    """The attention matrices of a timm ViT, from its own weights, block by block."""
    tokens = model.norm_pre(model.patch_drop(model._pos_embed(model.patch_embed(x))))
    matrices = []
    for block in model.blocks:
        inner, attn = block.norm1(tokens), block.attn
        q, k, v = attn.qkv(inner).reshape(len(x), -1, 3, attn.num_heads, attn.head_dim).permute(2, 0, 3, 1, 4)
        matrix = (attn.scale * q @ k.transpose(-2, -1)).softmax(-1)
        matrix.retain_grad() if matrix.requires_grad else None
        matrices.append(matrix)
        mixed = (matrix @ v).transpose(1, 2).reshape(tokens.shape)
        tokens = tokens + block.ls1(attn.proj(mixed))
        tokens = tokens + block.ls2(block.mlp(block.norm2(tokens)))
    return matrices, model.forward_head(model.norm(tokens))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_maps_and_leaves_the_model_alone(name, scene_inputs):
    x, target = scene_inputs
    model = hilrp.load("zoo/tinyvit").model
    before = copy.deepcopy(model.state_dict())
    cheap = {"rise": "rise:masks=20", "lime": "lime:samples=20"}.get(name, name)
    if METHODS[name].kind == "attention":
        with pytest.raises(Undefined):
            find(cheap)(model, x, target)
    else:
        first = find(cheap).with_background(x)(model, x, target)
        assert first.shape == (2, 128, 128)
        assert bool(first.isfinite().all())
        assert not first.requires_grad
        again = find(cheap).with_background(x)(model, x, target)
        torch.testing.assert_close(again, first, rtol=1e-4, atol=1e-6)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._backward_hooks or m._forward_pre_hooks for m in model.modules())
    assert all(p.requires_grad for p in model.parameters())
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


@pytest.mark.parametrize(
    "name",
    [
        "saliency",
        "integrated-gradients:steps=4",
        "smoothgrad:samples=4",
        "vargrad:samples=4",
        "gradient-shap:samples=4",
        "expected-gradients:samples=4",
        "libragrad",
        "dave:samples=4",
        "lime:samples=20",
        "rise:masks=20",
        "occlusion",
        "grad-cam",
        "attention-gradient",
        "hilrp",
        "random",
    ],
)
def test_the_map_of_an_image_does_not_depend_on_its_batch(name, scene_inputs, small_vit):
    x, target = F.interpolate(scene_inputs[0], 32), scene_inputs[1] % 5
    method = find(name).with_background(x.flip(2))
    together, alone = method(small_vit, x, target), method(small_vit, x[1:], target[1:])
    torch.testing.assert_close(together[1:], alone, rtol=1e-3, atol=1e-4)


def test_smooth_grad_and_var_grad_by_hand(scene_inputs):
    """The size of the mean gradient, and the variance of the gradient, over the same noise."""
    x, target = scene_inputs[0][:1], scene_inputs[1][:1]
    model = hilrp.load("zoo/tinyvit").model
    gradients, real = [], torch.autograd.grad

    def watch(*args, **options):
        found = real(*args, **options)
        gradients.append(found[0].detach())
        return found

    for name, by_hand in (("smoothgrad", lambda g: g.mean(0).abs()), ("vargrad", lambda g: g.var(0, unbiased=False))):
        gradients.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.autograd, "grad", watch)
            found = find(f"{name}:samples=6")(model, x, target)
        stacked = torch.cat(gradients)
        assert len(stacked) == 6
        torch.testing.assert_close(found[0], by_hand(stacked).sum(0), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["smoothgrad", "vargrad", "gradient-shap"])
def test_methods_under_noise_are_captums(name, scene_inputs, monkeypatch):
    """captum gets the noise and the parts of the way that ours draws; it takes one image at a time."""
    x, target = scene_inputs
    model, samples = hilrp.load("zoo/tinyvit").model, 5
    found = find(f"{name}:samples={samples}")(model, x, target)
    chance = torch.Generator().manual_seed(0)
    noise, parts = torch.randn(samples, *x.shape[1:], generator=chance), torch.rand(samples, generator=chance)
    monkeypatch.setattr(torch, "normal", lambda mean, std: std * noise)
    monkeypatch.setattr(np.random, "uniform", lambda low, high, count: parts.double().numpy())
    for i in range(len(x)):
        image, spread = x[i : i + 1], NOISE * float(x[i].max() - x[i].min())
        if name == "gradient-shap":
            dark = image.amin((2, 3), keepdim=True).expand_as(image)
            theirs = attr.GradientShap(model).attribute(
                image, dark, n_samples=samples, stdevs=spread, target=target[i : i + 1]
            )
        else:
            tunnel = attr.NoiseTunnel(attr.Saliency(model))
            theirs = tunnel.attribute(
                image, nt_type=name, nt_samples=samples, stdevs=spread, target=target[i : i + 1], abs=False
            )
            theirs = theirs.abs()
        torch.testing.assert_close(found[i], theirs[0].sum(0), rtol=1e-3, atol=1e-5)


def test_lime_is_captums(scene_inputs):
    """The same pictures are drawn; captum's is slow, since it makes and weighs them one by one."""
    x, target = scene_inputs
    model = hilrp.load("zoo/tinyvit").model
    ours = find("lime:samples=80")(model, x, target)
    cells = grid(128, 128, 8)
    for i in range(len(x)):
        torch.manual_seed(0)
        theirs = attr.Lime(model, interpretable_model=SkLearnRidge(alpha=1.0)).attribute(
            x[i : i + 1],
            baselines=x[i : i + 1].mean((2, 3), keepdim=True).expand(1, 3, 128, 128),
            target=target[i : i + 1],
            feature_mask=cells[None, None],
            n_samples=80,
        )
        torch.testing.assert_close(ours[i], theirs[0, 0], rtol=1e-3, atol=1e-4)


def test_input_x_gradient_and_saliency(scene_inputs):
    x, target = scene_inputs
    model = hilrp.load("zoo/resnet").model
    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(model(leaf).gather(1, target[:, None]).sum(), leaf)
    torch.testing.assert_close(find("input-x-gradient")(model, x, target), (x * g).sum(1))
    torch.testing.assert_close(find("saliency")(model, x, target), g.abs().sum(1))


def test_integrated_gradients_are_complete(scene_inputs):
    """They sum to the difference of the scores of the picture and of black."""
    x, target = scene_inputs
    model = hilrp.load("zoo/tinyvit").model
    found = find("integrated-gradients:steps=100")(model, x, target).flatten(1).sum(1)
    with torch.no_grad():
        black = x.amin((2, 3), keepdim=True).expand_as(x)
        difference = (model(x) - model(black)).gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(found, difference, rtol=0.05, atol=0.05)


def test_grad_cam_by_hand(scene_inputs):
    x, target = scene_inputs
    model = hilrp.load("zoo/resnet").model
    features = model.forward_features(x)
    (g,) = torch.autograd.grad(model.forward_head(features).gather(1, target[:, None]).sum(), features)
    expected = F.relu((g.mean((2, 3), keepdim=True) * features).sum(1))
    found = find("grad-cam")(model, x, target)
    small = F.adaptive_avg_pool2d(found[:, None], 4)[:, 0]
    for a, b in zip(small.flatten(1), expected.flatten(1), strict=True):
        assert float(torch.corrcoef(torch.stack([a, b.detach()]))[0, 1]) > 0.97
    assert float(found.min()) >= 0


@pytest.mark.parametrize(("name", "layer"), [("vit", "norm1"), ("swin", ""), ("beit", ""), ("deit", "norm1")])
def test_where_grad_cam_looks(name, layer, scene_inputs):
    from hilrp.jobs.bench.methods.cams import _layer

    model = hilrp.load(f"zoo/{name}").model
    found, reshape = _layer(model, scene_inputs[0])
    path = next(path for path, module in model.named_modules() if module is found)
    assert path.endswith(layer)
    assert path.split(".")[1] == ("3" if name == "swin" else "5")
    tokens = torch.randn(1, 256 + model.num_prefix_tokens, 128) if name != "swin" else torch.randn(1, 4, 4, 256)
    assert reshape(tokens).shape == ((1, 128, 16, 16) if name != "swin" else (1, 256, 4, 4))


def test_rollout_by_hand(small_vit):
    """Abnar and Zuidema (2020), with loops, in float64."""
    model, x = copy.deepcopy(small_vit).double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    matrices, _ = attention_by_hand(model, x)
    for i in range(2):
        path = np.eye(17)
        for matrix in matrices:
            mean = np.mean([head.detach().numpy() for head in matrix[i]], axis=0)
            mixed = 0.5 * mean + 0.5 * np.eye(17)
            path = mixed @ path
        patches = torch.from_numpy(path[0, 1:]).reshape(1, 1, 4, 4)
        expected = F.interpolate(patches, size=(32, 32), mode="bilinear", align_corners=False)[0, 0]
        torch.testing.assert_close(find("rollout")(model, x, torch.zeros(2, dtype=torch.long))[i], expected)


def test_attention_gradient_by_hand(small_vit):
    """Chefer, Gur and Wolf (2021), equations 5 and 6, with loops, in float64."""
    model, x = copy.deepcopy(small_vit).double(), torch.randn(2, 3, 32, 32, dtype=torch.float64)
    target = torch.tensor([1, 4])
    matrices, logits = attention_by_hand(model, x)
    logits.gather(1, target[:, None]).sum().backward()
    for i in range(2):
        relevance = np.eye(17)
        for matrix in matrices:
            weighted = np.zeros((17, 17))
            for head, gradient in zip(matrix[i].detach().numpy(), matrix.grad[i].numpy(), strict=True):
                weighted += np.maximum(gradient * head, 0) / len(matrix[i])
            relevance = relevance + weighted @ relevance
        patches = torch.from_numpy(relevance[0, 1:]).reshape(1, 1, 4, 4)
        expected = F.interpolate(patches, size=(32, 32), mode="bilinear", align_corners=False)[0, 0]
        torch.testing.assert_close(find("attention-gradient")(model, x, target)[i], expected)


@pytest.mark.parametrize("name", ["resnet", "swin", "pvt_v2", "maxvit", "efficientvit", "crossvit", "mobilevitv2"])
def test_attention_methods_say_where_they_have_no_meaning(name, scene_inputs):
    model = hilrp.load(f"zoo/{name}").model
    for method in ("rollout", "attention-gradient"):
        with pytest.raises(Undefined, match=r"attention"):
            find(method)(model, *scene_inputs)


def test_attention_methods_on_a_model_without_a_class_token():
    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        embed_dim=24,
        depth=2,
        num_heads=3,
        num_classes=5,
        class_token=False,
        global_pool="avg",
    ).eval()
    assert find("rollout")(model, torch.randn(2, 3, 32, 32), torch.tensor([0, 1])).shape == (2, 32, 32)


def test_grad_cam_says_so_too(scene_inputs):
    with pytest.raises(Undefined, match="several streams"):
        find("grad-cam")(hilrp.load("zoo/crossvit").model, *scene_inputs)


class Corner(torch.nn.Module):
    """The score is the mean of the upper left quarter."""

    def forward(self, x):
        quarter = x[..., : x.shape[-2] // 2, : x.shape[-1] // 2].mean((1, 2, 3))
        return torch.stack([quarter, -quarter], 1)


@pytest.mark.parametrize("name", ["rise:masks=300", "lime:samples=200", "occlusion"])
def test_perturbation_methods_find_what_the_score_depends_on(name):
    torch.manual_seed(1)
    x = torch.rand(2, 3, 32, 32)
    x[:, :, :16, :16] += 2
    found = find(name)(Corner(), x, torch.tensor([0, 1]))
    inside, outside = found[:, 2:14, 2:14].mean((1, 2)), found[:, 18:, 18:].mean((1, 2))
    assert float(inside[0] - outside[0]) > 0
    assert float(inside[1] - outside[1]) < 0


def test_rise_masks_keep_half():
    masks = rise_masks(30, 45, 400)
    assert masks.shape == (400, 30, 45)
    assert float(masks.mean()) == pytest.approx(0.5, abs=0.02)
    assert float(masks.min()) >= 0
    assert float(masks.max()) <= 1


def test_grid_has_cells_of_all_numbers():
    assert torch.unique(grid(30, 41, 7)).tolist() == list(range(49))


def test_options_and_names():
    assert find("hilrp:gamma=0.1,attention=uniform").options == (("gamma", 0.1), ("attention", "uniform"))
    assert find("rules:zplus").rules == "zplus"
    for name, words in (("magic", "not a method"), ("rise:masks", "key=value"), ("rules:magic", "not a preset")):
        with pytest.raises(InputError, match=words):
            find(name)


def test_books_that_do_not_close_are_a_figure_and_not_an_error():
    """A score near zero, or an operation without a rule.

    The benchmark measures what the books miss, and doesn't stop.
    """

    class Odd(torch.nn.Module):
        def forward(self, x):
            return torch.special.i0(x).flatten(1)[:, :3]

    x, target = torch.rand(2, 3, 4, 4) + 0.5, torch.tensor([0, 1])
    with pytest.raises(hilrp.AuditError):
        hilrp.explain(Odd(), x, target)
    assert bool(find("hilrp")(Odd(), x, target).isfinite().all())


def test_options_change_the_map(scene_inputs):
    model = hilrp.load("zoo/resnet").model
    x, target = scene_inputs
    expected = hilrp.explain(model, x, target, rules=hilrp.Rules(gamma=1.0)).map
    torch.testing.assert_close(find("hilrp:gamma=1.0")(model, x, target), expected)
    assert not torch.allclose(find("hilrp")(model, x, target), expected)
