"""Detectors of torchvision with the output that they have, made of what can be explained."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torchvision.models.detection import FCOS, RetinaNet

from hilrp.models.libraries.detectors import Detector
from hilrp.util.errors import InputError


class Detections(nn.Module):
    """A detector of torchvision: of each image its objects' boxes, labels and scores, as functions of the pixels.

    Which objects there are is settled on the image itself: see `hilrp.models.libraries.detectors.Detector`.

    Args:
        detector: Faster R-CNN and its kin, RetinaNet, SSD or SSDlite.
    """

    holds_fixed = Detector.holds_fixed

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        if isinstance(detector, FCOS):
            raise InputError(
                "FCOS: its scores are made of two outputs. Explain hilrp.models.libraries.detectors.Detector(model) "
                "with hilrp.explain and targets.Detection."
            )
        self.model = Detector(detector)
        self._independent = isinstance(detector, RetinaNet)

    def forward(self, x: Tensor) -> list[dict[str, Tensor]]:
        """``boxes`` ``[K,4]`` in pixels, ``labels`` and ``scores`` ``[K]`` of each image, the strongest first."""
        found = self.model(x)
        height, width = x.shape[-2:]
        extent = torch.tensor([width, height, width, height], dtype=x.dtype, device=x.device)
        boxes = found["corners"].clamp(0, 1) * extent
        logits, labels = found["logits"], found["labels"]
        likely = logits.sigmoid() if self._independent else logits.softmax(-1)
        scores = likely.gather(2, labels.clamp(min=0).unsqueeze(2)).squeeze(2)
        counts = (labels >= 0).sum(1).tolist()
        return [
            {"boxes": boxes[i, :count], "labels": labels[i, :count], "scores": scores[i, :count]}
            for i, count in enumerate(counts)
        ]
