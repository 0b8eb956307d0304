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
