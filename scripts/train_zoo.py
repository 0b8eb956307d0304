"""Trains the zoo: every architecture of `hilrp.zoo` on scenes or on photographs, seeded, on one GPU, minutes each.

    python scripts/train_zoo.py                 # all of them, on scenes
    python scripts/train_zoo.py swin pvt_v2     # these only
    python scripts/train_zoo.py --photos FOLDER --teacher tiny_vit_5m_224.safetensors    # see photo_zoo.py

Writes float16 weights and a card for each into src/hilrp/zoo/weights. Such small models wait for kernels to be launched
rather than for arithmetic, so each training step is captured once as a CUDA graph and replayed, and several models are
trained side by side. Training starts with few and large objects: models without convolutions hardly begin to learn
otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.scenes import CLASSES, Scenes
from hilrp.zoo.accuracy import mean_average_precision
from hilrp.zoo.architectures import ARCHITECTURES, OTHERS, SIZE, Architecture

WEIGHTS = Path(__file__).parent.parent / "src/hilrp/zoo/weights"
#: The seeds of the scenes to train on and of those held out; the documentation of `Scenes` asks users to leave them
#: alone.
TRAINING, EASY, HELD_OUT = 1_000_000, 1_000_001, 1_000_002


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: AdamW, its rate rising over the first tenth and falling to zero along a cosine."""

    steps: int
    rate: float = 1e-3
    batch: int = 128
    decay: float = 0.05


#: Models with convolutions and batch normalisation learn fast, flat transformers slowly.
RECIPES = {
    "resnet": Recipe(8000, 2e-3),
    "convnext": Recipe(14_000),
    "vit": Recipe(7000),
    "deit": Recipe(7000),
    "beit": Recipe(8000),
    "swin": Recipe(5000),
    "pvt_v2": Recipe(5000),
    "mobilevitv2": Recipe(8000, 2e-3),
    "efficientvit": Recipe(8000, 2e-3),
    "maxvit": Recipe(8000, 2e-3),
    "crossvit": Recipe(10_000),
    "tinyvit": Recipe(8000, 2e-3),
}


def fill(bounds: tuple[int, int], path: str, scenes: Scenes) -> None:
    """Draws some of the scenes into the shared arrays."""
    images, labels = arrays(path, len(scenes), "r+")
    for i in range(*bounds):
        scene = scenes[i]
        images[i], labels[i] = scene.image.transpose(2, 0, 1), scene.labels


def arrays(path: str, count: int, mode: Any = "r") -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a folder."""
    images = np.memmap(f"{path}.images", np.uint8, mode, shape=(count, 3, SIZE, SIZE))
    return images, np.memmap(f"{path}.labels", np.float32, mode, shape=(count, len(CLASSES)))


def draw(path: str, scenes: Scenes, fill: Callable[..., None] = fill, arrays: Callable[..., Any] = arrays) -> None:
    """Draws scenes on all cores, with a function that fills arrays and one that makes them."""
    arrays(path, len(scenes), "w+")
    parts = [(i, min(i + 250, len(scenes))) for i in range(0, len(scenes), 250)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for _ in pool.imap_unordered(partial(fill, path=path, scenes=scenes), parts):
            pass


class Batches:
    """Random batches on the device, turned and mirrored; at first mostly of the easy scenes."""

    def __init__(self, folder: str, counts: tuple[int, int], device: str, batch: int, seed: int) -> None:
        self.sets = [
            tuple(torch.from_numpy(np.array(a)).to(device) for a in arrays(f"{folder}/{name}", count))
            for name, count in zip(("hard", "easy"), counts, strict=True)
        ]
        self.chance, self.batch, self.device = torch.Generator(device).manual_seed(seed), batch, device

    def draw(self, easy: float) -> tuple[Tensor, Tensor]:
        """Images and labels, a part of them from the easy set."""
        few = round(easy * self.batch)
        found = []
        for (images, labels), count in zip(self.sets, (self.batch - few, few), strict=True):
            index = torch.randint(len(images), (count,), generator=self.chance, device=self.device)
            found.append((images[index], labels[index]))
        images, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
        for change in (lambda x: x.flip(2), lambda x: x.flip(3), lambda x: x.transpose(2, 3)):
            coin = torch.rand(self.batch, 1, 1, 1, generator=self.chance, device=self.device) < 0.5
            images = torch.where(coin, change(images), images)
        return images, labels


def normalise(images: Tensor) -> Tensor:
    """From bytes to -1 .. 1, as `hilrp.load` does it."""
    return images.float() / 127.5 - 1


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Binary cross-entropy; of both heads, where there are two (DeiT)."""
    with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
        output = model(normalise(images).contiguous(memory_format=torch.channels_last))
    outputs = output if isinstance(output, tuple) else (output,)
    return torch.stack([F.binary_cross_entropy_with_logits(o.float(), labels) for o in outputs]).mean()


def captured(step: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """A step that a GPU is given as a whole: such small models wait for Python otherwise."""
    # With a rate of zero these first steps change no weight.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):  # libraries keep memory for each stream: none of another graph's
        loss = step()

    def replay(written: object = step) -> Tensor:
        """Runs the graph; what it writes to, the optimiser's state too, has to live as long."""
        graph.replay()
        return loss

    return replay


def schedule(rate: float, done: float) -> float:
    """The rate when a part of the steps is done: it rises for a tenth of them, and falls along a cosine."""
    return rate * min(done / 0.1, 0.5 + 0.5 * math.cos(math.pi * max(0.0, done - 0.1) / 0.9))


def stepper(
    model: nn.Module,
    recipe: Recipe,
    device: str,
    loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor] = loss_of,
    classes: int = len(CLASSES),
) -> Callable[[Tensor, Tensor, float], Tensor]:
    """A function that does one training step, captured as a graph on a GPU."""
    rate = torch.zeros((), device=device)
    parts = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    optimiser = torch.optim.AdamW(
        [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}],
        lr=rate, weight_decay=recipe.decay, betas=(0.9, 0.98), capturable=device != "cpu",
    )  # fmt: skip
    images = torch.zeros(recipe.batch, 3, SIZE, SIZE, dtype=torch.uint8, device=device)
    labels = torch.zeros(recipe.batch, classes, device=device)

    def step() -> Tensor:
        optimiser.zero_grad()
        loss = loss_of(model, images, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        return loss.detach()

    go = captured(step) if device != "cpu" else step

    def run(new_images: Tensor, new_labels: Tensor, new_rate: float) -> Tensor:
        images.copy_(new_images)
        labels.copy_(new_labels)
        rate.fill_(new_rate)
        return go()

    return run


def train(
    name: str,
    recipe: Recipe,
    folder: str,
    counts: tuple[int, int],
    device: str,
    seed: int,
    change: Callable[[Tensor, Tensor, torch.Generator], Tensor] = lambda images, *_: images,
) -> dict[str, Any]:
    """Trains one model, on images that are changed last of all; returns its card, with the weights as bytes."""
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    started = time.perf_counter()
    architecture = (ARCHITECTURES | OTHERS)[name]
    model = architecture.make().to(device, memory_format=torch.channels_last).train()
    if hasattr(model, "set_distilled_training"):
        model.set_distilled_training(True)
    batches = Batches(folder, counts, device, recipe.batch, seed)
    step = stepper(model, recipe, device)
    for i in range(recipe.steps):
        done = i / recipe.steps
        images, labels = batches.draw(max(0.0, 1 - done / 0.4))
        loss = step(change(images, labels, batches.chance), labels, schedule(recipe.rate, done))
        if i % 500 == 499:
            print(f"{name}: step {i + 1}, loss {float(loss):.4f}, {time.perf_counter() - started:.0f} s", flush=True)
    return card_of(
        name, architecture, model.state_dict(), recipe, seed, started,
        lambda shipped: {"mean_average_precision": round(precision(shipped.to(device), folder, device), 4)},
    )  # fmt: skip


def card_of(
    name: str,
    architecture: Architecture,
    weights: dict[str, Tensor],
    recipe: Recipe,
    seed: int,
    started: float,
    measure: Callable[[nn.Module], dict[str, float]],
) -> dict[str, Any]:
    """The card of a trained model, with its weights as bytes; what is measured is the model as it is shipped."""
    from safetensors.torch import save

    shipped = architecture.make().eval()
    # Statistics of batches stay as they are: a variance may be more than float16 holds.
    learned = {k for k, _ in shipped.named_parameters()}
    half = {k: (v.half() if k in learned else v).cpu().contiguous() for k, v in weights.items()}
    shipped.load_state_dict(half)
    data = save(half)
    return {
        "name": name,
        "architecture": architecture.title,
        "class": f"{type(shipped).__module__}.{type(shipped).__name__}",
        "parameters": sum(p.numel() for p in shipped.parameters()),
        **measure(shipped),
        "seed": seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "rate": recipe.rate,
        "seconds": round(time.perf_counter() - started),
        "date": datetime.now(UTC).date().isoformat(),
        "torch": torch.__version__.split("+")[0],
        "sha256": hashlib.sha256(data).hexdigest(),
        "weights": data,
    }


def precision(model: nn.Module, folder: str, device: str) -> float:
    """Mean average precision on the scenes held out."""
    images, labels = arrays(f"{folder}/held_out", 4000)
    with torch.no_grad():
        parts = [model(normalise(torch.from_numpy(images[i : i + 250].copy()).to(device))) for i in range(0, 4000, 250)]
    return mean_average_precision(torch.cat(parts).float().cpu().numpy(), labels)


def keep(futures: dict[Future[dict[str, Any]], str], folder: Path) -> int:
    """Writes weights and cards as they come; returns how many models failed, which doesn't keep the others."""
    failed = 0
    for future in as_completed(futures):
        try:
            card = future.result()
        except Exception as error:
            print(f"{futures[future]} failed: {type(error).__name__}: {error}", flush=True)
            failed += 1
            continue
        write(card, folder)
    return failed


def write(card: dict[str, Any], folder: Path) -> None:
    """Writes the weights and the card of a model."""
    (folder / f"{card['name']}.safetensors").write_bytes(card.pop("weights"))
    (folder / f"{card['name']}.json").write_text(json.dumps(card, indent=1) + "\n")
    print(f"{card['name']} after {card['seconds']} s: {card}", flush=True)


def main() -> int:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(ARCHITECTURES)}; default: all")
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=4, help="models at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=float, default=1.0, help="multiplies the number of steps")
    parser.add_argument("--scenes", type=int, default=80_000, help="how many to train on")
    parser.add_argument("--photos", type=Path, help="train on the photographs of this folder (train.npz) instead")
    parser.add_argument("--teacher", type=Path, help="weights of TinyViT-5M, which photographs are learned from")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="so many for training on photographs at most"
    )
    parser.add_argument("--start", type=Path, help="a folder of weights of photographs to go on from")
    parser.add_argument("--limit", type=int, default=0, help="so many photographs at most; default: all")
    chosen = parser.parse_args()
    unknown = set(chosen.names) - set(ARCHITECTURES)
    if unknown:
        parser.error(f"no such architecture: {', '.join(unknown)}; known are {', '.join(ARCHITECTURES)}")
    if (chosen.photos is None) != (chosen.teacher is None):
        parser.error("--photos and --teacher go together")
    chosen.output.mkdir(parents=True, exist_ok=True)
    names = chosen.names or list(ARCHITECTURES)
    if chosen.photos is not None:
        import photo_zoo

        options = {"views": 2, "limit": chosen.limit} if chosen.limit else {}
        file = chosen.photos / "train.npz"
        photos = photo_zoo.Photos.draw(file, chosen.teacher, chosen.device, chosen.seed, **options)
        recipes = {f"{name}-photo": photo_zoo.RECIPES[f"{name}-photo"] for name in names}
        for card in photo_zoo.train(
            recipes, photos, round(photo_zoo.STEPS * chosen.steps), chosen.seconds, chosen.start
        ):
            write(card, chosen.output)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        started, counts = time.perf_counter(), (chosen.scenes, chosen.scenes // 5)
        draw(f"{folder}/hard", Scenes(TRAINING, counts[0]))
        draw(f"{folder}/easy", Scenes(EASY, counts[1], objects=(1, 2), area=(0.08, 0.2)))
        draw(f"{folder}/held_out", Scenes(HELD_OUT, 4000))
        print(f"{sum(counts)} scenes drawn in {time.perf_counter() - started:.0f} s", flush=True)
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(chosen.jobs, context) as pool:
            futures = {}
            for name in names:
                recipe = replace(RECIPES[name], steps=round(RECIPES[name].steps * chosen.steps))
                futures[pool.submit(train, name, recipe, folder, counts, chosen.device, chosen.seed)] = name
            failed = keep(futures, chosen.output)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
