"""Draws docs/photographs.png: eight photographs explained with two real checkpoints.

It needs the shared material (checkpoints and the Oxford-IIIT Pet photographs, CC BY-SA 4.0) beside the checkout or
where HILRP_SHARED points. Every 25th photograph of the set is taken, whatever the maps look like.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import timm
import torch
from matplotlib.figure import Figure
from PIL import Image
from safetensors.torch import load_file

import hilrp
from hilrp.plotting import displayable, overlay

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("HILRP_SHARED") or ROOT.parent / "shared")
MODELS = {"tiny_vit_5m_224": ("TinyViT-5M", {"num_classes": 1000}), "deit_tiny_patch16_224": ("DeiT-Tiny", {})}


def main() -> None:
    """Explains the predicted class of each photograph with each model and draws the maps."""
    index = json.loads((SHARED / "images" / "pets" / "index.json").read_text())[::25][:8]
    names = json.loads((SHARED / "images" / "imagenet_classes.json").read_text())
    drawing = Figure(figsize=(16, 7.1), layout="constrained")
    axes = drawing.subplots(1 + len(MODELS), len(index), squeeze=False)
    for row, (name, (title, options)) in enumerate(MODELS.items(), 1):
        model = timm.create_model(name, **options).eval()
        model.load_state_dict(load_file(SHARED / "checkpoints" / f"{name}.safetensors"))
        config = timm.data.resolve_data_config({}, model=model)
        transform = timm.data.create_transform(**config | {"crop_pct": 1.0})
        photographs = [Image.open(SHARED / "images" / "pets" / item["file"]).convert("RGB") for item in index]
        found = hilrp.explain(model, torch.stack([transform(photograph) for photograph in photographs]))
        for i, axis in enumerate(axes[row]):
            picture = displayable(found.input[i].numpy())
            axes[0, i].imshow(picture)
            overlay(axis, picture, found.map[i].numpy())
            label = names[int(found.target[i])].replace("_", " ")
            axis.set_title(
                f"{label}\n{float(found.score[i]):.1f}, pixels {float(found.ledger.share[i]):.2f}", fontsize=9
            )
        axes[row, 0].text(-0.12, 0.5, title, transform=axes[row, 0].transAxes, rotation=90, va="center", fontsize=12)
        print(f"{title}: largest residual {float(found.ledger.residual.max()):.1e}, ", end="")
        print(f"pixels' share {np.round(found.ledger.share.numpy(), 3).tolist()}")
    for axis in axes.flat:
        axis.set_axis_off()
    drawing.savefig(ROOT / "docs" / "photographs.png", dpi=75)


if __name__ == "__main__":
    main()
