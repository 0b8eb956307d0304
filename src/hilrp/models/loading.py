"""Models ready for pictures: trained weights, their own preprocessing, the names of their classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.resolve import ZOO, call_factory, is_factory, library, resolve
from hilrp.util.errors import InputError, UnavailableError
from hilrp.util.regular_files import open_regular, printable

#: The model that commands take where none is named, if their pictures are photographs, and if they are scenes.
DEFAULT_MODEL = "timm/tiny_vit_5m_224.dist_in22k_ft_in1k"
SCENES_MODEL = f"{ZOO}/swin"
#: And where a question is asked.
ANSWERING_MODEL = f"{ZOO}/captioner"
#: The most bytes that a file with the names of classes may have.
_NAMES = 2**24


def split_name(name: str) -> tuple[str, str | None]:
    """A model and its checkpoint, which may follow an @."""
    model, _, checkpoint = name.partition("@")
    return model, checkpoint or None


def load(
    name: str,
    checkpoint: str | Path | None = None,
    classes: Sequence[str] | str | Path | None = None,
    device: str | torch.device = "cpu",
) -> Loaded:
    """A trained model by name, in evaluation mode, with its own preprocessing and the names of its classes.

    Args:
        name: ``zoo/swin`` and its like come with hilrp. Models of timm, torchvision, transformers (a name on the hub or
            a folder) and open_clip (a zero-shot classifier), with or without ``library/`` before the name, get their
            published weights, which needs a connection or the library's cache. ``module:factory`` is a function of
            yours that returns a model of timm, whose preprocessing is known; or any model, its preprocessing and,
            perhaps, the names of its classes; or a `Loaded`.
        checkpoint: A file with weights for that architecture: safetensors, or what torch.save wrote; no code in it is
            run.
        classes: The names of the classes, in order, where hilrp can't know them, or a text file with one per line; for
            open_clip, what is to be told apart.
        device: Where the model is put.

    Example:
        >>> loaded = load("zoo/tinyvit")
        >>> loaded.classes[:2], type(loaded.model).__name__
        (['red star', 'yellow star'], 'TinyVit')
    """
    if isinstance(classes, (str, Path)):
        classes = class_names(Path(classes))
    if is_factory(name):
        if checkpoint is not None:
            raise InputError(f"{name} with a checkpoint: a function of yours loads its own weights.")
        loaded = _from_factory(name)
    else:
        place, found = resolve(name)
        if "/" not in name and place == "transformers" and library(ZOO).find(name):
            raise UnavailableError(
                f"{name}: transformers has no trained model of that name. Did you mean {ZOO}/{name}?"
            )
        options = {"classes": classes} if place == "open_clip" else {}
        loaded = library(place).load(found, checkpoint, **options)
        if checkpoint is not None:
            loaded = replace(loaded, weights=f"weights of {Path(checkpoint).name}")
    loaded.model.to(device).eval()
    if loaded.texts is not None:  # the explained model may hold one tower alone
        loaded.texts.model.to(device).eval()
    return replace(loaded, classes=_checked(loaded, classes))


def class_names(path: Path) -> list[str]:
    """The names of classes in a text file, one per line."""
    try:
        with open_regular(path, _NAMES) as file:
            return [line.strip() for line in file.read().decode("utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InputError(
            f"{printable(path)}: not a text file ({error}). Give the names of the classes, one per line, in UTF-8."
        ) from error


def _checked(loaded: Loaded, classes: Sequence[str] | None) -> list[str] | None:
    """The user's names, or the library's where there are as many of them as the model has classes."""
    count = _count(loaded.model)
    if classes is not None:
        if count is not None and len(classes) != count:
            raise InputError(f"classes has {len(classes)} names, but {loaded.name} tells {count} classes apart.")
        return list(classes)
    return loaded.classes if loaded.classes and count in (None, len(loaded.classes)) else None


def _count(model: nn.Module) -> int | None:
    """How many classes a model tells apart, where it says so, or where its last layer does."""
    own = getattr(model, "num_classes", getattr(getattr(model, "config", None), "num_labels", None))
    if isinstance(own, int) and own > 0:
        return own
    last = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))][-1:]
    plain = type(model).__module__.startswith("torchvision.models")
    return len(last[0].weight) if plain and last else None


def _from_factory(name: str) -> Loaded:
    made = call_factory(name)
    found = with_preprocessing(name, made)
    if found is not None:
        return found
    what = type(made[0] if isinstance(made, tuple) and made else made).__name__
    raise InputError(
        f"{name} returned {f'a tuple that begins with {what}' if isinstance(made, tuple) else what}: how pictures are "
        "prepared for it isn't known. Return a model of timm, or (model, preprocess) or (model, preprocess, classes), "
        "where preprocess makes a tensor [3,H,W] of a PIL image, or a hilrp.Loaded."
    )


def with_preprocessing(name: str, made: Any) -> Loaded | None:
    """What a function of the user's returned, if it is a model whose preprocessing is known."""
    if isinstance(made, Loaded):
        return made
    weights = "the function's weights"
    # timm's models carry their own configuration; one of another kind has none.
    if isinstance(made, nn.Module) and getattr(made, "pretrained_cfg", None):
        timm = library("timm")
        return Loaded(name, made, timm.preprocessing(made, timm.built_size(made)), timm.class_names(made), weights)
    model, preprocess, *rest = made if isinstance(made, tuple) and len(made) in (2, 3) else (None, None)
    if not isinstance(model, nn.Module) or not callable(preprocess):
        return None
    if not isinstance(preprocess, Preprocess):
        preprocess = Preprocess(preprocess)
    return Loaded(name, model, preprocess, list(rest[0]) if rest and rest[0] else None, weights)
