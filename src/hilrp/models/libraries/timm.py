"""timm: every registered model, with the image size of its configuration."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.libraries.recipe import Recipe, download, images
from hilrp.util.errors import InputError


def names() -> list[str]:
    """All models."""
    return list(timm.list_models())


def trained() -> list[str]:
    """The names of models that have published weights."""
    return list(timm.list_models(pretrained=True))


def modules() -> dict[str, list[str]]:
    """Model module -> its models; a module is about one paper."""
    return {module: list(timm.list_models(module=module)) for module in timm.list_modules()}


def find(name: str) -> str | None:
    """The name itself, if timm has it (a tag of pretrained weights may follow a dot)."""
    return name if timm.is_model(name) else None


def parameters(name: str) -> int:
    """Number of parameters, without making any."""
    with torch.device("meta"):
        model = timm.create_model(name)
    return sum(p.numel() for p in model.parameters())


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A model of timm."""
    # Models that are bound to an image size are built for it; the others take any.
    options = {"img_size": size} if size is not None else {}

    def make() -> Any:
        try:
            return timm.create_model(name, pretrained=pretrained, **options)
        except TypeError as error:
            if "img_size" not in str(error):
                raise
            return timm.create_model(name, pretrained=pretrained)

    model: Any
    try:
        model = download(name, make, _url(name)) if pretrained else make()
    except (ValueError, AssertionError) as error:
        if size is None:
            raise
        raise InputError(f"timm/{name} can't be built for images of {size} x {size}: {error}") from error
    channels, *default = model.default_cfg["input_size"]
    return Recipe(model, images((channels, size, size) if size else (channels, *default)))


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A model of timm with published weights or those of a checkpoint."""

    def make(classes: int | None) -> nn.Module:
        made: nn.Module = timm.create_model(name, **({} if classes is None else {"num_classes": classes}))
        return made

    if checkpoint is None:
        model = download(name, lambda: timm.create_model(name, pretrained=True), _url(name))
    else:
        model = weights.fitted(make, checkpoint_files.read(checkpoint), name, checkpoint, _published_format)
    return Loaded(f"timm/{name}", model, preprocessing(model), class_names(model))


def _url(name: str) -> str | None:
    """Where the weights of a model are, if that isn't the hub."""
    config = timm.get_pretrained_cfg(name) if timm.models.is_model_pretrained(name) else None
    return None if config is None or config.hf_hub_id else config.url or None


def resized(loaded: Loaded, size: int) -> Loaded:
    """A model of timm for images of another size: positions are interpolated, where it has learned some."""
    model: Any = loaded.model
    if not hasattr(model, "set_input_size"):
        raise InputError(f"{loaded.name} has one size of images, or takes any; it can't be set to {size} x {size}.")
    try:
        model.set_input_size(img_size=(size, size))
    except AssertionError as error:
        raise InputError(f"{loaded.name} can't be set to images of {size} x {size}: {error}") from error
    return replace(loaded, preprocess=preprocessing(model, size))


def preprocessing(model: nn.Module, size: int | None = None) -> Preprocess:
    """The preprocessing of a timm model's own configuration, or the same for images of another size."""
    config = timm.data.resolve_data_config({} if size is None else {"input_size": (3, size, size)}, model=model)
    return Preprocess(timm.data.create_transform(**config), tuple(config["mean"]), tuple(config["std"]))


def built_size(model: nn.Module) -> int | None:
    """The side of the images that a model was built for, where it is bound to one: its configuration may name another.

    Example:
        >>> built_size(timm.create_model("test_vit", img_size=96))
        96
    """
    size = getattr(getattr(model, "patch_embed", None), "img_size", None)
    return int(size[0]) if isinstance(size, tuple) and len(set(size)) == 1 else None


def class_names(model: nn.Module) -> list[str] | None:
    """ImageNet's, where there are as many as one of its subsets has."""
    subset = timm.data.infer_imagenet_subset({"num_classes": getattr(model, "num_classes", None)})
    if subset is None:
        return None
    info = timm.data.ImageNetInfo(subset)
    return [info.index_to_description(i) for i in range(info.num_classes())]


def _published_format(state: checkpoint_files.State, model: nn.Module) -> checkpoint_files.State:
    """Timm's own translation of the authors' checkpoints, and of weights for another image size."""
    translate = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    translated: checkpoint_files.State = translate(state, model) if translate is not None else state
    return translated
