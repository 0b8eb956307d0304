"""The paper's ten architectures, CrossViT, CLIP towers and models of other libraries: exact values, closed books."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import hilrp
from helpers.models import randomised, transformers_models

PAPER = [
    "resnet50", "convnext_base", "vit_base_patch16_224", "deit_base_distilled_patch16_224",
    "swin_base_patch4_window7_224", "pvt_v2_b2", "mobilevitv2_100", "efficientvit_b1", "efficientvit_b2",
    "maxvit_small_tf_224", "crossvit_small_240",
]  # fmt: skip

#: In double precision, the same operations in the smallest model of the family: the base models take minutes.
SMALLER = {
    "convnext_base": "convnext_atto", "vit_base_patch16_224": "vit_tiny_patch16_224", "pvt_v2_b2": "pvt_v2_b0",
    "deit_base_distilled_patch16_224": "deit_tiny_distilled_patch16_224",
    "swin_base_patch4_window7_224": "swin_tiny_patch4_window7_224", "maxvit_small_tf_224": "maxvit_tiny_tf_224",
    "efficientvit_b2": "efficientvit_b0", "crossvit_small_240": "crossvit_tiny_240",
    "mobilevitv2_100": "mobilevitv2_050", "resnet50": "resnet26",
}  # fmt: skip
#: And narrower and shallower than that where it still takes long.
NARROWER = {
    "maxvit_tiny_tf_224": {"embed_dim": (32, 32, 64, 64), "depths": (1, 1, 1, 1), "stem_width": 16},
    "swin_tiny_patch4_window7_224": {"embed_dim": 48, "depths": (2, 2, 2, 2)},
}
#: The side of the pictures, where it isn't 64, on which the same operations run as on the model's own. Swin needs
#: windows that shift, CrossViT resizes to 240 inside, and CSATv2's books need its own size to close in float32.
SIDES = {"swin": 112, "crossvit": 240, "csatv2": 512}
#: Families that are built for one size of pictures.
SIZED = ("vit_", "deit", "swin", "maxvit", "cait", "coat", "gcvit", "volo", "levit", "nest")


def created(name: str, **options) -> tuple[nn.Module, int]:
    """A model of timm for small pictures, and their side."""
    side = next((side for family, side in SIDES.items() if name.startswith(family)), 64)
    if name.startswith(SIZED):
        options["img_size"] = side
    return randomised(timm.create_model(name, **options)), side


def assert_sound(model: nn.Module, x, dtype: torch.dtype, target=None) -> hilrp.AuditReport:
    limit = 1e-4 if dtype == torch.float32 else 1e-10
    report = hilrp.audit(model, x, target, "hilrp")
    assert report.error is None, report.error
    assert not report.problems, report
    assert report.forward_difference == 0.0
    assert report.residual <= limit
    assert report.leak <= limit
    return report


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", PAPER)
def test_architectures_of_the_paper(name, dtype, monkeypatch):
    name = SMALLER.get(name, name) if dtype == torch.float64 else name
    model, side = created(name, **NARROWER.get(name, {}))
    if name.startswith("efficientvit") and dtype == torch.float64:
        # timm's linear attention casts to float32 by itself, in float64 too: the books would close to 1e-9 only.
        monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    # That samples are told apart is seen on the smaller ones.
    batch = 1 if name in SMALLER and dtype == torch.float32 else 2
    assert_sound(model.to(dtype), torch.randn(batch, 3, side, side, dtype=dtype), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_clip_image_tower_of_open_clip(dtype):
    open_clip = pytest.importorskip("open_clip")
    text = {"context_length": 8, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    vision = {"image_size": 64, "layers": 3, "width": 128, "head_width": 32, "patch_size": 16}
    clip = open_clip.model.CLIP(embed_dim=48, vision_cfg=vision, text_cfg=text)
    model = randomised(clip.visual).to(dtype)
    caption = nn.functional.normalize(torch.randn(48, dtype=dtype), dim=0)
    x = torch.randn(2, 3, 64, 64, dtype=dtype)
    assert_sound(model, x, dtype, lambda out: nn.functional.normalize(out, dim=-1) @ caption)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_clip_image_tower_of_transformers(attention):
    transformers = pytest.importorskip("transformers")
    config = transformers.CLIPVisionConfig(
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=64,
        patch_size=16,
        projection_dim=24,
    )
    config._attn_implementation = attention
    model = randomised(transformers.CLIPVisionModelWithProjection(config)).double()
    caption = torch.randn(24, dtype=torch.float64)
    x = {"pixel_values": torch.randn(2, 3, 64, 64, dtype=torch.float64)}
    assert_sound(
        model, x, torch.float64, lambda out: nn.functional.cosine_similarity(out.image_embeds, caption.expand(2, -1))
    )


TORCHVISION = {
    "vit_b_16": {"image_size": 64},
    "swin_t": {},
    "swin_v2_t": {},
    "convnext_tiny": {},
    "efficientnet_b0": {},
    "mobilenet_v3_small": {},
    "densenet121": {},
    "googlenet": {"init_weights": False},
    "shufflenet_v2_x0_5": {},
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_torchvision(name):
    models = pytest.importorskip("torchvision.models")
    model = randomised(models.get_model(name, weights=None, **TORCHVISION[name]))
    if name == "vit_b_16":  # its classifier starts at zero
        nn.init.normal_(model.heads.head.weight, 0, 0.05)
    assert_sound(model, torch.randn(2, 3, 64, 64), torch.float32)


def test_maxvit_of_torchvision():
    """Narrow, with two blocks: the windows of the one that has a name fit pictures of 224 and more alone."""
    maxvit = pytest.importorskip("torchvision.models.maxvit")
    model = maxvit.MaxVit(
        input_size=(64, 64),
        stem_channels=16,
        partition_size=4,
        block_channels=[16, 32],
        block_layers=[1, 2],
        head_dim=8,
        stochastic_depth_prob=0.2,
    )
    assert_sound(randomised(model), torch.randn(2, 3, 64, 64), torch.float32)


@pytest.mark.parametrize("name", ["swin", "pvt_v2", "dinov2", "convnextv2"])
def test_transformers(name):
    model = randomised(transformers_models()[name])
    x = torch.randn(2, 3, 64, 64)
    assert_sound(model, {"pixel_values": x}, torch.float32)
    found = hilrp.explain(model, {"pixel_values": x}, target=3)
    assert found.map.shape == (2, 64, 64)
    assert set(found.relevance) == {"pixel_values"}
    with torch.no_grad():
        assert torch.equal(found.output.logits, model(x).logits)


#: Models outside the paper whose operations are out of the ordinary: in brackets, what is special about them.
UNUSUAL = [
    "test_byobnet", "cait_xxs24_224",  # talking heads
    "coat_tiny",  # factorised attention, convolutional positions
    "csatv2",  # discrete cosine transform, addcmul
    "focalnet_tiny_srf",  # gated context
    "gcvit_xxtiny", "mobilenetv4_conv_small", "volo_d1_224",  # outlook attention: unfold and fold
    "xcit_nano_12_p16_224",  # cross-covariance attention
    "edgenext_xx_small", "levit_128s", "poolformer_s12", "nest_tiny_jx", "tiny_vit_5m_224", "repvit_m0_9",
]  # fmt: skip


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_architectures(name):
    model, side = created(name)
    assert_sound(model, torch.randn(2, 3, side, side), torch.float32)
