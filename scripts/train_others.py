"""Trains the models of the zoo that are no classifiers.

Two towers, encoders without labels, a segmentation model, a detector.

    python scripts/train_others.py                      # all of them, side by side, on one GPU
    python scripts/train_others.py detector towers      # these only

Writes float16 weights and a card for each, with what was measured on held-out scenes.

- towers: pictures and captions, told apart pair by pair (the sigmoid loss of SigLIP). What is true of each pair is
  known: a caption of one object fits every scene that holds it.
- vit-views: two views of each scene must have the same embedding, and different scenes different ones (VICReg).
- vit-masked: half of the patches are covered, and their pixels are to be found (SimMIM).
- segmenter, detector: classes at every place; boxes by the matching loss of DETR.

Training starts with few and large objects, as that of the classifiers does (scripts/train_zoo.py).
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from objectives import (
    Batch,
    Encoder,
    detector_loss,
    detector_score,
    masked_loss,
    probe_score,
    segmenter_loss,
    segmenter_score,
    towers_loss,
    towers_score,
    views_loss,
)  # fmt: skip
from torch import Tensor, nn
from train_zoo import WEIGHTS, captured, draw, keep, schedule

from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.objects import TEXTURES
from hilrp.zoo.architectures import OTHERS, SIZE, detector, segmenter, towers
from hilrp.zoo.towers import LENGTH, tokenise

TRAINING, EASY, HELD_OUT = 1_000_003, 1_000_004, 1_000_005
#: Name -> shape behind the number of scenes, and type, of what is kept of them.
PARTS: dict[str, tuple[tuple[int, ...], Any]] = {
    "images": ((3, SIZE, SIZE), np.uint8),
    "places": ((SIZE // 4, SIZE // 4), np.uint8),  # the class at each place, from one on
    "textures": ((len(CLASSES),), np.uint8),  # of each class, from one on; zero where it is not there
    "boxes": ((len(CLASSES), 4), np.float32),
    "captions": ((LENGTH,), np.int64),
}


def arrays(path: str, count: int, mode: Any = "r") -> dict[str, np.ndarray]:
    """What is kept of scenes, in files."""
    return {n: np.memmap(f"{path}.{n}", kind, mode, shape=(count, *shape)) for n, (shape, kind) in PARTS.items()}


def fill(bounds: tuple[int, int], path: str, scenes: Scenes) -> None:
    """Draws some of the scenes into the shared arrays."""
    kept = arrays(path, len(scenes), "r+")
    for i in range(*bounds):
        scene = scenes[i]
        kept["images"][i] = scene.image.transpose(2, 0, 1)
        kept["captions"][i] = tokenise(scene.caption).numpy()
        for thing in scene.things:
            rows, columns = np.nonzero(thing.mask)
            low, high = np.array([columns.min(), rows.min()]), np.array([columns.max() + 1, rows.max() + 1])
            kept["boxes"][i, thing.label] = np.concatenate([(low + high) / 2, high - low]) / SIZE
            kept["textures"][i, thing.label] = 1 + TEXTURES.index(thing.texture)
            small = thing.mask.reshape(SIZE // 4, 4, SIZE // 4, 4).mean((1, 3)) >= 0.5
            kept["places"][i][small] = 1 + thing.label


# Training
# ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """How a model is trained, and what is measured of it."""

    make: Callable[[], nn.Module]
    loss: Callable[[Any, Batch], Tensor]
    score: Callable[[Any, list[Batch]], dict[str, float]]
    steps: int
    rate: float = 1e-3
    batch: int = 128
    graph: bool = True  # whether a step can be captured: nothing in it may wait for the CPU


TASKS = {
    "towers": Task(towers, towers_loss, towers_score, 26_000),
    "vit-views": Task(partial(Encoder, "views"), views_loss, probe_score, 10_000, batch=256),
    "vit-masked": Task(partial(Encoder, "masked"), masked_loss, probe_score, 10_000, batch=256),
    "segmenter": Task(segmenter, segmenter_loss, segmenter_score, 6000, 2e-3),
    "detector": Task(detector, detector_loss, detector_score, 12_000, 5e-4, 64, graph=False),
}


def load(path: str, count: int, device: str) -> Batch:
    """All that is kept of some scenes, on the device."""
    return {name: torch.from_numpy(np.array(part)).to(device) for name, part in arrays(path, count).items()}


def mixed(sets: list[Batch], size: int, easy: float) -> Batch:
    """Random scenes, a part of them from the easy set."""
    few = round(easy * size)
    parts = []
    for data, count in zip(sets, (size - few, few), strict=True):
        index = torch.randint(len(data["images"]), (count,), device=data["images"].device)
        parts.append({name: part[index] for name, part in data.items()})
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def train(name: str, steps: int, folder: str, counts: tuple[int, int, int], device: str, seed: int) -> dict[str, Any]:
    """Trains one model; returns its card, with the weights as bytes."""
    from safetensors.torch import save

    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    started, task = time.perf_counter(), TASKS[name]
    sets = [load(f"{folder}/{kind}", count, device) for kind, count in zip(("training", "easy"), counts, strict=False)]
    model = task.make().to(device).train()
    held = load(f"{folder}/held_out", counts[2], device)
    batches = [{n: t[i : i + 250] for n, t in held.items()} for i in range(0, counts[2], 250)]
    # A probe of an encoder that knows nothing is better than chance: colours are easily read.
    before = (
        {f"untrained_{k}": v for k, v in task.score(model.eval(), batches).items()}
        if isinstance(model, Encoder)
        else {}
    )
    model.train()
    parts = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    graph = torch.device(device).type == "cuda" and task.graph
    speed = torch.zeros((), device=device)
    optimiser = torch.optim.AdamW(
        [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}],
        lr=speed, weight_decay=0.05, betas=(0.9, 0.98), capturable=graph,
    )  # fmt: skip
    batch = mixed(sets, task.batch, 1.0)

    def step() -> Tensor:
        with torch.autocast(torch.device(device).type, torch.bfloat16, cache_enabled=False):
            loss = task.loss(model, batch)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss.detach()

    run = captured(step) if graph else step
    for i in range(steps):
        done = i / steps
        speed.fill_(schedule(task.rate, done))
        for part, fresh in zip(batch.values(), mixed(sets, task.batch, max(0.0, 1 - done / 0.4)).values(), strict=True):
            part.copy_(fresh)
        loss = run()
        if i % 500 == 499:
            print(f"{name}: step {i + 1}, loss {float(loss):.4f}, {time.perf_counter() - started:.0f} s", flush=True)
    shipped = model.eval()
    for tensor in [*shipped.parameters(), *shipped.buffers()]:
        if tensor.is_floating_point():  # what is measured is what is shipped
            tensor.data = tensor.data.half().float()
    with torch.no_grad():
        measured = task.score(shipped, batches)
    kept: nn.Module = shipped.encoder if isinstance(shipped, Encoder) else shipped
    state = {k: (v.half() if v.is_floating_point() else v).cpu().contiguous() for k, v in kept.state_dict().items()}
    weights = save(state)
    return {
        "name": name,
        "architecture": OTHERS[name].title,
        "class": f"{type(kept).__module__}.{type(kept).__name__}",
        "parameters": sum(p.numel() for p in kept.parameters()),
        **measured,
        **before,
        "seed": seed,
        "steps": steps,
        "batch": task.batch,
        "rate": task.rate,
        "seconds": round(time.perf_counter() - started),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__.split("+")[0],
        "sha256": hashlib.sha256(weights).hexdigest(),
        "weights": weights,
    }


def main() -> int:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(TASKS)}; default: all")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=float, default=1.0, help="multiplies the number of steps")
    parser.add_argument("--scenes", type=int, default=60_000, help="how many to train on")
    parser.add_argument("--held-out", type=int, default=4000, help="how many to measure on")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(TASKS)
    if unknown:
        parser.error(f"no such model: {', '.join(unknown)}; known are {', '.join(TASKS)}")
    chosen.output.mkdir(parents=True, exist_ok=True)
    counts = (chosen.scenes, chosen.scenes // 5, chosen.held_out)
    with tempfile.TemporaryDirectory() as folder:
        draw(f"{folder}/training", Scenes(TRAINING, counts[0]), fill, arrays)
        draw(f"{folder}/easy", Scenes(EASY, counts[1], objects=(1, 2), area=(0.08, 0.2)), fill, arrays)
        draw(f"{folder}/held_out", Scenes(HELD_OUT, counts[2]), fill, arrays)
        names = chosen.names or list(TASKS)
        with ProcessPoolExecutor(len(names), multiprocessing.get_context("spawn")) as pool:
            futures = {}
            for name in names:
                steps = max(1, round(TASKS[name].steps * chosen.steps))
                futures[pool.submit(train, name, steps, folder, counts, chosen.device, chosen.seed)] = name
            failed = keep(futures, chosen.output)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
