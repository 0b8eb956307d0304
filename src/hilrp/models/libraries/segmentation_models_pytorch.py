"""segmentation_models_pytorch: one small model of each architecture, and of each family of encoders of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import segmentation_models_pytorch as smp
import torch
from PIL import Image
from torch import Tensor

from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.libraries.recipe import Recipe, download, images
from hilrp.models.libraries.small import Small, Table
from hilrp.util.errors import InputError

#: Architecture -> the encoder that it is built with here.
_ENCODERS = dict.fromkeys(
    ("Unet", "UnetPlusPlus", "MAnet", "Linknet", "FPN", "PSPNet", "DeepLabV3", "DeepLabV3Plus", "PAN", "UPerNet"),
    "resnet18",
) | {"Segformer": "mit_b0", "DPT": "tu-vit_tiny_patch16_224"}
#: The families of encoders, each in a U-Net.
_FAMILIES = (
    "resnet18", "resnext50_32x4d", "timm-res2net50_26w_4s", "se_resnet50", "densenet121", "inceptionv4",
    "efficientnet-b0", "mobilenet_v2", "dpn68", "vgg11_bn", "mit_b0", "mobileone_s0", "tu-convnext_atto",
)  # fmt: skip


def _small(architecture: str, encoder: str, **options: object) -> Small:
    side = 224 if encoder.startswith("tu-vit") else 192 if architecture == "PAN" else 96
    make = partial(smp.create_model, architecture, encoder, encoder_weights=None, classes=3, **options)
    return Small(make, (3, side, side))


_TABLE = Table(
    "segmentation_models_pytorch",
    {name: _small(name, encoder) for name, encoder in _ENCODERS.items()}
    | {f"Unet-{encoder}": _small("Unet", encoder) for encoder in _FAMILIES if encoder != "resnet18"}
    | {"Unet-scse": _small("Unet", "resnet18", decoder_attention_type="scse")},
)
names, kinds, trained = _TABLE.names, _TABLE.kinds, _TABLE.trained
#: Sides of pictures are multiples of this.
_STRIDE = 32
#: What encoders subtract and divide by: ImageNet's.
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def find(name: str) -> str | None:
    """A model of the table, an architecture with any encoder after a hyphen, or a name on the hub (``owner/name``)."""
    own = _TABLE.find(name)
    if own is not None or "/" in name:
        return own or (name if name.count("/") == 1 else None)
    return name if "-" in name and name.partition("-")[0].lower() in smp.MODEL_ARCHITECTURES_MAPPING else None


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A small random model, an architecture with any encoder, or a published model."""
    if "/" in name:
        return Recipe(_published(name), images(size or 256))
    if name not in names() and not pretrained:
        return Recipe(_made(name, 3), images(size or 96))
    return _TABLE.recipe(name, pretrained, size)


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A published model of the hub, or an architecture with the weights of a checkpoint.

    Pictures are normalised as ImageNet's, and keep their size but for sides that are multiples of 32.
    """
    if checkpoint is not None:
        model: Any = weights.fitted(lambda n: _made(name, n or 1), checkpoint_files.read(checkpoint), name, checkpoint)
    elif "/" in name:
        model = _published(name)
    else:
        raise InputError(
            f"segmentation_models_pytorch/{name} is an architecture, whose published weights are those of its encoder "
            "alone. Give yours (checkpoint=, --checkpoint), or a model of the hub: "
            "segmentation_models_pytorch/smp-hub/segformer-b0-512x512-ade-160k."
        )
    return Loaded(f"segmentation_models_pytorch/{name}", model, Preprocess(_prepared, _MEAN, _STD))


def _made(name: str, classes: int) -> Any:
    architecture, _, encoder = name.partition("-")
    own = next((each for each in _ENCODERS if each.lower() == architecture.lower()), "Unet")
    try:
        return smp.create_model(architecture, encoder or _ENCODERS[own], encoder_weights=None, classes=classes)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"segmentation_models_pytorch/{name}: {' '.join(str(error).split())[:200]}. Write Unet-resnet34."
        ) from error


def _published(name: str) -> Any:
    return download(name, lambda: smp.from_pretrained(name))


def _prepared(picture: Any) -> Tensor:
    width, height = (max(1, round(side / _STRIDE)) * _STRIDE for side in picture.size)
    pixels = torch.from_numpy(np.array(picture.resize((width, height), Image.Resampling.BILINEAR)))
    mean, std = (torch.tensor(each)[:, None, None] for each in (_MEAN, _STD))
    return (pixels.permute(2, 0, 1).float() / 255 - mean) / std
