"""``hilrp serve``, without serving."""

from __future__ import annotations

import pytest

pytest.importorskip("gradio")

from safetensors.torch import save_file

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


@pytest.mark.parametrize(
    ("options", "rules", "reference", "passes"),
    [
        ((), "secant", "mean", 1),
        (("--passes", 8, "--reference", "blurred"), "secant", "blurred", 8),
        (("--rules", "hilrp"), "hilrp", None, 1),
    ],
)
def test_how_a_new_tab_begins(monkeypatch, options, rules, reference, passes):
    found = []
    monkeypatch.setattr(hilrp.app.server, "serve", lambda *arguments: found.append(arguments))
    result = invoke("serve", *options)
    assert result.exit_code == 0, result.output
    ((models, *_, start),) = found
    assert (start.rules, start.reference, start.passes) == (rules, reference, passes)
    assert models.own is None


def test_a_model_with_its_checkpoint(monkeypatch, tmp_path):
    save_file(hilrp.load("zoo/resnet").model.state_dict(), tmp_path / "w.safetensors")
    found = []
    monkeypatch.setattr(hilrp.app.server, "serve", lambda models, *_: found.append(models))
    for options in (
        ["--model", "zoo/resnet", "--checkpoint", tmp_path / "w.safetensors"],
        ["--model", f"zoo/resnet@{tmp_path / 'w.safetensors'}"],
    ):
        result = invoke("serve", *options)
        assert result.exit_code == 0, result.output
    assert [models.checkpoint for models in found] == [str(tmp_path / "w.safetensors")] * 2
    assert {models.own.weights for models in found} == {"weights of w.safetensors"}
