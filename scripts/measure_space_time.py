"""Measures, on volumes and films whose truth is known, where maps lie and whether they say what the score depends on.

    python scripts/measure_space_time.py            # all; several minutes on one core
    python scripts/measure_space_time.py film --samples 20

Writes docs/results/figures/space_time.csv.gz, a value for each sample, from which the documents' tables are made.

- ``zoo/unet3d`` is asked how much lesion there is: the sum of its positive logits. The question says nothing of where.
  Each volume has two lesions, and a spot as bright that is none. How much each lesion counts is known, too: what the
  score loses without it. ``error of shares`` is how far the first one's share of the relevance on both is from its
  share of these losses.
- ``zoo/film`` is asked for a change. Each film has two, of different objects.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from captum import attr
from keep_figures import FOLDER, Row, write
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from hilrp.jobs.bench.methods import controls, gradients
from hilrp.jobs.bench.methods.relevance import relevance
from hilrp.jobs.bench.metrics.faithfulness import flip_areas
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.scenes.films import Films
from hilrp.scenes.volumes import Volumes

SEED = 41
#: A method: from a model with one output, inputs and zeros to maps.
Method = Callable[[nn.Module, Tensor, Tensor], Tensor]


class Amount(nn.Module):
    """How much there is of something, of a model that says of every place whether it is there: its positive logits."""

    def __init__(self, model: nn.Module, label: int) -> None:
        super().__init__()
        self.model, self.label = model, label

    def forward(self, x: Tensor) -> Tensor:
        """``[B,1]``, in hundreds."""
        return self.model(x)[:, self.label].flatten(1).relu().sum(1, keepdim=True) / 100


class OneOf(nn.Module):
    """One output of a model for each sample."""

    def __init__(self, model: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, x: Tensor) -> Tensor:
        """``[B,1]``; a batch holds the samples once or several times in turn."""
        logits = self.model(x)
        labels = self.labels.repeat_interleave(len(logits) // len(self.labels))
        return logits.gather(1, labels[:, None])


@dataclass(frozen=True)
class Case:
    """A sample, what is asked of it, and where the truth lies.

    Attributes:
        x: The input, ``[1,C,...]``.
        question: A model with one output.
        truth: Name of a figure -> where it counts energy, of the map's shape. The first is pointed at, too.
        parts: Where parts of the truth are, of the map's shape, and the true effect of each on the score.
    """

    x: Tensor
    question: nn.Module
    truth: dict[str, Tensor]
    parts: tuple[tuple[Tensor, float], ...] = ()


def volumes(count: int, device: str) -> Iterator[Case]:
    """Volumes with two lesions."""
    question = Amount(hilrp.load("zoo/unet3d").model.to(device), 1).eval()
    for volume in Volumes(SEED, count, blobs=(2, 3), lesions=(2, 2), spots=(1, 2)):
        if len(volume.lesions) < 2 or not volume.spots:
            continue
        x = scaled(volume.image[None, None], device)
        blobs, lesions = torch.from_numpy(volume.places).to(device)[:, None]
        spots = torch.from_numpy(sum(volume.spots) > 0).to(device)[None]
        with torch.no_grad():
            without = torch.cat([scaled(volume.without(i)[None, None], device) for i in range(2)])
            lost = (question(x) - question(without))[:, 0].tolist()
        parts = [torch.from_numpy(lesion).to(device)[None] for lesion in volume.lesions]
        truth = {"lesions": lesions, "lesions and their blobs": blobs, "spots that are none": spots}
        yield Case(x, question, truth, tuple(zip(parts, lost, strict=True)))


def films(count: int, device: str) -> Iterator[Case]:
    """Films with two changes, asked for the first of them."""
    model = hilrp.load("zoo/film").model.to(device)
    for film in Films(SEED, count, changes=(2, 2)):
        asked, *other = [actor for actor in film.actors if actor.change is not None]
        if not other or asked.change is None:
            continue
        mask, moment = torch.from_numpy(asked.mask), torch.from_numpy(asked.moment)
        # A change is seen between frames: in those where it lasts, and in one before and one after.
        around = F.max_pool1d(moment[None].float(), 3, 1, 1)[0] > 0
        truth = {
            "object around its change": mask & around[:, None, None],
            "object while it is changed": mask & moment[:, None, None],
            "object": mask,
            "frames around the change": around[:, None, None].expand_as(mask),
            "other object that changes": torch.from_numpy(other[0].mask),
        }
        yield Case(
            scaled(film.frames.transpose(3, 0, 1, 2)[None], device),
            OneOf(model, torch.tensor([asked.change], device=device)).eval(),
            {name: each.to(device)[None] for name, each in truth.items()},
        )


def scaled(image: Any, device: str) -> Tensor:
    """From bytes to -1 .. 1, as the models were trained."""
    return torch.from_numpy(image).to(device).float() / 127.5 - 1


CASES = {"unet3d": volumes, "film": films}


# Methods
# ---------------------------------------------------------------------------------------------------------------


def grad_cam(layer: str) -> Method:
    """Grad-CAM (Selvaraju et al., 2017) along any number of axes, at a layer of the question's model.

    The channels of the layer's output, each weighed by the mean of its gradient over all places, summed; what is
    positive of that, enlarged to the input. It is MONAI's, which is not needed here (tests/libraries compares them).
    """

    def function(question: nn.Module, x: Tensor, target: Tensor) -> Tensor:
        features, gradient = features_and_gradient(question, layer, x)
        axes = tuple(range(2, x.ndim))
        found = F.relu((gradient.mean(axes, keepdim=True) * features).sum(1, keepdim=True))
        mode = "bilinear" if x.ndim == 4 else "trilinear"
        return F.interpolate(found, x.shape[2:], mode=mode, align_corners=False)[:, 0]

    return function


def features_and_gradient(question: nn.Module, layer: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """The output of a layer of the question's model, and the gradient of the score there."""
    kept: list[Tensor] = []
    hook = question.get_submodule(f"model.{layer}").register_forward_hook(lambda m, i, out: kept.append(out))
    try:
        with torch.enable_grad():
            score = question(x.detach().requires_grad_())[:, 0].sum()
            (gradient,) = torch.autograd.grad(score, kept[0])
    finally:
        hook.remove()
    return kept[0].detach(), gradient


def integrated_gradients(question: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Integrated Gradients in 32 steps, from the reference that HiLRP has by default: each channel's mean."""
    found: Tensor = attr.IntegratedGradients(question).attribute(x, mean_of(x), target, n_steps=32)
    return found.sum(1)


def mean_of(x: Tensor) -> Tensor:
    """Each channel's mean."""
    return x.mean(tuple(range(2, x.ndim)), keepdim=True).expand_as(x)


def more_passes(question: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """The default rules with eight passes."""
    return relevance("secant")(question, x, target, passes=8)


METHODS: dict[str, Method] = {
    "secant": relevance("secant"),
    "secant:passes=8": more_passes,
    "hilrp": relevance("hilrp"),
    "saliency": gradients.saliency,
    "input-x-gradient": gradients.input_x_gradient,
    "integrated-gradients": integrated_gradients,
    "centre-gaussian": controls.centre_gaussian,
    "random": controls.random,
    "edges": controls.edges,
}
#: Of each model: where Grad-CAM looks.
LAYERS = {"unet3d": {"deepest": "down.2", "last": "join.1"}, "film": {"last": "stages.2", "first": "stages.0"}}


def measured(case: Case, method: Method) -> dict[str, float]:
    """The figures of a method on a sample."""
    target = torch.zeros(1, dtype=torch.long, device=case.x.device)
    maps = method(case.question, case.x, target).detach()
    first = next(iter(case.truth.values()))
    found = {"pointing": float(pointing(maps, first))}
    found |= {f"pointing: {name}": float(pointing(maps, mask)) for name, mask in case.truth.items()}
    found |= {f"energy: {name}": float(energy(maps, mask)) for name, mask in case.truth.items()}
    if case.parts:
        shares = [float((maps.clamp(min=0) * near(mask)).sum()) for mask, _ in case.parts]
        true = [max(effect, 0.0) for _, effect in case.parts]
        own = shares[0] / sum(shares) if sum(shares) > 0 else 0.5
        found["error of shares"] = abs(own - true[0] / sum(true))
    areas = flip_areas(case.question, case.x, target, maps, mean_of(case.x))
    return found | {name: float(each) for name, each in areas.items()}


def earlier(name: str) -> list[Row]:
    """The rows of a file, of an earlier run."""
    path = FOLDER / f"{name}.csv.gz"
    if not path.is_file():
        return []
    with gzip.open(path, "rt") as file:
        return [(r["model"], r["method"], r["figure"], int(r["image"]), r["value"]) for r in csv.DictReader(file)]


def near(mask: Tensor) -> Tensor:
    """A part of the truth and what is at most two voxels from it."""
    return F.max_pool3d(mask[None].float(), 5, 1, 2)[0] > 0


def main() -> None:
    """Measures, and writes the values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(CASES)}; default: both")
    parser.add_argument("--samples", type=int, default=100, help="how many are drawn")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", default="space_time", help=f"name of the file in {FOLDER.name}")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(CASES)
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; known are {', '.join(CASES)}")
    names = chosen.names or list(CASES)
    kept = [row for row in earlier(chosen.output) if row[0] not in names]
    for name in names:
        cams = {f"grad-cam:{place}": grad_cam(layer) for place, layer in LAYERS[name].items()}
        started, count = time.perf_counter(), 0
        for i, case in enumerate(CASES[name](chosen.samples, chosen.device)):
            for method, function in (METHODS | cams).items():
                for figure, value in measured(case, function).items():
                    kept.append((name, method, figure, i, "" if value != value else f"{value:.6g}"))
            count += 1
            if i % 10 == 9:
                print(f"{name}: {i + 1} samples, {time.perf_counter() - started:.0f} s", flush=True)
        print(f"{name}: {count} of {chosen.samples} samples could be asked", flush=True)
    print(write(chosen.output, kept), len(kept), "values")


if __name__ == "__main__":
    main()
