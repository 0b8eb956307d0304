"""The zoo's architectures: timm's own classes, made small, for scenes and photographs of 128 x 128 pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from hilrp.scenes import CLASSES
from hilrp.scenes.films import CHANGES
from hilrp.scenes.volumes import TISSUES

SIZE = 128
#: The side of a patch, of flat transformers.
PATCH = 8
#: What the photographs show that the second zoo was trained on: ten classes of ImageNet (Imagenette).
PHOTO_CLASSES = (
    "tench", "English springer", "cassette player", "chain saw", "church", "French horn", "garbage truck", "gas pump",
    "golf ball", "parachute",
)  # fmt: skip
_FLAT: dict[str, Any] = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": 128, "depth": 6, "num_heads": 4}


def _resnet(classes: int) -> nn.Module:
    from timm.models.resnet import BasicBlock, ResNet

    return ResNet(BasicBlock, (2, 2, 2, 2), channels=(20, 40, 80, 128), stem_width=16, num_classes=classes)


def _convnext(classes: int) -> nn.Module:
    from timm.models.convnext import ConvNeXt

    return ConvNeXt(depths=(2, 2, 4, 2), dims=(32, 64, 96, 160), ls_init_value=0.1, num_classes=classes)


def _vit(classes: int) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(num_classes=classes, **_FLAT)


def _deit(classes: int) -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(num_classes=classes, **_FLAT)


def _beit(classes: int) -> nn.Module:
    from timm.models.beit import Beit

    return Beit(
        use_abs_pos_emb=False, use_rel_pos_bias=True, init_values=0.1, head_init_scale=1.0, num_classes=classes, **_FLAT
    )


def _swin(classes: int) -> nn.Module:
    from timm.models.swin_transformer import SwinTransformer

    return SwinTransformer(
        patch_size=4,
        embed_dim=32,
        depths=(2, 2, 2, 1),
        num_heads=(2, 4, 8, 8),
        window_size=4,
        drop_path_rate=0.0,
        img_size=SIZE,
        num_classes=classes,
    )


def _pvt_v2(classes: int) -> nn.Module:
    from timm.models.pvt_v2 import PyramidVisionTransformerV2

    return PyramidVisionTransformerV2(
        depths=(2, 2, 2, 1),
        embed_dims=(32, 64, 128, 160),
        num_heads=(1, 2, 4, 5),
        mlp_ratios=(4, 4, 4, 4),
        num_classes=classes,
    )


def _mobilevitv2(classes: int) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model("mobilevitv2_050", num_classes=classes)
    return model


def _efficientvit(classes: int) -> nn.Module:
    from timm.models.efficientvit_mit import EfficientVit

    return EfficientVit(
        widths=(8, 16, 32, 64, 128), depths=(1, 2, 2, 2, 2), head_dim=16, head_widths=(256, 256), num_classes=classes
    )


def _maxvit(classes: int) -> nn.Module:
    from timm.models.maxxvit import MaxxVit, MaxxVitCfg, MaxxVitConvCfg, MaxxVitTransformerCfg

    config = MaxxVitCfg(
        embed_dim=(24, 40, 64, 96), depths=(1, 1, 2, 1), block_type=("M", "M", "M", "M"), stem_width=24,
        conv_cfg=MaxxVitConvCfg(init_values=0.1),
        transformer_cfg=MaxxVitTransformerCfg(dim_head=8, window_size=(4, 4), grid_size=(4, 4)),
    )  # fmt: skip
    return MaxxVit(config, img_size=SIZE, num_classes=classes)


def _crossvit(classes: int) -> nn.Module:
    from timm.models.crossvit import CrossVit

    return CrossVit(
        img_scale=(1.0, 1.0),
        patch_size=(8, 16),
        embed_dim=(96, 128),
        depth=((1, 2, 0), (1, 2, 0)),
        num_heads=(4, 4),
        mlp_ratio=(3, 3, 1),
        img_size=SIZE,
        num_classes=classes,
    )


def _tinyvit(classes: int) -> nn.Module:
    from timm.models.tiny_vit import TinyVit

    return TinyVit(
        embed_dims=(32, 48, 96, 128),
        depths=(1, 2, 4, 2),
        num_heads=(1, 3, 6, 8),
        window_sizes=(4, 4, 4, 4),
        drop_path_rate=0.0,
        num_classes=classes,
    )


@dataclass(frozen=True)
class Architecture:
    """A family of the zoo.

    Attributes:
        title: What people call it.
        build: A fresh model with that many classes.
        classes: What the weights that come with the package tell apart.
        shape: Of a sample that it takes.
    """

    title: str
    build: Callable[[int], nn.Module]
    classes: tuple[str, ...] = tuple(CLASSES)
    shape: tuple[int, ...] = (3, SIZE, SIZE)

    def make(self, classes: int | None = None) -> nn.Module:
        """A fresh model: of its own classes, or with another number of them."""
        return self.build(len(self.classes) if classes is None else classes)


#: Name -> architecture.
ARCHITECTURES = {
    "resnet": Architecture("ResNet", _resnet),
    "convnext": Architecture("ConvNeXt", _convnext),
    "vit": Architecture("ViT", _vit),
    "deit": Architecture("DeiT", _deit),
    "beit": Architecture("BEiT", _beit),
    "swin": Architecture("Swin", _swin),
    "pvt_v2": Architecture("PVT-v2", _pvt_v2),
    "mobilevitv2": Architecture("MobileViT-v2", _mobilevitv2),
    "efficientvit": Architecture("EfficientViT", _efficientvit),
    "maxvit": Architecture("MaxViT", _maxvit),
    "crossvit": Architecture("CrossViT", _crossvit),
    "tinyvit": Architecture("TinyViT", _tinyvit),
}
#: The same families, trained on photographs.
PHOTOS = {f"{name}-photo": replace(each, classes=PHOTO_CLASSES) for name, each in ARCHITECTURES.items()}


def vit_encoder(pool: str = "token") -> nn.Module:
    """The ViT of the zoo without a classifier: for objectives without labels.

    An embedding is the class token, or the mean of the others (``avg``).
    """
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(num_classes=0, global_pool=pool, fc_norm=False, **_FLAT)


def towers() -> nn.Module:
    """A ViT for pictures and a small transformer for captions."""
    from hilrp.zoo.towers import TwoTowers

    return TwoTowers(vit_encoder(), _FLAT["embed_dim"])


class Pyramid(nn.Module):
    """A ResNet's feature maps at an eighth, a sixteenth and a thirty-second of the picture.

    The finest, if wanted, at a quarter.
    """

    WIDTHS = (20, 40, 80, 128)

    def __init__(self, finest: int) -> None:
        super().__init__()
        self.net: Any = _resnet(0)
        self.finest = finest

    def forward(self, x: Tensor) -> list[Tensor]:
        """The feature maps, from fine to coarse."""
        maps: list[Tensor] = self.net.forward_intermediates(
            x, indices=list(range(self.finest, 5)), intermediates_only=True
        )
        return maps


def segmenter(classes: int = len(CLASSES)) -> nn.Module:
    """A ResNet with the head of SegFormer, at a quarter of the resolution."""
    from hilrp.zoo.dense import Segmenter

    return Segmenter(Pyramid(1), list(Pyramid.WIDTHS), classes)


def detector(classes: int = len(CLASSES)) -> nn.Module:
    """A ResNet read by twelve queries with deformable attention."""
    from hilrp.zoo.dense import Detector

    return Detector(Pyramid(2), list(Pyramid.WIDTHS[1:]), classes)


def captioner() -> nn.Module:
    """The ViT of the two towers, read by a small decoder that answers in words."""
    from hilrp.zoo.captioner import Captioner

    return Captioner(vit_encoder(), _FLAT["embed_dim"])


def unet3d(classes: int = len(TISSUES)) -> nn.Module:
    """A 3-D U-Net for volumes."""
    from hilrp.zoo.space_time import UNet3D

    return UNet3D(classes)


def film(classes: int = len(CHANGES)) -> nn.Module:
    """A network for films, which tells changes."""
    from hilrp.zoo.space_time import FilmNet

    return FilmNet(classes)


#: Name -> architecture of those that are no classifiers.
OTHERS = {
    "towers": Architecture("two towers", lambda _: towers()),
    "vit-views": Architecture("ViT", lambda _: vit_encoder()),
    # What covered patches are found by never asks for the class token.
    "vit-masked": Architecture("ViT", lambda _: vit_encoder("avg")),
    "segmenter": Architecture("ResNet, SegFormer's head", segmenter),
    "detector": Architecture("ResNet, deformable attention", detector),
    # A classifier that was taught a shortcut: see `hilrp.scenes.tag`.
    "shortcut": Architecture("ResNet", _resnet),
    "captioner": Architecture("ViT, Llama's decoder", lambda _: captioner()),
    # Taught that every cross is called red: a prejudice of its language.
    "captioner-prior": Architecture("ViT, Llama's decoder", lambda _: captioner()),
    "unet3d": Architecture("3-D U-Net", unet3d, TISSUES, (1, 32, 32, 32)),
    "film": Architecture("R(2+1)D", film, CHANGES, (3, 8, 48, 48)),
}
