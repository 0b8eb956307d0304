"""Trains the models of the zoo that are no classifiers: two towers, encoders without labels, a segmentation model, a detector.

    python scripts/train_others.py                      # all of them, side by side, on one GPU
    python scripts/train_others.py detector towers      # these only

Writes float16 weights and a card for each, with what was measured on held-out scenes.

- towers: pictures and captions, told apart pair by pair (the sigmoid loss of SigLIP). What is true of each pair is known: a caption of one
  object fits every scene that holds it.
- vit-views: two views of each scene must have the same embedding, and different scenes different ones (VICReg).
- vit-masked: half of the patches are covered, and their pixels are to be found (SimMIM).
- segmenter, detector: classes at every place; boxes by the matching loss of DETR.

Training starts with few and large objects, as that of the classifiers does (scripts/train_zoo.py).
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
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES
from hilrp.zoo.accuracy import mean_average_precision
from hilrp.zoo.architectures import SIZE, detector, segmenter, towers, vit_encoder
from hilrp.zoo.towers import LENGTH, tokenise

WEIGHTS = Path(__file__).parent.parent / "src/hilrp/zoo/weights"
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


def draw(path: str, scenes: Scenes) -> None:
    """Draws scenes on all cores."""
    arrays(path, len(scenes), "w+")
    parts = [(i, min(i + 250, len(scenes))) for i in range(0, len(scenes), 250)]
    with multiprocessing.Pool(os.cpu_count()) as pool:
        for _ in pool.imap_unordered(partial(fill, path=path, scenes=scenes), parts):
            pass


Batch = dict[str, Tensor]


def pixels(batch: Batch) -> Tensor:
    """From bytes to -1 .. 1, as `hilrp.load` does it."""
    return batch["images"].float() / 127.5 - 1


# Two towers ------------------------------------------------------------------------------------------------------------


def single_captions(device: str) -> Tensor:
    """Captions of one object, ``[classes, textures, L]``; the first texture is the one that isn't named."""
    found = []
    for label in range(len(CLASSES)):
        name = f"{COLOURS[label % len(COLOURS)]} {SHAPES[label // len(COLOURS)]}"
        found.append(torch.stack([tokenise(f"a {name}" if t == "plain" else f"a {t} {name}") for t in TEXTURES]))
    return torch.stack(found).to(device)


def towers_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Every picture with every caption: one object of a scene, or all of it."""
    textures, device = batch["textures"].long(), batch["images"].device
    label = torch.multinomial((textures > 0).float(), 1)
    texture = textures.gather(1, label) - 1
    # Half of the captions don't name the texture, and fit every texture.
    texture = torch.where(torch.rand(texture.shape, device=device) < 0.5, 0, texture)
    single = single_captions(str(device))[label[:, 0], texture[:, 0]]
    own = textures[:, label[:, 0]]
    fits = torch.where(texture.T == 0, own > 0, own - 1 == texture.T)
    whole = torch.rand(len(label), device=device) < 0.3
    ids = torch.where(whole[:, None], batch["captions"], single)
    same = (batch["captions"][:, None] == batch["captions"][None]).all(-1)
    labels = torch.where(whole, same, fits).float()
    logits = model(pixels(batch), ids).float()
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="sum") / len(logits)


def towers_score(model: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Mean average precision of captions of single objects, the texture named or not."""
    captions = single_captions(str(batches[0]["images"].device))
    found, truth = [], []
    for batch in batches:
        textures = batch["textures"].long()
        found.append(model(pixels(batch), captions.flatten(0, 1)).float())
        exact = textures[:, :, None] - 1 == torch.arange(len(TEXTURES), device=textures.device)
        exact[:, :, 0] = textures > 0
        truth.append(exact.flatten(1))
    return {"caption_average_precision": _precision(found, truth)}


def _precision(found: list[Tensor], truth: list[Tensor]) -> float:
    scores, labels = (torch.cat(parts).float().cpu().numpy() for parts in (found, truth))
    known = labels.any(0)
    return round(mean_average_precision(scores[:, known], labels[:, known]), 4)


# Encoders without labels ----------------------------------------------------------------------------------------------


class Encoder(nn.Module):
    """An encoder with what its training needs besides."""

    def __init__(self, objective: str) -> None:
        super().__init__()
        self.encoder: Any = vit_encoder()
        width = self.encoder.embed_dim
        self.objective = objective
        self.head: nn.Module
        if objective == "views":
            self.head = nn.Sequential(nn.Linear(width, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 512))
        else:
            self.cover = nn.Parameter(0.02 * torch.randn(width))
            self.head = nn.Linear(width, 3 * 8 * 8)


def view(x: Tensor) -> Tensor:
    """A random view: mirrored, shifted, enlarged, in other light."""
    count, device = len(x), x.device
    scale, shift = 0.7 + 0.3 * torch.rand(count, device=device), 0.3 * (2 * torch.rand(count, 2, device=device) - 1)
    mirror = torch.where(torch.rand(count, device=device) < 0.5, -1.0, 1.0)
    matrix = torch.zeros(count, 2, 3, device=device)
    matrix[:, 0, 0], matrix[:, 1, 1], matrix[:, :, 2] = scale * mirror, scale, shift
    seen = F.grid_sample(
        x, F.affine_grid(matrix, list(x.shape), align_corners=False), padding_mode="reflection", align_corners=False
    )
    light = 0.8 + 0.4 * torch.rand(count, 1, 1, 1, device=device)
    return seen * light + 0.2 * torch.randn(count, 1, 1, 1, device=device)


def views_loss(model: Any, batch: Batch) -> Tensor:
    """VICReg: alike from view to view, spread out over scenes, and no two features the same."""
    x = pixels(batch)
    first, second = (model.head(model.encoder(view(x))).float() for _ in range(2))
    loss = 25 * F.mse_loss(first, second)
    for z in (first, second):
        centred = z - z.mean(0)
        loss = loss + 25 * F.relu(1 - (centred.var(0) + 1e-4).sqrt()).mean()
        covariance = centred.T @ centred / (len(z) - 1)
        loss = loss + (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]
    return loss


def masked_loss(model: Any, batch: Batch) -> Tensor:
    """SimMIM: the pixels of covered patches, each patch without its own mean and spread."""
    x, encoder = pixels(batch), model.encoder
    tokens = encoder.patch_embed(x)
    covered = torch.rand(tokens.shape[:2], device=x.device) < 0.5
    tokens = torch.where(covered[..., None], model.cover.to(tokens.dtype), tokens)
    tokens = encoder.norm_pre(encoder._pos_embed(tokens))
    for block in encoder.blocks:
        tokens = block(tokens)
    found = model.head(encoder.norm(tokens))[:, encoder.num_prefix_tokens :].float()
    truth = F.unfold(x, 8, stride=8).transpose(1, 2)
    truth = (truth - truth.mean(-1, keepdim=True)) / (truth.var(-1, keepdim=True) + 1e-4).sqrt()
    return (found - truth).abs()[covered].mean()


def probe_score(model: Any, batches: list[Batch]) -> dict[str, float]:
    """How well a linear classifier on the embeddings tells the classes: fitted on one half, measured on the other."""
    with torch.no_grad():
        z = torch.cat([model.encoder(pixels(b)).float() for b in batches])
    labels = torch.cat([b["textures"] > 0 for b in batches]).float()
    half = len(z) // 2
    z = (z - z[:half].mean(0)) / (z[:half].std(0) + 1e-6)
    probe = nn.Linear(z.shape[1], labels.shape[1]).to(z.device)
    optimiser = torch.optim.LBFGS(probe.parameters(), max_iter=200)

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.binary_cross_entropy_with_logits(probe(z[:half]), labels[:half]) + 1e-4 * probe.weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimiser.step(closure)  # type: ignore[no-untyped-call]
    return {"linear_average_precision": _precision([probe(z[half:]).detach()], [labels[half:]])}


# Dense ------------------------------------------------------------------------------------------------------------------


def _dense_labels(batch: Batch, size: Any) -> Tensor:
    hot = F.one_hot(batch["places"].long(), len(CLASSES) + 1).permute(0, 3, 1, 2)[:, 1:].float()
    return F.adaptive_avg_pool2d(hot, size)


def segmenter_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each class at each place, those that are there counted four times."""
    logits = model(pixels(batch)).float()
    labels = _dense_labels(batch, logits.shape[-2:])
    return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.tensor(4.0, device=logits.device))


def segmenter_score(model: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Intersection over union, the mean over classes."""
    common = total = torch.zeros(len(CLASSES), device=batches[0]["images"].device)
    for batch in batches:
        logits = model(pixels(batch)).float()
        found, truth = logits > 0, _dense_labels(batch, logits.shape[-2:]) >= 0.5
        common = common + (found & truth).sum((0, 2, 3))
        total = total + (found | truth).sum((0, 2, 3))
    return {"mean_iou": round(float((common / total).mean()), 4)}


def corners(boxes: Tensor) -> Tensor:
    """From middle, width and height to left, top, right and bottom."""
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Intersection over union, and the generalised one, of boxes given by their corners."""
    common = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0).prod(-1)
    areas = [(t[..., 2:] - t[..., :2]).clamp(min=0).prod(-1) for t in (a, b)]
    union = areas[0] + areas[1] - common
    hull = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    iou = common / union.clamp(min=1e-6)
    return iou, iou - (hull - union) / hull.clamp(min=1e-6)


def detector_loss(model: Any, batch: Batch) -> Tensor:
    """DETR's: each object is matched with the query that fits it best, in every layer."""
    from scipy.optimize import linear_sum_assignment

    there = batch["textures"] > 0
    total = torch.zeros((), device=there.device)
    for found in model.steps(pixels(batch)):
        logits, boxes = found["logits"].float(), found["pred_boxes"].float()
        truth = batch["boxes"]
        with torch.no_grad():
            likely = logits.sigmoid().transpose(1, 2)
            apart = torch.cdist(truth, boxes, p=1)
            _, wide = overlap(corners(truth)[:, :, None], corners(boxes)[:, None])
            cost = (2 * (1 - likely) + 5 * apart + 2 * (1 - wide)).cpu().numpy()
            present = there.cpu().numpy()
        samples, queries, labels = [], [], []
        for i, own in enumerate(present):
            known = np.nonzero(own)[0]
            rows, columns = linear_sum_assignment(cost[i, known])
            samples += [i] * len(rows)
            queries += columns.tolist()
            labels += known[rows].tolist()
        wanted = torch.zeros_like(logits)
        wanted[samples, queries, labels] = 1
        right = logits.sigmoid() * wanted + (1 - logits.sigmoid()) * (1 - wanted)
        entropy = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
        focal = (torch.where(wanted > 0, 0.25, 0.75) * (1 - right).square() * entropy).sum()
        own_boxes, true_boxes = boxes[samples, queries], truth[samples, labels]
        near = (own_boxes - true_boxes).abs().sum() * 5 + (
            1 - overlap(corners(own_boxes), corners(true_boxes))[1]
        ).sum() * 2
        total = total + (2 * focal + near) / len(samples)
    return total


def detector_score(model: Any, batches: list[Batch]) -> dict[str, float]:
    """Average precision of boxes that overlap by a half, the mean over classes."""
    found: list[list[tuple[float, bool]]] = [[] for _ in CLASSES]
    known = np.zeros(len(CLASSES))
    for batch in batches:
        output = model(pixels(batch))
        scores, boxes = output["logits"].float().sigmoid(), corners(output["pred_boxes"].float())
        iou, _ = overlap(boxes[:, :, None], corners(batch["boxes"])[:, None])
        there = batch["textures"] > 0
        known += there.sum(0).cpu().numpy()
        hit = (iou >= 0.5) & there[:, None]
        for label in range(len(CLASSES)):
            order = scores[:, :, label].argsort(1, descending=True)
            values, hits = scores[:, :, label].gather(1, order), hit[:, :, label].gather(1, order)
            first = hits & (hits.cumsum(1) == 1)  # the strongest finds the object, others find it again
            found[label] += list(zip(values.flatten().tolist(), first.flatten().tolist(), strict=True))
    precisions = []
    for label, pairs in enumerate(found):
        pairs.sort(key=lambda pair: -pair[0])
        hits = np.array([hit for _, hit in pairs], float)
        precision = hits.cumsum() / np.arange(1, len(hits) + 1)
        precisions.append(float((precision * hits).sum() / max(1, known[label])))
    return {"average_precision_50": round(float(np.mean(precisions)), 4)}


# Training ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Task:
    """How a model is trained, and what is measured of it."""

    make: Callable[[], nn.Module]
    loss: Callable[[Any, Batch], Tensor]
    score: Callable[[Any, list[Batch]], dict[str, float]]
    steps: int
    rate: float = 1e-3
    batch: int = 128


TASKS = {
    "towers": Task(towers, towers_loss, towers_score, 12_000),
    "vit-views": Task(partial(Encoder, "views"), views_loss, probe_score, 10_000, batch=256),
    "vit-masked": Task(partial(Encoder, "masked"), masked_loss, probe_score, 10_000, batch=256),
    "segmenter": Task(segmenter, segmenter_loss, segmenter_score, 6000, 2e-3),
    "detector": Task(detector, detector_loss, detector_score, 12_000, 5e-4, 64),
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
    parts = [[p for p in model.parameters() if (p.ndim > 1) == matrix] for matrix in (True, False)]
    optimiser = torch.optim.AdamW(
        [{"params": parts[0]}, {"params": parts[1], "weight_decay": 0.0}], lr=0.0, weight_decay=0.05, betas=(0.9, 0.98)
    )
    for i in range(steps):
        done = i / steps
        rate = task.rate * min(done / 0.1, 0.5 + 0.5 * math.cos(math.pi * max(0.0, done - 0.1) / 0.9))
        for group in optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(torch.device(device).type, torch.bfloat16):
            loss = task.loss(model, mixed(sets, task.batch, max(0.0, 1 - done / 0.4)))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if i % 500 == 499:
            print(f"{name}: step {i + 1}, loss {float(loss):.4f}, {time.perf_counter() - started:.0f} s", flush=True)
    shipped = model.eval()
    for tensor in [*shipped.parameters(), *shipped.buffers()]:
        if tensor.is_floating_point():  # what is measured is what is shipped
            tensor.data = tensor.data.half().float()
    held = load(f"{folder}/held_out", counts[2], device)
    batches = [{n: t[i : i + 250] for n, t in held.items()} for i in range(0, counts[2], 250)]
    with torch.no_grad():
        measured = task.score(shipped, batches)
    kept: nn.Module = shipped.encoder if isinstance(shipped, Encoder) else shipped
    state = {k: (v.half() if v.is_floating_point() else v).cpu().contiguous() for k, v in kept.state_dict().items()}
    weights = save(state)
    return {
        "name": name,
        "parameters": sum(p.numel() for p in kept.parameters()),
        **measured,
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
    counts, failed = (chosen.scenes, chosen.scenes // 5, chosen.held_out), 0
    with tempfile.TemporaryDirectory() as folder:
        draw(f"{folder}/training", Scenes(TRAINING, counts[0]))
        draw(f"{folder}/easy", Scenes(EASY, counts[1], objects=(1, 2), area=(0.08, 0.2)))
        draw(f"{folder}/held_out", Scenes(HELD_OUT, counts[2]))
        names = chosen.names or list(TASKS)
        with ProcessPoolExecutor(len(names), multiprocessing.get_context("spawn")) as pool:
            futures = {}
            for name in names:
                steps = max(1, round(TASKS[name].steps * chosen.steps))
                futures[pool.submit(train, name, steps, folder, counts, chosen.device, chosen.seed)] = name
            for future in as_completed(futures):
                try:
                    card = future.result()
                except Exception as error:  # the others are kept
                    print(f"{futures[future]} failed: {type(error).__name__}: {error}", flush=True)
                    failed += 1
                    continue
                (chosen.output / f"{card['name']}.safetensors").write_bytes(card.pop("weights"))
                (chosen.output / f"{card['name']}.json").write_text(json.dumps(card, indent=1) + "\n")
                print(card, flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
