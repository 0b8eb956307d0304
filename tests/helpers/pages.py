"""What tests of the page share: a controller, sessions, files that were sent."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("gradio")


from hilrp.app import pictures
from hilrp.app.controller import Controller
from hilrp.app.results import Result
from hilrp.app.sessions import Session
from hilrp.app.uploads import Uploads


def begun(controller: Controller, model: str = "zoo/swin") -> Session:
    session = Session()
    session.add(pictures.scene(pictures.FIRST))
    controller.model(session, model)
    return session


def asked(controller: Controller, model: str, target: str | None = None, **more: str | int | None) -> Result:
    session = begun(controller, model)
    session.target = target or session.target
    controller.ask(session, **more)
    assert session.result is not None
    return session.result


def sent(folder: Path, name: str, content: bytes) -> Path:
    """A file as Gradio keeps one that was uploaded: in a folder of its own."""
    path = folder / "3f2a" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


def uploaded(uploads: Uploads, name: str, content: bytes, client: str = "") -> Path:
    """A file that somebody has sent and no tab has named."""
    upload = uploads.reserve(client, len(content))
    path = upload.folder / name
    path.write_bytes(content)
    uploads.arrived(upload, [path])
    return path


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()
