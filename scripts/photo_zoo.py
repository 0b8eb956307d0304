"""What `scripts/train_zoo.py --photos FOLDER` does: the zoo's families, trained on photographs.

The folder holds ``train.npz``: pictures of ten ImageNet classes as files one after the other (``bytes``, ``offsets``),
with ``labels`` and a ``split`` (0 to train on, 1 to choose by, 2 to report on). Those of the last are never read here.

Small models learn little from a label and much from another model's doubts. So views of the pictures are drawn once,
the teacher (TinyViT-5M with its published weights) says of each how likely the ten classes are, and all families learn
from the same views, mixed in pairs, side by side. What is shipped is a running mean of the weights.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from train_zoo import Recipe, card_of, normalise, schedule, stepper

from hilrp.models.images import read
from hilrp.zoo.architectures import PHOTO_CLASSES, PHOTOS, SIZE

#: The teacher's numbers of the ten classes.
IMAGENET = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
#: How many views of each picture are drawn.
VIEWS = 16
#: How much a running mean of the weights keeps each time, every ten steps.
KEEP = 0.97
#: How many views say anew what batches are like, once the weights are known.
SETTLED = 4096
#: Part of the target that is the label; the rest is the teacher's.
LABEL = 0.2

#: How many steps all models take, and on how many views each. On one H200 a step of all twelve took 246 ms, one of 128
#: views 72 ms: a little more views in the same time.
STEPS, BATCH = 8_000, 512
#: Models with convolutions and batch normalisation bear a higher rate.
RECIPES = {
    "resnet-photo": Recipe(STEPS, 4e-3, BATCH),
    "convnext-photo": Recipe(STEPS, 3e-3, BATCH),
    "vit-photo": Recipe(STEPS, 2e-3, BATCH),
    "deit-photo": Recipe(STEPS, 2e-3, BATCH),
    "beit-photo": Recipe(STEPS, 2e-3, BATCH),
    "swin-photo": Recipe(STEPS, 2e-3, BATCH),
    "pvt_v2-photo": Recipe(STEPS, 2e-3, BATCH),
    "mobilevitv2-photo": Recipe(STEPS, 4e-3, BATCH),
    "efficientvit-photo": Recipe(STEPS, 4e-3, BATCH),
    "maxvit-photo": Recipe(STEPS, 3e-3, BATCH),
    "crossvit-photo": Recipe(STEPS, 2e-3, BATCH),
    "tinyvit-photo": Recipe(STEPS, 3e-3, BATCH),
}


def decoded(data: bytes) -> np.ndarray:
    """The picture ``[3,H,W]`` in a file."""
    return np.asarray(read(io.BytesIO(data))[0]).transpose(2, 0, 1)


def pictures(file: Path, split: int) -> tuple[np.ndarray, np.ndarray]:
    """The pictures ``[N,3,H,W]`` and labels of a split."""
    data = np.load(file, allow_pickle=False)
    chosen = np.flatnonzero(data["split"] == split)
    everything, ends = data["bytes"].tobytes(), data["offsets"]
    files = [everything[ends[i] : ends[i + 1]] for i in chosen]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        return np.stack(pool.map(decoded, files, chunksize=64)), data["labels"][chosen]


def whole(images: Tensor) -> Tensor:
    """Whole pictures at the zoo's size, as bytes."""
    small = F.interpolate(images.float(), (SIZE, SIZE), mode="bilinear", antialias=True)
    return small.round_().clamp_(0, 255).byte()


def view(images: Tensor, chance: torch.Generator) -> Tensor:
    """A random part of each picture, stretched a little, mirrored, in other light; as bytes."""

    def between(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(len(images), *shape, generator=chance, device=images.device)

    area, stretch = between(0.3, 1.0), torch.exp(between(-0.25, 0.25))
    width, height = ((area.sqrt() * s).clamp(max=1.0) for s in (stretch, 1 / stretch))
    x, y = ((1 - side) * between(-1, 1) for side in (width, height))
    mirrored = torch.where(between(0, 1) < 0.5, -1.0, 1.0)
    rows = [torch.stack([width * mirrored, 0 * x, x], 1), torch.stack([0 * y, height, y], 1)]
    grid = F.affine_grid(torch.stack(rows, 1), [len(images), 3, SIZE, SIZE], align_corners=False)
    part = F.grid_sample(images.float(), grid, padding_mode="reflection", align_corners=False)
    light, contrast, colour = (between(0.7, 1.3, 1, 1, 1) for _ in range(3))
    part = part * light
    middle = part.mean((1, 2, 3), keepdim=True)
    part = middle + (part - middle) * contrast
    grey = part.mean(1, keepdim=True)
    return (grey + (part - grey) * colour).round_().clamp_(0, 255).byte()


def teacher(weights: Path, device: str) -> Callable[[Tensor], Tensor]:
    """TinyViT-5M's logits of the ten classes, of pictures as bytes."""
    import timm

    model = timm.create_model("tiny_vit_5m_224", num_classes=1000)
    model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in load_file(weights).items()})
    model = model.to(device, memory_format=torch.channels_last).eval()
    config = model.default_cfg
    mean, std = (torch.tensor(config[key], device=device).view(3, 1, 1) for key in ("mean", "std"))

    def logits(images: Tensor) -> Tensor:
        large = F.interpolate(images.float() / 255, (224, 224), mode="bicubic", antialias=True)
        with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=device != "cpu"):
            return model((large - mean) / std)[:, list(IMAGENET)].float()

    return logits


@dataclass(frozen=True)
class Photos:
    """What all models learn from, on the device.

    Attributes:
        images: Views of the photographs, as bytes.
        targets: What is to be learned of each view: how likely the classes are.
        held, labels: Whole photographs to choose by, and their classes.
        device, seed: Where, and by what chance they were drawn.
    """

    images: Tensor
    targets: Tensor
    held: Tensor
    labels: Tensor
    device: str
    seed: int

    @classmethod
    def draw(cls, file: Path, weights: Path, device: str, seed: int, views: int = VIEWS, limit: int = 0) -> Photos:
        """Draws the views, with the teacher's opinion of each."""
        started = time.perf_counter()
        (images, labels), (held, held_labels) = (map(torch.from_numpy, pictures(file, split)) for split in (0, 1))
        if limit:  # they are in the order of their classes
            chosen = torch.linspace(0, len(images) - 1, min(limit, len(images))).long()
            images, labels = images[chosen], labels[chosen]
        opinion, chance = teacher(weights, device), torch.Generator(device).manual_seed(seed)
        found = torch.cat([opinion(part.to(device)).argmax(1).cpu() for part in held.split(128)])
        right = float((found == held_labels).float().mean())
        print(
            f"decoded in {time.perf_counter() - started:.0f} s; the teacher is right on {right:.4f} held out",
            flush=True,
        )
        own = F.one_hot(labels.long(), len(PHOTO_CLASSES)).float()
        seen, targets = [], []
        for _ in range(views):
            for part, one_hot in zip(images.split(512), own.split(512), strict=True):
                seen.append(view(part.to(device), chance))
                targets.append(LABEL * one_hot.to(device) + (1 - LABEL) * opinion(seen[-1]).softmax(1))
        print(f"{views} views of {len(images)} pictures drawn in {time.perf_counter() - started:.0f} s", flush=True)
        return cls(torch.cat(seen), torch.cat(targets), whole(held.to(device)), held_labels, device, seed)

    def accuracy(self, model: nn.Module) -> float:
        """How many of the photographs to choose by a model names rightly."""
        with torch.no_grad():
            found = torch.cat([model(normalise(part)).argmax(1).cpu() for part in self.held.split(250)])
        return float((found == self.labels).float().mean())


def loss_of(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy with what is to be learned; of both heads, where there are two (DeiT)."""
    with torch.autocast(images.device.type, torch.bfloat16, cache_enabled=False):
        output = model(normalise(images).contiguous(memory_format=torch.channels_last))
    outputs = output if isinstance(output, tuple) else (output,)
    return torch.stack([F.cross_entropy(o.float(), targets) for o in outputs]).mean()


def mixed(images: Tensor, targets: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Three quarters of the batch as they are, the others mixed in pairs; mirrored by chance."""
    coin = torch.rand(len(images), 1, 1, 1, generator=chance, device=images.device) < 0.5
    images = torch.where(coin, images.flip(3), images).float()
    part = torch.rand(len(images), 1, 1, 1, generator=chance, device=images.device)
    part[len(images) // 4 :] = 1.0
    images = part * images + (1 - part) * images.flip(0)
    part = part[:, :, 0, 0]
    return images.byte(), part * targets + (1 - part) * targets.flip(0)


def settled(name: str, weights: dict[str, Tensor], views: Tensor) -> dict[str, Tensor]:
    """Weights with the statistics of batches that are theirs, on the device of the views.

    The mean of statistics isn't that of the mean weights, and may hold a batch that overflowed.
    """
    model = PHOTOS[name].make().to(views.device).train()
    model.load_state_dict(weights)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None  # the mean over all batches
    with torch.no_grad():
        for part in views.split(256):
            model(normalise(part))
    return model.state_dict()


class Learner:
    """A model in training, on a stream of its own."""

    def __init__(self, name: str, recipe: Recipe, photos: Photos, start: Path | None) -> None:
        self.name, self.recipe, self.photos, self.steps_before = name, recipe, photos, 0
        torch.manual_seed(photos.seed)
        model = PHOTOS[name].make()
        if start is not None:
            model.load_state_dict(load_file(start / f"{name}.safetensors"))
            self.steps_before = json.loads((start / f"{name}.json").read_text())["steps"]
        model = model.to(photos.device, memory_format=torch.channels_last).train()
        if hasattr(model, "set_distilled_training"):
            model.set_distilled_training(True)
        self._step = stepper(model, recipe, photos.device, loss_of, len(PHOTO_CLASSES))
        self._weights = model.state_dict()
        self._mean, self._count = {name: value.clone() for name, value in self._weights.items()}, 0
        self.stream = torch.cuda.Stream() if photos.device != "cpu" else None

    def step(self, batch: tuple[Tensor, Tensor], done: float, averages: bool) -> Tensor:
        """One step, which the GPU takes beside those of the others; the loss."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            loss = self._step(*batch, schedule(self.recipe.rate, done))
            if averages:
                self._average()
        return loss

    def _average(self) -> None:
        """Adds the weights to their running mean, which forgets: that of all of them at first, of the last later."""
        self._count += 1
        part = max(1 / self._count, 1 - KEEP)
        with torch.no_grad():
            for name, value in self._weights.items():
                mean = self._mean[name]
                mean.lerp_(value, part) if mean.is_floating_point() else mean.copy_(value)

    def card(self, steps: int, started: float) -> dict[str, Any]:
        """The card of what was learned, with the weights as bytes."""
        recipe = replace(self.recipe, steps=self.steps_before + steps)
        images = self.photos.images
        some = torch.randperm(len(images), generator=torch.Generator().manual_seed(self.photos.seed))[:SETTLED]
        weights = settled(self.name, self._mean, images[some.to(images.device)])
        return card_of(
            self.name, PHOTOS[self.name], weights, recipe, self.photos.seed, started,
            lambda model: {"held_out_accuracy": round(self.photos.accuracy(model.to(self.photos.device)), 4)},
        )  # fmt: skip


def train(
    recipes: dict[str, Recipe], photos: Photos, steps: int, seconds: float, start: Path | None = None
) -> Iterator[dict[str, Any]]:
    """Trains models side by side on the same batches, from the weights of a folder or from nothing; yields their cards.

    Their steps run at once, since none of them fills a GPU alone. Where time would run out before the
    steps are done, the rate falls sooner, and the cards say how many steps it was.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    began = time.perf_counter()
    learners = []
    for name, recipe in recipes.items():
        learners.append(Learner(name, recipe, photos, start))
        print(f"{name} prepared after {time.perf_counter() - began:.0f} s", flush=True)
    torch.backends.cudnn.benchmark = False
    cuda, batch = photos.device != "cpu", next(iter(recipes.values())).batch
    if cuda:
        torch.cuda.synchronize()
    started, taken, done = time.perf_counter(), 0, 0.0
    chance = torch.Generator(photos.device).manual_seed(photos.seed)
    while done < 1:
        index = torch.randint(len(photos.images), (batch,), generator=chance, device=photos.device)
        pair = mixed(photos.images[index], photos.targets[index], chance)
        taken += 1
        losses = [learner.step(pair, done, averages=taken % 10 == 0) for learner in learners]
        for learner in learners:
            if learner.stream is not None:  # the batch is theirs until all have taken their step
                torch.cuda.current_stream().wait_stream(learner.stream)
        if cuda and taken % 10 == 0:
            torch.cuda.synchronize()  # else Python runs ahead, and the clock with it
        if taken in (10, 100) or taken % 500 == 0:
            said = " ".join(f"{float(loss):.3f}" for loss in losses)
            print(f"step {taken}, {time.perf_counter() - started:.0f} s, losses {said}", flush=True)
        done = max(taken / steps, (time.perf_counter() - started) / seconds)
    if cuda:
        torch.cuda.synchronize()
    for learner in learners:
        yield learner.card(taken, started)
