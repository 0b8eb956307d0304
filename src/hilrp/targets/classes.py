"""From a model's output to the score that is explained: classes, contrasts, and functions of the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hilrp.targets.prepared import Needs
from hilrp.util.errors import TargetError
from hilrp.util.nested import tensors


@dataclass(frozen=True)
class Contrast:
    """The difference of two logits: why ``wanted`` rather than ``other``.

    Each is a class index, or one per sample.

    Example:
        >>> score_of(torch.tensor([[1.0, 4.0]]), Contrast(1, 0), 1).value
        tensor([3.])
    """

    wanted: int | Sequence[int] | Tensor
    other: int | Sequence[int] | Tensor


@dataclass(frozen=True)
class Checked:
    """Classes ``[B]`` that are known to be in range, on the model's device: nothing has to be asked of it.

    ``None`` is the predicted class.
    """

    wanted: Tensor | None
    other: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Several:
    """Several scores of one sample, which share its forward pass.

    The explanation has a row for each of them, as it has for the samples of a batch.

    Attributes:
        scores: A function of the output that returns them, ``[S]``.

    Example:
        >>> score_of(torch.tensor([[1.0, 4.0]]), Several(lambda output: output[0] * 2), 1).value
        tensor([2., 8.])
    """

    scores: Callable[[Any], Tensor]

    def __call__(self, output: Any) -> Tensor:
        """The scores of an output."""
        return self.scores(output)


#: What can be given as a target: a class, one for each sample, one of these objects, a function, or nothing.
Target = int | Sequence[int] | Tensor | Contrast | Checked | Needs | Callable[[Any], Tensor] | None


def logits_of(output: Any) -> Tensor:
    """The class scores in a model's output: itself, its ``logits``, or its first tensor."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "out"):
        found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    first = next((t for t in tensors(output) if t.is_floating_point()), None)
    if first is None:
        raise TargetError(
            f"The model returned {type(output).__name__}, in which hilrp finds no tensor of scores. "
            "Pass target=function, which takes that output and returns one scalar per sample."
        )
    return first


#: What outputs of transformers that speak are called: part of the name of their class.
_SPEAKING = ("CausalLM", "Seq2SeqLM", "MaskedLM")


def no_classifier(shape: tuple[int, ...], batch: int, output: Any = None) -> str:
    """What to ask of a model that doesn't return one score for each class: the line that works, where that is known."""
    said = f"The model's output has shape {shape}, not [{batch}, classes]: it is no classifier. "
    alone = "Pass target=function, which takes the output and returns one scalar per sample."
    function = f"Or p{alone[1:]}"
    if any(part in type(output).__name__ for part in _SPEAKING):
        return said + (
            "It answers in words, with a score for each token. Ask it: hilrp.explain_answer(model, processor, image, "
            f"question), on the command line hilrp ask. {function}"
        )
    if len(shape) == 4:
        return said + (
            "Ask for a class in a part of the picture: targets.Region(label, box=...), on the command line --target "
            f"region:LEFT,TOP,RIGHT,BOTTOM:CLASS or region:MASK.png:CLASS. {function}"
        )
    if len(shape) == 5:
        return said + f"Ask for a class in a part of the volume: targets.Region(label, box=...). {function}"
    if is_raw_yolo(output):
        return said + f"{WRAP_YOLO} {function}"
    if len(shape) == 3:
        return said + (
            "Ask for one detection: targets.Detection(query) or Detection(None, label) for the query that is surest "
            f"of a class, on the command line --target detection:QUERY or detection:CLASS. {function}"
        )
    return said + alone


#: The line that works for what ultralytics' models return.
WRAP_YOLO = (
    "It is that of a YOLO of ultralytics: boxes before selection. Explain "
    "hilrp.models.libraries.yolo.Yolo(model) instead, which returns the objects that are found, and ask "
    "targets.Detection(0), Detection(0, side='left') or targets.Mask(0)."
)


def is_raw_yolo(output: Any) -> bool:
    """Whether an output is a YOLO's of ultralytics: decoded boxes, and a mapping of what they are made of."""
    raw = output[1] if isinstance(output, tuple) and len(output) == 2 else None
    raw = raw.get("one2many", raw) if isinstance(raw, Mapping) else None
    return isinstance(raw, Mapping) and {"boxes", "scores", "feats"} <= set(raw)


def is_own(target: Target) -> bool:
    """Whether a target is one of hilrp's: what it reads out of an output is part of the question."""
    if isinstance(target, Several):
        return is_own(target.scores)
    return not callable(target) or (getattr(target, "__module__", None) or "").startswith("hilrp.")


def question_of(target: Target) -> Any:
    """What says whether two targets read the same parts of an output: all classes do.

    A function is known by itself alone.

    A function of hilrp's own, which is made anew for each input, is known by its code.
    """
    if not callable(target):
        return None
    return getattr(target, "__code__", target) if is_own(target) else target


class Score(NamedTuple):
    """The scalar of each sample; the classes where the target is one, and those that they are contrasted with."""

    value: Tensor
    classes: Tensor | None = None
    against: Tensor | None = None


def score_of(output: Any, target: Target, batch: int) -> Score:
    """What a target makes of a model's output."""
    if isinstance(target, Several):
        return Score(_several(target(output), batch))
    if callable(target):
        return Score(_scalar_per_sample(target(output), batch))
    logits = logits_of(output)
    if not logits.is_floating_point():
        raise TargetError(
            f"The model's output holds {logits.dtype}, not scores of classes. Pass target=function, which takes the "
            "output and returns one scalar per sample (of complex numbers for instance output.abs()[:, 0])."
        )
    if logits.ndim == 1 and logits.shape[0] == batch:
        logits = logits.unsqueeze(1)
    if logits.ndim != 2 or logits.shape[0] != batch:
        raise TargetError(no_classifier(tuple(logits.shape), batch, output))
    if not isinstance(target, Checked):
        target = checked(target, logits)
    wanted, other = target.wanted, target.other
    if wanted is None:
        # Behind the back of whoever follows the logits: the class is that of the input, also where the model runs on a
        # reference beside it.
        with torch._C.DisableTorchFunction():
            wanted = logits.detach().argmax(1)
    score = _pick(logits, wanted)
    return Score(score if other is None else score - _pick(logits, other), wanted, other)


def checked(target: Any, logits: Tensor) -> Checked:
    """A class, one per sample, a contrast of such, or ``None`` (the prediction), as classes on the logits' device."""
    if target is None:
        return Checked(None)
    if isinstance(target, Contrast):
        return Checked(indices_of(target.wanted, logits, "wanted"), indices_of(target.other, logits, "other"))
    return Checked(indices_of(target, logits, "target"))


def _pick(logits: Tensor, indices: Tensor) -> Tensor:
    return logits.gather(1, indices.unsqueeze(1)).squeeze(1)


def indices_of(target: Any, logits: Tensor, name: str) -> Tensor:
    """Classes, one for each sample, of a target that is one or one for each.

    ``name`` is what it is called in errors.
    """
    batch, classes = logits.shape
    try:
        indices = torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError):
        indices = torch.tensor(0.5)
    if indices.is_floating_point() or indices.dtype == torch.bool or indices.is_complex():
        if isinstance(target, str):
            raise TargetError(f"{name}={target!r} is a name. Give the number of the class: loaded.index({target!r}).")
        raise TargetError(
            f"{name}={target!r} is not a class. Use None (the prediction), a class index, one index per sample, "
            "hilrp.targets.Contrast(a, b), or a function of the output."
        )
    indices = indices.to(torch.long)
    indices = indices.expand(batch) if indices.ndim == 0 else indices.reshape(-1)
    if indices.numel() != batch:
        raise TargetError(f"{name} has {indices.numel()} classes for a batch of {batch}: give one, or one per sample.")
    low, high = int(indices.min()), int(indices.max())
    if low < 0 or high >= classes:
        raise TargetError(
            f"{name}={low if low < 0 else high} is out of range: the model has {classes} classes, 0 to {classes - 1}."
        )
    return indices.to(logits.device)


def _scalar_per_sample(score: Any, batch: int) -> Tensor:
    if not isinstance(score, Tensor):
        raise TargetError(
            f"The target function returned {type(score).__name__}; it must return a tensor with one scalar per sample."
        )
    if score.numel() == batch and score.ndim <= 2:
        return score.reshape(batch)
    raise TargetError(
        f"The target function returned a tensor of shape {tuple(score.shape)}; it must return one scalar per sample, "
        f"[{batch}]. Reduce it, for instance with .sum over the other axes."
    )


def _several(scores: Any, batch: int) -> Tensor:
    if batch != 1:
        raise TargetError(f"Several scores of each sample are explained for one sample at a time, not for {batch}.")
    if not isinstance(scores, Tensor) or scores.ndim != 1 or not len(scores):
        found = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise TargetError(f"The function of Several(...) returned {found}; it must return a tensor of scores, [S].")
    return scores
