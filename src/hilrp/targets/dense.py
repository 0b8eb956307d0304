"""Targets of models that say something of every place, or of every object that they find."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.targets.classes import WRAP_YOLO, indices_of, is_raw_yolo, logits_of
from hilrp.util.errors import TargetError
from hilrp.util.nested import tensors

Side = Literal["left", "top", "right", "bottom"]
#: Where detectors keep the logits of their queries.
_LOGITS = ("logits", "pred_logits", "class_queries_logits")
_SIDES: tuple[Side, ...] = ("left", "top", "right", "bottom")


@dataclass(frozen=True, eq=False)
class Region:
    """A class of a segmentation model, in a part of the picture or volume: the mean of its logits there.

    Give one of ``mask``, ``box`` and ``pixel``, in pixels of the model's input; without any, the whole picture is
    meant. Volumes are ``[B,C,D,H,W]``.

    Attributes:
        label: The class, or one for each sample; ``None`` for the one that is strongest in the region.
        mask: ``[H,W]``, or one for each sample, ``[B,H,W]``: of the size of the input, or of the model's output. Of
            volumes ``[D,H,W]``, or ``[B,D,H,W]``.
        box: Left, top, right and bottom; of volumes left, top, front, right, bottom and back.
        pixel: Column and row; of volumes column, row and slice.

    Example:
        >>> logits = torch.arange(8.0).reshape(1, 2, 2, 2)
        >>> Region(1, pixel=(1, 0)).prepare(torch.zeros(1, 3, 2, 2), lambda x: x)(logits)
        tensor([5.])
    """

    label: int | Sequence[int] | Tensor | None = None
    mask: Tensor | None = None
    box: Sequence[float] | None = None
    pixel: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if sum(part is not None for part in (self.mask, self.box, self.pixel)) > 1:
            raise TargetError("targets.Region: give one of mask, box and pixel.")

    def prepare(self, x: Any, run: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
        """The mean over the region, as a function of the model's output."""
        images = _seen(x)
        if images is None:
            raise TargetError("targets.Region: the input holds no pictures [B,C,H,W] and no volumes [B,C,D,H,W].")
        size, batch = tuple(images.shape[2:]), len(images)
        weights = self._weights(size, batch).to(images.device, torch.float32)

        def score(output: Any) -> Tensor:
            logits = logits_of(output)
            if logits.ndim != images.ndim or len(logits) != batch:
                form = "height, width" if len(size) == 2 else "depth, height, width"
                raise TargetError(
                    f"targets.Region: the model's output has the shape {tuple(logits.shape)}, and not [{batch}, "
                    f"classes, {form}]. It is for segmentation models."
                )
            weighed = self._scaled(weights, size, tuple(logits.shape[2:])).to(logits)
            means = (logits * weighed.unsqueeze(1)).flatten(2).sum(2)
            wanted = means.detach().argmax(1).tolist() if self.label is None else self.label
            return means.gather(1, indices_of(wanted, means, "label").unsqueeze(1)).squeeze(1)

        return score

    def outline(self, size: tuple[int, int], output: Any, batch: int) -> Tensor:
        """The region at the size of the input, ``[B,H,W]``."""
        weights = self._weights(size, batch).unsqueeze(1)
        return (F.interpolate(weights, size) > 0).squeeze(1).float().expand(batch, -1, -1)

    def _weights(self, size: tuple[int, ...], batch: int) -> Tensor:
        """The region at the size of the input, or as the mask was given, ``[1 or B,...]``."""
        weights = torch.zeros(1, *size)
        if self.mask is not None:
            weights = self._given(size, batch)
        elif self.box is not None or self.pixel is not None:
            weights[0][self._place(size)] = 1
        else:
            weights += 1
        if not bool((weights.flatten(1).sum(1) > 0).all()):
            raise TargetError("targets.Region: the mask is empty.")
        return weights

    def _given(self, size: tuple[int, ...], batch: int) -> Tensor:
        """The mask that was given, ``[1 or B,...]``."""
        form = "[H,W]" if len(size) == 2 else "[D,H,W]"
        try:
            mask = torch.as_tensor(self.mask)
        except (TypeError, ValueError, RuntimeError):
            raise TargetError(
                f"targets.Region: the mask is a {type(self.mask).__name__}; give a tensor or an array of numbers, "
                f"{form}."
            ) from None
        if mask.ndim not in (len(size), len(size) + 1):
            raise TargetError(
                f"targets.Region: the mask has the shape {tuple(mask.shape)}; give {form}, or [B,{form[1:]} for each "
                "sample."
            )
        weights = (mask if mask.ndim > len(size) else mask[None]).float()
        if not bool((weights >= 0).all()):
            raise TargetError("targets.Region: the mask holds negative numbers; it says how much each place counts.")
        if len(weights) not in (1, batch):
            raise TargetError(f"targets.Region: {len(weights)} masks for {batch} samples: give one, or one for each.")
        return weights

    def _place(self, size: tuple[int, ...]) -> tuple[slice, ...]:
        """The part of the input that the box or the pixel is, along each of its axes."""
        axes, given = len(size), tuple(self.box if self.pixel is None else self.pixel)  # type: ignore[arg-type]
        what = " x ".join(map(str, reversed(size)))
        if self.pixel is not None:
            name = "pixel {} (column, row)" if axes == 2 else "pixel {} (column, row, slice)"
            low, high = given, tuple(each + 1 for each in given)
            fits = len(given) == axes
        else:
            names = "left, top, right, bottom" if axes == 2 else "left, top, front, right, bottom, back"
            name, low, high = f"box {{}} ({names})", given[:axes], given[axes:]
            fits = len(given) == 2 * axes
            if fits and any(first >= last for first, last in zip(low, high, strict=True)):
                raise TargetError(
                    f"targets.Region: the box {given} is empty: left must be less than right, and top less than "
                    f"bottom{'' if axes == 2 else ', and front less than back'}."
                )
        inside = fits and all(a >= 0 and b <= side for a, b, side in zip(low, high, reversed(size), strict=True))
        if not inside:
            raise TargetError(
                f"targets.Region: the {name.format(given)} isn't inside the input of {what} "
                f"{'pixels' if axes == 2 else 'voxels'}."
            )
        parts = [slice(int(a), max(int(a) + 1, round(b))) for a, b in zip(low, high, strict=True)]
        return tuple(reversed(parts))

    @staticmethod
    def _scaled(weights: Tensor, size: tuple[int, ...], wanted: tuple[int, ...]) -> Tensor:
        """The region at the size of the output, with a sum of one."""
        own = tuple(weights.shape[1:])
        if own not in (size, wanted):
            said = [" x ".join(map(str, reversed(each))) for each in (own, size, wanted)]
            raise TargetError(
                f"targets.Region: the mask has {said[0]} pixels, the model's input {said[1]} "
                f"and its output {said[2]}: scale the mask as the picture was scaled."
            )
        pool: Any = F.adaptive_avg_pool2d if len(size) == 2 else F.adaptive_avg_pool3d
        scaled: Tensor = pool(weights.unsqueeze(1), wanted).squeeze(1)
        total = scaled.flatten(1).sum(1)
        return scaled / total.reshape(-1, *[1] * len(size))


def _seen(x: Any) -> Tensor | None:
    """The pictures or volumes among the inputs."""
    found = [t for t in tensors(x) if t.is_floating_point()]
    return next((t for axes in (4, 5) for t in found if t.ndim == axes), None)


def places_of(x: Any) -> int:
    """Along how many axes the pictures or volumes among the inputs have places."""
    seen = _seen(x)
    return 2 if seen is None else seen.ndim - 2


@dataclass(frozen=True, eq=False)
class Detection:
    """A class of one query of a detector (DETR and its kin) or of one object that it finds, or a side of its box.

    Attributes:
        query: Which of the model's queries, or one for each sample; ``None`` for the one that is surest of the label.
            Of models that return what they find (`hilrp.models.libraries.detectors`), which object, the strongest being
            0.
        label: The class, or one for each sample; ``None`` for the object's own, or the one that the query finds most
            likely.
        side: A side of the box instead, as a part of the picture's width or height.
    """

    query: int | Sequence[int] | Tensor | None
    label: int | Sequence[int] | Tensor | None = None
    side: Side | None = None

    def __post_init__(self) -> None:
        if self.side is not None and self.label is not None:
            raise TargetError("targets.Detection: give a label or a side, not both.")
        if self.query is None and self.label is None:
            raise TargetError("targets.Detection: without a query, give the label that the surest one is wanted for.")
        if self.side not in (None, *_SIDES):
            raise TargetError(f"targets.Detection: side={self.side!r}; choose from {', '.join(_SIDES)}.")

    def __call__(self, output: Any) -> Tensor:
        """One number per sample."""
        if self.query is None:
            return self._surest(output)(output)
        if self.side is not None:
            self._own_labels(output)
            return self._side(output, self.side)
        return self.score_of_query(output, self.labels(output))

    def score_of_query(self, output: Any, labels: list[int] | None = None) -> Tensor:
        """The logit of the label at the query, whether or not the model takes that for an object."""
        wanted = self.label if labels is None else labels
        logits = self._of_query(_named(output, *_LOGITS))
        return logits.gather(1, indices_of(wanted, logits, "label").unsqueeze(1)).squeeze(1)

    def _surest(self, output: Any) -> Detection:
        """The same question to the query of each sample that is surest of the label."""
        logits = _named(output, *_LOGITS).detach()
        labels = _part(output, "labels")
        wanted = indices_of(self.label, logits[:, 0], "label").reshape(-1, 1, 1).expand(-1, logits.shape[1], 1)
        sure = logits.gather(2, wanted).squeeze(2)
        if labels is not None and labels.ndim == 2:  # of models that return what they find, only that
            sure = sure.masked_fill(labels < 0, -torch.inf)
        # As numbers: the query is that of the input, also where the model runs on a reference beside it.
        return Detection(sure.argmax(1).tolist(), self.label)

    def outline(self, size: tuple[int, int], output: Any, batch: int) -> Tensor:
        """The box at the size of the input, ``[B,H,W]``."""
        chosen = self._surest(output) if self.query is None else self
        columns, rows = ((torch.arange(n) + 0.5) / n for n in (size[1], size[0]))
        left, top, right, bottom = (chosen._side(output, side).detach().cpu().reshape(-1, 1) for side in _SIDES)
        across, down = (columns >= left) & (columns <= right), (rows >= top) & (rows <= bottom)
        return (down.unsqueeze(2) & across.unsqueeze(1)).float()

    def labels(self, output: Any) -> list[int]:
        """The class that is meant, of each sample."""
        own = None if self.query is None else self._own_labels(output)
        logits = self._of_query(_named(output, *_LOGITS)) if self.query is not None else _named(output, *_LOGITS)[:, 0]
        wanted = self.label if self.label is not None else own or logits.detach().argmax(1).tolist()
        return indices_of(wanted, logits, "label").tolist()

    def _side(self, output: Any, side: Side) -> Tensor:
        corners = _part(output, "corners")
        if corners is not None:
            return self._of_query(corners)[:, _SIDES.index(side)]
        x, y, width, height = self._of_query(_named(output, "pred_boxes", "boxes")).unbind(-1)
        middle, extent = (x, width) if side in ("left", "right") else (y, height)
        return middle - extent / 2 if side in ("left", "top") else middle + extent / 2

    def _own_labels(self, output: Any) -> list[int] | None:
        """What the objects are, of a model that returns what it finds."""
        labels = _part(output, "labels")
        if labels is None or labels.ndim != 2 or labels.is_floating_point():
            return None
        _check_found(labels, self.query, "Detection")
        queries = self._queries(labels)
        return [own[query] for query, own in zip(queries.tolist(), labels.tolist(), strict=True)]

    def _queries(self, found: Tensor) -> Tensor:
        """One for each sample."""
        return _one_for_each(self.query, found, "Detection")

    def _of_query(self, found: Tensor) -> Tensor:
        return _at(found, self._queries(found), "Detection")


@dataclass(frozen=True, eq=False)
class Missed:
    """An object that a detector did not find, at a place: the logit of its class there.

    It is that of the query (anchor, proposal) which the detector's training would match with such an object: by how
    likely the class is, and by how near its box comes (the costs of DETR's matching). What speaks against the object
    has negative relevance. Which query it is is settled on the input itself, also where relevance is relative to a
    reference. Of detectors that return what they find, let them keep what they would leave out: torchvision's with
    ``score_thresh=0``, a `Yolo` with ``confidence=0, overlap=1``.

    Attributes:
        label: The class, or one for each sample.
        box: Where it should be: left, top, right and bottom in pixels of the model's input.
        against: Why not that rather than another class: its logit less that of this one (or of one for each sample), or
            of what the query finds most likely of all others, ``"found"``.

    Example:
        >>> corners = torch.tensor([[[0, 0, 0.2, 0.2], [0.5, 0.5, 1, 1]]])
        >>> found = {"logits": torch.tensor([[[2.0], [-3.0]]]), "corners": corners}
        >>> Missed(0, box=(4, 4, 8, 8)).prepare(torch.zeros(1, 3, 8, 8), lambda x: found)(found)
        tensor([-3.])
    """

    label: int | Sequence[int] | Tensor
    box: Sequence[float]
    against: int | Sequence[int] | Tensor | Literal["found"] | None = None

    def __post_init__(self) -> None:
        sides = tuple(self.box)
        if len(sides) != 4 or not all(isinstance(side, (int, float)) and math.isfinite(side) for side in sides):
            raise TargetError(f"targets.Missed: the box {sides} isn't left, top, right, bottom, in pixels.")
        if sides[0] >= sides[2] or sides[1] >= sides[3]:
            raise TargetError(
                f"targets.Missed: the box {sides} is empty: left must be less than right, and top less than bottom."
            )

    def prepare(self, x: Any, run: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
        """The logit, as a function of the model's output."""
        images = next((t for t in tensors(x) if t.ndim == 4 and t.is_floating_point()), None)
        if images is None:
            raise TargetError("targets.Missed: the input holds no pictures [B,C,H,W].")
        size = (int(images.shape[2]), int(images.shape[3]))
        if not (min(self.box[:2]) >= 0 and self.box[2] <= size[1] and self.box[3] <= size[0]):
            raise TargetError(
                f"targets.Missed: the box {tuple(self.box)} isn't inside the input of {size[1]} x {size[0]} pixels."
            )

        seen = run(x)
        labels = indices_of(self.label, _named(seen, *_LOGITS)[:, 0], "label")
        queries = self.queries(seen, size)
        wanted = Detection(queries, labels.tolist()).score_of_query
        if self.against is None:
            return wanted
        other = Detection(queries, self._others(seen, queries, labels)).score_of_query
        return lambda output: wanted(output) - other(output)

    def _others(self, output: Any, queries: list[int], labels: Tensor) -> list[int]:
        """The class of each sample that the wanted one is held against."""
        logits = _named(output, *_LOGITS).detach()
        if not isinstance(self.against, str):
            return indices_of(self.against, logits[:, 0], "against").tolist()
        if self.against != "found":
            raise TargetError(f'targets.Missed: against={self.against!r}: give a class, or "found".')
        rest = _at(logits, torch.tensor(queries, device=logits.device), "Missed").scatter(
            1, labels[:, None], -torch.inf
        )
        return rest.argmax(1).tolist()

    def queries(self, output: Any, size: tuple[int, int]) -> list[int]:
        """The query of each sample that training would match with the object: numbers, which stay what they are.

        Args:
            output: What the model makes of the input.
            size: Height and width of that.
        """
        logits = _named(output, *_LOGITS).detach()
        labels = indices_of(self.label, logits[:, 0], "label").reshape(-1, 1, 1).expand(-1, logits.shape[1], 1)
        return self._matched(output, logits.gather(2, labels).squeeze(2), size).tolist()

    def _matched(self, output: Any, logits: Tensor, size: tuple[int, int]) -> Tensor:
        """The query of each sample that training would match with the object."""
        corners, box = self._corners(output), self._box(size, logits)
        middles, sides = (corners[..., :2] + corners[..., 2:]) / 2, corners[..., 2:] - corners[..., :2]
        middle, side = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
        far = (middles - middle).abs().sum(-1) + (sides - side).abs().sum(-1)
        around = torch.maximum(corners[..., 2:], box[2:]) - torch.minimum(corners[..., :2], box[:2])
        overlap, union = self._overlap(corners, box)
        hull = around.prod(-1).clamp_min(torch.finfo(corners.dtype).tiny)
        cost = -2 * logits.sigmoid() + 5 * far - 2 * (overlap - (hull - union) / hull)
        labels = _part(output, "labels")
        if labels is not None and labels.ndim == 2:  # of models that return what they find, only that
            cost = cost.masked_fill(labels < 0, torch.inf)
        cost = cost.nan_to_num(torch.inf, torch.inf, torch.inf)  # a box of no numbers is nowhere
        nowhere = (cost == torch.inf).all(1).nonzero().flatten().tolist()
        if nowhere:
            raise TargetError(
                f"targets.Missed: the model finds nothing at all in sample {nowhere[0]}, so that no query of it could "
                "have been the object. Let it keep what it would leave out: torchvision's detectors with "
                "score_thresh=0, a Yolo with confidence=0, overlap=1."
            )
        return cost.argmin(1)

    def overlaps(self, output: Any, size: tuple[int, int]) -> Tensor:
        """How much each query's box overlaps with the place (intersection over union), ``[B,queries]``."""
        corners = self._corners(output).detach()
        return self._overlap(corners, self._box(size, corners))[0]

    @staticmethod
    def _overlap(corners: Tensor, box: Tensor) -> tuple[Tensor, Tensor]:
        """Intersection over union, and the union."""
        inner = torch.minimum(corners[..., 2:], box[2:]) - torch.maximum(corners[..., :2], box[:2])
        shared = inner.clamp_min(0).prod(-1)
        union = (corners[..., 2:] - corners[..., :2]).prod(-1) + (box[2:] - box[:2]).prod() - shared
        return shared / union.clamp_min(torch.finfo(corners.dtype).tiny), union

    def _box(self, size: tuple[int, int], like: Tensor) -> Tensor:
        """The place as parts of the picture's sides."""
        extent = torch.tensor([size[1], size[0], size[1], size[0]])
        return (torch.tensor([float(side) for side in self.box]) / extent).to(like)

    @staticmethod
    def _corners(output: Any) -> Tensor:
        corners = _part(output, "corners")
        if corners is not None:
            return corners
        boxes = _named(output, "pred_boxes", "boxes")
        return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)

    def outline(self, size: tuple[int, int], output: Any, batch: int) -> Tensor:
        """The place at the size of the input, ``[B,H,W]``."""
        found = torch.zeros(batch, *size)
        left, top, right, bottom = (round(side) for side in self.box)
        found[:, top : max(bottom, top + 1), left : max(right, left + 1)] = 1
        return found


@dataclass(frozen=True, eq=False)
class Mask:
    """The mask of an object: the mean of its logits where the model says that the object is.

    Of the detectors with masks that `hilrp.load` takes (Mask R-CNN, YOLO), of models of queries (Mask2Former,
    MaskFormer), and of SAM. Where the mask lies is settled on the input itself, also where relevance is relative to a
    reference.

    Attributes:
        query: Which object (the strongest is 0), query, or prompt, or one for each sample.
        choice: Of SAM, which has several masks for each prompt, which of them; ``None`` for the one that it thinks
            best.
    """

    query: int | Sequence[int] | Tensor = 0
    choice: int | None = None

    def prepare(self, x: Any, run: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
        """The mean over the mask that the model makes of the input, as a function of its output."""
        if not (self.choice is None or type(self.choice) is int):
            raise TargetError(f"targets.Mask: choice={self.choice!r}: give the number of a mask, from 0.")
        seen = run(x)
        choice = self.choice if self.choice is not None else self._best(seen)
        masks = self.masks(seen, choice).detach()
        # Of a mask that is nowhere, where it comes nearest.
        inside = torch.where(
            (masks > 0).any(2, True).any(1, True), masks > 0, masks == masks.amax((1, 2), keepdim=True)
        )
        weights = inside / inside.sum((1, 2), keepdim=True).to(masks)

        def score(output: Any) -> Tensor:
            return (self.masks(output, choice) * weights).sum((1, 2))

        return score

    def masks(self, output: Any, choice: int | Tensor | None = None) -> Tensor:
        """The logits of the mask, ``[B,h,w]``: over the whole picture, or within the object's box."""
        _check_found(_part(output, "labels"), self.query, "Mask")
        found = next((t for name in _MASKS if (t := _part(output, name)) is not None), None)
        if found is None or found.ndim not in (4, 5):
            raise TargetError(
                f"targets.Mask: the model's output ({type(output).__name__}) has no mask for each object, [B, objects, "
                "height, width]. It is for Mask R-CNN and YOLO by hilrp.load, for Mask2Former and its kin, and for "
                "SAM. Of a segmentation ask targets.Region."
            )
        own = _at(found, _one_for_each(self.query, found, "Mask"), "Mask")
        if own.ndim == 3:
            return own
        choices = torch.as_tensor(0 if choice is None else choice, device=own.device).expand(len(own))
        if not 0 <= int(choices.min()) <= int(choices.max()) < own.shape[1]:
            raise TargetError(f"targets.Mask: choice={choice}: there are {own.shape[1]} masks, from 0.")
        return own.gather(1, choices[:, None, None, None].expand(-1, 1, *own.shape[2:])).squeeze(1)

    def _best(self, output: Any) -> Tensor | None:
        """Which of several masks of a prompt the model thinks best; ``None`` where there is one."""
        found, sure = _part(output, "pred_masks"), _part(output, "iou_scores")
        if found is None or found.ndim != 5:
            return None
        if sure is None:
            raise TargetError("targets.Mask: the model doesn't say which of its masks is best: give choice=.")
        return _at(sure, _one_for_each(self.query, sure, "Mask"), "Mask").detach().argmax(1)

    def outline(self, size: tuple[int, int], output: Any, batch: int) -> Tensor:
        """The mask at the size of the input, ``[B,H,W]``."""
        choice = self.choice if self.choice is not None else self._best(output)
        masks, corners = self.masks(output, choice).detach().float().cpu(), _part(output, "corners")
        if _part(output, "box_masks") is None or corners is None:
            return (F.interpolate(masks.unsqueeze(1), size, mode="bilinear").squeeze(1) > 0).float()
        boxes = _at(corners, _one_for_each(self.query, corners, "Mask"), "Mask").detach().float().cpu()
        left, top, right, bottom = (side.reshape(-1, 1) for side in boxes.unbind(1))
        columns, rows = ((torch.arange(n) + 0.5) / n for n in (size[1], size[0]))
        across, down = (columns - left) / (right - left) * 2 - 1, (rows - top) / (bottom - top) * 2 - 1
        grid = torch.stack([across[:, None].expand(-1, size[0], -1), down[:, :, None].expand(-1, -1, size[1])], -1)
        inside = (grid.abs() <= 1).all(-1)
        drawn = F.grid_sample(masks.unsqueeze(1), grid, mode="bilinear", padding_mode="border", align_corners=False)
        return ((drawn.squeeze(1) > 0) & inside).float()


@dataclass(frozen=True, eq=False)
class Keypoint:
    """A joint of an object (Keypoint R-CNN): the logit of where the model says that it is.

    Attributes:
        joint: Which one, by number.
        query: Which object (the strongest is 0), or one for each sample.
    """

    joint: int
    query: int | Sequence[int] | Tensor = 0

    def prepare(self, x: Any, run: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
        """The logit at the place where the joint is on the input, as a function of the output."""
        place = self.heat(run(x)).detach().argmax(1, keepdim=True)
        return lambda output: self.heat(output).gather(1, place).squeeze(1)

    def heat(self, output: Any) -> Tensor:
        """The logits of all places in the object's box, ``[B,places]``."""
        found = _part(output, "keypoints")
        if found is None or found.ndim != 5:
            raise TargetError(
                f"targets.Keypoint: the model's output ({type(output).__name__}) has no keypoints for each object, [B, "
                "objects, joints, height, width]. It is for Keypoint R-CNN by hilrp.load."
            )
        _check_found(_part(output, "labels"), self.query, "Keypoint")
        if type(self.joint) is not int or not 0 <= self.joint < found.shape[2]:
            raise TargetError(f"targets.Keypoint: joint={self.joint!r}: the model knows {found.shape[2]}, from 0.")
        return _at(found, _one_for_each(self.query, found, "Keypoint"), "Keypoint")[:, self.joint].flatten(1)


#: Where models keep the logits of masks.
_MASKS = ("masks", "box_masks", "masks_queries_logits", "pred_masks")


def _one_for_each(query: Any, found: Tensor, target: str) -> Tensor:
    """The query of each sample."""
    try:
        queries = torch.as_tensor(query, device=found.device).reshape(-1)
    except (TypeError, ValueError, RuntimeError):
        queries = torch.zeros(0)
    whole = not (queries.is_floating_point() or queries.is_complex() or queries.dtype == torch.bool)
    if not whole or len(queries) not in (1, len(found)):
        raise TargetError(
            f"targets.{target}: query={query!r} for {len(found)} samples: give one whole number, or one for each "
            "sample."
        )
    return queries.expand(len(found))


def _at(found: Tensor, queries: Tensor, target: str) -> Tensor:
    """What there is of a query of each sample, ``[B,...]`` of ``[B,queries,...]``."""
    outside = queries[(queries < 0) | (queries >= found.shape[1])].tolist()
    if outside:
        raise TargetError(
            f"targets.{target}: query {outside[0]} is out of range: the model has {found.shape[1]}, 0 to "
            f"{found.shape[1] - 1}."
        )
    index = queries.reshape(-1, 1, *[1] * (found.ndim - 2)).expand(-1, 1, *found.shape[2:])
    return found.gather(1, index).squeeze(1)


def _check_found(labels: Tensor | None, query: Any, target: str) -> None:
    """Raises where a model that returns what it finds has found no such object."""
    if labels is None or labels.ndim != 2 or labels.is_floating_point():
        return
    for sample, (each, own) in enumerate(
        zip(_one_for_each(query, labels, target).tolist(), labels.tolist(), strict=True)
    ):
        count = sum(label >= 0 for label in own)
        if not 0 <= each < count:
            raise TargetError(
                f"targets.{target}: there is no object {each} in sample {sample}: the model finds {count}, counted "
                "from 0, the strongest first."
            )


def _part(output: Any, name: str) -> Tensor | None:
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None


def _named(output: Any, *names: str) -> Tensor:
    for name in names:
        found = _part(output, name)
        if found is not None and found.ndim == 3:
            return found
    what = (
        f"targets.Detection: the model's output ({type(output).__name__}) has no {names[0]} for each query, [B, "
        "queries, ...]. "
    )
    if is_raw_yolo(output):
        raise TargetError(what + WRAP_YOLO)
    if isinstance(output, (list, tuple)) and output and isinstance(output[0], Mapping) and "boxes" in output[0]:
        raise TargetError(
            what + "It is that of a detector of torchvision, after selection. Explain "
            "hilrp.models.libraries.detectors.Detector(model) instead, and ask targets.Detection(0)."
        )
    if any(part in type(output).__name__ for part in ("CausalLM", "Seq2SeqLM")):
        raise TargetError(
            what + "It answers in words. Ask it: hilrp.explain_answer(model, processor, image, question)."
        )
    raise TargetError(
        what + "It is for detectors of the kind of DETR, for those of torchvision in a "
        "hilrp.models.libraries.detectors.Detector, and for YOLO in a hilrp.models.libraries.yolo.Yolo."
    )
