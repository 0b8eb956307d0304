"""References: what an explanation is relative to.

Relevance relative to a reference ``x0`` sums to ``f(x) - f(x0)`` over the pixels. Which question that answers depends
on ``x0``: what makes this picture score higher than a grey one, than its own blurred self, than a healthy scan?
`Neutral` looks for a plain colour whose score is about zero, so that the pixels hold the score itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.attribution.checks import check_storage
from hilrp.attribution.forward_backward import input_names
from hilrp.attribution.kinds import Kind
from hilrp.attribution.neutral import Neutral
from hilrp.attribution.question import Question, is_image, normalisation
from hilrp.util.errors import HilrpError, InputError
from hilrp.util.nested import map_tensors, tensors


class Reference(Protocol):
    """A way to find references."""

    def __call__(self, question: Question) -> list[Any]:
        """References in the form of the input; the explanations of several are averaged."""
        ...


@dataclass(frozen=True)
class Given:
    """An input of your own: a healthy scan, the same scene without the object.

    Attributes:
        value: Like the input; of one sample for all of them.
        name: What it is called in tables and figures: the score is 8.2 higher than on ...
    """

    value: Any
    name: str = "the reference given"

    def __call__(self, question: Question) -> list[Any]:
        """The value, for each sample."""
        return [self._like(self.value, question.x, question.batch)]

    def _like(self, value: Any, x: Any, batch: int) -> Any:
        """The reference in the form of the input, part by part."""
        if isinstance(x, Mapping):
            if not isinstance(value, Mapping) or set(value) != set(x):
                raise InputError(f"reference must have the names of the input, {', '.join(map(str, x))}.")
            return type(x)({name: self._like(value[name], part, batch) for name, part in x.items()})  # type: ignore[call-arg]
        if isinstance(x, (tuple, list)):
            if not isinstance(value, (tuple, list)) or len(value) != len(x):
                raise InputError(f"reference must have {len(x)} parts, as the input has.")
            return type(x)(self._like(*parts, batch) for parts in zip(value, x, strict=True))
        if not isinstance(x, Tensor):
            return x
        if not isinstance(value, Tensor):
            raise InputError(
                f"reference is a {type(value).__name__}; give a tensor, a name, or one of hilrp.references."
            )
        if x.is_floating_point() and x.shape[:1] == (batch,):
            return self._fitted(value, x)
        check_held(value, x)
        return x

    @staticmethod
    def _fitted(value: Tensor, x: Tensor) -> Tensor:
        check_storage(value, "reference")
        value = value.detach().to(x)
        if value.shape == x.shape[1:] or (value.ndim == x.ndim and value.shape[0] == 1):
            fits = all(own in (1, side) for own, side in zip(reversed(value.shape), reversed(x.shape), strict=False))
            value = value.expand_as(x) if fits else value
        if value.shape != x.shape:
            raise InputError(
                f"reference has the shape {tuple(value.shape)}, the input {tuple(x.shape)}: give one like the input, "
                "or one sample."
            )
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise InputError("reference holds values that aren't finite (NaN or infinite).")
        return value


@dataclass(frozen=True)
class Constant:
    """One value for every pixel, or one per channel, as the model takes them (after preprocessing)."""

    value: float | tuple[float, ...]

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.value if isinstance(self.value, tuple) else (self.value,))):
            raise InputError(f"references.Constant({self.value}) isn't a finite number.")

    def __call__(self, question: Question) -> list[Any]:
        """The value everywhere."""

        def fill(t: Tensor) -> Tensor:
            value = torch.tensor(self.value, dtype=t.dtype, device=t.device).reshape(-1, 1, 1)
            if value.shape[0] not in (1, t.shape[1]):
                raise InputError(f"references.Constant has {value.shape[0]} values for {t.shape[1]} channels.")
            return value.expand_as(t)

        value = self.value
        if isinstance(value, tuple) or any(map(is_image, tensors(question.x))):
            return [question.images(fill)]
        # What has no sample axis is held fixed.
        return [
            map_tensors(
                lambda t: (
                    torch.full_like(t, value) if t.is_floating_point() and t.shape[:1] == (question.batch,) else t
                ),
                question.x,
            )
        ]


@dataclass(frozen=True)
class Colour:
    """A colour, from 0 to 1 per channel, as the model's own preprocessing would hand it on.

    Attributes:
        value: The colour; one number is a grey.
        mean, std: What preprocessing subtracts and divides by; by default what timm says of the model.
    """

    value: float | tuple[float, ...]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def __call__(self, question: Question) -> list[Any]:
        """The colour everywhere."""
        mean, std = normalisation(question.model, self.mean, self.std)
        if mean is None or std is None:
            raise InputError(
                f"reference: what the colour {self.value} is after the model's preprocessing isn't known. Give "
                "hilrp.references.Colour(value, mean=..., std=...), or references.Constant(value as the model takes "
                "it)."
            )
        colour = self.value if isinstance(self.value, tuple) else (self.value,) * len(mean)
        if len(colour) != len(mean):
            raise InputError(f"references.Colour has {len(colour)} values, the model takes {len(mean)} channels.")
        return Constant(tuple((c - m) / s for c, m, s in zip(colour, mean, std, strict=True)))(question)


@dataclass(frozen=True)
class Mean:
    """Each image's own mean colour; of volumes and videos ``[B,C,...]`` the mean of each channel."""

    def __call__(self, question: Question) -> list[Any]:
        """The mean everywhere."""
        axes = _axes(question)
        return [question.images(lambda t: t.mean(axes(t), keepdim=True).expand_as(t), deep=True)]


@dataclass(frozen=True)
class ByForm:
    """What fits the form of each input.

    Each sample's own mean per channel for pictures, spectrograms, volumes and videos, and zero for embeddings, tables
    and sounds as waves. Words stay as they are.
    """

    def __call__(self, question: Question) -> list[Any]:
        """The mean or zero, for each input of the samples."""
        own = {id(t) for t in self.varied(question)}

        def fill(t: Tensor) -> Tensor:
            if id(t) not in own:
                return t
            axes = question.places(t)
            return t.detach().mean(axes, keepdim=True).expand_as(t) if len(axes) > 1 else torch.zeros_like(t)

        return [map_tensors(fill, question.x)]

    @staticmethod
    def varied(question: Question) -> list[Tensor]:
        """The inputs that are others on the reference."""
        named = zip(tensors(question.x), input_names(question.model, question.x), strict=True)
        return [t for t, name in named if _is_of_samples(t, question.batch) and name != "words"]

    def notes(self, question: Question) -> list[str]:
        """What should be said of it."""
        plain = [t for t in self.varied(question) if not question.places(t)]
        if not plain:
            return []
        shapes, main = ", ".join(map(_shape_of_samples, plain)), question.main
        # Nothing tells several signals beside each other from tokens but the model, and not every one.
        guessed = main is not None and question.kind is None and main[1] is Kind.TOKENS and main[0].ndim == 3
        signals = ", or kind='sound' if these are signals [B,C,T]" if guessed else ""
        taken = "is no picture" if not guessed else "is taken for tokens"
        return [
            f"relative to zero, since an input of shape {shapes} {taken}. Give reference= for something else{signals}"
        ]


def _is_of_samples(t: Tensor, batch: int) -> bool:
    """Whether an input holds numbers for each sample; others are held fixed."""
    return t.is_floating_point() and t.shape[:1] == (batch,)


def _shape_of_samples(t: Tensor) -> str:
    """The shape of an input, however many samples there are."""
    return f"[{','.join(['B', *map(str, t.shape[1:])])}]"


@dataclass(frozen=True)
class Blurred:
    """Each image, blurred: what is left are its large shapes and colours.

    Of videos each frame is, volumes are along all axes.

    Attributes:
        sigma: The width of the bell, as a part of the image's smaller side; along a volume's first axis, of that.
    """

    sigma: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.sigma < 10:
            raise InputError(f"references.Blurred(sigma={self.sigma}): give a part of the image's side, above 0.")

    def __call__(self, question: Question) -> list[Any]:
        """The blurred images."""
        axes, main = _axes(question), question.main
        films = main is not None and main[1] in (Kind.VIDEO, Kind.FRAMES)
        return [question.images(lambda t: self._blur(t, axes(t)[-2 if films else -3 :]), deep=True)]

    def _blur(self, t: Tensor, axes: tuple[int, ...]) -> Tensor:
        """Along some axes, of which the last two are rows and columns."""
        smaller = min(t.shape[axis] for axis in axes[-2:])
        for axis in axes:
            t = self._along(t, axis, smaller if axis in axes[-2:] else t.shape[axis])
        return t

    def _along(self, t: Tensor, axis: int, side: int) -> Tensor:
        width = self.sigma * side
        reach = min(int(3 * width), side - 1)
        bell = torch.exp(-(torch.arange(-reach, reach + 1, device=t.device, dtype=t.dtype) ** 2) / (2 * width**2))
        lines = t.movedim(axis, -1)
        padded = F.pad(lines.reshape(-1, 1, lines.shape[-1]), (reach, reach), "reflect")
        return F.conv1d(padded, (bell / bell.sum())[None, None]).reshape(lines.shape).movedim(-1, axis)


def _axes(question: Question) -> Callable[[Tensor], tuple[int, ...]]:
    """The axes of places of an input of which a mean or a blurred form is made: of four axes the last two."""
    return lambda t: (2, 3) if t.ndim == 4 else question.places(t)


@dataclass(frozen=True)
class Average:
    """Several references, whose explanations are averaged."""

    references: tuple[Any, ...]

    def __call__(self, question: Question) -> list[Any]:
        """All of them."""
        return [x for each in self.references for x in find(each)(question)]


#: What rules that need a reference take where none is given; of a picture, `Mean`.
DEFAULT = ByForm()
#: Name -> reference.
NAMED: dict[str, Reference] = {
    "neutral": Neutral(),
    "black": Colour(0.0),
    "grey": Colour(0.5),
    "white": Colour(1.0),
    "mean": Mean(),
    "blurred": Blurred(),
}


def named(name: str, mean: tuple[float, ...] | None = None, std: tuple[float, ...] | None = None) -> Reference:
    """A reference by name, for a model whose preprocessing subtracts ``mean`` and divides by ``std``."""
    if name not in NAMED:
        raise InputError(f"reference={name!r}: choose from {', '.join(NAMED)}, or give a tensor.")
    found = NAMED[name]
    return replace(found, mean=mean, std=std) if isinstance(found, (Colour, Neutral)) else found


def find(reference: Any) -> Reference:
    """A reference by name; a number or a tensor is one, too, and a list is their average.

    Example:
        >>> find("blurred").sigma
        0.1
    """
    if isinstance(reference, str):
        return named(reference)
    if isinstance(reference, bool):
        raise InputError("reference takes a name, a number, a tensor or one of hilrp.references.")
    if isinstance(reference, (int, float)):
        return Constant(float(reference))
    if isinstance(reference, list):
        return Average(tuple(reference))
    if callable(reference):
        return reference
    return Given(reference)


def check_held(value: Tensor, x: Tensor) -> None:
    """Raises where a reference is another one in what an explanation holds fixed: there it can't be."""
    try:
        same = value is x or torch.equal(value.to(x).expand_as(x), x)
    except RuntimeError:  # of another shape
        same = False
    if not same:
        raise InputError(
            f"reference holds other values than the input in what is held fixed ({x.dtype}, shape {tuple(x.shape)}): "
            "whole numbers, and what has no row for each sample, have no relevance. Give the reference the input's "
            "there; for the relevance of words: hilrp.texts, hilrp.explain_answer."
        )


def asked(reference: Reference, question: Question) -> list[Any]:
    """The references for a question; what a function of the user's is given and returns is said where it fails."""
    try:
        found = reference(question)
    except (TypeError, AttributeError) as error:
        if isinstance(error, HilrpError):
            raise
        raise InputError(
            f"The reference {reference!r} raised {type(error).__name__}: {error}. A function as a reference is given "
            "a hilrp.references.Question and returns a list of inputs like question.x: reference=lambda question: "
            "[question.x * 0]."
        ) from error
    for each in found if isinstance(found, (list, tuple)) else ():
        if [t.shape for t in tensors(each)] != [t.shape for t in tensors(question.x)]:
            given, wanted = (", ".join(str(tuple(t.shape)) for t in tensors(tree)) for tree in (each, question.x))
            raise InputError(
                f"The reference {reference!r} returned an input of shape {given or 'nothing'}, where the model is "
                f"given {wanted}: reference=lambda question: [question.x * 0]."
            )
        for t, t0 in zip(tensors(question.x), tensors(each), strict=True):
            if not (t.is_floating_point() and t.shape[:1] == (question.batch,)):
                check_held(t0, t)
    if not isinstance(found, (list, tuple)):
        raise InputError(
            f"The reference {reference!r} returned {type(found).__name__}, not a list of inputs: reference=lambda "
            "question: [question.x * 0]."
        )
    return list(found)


__all__ = [
    "Average",
    "Blurred",
    "ByForm",
    "Colour",
    "Constant",
    "Given",
    "Mean",
    "Neutral",
    "Question",
    "Reference",
    "find",
    "named",
]
