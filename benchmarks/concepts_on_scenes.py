"""What concepts of the zoo's models are worth on scenes, whose colours, shapes and textures are known.

    python benchmarks/concepts_on_scenes.py [--models resnet convnext vit] [--scenes 160] [--patched 6] [--json FILE]

Writes JSON lines.

``kind: patching``, a line for each channel of a scene: what the score loses when the channel is set to its value on the
reference (``to_reference``) or to zero (``to_zero``), found by running the model (activation patching). Beside it what
says so in one pass: the secant relevance at the layer (``secant``), the same without gamma (``epsilon_reference``), the
gradient times the difference (``gradient_difference``); the relevance of the preset ``hilrp``, the gradient times the
activation (``gradient_activation``).

``kind: property``, a line for each colour, shape and texture: of the channel whose largest activation tells best
whether it is in a scene, chosen on every second scene, the AUC on the others; that of the same channel for properties
of other kinds (a mean); and, of the channel's maps of scenes with such an object as the target, how much of their size
lies on objects that have the property, beside the part of the picture that these take.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hilrp
from hilrp.concepts import AtLayer, Concepts
from hilrp.scenes import Scenes
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES

KINDS = {"colour": COLOURS, "shape": SHAPES, "texture": TEXTURES}
#: Layers in the first half of the models, and in the second.
LAYERS = {"resnet": ["layer2", "layer3"], "convnext": ["stages.1", "stages.2"], "vit": ["blocks.1", "blocks.3"]}


def patching(model: nn.Module, at: str, x: Tensor, target: int, chosen: list[int]) -> Iterator[dict[str, Any]]:
    """What channels are worth in one scene, by patching and by what takes one pass."""
    secant, plain = (Concepts(model, at, rules=rules).relevance(x, target) for rules in ("secant", "hilrp"))
    reference = secant.explanation.reference
    without_gamma = Concepts(model, at, rules="epsilon", reference=reference).relevance(x, target)
    layer = AtLayer(model, at, x)
    now, before = layer.values(), layer.values(reference)
    leaf = now.clone().requires_grad_()
    g = torch.autograd.grad(layer(leaf)[0, target], leaf)[0]
    axis = 1 if now.ndim == 4 else 2
    along = tuple(i for i in range(1, now.ndim) if i != axis)
    by_gradient, by_value = (g * (now - before)).sum(along)[0], (g * now).sum(along)[0]

    def score(values: Tensor) -> float:
        with torch.no_grad():
            return float(layer(values)[0, target])

    whole = score(now)
    for k in chosen:
        place = (slice(None),) * axis + (k,)
        lost = []
        for other in (before, torch.zeros_like(now)):
            values = now.clone()
            values[place] = other[place]
            lost.append(whole - score(values))
        yield {
            "channel": k, "to_reference": lost[0], "secant": float(secant.relevance[0, k]),
            "epsilon_reference": float(without_gamma.relevance[0, k]),
            "gradient_difference": float(by_gradient[k]), "to_zero": lost[1], "hilrp": float(plain.relevance[0, k]),
            "gradient_activation": float(by_value[k]),
        }  # fmt: skip


def auc(values: np.ndarray, truth: np.ndarray) -> float:
    """How often a value where something is true is above one where it isn't; ties count half."""
    own, others = values[truth], values[~truth]
    above = (own[:, None] > others).mean() + (own[:, None] == others).mean() / 2
    return float(above)


def properties(loaded: Any, at: str, scenes: Scenes, activations: np.ndarray, maps: int) -> Iterator[dict[str, Any]]:
    """Which channel tells best whether a scene has something of a property, and whether its map lies there."""
    truth = {
        (kind, name): np.array([any(getattr(t, kind) == name for t in scene.things) for scene in scenes])
        for kind, names in KINDS.items()
        for name in names
    }
    first = np.arange(len(scenes)) % 2 == 0
    concepts = Concepts(loaded.model, at)
    for (kind, name), has in truth.items():
        told = [auc(activations[first, k], has[first]) for k in range(activations.shape[1])]
        channel = int(np.argmax(told))
        others = [auc(activations[~first, channel], own[~first]) for (other, _), own in truth.items() if other != kind]
        inside, area = [], []
        for i in np.flatnonzero(~first & has)[:maps]:
            scene = scenes[int(i)]
            thing = next(t for t in scene.things if getattr(t, kind) == name)
            made = concepts.maps(loaded.preprocess(pictured(scene))[None], thing.label, [channel]).maps[0, 0].abs()
            mask = np.any([t.mask for t in scene.things if getattr(t, kind) == name], axis=0)
            if float(made.sum()) > 0:
                inside.append(float(made[torch.from_numpy(mask)].sum() / made.sum()))
                area.append(float(mask.mean()))
        yield {
            "property": name, "of": kind, "channel": channel, "auc": auc(activations[~first, channel], has[~first]),
            "auc_of_others": float(np.mean([max(a, 1 - a) for a in others])), "maps": len(inside),
            "on_property": float(np.mean(inside)), "area": float(np.mean(area)),
        }  # fmt: skip


def pictured(scene: Any) -> Any:
    from PIL import Image

    return Image.fromarray(scene.image)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(LAYERS), choices=list(LAYERS))
    parser.add_argument("--scenes", type=int, default=160)
    parser.add_argument("--patched", type=int, default=6, help="scenes whose channels are patched")
    parser.add_argument("--channels", type=int, default=48, help="channels of each that are, at random")
    parser.add_argument("--maps", type=int, default=6, help="maps for each property")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add lines to this file")
    options = parser.parse_args()

    def tell(row: dict[str, Any]) -> None:
        line = json.dumps({key: round(v, 6) if isinstance(v, float) else v for key, v in row.items()})
        print(line, flush=True)
        if options.json is not None:
            with options.json.open("a") as file:
                file.write(line + "\n")

    scenes = Scenes(seed=4000, count=options.scenes)
    for name in options.models:
        loaded = hilrp.load(f"zoo/{name}")
        for at in LAYERS[name]:
            about = {"model": name, "at": at}
            found = []
            for start in range(0, len(scenes), 16):
                batch = [scenes[i] for i in range(start, min(start + 16, len(scenes)))]
                x = torch.stack([loaded.preprocess(pictured(scene)) for scene in batch])
                values = AtLayer(loaded.model, at, x).values()
                found.append(values.flatten(2).amax(2) if values.ndim == 4 else values.amax(1))
            activations = torch.cat(found).numpy()
            rng = np.random.default_rng(0)
            for i in range(options.patched):
                chosen = sorted(rng.permutation(activations.shape[1])[: options.channels].tolist())
                x = loaded.preprocess(pictured(scenes[i]))[None]
                for row in patching(loaded.model, at, x, scenes[i].things[0].label, chosen):
                    tell({"kind": "patching"} | about | {"scene": i} | row)
            for row in properties(loaded, at, scenes, activations, options.maps):
                tell({"kind": "property"} | about | row)


if __name__ == "__main__":
    main()
