"""Targets of models that say something of every place, or of every object that they find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from hilrp.targets.classes import indices_of, logits_of
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
        wanted = self.labels(output)
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
        queries = self._queries(labels)
        for sample, (query, own) in enumerate(zip(queries.tolist(), labels.tolist(), strict=True)):
            count = sum(label >= 0 for label in own)
            if not 0 <= query < count:
                raise TargetError(
                    f"targets.Detection: there is no object {query} in sample {sample}: the model finds {count}, "
                    "counted from 0, the strongest first."
                )
        return [own[query] for query, own in zip(queries.tolist(), labels.tolist(), strict=True)]

    def _queries(self, found: Tensor) -> Tensor:
        """One for each sample."""
        try:
            queries = torch.as_tensor(self.query, device=found.device).reshape(-1)
        except (TypeError, ValueError, RuntimeError):
            queries = torch.zeros(0)
        whole = not (queries.is_floating_point() or queries.is_complex() or queries.dtype == torch.bool)
        if not whole or len(queries) not in (1, len(found)):
            raise TargetError(
                f"targets.Detection: query={self.query!r} for {len(found)} samples: give one whole number, or one for "
                "each sample."
            )
        return queries.expand(len(found))

    def _of_query(self, found: Tensor) -> Tensor:
        queries = self._queries(found)
        outside = queries[(queries < 0) | (queries >= found.shape[1])].tolist()
        if outside:
            raise TargetError(
                f"targets.Detection: query {outside[0]} is out of range: the model has {found.shape[1]}, 0 to "
                f"{found.shape[1] - 1}."
            )
        index = queries.reshape(-1, 1, 1).expand(-1, 1, found.shape[2])
        return found.gather(1, index).squeeze(1)


def _part(output: Any, name: str) -> Tensor | None:
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return found if isinstance(found, Tensor) else None


def _named(output: Any, *names: str) -> Tensor:
    for name in names:
        found = _part(output, name)
        if found is not None and found.ndim == 3:
            return found
    raise TargetError(
        f"targets.Detection: the model's output ({type(output).__name__}) has no {names[0]} for each query, [B, "
        "queries, ...]. It is for detectors of the kind of DETR, and for those of torchvision in a "
        "hilrp.models.libraries.detectors.Detector."
    )
