"""From the labels of a data set to the classes of a model."""

from __future__ import annotations

from functools import cache
from typing import Any

from hilrp.models.libraries.loaded import Loaded
from hilrp.util.errors import HilrpError


def label_index(loaded: Loaded, label: Any) -> int | None:
    """The class of a label, by number, name, or name of a folder of ImageNet.

    ``None`` if the model knows none of it.
    """
    if label is None:
        return None
    names = [str(label)]
    if isinstance(label, str) and label in synsets():
        if len(loaded.classes or ()) == len(synsets()):
            return synsets()[label]
        names = _described(label)  # a model of some of ImageNet's classes knows their names
    for name in names:
        try:
            return loaded.index(name)
        except HilrpError:
            continue
    return None


@cache
def synsets() -> dict[str, int]:
    """ImageNet's names of folders, with the numbers of their classes."""
    from timm.data import ImageNetInfo

    return {name: i for i, name in enumerate(ImageNetInfo("imagenet-1k").label_names())}


def _described(synset: str) -> list[str]:
    from timm.data import ImageNetInfo

    words: str = ImageNetInfo("imagenet-1k").label_name_to_description(synset)
    return [word.strip() for word in words.split(",")]
