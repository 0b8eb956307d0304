"""ultralytics (AGPL-3.0, or a licence of its maker's): small models of its families and tasks, published detectors.

It is used where a user has installed it, and neither comes with hilrp nor is installed by any of its extras.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

# Before it is imported: it would ask a server whether it is online, and install packages that it misses.
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from ultralytics.nn import tasks

from hilrp.models import checkpoint_files, weights
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.libraries.recipe import Recipe, download, images, strongest
from hilrp.models.libraries.small import Small, Table
from hilrp.models.libraries.yolo import Yolo
from hilrp.targets import Detection

#: Name -> the class that builds it. Of each family the smallest.
_DETECTORS = ("yolov3-tiny", "yolov5n", "yolov6n", "yolov8n", "yolov9t", "yolov10n", "yolo11n", "yolo12n", "yolo26n")
_TASKS = {"seg": "SegmentationModel", "pose": "PoseModel", "obb": "OBBModel", "cls": "ClassificationModel"}


def surest(output: Any) -> Tensor:
    """The largest logit of any class at any place, before the sigmoid, of what a model returns in evaluation mode."""
    raw = output[1] if isinstance(output, (tuple, list)) else output
    if isinstance(raw, Mapping) and "one2one" in raw:
        # Of two heads the one whose findings come first: [B,objects,6], or [B,4 + classes,places].
        raw = raw["one2one" if output[0].shape[-1] == 6 else "one2many"]
    if isinstance(raw, Mapping):
        scores: Tensor = raw["scores"]
        return scores.flatten(1).amax(1)
    if isinstance(raw, (tuple, list)):  # RT-DETR: boxes and scores of each layer of its decoder
        scores = raw[1][-1]
        return scores.flatten(1).amax(1)
    return strongest(raw)


def _make(kind: str, name: str, classes: int | None = None) -> nn.Module:
    model: nn.Module = getattr(tasks, kind)(f"{name}.yaml", ch=3, nc=classes, verbose=False)
    return model


_TABLE = Table(
    "ultralytics",
    {name: Small(partial(_make, "DetectionModel", name), (3, 128, 128), surest) for name in _DETECTORS}
    | {
        f"yolo11n-{task}": Small(partial(_make, kind, f"yolo11n-{task}"), (3, 128, 128), surest)
        for task, kind in _TASKS.items()
    }
    | {"rtdetr-resnet50": Small(partial(_make, "RTDETRDetectionModel", "rtdetr-resnet50"), (3, 128, 128), surest)},
)
names, kinds = _TABLE.names, _TABLE.kinds
#: Families and sizes with published weights; with masks, too.
_PUBLISHED = [
    f"{family}{size}{end}" for family in ("yolov8", "yolo11", "yolo26") for size in "nsmlx" for end in ("", "-seg")
]
_ADDRESS = "https://github.com/ultralytics/assets/releases/download/v8.4.0/"
#: The side of the pictures that they were trained on.
_SIZE = 640


def trained() -> list[str]:
    """Detectors, and those that make masks, with published weights."""
    return list(_PUBLISHED)


def find(name: str) -> str | None:
    """The name itself, with or without the ending of a file."""
    name = name.removesuffix(".pt")
    return _TABLE.find(name) or (name.lower() if name.lower() in _PUBLISHED else None)


def recipe(name: str, pretrained: bool = False, size: int | None = None) -> Recipe:
    """A small random model; or a published one, of which the strongest object is explained."""
    if pretrained and name in _PUBLISHED:
        return Recipe(Yolo(_published(name)), images(size or _SIZE), Detection(0))
    if name in _PUBLISHED and name not in names():
        return Recipe(_make(_kind(name), name), images(size or 128), surest)
    return _TABLE.recipe(name, pretrained, size)


def load(name: str, checkpoint: str | Path | None = None) -> Loaded:
    """A YOLO that finds boxes, and perhaps masks, with published weights, or those of a checkpoint (a state dict).

    The published files are pickles of whole models: they are read by ultralytics' own restricted loading, which makes
    nothing but the layers that it knows.
    """
    if name not in _PUBLISHED:
        return _TABLE.load(name, checkpoint)
    if checkpoint is None:
        model: Any = _published(name)
    else:
        state = checkpoint_files.read(checkpoint)
        model = weights.fitted(lambda n: _make(_kind(name), name, n), state, name, checkpoint, own_classes=80)
    preprocess = Preprocess(_letterboxed, (0.0,) * 3, (1.0,) * 3)
    classes = [model.names[i] for i in range(model.model[-1].nc)]
    return Loaded(
        f"ultralytics/{name}", Yolo(model).eval(), preprocess, classes, "published weights, under the AGPL-3.0"
    )


def _kind(name: str) -> str:
    return "SegmentationModel" if name.endswith("-seg") else "DetectionModel"


def _published(name: str) -> Any:
    address = f"{_ADDRESS}{name}.pt"

    def read() -> Any:
        file = Path(torch.hub.get_dir()) / "checkpoints" / f"{name}.pt"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(address, str(file), progress=False)
        held, _ = tasks.torch_safe_load(str(file), safe_only=True)
        return (held.get("ema") or held["model"]).float().eval()

    return download(name, read, address)


def _letterboxed(picture: Any) -> Tensor:
    """A picture as ultralytics prepares it: scaled to a side of 640, with grey margins."""
    scale = _SIZE / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    whole = Image.new("RGB", (_SIZE, _SIZE), (114, 114, 114))
    scaled = picture.resize((width, height), Image.Resampling.BILINEAR)
    whole.paste(scaled, ((_SIZE - width) // 2, (_SIZE - height) // 2))
    return torch.from_numpy(np.array(whole)).permute(2, 0, 1).float() / 255
