"""Questions about scenes, their answers, and the objects that each word of an answer speaks of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hilrp.scenes.objects import COLOURS, SHAPES
from hilrp.scenes.scene import Scene, Thing, relation

#: What asks for the caption.
DESCRIBE = "describe the picture"
#: How several of a shape are called.
PLURALS = {"star": "stars", "ring": "rings", "cross": "crosses", "triangle": "triangles"}
NUMBERS = ("none", "one", "two", "three", "four")
_SIDES = ("above", "below", "left of", "right of")


@dataclass(frozen=True)
class Question:
    """A question with its answer.

    Attributes:
        kind: What is asked for: ``caption``, ``colour``, ``texture``, ``shape``, ``place``, ``count`` or ``presence``.
        text: The question.
        answer: The words of the answer, and the labels of the objects that each of them speaks of.
    """

    kind: str
    text: str
    answer: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def said(self) -> str:
        """The answer as a text."""
        return " ".join(word for word, _ in self.answer).replace(" ,", ",")


def questions(scene: Scene) -> list[Question]:
    """All that can be asked of a scene and has one answer.

    Example:
        >>> from hilrp.scenes import Scenes
        >>> scene = Scenes(seed=0)[1]  # a checked yellow ring left of a striped yellow triangle
        >>> asked = {question.text: question.said for question in questions(scene)}
        >>> asked["what colour is the ring?"], asked["how many yellow objects?"]
        ('yellow', 'two')
        >>> asked["what is right of the yellow ring?"]
        'a yellow triangle'
    """
    found = [Question("caption", DESCRIBE, _words(scene.phrases))]
    for shape in SHAPES:
        own = [thing for thing in scene.things if thing.shape == shape]
        found.append(_count(f"how many {PLURALS[shape]}?", own))
        if len(own) == 1:
            found.append(_about("colour", f"what colour is the {shape}?", own[0].colour, own[0]))
    for colour in COLOURS:
        own = [thing for thing in scene.things if thing.colour == colour]
        found.append(_count(f"how many {colour} objects?", own))
        if len(own) == 1:
            found.append(_about("shape", f"what shape is the {colour} object?", own[0].shape, own[0]))
        for shape in SHAPES:
            there = [thing for thing in own if thing.shape == shape]
            labels = tuple(thing.label for thing in there)
            word = "yes" if there else "no"
            found.append(Question("presence", f"is there a {colour} {shape}?", ((word, labels),)))
    for thing in scene.things:
        found.append(_about("texture", f"what texture has the {thing.name}?", thing.texture, thing))
        for side in _SIDES:
            own = [other for other in scene.things if other is not thing and relation(other, thing) == side]
            if len(own) <= 1:
                words = [(f"a {own[0].name}", (own[0],))] if own else [("nothing", ())]
                found.append(Question("place", f"what is {side} the {thing.name}?", _words(words)))
    return found


def some_questions(scene: Scene, rng: np.random.Generator, count: int) -> list[Question]:
    """Different questions about a scene, all kinds as often, and of a kind all answers."""
    left = questions(scene)
    found: list[Question] = []
    while left and len(found) < count:
        own = _one_of(left, [question.kind for question in left], rng)
        same = _one_of(own, [question.said for question in own], rng)
        found.append(same[rng.integers(len(same))])
        left.remove(found[-1])
    return found


def _one_of(pool: Sequence[Question], names: Sequence[str], rng: np.random.Generator) -> list[Question]:
    """Those of one name, whichever."""
    different = sorted(set(names))
    chosen = different[rng.integers(len(different))]
    return [question for question, name in zip(pool, names, strict=True) if name == chosen]


def _words(phrases: Sequence[tuple[str, Sequence[Thing]]]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The words of some phrases; a comma is a word of its own."""
    return tuple((word, tuple(thing.label for thing in things)) for text, things in phrases for word in text.split())


def _about(kind: str, text: str, word: str, thing: Thing) -> Question:
    return Question(kind, text, ((word, (thing.label,)),))


def _count(text: str, things: Sequence[Thing]) -> Question:
    return Question("count", text, ((NUMBERS[len(things)], tuple(thing.label for thing in things)),))
