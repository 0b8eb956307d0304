"""MONAI: one small network of each family, for volumes and for pictures; and bundles."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from monai import bundle
from monai.networks import nets
from torch import Tensor, nn

from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.libraries.recipe import Recipe, download, strongest
from hilrp.models.libraries.small import Small, Table
from hilrp.util.errors import InputError

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
#: What bundles of the model zoo do is in their names.
_BUNDLES = re.compile(r"[a-z0-9_]+_(segment|detect|classif|regist|reconst|generat|track|annot|diffus)[a-z0-9_]+")
names, kinds, trained = _TABLE.names, _TABLE.kinds, _TABLE.trained


def find(name: str) -> str | None:
    """A network of the table; or a bundle: a folder, or a name of MONAI's model zoo (``spleen_ct_segmentation``)."""
    own, name = _TABLE.find(name), name.removesuffix("/")
    is_bundle = (Path(name) / "configs").is_dir() or _BUNDLES.fullmatch(name) is not None
    return own or (name if is_bundle else None)


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A small random network; or that of a bundle."""
    if name in names():
        return _TABLE.recipe(name, pretrained, size)
    model = _of_bundle(name)
    channels = next((m.weight.shape[1] for m in model.modules() if isinstance(m, nn.Conv3d)), 1)
    return Recipe(model, lambda batch: torch.randn(batch, channels, *[size or 96] * 3))


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """The network of a bundle (a folder, or one of MONAI's model zoo) with its weights, or those of a checkpoint."""
    if name in names():
        return _TABLE.load(name, checkpoint)
    if checkpoint is None:
        model: Any = _of_bundle(name)
    else:
        model = weights.fitted(lambda _: _of_bundle(name), checkpoint_files.read(checkpoint), name, checkpoint)
    return Loaded(f"monai/{name}", model, Preprocess(partial(_refuse, name)), weights="the bundle's weights")


def _of_bundle(name: str) -> Any:
    folder = Path(name)
    where = {"name": folder.name, "bundle_dir": str(folder.parent)} if folder.is_dir() else {"name": name}
    return download(name, lambda: bundle.load(load_ts_module=False, **where))


def _refuse(name: str, picture: Any) -> Tensor:
    raise InputError(
        f"monai/{name} takes volumes, and no pictures. Read one with hilrp.read_file, prepare it as its bundle does, "
        "and explain it: hilrp.explain(loaded.model, volume, target, tiles=hilrp.Tiles(window=...))."
    )
