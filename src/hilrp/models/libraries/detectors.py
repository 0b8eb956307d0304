"""Detectors of torchvision as models of a batch of images.

They take lists of images and return what is left after selection: scores behind a softmax, boxes that overlap too much
left out. Neither can be explained, but what they were made of can: each object was found at one place (an anchor, or a
proposal of the first stage), and the logits and the box of that place are plain functions of the pixels. `Detector`
returns these, strongest object first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models.detection import FCOS, RetinaNet
from torchvision.models.detection.generalized_rcnn import GeneralizedRCNN
from torchvision.models.detection.ssd import SSD

from hilrp.util.errors import InputError

#: What explanations by detectors say of the numbers that are read out of the image.
HOLDS_FIXED = "which objects are found, and where"


class _Seen(NamedTuple):
    """What a detector sees in one image before it selects.

    Places ``[A,4]``, scores ``[A,C]`` and boxes ``[A,C or 1,4]``, from 0 to 1; the boxes of what is kept, in pixels of
    the image as the detector has scaled it, ``[K,4]`` (of two stages).
    """

    places: Tensor
    scores: Tensor
    boxes: Tensor
    kept: Tensor | None = None


class _Found(NamedTuple):
    """The objects of a batch, ``[B,K]``.

    Places ``[B,K,4]``, which of the image's boxes each is, labels, scores, and the boxes that masks and keypoints are
    made in, ``[B,K,4]``.
    """

    places: Tensor
    origins: Tensor
    labels: Tensor
    scores: Tensor
    frames: Tensor


class Detector(nn.Module):
    """A detector of torchvision that takes a batch of images: the objects that it finds, strongest first.

    Which objects there are and where they were found is settled on the image itself, also where relevance is relative
    to a reference. In a detector of two stages the proposals are thereby held fixed, as all positions at which a model
    reads are.

    Args:
        detector: Faster R-CNN and its kin with masks or keypoints, RetinaNet, FCOS, SSD or SSDlite.

    Example:
        >>> from torchvision.models import get_model
        >>> options = {"weights": None, "weights_backbone": None, "score_thresh": 0.0, "detections_per_img": 5}
        >>> found = Detector(get_model("ssdlite320_mobilenet_v3_large", **options)).eval()(torch.rand(1, 3, 64, 64))
        >>> {name: tuple(value.shape) for name, value in found.items()}
        {'logits': (1, 5, 91), 'corners': (1, 5, 4), 'labels': (1, 5), 'scores': (1, 5)}
    """

    #: What explanations say of the numbers that are read out of the image.
    holds_fixed = HOLDS_FIXED

    def __init__(self, detector: nn.Module) -> None:
        super().__init__()
        self.detector: Any = detector
        if isinstance(detector, GeneralizedRCNN):
            self._parts: type[_OneStage | _TwoStages] = _TwoStages
        elif isinstance(detector, (RetinaNet, FCOS, SSD)):
            self._parts = _OneStage
        else:
            raise InputError(
                f"{type(detector).__name__} is no detector of torchvision: Faster R-CNN and its kin, RetinaNet, FCOS, "
                "SSD and SSDlite are known. Pass hilrp.explain a target: a function of its output."
            )

    @property
    def num_classes(self) -> int | None:
        """How many classes it tells apart, the background (0) among them; ``None`` if its head is one of the user's."""
        return self._parts(self.detector).classes()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """What is found.

        Returns:
            ``logits`` ``[B,K,classes]`` and ``corners`` ``[B,K,4]`` (left, top, right and bottom as parts of the
            image's sides, before they are cut at its border) of the places at which the objects were found; ``labels``
            and ``scores`` ``[B,K]`` of the objects. Images with fewer than ``K`` have the label -1 for the rest.
            Of Mask R-CNN also ``box_masks`` ``[B,K,h,w]``, the logits of each object's mask within its box; of Keypoint
            R-CNN ``keypoints`` ``[B,K,joints,h,w]``, the logits of where in its box each joint is.
        """
        parts = self._parts(self.detector)
        # The engine doesn't look: it would hold what is found on a reference beside what is found here.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            found = _detected(self.detector, parts, x.detach())
        images, _ = self.detector.transform(list(x))
        features = self.detector.backbone(images.tensors)
        labels = found.labels.clamp(min=0)
        logits, boxes = parts.at(features, found.places, found.origins, labels, images.image_sizes)
        return {
            "logits": logits,
            "corners": boxes / _extent(images.image_sizes[0], boxes),
            "labels": found.labels,
            "scores": found.scores,
        } | parts.within(features, found.frames, labels, images.image_sizes)


def _detected(detector: Any, parts: _OneStage | _TwoStages, x: Tensor) -> _Found:
    """The objects of each image."""
    with parts.watched() as seen:
        objects = detector(list(x))
    count = max(1, *(len(each["labels"]) for each in objects))
    size = (len(x), count)
    origins, labels = (torch.full(size, value, dtype=torch.long, device=x.device) for value in (0, -1))
    scores = torch.zeros(size, dtype=x.dtype, device=x.device)
    extent = _extent(x.shape[-2:], x)
    frames = torch.tensor([0.0, 0.0, 1.0, 1.0], dtype=x.dtype, device=x.device).repeat(*size, 1)
    for i, (each, own) in enumerate(zip(objects, seen(), strict=True)):
        n = len(each["labels"])
        labels[i, :n], scores[i, :n] = each["labels"], each["scores"]
        for k in range(n):
            label = int(each["labels"][k])
            boxes = own.boxes[:, label if own.boxes.shape[1] > 1 else 0]
            apart = (boxes - each["boxes"][k] / extent).abs().amax(1) + (own.scores[:, label] - each["scores"][k]).abs()
            origins[i, k] = apart.argmin()
        if i == 0:
            places = own.places.new_zeros(*size, 4)
        if len(own.places):
            places[i] = own.places[origins[i]]
        if own.kept is not None:
            frames[i, :n] = own.kept
    return _Found(places, origins, labels, scores, frames)


def _extent(size: Any, like: Tensor) -> Tensor:
    """What left, top, right and bottom are parts of: width, height, width, height."""
    height, width = size
    return torch.tensor([width, height, width, height], dtype=like.dtype, device=like.device)


@contextmanager
def _recorded(module: nn.Module, copied: Callable[[Any], Any] = lambda output: output) -> Iterator[list[Any]]:
    """Inputs and outputs of a module in this thread, while the context lasts; copied, where they are written to."""
    calls: list[tuple[Any, Any]] = []
    own = threading.get_ident()

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if threading.get_ident() == own:
            calls.append((inputs, copied(output)))

    handle = module.register_forward_hook(keep)
    try:
        yield calls
    finally:
        handle.remove()


class _OneStage:
    """RetinaNet, FCOS, SSD: a head gives logits and a box for every anchor."""

    def __init__(self, detector: Any) -> None:
        self.detector = detector

    def classes(self) -> int | None:
        head = getattr(self.detector.head, "classification_head", None)
        count: int | None = getattr(head, "num_classes", getattr(head, "num_columns", None))
        return count

    @contextmanager
    def watched(self) -> Iterator[Callable[[], list[_Seen]]]:
        """Afterwards, what was seen in each image."""
        with _recorded(self.detector.head) as heads, _recorded(self.detector.anchor_generator) as anchors:
            yield lambda: self._seen(heads[-1][1], *anchors[-1])

    def _seen(self, head: dict[str, Tensor], inputs: Any, anchors: list[Tensor]) -> list[_Seen]:
        size = inputs[0].image_sizes[0]
        seen = []
        for places, logits, codes, scores in zip(
            anchors, head["cls_logits"], head["bbox_regression"], self._scores(head), strict=True
        ):
            boxes = self._decoded(codes, places) / _extent(size, logits)
            seen.append(_Seen(places, scores, boxes.clamp(0, 1).unsqueeze(1)))
        return seen

    def _scores(self, head: dict[str, Tensor]) -> Tensor:
        logits = head["cls_logits"]
        if isinstance(self.detector, SSD):
            return F.softmax(logits, -1)
        if isinstance(self.detector, FCOS):
            return (logits.sigmoid() * head["bbox_ctrness"].sigmoid()).sqrt()
        return logits.sigmoid()

    def _decoded(self, codes: Tensor, places: Tensor) -> Tensor:
        coder = self.detector.box_coder
        return coder.decode(codes, places) if isinstance(self.detector, FCOS) else coder.decode_single(codes, places)

    def at(self, features: Any, places: Tensor, origins: Tensor, labels: Tensor, sizes: Any) -> tuple[Tensor, Tensor]:
        """Logits ``[B,K,C]`` and boxes ``[B,K,4]`` at places of each image."""
        head = self.detector.head(list(features.values()) if isinstance(features, dict) else [features])
        logits, codes = (_picked(head[name], origins) for name in ("cls_logits", "bbox_regression"))
        return logits, self._decoded(codes.flatten(0, 1), places.flatten(0, 1)).unflatten(0, origins.shape)

    def within(self, features: Any, frames: Tensor, labels: Tensor, sizes: Any) -> dict[str, Tensor]:
        """Nothing: they find boxes alone."""
        return {}


class _TwoStages:
    """Faster R-CNN and its kin: a head gives logits, and a box for every class, for every proposal."""

    def __init__(self, detector: Any) -> None:
        self.heads = detector.roi_heads

    def classes(self) -> int | None:
        count: int | None = getattr(getattr(self.heads.box_predictor, "cls_score", None), "out_features", None)
        return count

    @contextmanager
    def watched(self) -> Iterator[Callable[[], list[_Seen]]]:
        """Afterwards, what was seen in each image."""
        # torchvision scales the boxes of its output in place, to the size of the image.
        with (
            _recorded(self.heads, lambda output: [dict(each) for each in output[0]]) as calls,
            _recorded(self.heads.box_predictor) as predictions,
        ):
            yield lambda: self._seen(*calls[-1], *predictions[-1][1])

    def _seen(self, inputs: Any, output: Any, logits: Tensor, codes: Tensor) -> list[_Seen]:
        _, proposals, sizes, *_ = inputs
        counts = [len(each) for each in proposals]
        # Of no proposals torchvision returns boxes of another shape.
        boxes = self.heads.box_coder.decode(codes, proposals).reshape(*logits.shape, 4) / _extent(sizes[0], logits)
        parts = (F.softmax(logits, -1).split(counts), boxes.clamp(0, 1).split(counts))
        kept = [each["boxes"] for each in output]
        return [_Seen(*each) for each in zip(proposals, *parts, kept, strict=True)]

    def at(self, features: Any, places: Tensor, origins: Tensor, labels: Tensor, sizes: Any) -> tuple[Tensor, Tensor]:
        """Logits ``[B,K,C]`` and boxes ``[B,K,4]`` of the labels at places of each image."""
        features = features if isinstance(features, dict) else {"0": features}
        pooled = self.heads.box_head(self.heads.box_roi_pool(features, list(places), sizes))
        logits, codes = self.heads.box_predictor(pooled)
        boxes = self.heads.box_coder.decode(codes, list(places))
        return logits.unflatten(0, labels.shape), _picked(boxes, labels.reshape(-1, 1)).reshape(*labels.shape, 4)

    def within(self, features: Any, frames: Tensor, labels: Tensor, sizes: Any) -> dict[str, Tensor]:
        """The logits of masks and of joints of the labels in boxes of each image."""
        heads, found = self.heads, dict[str, Tensor]()
        features = features if isinstance(features, dict) else {"0": features}
        if heads.has_mask():
            pooled = heads.mask_roi_pool(features, list(frames), sizes)
            masks = heads.mask_predictor(heads.mask_head(pooled))
            of_label = labels.reshape(-1, 1, 1, 1).expand(-1, 1, *masks.shape[2:])
            found["box_masks"] = masks.gather(1, of_label).squeeze(1).unflatten(0, labels.shape)
        if heads.has_keypoint():
            pooled = heads.keypoint_roi_pool(features, list(frames), sizes)
            found["keypoints"] = heads.keypoint_predictor(heads.keypoint_head(pooled)).unflatten(0, labels.shape)
        return found


def _picked(values: Tensor, index: Tensor) -> Tensor:
    """The entries of ``values`` ``[B,N,D]`` at an index ``[B,K]``: ``[B,K,D]``."""
    return values.gather(1, index.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
