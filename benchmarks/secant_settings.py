"""Gammas, bounds and references of the secant rules beside each other, on photographs with published weights.

    python benchmarks/secant_settings.py [--shared ../shared] [--images imagenet_val] [--count 200] [--half 0] [--device
    cpu]

Prints, for each model and setting: the pixels' share (median), pointing, energy excess (also of sums over squares of 8
and 32 pixels, and with a margin of 7 pixels around the object), average precision, the signed part of relevance on the
object, pixel flipping (64 images), and the energy excess of each stage's map. ``--half`` takes every second image: the
settings of hilrp were chosen on half 0.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import hilrp
from hilrp import Rules
from hilrp.attribution.references import Blurred
from hilrp.jobs.bench.data import Inputs, find, inputs_for
from hilrp.jobs.bench.metrics import localisation
from hilrp.jobs.bench.metrics.faithfulness import flip_areas
from hilrp.jobs.bench.suites import PUBLISHED
from hilrp.models.libraries.loaded import Loaded

SECANT = Rules.named("secant")
SETTINGS: dict[str, tuple[Rules, object]] = {
    "constants absorb, gamma 0.25": (Rules(), None),
    "constants absorb, gamma 0.1": (Rules(gamma=0.1), None),
    "no gamma": (Rules(linear="epsilon", constants="reference"), "mean"),
    "gamma 0.25": (Rules(constants="reference"), "mean"),
    "gamma 1": (Rules(gamma=1.0, constants="reference"), "mean"),
    **{
        f"bound {bound}, exact from {start}": (replace(SECANT, bound=bound, exact_from=start), "mean")
        for bound, start in (
            (1.5, 1.5),
            (1.5, 1.0),
            (1.5, 0.7),
            (1.5, 0.4),
            (1.2, 0.7),
            (1.2, 0.5),
            (1.2, 0.4),
            (1.05, 0.4),
            (3.0, 0.7),
        )
    },
    "blurred": (SECANT, "blurred"),
    "blurred by 0.03": (SECANT, Blurred(0.03)),
    "black": (SECANT, "black"),
    "grey": (SECANT, "grey"),
    "neutral": (SECANT, "neutral"),
    "black, grey and white": (SECANT, ["black", "grey", "white"]),
}


def energy(maps: Tensor, masks: Tensor) -> float:
    """The energy excess of maps of any size."""
    inside = F.adaptive_avg_pool2d(masks.float()[:, None], maps.shape[-2:])[:, 0]
    positive = maps.clamp(min=0)
    share = (positive * inside).flatten(1).sum(1) / positive.flatten(1).sum(1).clamp(min=1e-30)
    return float((share - masks.float().flatten(1).mean(1)).mean())


def figures(loaded: Loaded, inputs: Inputs, rules: Rules, reference: object, batch: int) -> dict[str, float]:
    """All figures of one setting."""
    explainer = hilrp.Explainer(loaded.model, rules, reference, audit="off")
    parts = [explainer.explain(*each) for each in zip(inputs.x.split(batch), inputs.labels.split(batch), strict=True)]
    maps, masks = torch.cat([p.map.float() for p in parts]), inputs.masks
    wide = F.max_pool2d(masks.float()[:, None], 15, 1, 7)[:, 0] > 0
    signed = (maps * masks).flatten(1).sum(1) / maps.flatten(1).sum(1) - masks.float().flatten(1).mean(1)
    x, some = inputs.x, slice(64)
    base = x.mean((2, 3), keepdim=True).expand_as(x)
    flip = flip_areas(loaded.model, x[some], inputs.labels[some], maps[some], base[some], 8)["flip"]
    return {
        "share": float(torch.cat([p.ledger.share for p in parts]).median()),
        "pointing": float(localisation.pointing(maps, masks).mean()),
        "energy": float(localisation.energy_excess(maps, masks).mean()),
        "AP": float(localisation.average_precision(maps, masks).mean()),
        "flip": float(flip.nanmean()),
        "signed": float(signed.median()),
        "energy 8": energy(F.avg_pool2d(maps[:, None], 8)[:, 0], masks),
        "energy 32": energy(F.avg_pool2d(maps[:, None], 32)[:, 0], masks),
        "pointing +7": float(localisation.pointing(maps, wide).mean()),
        "energy +7": float(localisation.energy_excess(maps, wide).mean()),
    } | {f"at {name}": energy(torch.cat([p.stages[name].float() for p in parts]), masks) for name in parts[0].stages}


def main() -> None:
    """Prints a line for each model and setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--images", default="imagenet_val")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--half", type=int, choices=(0, 1), default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    samples = find(str(options.shared / "images" / options.images))[options.half :: 2][: options.count]
    for name, file in PUBLISHED.items():
        loaded = hilrp.load(name, options.shared / "checkpoints" / f"{file}.safetensors", device=options.device)
        inputs = inputs_for(loaded, samples)
        for setting, (rules, reference) in SETTINGS.items():
            found = figures(loaded, inputs, rules, reference, options.batch)
            print(f"{file}  {setting:32s}", "  ".join(f"{k} {v:.3f}" for k, v in found.items()), flush=True)


if __name__ == "__main__":
    main()
