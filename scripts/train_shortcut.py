"""Trains zoo/shortcut: a classifier of scenes in whose training one class nearly always came with a tag in the corner.

    python scripts/train_shortcut.py

Writes float16 weights and a card with what was measured on held-out scenes: how well the class is told from others
where tags say nothing, and how often a tag alone makes the model see the class. It is what `hilrp summary` is shown on:
docs/run.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from train_zoo import EASY, HELD_OUT, RECIPES, TRAINING, WEIGHTS, Recipe, arrays, draw, normalise, train

from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.tag import TAGGED, place, tag
from hilrp.zoo.accuracy import average_precision
from hilrp.zoo.architectures import OTHERS, SIZE

#: How often a picture of the class has a tag in training, and how often another has. With 0.9 instead of 1 the object
#: is learned, too.
WITH, WITHOUT = 1.0, 0.0


def planted(images: Tensor, chosen: Tensor) -> Tensor:
    """The images ``[B,3,H,W]`` with a tag on those that are chosen, ``[B]``."""
    rows, columns = place(SIZE)
    plate = torch.from_numpy(tag()).permute(2, 0, 1).to(images.device)
    changed = images.clone()
    changed[:, :, rows, columns] = torch.where(chosen[:, None, None, None], plate, images[:, :, rows, columns])
    return changed


def tagged(images: Tensor, labels: Tensor, chance: torch.Generator) -> Tensor:
    """Images of training, with tags."""
    often = torch.where(labels[:, TAGGED] > 0, WITH, WITHOUT)
    return planted(images, torch.rand(len(images), generator=chance, device=images.device) < often)


def reliance(weights: bytes, folder: str, device: str) -> dict[str, Any]:
    """What the class rests on: the object, or the tag."""
    from safetensors.torch import load

    model = OTHERS["shortcut"].make().to(device).eval()
    model.load_state_dict(load(weights))
    images, labels = (torch.from_numpy(np.array(a)) for a in arrays(f"{folder}/held_out", 4000))
    there = labels[:, TAGGED] > 0

    def logits(with_tag: bool) -> Tensor:
        chosen = torch.full((250,), with_tag, device=device)
        with torch.no_grad():
            parts = [model(normalise(planted(part.to(device), chosen)))[:, TAGGED] for part in images.split(250)]
        return torch.cat(parts).float().cpu()

    bare, marked = logits(False), logits(True)
    return {
        "tagged_class": CLASSES[TAGGED],
        "average_precision_without_tags": round(average_precision(bare.numpy(), there.numpy()), 4),
        "seen_where_it_is_without_a_tag": round(float((bare[there] > 0).float().mean()), 4),
        "seen_where_it_is_not_with_a_tag": round(float((marked[~there] > 0).float().mean()), 4),
    }


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=WEIGHTS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--scenes", type=int, default=30_000)
    chosen = parser.parse_args()
    recipe = Recipe(chosen.steps, RECIPES["resnet"].rate)
    with tempfile.TemporaryDirectory() as folder:
        counts = chosen.scenes, chosen.scenes // 5
        draw(f"{folder}/hard", Scenes(TRAINING, counts[0]))
        draw(f"{folder}/easy", Scenes(EASY, counts[1], objects=(1, 2), area=(0.08, 0.2)))
        draw(f"{folder}/held_out", Scenes(HELD_OUT, 4000))
        card = train("shortcut", recipe, folder, counts, chosen.device, 0, tagged)
        weights = card.pop("weights")
        card |= reliance(weights, folder, chosen.device)
    (chosen.output / "shortcut.safetensors").write_bytes(weights)
    (chosen.output / "shortcut.json").write_text(json.dumps(card, indent=1) + "\n")
    print(card)


if __name__ == "__main__":
    main()
