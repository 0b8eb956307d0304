"""YOLO of ultralytics as a model of a batch of images that returns what it finds, as `Detector` does of torchvision's.

What its models return are boxes with probabilities; what is left after selection has lost its place. `Yolo` returns the
logits, the box and the mask of the anchors at which objects were found. ultralytics is under the AGPL-3.0, or a licence
of its maker's: hilrp has none of its code, and imports it nowhere here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torchvision.ops import batched_nms

from hilrp.models.libraries.detectors import HOLDS_FIXED
from hilrp.util.errors import InputError


class Yolo(nn.Module):
    """A YOLO of ultralytics that takes a batch of images: the objects that it finds, strongest first.

    Which objects there are, and at which anchors, is settled on the image itself, also where relevance is relative to a
    reference.

    Args:
        model: What ``YOLO("yolo11n.pt").model`` is: one that detects, or also makes masks.
        confidence: What an object's probability has to be at least; ultralytics takes 0.25 to predict.
        overlap: From which overlap on (intersection over union) the weaker of two boxes of a class is left out.
        most: How many objects are kept at most.
    """

    #: What explanations say of the numbers that are read out of the image.
    holds_fixed = HOLDS_FIXED

    def __init__(self, model: nn.Module, confidence: float = 0.25, overlap: float = 0.7, most: int = 100) -> None:
        super().__init__()
        parts = getattr(model, "model", None)
        head: Any = parts[-1] if isinstance(parts, nn.Sequential) else None
        if not hasattr(head, "cv3") or hasattr(head, "nk") or hasattr(head, "ne"):  # poses and turned boxes have more
            raise InputError(
                f"{type(model).__name__} is no YOLO that finds boxes: give YOLO(...).model of one that detects or "
                "segments. Pass hilrp.explain a target, a function of its output, for others."
            )
        for name, part in (("confidence", confidence), ("overlap", overlap)):
            if not 0 <= part <= 1:
                raise InputError(f"Yolo({name}={part}): give a number from 0 to 1.")
        self.model: Any = model
        self.confidence, self.overlap, self.most = confidence, overlap, most

    @property
    def num_classes(self) -> int:
        """How many classes it tells apart."""
        count: int = self.model.model[-1].nc
        return count

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """What is found.

        Returns:
            ``logits`` ``[B,K,classes]`` and ``corners`` ``[B,K,4]`` (left, top, right and bottom as parts of the
            image's sides) of the anchors at which objects were found; ``labels`` and ``scores`` ``[B,K]`` of the
            objects. Images with fewer than ``K`` have the label -1 for the rest. Of models that make masks, ``masks``
            ``[B,K,h,w]``: their logits, over the whole image.
        """
        head, (_, raw) = self.model.model[-1], self.model(x)
        if "one2one" in raw:
            raw = raw["one2one" if head.end2end else "one2many"]
        logits, boxes = raw["scores"].transpose(1, 2), head._get_decode_boxes(raw).transpose(1, 2)
        if not (head.end2end or head.xyxy):
            middle, half = boxes[..., :2], boxes[..., 2:] / 2
            boxes = torch.cat([middle - half, middle + half], -1)
        height, width = x.shape[-2:]
        corners = boxes / torch.tensor([width, height, width, height], dtype=boxes.dtype, device=boxes.device)
        # The engine doesn't look: it would hold what is found on a reference beside what is found here.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            origins, labels, scores = self._selected(logits.detach(), corners.detach(), not head.end2end)
        index = origins.unsqueeze(-1)
        found = {
            "logits": logits.gather(1, index.expand(-1, -1, logits.shape[-1])),
            "corners": corners.gather(1, index.expand(-1, -1, 4)),
            "labels": labels,
            "scores": scores,
        }
        if "mask_coefficient" in raw:
            proto = raw["proto"][0] if isinstance(raw["proto"], (tuple, list)) else raw["proto"]
            own = raw["mask_coefficient"].transpose(1, 2)
            own = own.gather(1, index.expand(-1, -1, own.shape[-1]))
            found["masks"] = (own @ proto.flatten(2)).unflatten(2, proto.shape[2:])
        return found

    def _selected(self, logits: Tensor, corners: Tensor, suppress: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Of each image the anchors of its objects, what these are and how sure that is, ``[B,K]``."""
        sure, classes = logits.sigmoid().max(-1)
        kept = []
        for own, label, box in zip(sure, classes, corners, strict=True):
            candidates = (own > self.confidence).nonzero().squeeze(1)
            if suppress:
                left = batched_nms(box[candidates].float(), own[candidates].float(), label[candidates], self.overlap)
            else:
                left = own[candidates].argsort(descending=True)
            kept.append(candidates[left[: self.most]])
        size = len(kept), max(1, *map(len, kept))
        origins, labels = (torch.full(size, value, dtype=torch.long, device=logits.device) for value in (0, -1))
        scores = torch.zeros(size, dtype=logits.dtype, device=logits.device)
        for i, each in enumerate(kept):
            origins[i, : len(each)], labels[i, : len(each)] = each, classes[i][each]
            scores[i, : len(each)] = sure[i][each]
        return origins, labels, scores
