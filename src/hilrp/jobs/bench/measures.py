"""The measures of the benchmark: from a model's context, a method and its maps to figures, one per image."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hilrp.attribution.explainer import Explainer
from hilrp.jobs.bench.context import CELLS, Context
from hilrp.jobs.bench.methods import Method
from hilrp.jobs.bench.methods.relevance import rules_and_chains
from hilrp.jobs.bench.metrics import localisation
from hilrp.jobs.bench.metrics.faithfulness import Subsets, faithfulness_correlation, flip_areas
from hilrp.jobs.bench.metrics.shapley import per_segment, spearman
from hilrp.jobs.bench.over_removals import Figures, over_removals
from hilrp.jobs.bench.protocols import grid_pointing, insertion_figures, road_figures, saco_figures
from hilrp.targets import logits_of


@dataclass(frozen=True)
class Measure:
    """A group of figures that are computed together.

    Attributes:
        name: Its name on the command line.
        function: What it does.
        scenes: Whether it needs scenes.
        timed: Whether it is of a device, and not of the method alone.
    """

    name: str
    function: Callable[[Context, Method, Tensor], Figures]
    scenes: bool = False
    timed: bool = False


def _localisation(context: Context, method: Method, maps: Tensor) -> Figures:
    masks = context.inputs.masks
    if masks is None:
        return {}
    return {
        "pointing": localisation.pointing(maps, masks),
        "energy excess": localisation.energy_excess(maps, masks),
        "average precision": localisation.average_precision(maps, masks),
        "IoU": localisation.iou(maps, masks),
    }


def _conservation(context: Context, method: Method, maps: Tensor) -> Figures:
    """The sum of the map relative to the score, what the books can't account for, and the trace of the stages."""
    if method.rules is None:
        return {}
    rules, chains = rules_and_chains(method.rules, dict(method.options))
    explainer = Explainer(context.loaded.model, rules, audit="off")
    some = slice(0, context.effort.few)
    found = explainer.explain(context.inputs.x[some], context.inputs.labels[some], passes=chains)
    share = maps.flatten(1).double().sum(1) / context.score.double()
    if found.reference is not None:  # of what is explained, the difference to the reference's score
        share = found.ledger.pixels / found.ledger.explained
    figures = {"pixels' share": share, "residual": found.ledger.residual}
    return figures | {f"trace {name}": value for name, value in found.trace.items()}


def _faithfulness(context: Context, method: Method, maps: Tensor) -> Figures:
    """Faithfulness Correlation with 224 single pixels, and with a tenth of the model's patches."""
    height, width = context.inputs.x.shape[-2:]
    patch = context.patch
    kinds = {
        "pixels": Subsets(min(224, height * width // 4), 1, context.effort.runs),
        "patches": Subsets(max(1, (height // patch) * (width // patch) // 10), patch, context.effort.runs),
    }
    some = maps[: context.effort.changed]
    return {
        f"faithfulness correlation ({name})": faithfulness_correlation(some, subsets, context.subset_drops(subsets))
        for name, subsets in kinds.items()
    }


def _flipping(context: Context, method: Method, maps: Tensor) -> Figures:
    x, labels, baseline = context.changed
    return flip_areas(context.loaded.model, x, labels, maps[: len(x)], baseline, context.effort.steps)


def _shapley(context: Context, method: Method, maps: Tensor) -> Figures:
    return {"Shapley agreement": _agreement(context, maps)}


def _shapley_as_in_the_paper(context: Context, method: Method, maps: Tensor) -> Figures:
    """On superpixels, 50 images with 64 permutations each, whatever is spent on the other figures."""
    return {"Shapley agreement (as in the paper)": _agreement(context.paper, maps)}


def _agreement(context: Context, maps: Tensor) -> Tensor:
    found = []
    for i, values in enumerate(context.shapley()):
        found.append(spearman(per_segment(maps[i], context.segments(i))[None], values[None])[0])
    return torch.stack(found)


def _removals(context: Context, method: Method, maps: Tensor) -> Figures:
    return {name: value for kind in CELLS for name, value in over_removals(context, maps, kind).items()}


def _classes(context: Context, method: Method, maps: Tensor) -> Figures:
    """Whether the map changes with the class.

    How alike maps of two classes of a scene are, and whether each lies on its own object.
    """
    inputs = context.inputs
    pairs = [
        (i, next(label for label in places if label != int(inputs.labels[i])))
        for i, places in enumerate(inputs.things)
        if len(places) > 1
    ][: context.effort.few]
    if not pairs or inputs.masks is None:
        return {}
    index = torch.tensor([i for i, _ in pairs], device=maps.device)
    others = torch.tensor([label for _, label in pairs], device=maps.device)
    second = method(context.loaded.model, inputs.x[index], others)
    first, own = maps[index], inputs.masks[index]
    place = torch.stack([inputs.things[i][label] for i, label in pairs])
    moved = (localisation.energy(first, own) > localisation.energy(first, place)) & (
        localisation.energy(second, place) > localisation.energy(second, own)
    )
    return {
        "class sensitivity": spearman(first.flatten(1), second.flatten(1)),
        "moves to the other object": moved.double(),
    }


def _effect(context: Context, method: Method, maps: Tensor) -> Figures:
    """How the relevance of each object of a scene agrees with what the score really loses without it.

    There is one value for each scene.
    """
    found = []
    for i, effects in context.effects().items():
        masks = torch.stack(list(context.inputs.things[i].values()))
        relevance = (maps[i].double() * masks).flatten(1).sum(1)
        found.append(spearman(relevance[None], effects.double()[None])[0])
    return {"true effect": torch.stack(found)} if found else {}


def _sanity(context: Context, method: Method, maps: Tensor) -> Figures:
    """How alike maps are before and after weights are shuffled: of the classifier, of the upper half, of all.

    And of one layer alone.
    """
    if method.kind == "perturbation" and not context.effort.again:
        return {}
    x, labels = context.inputs.x[: context.effort.few], context.inputs.labels[: context.effort.few]
    before = maps[: len(x)].flatten(1)
    changes = {
        "cascading: head": "head",
        "cascading: upper half": "half",
        "cascading: all": "all",
        "independent: one layer": "one",
    }
    figures = {}
    for name, part in changes.items():
        if part not in context.randomised:
            context.randomised[part] = randomised(context.loaded.model, part)
        after = method(context.randomised[part], x, labels).flatten(1)
        figures[f"sanity, {name}"] = spearman(before, after).abs()
    return figures


def randomised(model: nn.Module, part: str, seed: int = 0) -> nn.Module:
    """A copy with shuffled parameters, which keep their distribution; the others are those of the model itself.

    ``part`` says what is shuffled: the classifier (``"head"``), that and the upper half of the layers (``"half"``),
    everything (``"all"``), or the layer in the middle alone (``"one"``). It is done on the model's device: a seed means
    other orders on a GPU than on a CPU.
    """
    # Models that keep attention biases, which are made of parameters, drop them here: they can't be copied, and
    # wouldn't be shuffled.
    model.eval()
    layers = [m for m in model.modules() if isinstance(m, (nn.Linear, nn.Conv2d))]
    head = model.get_classifier() if hasattr(model, "get_classifier") else layers[-1]  # type: ignore[operator]
    heads = list(head) if isinstance(head, (tuple, list, nn.ModuleList)) else [head]
    middle = len(layers) // 2
    parts: dict[str, list[nn.Module]] = {
        "head": heads, "half": [*layers[middle:], *heads], "all": [model], "one": [layers[middle]]
    }  # fmt: skip
    device = next(model.parameters()).device
    chance = torch.Generator(device).manual_seed(seed)
    parameters = {id(p): p for layer in parts[part] for p in layer.parameters()}
    instead: dict[int, nn.Parameter] = {id(p): p for p in model.parameters()}
    for key, parameter in parameters.items():
        order = torch.randperm(parameter.numel(), generator=chance, device=device).to(parameter.device)
        shuffled = parameter.detach().flatten()[order].reshape(parameter.shape)
        instead[key] = nn.Parameter(shuffled, parameter.requires_grad)
    return copy.deepcopy(model, instead)


def _equivariance(context: Context, method: Method, maps: Tensor) -> Figures:
    """How alike the map of a shifted picture and the shifted map are.

    The mean over cyclic shifts by an eighth and a quarter.
    """
    if method.kind == "perturbation" and not context.effort.again:
        return {}
    x, labels = context.inputs.x[: context.effort.few], context.inputs.labels[: context.effort.few]
    found = []
    for part in (8, 4):
        shift = (x.shape[-2] // part, x.shape[-1] // part)
        moved = method(context.loaded.model, x.roll(shift, (2, 3)), labels)
        found.append(spearman(maps[: len(x)].roll(shift, (1, 2)).flatten(1), moved.flatten(1)))
    return {"equivariance": torch.stack(found).mean(0)}


def _cost(context: Context, method: Method, maps: Tensor) -> Figures:
    """Time relative to a forward pass and the gradient of the input; images that go through the model.

    Memory, on a GPU.
    """
    cuda = context.inputs.x.device.type == "cuda"
    model, size = context.loaded.model, 8 if cuda else 2
    x, labels = context.inputs.x[:size], context.inputs.labels[:size]
    count = [0]
    hook = model.register_forward_pre_hook(lambda m, args: count.__setitem__(0, count[0] + len(args[0])))
    try:
        first = _seconds(lambda: method(model, x, labels), cuda)
    finally:
        hook.remove()

    def plain() -> None:
        leaf = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            torch.autograd.grad(logits_of(model(leaf)).gather(1, labels[:, None]).sum(), leaf)

    plain()
    ratios = []
    for _ in range(3 if first < 1 else 1):
        base = _seconds(plain, cuda)
        ratios.append(_seconds(lambda: method(model, x, labels), cuda) / base)
    figures = {"forward passes": torch.tensor([count[0] / len(x)]), "time ratio": torch.tensor(ratios)}
    if cuda:
        peaks = [_peak(plain), _peak(lambda: method(model, x, labels))]
        figures["memory ratio"] = torch.tensor([peaks[1] / max(1, peaks[0])])
    return figures


def _seconds(run: Callable[[], object], cuda: bool) -> float:
    if cuda:
        torch.cuda.synchronize()
    started = time.perf_counter()
    run()
    if cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - started


def _peak(run: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def _misclassified(context: Context, method: Method, maps: Tensor) -> Figures:
    """Where the model is wrong: the energy excess of the map of the class that it says, beside that of the true one."""
    inputs = context.inputs
    if inputs.masks is None:
        return {}
    # In a scene every class that is there is right.
    right = [
        int(p) == int(label) or int(p) in places
        for p, label, places in zip(inputs.predicted, inputs.labels, inputs.things, strict=True)
    ]
    wrong = torch.tensor(
        [i for i, ok in enumerate(right) if not ok][: context.effort.few], dtype=torch.long, device=maps.device
    )
    if not len(wrong):
        return {}
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
        Measure("grid-pointing", grid_pointing),
        Measure("conservation", _conservation),
        Measure("shapley", _shapley),
        Measure("shapley-paper", _shapley_as_in_the_paper),
        Measure("removals", _removals),
        Measure("faithfulness", _faithfulness),
        Measure("flipping", _flipping),
        Measure("insertion-deletion", insertion_figures),
        Measure("road", road_figures),
        Measure("saco", saco_figures),
        Measure("classes", _classes, scenes=True),
        Measure("effect", _effect, scenes=True),
        Measure("sanity", _sanity),
        Measure("equivariance", _equivariance),
        Measure("misclassified", _misclassified),
        Measure("cost", _cost, timed=True),
    )
}
