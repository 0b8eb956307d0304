"""The attention taxonomy: every mechanism agrees with its textbook, and a wrong rule or textbook would be noticed."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

import hilrp
from hilrp.attribution.audit import SHORT_NAMES
from hilrp.util.errors import InputError, UnavailableError
from hilrp.verify import taxonomy, textbook
from hilrp.verify.realised import SOURCES, Realisation, Source, joined, realise
from hilrp.verify.report import Row

BY_NAME = {mechanism.name: mechanism for mechanism in taxonomy.MECHANISMS}
BLOCKS = {
    f"{mechanism.name} {number}" if number else mechanism.name: make
    for mechanism in taxonomy.MECHANISMS
    for number, make in enumerate(mechanism.blocks)
}


@pytest.mark.parametrize("name", BY_NAME)
def test_engine_and_textbook_agree(name):
    row = taxonomy.check(BY_NAME[name], seeds=2, real_models=False)
    assert row.verdict == "passed", row
    assert set(row.primitives) <= set(SHORT_NAMES.values())
    assert {"lin", "nrm"} <= set(row.primitives)


def test_there_are_the_papers_thirteen():
    assert len(taxonomy.MECHANISMS) == 13
    assert {model for mechanism in taxonomy.MECHANISMS for model in mechanism.models} == set(SOURCES)


@pytest.mark.parametrize("name", BLOCKS)
def test_another_rule_is_noticed(name):
    """Epsilon conserves just as well, but is not the textbook's rule: closed books would not tell."""
    errors = taxonomy.compare(BLOCKS[name](), "epsilon")
    assert errors["residual"] <= 1e-11
    assert errors["relevance"] > 1e-3


def test_another_gamma_in_the_textbook_is_noticed(monkeypatch):
    monkeypatch.setattr(textbook, "GAMMA", 0.26)
    row = taxonomy.check(BY_NAME["self / multi-head (ViT)"], seeds=1, real_models=False)
    assert row.errors["forward"] <= 1e-12
    assert row.errors["textbook sum"] <= 1e-11
    assert row.errors["relevance"] > 1e-5
    assert row.verdict == "failed"


@pytest.mark.parametrize("name", ["windowed / shifted (Swin)", "linear (EfficientViT)", "deformable (Def-DETR)"])
def test_a_broken_mixing_matrix_is_noticed(name, monkeypatch):
    attend = textbook.Sheet.attend
    monkeypatch.setattr(textbook.Sheet, "attend", lambda sheet, w, *rest: attend(sheet, w.roll(1, -1), *rest))
    errors = taxonomy.compare(BY_NAME[name].blocks[0]())
    assert errors["forward"] > 1e-3
    assert errors["relevance"] > 1e-3


def test_a_wrong_rule_of_the_engine_fails_and_is_reported():
    with hilrp.register(torch.layer_norm, "reindexing"):  # its raw gradient, which passes nothing on
        row = taxonomy.check(BY_NAME["spatial-reduction (PVT)"], seeds=1, real_models=False)
    assert row.verdict == "failed"
    assert row.errors["leak"] > 1e-3
    assert row.errors["relevance"] > 1e-3


def test_a_relevance_that_is_not_finite_fails():
    found, expected = torch.tensor([1.0, float("nan")]), torch.ones(2)
    error = taxonomy.relative_error(found, expected)
    assert Row("nan", {"relevance": error}, {"relevance": 1e-10}).verdict == "failed"


#: Those that no other test audits.
@pytest.mark.parametrize(
    "model",
    [
        "timm/efficientvit_b0",
        "timm/halonet26t",
        "timm/resnet10t with coordinate attention",
        "timm/vit_base_patch16_sapiens2, small",
        "transformers/clip",
        "transformers/deformable_detr",
        "transformers/lxmert",
    ],
)
def test_real_architectures(model):
    found = realise(model)
    if found.verdict == "not run":
        pytest.skip(found.remark)
    assert found.verdict == "passed", found
    assert found.residual <= found.tolerance


def test_a_library_that_is_not_installed_is_no_failure(monkeypatch):
    def absent():
        raise UnavailableError("transformers is not installed. Install it with: pip install 'hilrp[hf]'")

    monkeypatch.setitem(SOURCES, "absent", Source(make=absent))
    found = realise("absent")
    assert found.verdict == "not run"
    assert "hilrp[hf]" in found.remark
    assert Row("row", realised=found).passed
    assert joined([found, Realisation("other", "passed", 0.0, 0.0, 1e-10)]).verdict == "passed"


@pytest.mark.parametrize("model", ["transformers/clip", "transformers/lxmert"])
def test_without_transformers_the_row_says_what_to_install(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "hilrp.models.libraries.transformers", raising=False)
    found = realise(model)
    assert found.verdict == "not run"
    assert "hilrp[hf]" in found.remark


def test_a_real_architecture_that_cannot_run_fails_the_row(monkeypatch):
    def broken():
        raise InputError("its forward pass raised")

    monkeypatch.setitem(SOURCES, "broken", Source(make=broken))
    assert realise("broken").verdict == "failed"


def test_a_real_architecture_that_fails_fails_the_row(monkeypatch):
    def unsound():
        return nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Softmax(-1)), torch.randn(2, 3, 2, 2), None

    monkeypatch.setitem(SOURCES, "unsound", Source(make=unsound))
    found = realise("unsound")
    assert found.verdict == "failed"
    assert found.remark
    assert not Row("row", {"residual": 0.0}, {"residual": 1e-11}, realised=found).passed
