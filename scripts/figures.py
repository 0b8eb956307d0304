"""Draws the pictures of the README and of docs/.

    docs/scenes.png       scenes with the outlines of their objects
    docs/overlay.webp     the scene that "Getting started" explains, and its overlay
    docs/demo.jpg         the page of `hilrp demo`, as Chromium shows it (skipped where there is none)
    docs/photographs.png  eight photographs explained with two real checkpoints

The last needs the shared material (checkpoints and the Oxford-IIIT Pet photographs, CC BY-SA 4.0) beside the checkout
or where HILRP_SHARED points. Every 25th photograph of the set is taken, whatever the maps look like.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

import hilrp
from hilrp.attribution.plotting import as_text, blend
from hilrp.models.images import read
from hilrp.models.picture_files import opened
from hilrp.scenes import Scenes

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
SHARED = Path(os.environ.get("HILRP_SHARED") or ROOT.parent / "shared")
MODELS = {"tiny_vit_5m_224.dist_in22k_ft_in1k": "TinyViT-5M", "deit_tiny_patch16_224": "DeiT-Tiny"}


def scenes() -> None:
    """The first scenes of a collection, and below each what is where."""
    drawing = Figure(figsize=(16, 5.2), layout="constrained")
    for i, axis in enumerate(drawing.subplots(2, 8).flat):
        scene = Scenes(seed=0)[i]
        axis.imshow(scene.image)
        for thing in scene.things:
            axis.contour(thing.mask, levels=[0.5], colors="white", linewidths=0.8)
        words = scene.caption.split()
        lines = [" ".join(words[k : k + 5]) for k in range(0, len(words), 5)]
        axis.set_title(as_text("\n".join(lines)), fontsize=7, verticalalignment="bottom")
        axis.set_axis_off()
    drawing.savefig(DOCS / "scenes.png", dpi=75)


def overlay() -> None:
    """What the example of docs/getting-started.md draws, beside what the model sees."""
    scene = Scenes(seed=31)[1]
    loaded = hilrp.load("zoo/maxvit")
    picture = Image.fromarray(scene.image)
    drawn = hilrp.explain(loaded.model, loaded.batch([picture])).overlay(0, loaded)
    both = Image.new("RGB", (2 * drawn.width + 16, drawn.height), "white")
    both.paste(picture.resize(drawn.size), (0, 0))
    both.paste(drawn, (drawn.width + 16, 0))
    both.save(DOCS / "overlay.webp", quality=85)


def demo() -> None:
    """The upper part of the demonstration's page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print("docs/demo.jpg: no Chromium here, skipped")
        return
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "index.html", Path(folder) / "shot.png"
        subprocess.run([sys.executable, "-m", "hilrp", "demo", "-o", folder], check=True)
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,1960",
             f"--user-data-dir={folder}/profile", f"--screenshot={shot}", page.as_uri()],
            check=True, capture_output=True,
        )  # fmt: skip
        with opened(shot) as picture:
            picture.convert("RGB").save(DOCS / "demo.jpg", quality=88, optimize=True)


def photographs() -> None:
    """Explains the predicted class of each photograph with each model and draws the maps."""
    index = json.loads((SHARED / "images" / "pets" / "index.json").read_text())[::25][:8]
    drawing = Figure(figsize=(16, 7.1), layout="constrained")
    axes = drawing.subplots(1 + len(MODELS), len(index), squeeze=False)
    pictures = [read(SHARED / "images" / "pets" / item["file"])[0] for item in index]
    for row, (name, title) in enumerate(MODELS.items(), 1):
        loaded = hilrp.load(name, SHARED / "checkpoints" / f"{name.split('.')[0]}.safetensors")
        found = hilrp.explain(loaded.model, loaded.batch(pictures))
        for i, axis in enumerate(axes[row]):
            picture = loaded.preprocess.picture(found.input[i]).permute(1, 2, 0).numpy()
            axes[0, i].imshow(picture)
            axis.imshow(blend(picture, found.map[i].numpy()))
            label = loaded.named(int(found.target[i])).split(",")[0]
            score, higher = float(found.score[i]), float(found.ledger.explained[i])
            axis.set_title(f"{as_text(label)}\n{score:.1f}, {higher:.1f} higher", fontsize=9)
        axes[row, 0].text(-0.12, 0.5, title, transform=axes[row, 0].transAxes, rotation=90, va="center", fontsize=12)
        print(f"{title}: largest residual {float(found.ledger.residual.max()):.1e}, ", end="")
        print(f"pixels' share {np.round(found.ledger.share.numpy(), 3).tolist()}")
    for axis in axes.flat:
        axis.set_axis_off()
    drawing.savefig(DOCS / "photographs.png", dpi=75)


if __name__ == "__main__":
    scenes()
    overlay()
    demo()
    if SHARED.exists():
        photographs()
    else:
        print("docs/photographs.png: the shared material is not there, skipped")
