"""Pictures that are sent to the page."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from PIL import Image

pytest.importorskip("gradio")

from helpers.pages import encoded, sent
from hilrp.app import pictures
from hilrp.models import images, picture_files
from hilrp.util.errors import InputError


def test_files_that_are_too_large(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_files, "_allowed", 10)
    with pytest.raises(InputError, match=r"^large\.png: it has .* MB; at most .* --max-megapixels"):
        pictures.uploaded(sent(tmp_path, "large.png", encoded(Image.new("RGB", (8, 8)))))


def test_pictures_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    busy, most, guard = 0, 0, threading.Lock()

    def slow_read(path):
        nonlocal busy, most
        with guard:
            busy += 1
            most = max(most, busy)
        time.sleep(0.05)
        with guard:
            busy -= 1
        return images.read(path)

    monkeypatch.setattr(pictures, "read", slow_read)
    files = [sent(tmp_path, f"{i}.png", encoded(Image.new("RGB", (8, 8)))) for i in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert len(list(pool.map(pictures.uploaded, files))) == 6
    assert most == 1


def test_a_photograph_greets_models_that_know_cats(monkeypatch):
    pytest.importorskip("skimage")
    assert pictures.greeting(True, ["a star"]).scene is not None
    assert pictures.greeting(False, ["a star", "cathedral"]) is None
    for classes in (["tabby, tabby cat"], None):
        found = pictures.greeting(False, classes)
        assert min(found.image.size) >= 224
        assert "CC0" in found.notes[0]
    names: dict[str, object] = {}
    exec(compile(found.opening, "opening", "exec"), names)
    assert names["image"].tobytes() == found.image.tobytes()


def test_without_scikit_image_a_picture_is_asked_for(monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    assert pictures.greeting(False, ["tabby cat"]) is None
