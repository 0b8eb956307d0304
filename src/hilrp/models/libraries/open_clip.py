"""open_clip: the image towers, explained by their cosine to a caption's embedding."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.texts import ZeroShot
from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import Loaded, Preprocess, Texts
from hilrp.models.libraries.recipe import Recipe, download, images
from hilrp.util.errors import InputError


def names() -> list[str]:
    """All models whose text tower needs no download."""
    return [name for name in open_clip.list_models() if not _needs_hub(name)]


def kinds() -> list[str]:
    """One tower of each kind: open_clip's own ViT and ResNet, CoCa's, and several of timm's."""
    return list(_KINDS)


_KINDS = (
    "ViT-B-32", "ViT-B-32-quickgelu", "RN50", "coca_ViT-B-32", "ViT-B-16-SigLIP", "convnext_tiny", "EVA02-B-16",
    "MobileCLIP-S1", "ViTamin-S", "PE-Core-T-16-384", "swin_base_patch4_window7_224", "vit_medium_patch16_gap_256",
)  # fmt: skip


def find(name: str) -> str | None:
    """The name itself, if open_clip has it."""
    return name if name in open_clip.list_models() else None


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """The image tower of a model of open_clip."""

    def make() -> Any:
        tag = _tag(name) if pretrained else None
        return open_clip.create_model(name, pretrained=tag, **({"force_image_size": size} if size else {}))

    if not pretrained and _needs_hub(name):
        raise InputError(f"open_clip/{name}: its text tower's configuration comes from a hub. Use --pretrained online.")
    model: Any = download(name, make) if pretrained else make()
    tower = model.visual
    side = tower.image_size if isinstance(tower.image_size, int) else tower.image_size[0]
    return Recipe(tower, images(side), similarity)


def similarity(output: Any) -> Tensor:
    """Cosine to a fixed direction, which stands for the embedding of a caption."""
    embedding = output if isinstance(output, Tensor) else output[0]
    generator = torch.Generator().manual_seed(1)
    caption = torch.randn(embedding.shape[-1], generator=generator).to(embedding)
    return F.normalize(embedding, dim=-1) @ F.normalize(caption, dim=-1)


def trained() -> list[str]:
    """The names of models that have published weights."""
    return [name for name in names() if open_clip.list_pretrained_tags_by_model(name)]


def _tag(name: str) -> str:
    """The first of the published weights that were trained with the activation which the model has."""
    own = open_clip.get_model_config(name).get("quick_gelu", False)
    tags = open_clip.list_pretrained_tags_by_model(name)
    fit = [tag for tag in tags if bool(open_clip.get_pretrained_cfg(name, tag).get("quick_gelu", False)) == own]
    if not fit:
        raise InputError(
            f"open_clip/{name} has no published weights that fit "
            f"it{f' ({tags[0]} needs another activation)' if tags else ''}. Give a file with some (checkpoint=), or "
            "take a model such as open_clip/ViT-B-32-quickgelu."
        )
    found: str = fit[0]
    return found


def _needs_hub(name: str) -> bool:
    return "hf_model_name" in open_clip.get_model_config(name).get("text_cfg", {})


def load(name: str, checkpoint: str | Path | None = None, classes: Sequence[str] | None = None) -> Loaded:
    """A model of open_clip as a zero-shot classifier of the given classes; of ImageNet's, by default."""

    def make(_: int | None) -> nn.Module:
        return download(name, lambda: open_clip.create_model(name))

    if checkpoint is None:
        tag = _tag(name)
        model: Any = download(name, lambda: open_clip.create_model(name, pretrained=tag))
    else:
        model = weights.fitted(make, checkpoint_files.read(checkpoint), name, checkpoint)
    names = list(classes or open_clip.IMAGENET_CLASSNAMES)
    tokenise: Any = download(name, lambda: open_clip.get_tokenizer(name))
    with torch.no_grad():
        parts = [names[i : i + 100] for i in range(0, len(names), 100)]
        captions = torch.cat([model.eval().encode_text(tokenise([f"a photo of a {n}" for n in p])) for p in parts])
        scale = float(model.logit_scale.exp())
    tower = model.visual
    transform = image_transform_v2(PreprocessCfg(**tower.preprocess_cfg), is_train=False)
    preprocess = Preprocess(transform, tuple(tower.image_mean), tuple(tower.image_std))
    return Loaded(
        f"open_clip/{name}", ZeroShot(tower, captions, scale), preprocess, names, texts=texts(model, tokenise)
    )


def texts(model: nn.Module, tokenise: Any) -> Texts:
    """The text tower with its tokeniser: open_clip's own, or one of transformers' inside of it."""
    inner = getattr(tokenise, "tokenizer", None)

    def pieces(caption: str) -> list[str]:
        if inner is not None:
            found: list[str] = inner.convert_ids_to_tokens(inner(caption)["input_ids"])
            return found
        words = [tokenise.decoder[i].replace("</w>", "") for i in tokenise.encode(caption)]
        return ["<start>", *words, "<end>"]

    length = int(getattr(model, "context_length", None) or tokenise.context_length)
    return Texts(model, lambda caption: tokenise([caption], context_length=length)[0], pieces, length)
