"""ultralytics (AGPL-3.0, or a licence of its maker's): the smallest model of each of its families and tasks.

It is used where a user has installed it, and neither comes with hilrp nor is installed by any of its extras.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import Any

# Before it is imported: it would ask a server whether it is online, and install packages that it misses.
os.environ.setdefault("YOLO_OFFLINE", "true")
os.environ.setdefault("YOLO_AUTOINSTALL", "false")

from torch import Tensor, nn
from ultralytics.nn import tasks

from hilrp.models.libraries.recipe import strongest
from hilrp.models.libraries.small import Small, Table

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


def _make(kind: str, name: str) -> nn.Module:
    model: nn.Module = getattr(tasks, kind)(f"{name}.yaml", ch=3, verbose=False)
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
names, kinds, find, recipe = _TABLE.names, _TABLE.kinds, _TABLE.find, _TABLE.recipe
trained, load = _TABLE.trained, _TABLE.load
