"""Measures, on scenes, where maps of the zoo's detector lie, beside those of methods made for detectors.

    python scripts/measure_detector.py --scenes 40

What is explained is the logit of an object's class in the query that finds the object. Writes
docs/results/figures/detector.csv.gz, a value for each object, from which the documents' tables are made.

- D-RISE (Petsiuk et al., 2021): random masks, each weighed by how alike what is found under it is to the object: the
  largest product of the boxes' overlap and the cosine of the classes' probabilities. What a mask hides gets the mean
  colour.
- ODAM (Zhao and Chan, 2023): the gradient at each place of a feature map, smoothed, times the features, summed over the
  channels; what is positive of that. Grad-CAM takes the gradient's mean instead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from keep_figures import Row, write
from measure_space_time import METHODS as EVERYWHERE
from measure_space_time import features_and_gradient, grad_cam, mean_of
from measure_targets import BATCH, Question, SceneObject, finder
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.ops import box_iou

import hilrp
from hilrp.jobs.bench.methods.perturbation import rise_masks
from hilrp.jobs.bench.metrics.faithfulness import flip_areas
from hilrp.jobs.bench.metrics.localisation import energy, pointing
from hilrp.scenes import Scenes
from hilrp.targets import Detection

SEED = 43
#: D-RISE's masks have so many cells along a side.
CELLS = 16
#: Which stages of the backbone are looked at: an eighth of the picture, and a thirty-second.
STAGES = {"fine": "backbone.net.layer2", "coarse": "backbone.net.layer4"}


@dataclass(frozen=True)
class Found:
    """An object, the picture as the model sees it, and the query that finds it."""

    one: SceneObject
    x: Tensor
    query: int

    @property
    def target(self) -> Detection:
        """The logit of the object's class in its query."""
        return Detection(self.query, self.one.thing.label)


Method = Callable[[nn.Module, Found], Tensor]


def d_rise(detector: nn.Module, found: Found, masks: int = 500) -> Tensor:
    """D-RISE: ``[1,H,W]``."""
    x = found.x
    chosen = rise_masks(x.shape[-2], x.shape[-1], masks, x.device, CELLS).to(x)
    grey = mean_of(x)
    with torch.no_grad():
        box, likely = described(detector, x)
        box, likely = box[:, found.query], likely[:, found.query]
        weights = []
        for part in chosen.split(BATCH):
            boxes, classes = described(detector, torch.lerp(grey, x, part[:, None]))
            overlap = box_iou(boxes.flatten(0, 1), box).reshape(boxes.shape[:2])
            weights.append((overlap * F.cosine_similarity(classes, likely[:, None], dim=2)).amax(1))
    return (torch.cat(weights)[:, None, None] * chosen).sum(0, keepdim=True) / masks


def described(detector: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The corners of each query's box, ``[B,Q,4]``, and the probabilities of its classes, ``[B,Q,classes]``."""
    found = detector(x)
    middle, extent = found["pred_boxes"].split(2, 2)
    return torch.cat([middle - extent / 2, middle + extent / 2], 2), found["logits"].sigmoid()


def odam(layer: str) -> Method:
    """ODAM at a layer of the detector."""

    def function(detector: nn.Module, found: Found) -> Tensor:
        features, gradient = features_and_gradient(Question(detector, found.target), layer, found.x)
        maps = F.relu((smoothed(gradient) * features).sum(1, keepdim=True))
        return F.interpolate(maps, found.x.shape[2:], mode="bilinear", align_corners=False)[:, 0]

    return function


def smoothed(x: Tensor) -> Tensor:
    """Under a bell that is a place wide, each channel by itself."""
    line = torch.exp(-0.5 * torch.arange(-2, 3, device=x.device, dtype=x.dtype) ** 2)
    kernel = (line[:, None] * line / line.sum() ** 2).expand(x.shape[1], 1, 5, 5)
    return F.conv2d(x, kernel, padding=2, groups=x.shape[1])


def of_question(method: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Method:
    """A method that explains a model with one output."""

    def function(detector: nn.Module, found: Found) -> Tensor:
        zeros = torch.zeros(1, dtype=torch.long, device=found.x.device)
        return method(Question(detector, found.target), found.x, zeros).detach()

    return function


METHODS: dict[str, Method] = {
    **{name: of_question(method) for name, method in EVERYWHERE.items()},
    **{f"grad-cam:{name}": of_question(grad_cam(layer)) for name, layer in STAGES.items()},
    **{f"odam:{name}": odam(layer) for name, layer in STAGES.items()},
    "d-rise": d_rise,
}


def objects(count: int, device: str) -> tuple[nn.Module, list[Found], int]:
    """The detector, the objects that it finds in so many scenes, and how many there are."""
    loaded = hilrp.load("zoo/detector", device=device)
    told, there = [], 0
    for scene in Scenes(SEED, count):
        x = loaded.batch([Image.fromarray(scene.image)])
        with torch.no_grad():
            seen = {name: each.cpu() for name, each in loaded.model(x).items()}
        for thing in scene.things:
            there += 1
            query = finder(seen, 0, thing)
            if query is not None:
                told.append(Found(SceneObject(scene, thing), x, query))
    return loaded.model, told, there


def measured(detector: nn.Module, found: Found, method: Method) -> dict[str, float]:
    """The figures of a method on an object."""
    maps = method(detector, found).detach()
    mask = torch.from_numpy(found.one.thing.mask)[None].to(maps.device)
    target = torch.zeros(1, dtype=torch.long, device=maps.device)
    areas = flip_areas(Question(detector, found.target), found.x, target, maps, mean_of(found.x))
    each = {"pointing": pointing(maps, mask), "energy": energy(maps, mask)} | areas
    return {name: float(value) for name, value in each.items()}


def main() -> None:
    """Measures, and writes the values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=40)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", default="detector", help="name of the file in docs/results/figures")
    chosen = parser.parse_args()
    detector, told, there = objects(chosen.scenes, chosen.device)
    print(f"{len(told)} of {there} objects have a query", flush=True)
    kept: list[Row] = []
    started = time.perf_counter()
    for i, found in enumerate(told):
        for name, method in METHODS.items():
            for figure, value in measured(detector, found, method).items():
                kept.append(("detector", name, figure, i, "" if value != value else f"{value:.6g}"))
        if i % 10 == 9:
            print(f"{i + 1} objects, {time.perf_counter() - started:.0f} s", flush=True)
    print(write(chosen.output, kept), len(kept), "values")


if __name__ == "__main__":
    main()
