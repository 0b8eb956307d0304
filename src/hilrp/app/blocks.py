"""What is on the page: Gradio's components, and what each of them asks of the controller."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from hilrp.app.actions import Actions
from hilrp.app.answers import ASK
from hilrp.app.comparison import CHOSEN, Compared, choices
from hilrp.app.components import current_model, frame, links, marks, models, passes, references, said, wanted
from hilrp.app.controller import not_comparable
from hilrp.app.pictures import scenes
from hilrp.app.relative import PASSES
from hilrp.app.results import Result
from hilrp.app.sessions import Session, Sessions
from hilrp.app.stopping import Stopped
from hilrp.app.table import comparison_table
from hilrp.method.rules import PRESETS
from hilrp.util.errors import HilrpError

#: So many classes are offered by name; others can be typed.
_OFFERED = 1000
_NOTHING = "no other class"
#: Gradio finds it among a handler's defaults, and shows what it is told.
_PROGRESS = gr.Progress()


def build(actions: Actions, sessions: Sessions) -> gr.Blocks:
    """The whole page."""
    page = _Page(actions, sessions)
    page.wire()
    return page.blocks


class _Page:
    """The components, by what they are; each handler changes a session and then shows it."""

    def __init__(self, actions: Actions, sessions: Sessions) -> None:
        self.actions, self.controller, self.sessions = actions, actions.controller, sessions
        with gr.Blocks(title="HiLRP", analytics_enabled=False, fill_width=True) as self.blocks:
            gr.HTML(
                '<div id="head"><b>HiLRP</b> How much higher a score is on this picture than on one that shows '
                "nothing, and where in the picture the difference comes from. "
                "Pictures stay on this machine and are forgotten when the tab is closed.</div>"
            )
            with gr.Row():
                with gr.Column(scale=1, min_width=300):
                    self._pictures()
                    self._models()
                with gr.Column(scale=3, min_width=320):
                    self.status = gr.HTML(elem_id="status")
                    self._questions()
                    with gr.Tabs():
                        with gr.Tab("Explanation"):
                            self.cancel = gr.Button("Cancel", size="sm", elem_id="cancel-passes")
                            self.viewer = gr.HTML(elem_id="viewer")
                        with gr.Tab("Compare methods"):
                            self._comparison()
                        with gr.Tab("Export"):
                            self.exports = gr.HTML(elem_id="exports")
                            self.code = gr.Code(
                                label="The same in Python",
                                language="python",
                                interactive=False,
                                wrap_lines=True,
                                elem_id="code",
                            )
            self.style = gr.HTML(elem_id="marks")

    def _pictures(self) -> None:
        self.files = gr.File(label="Drop pictures here", file_count="multiple", height=150, elem_id="upload")
        self.scene = gr.Dropdown(scenes(), value=None, label="or take a scene whose truth is known", elem_id="scene")
        self.pictures = gr.Radio([], label="Pictures", elem_id="pictures")
        self.remove = gr.Button("Remove this picture", size="sm", elem_id="remove")

    def _models(self) -> None:
        names = self.controller.models.names()
        self.model = gr.Dropdown(names, value=names[0], label="Model", elem_id="model")
        self.published = gr.Textbox(
            label="or a published one",
            placeholder="swin_tiny_patch4_window7_224",
            info="A name of timm, torchvision, transformers or open_clip, then Enter. Its weights are fetched, "
            "which needs a connection the first time.",
            elem_id="published",
        )
        start = Session(**vars(self.sessions.start))
        self.reference = references(start, label="Compare the score with that on", elem_id="reference")
        self.passes = gr.Radio(PASSES, value=start.passes, label="Passes", elem_id="passes")
        with gr.Accordion("Weights of your own", open=False):
            self.architecture = gr.Textbox(
                label="Architecture", placeholder="resnet50, zoo/resnet, ...", elem_id="architecture"
            )
            self.checkpoint = gr.File(label="Checkpoint (safetensors, torch.save)", height=100, elem_id="checkpoint")
            self.classes = gr.File(
                label="Names of its classes: a text file, one per line", height=100, elem_id="classes"
            )
            self.load = gr.Button("Load these weights", elem_id="load")
        with gr.Accordion("Rules", open=False):
            self.rules = gr.Dropdown(
                list(PRESETS),
                value=start.rules,
                label="Rules",
                info="secant adds up to the difference. hilrp is the paper\u2019s: it splits the score itself, and "
                "constants of the model keep a part.",
                elem_id="rules",
            )

    def _questions(self) -> None:
        with gr.Row():
            with gr.Column(scale=3, min_width=260):
                self.predictions = gr.Radio([], label="What the model says: click to explain", elem_id="predictions")
            with gr.Column(scale=2, min_width=220):
                self.label = gr.Dropdown([], label="Any class", elem_id="label", visible=False)
                self.against = gr.Dropdown([], label="rather than", elem_id="against", visible=False)
                self.region = gr.Textbox(
                    label="Region: left, top, right, bottom",
                    info="Or drag a rectangle on the map.",
                    elem_id="region",
                    visible=False,
                )
                self.question = gr.Textbox(
                    label="Question",
                    placeholder="what colour is the ring?",
                    info="Enter asks it.",
                    elem_id="question",
                    visible=False,
                )
                self.caption = gr.Textbox(
                    label="Caption",
                    placeholder="a striped red star",
                    info="Enter explains it.",
                    elem_id="caption",
                    visible=False,
                )

    def _comparison(self) -> None:
        self.methods = gr.CheckboxGroup(choices(), value=list(CHOSEN), label="Methods", elem_id="methods")
        with gr.Row():
            self.compare = gr.Button("Compare on the class that is explained", variant="primary", elem_id="compare")
            self.stop = gr.Button("Cancel", elem_id="cancel")
        self.why = gr.HTML(elem_id="why")
        self.compared = gr.HTML(elem_id="compared")

    # What is done ---------------------------------------------------------------------------------------------------

    def wire(self) -> None:
        """Connects components and controller."""
        controller, do = self.controller, self.actions
        with self.blocks:
            self._on(self.blocks.load, controller.begin, [])
            self._on(self.files.upload, do.upload, [self.files], clears=[self.files])
            self._on(self.scene.input, do.scene, [self.scene])
            self._on(self.pictures.input, controller.choose, [self.pictures])
            self._on(self.remove.click, controller.remove, [])
            self._on(self.model.input, controller.model, [self.model])
            self._on(self.published.submit, controller.model, [self.published])
            weights = [self.checkpoint, self.classes]
            for component in weights:
                component.upload(self._note, [component], [], api_visibility="private")
            self._on(self.load.click, do.weights, [self.architecture, *weights], clears=weights)
            self._on(self.predictions.input, do.predicted, [self.predictions])
            self._on(self.label.input, do.label, [self.label])
            self._on(self.against.input, do.against, [self.against])
            self._on(self.region.submit, do.region, [self.region])
            self._on(self.caption.submit, do.caption, [self.caption])
            self._on(self.question.submit, do.question, [self.question])
            self._on(self.rules.input, do.rules, [self.rules])
            self._on(self.reference.input, do.reference, [self.reference])
            self._on(self.passes.input, do.passes, [self.passes])
            self.cancel.click(self._cancel, [], [], queue=False, api_visibility="private")
            # The order to stop is renewed at once: one that comes while this waits in the queue is heeded.
            begun = self.compare.click(self._renew, [], [], queue=False, api_visibility="private")
            begun.then(self._compare, [self.methods], [self.compared], api_visibility="private", concurrency_limit=8)
            self.stop.click(self._stop, [], [], queue=False, api_visibility="private")
            self.blocks.unload(self._close)

    def _on(
        self, event: Callable[..., Any], action: Callable[..., Any], inputs: list[Any], clears: Sequence[Any] = ()
    ) -> None:
        """Lets an event change the session of its tab; what is wrong is told above the explanation."""

        def handle(request: gr.Request, progress: Any = _PROGRESS, *values: Any) -> dict[Any, Any]:
            session = self._session(request)
            with session.lock:
                if session.gone.is_set():
                    return {self.status: ""}
                # Gradio says so of a list, too, that was entered and left.
                if values and (inputs[0], values[0]) in self._listed(session).items():
                    return {self.status: gr.skip()}
                session.stop.set()  # a comparison is of what was there before
                session.cancelled.clear()
                session.progress = lambda done, count: progress((done, count), desc="Running the model", unit="passes")
                try:
                    problems = action(session, *values) or []
                except Stopped:
                    if session.gone.is_set():
                        return {self.status: ""}
                    problems = ["Cancelled. The page shows the last explanation that was finished."]
                except HilrpError as error:
                    problems = [str(error)]
                except Exception as error:  # models are anybody's
                    if session.gone.is_set():
                        return {self.status: ""}
                    traceback.print_exc()
                    problems = [f"{type(error).__name__}: {error} (what led to it is printed where hilrp serve runs)"]
                return self._shown(session, problems) | dict.fromkeys(clears)

        event(
            handle,
            inputs,
            self._outputs,
            api_visibility="private",
            concurrency_limit=8,
            trigger_mode="always_last",
            show_progress="minimal",
            show_progress_on=[self.viewer],
        )

    def _session(self, request: gr.Request) -> Session:
        session = self.sessions.find(str(request.session_hash))
        if session is None:
            raise gr.Error("This tab is not known. Load the page again.", print_exception=False)
        return session

    def _note(self, request: gr.Request, file: str | None) -> None:
        self.actions.note(self._session(request), file)

    def _renew(self, request: gr.Request) -> None:
        session = self._session(request)
        session.stop.set()
        session.stop = threading.Event()

    def _compare(self, request: gr.Request, names: list[str], progress: Any = _PROGRESS) -> Iterator[str]:
        session = self._session(request)
        stop = session.stop
        found: list[Compared] = []
        try:
            result = self.controller.comparable(session)
            progress(0.0, desc="waiting for its turn")
            for found in self.controller.compare(session, result, names):
                progress((len(found), len(names)), desc=f"{found[-1].method.title} done", unit="methods")
                yield comparison_table(found, result, names[len(found) :])
        except HilrpError as error:
            yield said([str(error)])
            return
        if stop.is_set():
            yield comparison_table(found, result, stopped=True) if found else said(["Stopped."])

    def _stop(self, request: gr.Request) -> None:
        self._session(request).stop.set()

    def _cancel(self, request: gr.Request) -> None:
        self._session(request).cancelled.set()

    def _close(self, request: gr.Request) -> None:
        self.sessions.close(str(request.session_hash))

    # What is shown --------------------------------------------------------------------------------------------------

    @property
    def _outputs(self) -> list[Any]:
        return [
            self.status, self.style, self.files, self.scene, self.pictures, self.model, self.checkpoint, self.classes,
            self.predictions, self.label, self.against, self.region, self.caption, self.question, self.rules,
            self.reference, self.passes, self.viewer, self.exports, self.code, self.compared, self.compare, self.why,
        ]  # fmt: skip

    def _listed(self, session: Session) -> dict[Any, Any]:
        """What each list shows."""
        result, label = session.result, None
        if isinstance(result, Result) and result.explanation.target is not None:
            label = str(int(result.explanation.target[0]))
        if session.prediction is not None and session.prediction.kind == "regions" and session.target is not None:
            label = session.target.rpartition(":")[2]
        return {
            self.scene: None if session.picture is None else session.picture.number,
            self.model: current_model(session),
            self.label: label,
            self.against: session.against or "",
            self.rules: session.rules,
            self.reference: session.reference or "",
        }

    def _shown(self, session: Session, problems: list[str]) -> dict[Any, Any]:
        """All components as the session has them."""
        prediction, loaded, result = session.prediction, session.loaded, session.result
        offered = prediction.choices if prediction is not None else []
        kind = prediction.kind if prediction is not None else ""
        known = list(enumerate(loaded.classes or ())) if loaded is not None else []
        names = [(name, str(i)) for i, name in known[:_OFFERED]]
        listed = self._listed(session)
        typed = len(known) > _OFFERED
        clicked = any(c.target == session.target for c in offered)
        box = session.target.split(":")[1] if session.target and session.target.startswith("region:") else ""
        return {
            self.status: said(problems) + wanted(session),
            self.style: marks(session),
            self.pictures: gr.Radio(
                [(p.name, token) for token, p in session.pictures.items()],
                value=session.picture.token if session.picture else None,
            ),
            self.scene: gr.update(value=listed[self.scene], visible=loaded is None or loaded.of_zoo),
            self.model: models(session, self.controller.models.names()),
            self.predictions: gr.Radio(
                [(f"{c.name} ({c.figure})" if c.figure else c.name, c.target) for c in offered],
                value=session.target if clicked and session.against is None else None,
                label="Click to ask" if kind == "answers" else "What the model says: click to explain",
            ),
            self.label: gr.Dropdown(
                names,
                value=listed[self.label],
                allow_custom_value=typed,
                visible=kind in ("classes", "regions", "objects"),
            ),
            self.against: gr.Dropdown(
                [(_NOTHING, ""), *names],
                value=listed[self.against],
                allow_custom_value=typed,
                visible=kind == "classes",
            ),
            self.compare: gr.Button(interactive=not not_comparable(session)),
            self.why: f'<p class="soft">{not_comparable(session)}</p>' if not_comparable(session) else "",
            self.region: gr.Textbox(value=box.replace(",", ", "), visible=kind == "regions"),
            self.caption: gr.Textbox(visible=loaded is not None and loaded.texts is not None),
            self.question: gr.Textbox(
                value=(session.target or "").removeprefix(ASK) if kind == "answers" else "", visible=kind == "answers"
            ),
            self.rules: session.rules,
            self.reference: references(session),
            self.passes: passes(session),
            self.viewer: "" if result is None else frame(result.token),
            self.exports: "" if result is None else links(result.token),
            self.code: "" if result is None else result.code,
            self.compared: "",
        }
