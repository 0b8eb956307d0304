"""The page without its face: questions that are answered in words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("gradio")

import hilrp
from helpers.pages import begun
from hilrp.app import components, pictures
from hilrp.app.actions import Actions
from hilrp.app.answers import ASK, STANDS_FOR_NONE, AnswerResult
from hilrp.app.controller import not_comparable
from hilrp.app.relative import REFERENCES
from hilrp.app.results import KINDS
from hilrp.app.uploads import Uploads
from hilrp.util.errors import InputError

CAPTIONER = "zoo/captioner"


@pytest.fixture(scope="module")
def actions(controller, tmp_path_factory):
    return Actions(controller, Uploads(tmp_path_factory.mktemp("uploads")))


def test_questions_are_offered_and_the_first_is_asked(controller):
    """Of a scene those that have an answer worth looking at; the answer is that of the library."""
    session = begun(controller, CAPTIONER)
    offered = session.prediction.choices
    assert session.prediction.kind == "answers"
    assert offered[0].target == f"{ASK}describe the picture"
    assert len({choice.name for choice in offered}) == 5
    result = session.result
    assert isinstance(result, AnswerResult)
    loaded, picture = session.loaded, session.picture
    found = hilrp.explain_answer(
        loaded.model, loaded.processor, picture.image, "describe the picture", reference="mean"
    )
    assert result.answer.text == found.text
    assert [word.score for word in result.answer.words] == [word.score for word in found.words]


def test_a_question_is_typed(actions, controller):
    session = begun(controller, CAPTIONER)
    actions.question(session, "  how many rings? ")
    assert session.result.title == "how many rings?"
    assert len(session.result.answer) == 1
    before = session.result
    for text, message in (
        ("what is a horse?", "knows no word 'horse'"),
        ("  ", "There is no question. Type one"),
        ("is " * 1000, "may have 2000. Shorten it"),
    ):
        with pytest.raises(InputError, match=message):
            actions.question(session, text)
        assert session.result is before
        assert session.target == f"{ASK}  how many rings? "


def test_rules_references_and_passes(actions, controller):
    session = begun(controller, CAPTIONER)
    one = session.result.answer
    actions.passes(session, 4)
    assert session.result.answer.explanation.passes == 4
    actions.passes(session, 1)
    actions.reference(session, "black")
    assert session.result.answer[0].prior != one[0].prior
    actions.rules(session, "hilrp")
    assert session.result.answer.explanation.relative_to is None
    assert "constants of the model" in session.result.answer[0].parts
    actions.rules(session, "secant")
    assert [word.score for word in session.result.answer.words] == [word.score for word in one.words]


def test_only_names_stand_for_no_picture(controller, tmp_path):
    """What comes from the page opens no file, and what has no meaning here is not offered."""
    session = begun(controller, CAPTIONER)
    picture = tmp_path / "secret.png"
    pictures.scene(3).image.save(picture)
    for name in (str(picture), "neutral"):
        with pytest.raises(InputError, match="can't stand for no picture"):
            controller.ask(session, reference=name)
    offered = [value for _, value in components.references(session).choices]
    assert [name for name in offered if name] == list(STANDS_FOR_NONE)
    other = begun(controller)
    assert [value for _, value in components.references(other).choices if value] == list(REFERENCES)


def test_other_methods_have_no_words(controller):
    session = begun(controller, CAPTIONER)
    assert "an answer in words" in not_comparable(session)
    with pytest.raises(InputError, match="an answer in words"):
        controller.comparable(session)


def test_exports(controller, tmp_path, monkeypatch):
    """Each kind can be read, and the lines of Python make the same answer."""
    session = begun(controller, CAPTIONER)
    session.target = f"{ASK}what colour is the ring?"
    controller.ask(session)
    result = session.result
    made = {kind: result.export(kind) for kind in KINDS}
    assert made["png"][:4] == b"\x89PNG"
    assert made["pdf"][:4] == b"%PDF"
    assert made["svg"].lstrip()[:5] == b"<?xml"
    facts = json.loads(made["json"])
    assert facts["text"] == result.answer.text
    (tmp_path / "answer.npz").write_bytes(made["npz"])
    assert np.array_equal(np.load(tmp_path / "answer.npz")["0/map/0"], result.answer[0].maps[0].numpy())
    assert result.name == "scene_14-what_colour_is_the_ring"
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(made["py"].decode(), "code", "exec"), names)
    again = names["answer"]
    assert again.text == result.answer.text
    assert torch.equal(again[0].maps[0], result.answer[0].maps[0])
    assert b"what colour is the ring?" in made["html"]


def test_a_model_of_classes_comes_back(controller):
    """Questions end with the model that answers them."""
    session = begun(controller, CAPTIONER)
    controller.model(session, "zoo/swin")
    assert session.prediction.kind == "classes"
    assert not session.target.startswith(ASK)
    assert not isinstance(session.result, AnswerResult)


def test_without_a_known_truth_there_are_questions_too(controller):
    session = begun(controller, CAPTIONER)
    session.picture = replace(session.picture, scene=None)
    controller.look(session)
    assert session.prediction.choices[0].name == "describe the picture"
