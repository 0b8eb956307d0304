"""Explaining an input part by part: in batches of a given size, or of one that fits into memory.

Samples don't see each other in a model that can be explained, so that the explanations of the parts are those of the
whole. Cut are the tensors of the input whose first axis is that of the samples, what the target holds for each of them,
and a reference that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from numbers import Integral
from typing import Any, Literal

from torch import Tensor

from hilrp.attribution.combined import joined
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.question import Question
from hilrp.attribution.references import Average, Given, Reference, find
from hilrp.targets.dense import places_of
from hilrp.targets.slicing import part_of
from hilrp.util.errors import InputError, TooLargeError
from hilrp.util.memory import in_parts
from hilrp.util.nested import map_tensors, tensors

#: How many samples go through the model at once: all, as many as that, or as many as fit into memory.
Batch = int | Literal["auto"] | None
#: What ``"auto"`` begins with on a processor. More at once is no faster there, and Linux rather ends a process than
#: tell it that memory is short.
_PROCESSOR = 32


def in_batches(
    explain: Callable[[Question, Reference | None], Explanation],
    question: Question,
    reference: Reference | None,
    batch: Batch,
    fitted: dict[Hashable, int],
) -> Explanation:
    """One explanation of the whole input, made of those of its parts.

    Args:
        explain: Explains a part at once.
        question: The model, its input, what is explained and the number of samples.
        reference: What relevance is relative to.
        batch: How many samples at once.
        fitted: By the form of the input, how many fitted where not all did. It is added to.
    """
    _check(batch)
    count = question.batch
    if batch is None or (batch != "auto" and batch >= count):
        return explain(question, reference)
    settled = _settled(reference, question)

    def run(part: slice) -> Explanation:
        if part == slice(0, count):
            return explain(question, settled)
        seen = _window(part, question)
        try:
            found = explain(part_of_question(question, seen), _relative(settled, question, seen))
        except Exception as error:
            error.add_note(
                f"The input is explained in parts: this one is of the samples {seen.start} to {seen.stop - 1} of "
                f"{count}, and they are counted from its first. A function as the target is given the output of one "
                "part at a time; give classes as target=labels."
            )
            raise
        return found if seen == part else found[part.start - seen.start : part.stop - seen.start]

    if batch == "auto":
        parts = _as_many_as_fit(run, question, fitted)
    else:
        parts = [run(slice(i, min(i + batch, count))) for i in range(0, count, batch)]
    return parts[0] if len(parts) == 1 else joined(parts, question.x)


def at_once(question: Question, batch: Batch, fitted: dict[Hashable, int]) -> int:
    """How many samples were explained at once."""
    if batch == "auto":
        return min(question.batch, fitted.get(_form(question), question.batch), _most(question))
    return question.batch if batch is None else min(batch, question.batch)


def _most(question: Question) -> int:
    on_processor = all(t.device.type == "cpu" for t in tensors(question.x))
    return _PROCESSOR if on_processor else question.batch


def _form(question: Question) -> Hashable:
    return tuple((_of_sample(t, question.batch), t.shape[1:], t.dtype, t.device) for t in tensors(question.x))


def _check(batch: Any) -> None:
    whole = isinstance(batch, Integral) and not isinstance(batch, bool)
    if not (batch is None or (isinstance(batch, str) and batch == "auto") or (whole and batch >= 1)):
        raise InputError(
            f'batch={batch!r}: give how many samples to explain at once, 1 or more, "auto" for as many as fit into '
            "memory, or None for all."
        )


def _as_many_as_fit(
    run: Callable[[slice], Explanation], question: Question, fitted: dict[Hashable, int]
) -> list[Explanation]:
    count = question.batch
    form = _form(question)
    size = min(fitted.get(form, count), count, _most(question))
    try:
        found, in_the_end = in_parts(run, count, size)
    except MemoryError as error:
        reason, fitted[form] = str(error), 1
    else:
        if in_the_end < size:
            fitted[form] = in_the_end
        return found
    shapes = ", ".join(str(tuple(t.shape)) for t in tensors(question.x))
    raise TooLargeError(
        f"Memory doesn't suffice to explain the input of shape {shapes}, not even one sample at a time "
        f"({reason.rstrip('.')}). Give a smaller one (a lower resolution), run the model in bfloat16 "
        '(torch.autocast), let blocks run again (Explainer(recompute="auto")), or use a device with more memory.'
    )


def _of_sample(t: Tensor, batch: int) -> bool:
    """Whether a tensor of the input holds something for each sample; others are held fixed."""
    return t.shape[:1] == (batch,)


def _window(part: slice, question: Question) -> slice:
    """A part with as many of its neighbours as it takes to have another length than an input that is held fixed.

    That would be taken for samples.
    """
    count = question.batch
    held = {len(t) for t in tensors(question.x) if t.ndim and t.is_floating_point() and not _of_sample(t, count)}
    length = part.stop - part.start
    while length in held:
        length += 1
    start = min(part.start, count - length)
    return slice(start, start + length)


def _cut(tree: Any, question: Question, part: slice) -> Any:
    return map_tensors(lambda t: t[part] if _of_sample(t, question.batch) else t, tree)


def part_of_question(question: Question, part: slice) -> Question:
    """The same question of some of the samples."""
    target = part_of(question.target, part, question.batch, places_of(question.x))
    return replace(question, x=_cut(question.x, question, part), target=target, batch=part.stop - part.start)


def _settled(reference: Reference | None, question: Question) -> Reference | None:
    """A reference that is given, as one for each sample of the whole input; others are found for each part."""
    if isinstance(reference, Average):
        return Average(tuple(_settled(find(each), question) for each in reference.references))
    return replace(reference, value=reference(question)[0]) if isinstance(reference, Given) else reference


def _relative(reference: Reference | None, question: Question, part: slice) -> Reference | None:
    if isinstance(reference, Average):
        return Average(tuple(_relative(each, question, part) for each in reference.references))
    if isinstance(reference, Given):
        return replace(reference, value=_cut(reference.value, question, part))
    return reference
