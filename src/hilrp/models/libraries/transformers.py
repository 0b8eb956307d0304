"""transformers: small random configurations of models that see or hear, by name, and any model of the hub or on disk.

The names of the table are transformers' own model types. A configuration is small, but has every kind of block that
the published models of that type have.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn

from hilrp.attribution.texts import ImageTower
from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries import answering
from hilrp.models.libraries.loaded import Loaded, Preprocess, Texts
from hilrp.models.libraries.recipe import Recipe, download, images, keyword, strongest
from hilrp.util.errors import InputError


class Small(NamedTuple):
    """A small configuration: the class of the model, what its configuration differs in, what it takes and returns."""

    model: str
    options: dict[str, Any]
    size: int = 64
    target: Callable[[Any], Tensor] = strongest
    constants: dict[str, Tensor] = {}  # noqa: RUF012 (a NamedTuple's default is shared, and never written to)
    shape: tuple[int, ...] = ()  # of what is no picture: films, spectrograms, waves
    name: str = "pixel_values"


_VIT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
_VIT_16 = _VIT | {"image_size": 64, "patch_size": 16}
_SWIN = {"image_size": 64, "patch_size": 4, "embed_dim": 24, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_SWIN_BACKBONE = _SWIN | {
    "model_type": "swin",
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 4, 8],
    "out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_PYRAMID = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 32, 40, 64]}
_HEADS = {"num_attention_heads": [1, 2, 5, 8]}
_TEXT = _VIT | {
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "bos_token_id": 97,
    "eos_token_id": 98,
    "pad_token_id": 0,
}
_RESNET = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 24, 32, 48],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
_QUERIES = {
    "d_model": 32,
    "num_queries": 7,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
}
_DETR = _QUERIES | {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
#: Words with the numbers that Grounding DINO takes for what ends a phrase.
_PHRASES = {
    "input_ids": torch.tensor([101, 7, 9, 1012, 12, 1012, 102]),
    "attention_mask": torch.ones(7, dtype=torch.long),
    "token_type_ids": torch.zeros(7, dtype=torch.long),
}
_WORDS = {"input_ids": torch.arange(1, 9), "attention_mask": torch.ones(8, dtype=torch.long)}


def _image_text(output: Any) -> Tensor:
    """The similarity of each image with its own text."""
    similarity: Tensor = output.logits_per_image.diagonal()
    return similarity


def _masks(output: Any) -> Tensor:
    """The strongest query's mask, over the image."""
    return strongest(output.masks_queries_logits)


def _sam_masks(output: Any) -> Tensor:
    return strongest(output.pred_masks.flatten(1, 2))


def _matched(output: Any) -> Tensor:
    """How well the queries match the first word, in the mean."""
    matched: Tensor = output.logits[:, :, 1].mean(1)
    return matched


def _depth(output: Any) -> Tensor:
    depth: Tensor = output.predicted_depth.flatten(1).mean(1)
    return depth


def _pooled(output: Any) -> Tensor:
    return strongest(output.last_hidden_state)


_SIMILAR: dict[str, Any] = {"target": _image_text, "constants": _WORDS}
_FILM: dict[str, Any] = {"shape": (8, 3, 32, 32), "size": 32}
_VIT_FILM = _VIT | {"image_size": 32, "num_frames": 8}
#: Waves: seven convolutions in time as the published models have, then a transformer.
_WAVE = _VIT | {
    "conv_dim": [16] * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 16,
}  # fmt: skip
_HEARD: dict[str, Any] = {"shape": (4000,), "name": "input_values"}

#: Model type -> small configuration.
SMALL: dict[str, Small] = {
    "vit": Small("ViTForImageClassification", _VIT_16),
    "vit_msn": Small("ViTMSNForImageClassification", _VIT_16),
    "ijepa": Small("IJepaForImageClassification", _VIT_16),
    "deit": Small("DeiTForImageClassificationWithTeacher", _VIT_16),
    "beit": Small(
        "BeitForImageClassification", _VIT_16 | {"use_relative_position_bias": True, "layer_scale_init_value": 0.1}
    ),
    "data2vec-vision": Small(
        "Data2VecVisionForImageClassification", _VIT_16 | {"use_shared_relative_position_bias": True}
    ),
    "dinov2": Small("Dinov2ForImageClassification", _VIT_16),
    "dinov2_with_registers": Small("Dinov2WithRegistersForImageClassification", _VIT_16 | {"use_swiglu_ffn": True}),
    "dinov3_vit": Small("DINOv3ViTModel", _VIT_16 | {"num_register_tokens": 2, "use_gated_mlp": True}, target=_pooled),
    "swin": Small("SwinForImageClassification", _SWIN),
    "swinv2": Small("Swinv2ForImageClassification", _SWIN),
    "pvt": Small("PvtForImageClassification", _PYRAMID | _HEADS | {"image_size": 64}),
    "pvt_v2": Small("PvtV2ForImageClassification", _PYRAMID | _HEADS | {"image_size": 64}),
    "mobilevit": Small(
        "MobileViTForImageClassification",
        {"image_size": 64, "hidden_sizes": [32, 40, 48], "neck_hidden_sizes": [8, 16, 24, 32, 40, 48, 64]},
    ),
    "mobilevitv2": Small(
        "MobileViTV2ForImageClassification",
        {"image_size": 64, "width_multiplier": 0.25, "base_attn_unit_dims": [64, 96, 128], "n_attn_blocks": [1, 1, 1]},
    ),
    "hiera": Small(
        "HieraForImageClassification",
        {
            "image_size": [64, 64],
            "patch_stride": [4, 4],
            "embed_dim": 24,
            "depths": [1, 1, 2, 1],
            "num_heads": [1, 2, 4, 8],
            "masked_unit_size": [8, 8],
        },
    ),
    "focalnet": Small(
        "FocalNetForImageClassification",
        {"image_size": 64, "embed_dim": 24, "depths": [1, 1, 1, 1], "hidden_sizes": [24, 48, 96, 192]},
    ),
    "cvt": Small("CvtForImageClassification", {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 3]}),
    "levit": Small(
        "LevitForImageClassification",
        {
            "image_size": 64,
            "hidden_sizes": [32, 48, 64],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "key_dim": [8, 8, 8],
            "mlp_ratio": [2, 2, 2],
            "attention_ratio": [2, 2, 2],
        },
    ),
    "poolformer": Small("PoolFormerForImageClassification", _PYRAMID),
    "convnext": Small("ConvNextForImageClassification", _PYRAMID),
    "convnextv2": Small("ConvNextV2ForImageClassification", _PYRAMID),
    "resnet": Small(
        "ResNetForImageClassification", {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1]}
    ),
    "regnet": Small(
        "RegNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "groups_width": 8},
    ),
    "bit": Small(
        "BitForImageClassification",
        {"embedding_size": 32, "hidden_sizes": [128, 128, 256, 256], "depths": [1, 1, 1, 1], "num_groups": 4},
    ),
    "mobilenet_v2": Small("MobileNetV2ForImageClassification", {"depth_multiplier": 0.35}),
    "efficientnet": Small(
        "EfficientNetForImageClassification", {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320}
    ),
    "clip": Small("CLIPModel", {"projection_dim": 24, "vision_config": _VIT_16, "text_config": _TEXT}, **_SIMILAR),
    "siglip": Small(
        "SiglipModel", {"vision_config": _VIT_16, "text_config": _TEXT | {"projection_size": 48}}, **_SIMILAR
    ),
    "segformer": Small(
        "SegformerForSemanticSegmentation", _PYRAMID | {"num_attention_heads": [1, 2, 5, 8], "decoder_hidden_size": 32}
    ),
    "upernet": Small(
        "UperNetForSemanticSegmentation",
        {
            "backbone_config": _SWIN | {"model_type": "swin", "out_features": ["stage1", "stage2"]},
            "hidden_size": 32,
            "pool_scales": [1, 2],
            "use_auxiliary_head": False,
        },
    ),
    "mask2former": Small(
        "Mask2FormerForUniversalSegmentation",
        {
            "backbone_config": _SWIN_BACKBONE,
            "hidden_dim": 32,
            "mask_feature_size": 32,
            "feature_size": 32,
            "num_queries": 7,
            "encoder_layers": 1,
            "decoder_layers": 2,
            "num_attention_heads": 4,
            "dim_feedforward": 48,
            "encoder_feedforward_dim": 48,
        },
        target=_masks,
    ),
    "maskformer": Small(
        "MaskFormerForInstanceSegmentation",
        {
            "fpn_feature_size": 32,
            "mask_feature_size": 32,
            "backbone_config": _SWIN_BACKBONE,
            "decoder_config": {"model_type": "detr"} | _DETR,
        },
        target=_masks,
    ),
    "detr": Small("DetrForObjectDetection", _DETR | {"backbone_config": _RESNET}),
    "deformable_detr": Small(
        "DeformableDetrForObjectDetection", _DETR | {"backbone_config": _RESNET, "num_feature_levels": 3}
    ),
    "rt_detr": Small(
        "RTDetrForObjectDetection",
        {
            "backbone_config": _RESNET | {"model_type": "rt_detr_resnet"},
            "encoder_in_channels": [24, 32, 48],
            "encoder_hidden_dim": 32,
            "d_model": 32,
            "num_queries": 7,
            "decoder_in_channels": [32, 32, 32],
            "decoder_ffn_dim": 48,
            "encoder_ffn_dim": 48,
            "decoder_layers": 2,
            "decoder_attention_heads": 4,
            "encoder_attention_heads": 4,
            "num_denoising": 0,
        },
    ),
    "grounding-dino": Small(
        "GroundingDinoForObjectDetection",
        _QUERIES
        | {
            "backbone_config": _SWIN_BACKBONE | {"out_features": ["stage2", "stage3", "stage4"]},
            "text_config": {"model_type": "bert", "vocab_size": 2000}
            | {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
            "num_feature_levels": 3,
            "max_text_len": 16,
        },
        target=_matched,
        constants=_PHRASES,
    ),
    "yolos": Small("YolosForObjectDetection", _VIT_16 | {"image_size": [64, 64], "num_detection_tokens": 7}),
    "dpt": Small(
        "DPTForSemanticSegmentation",
        _VIT_16
        | {
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 16, 24, 32],
            "fusion_hidden_size": 24,
            "use_auxiliary_head": False,
        },
    ),
    "glpn": Small(
        "GLPNForDepthEstimation",
        _PYRAMID | {"num_attention_heads": [1, 2, 5, 8], "decoder_hidden_size": 16},
        target=_depth,
    ),
    "sam": Small(
        "SamModel",
        {
            "vision_config": _VIT
            | {
                "image_size": 64,
                "patch_size": 8,
                "window_size": 3,
                "global_attn_indexes": [1],
                "output_channels": 32,
                "num_pos_feats": 16,
                "mlp_dim": 96,
            },
            "prompt_encoder_config": {"hidden_size": 32, "image_size": 64, "patch_size": 8, "mask_input_channels": 8},
            "mask_decoder_config": {
                "hidden_size": 32,
                "mlp_dim": 48,
                "num_attention_heads": 4,
                "iou_head_hidden_dim": 32,
            },
        },
        target=_sam_masks,
        constants={"input_points": torch.tensor([[[20.0, 30.0]]])},
    ),
    "videomae": Small("VideoMAEForVideoClassification", _VIT_FILM | {"patch_size": 8, "tubelet_size": 2}, **_FILM),
    "timesformer": Small("TimesformerForVideoClassification", _VIT_FILM | {"patch_size": 8}, **_FILM),
    "vivit": Small("VivitForVideoClassification", _VIT_FILM | {"tubelet_size": [2, 8, 8]}, **_FILM),
    "audio-spectrogram-transformer": Small(
        "ASTForAudioClassification",
        _VIT | {"max_length": 64, "num_mel_bins": 32, "patch_size": 8, "time_stride": 6, "frequency_stride": 6},
        shape=(64, 32),
        name="input_values",
    ),
    "wav2vec2": Small("Wav2Vec2ForSequenceClassification", _WAVE, **_HEARD),
    "hubert": Small("HubertForSequenceClassification", _WAVE, **_HEARD),
    "wavlm": Small("WavLMForSequenceClassification", _WAVE | {"num_buckets": 32, "max_bucket_distance": 64}, **_HEARD),
    "whisper": Small(
        "WhisperForAudioClassification",
        {"d_model": 48, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 96, "decoder_layers": 1,
         "decoder_attention_heads": 3, "decoder_ffn_dim": 96, "num_mel_bins": 32, "max_source_positions": 50,
         "classifier_proj_size": 16},
        shape=(32, 100),
        name="input_features",
    ),
}  # fmt: skip


def names() -> list[str]:
    """The model types with a small configuration."""
    return list(SMALL)


def trained() -> list[str]:
    """None by these names: trained models are those of the hub (``owner/name``) and folders."""
    return []


def find(name: str) -> str | None:
    """A model type, a name on the hub (``owner/name``), or a folder with a saved model."""
    name = name.removesuffix("/")
    if name in SMALL or name in transformers.CONFIG_MAPPING or (Path(name) / "config.json").is_file():
        return name
    return name if name.count("/") == 1 and not name.startswith((".", "/")) else None


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A small random model of a type; or a saved or published one."""
    if name in SMALL and not pretrained:
        small = SMALL[name]
        if size is not None and (size != small.size or small.name != "pixel_values"):
            what = "images" if not small.shape else "inputs"
            sides = (small.size, small.size) if not small.shape else small.shape
            raise InputError(
                f"transformers/{name} is a small configuration for {what} of {' x '.join(map(str, sides))}."
            )
        kind = getattr(transformers, small.model)
        options = small.options if small.model in _WITHOUT_LABELS else {"num_labels": 5} | small.options
        config = kind.config_class(**options)
        inputs = keyword(small.name, images(small.shape or small.size), **small.constants)
        return Recipe(kind(config), inputs, small.target)
    if name in transformers.CONFIG_MAPPING and pretrained:
        raise InputError(
            f"transformers/{name} is a type of model, which has no published weights. Name a model of the hub, "
            "transformers/owner/name, or a folder with a saved one."
        )
    if name in transformers.CONFIG_MAPPING:
        model = _from(transformers.AutoConfig.for_model(name))
    else:
        model = download(
            name,
            lambda: (
                _from_pretrained(name)
                if pretrained
                else _from(transformers.AutoConfig.from_pretrained(name, trust_remote_code=False))
            ),
        )
    side = size or getattr(model.config, "image_size", 224)
    shape = (3, *side) if isinstance(side, (list, tuple)) else (3, side, side)
    return Recipe(model, keyword("pixel_values", images(shape)))


_WITHOUT_LABELS = ("CLIPModel", "SiglipModel", "SamModel", "DINOv3ViTModel", "GroundingDinoForObjectDetection")


def _from(config: Any) -> Any:
    """A model with random weights: a classifier where the type has one."""
    try:
        return transformers.AutoModelForImageClassification.from_config(config)
    except ValueError:
        return transformers.AutoModel.from_config(config)


def _from_pretrained(name: str) -> Any:
    try:
        return transformers.AutoModelForImageClassification.from_pretrained(name, trust_remote_code=False)
    except ValueError:
        return transformers.AutoModel.from_pretrained(name, trust_remote_code=False)


#: Part of an architecture's name -> the class that loads it. What is left are models of two towers.
_HEADS_OF = {
    "ForImageClassification": "AutoModelForImageClassification",
    "ForSemanticSegmentation": "AutoModelForSemanticSegmentation",
    "ForObjectDetection": "AutoModelForObjectDetection",
    "ForUniversalSegmentation": "AutoModelForUniversalSegmentation",
}


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A model of the hub or in a folder, with its own processor, and its own weights or those of a checkpoint."""
    if name in transformers.CONFIG_MAPPING:
        raise InputError(
            f"transformers/{name} is a type of model, which has no weights. Name a model of the hub, "
            "transformers/owner/name, or a folder with a saved one."
        )
    config: Any = download(name, lambda: transformers.AutoConfig.from_pretrained(name, trust_remote_code=False))
    architectures = config.architectures or []
    head = next((kind for part, kind in _HEADS_OF.items() if any(part in each for each in architectures)), None)
    towers = all(hasattr(config, part) for part in ("text_config", "vision_config")) and any(
        each.endswith("Model") for each in architectures
    )
    if head is None and answering.answers(config):
        return answering.load(name, config, checkpoint)
    if head is None and not towers:
        raise InputError(
            f"transformers/{name} ({', '.join(architectures or ['no architecture given'])}) is no classifier, "
            "segmentation model, detector, model of two towers or one that answers in words. Load it with "
            "transformers, and pass hilrp.explain a target: a function of its output."
        )
    kind: Any = getattr(transformers, head or "AutoModel")
    processor: Any = download(
        name, lambda: transformers.AutoImageProcessor.from_pretrained(name, trust_remote_code=False)
    )

    def make(classes: int | None) -> nn.Module:
        own = deepcopy(config)  # the next one is made from it, too
        if classes is not None:
            own.num_labels = classes
        made: nn.Module = kind.from_config(own)
        return made

    if checkpoint is None:
        model: Any = download(name, lambda: kind.from_pretrained(name, trust_remote_code=False))
    else:
        model = weights.fitted(make, checkpoint_files.read(checkpoint), name, checkpoint)

    def process(image: Any) -> Tensor:
        pixels: Tensor = processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    normal = getattr(processor, "do_normalize", True)
    preprocess = Preprocess(
        process,
        tuple(processor.image_mean) if normal else (0.0,) * 3,
        tuple(processor.image_std) if normal else (1.0,) * 3,
        reversed=bool(getattr(processor, "do_flip_channel_order", False)),
    )
    if head is None:
        tokeniser: Any = download(
            name, lambda: transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        )
        return Loaded(f"transformers/{name}", ImageTower(model), preprocess, texts=_texts(model, tokeniser))
    labels = [model.config.id2label[i] for i in range(model.config.num_labels)]
    return Loaded(f"transformers/{name}", model, preprocess, labels)


def _texts(model: Any, tokeniser: Any) -> Texts:
    """The text tower with its tokeniser. SigLIP was trained on captions that fill its length."""
    length = int(model.config.text_config.max_position_embeddings)
    padding: Any = "max_length" if "siglip" in model.config.model_type else False

    def tokenise(caption: str) -> Tensor:
        ids: Tensor = tokeniser(caption, padding=padding, max_length=length, return_tensors="pt")["input_ids"][0]
        return ids

    def pieces(caption: str) -> list[str]:
        found: list[str] = tokeniser.convert_ids_to_tokens(tokeniser(caption)["input_ids"])
        return found

    return Texts(model, tokenise, pieces, length)
