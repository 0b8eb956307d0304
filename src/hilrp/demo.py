"""The demonstration: trains a small hierarchical model on shapes whose place is known, and explains it.

It needs no download: pictures are drawn on the fly, and training takes about a minute on two cores. Since the
place of each shape is known, the maps can be checked and not only looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from hilrp.audit import AuditReport, audit
from hilrp.explainer import explain
from hilrp.explanation import Explanation

SHAPES = ["disc", "square", "cross", "ring", "triangle"]
SIZE = 64


@dataclass(frozen=True)
class Demo:
    """What the demonstration found.

    Attributes:
        accuracy: Of the trained model on 500 new pictures.
        pointing: How often the most relevant pixel lies on the shape, over the explained pictures.
        area: The share of the picture that a shape covers: what pointing would be by chance.
        explanation: The explanation of those pictures.
        report: The audit of the model.
    """

    accuracy: float
    pointing: float
    area: float
    explanation: Explanation
    report: AuditReport


def draw(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Pictures ``[N,3,64,64]`` of one shape each on a cloudy background, their classes and the shapes' masks.

    Place, size, angle and colour are random, so that only the outline gives the class away.
    """

    def uniform(low: float, high: float) -> Tensor:
        return (low + (high - low) * torch.rand(count, generator=generator)).reshape(-1, 1, 1)

    classes = torch.randint(len(SHAPES), (count,), generator=generator)
    radius, angle = uniform(7, 12), uniform(0, 2 * math.pi)
    y, x = torch.meshgrid(torch.arange(float(SIZE)), torch.arange(float(SIZE)), indexing="ij")
    dx, dy = (axis - radius - (SIZE - 2 * radius) * uniform(0, 1) for axis in (x, y))
    u = (angle.cos() * dx + angle.sin() * dy) / radius
    v = (angle.cos() * dy - angle.sin() * dx) / radius
    distance, near = (u.square() + v.square()).sqrt(), torch.minimum(u.abs(), v.abs())
    far = torch.maximum(u.abs(), v.abs())
    shapes = [distance < 0.95, far < 0.8, (near < 0.33) & (far < 1), (distance < 1) & (distance > 0.6)]
    shapes.append((v > -0.55) & (v < 1 - 1.8 * u.abs()))
    masks = torch.stack(shapes, 1)[torch.arange(count), classes]
    clouds = sum(
        nn.functional.interpolate(torch.randn(count, 3, k, k, generator=generator), size=SIZE, mode="bilinear")
        for k in (3, 7, 15)
    )
    colour = nn.functional.normalize(torch.randn(count, 3, 1, 1, generator=generator), dim=1)
    grain = torch.randn(count, 3, SIZE, SIZE, generator=generator)
    pictures = torch.where(masks.unsqueeze(1), 1.8 * colour + 0.3 * grain, 0.3 * clouds + 0.15 * grain)
    return pictures, classes, masks


def train(steps: int, generator: torch.Generator, progress: Callable[[], None]) -> nn.Module:
    """A TinyViT of 0.15 million parameters: convolutional stem, windowed attention, patch merging."""
    from timm.models.tiny_vit import TinyVit

    model = TinyVit(
        num_classes=len(SHAPES), embed_dims=(24, 32, 48, 64), depths=(1, 1, 2, 1), num_heads=(1, 2, 3, 4),
        window_sizes=(4, 4, 4, 4), drop_path_rate=0.0,
    )  # fmt: skip
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, steps)
    for _ in range(steps):
        pictures, classes, _ = draw(64, generator)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(pictures), classes, label_smoothing=0.05).backward()
        optimiser.step()
        schedule.step()
        progress()
    return model.eval()


def run(directory: Path, steps: int = 600, shown: int = 5, progress: Callable[[], None] = lambda: None) -> Demo:
    """Trains, explains 100 new pictures, and saves the first few of them under ``directory``."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = train(steps, generator, progress)
    pictures, classes, masks = draw(500, generator)
    with torch.no_grad():
        accuracy = float((model(pictures).argmax(1) == classes).float().mean())
    explanation = explain(model, pictures[:100])
    strongest = explanation.map.flatten(1).argmax(1, keepdim=True)
    hits = masks[:100].flatten(1).gather(1, strongest)
    # One picture of each shape.
    first = [int((classes == c).nonzero()[0]) for c in range(len(SHAPES))][:shown]
    explain(model, pictures[first]).save(directory / "demo", SHAPES)
    return Demo(
        accuracy, float(hits.float().mean()), float(masks.float().mean()), explanation, audit(model, pictures[:2])
    )
