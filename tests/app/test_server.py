"""The page without its face: comparisons, several people, and what is sent to a browser."""

from __future__ import annotations

import io
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("gradio")

import gradio as gr
from fastapi.testclient import TestClient

import hilrp
from helpers.pages import asked, begun, encoded, sent, uploaded
from hilrp.app import pictures
from hilrp.app.actions import Actions
from hilrp.app.blocks import build
from hilrp.app.comparison import Compared, Stoppable, compare
from hilrp.app.components import passes, references
from hilrp.app.models import Models
from hilrp.app.relative import PASSES, REFERENCES
from hilrp.app.server import make_app, serve
from hilrp.app.sessions import Session, Sessions
from hilrp.app.stopping import Stopped
from hilrp.app.table import comparison_table
from hilrp.app.uploads import Uploads
from hilrp.attribution.chains import Chains
from hilrp.attribution.references import NAMED
from hilrp.jobs.bench.methods import METHODS, Method
from hilrp.util.errors import InputError

# Comparisons ----------------------------------------------------------------------------------------------------------


def test_a_comparison(controller):
    session = begun(controller, "zoo/resnet")
    result = controller.comparable(session)
    *_, found = controller.compare(session, result, ["secant", "input-x-gradient", "rollout", "uniform"])
    ours, gradient, rollout, uniform = found
    np.testing.assert_allclose(ours.map, result.explanation.map[0].numpy(), rtol=1e-4, atol=1e-6)
    assert ours.total == pytest.approx(float(result.explanation.ledger.explained[0]), rel=1e-4)
    assert set(gradient.figures) == {"pointing", "energy", "average precision", "IoU"}
    inside = result.truth.numpy()
    positive = np.clip(gradient.map, 0, None)
    assert gradient.figures["energy"] == pytest.approx(positive[inside].sum() / positive.sum(), rel=1e-5)
    assert rollout.map is None
    assert rollout.error
    assert uniform.total is None
    assert all(each.seconds > 0 and each.passes > 0 for each in (ours, gradient, uniform))


def test_without_truth_there_are_no_marks(controller, tmp_path):
    session = begun(controller, "zoo/resnet")
    controller.upload(session, [sent(tmp_path, "mine.png", encoded(Image.new("RGB", (128, 128), "red")))])
    *_, found = controller.compare(session, controller.comparable(session), ["hilrp"])
    assert found[0].figures == {}


def test_contrasts_are_not_compared(controller):
    session = begun(controller)
    session.against = "1" if session.target != "1" else "2"
    controller.explain(session)
    with pytest.raises(InputError, match="no other class"):
        controller.comparable(session)
    with pytest.raises(InputError, match="No method"):
        next(controller.compare(begun(controller), controller.comparable(begun(controller)), []))


def test_a_comparison_ends_when_nobody_waits(controller, monkeypatch):
    """In the midst of a method, too."""

    def endless(model, x, target):
        while True:
            x = torch.sin(x)

    monkeypatch.setitem(METHODS, "endless", Method("endless", "endless", "gradient", endless))
    session = begun(controller)
    result = controller.comparable(session)
    run = controller.compare(session, result, ["hilrp", "endless", "saliency"])
    assert len(next(run)) == 1
    threading.Timer(0.5, lambda: session.stop.set()).start()
    assert list(run) == []
    assert not controller._turn.locked()


def test_methods_take_turns(controller, monkeypatch):
    """The model runs in nobody else's turn: hooks of other libraries see every thread."""
    session = begun(controller, "zoo/resnet")
    result = controller.comparable(session)
    outside = []
    hook = result.loaded.model.register_forward_hook(lambda *_: outside.append(controller._turn.locked()))
    try:
        list(controller.compare(session, result, ["hilrp", "saliency"]))
    finally:
        hook.remove()
    assert len(outside) > 4
    assert all(outside)


def test_costs_are_in_passes_of_the_model(controller, monkeypatch):
    times = iter([3.0, 2.0, 4.0, 6.0])
    monkeypatch.setattr("hilrp.app.comparison._timed", lambda run, x: (next(times), run()))
    session = begun(controller, "zoo/resnet")
    *_, found = controller.compare(session, controller.comparable(session), ["hilrp"])
    assert (found[0].seconds, found[0].passes) == (6.0, 3.0)


def test_the_table_of_a_comparison(controller):
    result = asked(controller, "zoo/resnet", "3")
    maps = np.zeros((128, 128))
    good = Compared(METHODS["hilrp"], maps, 0.5, 2.0, 0.9, {"pointing": 1.0, "energy": 0.8})
    bad = Compared(METHODS["saliency"], maps, 0.1, 1.0, None, {"pointing": 0.0, "energy": 0.3})
    none = Compared(METHODS["rollout"], error="no <b>attention</b>")
    text = comparison_table([good, bad, none], result, ["lime"])
    assert text.count("<td class=best>") == 2
    assert "<td class=best>0.80</td>" in text
    assert "no &lt;b&gt;attention" in text
    assert "Now LIME; 3 of 4 are done" in text
    assert "Stopped" in comparison_table([good], result, stopped=True)
    difference = float(result.explanation.ledger.explained[0])
    assert f"its difference to that on the picture&#x27;s mean colour {difference:.2f}" in text


def test_a_stoppable_pass_is_the_same_pass():
    loaded = hilrp.load("zoo/swin")
    x = loaded.batch([pictures.scene(3).image])
    plain = hilrp.explain(loaded.model, x, 3)
    stop = threading.Event()
    with Stoppable(stop):
        watched = hilrp.explain(loaded.model, x, 3)
    assert torch.equal(plain.relevance, watched.relevance)
    stop.set()
    with pytest.raises(Stopped), Stoppable(stop):
        loaded.model(x)


def test_a_method_that_fails_does_not_keep_the_others():
    """captum and its kin raise what they like."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3)).eval()
    x = torch.randn(1, 3, 4, 4)
    found = list(compare(model, x, 0, ["grad-cam", "hilrp"], None, threading.Event(), threading.Lock))
    assert found[0].error
    assert found[1].map.shape == (4, 4)


# Several people -------------------------------------------------------------------------------------------------------


def test_tabs_are_apart(controller):
    sessions = Sessions()
    first, second = sessions.of("a"), sessions.of("b")
    assert sessions.of("a") is first
    for session, index in ((first, 3), (second, 4)):
        session.add(pictures.scene(index))
        session.loaded = controller.models.get("zoo/swin")
    threads = [threading.Thread(target=controller.look, args=(session,)) for session in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session, index in ((first, 3), (second, 4)):
        alone = Session()
        alone.add(pictures.scene(index))
        controller.model(alone, "zoo/swin")
        assert torch.equal(session.result.explanation.relevance, alone.result.explanation.relevance)
        assert sessions.result(session.result.token) is session.result
    stop = first.stop
    sessions.close("a")
    assert stop.is_set()
    assert sessions.result(first.result.token) is None
    assert sessions.picture(first.picture.token) is None
    assert sessions.result(second.result.token) is second.result


def test_what_a_closed_tab_waits_for_ends(controller):
    """At the next layer of the model: not when the whole of it is done."""
    session = begun(controller, "zoo/resnet")
    before, done = session.result, []
    layers = [module for module in session.loaded.model.modules() if isinstance(module, torch.nn.Conv2d)]
    hooks = [
        layers[2].register_forward_hook(lambda *_: session.end()),
        layers[-1].register_forward_hook(lambda *_: done.append("the last layer")),
    ]
    try:
        for act in (controller.explain, controller.look):
            session.gone.clear()
            with pytest.raises(Stopped):
                act(session)
    finally:
        for hook in hooks:
            hook.remove()
    assert done == []
    assert session.result is before
    assert not controller._turn.locked()


def test_passes_can_be_cancelled(controller):
    """Before all are done; then everything is as it was."""
    session = begun(controller, "zoo/resnet")
    before, told = session.result, []

    def tell(done: int, count: int) -> None:
        told.append((done, count))
        if done == 3:
            session.cancelled.set()

    session.progress = tell
    with pytest.raises(Stopped):
        controller.ask(session, passes=16)
    assert told == [(1, 16), (2, 16), (3, 16)]
    assert (session.passes, session.result) == (1, before)
    assert not controller._turn.locked()
    controller.explain(session)  # one pass is not cancelled
    assert session.result is not before


def test_a_picture_whose_passes_are_cancelled_has_one(controller):
    """There was no explanation of it before that could be shown."""
    session = begun(controller, "zoo/resnet")
    session.passes = 16
    session.progress = lambda done, count: session.cancelled.set()
    with pytest.raises(Stopped):
        controller.scene(session, 4)
    assert session.result.picture is session.picture
    assert (session.passes, session.result.explanation.passes) == (1, 1)


def test_passes_need_a_reference(controller):
    """Where there is none, the page says so."""
    session = begun(controller, "zoo/resnet")
    assert passes(session).interactive
    assert [name for _, name in references(session).choices] == list(REFERENCES)
    controller.ask(session, rules="hilrp", reference=None)
    assert not passes(session).interactive
    assert "more passes need something to compare with" in passes(session).info
    assert [name for _, name in references(session).choices] == ["", *REFERENCES]


def test_what_is_offered_is_there():
    assert set(REFERENCES) <= set(NAMED)
    assert [Chains.of(count).passes for count in PASSES] == list(PASSES)


def test_a_closed_tab_does_not_take_its_turn(controller):
    session = begun(controller, "zoo/resnet")
    found, before = [], session.result

    def wait() -> None:
        try:
            controller.explain(session)
        except Stopped:
            found.append("stopped")

    with controller._turn:
        thread = threading.Thread(target=wait)
        thread.start()
        session.end()
    thread.join(20)
    assert found == ["stopped"]
    assert session.result is before


def test_old_results_and_tabs_are_forgotten(controller):
    session = begun(controller)
    first = session.result.token
    for _ in range(8):
        controller.explain(session)
    assert first not in session.results
    sessions = Sessions()
    oldest = sessions.of("0")
    for i in range(1, 70):
        sessions.of(str(i))
    assert len(sessions) == 64
    assert sessions.of("0") is not oldest


# What is sent ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(controller, tmp_path_factory) -> TestClient:
    return TestClient(make_app(controller.models, tmp_path_factory.mktemp("uploads")), base_url="http://localhost:7860")


def test_the_browser_is_told_to_ask_nobody_else(client):
    answer = client.get("/")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert "fonts.g" not in answer.text
    assert '"analytics_enabled":false' in answer.text.replace(" ", "").lower()


@pytest.mark.parametrize(
    ("host", "token", "expected"),
    [("127.0.0.1", None, False), ("127.0.0.1", True, True), ("127.0.0.2", None, True), ("127.0.0.2", False, False)],
)
def test_beyond_this_machine_there_is_a_token(monkeypatch, host, token, expected):
    """It is in the address that is printed, another one each time."""
    made, addresses = [], []
    monkeypatch.setattr("hilrp.app.server.make_app", lambda models, folder, host, token, start: made.append(token))
    monkeypatch.setattr("uvicorn.Server.run", lambda self, sockets: [each.close() for each in sockets])
    for _ in range(2):
        serve(Models(), host, 0, addresses.append, token)
    if not expected:
        assert made == [None, None]
        assert not any("token" in address for address in addresses)
        return
    assert all(address.endswith(f"/?token={each}") for each, address in zip(made, addresses, strict=True))
    assert made[0] != made[1]
    assert min(len(each) for each in made) >= 32


def test_other_names_of_this_machine_are_refused(client):
    """A page elsewhere whose name is made to lead here must not read what is here."""
    assert client.get("/", headers={"host": "evil.example:7860"}).status_code == 403
    assert client.get("/", headers={"host": "127.0.0.1:7860"}).status_code == 200
    assert client.get("/", headers={"host": "[::1]:7860"}).status_code == 200


def test_other_pages_can_send_nothing(client):
    files = {"files": ("a.png", b"x")}
    refused = client.post("/gradio_api/upload", files=files, headers={"origin": "https://evil.example"})
    assert refused.status_code == 403
    assert (
        client.post("/gradio_api/upload", files=files, headers={"origin": "http://localhost:7860"}).status_code == 200
    )


def test_there_is_an_end_to_what_is_sent(client, monkeypatch):
    monkeypatch.setattr(client.app.state.uploads, "total", 0)
    assert client.post("/gradio_api/upload", files={"files": ("a.png", b"x")}).status_code == 413


def test_files_that_were_not_sent_are_not_touched(controller, tmp_path):
    """Whatever a request says: a path in it is anybody's."""
    outside = sent(tmp_path, "secret.png", encoded(Image.new("RGB", (8, 8))))
    actions, session = Actions(controller, Uploads(tmp_path / "uploads")), begun(controller)
    for act in (
        lambda: actions.upload(session, [str(outside)]),
        lambda: actions.upload(session, [str(tmp_path / "uploads" / ".." / "3f2a" / "secret.png")]),
        lambda: actions.weights(session, "zoo/resnet", str(outside), None),
        lambda: actions.note(session, str(outside)),
    ):
        with pytest.raises(InputError, match="not sent from this page"):
            act()
    assert outside.exists()


def test_what_was_sent_goes_with_the_tab(controller, tmp_path):
    sessions, uploads = Sessions(), Uploads(tmp_path)
    actions = Actions(controller, uploads)
    path = uploaded(uploads, "mine.safetensors", b"x")
    actions.note(sessions.of("a"), str(path))
    assert path.exists()
    sessions.close("a")
    assert not path.exists()


def test_a_list_that_is_entered_and_left_asks_nothing(controller, tmp_path):
    """Gradio reports it as it reports a choice: what the list shows already."""
    sessions = Sessions()
    actions = Actions(controller, Uploads(tmp_path))
    page, session = build(actions, sessions), sessions.of("a-tab-of-mine", "here")
    controller.begin(session)
    actions.label(session, "blue cross")
    before = session.result
    ids = {block.elem_id: number for number, block in page.blocks.items()}
    events = {target: each.fn for each in page.fns.values() for target in each.targets}
    tab = SimpleNamespace(session_hash="a-tab-of-mine")

    def said(name, value):
        answer = events[ids[name], "input"](tab, None, value)
        return {part.elem_id: shown for part, shown in answer.items()}

    label = str(session.loaded.index("blue cross"))
    for name, value in (("scene", 14), ("model", session.loaded.name), ("label", label), ("reference", "mean")):
        assert said(name, value) == {"status": gr.skip()}
    assert session.result is before
    assert said("scene", None)["status"] == ""
    assert said("label", "0")["label"].value == "0"
    assert said("reference", "black")["reference"].value == "black"
    assert session.result is not before


@pytest.mark.parametrize("box", ["/etc/passwd", "1,2,3", "1,2,3,4,5", "", "a, b, c, d"])
def test_regions_are_four_numbers(controller, tmp_path, box):
    """A mask's file, which the command line takes, is not for a page."""
    session = begun(controller, "zoo/segmenter")
    before = session.target
    with pytest.raises(InputError, match="give left, top, right and bottom"):
        Actions(controller, Uploads(tmp_path)).region(session, box)
    assert session.target == before


def test_actions(controller, tmp_path):
    actions, session = Actions(controller, Uploads(tmp_path)), begun(controller)
    actions.against(session, "yellow star")
    assert session.result.title == "red ring rather than yellow star"
    actions.predicted(session, "8")
    assert session.result.title == "blue cross"
    actions.label(session, "red star")
    assert session.result.title == "red star"
    assert (session.rules, session.reference, session.passes) == ("secant", "mean", 1)
    actions.reference(session, "grey")
    (colour,) = set(session.loaded.preprocess.picture(session.result.explanation.reference).flatten().tolist())
    assert colour == pytest.approx(0.5)
    actions.passes(session, 8)
    assert session.result.explanation.passes == 8
    actions.reference(session, "black")
    assert (session.passes, session.result.explanation.passes) == (8, 8)
    actions.rules(session, "zplus")
    assert (session.reference, session.passes, session.result.explanation.reference) == (None, 1, None)
    with pytest.raises(InputError, match=r"Rules zplus relative to grey: .* no form relative to a reference"):
        actions.reference(session, "grey")
    assert (session.rules, session.reference) == ("zplus", None)
    with pytest.raises(InputError, match="passes 3: choose from 1, 4, 8"):
        actions.passes(session, 3)
    actions.rules(session, "secant")
    assert session.reference == "mean"
    with pytest.raises(InputError):
        actions.caption(session, "a star")
    assert session.target == "0"
    controller.remove(session)
    assert session.picture is None
    assert session.result is None
    controller.model(segmented := begun(controller), "zoo/segmenter")
    actions.region(segmented, "20, 20, 60, 70")
    actions.label(segmented, "red ring")
    assert segmented.target == "region:20,20,60,70:3"
    controller.model(segmented, "zoo/detector")
    actions.label(segmented, "blue cross")
    assert segmented.result.title == "blue cross"


def test_a_model_that_fails_leaves_everything_as_it_was(controller, monkeypatch):
    session = begun(controller)
    before, result = session.loaded, session.result
    monkeypatch.setattr("hilrp.app.controller.predict", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        controller.model(session, "zoo/resnet")
    assert (session.loaded, session.result) == (before, result)


def test_results_are_sent_to_who_knows_their_token(client, controller):
    session = begun(controller)
    client.app.state.sessions._open["tab"] = session
    token, picture = session.result.token, session.picture.token
    assert client.get(f"/explanation/{token}").text == session.result.page
    answer = client.get(f"/export/{token}/npz")
    assert answer.headers["content-disposition"].startswith(f'attachment; filename="{session.result.name}.npz"')
    assert answer.headers["cache-control"] == "no-store"
    assert Image.open(io.BytesIO(client.get(f"/thumbnail/{picture}").content)).size == (128, 128)
    session.add(pictures.Picture("Größe 猫.png", session.picture.image, "\n\nimage = 1"))
    controller.look(session)
    named = client.get(f"/export/{session.result.token}/json").headers["content-disposition"]
    assert named.endswith("filename*=UTF-8''Gr%C3%B6%C3%9Fe_%E7%8C%AB-red_ring.json")
    client.app.state.sessions.close("tab")
    for path in (f"/explanation/{token}", f"/export/{token}/npz", f"/thumbnail/{picture}", "/explanation/x"):
        assert client.get(path).status_code == 404
