"""What bfloat16 costs: maps under autocast beside those in float32, on real checkpoints and photographs.

    python benchmarks/precision.py [--count 24] [--device cpu]

Prints, per model and rule set: Spearman correlation and relative L1 difference of the maps (medians over photographs,
and the worst one), whether the strongest pixel stays within a patch (16 pixels) of where it was, and the largest
residual of the books. Needs the shared material: see scripts/figures.py.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch

import hilrp
from hilrp.jobs.bench.metrics.shapley import spearman

SHARED = Path(os.environ.get("HILRP_SHARED") or Path(__file__).resolve().parents[2] / "shared")
MODELS = ("tiny_vit_5m_224", "deit_tiny_patch16_224", "mobilenetv2_100")


def maps(
    loaded: hilrp.Loaded, x: torch.Tensor, labels: torch.Tensor, rules: str, half: bool
) -> tuple[torch.Tensor, float]:
    explainer, found, residual = hilrp.Explainer(loaded.model, rules, audit="off", stages=None), [], 0.0
    for part, own in zip(x.split(8), labels.split(8), strict=True):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=half):
            explanation = explainer.explain(part, own)
        found.append(explanation.map.float())
        residual = max(residual, float(explanation.ledger.residual.max()))
    return torch.cat(found), residual


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    folder = SHARED / "images" / "pets"
    if not folder.exists():
        parser.error(
            f"{folder} does not exist: set HILRP_SHARED to the folder of the shared checkpoints and photographs"
        )
    index = json.loads((folder / "index.json").read_text())[:: 200 // options.count][: options.count]
    print(f"torch {torch.__version__}, {options.device}, {len(index)} photographs\n")
    print(
        "| model | rules | Spearman: median, worst | relative L1: median, worst | strongest pixel stays | residual: "
        "float32, bfloat16 |"
    )
    print("|---|---|---|---|---|---|")
    for name in MODELS:
        loaded = hilrp.load(f"timm/{name}", SHARED / "checkpoints" / f"{name}.safetensors", device=options.device)
        x = loaded.batch([folder / item["file"] for item in index])
        labels = loaded.model(x).detach().argmax(1)
        for rules in ("hilrp", "epsilon", "secant"):
            (full, exact), (half, coarse) = (maps(loaded, x, labels, rules, each) for each in (False, True))
            alike = spearman(full.flatten(1), half.flatten(1))
            apart = (full - half).abs().flatten(1).sum(1) / full.abs().flatten(1).sum(1)
            tops = [
                torch.stack([m.flatten(1).argmax(1) // m.shape[-1], m.flatten(1).argmax(1) % m.shape[-1]], 1)
                for m in (full, half)
            ]
            stays = float(((tops[0] - tops[1]).abs().amax(1) < 16).float().mean())
            print(
                f"| {name} | {rules} | {float(alike.median()):.3f}, {float(alike.min()):.3f} | "
                f"{float(apart.median()):.2f}, {float(apart.max()):.2f} | {stays:.2f} | {exact:.0e}, {coarse:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
