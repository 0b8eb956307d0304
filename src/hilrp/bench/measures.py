"""The measures of the benchmark: from a model's context, a method and its maps to figures, one per image."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from hilrp.bench.context import Context
from hilrp.bench.methods import Method
from hilrp.bench.metrics import localisation
from hilrp.bench.metrics.faithfulness import faithfulness_correlation, flip_areas
from hilrp.bench.metrics.shapley import per_segment, spearman
from hilrp.explainer import Explainer
from hilrp.rules import Rules

#: Name of a figure -> its value for each image (or pair, or shift).
Figures = dict[str, Tensor]


@dataclass(frozen=True)
class Measure:
    """A group of figures that are computed together.

    Attributes:
        name: Its name on the command line.
        function: What it does.
        scenes: Whether it needs scenes.
        kinds: The kinds of methods that it is computed for; of none, for all.
    """

    name: str
    function: Callable[[Context, Method, Tensor], Figures]
    scenes: bool = False
    kinds: tuple[str, ...] = ()


def _localisation(context: Context, method: Method, maps: Tensor) -> Figures:
    masks = context.inputs.masks
    return {
        "pointing": localisation.pointing(maps, masks),
        "energy excess": localisation.energy_excess(maps, masks),
        "average precision": localisation.average_precision(maps, masks),
        "IoU": localisation.iou(maps, masks),
    }


def _conservation(context: Context, method: Method, maps: Tensor) -> Figures:
    """The sum of the map relative to the score; of rule sets also what their books can't account for, and the trace of the stages."""
    if not method.signed:
        return {}
    figures = {"pixels' share": maps.flatten(1).double().sum(1) / context.score.double()}
    if method.rules is not None:
        rules = replace(Rules.named(method.rules), **dict(method.options))
        explainer = Explainer(context.loaded.model, rules)
        x, labels = context.inputs.x[: context.effort.few], context.inputs.labels[: context.effort.few]
        found = explainer.explain(x, labels)
        figures["residual"] = found.ledger.residual
        figures |= {f"trace {name}": value for name, value in found.trace.items()}
    return figures


def _faithfulness(context: Context, method: Method, maps: Tensor) -> Figures:
    """With single pixels, as Quantus has it by default, and with squares of 8 pixels, which are the patches of most models of the zoo."""
    return {
        "faithfulness correlation (pixels)": faithfulness_correlation(maps, context.random_subsets(1)),
        "faithfulness correlation (patches)": faithfulness_correlation(maps, context.random_subsets(8)),
    }


def _flipping(context: Context, method: Method, maps: Tensor) -> Figures:
    inputs = context.inputs
    return flip_areas(context.loaded.model, inputs.x, inputs.labels, maps, context.baseline, context.effort.steps)


def _shapley(context: Context, method: Method, maps: Tensor) -> Figures:
    found = []
    for i, values in enumerate(context.shapley()):
        found.append(spearman(per_segment(maps[i], context.segments(i))[None], values[None])[0])
    return {"Shapley agreement": torch.stack(found)}


def _classes(context: Context, method: Method, maps: Tensor) -> Figures:
    """Whether the map changes with the class: how alike maps of two classes of a scene are, and whether each lies on its own object."""
    pairs = [
        (i, next(t.label for t in s.scene.things if t.label != int(context.inputs.labels[i])))
        for i, s in enumerate(context.inputs.samples)
        if s.scene is not None and len(s.scene.things) > 1
    ][: context.effort.few]
    index = torch.tensor([i for i, _ in pairs], device=maps.device)
    others = torch.tensor([label for _, label in pairs], device=maps.device)
    second = method(context.loaded.model, context.inputs.x[index], others)
    first, own = maps[index], context.inputs.masks[index]
    place = torch.stack(
        [torch.from_numpy(context.inputs.samples[i].scene.mask(label)) for i, label in pairs]  # type: ignore[union-attr]
    ).to(maps.device)
    moved = (localisation.energy(first, own) > localisation.energy(first, place)) & (
        localisation.energy(second, place) > localisation.energy(second, own)
    )
    return {
        "class sensitivity": spearman(first.flatten(1), second.flatten(1)),
        "moves to the other object": moved.double(),
    }


def _effect(context: Context, method: Method, maps: Tensor) -> Figures:
    """Of scenes: how the relevance of each object agrees with what the score really loses without it; one value for each scene."""
    found = []
    for i, masks, effects in context.effects():
        relevance = (maps[i].double() * masks).flatten(1).sum(1)
        found.append(spearman(relevance[None], effects.double()[None])[0])
    return {"true effect": torch.stack(found)}


def _sanity(context: Context, method: Method, maps: Tensor) -> Figures:
    """How alike maps are before and after weights are made random: of the head alone, of half of the layers from the top, of all."""
    if method.kind == "perturbation" and not context.effort.again:
        return {}
    x, labels = context.inputs.x[: context.effort.few], context.inputs.labels[: context.effort.few]
    before = maps[: len(x)].flatten(1)
    figures = {}
    for name, part in (("head", 0.0), ("upper half", 0.5), ("all layers", 1.0)):
        changed = randomised(context.loaded.model, part)
        figures[f"sanity, cascading: {name}"] = spearman(before, method(changed, x, labels).flatten(1))
    middle = randomised(context.loaded.model, 0.5, only=True)
    figures["sanity, independent: one layer in the middle"] = spearman(before, method(middle, x, labels).flatten(1))
    return figures


def randomised(model: nn.Module, part: float, only: bool = False, seed: int = 0) -> nn.Module:
    """A copy whose layers, from the last down to that part of all, have shuffled weights; or only the one at that place.

    Shuffling keeps the distribution of each weight, so that signals neither fade nor explode.
    """
    changed = copy.deepcopy(model)
    layers = [m for m in changed.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    start = min(len(layers) - 1, round((1 - part) * (len(layers) - 1)))
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in layers[start : start + 1] if only else layers[start:]:
            weight = layer.weight
            order = torch.randperm(weight.numel(), generator=chance).to(weight.device)
            weight.copy_(weight.flatten()[order].reshape(weight.shape))
    return changed


def _equivariance(context: Context, method: Method, maps: Tensor) -> Figures:
    """How alike the map of a shifted picture and the shifted map are, for cyclic shifts by an eighth and a quarter."""
    if method.kind == "perturbation" and not context.effort.again:
        return {}
    x, labels = context.inputs.x[: context.effort.few], context.inputs.labels[: context.effort.few]
    found = []
    for part in (8, 4):
        shift = (x.shape[-2] // part, x.shape[-1] // part)
        moved = method(context.loaded.model, x.roll(shift, (2, 3)), labels)
        found.append(spearman(maps[: len(x)].roll(shift, (1, 2)).flatten(1), moved.flatten(1)))
    return {"equivariance": torch.cat(found)}


def _cost(context: Context, method: Method, maps: Tensor) -> Figures:
    """Time relative to a plain forward and backward pass to the input; images that went through the model; memory, on a GPU."""
    model, x, labels = context.loaded.model, context.inputs.x[:2], context.inputs.labels[:2]
    count = [0]
    hook = model.register_forward_pre_hook(lambda m, args: count.__setitem__(0, count[0] + len(args[0])))
    try:
        method(model, x, labels)
    finally:
        hook.remove()

    def plain() -> None:
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            model(leaf).gather(1, labels[:, None]).sum().backward()

    figures = {"forward passes": torch.tensor([count[0] / len(x)])}
    times = []
    plain()  # the method has had its first run above
    for run in (plain, lambda: method(model, x, labels)):
        started, repeats = time.perf_counter(), 0
        while repeats < 3 and time.perf_counter() - started < 1.0:
            run()
            repeats += 1
        if x.device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / repeats)
    figures["time ratio"] = torch.tensor([times[1] / times[0]])
    if x.device.type == "cuda":
        peaks = []
        for run in (plain, lambda: method(model, x, labels)):
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run()
            peaks.append(torch.cuda.max_memory_allocated() - before)
        figures["memory ratio"] = torch.tensor([peaks[1] / max(1, peaks[0])])
    return figures


def _misclassified(context: Context, method: Method, maps: Tensor) -> Figures:
    """Where the model is wrong: the energy excess of the map of the class that it says, beside that of the true one."""
    inputs = context.inputs
    wrong = (inputs.predicted != inputs.labels).nonzero()[:, 0]
    if inputs.samples and inputs.samples[0].scene is not None:
        # In a scene every class that is there is right.
        wrong = torch.tensor(
            [i for i in wrong.tolist() if int(inputs.predicted[i]) not in {t.label for t in inputs.samples[i].scene.things}],
            dtype=torch.long, device=maps.device,
        )  # fmt: skip
    wrong = wrong[: context.effort.few]
    if not len(wrong):
        return {"misclassified: predicted class": torch.zeros(0), "misclassified: true class": torch.zeros(0)}
    said = method(context.loaded.model, inputs.x[wrong], inputs.predicted[wrong])
    return {
        "misclassified: predicted class": localisation.energy_excess(said, inputs.masks[wrong]),
        "misclassified: true class": localisation.energy_excess(maps[wrong], inputs.masks[wrong]),
    }


#: Name -> measure.
MEASURES = {
    measure.name: measure
    for measure in (
        Measure("localisation", _localisation),
        Measure("conservation", _conservation, kinds=("gradient", "relevance")),
        Measure("shapley", _shapley),
        Measure("faithfulness", _faithfulness),
        Measure("flipping", _flipping),
        Measure("classes", _classes, scenes=True),
        Measure("effect", _effect, scenes=True),
        Measure("sanity", _sanity),
        Measure("equivariance", _equivariance),
        Measure("misclassified", _misclassified),
        Measure("cost", _cost),
    )
}
