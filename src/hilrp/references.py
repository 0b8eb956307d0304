"""References: what an explanation is relative to.

Relevance relative to a reference ``x0`` sums to ``f(x) - f(x0)`` over the pixels. Which question that answers depends on ``x0``: what
makes this picture score higher than a grey one, than its own blurred self, than a healthy scan? `Neutral` looks for a plain colour
whose score is about zero, so that the pixels hold the score itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp import messages
from hilrp.errors import HilrpError, InputError, ModelError
from hilrp.passes import as_written, call_model
from hilrp.targets import Contrast, Target, logits_of, score_of
from hilrp.tree import map_tensors, tensors


@dataclass(frozen=True)
class Question:
    """What a reference is looked for.

    Attributes:
        model: The model.
        x: Its input.
        target: What is explained.
        batch: How many samples there are.
    """

    model: nn.Module
    x: Any
    target: Target | Contrast
    batch: int

    def images(self, change: Callable[[Tensor], Tensor]) -> Any:
        """The input with its images changed; whatever else the model is given stays."""
        if not any(_is_image(t) for t in tensors(self.x)):
            raise InputError(
                "The input holds no images [B,C,H,W], of which this reference could be made. Give a number, or an input like x, as the reference."
            )
        return map_tensors(lambda t: change(t.detach()).to(t) if _is_image(t) else t, self.x)

    def coloured(self, colours: Tensor) -> Any:
        """The input with plain colours ``[B,C]`` for its images, or one ``[1,C]`` for all."""
        return self.images(lambda t: colours.to(t)[:, :, None, None].expand_as(t))

    def settled(self) -> Question:
        """The same with the predicted classes of the input for the target, where that is what is explained."""
        if self.target is not None:
            return self
        return replace(self, target=score_of(self.output(self.x), None, self.batch).classes)

    def output(self, x: Any) -> Any:
        """What the model makes of an input."""
        try:
            with torch.no_grad(), as_written():
                return call_model(self.model, x)
        except (HilrpError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors(x))
            raise ModelError(messages.failed_forward(error, "the model itself", shapes)) from error

    def score(self, x: Any) -> Tensor:
        """The explained score of another input."""
        return score_of(self.output(x), self.target, self.batch).value


def _is_image(t: Tensor) -> bool:
    return t.ndim == 4 and t.is_floating_point()


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
    """

    value: Any

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
        # What the explanation holds fixed can't be another one on the reference.
        return self._fitted(value, x) if x.is_floating_point() and x.shape[:1] == (batch,) else x

    @staticmethod
    def _fitted(value: Tensor, x: Tensor) -> Tensor:
        value = value.detach().to(x)
        if value.shape == x.shape[1:] or (value.ndim == x.ndim and value.shape[0] == 1):
            value = value.expand_as(x)
        if value.shape != x.shape:
            raise InputError(
                f"reference has the shape {tuple(value.shape)}, the input {tuple(x.shape)}: give one like the input, or one sample."
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
        if isinstance(value, tuple) or any(map(_is_image, tensors(question.x))):
            return [question.images(fill)]
        return [map_tensors(lambda t: torch.full_like(t, value) if t.is_floating_point() else t, question.x)]


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
        mean, std = _normalisation(question.model, self.mean, self.std)
        if mean is None or std is None:
            raise InputError(
                f"reference: what the colour {self.value} is after the model's preprocessing isn't known. Give "
                "hilrp.references.Colour(value, mean=..., std=...), or references.Constant(value as the model takes it)."
            )
        colour = self.value if isinstance(self.value, tuple) else (self.value,) * len(mean)
        if len(colour) != len(mean):
            raise InputError(f"references.Colour has {len(colour)} values, the model takes {len(mean)} channels.")
        return Constant(tuple((c - m) / s for c, m, s in zip(colour, mean, std, strict=True)))(question)


def _normalisation(
    model: nn.Module, mean: tuple[float, ...] | None, std: tuple[float, ...] | None
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    known = getattr(model, "pretrained_cfg", None) or {}
    return mean or known.get("mean"), std or known.get("std")


@dataclass(frozen=True)
class Mean:
    """Each image's own mean colour."""

    def __call__(self, question: Question) -> list[Any]:
        """The mean everywhere."""
        return [question.images(lambda t: t.mean((2, 3), keepdim=True).expand_as(t))]


@dataclass(frozen=True)
class Blurred:
    """Each image, blurred: what is left are its large shapes and colours.

    Attributes:
        sigma: The width of the bell, as a part of the image's smaller side.
    """

    sigma: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.sigma < 10:
            raise InputError(f"references.Blurred(sigma={self.sigma}): give a part of the image's side, above 0.")

    def __call__(self, question: Question) -> list[Any]:
        """The blurred images."""
        return [question.images(self._blur)]

    def _blur(self, t: Tensor) -> Tensor:
        width = self.sigma * min(t.shape[-2:])
        reach = min(int(3 * width), min(t.shape[-2:]) - 1)
        bell = torch.exp(-(torch.arange(-reach, reach + 1, device=t.device, dtype=t.dtype) ** 2) / (2 * width**2))
        bell = (bell / bell.sum()).expand(t.shape[1], 1, -1)
        t = F.conv2d(F.pad(t, (reach, reach, 0, 0), "reflect"), bell.unsqueeze(2), groups=t.shape[1])
        return F.conv2d(F.pad(t, (0, 0, reach, reach), "reflect"), bell.unsqueeze(3), groups=t.shape[1])


@dataclass(frozen=True)
class Average:
    """Several references, whose explanations are averaged."""

    references: tuple[Any, ...]

    def __call__(self, question: Question) -> list[Any]:
        """All of them."""
        return [x for each in self.references for x in find(each)(question)]


#: Mean and standard deviation of photographs, as most models take them.
_PHOTOGRAPHS = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: Levels of each channel in the bank of colours, and how many greys there are besides.
_LEVELS, _GREYS = 4, 13
#: Colours that go through the model at once.
_BATCH = 16


@dataclass(frozen=True)
class Neutral:
    """A plain colour whose score is about zero: then the pixels hold the score itself.

    Of a bank of colours, whose scores are computed once for a model, the one nearest to the image's mean is taken among those whose score
    is small enough. If there is none, it is looked for between two colours whose scores have opposite signs; if all have the same, the
    colour with the smallest score is taken.

    Attributes:
        small: How small: as a part of the score that is explained.
        steps: How often the way between two colours is halved.
        mean, std: What the model's preprocessing subtracts and divides by; by default what timm says of the model, and else what is
            usual for photographs (ImageNet's).
    """

    small: float = 0.03
    steps: int = 8
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    _outputs: WeakKeyDictionary[nn.Module, dict[Any, Tensor]] = field(
        default_factory=WeakKeyDictionary, repr=False, compare=False, hash=False
    )

    def __call__(self, question: Question) -> list[Any]:
        """One colour for each sample."""
        image = next((t for t in tensors(question.x) if _is_image(t)), None)
        if image is None:
            return [question.images(lambda t: t)]
        question = question.settled()
        colours = self._colours(question.model, image)
        score = question.score(question.x)
        found = self._scores(question, colours)
        means = image.detach().float().mean((2, 3))
        chosen = torch.stack([self._choose(colours, *each) for each in zip(found, score, means, strict=True)])
        needs = (found.gather(1, chosen[:, :1]).squeeze(1).abs() > self.small * score.abs()).tolist()
        picked = colours[chosen[:, 0]].clone()
        if any(needs):
            picked = self._between(question, colours[chosen[:, 0]], colours[chosen[:, 1]], found, chosen, score)
        return [question.coloured(picked)]

    def _choose(self, colours: Tensor, found: Tensor, score: Tensor, mean: Tensor) -> Tensor:
        """The nearest colour that is neutral; else the nearest of those that score above zero, and of those below."""
        far = (colours - mean).square().sum(1)
        good = found.abs() <= self.small * score.abs()
        if bool(good.any()):
            best = far.masked_fill(~good, float("inf")).argmin()
            return torch.stack([best, best])
        above, below = found > 0, found < 0
        if not (bool(above.any()) and bool(below.any())):
            best = found.abs().nan_to_num(nan=float("inf")).argmin()
            return torch.stack([best, best])
        return torch.stack([far.masked_fill(~side, float("inf")).argmin() for side in (above, below)])

    def _between(
        self, question: Question, high: Tensor, low: Tensor, found: Tensor, chosen: Tensor, score: Tensor
    ) -> Tensor:
        """Halves the way between a colour that scores above zero and one below, for all samples at once."""
        settled = chosen[:, 0] == chosen[:, 1]
        best, value = high.clone(), found.gather(1, chosen[:, :1]).squeeze(1)
        for _ in range(self.steps):
            middle = torch.where(settled[:, None], best, (high + low) / 2)
            got = question.score(question.coloured(middle))
            better = (got.abs() < value.abs()) & ~settled
            best, value = torch.where(better[:, None], middle, best), torch.where(better, got, value)
            high = torch.where((got > 0)[:, None], middle, high)
            low = torch.where((got <= 0)[:, None], middle, low)
            if bool((settled | (value.abs() <= self.small * score.abs())).all()):
                break
        return best

    def _colours(self, model: nn.Module, image: Tensor) -> Tensor:
        channels = image.shape[1]
        mean, std = _normalisation(model, self.mean, self.std)
        if mean is None or std is None or len(mean) != channels:
            mean, std = (_PHOTOGRAPHS[0], _PHOTOGRAPHS[1]) if channels == 3 else ((0.5,) * channels, (0.25,) * channels)
        shift, scale = (image.new_tensor(v).float() for v in (mean, std))
        low, high = -shift / scale, (1 - shift) / scale
        steps = torch.linspace(0, 1, _LEVELS)
        greys = torch.linspace(0, 1, _GREYS)[:, None].expand(-1, channels)
        several = torch.cartesian_prod(*[steps] * channels) if 1 < channels <= 3 else greys
        parts = torch.cat([several, greys]).to(image.device)
        return low + parts * (high - low)

    def _scores(self, question: Question, colours: Tensor) -> Tensor:
        """The score of each colour for each sample, ``[B,colours]``."""
        image = next(t for t in tensors(question.x) if _is_image(t))
        plain = isinstance(question.x, Tensor) and not callable(question.target)
        if plain:
            outputs = self._kept(question.model, colours, image)
            if outputs.ndim == 2:
                return torch.stack([self._of(outputs, question.target, i, question) for i in range(question.batch)])
        scored = []
        for colour in colours[-_GREYS:]:
            scored.append(question.score(question.coloured(colour[None])))
        # The other colours have not been looked at: they must not be chosen.
        unknown = torch.full((question.batch, len(colours) - len(scored)), float("nan"), device=image.device)
        return torch.cat([unknown, torch.stack(scored, 1)], 1)

    def _of(self, outputs: Tensor, target: Any, i: int, question: Question) -> Tensor:
        def one(classes: Any) -> Any:
            listed = torch.as_tensor(classes)
            return int(listed if listed.ndim == 0 else listed.reshape(-1)[i])

        if isinstance(target, Contrast):
            return score_of(outputs, Contrast(one(target.wanted), one(target.other)), len(outputs)).value
        return score_of(outputs, one(target), len(outputs)).value

    def _kept(self, model: nn.Module, colours: Tensor, image: Tensor) -> Tensor:
        weights = [t for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()]
        check = sum(float(t.detach().double().sum()) + float(t.detach().double().abs().sum()) for t in weights)
        key = (tuple(image.shape[1:]), image.dtype, image.device, check, tuple(colours.flatten().tolist()))
        kept = self._outputs.get(model, {})
        if key not in kept:
            with torch.no_grad():
                parts = [
                    logits_of(model(part.to(image)[:, :, None, None].expand(-1, *image.shape[1:]).contiguous()))
                    for part in colours.split(_BATCH)
                ]
            kept = self._outputs[model] = {key: torch.cat(parts)}
        return kept[key]


#: What rules that need a reference take where none is given.
DEFAULT = "mean"
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


__all__ = [
    "Average",
    "Blurred",
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
