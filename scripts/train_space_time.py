"""Trains the zoo's models of volumes and of films: a 3-D U-Net, and a network that looks along space and time.

    python scripts/train_space_time.py                 # both, one after the other; on a CPU, if there is no GPU
    python scripts/train_space_time.py film --steps 2  # this one only, for twice as long

Writes float16 weights and a card for each, with what was measured on what was held out. One core of a CPU takes about
25 minutes for both.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from train_zoo import WEIGHTS, Recipe, card_of, draw, normalise, schedule, write

from hilrp.scenes.films import CHANGES, Film, Films
from hilrp.scenes.volumes import TISSUES, Volume, Volumes
from hilrp.zoo.accuracy import mean_average_precision
from hilrp.zoo.architectures import OTHERS

TRAINING, HELD_OUT = 1_000_006, 1_000_007
#: Samples at once, when a model is measured.
_PART = 25


@dataclass(frozen=True)
class Task:
    """How a model is trained, and what is measured of it.

    Attributes:
        scenes: A collection, from its seed and the number of its members.
        shapes: Of what a member is to the model, and of what is true of it, as bytes.
        kept: Both, of a member.
        turned: The axes of a sample along which it may be mirrored, and those which may be swapped.
        loss: Of logits and truth.
        score: What is measured of all logits and truths.
    """

    scenes: Callable[[int, int], Sequence[Any]]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    kept: Callable[[Any], tuple[Any, Any]]
    turned: tuple[tuple[int, ...], tuple[int, ...]]
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], dict[str, float]]
    count: int
    recipe: Recipe


def _of_volume(volume: Volume) -> tuple[Any, Any]:
    return volume.image[None], volume.places


def _of_film(film: Film) -> tuple[Any, Any]:
    return film.frames.transpose(3, 0, 1, 2), film.labels


def places_loss(logits: Tensor, places: Tensor) -> Tensor:
    """Cross-entropy at each voxel, and the Dice loss of each class over the batch (Milletari et al., 2016)."""
    likely, axes = logits.sigmoid(), (0, 2, 3, 4)
    common, both = (likely * places).sum(axes), (likely.square() + places.square()).sum(axes)
    return F.binary_cross_entropy_with_logits(logits, places) + (1 - 2 * common / (both + 1)).mean()


def places_score(logits: Tensor, places: Tensor) -> dict[str, float]:
    """Dice of each class over all volumes, and how often it is seen at all, where it is and where it isn't."""
    found, there = logits > 0, places > 0
    dice = 2 * (found & there).sum((0, 2, 3, 4)) / (found.sum((0, 2, 3, 4)) + there.sum((0, 2, 3, 4)))
    lesion, own = found[:, 1].flatten(1).any(1), there[:, 1].flatten(1).any(1)
    return {f"dice_{name}": round(float(d), 4) for name, d in zip(TISSUES, dice, strict=True)} | {
        "lesions_seen_where_one_is": round(float(lesion[own].float().mean()), 4),
        "lesions_seen_where_none_is": round(float(lesion[~own].float().mean()), 4),
    }


def labels_score(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Mean average precision, and the part of all answers (of each change: does it happen?) that are right."""
    right = ((logits > 0) == (labels > 0)).float().mean()
    precision = mean_average_precision(logits.numpy(), labels.numpy())
    return {"mean_average_precision": round(precision, 4), "right_answers": round(float(right), 4)}


TASKS = {
    "unet3d": Task(
        lambda seed, count: Volumes(seed, count, spots=(0, 3)),
        ((1, 32, 32, 32), (len(TISSUES), 32, 32, 32)),
        _of_volume,
        ((1, 2, 3), (1, 2, 3)),
        places_loss,
        places_score,
        2500,
        Recipe(1500, 3e-3, 4),
    ),
    "film": Task(
        Films,
        ((3, 8, 48, 48), (len(CHANGES),)),
        _of_film,
        ((1, 2, 3), (2, 3)),  # a change is one backwards, too
        F.binary_cross_entropy_with_logits,
        labels_score,
        10_000,
        Recipe(3200, 3e-3, 16),
    ),
}


def arrays(path: str, count: int, mode: Any = "r", *, task: Task) -> tuple[np.ndarray, np.ndarray]:
    """What the model sees and what is true of it, in files."""
    images, truth = (
        np.memmap(f"{path}.{name}", np.uint8, mode, shape=(count, *shape))
        for name, shape in zip(("images", "truth"), task.shapes, strict=True)
    )
    return images, truth


def fill(bounds: tuple[int, int], path: str, scenes: Sequence[Any], *, name: str) -> None:
    """Draws some members into the shared arrays."""
    images, truth = arrays(path, len(scenes), "r+", task=TASKS[name])
    for i in range(*bounds):
        images[i], truth[i] = TASKS[name].kept(scenes[i])


def turned(images: Tensor, truth: Tensor, task: Task, chance: np.random.RandomState) -> tuple[Tensor, Tensor]:
    """A batch, mirrored and turned at random; with it what is true of each place."""
    mirrored, swapped = task.turned
    flips = [axis + 1 for axis in mirrored if torch.rand(()) < 0.5]
    order = [axis + 1 for axis in chance.permutation(swapped)]

    def change(x: Tensor) -> Tensor:
        axes = list(range(x.ndim))
        for place, axis in zip(swapped, order, strict=True):
            axes[place + 1] = axis
        return x.flip(flips).permute(axes)

    return change(images), change(truth) if truth.ndim == images.ndim else truth


def train(name: str, folder: str, recipe: Recipe, counts: tuple[int, int], device: str, seed: int) -> dict[str, Any]:
    """Trains one model; returns its card, with the weights as bytes."""
    torch.manual_seed(seed)
    started, task, chance = time.perf_counter(), TASKS[name], np.random.RandomState(seed)
    images, truth = (torch.from_numpy(np.array(part)) for part in arrays(f"{folder}/training", counts[0], task=task))
    model = OTHERS[name].make().to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.rate, weight_decay=recipe.decay)
    for i in range(recipe.steps):
        index = torch.randint(len(images), (recipe.batch,))
        x, y = turned(images[index].to(device), truth[index].to(device), task, chance)
        for group in optimiser.param_groups:
            group["lr"] = schedule(recipe.rate, i / recipe.steps)
        loss = task.loss(model(normalise(x)), y.float())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if i % 100 == 99:
            print(
                f"{name}: step {i + 1}, loss {float(loss.detach()):.4f}, {time.perf_counter() - started:.0f} s",
                flush=True,
            )
    held = arrays(f"{folder}/held_out", counts[1], task=task)

    @torch.no_grad()
    def measure(shipped: nn.Module) -> dict[str, float]:
        shipped.to(device)
        parts = [torch.from_numpy(np.array(held[0][i : i + _PART])) for i in range(0, counts[1], _PART)]
        logits = torch.cat([shipped(normalise(part.to(device))).cpu() for part in parts])
        return task.score(logits, torch.from_numpy(np.array(held[1])))

    return card_of(name, OTHERS[name], model.cpu().state_dict(), recipe, seed, started, measure)


def main() -> int:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TASKS)}; default: both")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=float, default=1.0, help="multiplies the number of steps")
    parser.add_argument("--scenes", type=float, default=1.0, help="multiplies how many are drawn")
    parser.add_argument("--held-out", type=int, default=500, help="how many to measure on")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(TASKS)
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; known are {', '.join(TASKS)}")
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name in chosen.names or TASKS:
        task, started = TASKS[name], time.perf_counter()
        counts = (max(task.recipe.batch, round(task.count * chosen.scenes)), chosen.held_out)
        recipe = replace(task.recipe, steps=max(1, round(task.recipe.steps * chosen.steps)))
        with tempfile.TemporaryDirectory() as folder:
            for part, seed, count in zip(("training", "held_out"), (TRAINING, HELD_OUT), counts, strict=True):
                scenes = task.scenes(seed, count)
                draw(f"{folder}/{part}", scenes, partial(fill, name=name), partial(arrays, task=task))
            print(f"{name}: {sum(counts)} drawn in {time.perf_counter() - started:.0f} s", flush=True)
            write(train(name, folder, recipe, counts, chosen.device, chosen.seed), chosen.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
