"""Figures where what is drawn on them doesn't matter: drawing takes most of the time of a small run."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image


def small_figure(*_: Any) -> bytes:
    """Stands for `hilrp.attribution.shown.Shown.encoded`: a picture of a few pixels."""
    buffer = io.BytesIO()
    Image.new("RGB", (24, 24), (40, 80, 120)).save(buffer, "PNG")
    return buffer.getvalue()


def small_places(shown: Any) -> list[dict[str, Any]]:
    """Stands for `hilrp.attribution.shown.Shown.drawn`: its words, with the whole of a small figure."""
    words = [shown.words(i) for i in range(len(shown.explanation))]
    about = {"place": (0, 0, 24, 24), "low": "", "high": "", "pale": False}
    return [about | {"title": each.title, "likelihood": each.likelihood} for each in words]
