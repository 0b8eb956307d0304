"""timm: every registered model, with the image size of its configuration."""

from __future__ import annotations

from typing import Any

import timm
import torch

from hilrp.errors import InputError
from hilrp.libraries.recipe import Recipe, download, images


def names() -> list[str]:
    """All models."""
    return list(timm.list_models())


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
        model = download(name, make) if pretrained else make()
    except (ValueError, AssertionError) as error:
        if size is None:
            raise
        raise InputError(f"timm/{name} can't be built for images of {size} x {size}: {error}") from error
    channels, *default = model.default_cfg["input_size"]
    return Recipe(model, images((channels, size, size) if size else (channels, *default)))
