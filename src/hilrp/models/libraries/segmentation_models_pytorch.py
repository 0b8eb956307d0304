"""segmentation_models_pytorch: one small model of each architecture, and of each family of encoders of its own."""

from __future__ import annotations

from functools import partial

import segmentation_models_pytorch as smp

from hilrp.models.libraries.small import Small, Table

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
names, kinds, find, recipe = _TABLE.names, _TABLE.kinds, _TABLE.find, _TABLE.recipe
trained, load = _TABLE.trained, _TABLE.load
