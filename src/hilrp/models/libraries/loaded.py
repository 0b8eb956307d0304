"""A model ready for pictures: with its own preprocessing and the names of its classes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hilrp.attribution.texts import ImageText
from hilrp.models.images import as_rgb, read
from hilrp.models.resolve import ZOO
from hilrp.models.window import Window, measured
from hilrp.util.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image


#: What is said of the weights of the zoo's models.
ZOO_WEIGHTS = "the zoo's own weights"


@dataclass(frozen=True)
class Preprocess:
    """From a picture to what a model takes, and back to what it saw.

    Attributes:
        function: From an RGB picture to a tensor ``[3,H,W]``: resized, cropped and normalised as in training.
        mean, std: What it subtracts and divides by, per channel; ``None`` if that isn't known.
        reversed: Whether it puts the channels in the order blue, green, red.
    """

    function: Callable[[Any], Tensor]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    reversed: bool = False

    def __call__(self, image: Image.Image) -> Tensor:
        """A picture of any mode as the model takes it, ``[3,H,W]``; it is turned upright first."""
        return self.function(as_rgb(image)[0])

    def picture(self, x: Tensor) -> Tensor | None:
        """What the model saw, ``[...,3,H,W]`` with values from 0 to 1.

        Its input without the normalisation, if that is known.
        """
        if self.mean is None or self.std is None:
            return None
        x = x.float()
        mean, std = (torch.tensor(v, dtype=x.dtype, device=x.device).reshape(-1, 1, 1) for v in (self.mean, self.std))
        seen = (x * std + mean).clamp(0, 1)
        return seen.flip(-3) if self.reversed else seen


def of_answers(name: str) -> Preprocess:
    """For a model that answers in words: pictures alone are not what it takes, and what to do is said."""
    return no_pictures(
        f"{name} answers in words, and tells no classes apart. Ask it: hilrp ask FILE QUESTION --model {name}, or "
        "hilrp.explain_answer(loaded.model, loaded.processor, image, question)."
    )


def no_pictures(said: str) -> Preprocess:
    """For a model that takes no picture alone: what to do is said instead."""

    def refuse(image: Any) -> Tensor:
        raise InputError(said)

    return Preprocess(refuse)


@dataclass(frozen=True)
class Texts:
    """The text tower of a model of two.

    Attributes:
        model: Both towers, as `hilrp.texts` takes them.
        tokenise: From a caption to token numbers ``[L]``, padded as the tower was trained.
        pieces: From a caption to its tokens in letters, those that begin and end it among them.
        length: How many tokens the tower takes.
    """

    model: nn.Module
    tokenise: Callable[[str], Tensor]
    pieces: Callable[[str], list[str]]
    length: int

    def pair(self, caption: str) -> ImageText:
        """How alike pictures and a caption are, as a function of pixels and words: see `hilrp.texts.ImageText`."""
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        return ImageText(self.model, self.ids(caption).to(device)).eval()

    def ids(self, caption: str) -> Tensor:
        """The token numbers of a caption, ``[L]``; an error if it is empty, or too long for the tower."""
        if not isinstance(caption, str):
            raise InputError(f"a caption is one text, and not a {type(caption).__name__}.")
        if not caption.strip():
            raise InputError("the caption is empty. Say what is to be looked for: text:a striped red star.")
        count = len(self.pieces(caption))
        if count > self.length:
            raise InputError(f"the caption has {count} tokens, the text tower takes {self.length}. Shorten it.")
        return self.tokenise(caption)


@dataclass(frozen=True)
class Loaded:
    """What `hilrp.load` returns.

    Attributes:
        name: The full name, with its library.
        model: The model, in evaluation mode.
        preprocess: From a PIL image to a tensor ``[3,H,W]``, as the model was trained.
        classes: The names of its classes, where they are known.
        weights: Where the weights are from.
        texts: The text tower, of a model of two.
        processor: What makes inputs of pictures and a prompt, of a model that answers in words: see
            `hilrp.explain_answer`.
    """

    name: str
    model: nn.Module
    preprocess: Preprocess
    classes: list[str] | None = None
    weights: str = "published weights"
    texts: Texts | None = None
    processor: Any = None

    def __repr__(self) -> str:
        count = f"{len(self.classes)} classes" if self.classes else "classes without names"
        if self.processor is not None:
            count = "answers in words"
        return f"Loaded({self.name}, {self.weights}, {count})"

    def batch(self, images: Sequence[Image.Image | str | Path]) -> Tensor:
        """Several pictures, or their files, preprocessed, ``[B,3,H,W]``, where the model is."""
        if not isinstance(images, Sequence) or isinstance(images, str):
            raise InputError(f"batch: expected a list of pictures or of their files, not {type(images).__name__}.")
        opened = [read(Path(image))[0] if isinstance(image, (str, Path)) else image for image in images]
        made = [self.preprocess(image) for image in opened]
        if len({each.shape for each in made}) > 1:
            raise InputError(
                f"batch: {self.name} takes pictures as large as they are, and these are of several sizes. Take one at "
                "a time."
            )
        return torch.stack(made).to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((p.device for p in self.model.parameters()), torch.device("cpu"))

    @property
    def of_zoo(self) -> bool:
        """Whether it is a model of the zoo as it comes, and not one with weights of somebody's own."""
        return self.name.startswith(f"{ZOO}/") and self.weights == ZOO_WEIGHTS

    def picture(self, x: Tensor) -> Tensor | None:
        """What the model sees of its input, ``[...,3,H,W]`` from 0 to 1, if that is known: see `Preprocess.picture`."""
        return self.preprocess.picture(x)

    def likelihoods(self, logits: Tensor) -> Tensor:
        """How likely the classes are, along the last axis.

        The objects of scenes are there or not, each by itself; elsewhere one class excludes the others.
        """
        return logits.sigmoid() if self.of_zoo else logits.softmax(-1)

    def window(self, photo: Image.Image | str | Path | tuple[int, int]) -> Window | None:
        """Which part of a photograph (or of any of that width and height) the model sees.

        ``None``, where its preprocessing does more than scale, crop and pad.

        Example:
            >>> import hilrp
            >>> round(hilrp.load("zoo/swin").window((300, 200)).left)  # the middle of it
            50
        """
        size = photo if isinstance(photo, tuple) else self.photo(photo).size
        return measured(lambda image: self.picture(self.preprocess(image)), size)

    def photo(self, photo: Image.Image | str | Path) -> Image.Image:
        """A photograph, or its file, as the model is given it: upright, in colours."""
        return read(Path(photo))[0] if isinstance(photo, (str, Path)) else as_rgb(photo)[0]

    def notes(self, size: tuple[int, ...], seen: tuple[int, ...]) -> list[str]:
        """What a user should know of a picture, and of what the model saw of it, both as width and height."""
        notes = []
        if min(size) < min(seen):
            notes.append(f"the picture ({size[0]} x {size[1]}) was enlarged")
        if self.of_zoo and tuple(size) != tuple(seen):
            known = "ten classes of photographs" if self.name.endswith("-photo") else "the objects of scenes"
            notes.append(f"{self.name} knows {known} and nothing else")
        return notes

    def seen_mask(self, mask: np.ndarray) -> Tensor:
        """A mask of a picture through the model's own preprocessing.

        Scaled and cropped as the picture is, ``[H,W]``.
        """
        import numpy as np
        from PIL import Image

        picture = Image.fromarray(np.repeat(255 * mask.astype(np.uint8)[..., None], 3, axis=2))
        seen = self.preprocess.picture(self.preprocess(picture))
        if seen is None:
            raise InputError(
                f"{self.name}: where an object is after its preprocessing can't be told. Give hilrp a "
                "hilrp.models.libraries.loaded.Preprocess with mean and std."
            )
        return seen.mean(0) > 0.5

    def index(self, name: str) -> int:
        """The class of that name or number. One of several names ("tench, Tinca tinca") is enough."""
        if re.fullmatch("-?[0-9]+", name.strip()):
            index = int(name)
            if index < 0 or (self.classes and index >= len(self.classes)):
                raise InputError(
                    f"class {name}: {self.name} has {len(self.classes or ())} classes, counted from 0 to "
                    f"{len(self.classes or ()) - 1}."
                    if self.classes
                    else f"class {name}: classes are counted from 0."
                )
            return index
        if not self.classes:
            raise InputError(f"class {name!r}: {self.name} has no names for its classes. Use an index.")
        wanted = name.strip().lower().replace("_", " ")
        known: dict[str, list[int]] = {}
        for i, names in enumerate(self.classes):
            for each in {names.lower(), *(part.strip().lower() for part in names.split(","))}:
                known.setdefault(each.replace("_", " "), []).append(i)
        if len(known.get(wanted, ())) > 1:
            alike = ", ".join(f"{i} ({self.classes[i]})" for i in known[wanted])
            raise InputError(f"class {name!r} is the name of several: {alike}. Use an index.")
        if wanted not in known:
            close = [n for n in known if wanted in re.split(r"[^\w]+", n)][:5]
            close = close or get_close_matches(wanted, known, 3, 0.6) or [n for n in known if wanted in n][:5]
            hint = f" Did you mean {', '.join(repr(c) for c in close)}?" if close else " Use an index."
            raise InputError(f"class {name!r}: {self.name} knows no such class.{hint}")
        return known[wanted][0]

    def named(self, index: int) -> str:
        """The name of a class, or its number."""
        if self.classes and index < len(self.classes):
            return self.classes[index]
        return f"class {index}" if self.classifies else f"feature {index}"

    @property
    def classifies(self) -> bool:
        """Whether it tells classes apart; a model without a classifier returns features."""
        return getattr(self.model, "num_classes", None) != 0
