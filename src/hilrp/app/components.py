"""Values of single components of the page, from a session."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from hilrp.app.answers import STANDS_FOR_NONE
from hilrp.app.problems import shown
from hilrp.app.relative import REFERENCES, reference_of
from hilrp.app.results import KINDS
from hilrp.app.sessions import Session
from hilrp.pages.words import fewest_with_errors

#: A name that is longer is cut off in its box.
_LONG = 26


def references(session: Session, **more: Any) -> Any:
    """What the score can be compared with; with nothing, where the rules don't need a reference."""
    nothing = [] if reference_of(session.rules) else [("nothing: explain the score itself", "")]
    answers = session.loaded is not None and session.loaded.processor is not None
    known = STANDS_FOR_NONE if answers else REFERENCES
    offered = [*nothing, *((words, name) for name, words in known.items())]
    return gr.Dropdown(offered, value=session.reference or "", **more)


def models(session: Session, offered: list[str]) -> Any:
    """The models that there are, with the user's own and one that was fetched; a long name is shown whole below."""
    names, current = [*session.own, *offered], current_model(session)
    names = names if current in names or current is None else [current, *names]
    return gr.Dropdown(names, value=current, info=current if current and len(current) > _LONG else None)


def current_model(session: Session) -> str | None:
    """What the model is called on the page."""
    mine = next((name for name, own in session.own.items() if own.loaded is session.loaded), None)
    return mine or (session.loaded.name if session.loaded is not None else None)


def passes(session: Session) -> Any:
    """How many passes can be spent; where it is one, why."""
    relative = session.reference is not None
    info = (
        f"More take longer, and say more exactly what each part is worth to the model; from {fewest_with_errors()} on, "
        "with errors."
        if relative
        else "One: more passes need something to compare with. Choose it above, or the rules secant."
    )
    return gr.Radio(value=session.passes, interactive=relative, info=info)


def said(problems: list[str]) -> str:
    """What is wrong, above the explanation."""
    return "".join(f'<div class="problem" role="alert">{escape(shown(problem))}</div>' for problem in problems)


def wanted(session: Session) -> str:
    """What is still wanted before there is anything to see: a picture."""
    if session.picture is not None or session.loaded is None:
        return ""
    name = escape(session.loaded.name)
    return f'<div class="notice">{name} is ready. Drop a picture to see what it says, and why.</div>'


def frame(token: str) -> str:
    """The frame that shows an explanation."""
    return f'<iframe class="viewer" title="The explanation" src="./explanation/{token}"></iframe>'


def links(token: str) -> str:
    """What an explanation can be exported as."""
    links = "".join(
        f'<a class="export" href="./export/{token}/{kind}" download>{kind.upper()}<span>{about}</span></a>'
        for kind, (_, about) in KINDS.items()
    )
    return f'<div class="links">{links}</div>'


def marks(session: Session) -> str:
    """Bars behind the predictions, and thumbnails on the pictures."""
    choices = session.prediction.choices if session.prediction is not None else ()
    rules = [
        f"#predictions label:nth-of-type({i}) {{ background: linear-gradient(90deg, "
        f"var(--faint) {100 * choice.part:.1f}%, var(--sunken) {100 * choice.part:.1f}%) !important; }}"
        for i, choice in enumerate(choices, 1)
    ]
    rules += [
        f"#pictures label:nth-of-type({i}) {{ background-image: url(./thumbnail/{token}) !important; }}"
        for i, token in enumerate(session.pictures, 1)
    ]
    return f"<style>{' '.join(rules)}</style>"
