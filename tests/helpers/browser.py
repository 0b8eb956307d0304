"""What tests in a browser share: the browser, and a mouse."""

from __future__ import annotations

import sys
from typing import Any

from helpers.paths import SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import chromium

__all__ = ["chromium", "drag"]


def drag(page: Any, canvas: Any, left: float, top: float, right: float, bottom: float) -> None:
    """Drags a rectangle on the picture of an explanation, in parts of it."""
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + left * box["width"], box["y"] + top * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + right * box["width"], box["y"] + bottom * box["height"])
    page.mouse.up()
