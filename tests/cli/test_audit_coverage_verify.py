"""The commands of the proof: verify, audit and coverage, used as a person or a script would."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import hilrp
from hilrp.cli import app
from hilrp.verify import closure


def invoke(*args):
    return CliRunner().invoke(app, [str(a) for a in args], env={"COLUMNS": "200"})


def test_audit_command():
    result = invoke("audit", "timm/test_vit", "--samples", 1, "--rules", "hilrp")
    assert result.exit_code == 0, result.output
    for word in (
        "timm/test_vit",
        "linear",
        "scaled_dot_product_attention",
        "attention weights held fixed",
        "pixels",
        "bias",
        "PASS",
        "residual",
    ):
        assert word in result.output


def test_audit_command_for_machines(zoo):
    result = invoke("audit", "test_vit", *zoo("odd"), "--json")
    assert result.exit_code == 1
    sound, odd = json.loads(result.stdout)
    assert sound["passed"]
    assert sound["operations"]["linear"]["linear"] > 5
    assert sound["kept"] == {}
    assert sound["relative_to"] == "the picture's mean colour"
    assert sound["share"] == pytest.approx([1, 1], abs=1e-4)
    assert not odd["passed"]
    assert "No rule" in odd["problems"][0]
    result = invoke("audit", "no_such_model", "--json")
    assert result.exit_code == 2
    assert "no model of that name" in json.loads(result.stdout)[0]["error"]


def test_one_bad_model_does_not_cost_the_others(tmp_path, monkeypatch):
    (tmp_path / "raising.py").write_text("def make(): raise KeyError('layer9')\n")
    monkeypatch.chdir(tmp_path)
    result = invoke("audit", "raising:make", "test_vit", "--json")
    assert result.exit_code == 2
    bad, good = json.loads(result.stdout)
    assert "layer9" in bad["error"]
    assert good["passed"]


def test_remedies_are_printed_in_full(monkeypatch):
    """Square brackets are no markup in what we say."""
    monkeypatch.setitem(sys.modules, "open_clip", None)
    monkeypatch.delitem(sys.modules, "hilrp.models.libraries.open_clip", raising=False)
    result = invoke("audit", "open_clip/RN50")
    assert result.exit_code == 2
    assert "pip install 'hilrp[clip]'" in result.output


def test_a_pattern_that_fits_no_model(tmp_path):
    result = invoke("coverage", "timm", "--only", "swim", "-o", tmp_path)
    assert result.exit_code == 2
    assert "swim" in result.output


def test_a_type_of_transformers_has_no_published_weights():
    result = invoke("audit", "transformers/vit", "--pretrained")
    assert result.exit_code == 2
    assert "no published weights" in result.output


def test_a_factorys_model_keeps_its_type_and_its_name(tmp_path, monkeypatch):
    """The name ends in what rich would take for an emoji."""
    (tmp_path / "halves.py").write_text("import timm\ndef bug(): return timm.create_model('test_vit').half()\n")
    monkeypatch.chdir(tmp_path)
    (facts,) = json.loads(invoke("audit", "halves:bug", "--json", "--samples", 1).stdout)
    assert facts["dtype"] == "float16"
    assert facts["inputs"] == [[1, 3, 160, 160]]
    result = invoke("coverage", "halves:bug:", "-o", tmp_path / "out")
    assert "halves:bug:" in result.output
    assert result.exit_code == 1


@pytest.mark.parametrize("options", [["--dtype", "int8"], ["--rules", "magic"], ["--device", "quantum"]])
def test_audit_command_with_bad_options(options):
    result = invoke("audit", "test_vit", *options)
    assert result.exit_code == 2
    assert options[1] in result.output


def test_coverage_command(tmp_path):
    out, page = tmp_path / "out", tmp_path / "page.md"
    options = ("coverage", "timm", "--only", "test_res", "-o", out, "--samples", 1)
    result = invoke(*options, "--markdown", page)
    assert result.exit_code == 0, result.output
    assert "timm" in result.output
    assert "test_resnet" in page.read_text()
    rows = json.loads(invoke(*options, "--json").stdout)
    assert [row["status"] for row in rows] == ["pass"]
    result = invoke(*options, "--dtype", "float64")
    assert result.exit_code == 2
    assert "other settings" in result.output
    assert invoke("coverage", "keras", "-o", out).exit_code == 2


def test_verify_command(monkeypatch):
    monkeypatch.setattr(closure, "check", partial(closure.check, 40))  # of 300
    result = invoke("verify", "reduction", "closure")
    assert result.exit_code == 0, result.output
    for word in ("patch merging", "40 random compositions", "PASS"):
        assert word in result.output
    assert invoke("verify", "equivariance", "--images", Path(__file__).parent).exit_code == 1
    found = json.loads(invoke("verify", "reduction", "--json").stdout)
    assert found["passed"]
    assert invoke("verify", "magic").exit_code == 2


def test_verify_command_fails_where_a_rule_is_wrong():
    wrong = hilrp.register(
        torch.roll,
        lambda x, *args, **kwargs: 2 * torch.roll(x, *args, **kwargs) - torch.roll(x.detach(), *args, **kwargs),
    )
    with wrong:
        result = invoke("verify", "reduction")
    assert result.exit_code == 1
    assert "FAIL" in result.output
    assert "shifted windows" in result.output
