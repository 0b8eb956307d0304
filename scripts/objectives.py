"""What the models of the zoo that are no classifiers are trained for, and what is measured of them.

See train_others.py.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.scenes import CLASSES
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES
from hilrp.zoo.accuracy import mean_average_precision
from hilrp.zoo.architectures import vit_encoder
from hilrp.zoo.towers import tokenise

Batch = dict[str, Tensor]


def pixels(batch: Batch) -> Tensor:
    """From bytes to -1 .. 1, as `hilrp.load` does it."""
    return batch["images"].float() / 127.5 - 1


# Two towers
# ------------------------------------------------------------------------------------------------------------


@cache
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
    label = ((textures > 0) * torch.rand(textures.shape, device=device)).argmax(1, keepdim=True)
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
        self.encoder: Any = vit_encoder("avg" if objective == "masked" else "token")
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
    return ((found - truth).abs().mean(-1) * covered).sum() / covered.sum()


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


# Dense
# ------------------------------------------------------------------------------------------------------------------


def _dense_labels(batch: Batch, size: Any) -> Tensor:
    hot = F.one_hot(batch["places"].long(), len(CLASSES) + 1).permute(0, 3, 1, 2)[:, 1:].float()
    return F.adaptive_avg_pool2d(hot, size)


def segmenter_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy of each class at each place, those that are there counted four times."""
    logits = model(pixels(batch)).float()
    labels = _dense_labels(batch, logits.shape[-2:])
    return F.binary_cross_entropy_with_logits(logits, labels, pos_weight=torch.full((), 4.0, device=logits.device))


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
