"""What Quantus' metrics are run on, and how: models, pictures, and what came of it."""

from __future__ import annotations

import io
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import quantus
import torch
from numpy.typing import NDArray
from PIL import Image
from quantus.functions.mosaic_func import mosaic_creation
from torch import Tensor, nn

import hilrp
from hilrp.compat.quantus import explain_func
from hilrp.scenes import Scenes

Array = NDArray[Any]
#: Scenes of one object: of two classes several, of one a single one, so that metrics find pairs.
CHOSEN = (0, 2, 7, 9, 13, 1)


@dataclass(frozen=True)
class Case:
    """A model, and what a metric is given of it."""

    model: nn.Module
    x: Array
    y: Array
    masks: Array | None = None
    mosaics: Any = None


class Grey(nn.Module):
    """A model of pictures with three channels as one of pictures with a single channel."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """The scores of the picture with that channel three times."""
        scores: Tensor = self.model(x.expand(-1, 3, -1, -1))
        return scores


def scenes() -> Case:
    """Six scenes of one object, and the zoo's ResNet, which names all of them rightly."""
    loaded = hilrp.load("zoo/resnet")
    drawn = [Scenes(seed=5, objects=(1, 1))[i] for i in CHOSEN]
    x = loaded.batch([Image.fromarray(each.image) for each in drawn]).numpy()
    y = np.array([each.things[0].label for each in drawn])
    return Case(loaded.model, x, y, np.stack([each.things[0].mask for each in drawn])[:, None])


def mistaken() -> Case:
    """The same scenes; the first is asked for a class that isn't there."""
    whole = case("scenes")
    return replace(whole, y=np.array([1, *whole.y[1:]]))


def crops() -> Case:
    """Parts of two scenes, of 32 x 32 pixels: where each single value takes a pass."""
    whole = case("scenes")
    return Case(whole.model, whole.x[:2, :, 48:80, 48:80].copy(), whole.y[:2])


def grey() -> Case:
    """Scenes without colour, and the classes that the model sees in them."""
    whole = case("scenes")
    model, x = Grey(whole.model).eval(), whole.x.mean(1, keepdims=True)
    with torch.no_grad():
        return Case(model, x, model(torch.from_numpy(x)).argmax(1).numpy(), whole.masks)


def mosaics() -> Case:
    """Two by two scenes, two of them of the class that is asked for: Quantus' own mosaics."""
    whole = case("scenes")
    x, _, _, places, y = mosaic_creation(whole.x, whole.y, mosaics_per_class=2, seed=1)
    return Case(whole.model, x, np.array(y), mosaics=places)


def plain() -> Case:
    """A net with random weights whose first module is a convolution with a bias, without padding."""
    torch.manual_seed(0)
    first = (nn.Conv2d(3, 8, 5), nn.ReLU(), nn.Conv2d(8, 8, 3, 2), nn.ReLU())
    model = nn.Sequential(*first, nn.Flatten(), nn.Linear(200, 4)).eval()
    return Case(model, np.random.default_rng(0).random((4, 3, 16, 16), np.float32), np.arange(4))


def linear() -> Case:
    """A linear map of tables without a bias: weight times input is its whole output."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 4, bias=False)).eval()
    return Case(model, np.random.default_rng(0).random((16, 64), np.float32), np.arange(16) % 4)


CASES: Mapping[str, Callable[[], Case]] = {
    each.__name__: each for each in (scenes, mistaken, crops, grey, mosaics, plain, linear)
}


@cache
def case(name: str) -> Case:
    """A case by name, made once."""
    return CASES[name]()


def black(question: Any) -> list[Tensor]:
    """Quantus' baseline "black", as a reference of hilrp: the least value of each picture everywhere."""
    return [question.x.flatten(1).amin(1).reshape(-1, 1, 1, 1).expand_as(question.x)]


def shifted(arr: Array, input_shift: float, **options: Any) -> Array:
    """Every value of a picture moved: what InputInvariance is about."""
    return arr + input_shift


def quadrant(a: Array) -> int:
    """In which quarter of a picture its map is strongest: a label of maps, for Consistency."""
    side = math.isqrt(a.size)
    row, column = divmod(int(a.argmax()), side)
    return 2 * (2 * row >= side) + (2 * column >= side)


class Explained:
    """An ``explain_func`` that counts the maps that it is asked for."""

    def __init__(self, function: Callable[..., Array]) -> None:
        self.function, self.maps = function, 0

    def __call__(self, model: nn.Module, inputs: Array, targets: Array, **options: Any) -> Array:
        """What the function returns."""
        self.maps += len(inputs)
        return self.function(model, inputs, targets, **options)


#: The two that are compared: hilrp, and a method of Quantus' own with what it has to be told.
OURS: tuple[Callable[..., Array], dict[str, Any]] = (explain_func, {})
THEIRS: tuple[Callable[..., Array], dict[str, Any]] = (quantus.explain, {"method": "Saliency"})


class RandomMaps:
    """An ``explain_func`` that knows nothing: noise, in the form that the function that is compared returns."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)  # of its own: metrics draw the same numbers beside either

    def __call__(self, model: nn.Module, inputs: Array, targets: Array, **options: Any) -> Array:
        """Other noise at each call."""
        axes = options.get("reduce_axes", (1,)) if inputs.ndim > 2 else ()
        shape = [1 if axis in axes else size for axis, size in enumerate(inputs.shape)]
        return self.generator.normal(size=shape).astype(np.float32)


class Outcome(NamedTuple):
    """What a metric did.

    Attributes:
        kind: ``runs``, ``raises``, ``is not finite``, ``ignores explain_func`` or ``ignores the maps``.
        message: What was said, or in brackets what wasn't.
        score: The mean over all that the metric returned.
        maps: How many maps it asked for.
        seconds: How long it took.
    """

    kind: str
    message: str = ""
    score: float | None = None
    maps: int = 0
    seconds: float = 0.0


def numbers(scores: Any) -> list[float]:
    """All numbers in what a metric returned."""
    if isinstance(scores, Mapping):
        scores = list(scores.values())
    if isinstance(scores, Iterable):
        return [number for each in scores for number in numbers(each)]
    return [float(scores)]


def called(metric: Any, given: Case, explain: Any, options: Mapping[str, Any], **call: Any) -> Any:
    """What a metric returns, quietly and with the same random numbers each time."""
    np.random.seed(0)  # noqa: NPY002 (the generator that Quantus draws from)
    torch.manual_seed(0)
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        return metric(
            model=given.model, x_batch=given.x.copy(), y_batch=given.y, explain_func=explain,
            explain_func_kwargs=dict(options), device="cpu", **call,
        )  # fmt: skip


def said_by(error: Exception) -> str:
    """An error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def outcome(
    make: Callable[[], Any],
    given: Case,
    by: tuple[Callable[..., Array], Mapping[str, Any]],
    call: Mapping[str, Any],
    remedied: Callable[[Explained], AbstractContextManager[Any]] = nullcontext,
) -> Outcome:
    """What a metric does with a case and an ``explain_func``, perhaps after a fault was mended.

    It runs again with random maps: where those have the same scores, these are not of the maps.
    """
    explain, control = Explained(by[0]), Explained(RandomMaps())
    start = time.perf_counter()
    try:
        with remedied(explain):
            scores = np.array(numbers(called(make(), given, explain, by[1], **call)))
    except Exception as error:
        return Outcome("raises", said_by(error), None, explain.maps, time.perf_counter() - start)
    seconds = time.perf_counter() - start
    if not explain.maps:
        return Outcome("ignores explain_func", "(nothing: it explains by a function of its own)", None, 0, seconds)
    if not np.isfinite(scores).all():
        return Outcome("is not finite", "(nothing: scores are not finite)", None, explain.maps, seconds)
    with remedied(control):
        others = np.array(numbers(called(make(), given, control, by[1], **call)))
    if np.array_equal(scores, others):
        return Outcome("ignores the maps", "(nothing: random maps have the same scores)", None, explain.maps, seconds)
    return Outcome("runs", "", float(scores.mean()), explain.maps, seconds)
