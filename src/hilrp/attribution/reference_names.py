"""What references are called in tables, figures and sentences: "the score is 8.2 higher than on ..."."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from hilrp.attribution.kinds import Kind
from hilrp.attribution.neutral import Neutral
from hilrp.attribution.question import Question
from hilrp.attribution.references import Average, Blurred, ByForm, Colour, Constant, Given, Mean, find
from hilrp.util.nested import tensors

#: Plain greys that have names.
_GREYS = {0.0: "black", 0.5: "grey", 1.0: "white"}
_MEAN_COLOUR = "the picture's mean colour"
#: What the mean of an input of four axes, over the last two, is called where these are no colours.
_MEANS = {
    Kind.BANDS: "each channel's mean", Kind.SOUND: "each channel's mean", Kind.VOLUME: "each slice's mean",
    Kind.VIDEO: "each frame's mean",
}  # fmt: skip


def name_of(reference: Any, question: Question) -> str:
    """What a reference is called, for one sample.

    Example:
        >>> import torch
        >>> from hilrp.attribution.references import DEFAULT
        >>> x = torch.zeros(2, 3, 8, 8)
        >>> name_of(DEFAULT, Question(torch.nn.Identity(), x, None, 2)), name_of("blurred", None)
        ("the picture's mean colour", 'the blurred picture')
    """
    match find(reference):
        case ByForm() as by_form:
            names = dict.fromkeys(_by_form(t, question) for t in by_form.varied(question))
            return " and ".join(names) or "the same input"
        case Mean():
            deep = next((t for t in tensors(question.x) if t.ndim == 5), None) if question is not None else None
            if question is not None and deep is not None:
                return _by_form(deep, question)
            return _MEANS.get(_kind_of_images(question), _MEAN_COLOUR)
        case Blurred():
            return f"the blurred {_kind_of_images(question).thing.removeprefix('the ')}"
        case Neutral():
            return "a neutral colour"
        case Colour(value=value) if value in _GREYS:
            return _GREYS[value]
        case Colour(value=value):
            return f"the colour {value}"
        case Constant(value=0):
            return "zero"
        case Constant(value=value):
            return f"the constant {value}"
        case Given(name=name):
            return name
        case Average(references=references):
            return f"the mean over {', '.join(name_of(each, question) for each in references)}"
    return "the reference given"


def _kind_of_images(question: Question | None) -> Kind:
    """What an input of four or five axes is, of which references for pictures can be made."""
    main = None if question is None else question.main
    return main[1] if main is not None and main[0].ndim in (4, 5) else Kind.PICTURE


def _by_form(t: Tensor, question: Question) -> str:
    """What an input is relative to, if nobody says."""
    axes, main = question.places(t), question.main
    if len(axes) < 2:
        return "zero"
    kind = main[1] if main is not None and t is main[0] else Kind.of(t)
    if kind is Kind.PICTURE and t.shape[1] in (1, 3, 4):
        return _MEAN_COLOUR
    channels = [t.shape[axis] for axis in range(1, t.ndim) if axis not in axes]
    return "each channel's mean" if kind is None or channels not in ([], [1]) else f"{kind.thing}'s mean"
