"""Questions about scenes: their answers are true of the masks, and each word says what it speaks of."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hilrp.scenes import CLASSES, Scenes
from hilrp.scenes.objects import COLOURS, SHAPES, TEXTURES
from hilrp.scenes.questions import DESCRIBE, NUMBERS, PLURALS, questions, some_questions

SCENES = Scenes(seed=12, count=60)[:]
KINDS = {"caption", "colour", "texture", "shape", "place", "count", "presence"}


@pytest.fixture(scope="module")
def asked():
    return [(scene, question) for scene in SCENES for question in questions(scene)]


def of_kind(asked, kind):
    found = [(scene, question) for scene, question in asked if question.kind == kind]
    assert found
    return found


def test_every_kind_is_asked_and_no_question_twice(asked):
    assert {question.kind for _, question in asked} == KINDS
    for scene in SCENES:
        texts = [question.text for question in questions(scene)]
        assert len(set(texts)) == len(texts)


def test_the_caption_is_the_scenes_own_word_by_word(asked):
    for scene, question in of_kind(asked, "caption"):
        assert question.text == DESCRIBE
        assert question.said == scene.caption
        for word, labels in question.answer:
            names = {thing.label: thing for thing in scene.things}
            assert set(labels) <= set(names)
            if word in (*COLOURS, *SHAPES):
                (label,) = labels
                assert word in CLASSES[label].split()
            elif word in TEXTURES:
                assert names[labels[0]].texture == word
            elif word in ("above", "below", "left", "right", "of"):
                assert len(labels) == 2


def test_what_is_asked_of_one_object_is_asked_only_where_there_is_one(asked):
    for scene, question in of_kind(asked, "colour"):
        (shape,) = [shape for shape in SHAPES if question.text == f"what colour is the {shape}?"]
        (thing,) = [thing for thing in scene.things if thing.shape == shape]
        assert question.answer == ((thing.colour, (thing.label,)),)
    for scene, question in of_kind(asked, "shape"):
        (thing,) = [thing for thing in scene.things if f"the {thing.colour} object" in question.text]
        assert question.answer == ((thing.shape, (thing.label,)),)
    for scene, question in of_kind(asked, "texture"):
        (thing,) = [thing for thing in scene.things if f"the {thing.name}?" in question.text]
        assert question.answer == ((thing.texture, (thing.label,)),)


def test_counts_are_those_of_the_objects(asked):
    plural = {many: one for one, many in PLURALS.items()}
    for scene, question in of_kind(asked, "count"):
        words = question.text.removesuffix("?").split()[2:]
        counted = [
            thing.label
            for thing in scene.things
            if (thing.colour == words[0] if words[-1] == "objects" else thing.shape == plural[words[0]])
        ]
        assert question.said == NUMBERS[len(counted)]
        assert sorted(question.answer[0][1]) == sorted(counted)


def test_presence_is_that_of_the_class(asked):
    for scene, question in of_kind(asked, "presence"):
        label = CLASSES.index(question.text.removeprefix("is there a ").removesuffix("?"))
        assert question.answer == (("yes", (label,)) if scene.labels[label] else ("no", ()),)


def test_what_is_beside_an_object_is_beside_it(asked):
    """Along the axis on which the middles of both are further apart; where several are, nothing is asked."""
    counts = Counter()
    for scene, question in of_kind(asked, "place"):
        place, _, name = question.text.removeprefix("what is ").removesuffix("?").partition(" the ")
        (thing,) = [thing for thing in scene.things if thing.name == name]
        y, x = thing.centre
        beside = []
        for other in scene.things:
            down, across = other.centre[0] - y, other.centre[1] - x
            side = (
                ("below" if down > 0 else "above") if abs(down) >= abs(across) else ("right" if across > 0 else "left")
            )
            if other is not thing and side == place.split()[0]:
                beside.append(other)
        assert question.said == (f"a {beside[0].name}" if beside else "nothing")
        assert len(beside) <= 1
        counts[bool(beside)] += 1
    assert min(counts.values()) > 50


def test_some_questions_are_balanced_and_seeded():
    one, again = (some_questions(SCENES[5], np.random.default_rng(3), 8) for _ in range(2))
    assert one == again
    assert len(set(one)) == 8
    kinds, answers = Counter(), Counter()
    for i, scene in enumerate(SCENES):
        for question in some_questions(scene, np.random.default_rng(i), 6):
            kinds[question.kind] += 1
            answers[question.said] += question.kind == "presence"
    assert set(kinds) == KINDS
    assert max(kinds.values()) < 4 * min(kinds.values())
    assert 0.6 < answers["yes"] / answers["no"] < 1.6
    assert len(some_questions(SCENES[0], np.random.default_rng(0), 1000)) == len(questions(SCENES[0]))
