"""What a new tab begins with: rules, reference, passes, and the model that its first picture gets."""

from __future__ import annotations

import pytest
import timm
import torch
from PIL import Image

pytest.importorskip("gradio")

import hilrp.app.models
from helpers.pages import encoded, sent
from hilrp.app.controller import Controller
from hilrp.app.models import Models
from hilrp.app.relative import Start
from hilrp.app.sessions import Session, Sessions
from hilrp.models.libraries.loaded import Loaded, Preprocess
from hilrp.models.loading import DEFAULT_MODEL, SCENES_MODEL
from hilrp.util.errors import InputError


def test_a_new_tab_explains_as_it_was_started():
    session = Sessions(Start("hilrp", None, 1)).of("tab")
    assert (session.rules, session.reference, session.passes) == ("hilrp", None, 1)
    session = Sessions().of("tab")
    assert (session.rules, session.reference, session.passes) == ("secant", "mean", 1)


@pytest.mark.parametrize("wrong", [{"reference": "healthy.png"}, {"passes": 12}])
def test_what_the_page_does_not_offer(wrong):
    with pytest.raises(InputError, match="the page offers"):
        Start(**wrong)


def photograph(folder):
    return sent(folder, "photo.png", encoded(Image.new("RGB", (64, 48), "red")))


@pytest.fixture
def found(monkeypatch):
    """The names of models that are loaded; that for photographs is a small one here."""
    asked, real = [], hilrp.app.models.load

    def load(name, *args, **options):
        asked.append(name)
        if name != DEFAULT_MODEL:
            return real(name, *args, **options)
        model = timm.create_model("test_vit", num_classes=7).eval()
        prepare = Preprocess(lambda image: torch.full((3, 160, 160), image.size[0] / 100), (0.5,) * 3, (0.5,) * 3)
        return Loaded(name, model, prepare, list("abcdefg"))

    monkeypatch.setattr(hilrp.app.models, "load", load)
    return asked


def test_the_first_photograph_gets_the_model_for_photographs(found, tmp_path):
    controller, session = Controller(Models()), Session()
    controller.begin(session)
    assert session.loaded.name == SCENES_MODEL
    assert controller.upload(session, [photograph(tmp_path)]) == []
    assert session.loaded.name == DEFAULT_MODEL
    assert session.picture.name == "photo.png"
    controller.model(session, SCENES_MODEL)
    assert controller.upload(session, [photograph(tmp_path)]) == []
    assert session.loaded.name == SCENES_MODEL  # somebody chose it
    assert found == [SCENES_MODEL, DEFAULT_MODEL]


def test_who_has_a_model_keeps_it(found, tmp_path):
    controller, session = Controller(Models(own=hilrp.load("zoo/resnet"))), Session()
    controller.begin(session)
    assert controller.upload(session, [photograph(tmp_path)]) == []
    assert session.loaded.name == "zoo/resnet"
    assert found == []


def test_where_its_weights_can_not_be_had_that_is_said(monkeypatch, tmp_path):
    controller, session = Controller(Models()), Session()
    controller.begin(session)

    def unreachable(self, name, gone=None):
        raise InputError(f"{name}: its published weights could not be loaded.")

    monkeypatch.setattr(Models, "get", unreachable)
    (said,) = controller.upload(session, [photograph(tmp_path)])
    assert DEFAULT_MODEL in said
    assert f"this is {SCENES_MODEL}, which knows scenes" in said
    assert session.picture.name == "photo.png"
    assert session.result is not None
    assert controller.upload(session, [photograph(tmp_path)]) == []
