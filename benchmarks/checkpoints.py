"""Real checkpoints on real photographs: where the score goes, and whether the strongest pixel lies on the animal.

    python benchmarks/checkpoints.py [--count 200]

Explains the labelled class of Oxford-IIIT Pet photographs (cut to the model's own preprocessing) and prints, per
model and preset: the pixels' share of the score (median and central 80 %), the largest residual of the books, and
pointing (the share of photographs whose most relevant pixel lies inside the mask) with its standard error. The
control points to the centre of every photograph. Needs the shared material: see scripts/figures.py.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import load_file

import hilrp
from hilrp.models.images import read
from hilrp.models.picture_files import opened

SHARED = Path(os.environ.get("HILRP_SHARED") or Path(__file__).resolve().parents[2] / "shared")
MODELS = {"tiny_vit_5m_224": {"num_classes": 1000}, "deit_tiny_patch16_224": {}, "mobilenetv2_100": {}}


def _mask(path: Path, cut: Callable[[Any], Any]) -> torch.Tensor:
    with opened(path) as mask:
        return torch.from_numpy(np.array(cut(mask))).flatten() > 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    folder = SHARED / "images" / "pets"
    index = json.loads((folder / "index.json").read_text())[: options.count]
    print(f"torch {torch.__version__}, timm {timm.__version__}, {len(index)} photographs")
    print("| model | rules | pixels' share | largest residual | pointing | in the centre |\n|---|---|---|---|---|---|")
    for name, arguments in MODELS.items():
        model = timm.create_model(name, **arguments).eval()
        model.load_state_dict(load_file(SHARED / "checkpoints" / f"{name}.safetensors"))
        config = timm.data.resolve_data_config({}, model=model)
        transform = timm.data.create_transform(**config)
        # The mask takes the same way as the photograph, but for colour: resize and crop come first.
        cut = type(transform)(transform.transforms[:2])
        images = torch.stack([transform(read(folder / item["file"])[0]) for item in index])
        masks = torch.stack([_mask(folder / item["mask"], cut) for item in index])
        labels = torch.tensor([item["label"] for item in index])
        side = images.shape[-1]
        centre = masks[:, side // 2 * side + side // 2].float().mean()
        for rules in ("hilrp", "epsilon", "attnlrp", "naive"):
            explainer = hilrp.Explainer(model, rules, stages=None, audit="off")
            hits, shares, residuals = [], [], []
            for images_, labels_, masks_ in zip(images.split(8), labels.split(8), masks.split(8), strict=True):
                found = explainer.explain(images_, labels_)
                hits.append(masks_.gather(1, found.map.flatten(1).argmax(1, keepdim=True)).float())
                shares.append(found.ledger.share)
                residuals.append(found.ledger.residual)
            share, hit = torch.cat(shares), torch.cat(hits)
            low, middle, high = share.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=share.dtype)).tolist()
            error = float(hit.std() / len(hit) ** 0.5)
            print(
                f"| {name} | {rules} | {middle:.3f} [{low:.3f}, {high:.3f}] | {float(torch.cat(residuals).max()):.0e} "
                f"| {float(hit.mean()):.3f} ± {error:.3f} | {float(centre):.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
