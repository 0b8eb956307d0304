"""``hilrp serve``, without serving."""

from __future__ import annotations

import pytest

pytest.importorskip("gradio")

import hilrp.app.server
from helpers.commands import invoke
from hilrp.models import picture_files


@pytest.mark.parametrize(("options", "expected"), [((), 70 * 10**6), (("--max-megapixels", 3), 3 * 10**6)])
def test_the_limit_of_pictures(monkeypatch, options, expected):
    monkeypatch.setattr(picture_files, "_allowed", 5)
    found = []
    monkeypatch.setattr(hilrp.app.server, "serve", lambda *_, **__: found.append(picture_files.allowed()))
    result = invoke("serve", *options)
    assert result.exit_code == 0, result.output
    assert found == [expected]
