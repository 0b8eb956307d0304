"""Maps without labels.

What makes a picture and its mirror image alike to an encoder, and how that differs between pretraining objectives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.explainer import Explainer
from hilrp.attribution.texts import ImageTower
from hilrp.jobs.bench.batches import with_graph
from hilrp.jobs.bench.data import Sample
from hilrp.jobs.bench.methods.attention import class_token
from hilrp.jobs.bench.methods.base import Undefined
from hilrp.jobs.bench.methods.controls import centre_gaussian, uniform
from hilrp.jobs.bench.metrics import localisation
from hilrp.jobs.bench.metrics.shapley import spearman
from hilrp.jobs.bench.report import Row, Shown, short
from hilrp.jobs.bench.summary import estimate
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import load, split_name
from hilrp.scenes import Mask
from hilrp.targets import Views
from hilrp.util.errors import InputError
from hilrp.util.memory import in_parts

#: Side of the maps when those of two models are set beside each other.
_COMMON = 56


def _relevance(rules: str) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda model, x: Explainer(model, rules, audit="off", stages=None).explain(x, Views()).map


def _saliency(model: nn.Module, x: Tensor) -> Tensor:
    """The size of the gradient."""

    def run(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            found: Tensor = model(inputs)
        return found

    leaf = x.detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(Views().prepare(x, run)(model(leaf)).sum(), leaf)
    return gradient.abs().amax(1)


#: Name -> title and method: from an encoder and pictures to maps.
METHODS: dict[str, tuple[str, Callable[[nn.Module, Tensor], Tensor]]] = {
    "hilrp": ("HiLRP", _relevance("hilrp")),
    "secant": ("HiLRP, secant", _relevance("secant")),
    "saliency": ("Saliency", _saliency),
    "class-token": ("attention of the class token", class_token),
    "centre-gaussian": ("centre Gaussian", lambda model, x: centre_gaussian(model, x, x)),
    "uniform": ("uniform", lambda model, x: uniform(model, x, x)),
}
CONTROLS = ("centre-gaussian", "uniform")
#: The zoo's models of one architecture -> what each was trained for.
OBJECTIVES = {
    "zoo/vit": "classes",
    "zoo/vit-views": "views",
    "zoo/vit-masked": "covered patches",
    "zoo/towers": "captions",
}
#: Figure -> what it says.
FIGURES = {
    "pointing": "How often the strongest pixel lies on the object.",
    "energy excess": "The part of the positive relevance on the object, less the part of the picture that it covers.",
    "average precision": "How well the map tells the object's pixels from the others.",
    "entropy": "How widely positive relevance is spread: 1 is everywhere the same.",
}


@dataclass(frozen=True, eq=False)
class MethodMaps:
    """The maps of one method on one model.

    Attributes:
        model, method: Their names.
        maps: ``[images,H,W]``; ``None`` where the method has no meaning on the model.
        figures: Name -> one value for each image.
        undefined: Why it has none.
    """

    model: str
    method: str
    maps: Tensor | None
    figures: dict[str, list[float]]
    undefined: str | None = None


@dataclass(frozen=True)
class ModelInputs:
    """What a model sees of the pictures that it is shown.

    Attributes:
        loaded: The model.
        x: The pictures, ``[images,3,H,W]``.
        masks: Where their objects are, ``[images,H,W]``.
    """

    loaded: Loaded
    x: Tensor
    masks: Tensor


def encoder(name: str, device: str = "cpu", size: int | None = None) -> Loaded:
    """A model by name, perhaps with a checkpoint after an @; where it has a classifier, that is taken off."""
    loaded = load(*split_name(name), device=device)
    if size is not None:
        if not loaded.name.startswith("timm/"):
            raise InputError(f"{name}: only models of timm can be set to another size of images.")
        from hilrp.models.libraries.timm import resized

        loaded = resized(loaded, size)
    model: Any = loaded.model if loaded.texts is None else ImageTower(loaded.texts.model)
    if loaded.classifies and hasattr(model, "reset_classifier"):
        model.reset_classifier(0)
    return replace(loaded, model=model.eval(), classes=None)


def model_inputs(loaded: Loaded, samples: list[Sample]) -> ModelInputs:
    """Pictures and masks as a model sees them. Of objects that are cropped away, or cover all, nothing can be said."""
    device = next((p.device for p in loaded.model.parameters()), torch.device("cpu"))
    masks = torch.stack([loaded.seen_mask(_objects(sample)) for sample in samples])
    sizes = masks.flatten(1).float().mean(1)
    if not bool(((sizes > 0) & (sizes < 1)).any()):
        raise InputError(
            f"{loaded.name}: no object is left in any of the {len(samples)} images after its preprocessing."
        )
    return ModelInputs(loaded, torch.stack([loaded.preprocess(s.open()) for s in samples]).to(device), masks.to(device))


def _objects(sample: Sample) -> Mask:
    """Where anything is: without a label, all objects of a scene are meant."""
    if sample.place is None:
        raise InputError(f"{sample.name}: nobody says where its object is. Give scenes, or a folder with index.json.")
    if sample.scene is None:
        return sample.place()
    return np.logical_or.reduce([thing.mask for thing in sample.scene.things])


def study(pictures: ModelInputs, name: str, methods: tuple[str, ...] = tuple(METHODS)) -> Iterator[MethodMaps]:
    """The maps of each method on one model, and where they lie."""
    for method in methods:
        try:
            maps = _maps(METHODS[method][1], pictures)
        except Undefined as error:
            yield MethodMaps(name, method, None, {}, str(error))
            continue
        yield MethodMaps(name, method, maps, _figures(maps, pictures.masks))


def _maps(function: Callable[[nn.Module, Tensor], Tensor], pictures: ModelInputs) -> Tensor:
    def run(part: slice) -> Tensor:
        return function(pictures.loaded.model, pictures.x[part]).detach().float()

    return torch.cat(in_parts(run, len(pictures.x), max(1, with_graph(pictures.x.device) // 4))[0])


def _figures(maps: Tensor, masks: Tensor) -> dict[str, list[float]]:
    sizes = masks.flatten(1).float().mean(1)
    told = (sizes > 0) & (sizes < 1)
    figures = {
        "pointing": localisation.pointing(maps, masks),
        "energy excess": localisation.energy_excess(maps, masks),
        "average precision": localisation.average_precision(maps, masks),
    }
    figures = {key: value.double().masked_fill(~told, math.nan) for key, value in figures.items()}
    return {key: value.tolist() for key, value in (figures | {"entropy": entropy(maps)}).items()}


def entropy(maps: Tensor) -> Tensor:
    """How widely the positive relevance is spread: 1 for a map that is the same everywhere, 0 for one pixel.

    Example:
        >>> entropy(torch.tensor([[[1.0, 1.0], [1.0, 1.0]], [[0.0, 3.0], [-1.0, 0.0]]])).tolist()
        [1.0, 0.0]
    """
    positive = maps.flatten(1).double().clamp(min=0)
    total = positive.sum(1, keepdim=True)
    parts = positive / total.where(total > 0, 1)
    return torch.special.entr(parts).sum(1) / math.log(parts.shape[1])


def agreement(first: MethodMaps, second: MethodMaps) -> list[float]:
    """Spearman correlation of two models' maps, image by image, at a common size."""
    if first.maps is None or second.maps is None:
        return []
    a, b = (F.adaptive_avg_pool2d(maps[:, None], _COMMON).flatten(1) for maps in (first.maps, second.maps))
    return spearman(a, b).tolist()


def rows_of(found: list[MethodMaps], figure: str) -> tuple[list[str], list[Row]]:
    """One figure as a table: the models, and a row for each method."""
    models, names = (list(dict.fromkeys(getattr(f, key) for f in found)) for key in ("model", "method"))
    known = {(f.model, f.method): f for f in found}
    rows = []
    for name in names:
        cells = []
        for model in models:
            one = known[model, name]
            cells.append(Shown(estimate(one.figures.get(figure, [])), one.undefined or ""))
        rows.append(Row(name, METHODS[name][0], "control" if name in CONTROLS else "", cells, Shown(None)))
    return models, rows


def agreements(found: list[MethodMaps], method: str) -> tuple[list[str], list[Row]]:
    """How alike the maps of one method are on each pair of models."""
    own = [f for f in found if f.method == method and f.maps is not None]
    rows = [
        Row(
            a.model,
            short(a.model),
            "",
            [Shown(None if a is b else estimate(agreement(a, b))) for b in own],
            Shown(None),
        )
        for a in own
    ]
    return [f.model for f in own], rows if len(own) > 1 else []
