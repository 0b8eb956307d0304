"""MONAI: one small network of each family, for volumes and for pictures."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from monai.networks import nets
from torch import Tensor, nn

from hilrp.models.libraries.recipe import strongest
from hilrp.models.libraries.small import Small, Table

#: One channel, three classes, along three axes.
_VOLUME = {"spatial_dims": 3, "in_channels": 1, "out_channels": 3}
_CUBE = (1, 32, 32, 32)
_VIT = {"img_size": 32, "hidden_size": 48, "mlp_dim": 96, "num_heads": 3, "proj_type": "conv"}


def _first(output: Any) -> Tensor:
    """The first of several outputs: the finest, or that without auxiliary ones."""
    return strongest(output[0])


def _reconstruction(output: Any) -> Tensor:
    found: Tensor = output.flatten(1).mean(1)
    return found


def _types(output: Any) -> Tensor:
    """The types of nuclei, of several maps."""
    return strongest(output["type_prediction"])


def _net(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A network of MONAI, made when it is asked for."""
    return partial(getattr(nets, name), **options)


_TABLE = Table("monai", {
    "UNet": Small(_net("UNet", **_VOLUME, channels=(8, 16, 32), strides=(2, 2), num_res_units=2), _CUBE),
    "BasicUNet": Small(_net("BasicUNet", **_VOLUME, features=(8, 8, 16, 32, 64, 8)), _CUBE),
    "BasicUNetPlusPlus": Small(_net("BasicUNetPlusPlus", **_VOLUME, features=(8, 8, 16, 32, 64, 8)), _CUBE, _first),
    "AttentionUnet": Small(_net("AttentionUnet", **_VOLUME, channels=(8, 16, 32), strides=(2, 2)), _CUBE),
    "DynUNet": Small(
        _net("DynUNet", **_VOLUME, kernel_size=[3, 3, 3], strides=[1, 2, 2], upsample_kernel_size=[2, 2],
             filters=[8, 16, 32], res_block=True), _CUBE),
    "FlexibleUNet": Small(
        _net("FlexibleUNet", in_channels=1, out_channels=3, backbone="efficientnet-b0", spatial_dims=3), _CUBE),
    "SegResNet": Small(_net("SegResNet", **_VOLUME, init_filters=8, blocks_down=(1, 1, 1), blocks_up=(1, 1)), _CUBE),
    "SegResNetDS": Small(
        _net("SegResNetDS", **_VOLUME, init_filters=8, blocks_down=(1, 1, 1), dsdepth=2, resolution=None), _CUBE),
    "VNet": Small(_net("VNet", **_VOLUME), _CUBE),
    "HighResNet": Small(_net("HighResNet", **_VOLUME), (1, 16, 16, 16)),
    "MedNeXt": Small(
        _net("MedNeXt", **_VOLUME, init_filters=8, encoder_expansion_ratio=2, decoder_expansion_ratio=2,
             bottleneck_expansion_ratio=2, blocks_down=(1, 1), blocks_bottleneck=1, blocks_up=(1, 1)), _CUBE),
    "UNETR": Small(
        _net("UNETR", in_channels=1, out_channels=3, img_size=(32, 32, 32), feature_size=8, hidden_size=48, mlp_dim=96,
             num_heads=3), _CUBE),
    "SwinUNETR": Small(
        _net("SwinUNETR", in_channels=1, out_channels=3, feature_size=12, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8)),
        (1, 64, 64, 64)),
    "ViT": Small(
        _net("ViT", in_channels=1, patch_size=8, num_layers=2, classification=True, num_classes=3, **_VIT), _CUBE,
        _first),
    "ViTAutoEnc": Small(
        _net("ViTAutoEnc", in_channels=1, patch_size=16, num_layers=2, out_channels=1, **_VIT), _CUBE,
        lambda output: _reconstruction(output[0])),
    "DenseNet": Small(_net("DenseNet", **_VOLUME, init_features=8, growth_rate=8, block_config=(2, 2, 2)), _CUBE),
    "EfficientNetBN": Small(
        _net("EfficientNetBN", model_name="efficientnet-b0", spatial_dims=3, in_channels=1, num_classes=3), _CUBE),
    "ResNet": Small(
        _net("ResNet", block="basic", layers=[1, 1, 1, 1], block_inplanes=[8, 16, 32, 64], spatial_dims=3,
             n_input_channels=1, num_classes=3), _CUBE),
    "SENet": Small(
        _net("SENet", block="se_resnet_bottleneck", layers=[1, 1, 1, 1], groups=1, reduction=16, inplanes=64,
             downsample_kernel_size=1, input_3x3=False, spatial_dims=3, in_channels=1, num_classes=3), _CUBE),
    "AutoEncoder": Small(
        _net("AutoEncoder", spatial_dims=3, in_channels=1, out_channels=1, channels=(8, 16), strides=(2, 2)), _CUBE,
        _reconstruction),
    "Classifier": Small(_net("Classifier", in_shape=_CUBE, classes=3, channels=(8, 16), strides=(2, 2)), _CUBE),
    "HoVerNet": Small(
        _net("HoVerNet", mode="fast", in_channels=3, out_classes=3, decoder_padding=True), (3, 256, 256), _types),
})  # fmt: skip
names, kinds, find, recipe = _TABLE.names, _TABLE.kinds, _TABLE.find, _TABLE.recipe
trained, load = _TABLE.trained, _TABLE.load
