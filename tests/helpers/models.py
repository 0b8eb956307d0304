"""Small models for tests, with random values for the constants that a fresh model has at zero or one."""

from __future__ import annotations

import pytest
import timm
from torch import nn

from hilrp.models.random_models import randomise_constants


def randomised(model: nn.Module) -> nn.Module:
    """Constants that a fresh model has at zero or one get random values, so that the books have something to book."""
    for module in randomise_constants(model).modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.8, 1.2)
    return model.eval()


def small_swin(**options):
    options = {
        "img_size": 64,
        "window_size": 4,
        "embed_dim": 24,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "num_classes": 5,
    } | options
    return randomised(timm.models.swin_transformer.SwinTransformer(**options))


def small_vit(**options):
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2, "num_classes": 5} | options
    return randomised(timm.models.vision_transformer.VisionTransformer(**options))


def transformers_models():
    transformers = pytest.importorskip("transformers")
    small = {"num_labels": 5, "image_size": 64}
    swin = transformers.SwinConfig(embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, patch_size=4, **small)
    pvt = transformers.PvtV2Config(
        image_size=64,
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 32, 40, 64],
        num_attention_heads=[1, 2, 5, 8],
        num_labels=5,
    )
    dino = transformers.Dinov2Config(hidden_size=48, num_hidden_layers=2, num_attention_heads=3, patch_size=16, **small)
    convnext = transformers.ConvNextV2Config(depths=[1, 1, 2, 1], hidden_sizes=[16, 32, 48, 64], num_labels=5)
    return {
        "swin": transformers.SwinForImageClassification(swin),
        "pvt_v2": transformers.PvtV2ForImageClassification(pvt),
        "dinov2": transformers.Dinov2ForImageClassification(dino),
        "convnextv2": transformers.ConvNextV2ForImageClassification(convnext),
    }


def small_classifier() -> nn.Module:
    """A few layers of the usual kinds, for pictures of 8 x 8, with five classes."""
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 4, 1, bias=False), nn.Flatten()]
    return nn.Sequential(*parts, nn.Linear(4 * 36, 5)).eval()
