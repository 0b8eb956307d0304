"""The page without its face: pictures, models, questions, results."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html import escape

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("gradio")

from safetensors.torch import save_file

import hilrp
from helpers.pages import asked, begun, encoded, sent
from hilrp.app import components, pictures
from hilrp.app.controller import Controller, not_comparable
from hilrp.app.models import Models
from hilrp.app.results import KINDS
from hilrp.app.sessions import PICTURES, Session
from hilrp.attribution.plotting import shares
from hilrp.pages.charts import waterfall
from hilrp.pages.parts import safe
from hilrp.util.errors import InputError
from hilrp.util.nested import tensors

# Pictures -------------------------------------------------------------------------------------------------------------


def test_what_is_uploaded_does_not_stay_on_disk(controller, tmp_path):
    session = begun(controller)
    before = session.result
    path = sent(tmp_path, "mine.png", encoded(Image.new("RGB", (64, 48), "red")))
    assert controller.upload(session, [path]) == []
    assert list(tmp_path.rglob("*")) == []
    assert session.picture.name == "mine.png"
    assert session.result is not None
    assert session.result is not before
    assert any("enlarged" in note for note in session.result.notes)
    assert any("scenes and nothing else" in note for note in session.result.notes)


def test_wrong_files_are_refused_and_others_are_taken(controller, tmp_path):
    session = begun(controller)
    files = [
        sent(tmp_path, "notes.txt", b"no picture"),
        sent(tmp_path, "good.png", encoded(Image.new("RGB", (128, 128), "blue"))),
        sent(tmp_path, "cut.png", encoded(Image.new("RGB", (128, 128), "blue"))[:60]),
    ]
    problems = controller.upload(session, files)
    assert [problem.partition(":")[0] for problem in problems] == ["notes.txt", "cut.png"]
    assert all("not a readable image" in problem and str(tmp_path) not in problem for problem in problems)
    assert session.picture.name == "good.png"
    assert list(tmp_path.rglob("*")) == []


def test_a_wrong_file_leaves_everything_as_it_was(controller, tmp_path):
    session = begun(controller)
    before = session.result
    assert len(controller.upload(session, [sent(tmp_path, "notes.txt", b"no picture")])) == 1
    assert session.result is before


def test_large_pictures_are_scaled_down(tmp_path):
    picture = pictures.uploaded(sent(tmp_path, "large.jpg", encoded(Image.new("RGB", (3000, 1500), "green"), "JPEG")))
    assert picture.image.size == (2048, 1024)
    assert picture.notes == ["the picture (3000 x 1500) was scaled down to 2048 x 1024"]


def test_there_is_an_end_to_pictures():
    session = Session()
    picture = pictures.scene(0)
    for _ in range(PICTURES):
        session.add(pictures.Picture("a", picture.image, ""))
    with pytest.raises(InputError, match=f"{PICTURES} pictures already"):
        session.add(picture)


def test_what_greets_fits_the_model_until_somebody_chooses(controller, monkeypatch):
    photograph = pictures.Picture("cat.png", Image.new("RGB", (64, 64), "grey"), "")
    monkeypatch.setattr(pictures, "_cat", lambda: photograph)
    scene, mine, vit = (hilrp.load(f"zoo/{name}") for name in ("swin", "resnet", "vit"))
    mine = replace(mine, weights="mine", classes=["tabby cat", *"abcdefghijk"])
    other = replace(vit, weights="mine", classes=list("abcdefghijkl"))
    session = Session()
    for loaded, greets in ((scene, "scene 14"), (mine, "cat.png"), (scene, "scene 14")):
        controller.look(session, loaded)
        assert [picture.name for picture in session.pictures.values()] == [session.picture.name] == [greets]
        assert session.result.picture is session.picture
    controller.look(session, other)
    assert (session.picture, session.result, session.prediction, session.loaded) == (None, None, None, other)
    controller.scene(session, 3)
    controller.look(session, mine)
    assert session.picture.name == "scene 3"
    controller.remove(session)
    controller.look(session, scene)
    assert (session.picture, session.result) == (None, None)


def test_why_methods_can_not_be_compared(controller):
    assert "no explanation yet" in not_comparable(Session())
    session = begun(controller)
    assert not_comparable(session) == ""
    controller.ask(session, against="1")
    assert "no other class" in not_comparable(session)
    controller.model(session, "zoo/vit-views")
    assert "one class of a picture" in not_comparable(session)


def test_a_scene_is_taken_once(controller):
    session = begun(controller)
    controller.scene(session, 4)
    controller.scene(session, pictures.FIRST)
    controller.scene(session, 4)
    assert [p.name for p in session.pictures.values()] == [f"scene {pictures.FIRST}", "scene 4"]
    assert session.picture.name == "scene 4"


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["os:getcwd", "transformers//etc", "/etc/passwd", "tests", "transformers/tests", ".", "~"]
)
def test_names_neither_run_code_nor_open_files(name):
    with pytest.raises(
        hilrp.HilrpError, match=r"can't be opened from the page|no model of that name|none of the libraries"
    ):
        Models().get(name)


def test_no_name():
    with pytest.raises(InputError, match="No model is chosen"):
        Models().get(" ")


def test_models_are_kept_for_a_while():
    models = Models()
    first = models.get("zoo/resnet")
    assert models.get("zoo/resnet") is first
    for name in ("vit", "swin", "deit", "pvt_v2"):
        models.get(f"zoo/{name}")
    assert models.get("zoo/resnet") is not first


def test_the_operators_own_model(tmp_path, monkeypatch):
    """Its weights and the names of its classes are in the lines that make the explanation again."""
    state = hilrp.load("zoo/convnext").model.state_dict()
    save_file({name: (0.9 * value).contiguous() for name, value in state.items()}, tmp_path / "mine.safetensors")
    (tmp_path / "names.txt").write_text("\n".join(f"kind {i}" for i in range(12)))
    monkeypatch.chdir(tmp_path)
    own = hilrp.load("zoo/convnext", "mine.safetensors", [f"kind {i}" for i in range(12)])
    models = Models(own=own, checkpoint="mine.safetensors", classes="names.txt")
    session = Session()
    Controller(models).begin(session)
    assert (session.picture, session.result) == (None, None)  # nothing fits classes of somebody's own
    Controller(models).scene(session, pictures.FIRST)
    names: dict[str, object] = {}
    exec(compile(session.result.code, "code", "exec"), names)
    torch.testing.assert_close(names["explanation"].relevance, session.result.explanation.relevance)
    assert names["loaded"].classes[3] == "kind 3"
    assert "hilrp.models" not in session.result.code
    assert models.first == "zoo/convnext"
    assert models.names()[0] == "zoo/convnext"
    assert models.get("zoo/convnext") is own


def test_weights_of_ones_own(controller, tmp_path):
    """A classifier of two classes in the architecture of one of twelve."""
    folder = tmp_path / "1"
    folder.mkdir()
    state = dict(hilrp.load("zoo/resnet").model.state_dict())
    state["fc.weight"], state["fc.bias"] = state["fc.weight"][:2].clone(), state["fc.bias"][:2].clone()
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "mine.safetensors")
    names = sent(tmp_path, "names.txt", b"sound\ncracked\n")
    session = begun(controller)
    controller.weights(session, "zoo/resnet", folder / "mine.safetensors", names)
    assert {choice.name for choice in session.prediction.choices} == {"sound", "cracked"}
    assert sum(choice.part for choice in session.prediction.choices) == pytest.approx(1)
    assert not any("scenes" in note for note in session.result.notes)
    assert session.result.loaded.weights == "weights of mine.safetensors"
    assert "checkpoint='mine.safetensors'" in session.result.code
    assert list(tmp_path.rglob("*")) == []


def test_weights_that_are_none(controller, tmp_path):
    session = begun(controller)
    before = session.loaded
    path = sent(tmp_path, "mine.pt", b"no weights")
    with pytest.raises(InputError, match=r"checkpoint mine\.pt: it is no checkpoint"):
        controller.weights(session, "zoo/resnet", path, None)
    assert session.loaded is before
    assert list(tmp_path.rglob("*")) == []


# What models say ------------------------------------------------------------------------------------------------------


def test_predictions(controller):
    """Of each kind of model; the three objects of the scene come first."""
    objects = {thing.name for thing in pictures.scene(pictures.FIRST).scene.things}
    classes = begun(controller).prediction
    assert (classes.kind, len(classes.choices)) == ("classes", 5)
    assert {choice.name for choice in classes.choices[:3]} == objects
    logits = (
        hilrp.load("zoo/swin").model(hilrp.load("zoo/swin").batch([pictures.scene(pictures.FIRST).image]))[0].detach()
    )
    strongest = classes.choices[0]
    assert int(strongest.target) == int(logits.argmax())
    assert strongest.part == pytest.approx(float(logits.sigmoid().max()))
    regions = begun(controller, "zoo/segmenter").prediction
    assert regions.kind == "regions"
    assert {choice.name for choice in regions.choices} == objects
    found = begun(controller, "zoo/detector").prediction
    assert found.kind == "objects"
    assert {choice.name.rpartition(" (")[0] for choice in found.choices[:3]} == objects
    assert begun(controller, "zoo/vit-views").prediction.kind == "features"


def test_probabilities_of_others_exclude_each_other(controller):
    """Of models that aren't of the zoo the classes share one."""
    from dataclasses import replace

    from hilrp.app.predictions import predict

    loaded = controller.models.get("zoo/swin")
    x = loaded.batch([pictures.scene(pictures.FIRST).image])
    other = predict(replace(loaded, name="mine"), x)
    expected = loaded.model(x)[0].detach().softmax(0)
    assert [choice.part for choice in other.choices] == pytest.approx(expected.topk(5).values.tolist())


# Results --------------------------------------------------------------------------------------------------------------

QUESTIONS = {
    "a class": ("zoo/swin", "1", {}),
    "a contrast": ("zoo/swin", "1", {"against": "3"}),
    "another reference": ("zoo/swin", "1", {"reference": "grey"}),
    "more passes": ("zoo/swin", "1", {"reference": "blurred", "passes": 8}),
    "other rules": ("zoo/pvt_v2", "1", {"rules": "epsilon", "reference": None}),
    "a caption": ("zoo/towers", "text:a striped blue cross", {}),
    "a region": ("zoo/segmenter", "region:20,20,60,70:3", {}),
    "an object": ("zoo/detector", None, {}),
    "mirror images": ("zoo/vit-views", None, {}),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_lines_make_the_same_explanation(question, controller, tmp_path, monkeypatch):
    """The program that a page shows, run as it is."""
    model, target, more = QUESTIONS[question]
    result = asked(controller, model, target, **more)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(result.code, "code", "exec"), names)
    found = names["explanation"]
    assert isinstance(found, hilrp.Explanation)
    torch.testing.assert_close(found.relevance, result.explanation.relevance, rtol=1e-5, atol=1e-7)
    endings = {p.name.split(".", 1)[1] for p in tmp_path.iterdir()}
    assert endings == {"json", "npz", "png", "details.png"}


@pytest.mark.parametrize("size", [(150, 250), (1500, 2500)], ids=["small", "large"])
def test_the_lines_of_an_uploaded_picture(size, controller, tmp_path, monkeypatch):
    """They need nothing but what hilrp documents, and save the figure of the page: the whole photograph."""
    session = begun(controller)
    noise = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(noise))
    controller.upload(session, [sent(tmp_path, "mine.png", content)])
    (tmp_path / "mine.png").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(session.result.code, "code", "exec"), names)
    assert torch.equal(names["x"], session.result.explanation.input)
    assert not re.search("hilrp.models|import Path|class_names", session.result.code)
    saved, exported = (Image.open(f) for f in (f"{session.result.name}.png", io.BytesIO(session.result.export("png"))))
    np.testing.assert_array_equal(np.asarray(saved), np.asarray(exported))


def test_exports(controller):
    result = asked(controller, "zoo/swin", "3")
    made = {kind: result.export(kind) for kind in KINDS}
    assert Image.open(io.BytesIO(made["png"])).height > 512
    assert made["pdf"].startswith(b"%PDF")
    assert b"<svg" in made["svg"]
    assert b"red ring" in made["svg"]  # letters, not outlines
    stored = np.load(io.BytesIO(made["npz"]))
    np.testing.assert_array_equal(stored["map"][0], result.explanation.map[0].numpy())
    facts = json.loads(made["json"])
    assert facts["score"] == result.explanation.score.tolist()
    assert (facts["model"], facts["explained"], facts["verdict"]) == ("zoo/swin", "red ring", ["valid"])
    assert made["py"].decode() == result.code
    sentence = result.explanation.sentence(0, result.loaded)
    assert escape(sentence) in re.sub("</?span.*?>", "", result.page)
    with pytest.raises(InputError, match="gif: choose from"):
        result.export("gif")


def test_exports_tell_of_the_passes(controller):
    result = asked(controller, "zoo/resnet", "3", passes=8)
    stored, facts = np.load(io.BytesIO(result.export("npz"))), json.loads(result.export("json"))
    assert (int(stored["passes"]), facts["passes"], facts["reference"]) == (8, 8, "mean")
    np.testing.assert_array_equal(stored["stderr"], result.explanation.stderr.numpy())
    assert ".explain(x, 3, passes=8)" in result.code
    assert "relative to the picture&#x27;s mean colour, 8 passes" in result.export("html").decode()
    assert result.name == "scene_14-red_ring-8_passes"
    assert "passes" not in asked(controller, "zoo/resnet", "3").code


def test_the_page_needs_nothing_else(controller):
    """Not even a connection: nothing in it has an address but what it holds itself."""
    text = asked(controller, "zoo/swin", "3").page
    addresses = [part.split('"')[0] for key in ('src="', 'href="', "url(") for part in text.split(key)[1:]]
    assert all(address.startswith("data:") for address in addresses)
    assert text.count("http") == text.count("http://www.w3.org/2000/svg")


def test_names_can_not_end_the_page(controller):
    """Names of files are anybody's."""
    session = begun(controller)
    picture = session.picture
    session.add(pictures.Picture("</script><script>alert(1)</script>.png", picture.image, "import os\n\nimage = 1"))
    controller.look(session)
    page = session.result.page
    assert "<script>alert" not in page
    assert set(session.result.name) <= set("abcdefghijklmnopqrstuvwxyz_0123456789-")


def test_data_can_not_end_a_script():
    assert "</script>" not in safe({"name": "</script>"})
    assert json.loads(safe({"name": "</script>"})) == {"name": "</script>"}


def test_bars_of_the_waterfall_follow_each_other(controller):
    """Each begins where the one before ended, and the last one is the score."""
    found = asked(controller, "zoo/swin", "3", rules="hilrp", reference=None).explanation
    bars = re.findall(r'<rect x="([0-9.-]+)" y="[0-9]+" width="([0-9.]+)"', waterfall(found))
    spans = [(float(x), float(x) + float(width)) for x, width in bars]
    values = [value for _, value in shares(found, 0)]
    assert len(spans) == len(values) + 1
    scale = (spans[-1][1] - spans[-1][0]) / float(found.score[0])
    start = spans[-1][0]
    for (left, right), value in zip(spans, values, strict=False):
        assert (left, right) == pytest.approx(sorted((start, start + scale * value)), abs=1.1)
        start += scale * value


def test_results_hold_no_graph(controller):
    """Nor anything on another device."""
    found = asked(controller, "zoo/swin", "3").explanation
    assert all(t.grad_fn is None and not t.requires_grad and t.device.type == "cpu" for t in tensors(found))


def test_the_true_object_is_known_of_scenes(controller):
    result = asked(controller, "zoo/swin", "3")
    scene = pictures.scene(pictures.FIRST).scene
    assert np.array_equal(result.truth.numpy(), scene.mask(3))
    missing = next(i for i in range(12) if not scene.mask(i).any())
    assert asked(controller, "zoo/swin", str(missing)).truth is None


def test_what_can_not_be_asked(controller):
    session = begun(controller)
    session.against = session.target
    with pytest.raises(InputError, match="contrasted with itself"):
        controller.explain(session)
    with pytest.raises(InputError, match="no text tower"):
        asked(controller, "zoo/swin", "text:a star")
    with pytest.raises(InputError, match="nothing to explain yet"):
        controller.explain(Session())
    with pytest.raises(InputError, match="no model yet"):
        controller.look(Session())


def test_long_names_of_models_are_shown_whole(controller):
    """A box shows the beginning of a name; below it stands all of it."""
    session = begun(controller)
    assert components.models(session, ["zoo/swin"]).info is None
    session.loaded = replace(session.loaded, name="timm/tiny_vit_5m_224.dist_in22k_ft_in1k")
    shown = components.models(session, ["zoo/swin"])
    assert shown.info == shown.value == session.loaded.name
    assert [name for name, _ in shown.choices] == [session.loaded.name, "zoo/swin"]


def test_a_model_without_a_picture_asks_for_one(controller):
    session = begun(controller)
    assert components.wanted(session) == ""
    controller.remove(session)
    assert "zoo/swin is ready. Drop a picture" in components.wanted(session)
