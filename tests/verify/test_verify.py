"""The verification: every row holds, and every check can fail."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

import hilrp
from helpers.real_data import shared
from hilrp.verify import SECTIONS, Row, Section, VerifyReport, closure, equivariance, reduction, transfer, verify
from hilrp.verify.closed_forms import merge_rule


@pytest.mark.parametrize("make", reduction.OPERATORS, ids=lambda make: make.__name__)
def test_reduction_is_one_linear_map_with_the_papers_closed_forms(make):
    row = reduction.check(make())
    assert row.verdict == "passed", row


def test_merging_with_its_norm_is_one_linear_map():
    row = reduction.check_merging_with_norm()
    assert row.verdict == "passed", row
    assert set(row.primitives) == {"lin", "nrm", "idx"}


def test_shifted_windows_are_reindexing_alone():
    assert reduction.check(reduction.shifted_windows()).primitives == ("idx",)


def test_the_closed_forms_account_for_the_stabiliser(monkeypatch):
    """Without the engine's epsilon in the equation, the difference is far above the bound."""
    monkeypatch.setattr(reduction, "EPSILON", 0.0)
    row = reduction.check(reduction.merging())
    assert row.errors["z+, as printed"] > 1e-9
    assert row.errors["gamma, as printed"] > 1e-9
    assert row.verdict == "failed"


@pytest.mark.parametrize(("instead", "wrong"), [("zplus", "z+, as printed"), ("zplus_weights", "z+ of contributions")])
def test_on_signed_inputs_positive_weights_are_not_positive_contributions(monkeypatch, instead, wrong):
    monkeypatch.setitem(reduction.RULES, wrong, hilrp.Rules(linear=instead))
    row = reduction.check(reduction.merging())
    assert row.errors[wrong] > 0.1
    assert row.verdict == "failed"


def test_the_printed_rules_have_no_bias(monkeypatch):
    """The engine's variant that counts it is not the equation, on the operator that has one."""
    monkeypatch.setitem(reduction.RULES, "gamma, as printed", hilrp.Rules(gamma=0.25, linear="gamma_weights_bias"))
    assert reduction.check(reduction.embedding()).errors["gamma, as printed"] > 1e-3
    assert reduction.check(reduction.merging()).errors["gamma, as printed"] < 1e-3  # it has none


def test_a_matrix_with_two_tokens_swapped_is_noticed():
    operator = reduction.shifted_windows()
    entries = list(operator.entries())
    (o, p, w), (q, r, v) = entries[0], entries[9]
    entries[0], entries[9] = (o, r, w), (q, p, v)
    broken = reduction.Operator("broken", operator.module, operator.shape, lambda: iter(entries), permutation=True)
    row = reduction.check(broken)
    assert row.errors[reduction.SELECTION] == 0
    assert row.errors["matrix"] > 1e-3
    assert row.verdict == "failed"


def test_the_merge_rule_by_hand():
    """One output, two tokens with positive weights: their shares are 1/3 and 2/3 of its relevance."""
    a = torch.tensor([[[1.0], [2.0]], [[5.0], [5.0]]])
    weights = torch.tensor([[1.0, -1.0, 1.0, -1.0]])  # a_{0,0}, a_{1,0}, a_{0,1}, a_{1,1}
    assert merge_rule(a, weights, torch.tensor([[[3.0]]]), 0.0) == pytest.approx([1.0, 2.0, 0.0, 0.0])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31))
def test_any_composition_conserves(seed):
    recipe, numbers = closure.measure(seed)
    assert numbers["residual"] <= closure.BOUND, recipe
    assert numbers["leak"] <= closure.BOUND, recipe
    assert numbers["forward"] == 0, recipe
    assert not numbers["not finite"], recipe


def test_compositions_are_reproducible_and_varied():
    assert closure.compose(3)[0] == closure.compose(3)[0]
    recipes = [closure.compose(seed)[0] for seed in range(200)]
    used = " ".join(name for recipe in recipes for name in recipe)
    for step in (*closure.STEPS, *closure.HALVING, *closure.BRANCHES, closure.DOUBLING):
        assert step in used
    assert {len(recipe) for recipe in recipes} == set(range(3, 13))


def test_closure_notices_when_constants_keep_everything(monkeypatch):
    """Books close all the same: the input's share must not vanish."""
    measured = closure.measure
    monkeypatch.setattr(closure, "measure", lambda seed: (measured(seed)[0], measured(seed)[1] | {"share": 1e-9}))
    row = closure.check(count=5)
    assert row.verdict == "failed"
    assert row.errors["leak"] < closure.BOUND


def test_books_that_are_no_numbers_fail(monkeypatch):
    explain = reduction.explain

    def spoilt(*args, **options):
        found = explain(*args, **options)
        ledger = dataclasses.replace(found.ledger, score=found.ledger.score * math.nan)
        return dataclasses.replace(found, ledger=ledger)

    monkeypatch.setattr(reduction, "explain", spoilt)
    assert reduction.check(reduction.merging()).verdict == "failed"
    assert reduction.check_merging_with_norm().verdict == "failed"


def test_closure_fails_with_a_wrong_rule_and_names_the_recipe():
    with hilrp.register(torch.nn.functional.gelu, "reindexing"):
        row = closure.check(12)
    assert row.verdict == "failed"
    assert row.errors["leak"] > 1e-3
    assert "gelu" in row.remark


def test_equivariance_and_its_controls():
    theorem, *controls = equivariance.check()
    assert theorem.verdict == "passed", theorem
    assert theorem.errors["relevance"] <= 1e-12
    assert len(controls) == 2
    for control in controls:
        assert control.verdict == "passed", control
        assert control.errors["relevance"] > 0.01


def test_equivariance_with_positions_would_fail_the_check():
    model = equivariance.randomised(equivariance.CyclicModel(positions=True), 0)
    errors = equivariance.errors_under(model, [(4, 0)])
    assert Row("positions", errors, {"relevance": equivariance.BOUND}).verdict == "failed"


def test_spearman_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    a, b = torch.randn(5, 50), torch.randn(5, 50)
    a[0, :20] = 0.0  # ties
    b[1] = b[1].round()
    b[2] = a[2].exp()
    found = transfer.spearman(a, b)
    expected = [stats.spearmanr(x.numpy(), y.numpy()).statistic for x, y in zip(a, b, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


def test_transfer_says_what_is_missing(tmp_path):
    name = "deit_tiny_patch16_224"

    def missing(checkpoints, images):
        (row,) = transfer.check(name, checkpoints, images)
        assert row.verdict == "not run"
        assert row.passed
        return row.missing

    assert "not run: give a folder of photographs" in missing(None, None)
    assert f"no index.json in {tmp_path}" in missing(tmp_path, tmp_path)
    (tmp_path / "index.json").write_text("[]")
    assert f"{name}.safetensors is not in {tmp_path}" in missing(tmp_path, tmp_path)


def test_maps_of_real_weights_follow_the_image(monkeypatch):
    monkeypatch.setattr(transfer, "MODELS", {"deit_tiny_patch16_224": ({}, 16, (32,))})
    checkpoint = shared("checkpoints", "deit_tiny_patch16_224.safetensors")
    index = shared("images", "imagenet_val", "index.json")
    (row,) = transfer.check("deit_tiny_patch16_224", checkpoint.parent, index.parent, photographs=3)
    assert row.verdict == "measured"
    assert row.errors["HiLRP"] > 0.8
    assert row.errors["HiLRP"] > row.errors["gradient x input"] + 0.1
    assert row.errors["HiLRP, not moved"] < row.errors["HiLRP"] - 0.2
    assert 0 < row.errors["drift"] < 0.5


def test_swin_t_is_shifted_by_windows(monkeypatch, tmp_path):
    """The paper's model, with its name and shifts; small, and with random weights."""
    name = "swin_tiny_patch4_window7_224"
    options, cell, shifts = transfer.MODELS[name]
    assert (options, cell) == ({}, 4)
    assert all(shift % (7 * cell) == 0 for shift in shifts)
    small = {"embed_dim": 24, "depths": (1, 1, 1, 1), "num_heads": (2, 2, 2, 2)}
    save_file(timm.create_model(name, **small).state_dict(), tmp_path / f"{name}.safetensors")
    noise = Image.fromarray(torch.randint(0, 256, (64, 64, 3), dtype=torch.uint8).numpy())
    noise.save(tmp_path / "a.png")
    (tmp_path / "index.json").write_text('[{"file": "a.png"}, {"file": "a.png"}]')
    monkeypatch.setitem(transfer.MODELS, name, (small, cell, shifts))
    rows = list(transfer.check(name, tmp_path, tmp_path))
    assert [row.name for row in rows] == [f"transfer, {name}, {shift} px" for shift in (28, 56, 112)]
    assert {row.verdict for row in rows} == {"measured"}


def test_a_report_is_json_and_names_what_failed():
    rows = [
        Row("good", {"residual": 1e-16}, {"residual": 1e-11}),
        Row("bad", {"residual": 1e-3}, {"residual": 1e-11}),
        Row("nan", {"residual": math.nan}, {"residual": 1e-11}),
        Row("unmeasured", {}, {"residual": 1e-11}),
        Row("a control that doesn't fail", {"relevance": 1e-16}, at_least={"relevance": 1e-3}),
        Row("broken", error="stopped"),
        Row("measurement", {"drift": 0.1}),
        Row("absent", missing="not run: no weights"),
    ]
    report = VerifyReport([Section("closure", "Closure", rows)])
    verdicts = [row.verdict for row in rows]
    assert verdicts == ["passed", *["failed"] * 5, "measured", "not run"]
    assert not report.passed
    assert len(report.failures) == 5
    assert report.failures[0] == "Closure, bad: residual is 0.001, may be 1e-11"
    assert str(report).endswith("FAIL")
    assert (
        json.loads(json.dumps(report.as_dict(), allow_nan=False))["sections"][0]["rows"][2]["errors"]["residual"]
        is None
    )


def test_verify_runs_sections_and_reports_progress():
    seen: list[str] = []
    report = verify(["reduction"], progress=seen.append)
    assert report.passed
    assert [section.name for section in report.sections] == ["reduction"]
    assert seen == [row.name for row in report.sections[0].rows]
    state = torch.get_rng_state()
    verify(["reduction"])
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(hilrp.InputError, match="taxonomy"):
        verify(["attention"])
    assert list(SECTIONS) == ["taxonomy", "reduction", "closure", "equivariance"]


def test_verify_fails_with_a_wrong_rule_and_says_so():
    with hilrp.register(torch.nn.functional.linear, "reindexing"):  # the raw gradient: closed books, another rule
        report = verify(["reduction"])
    assert not report.passed
    assert any(
        failure.startswith("Resolution reduction, patch merging: z+, as printed is ") for failure in report.failures
    )
    assert json.dumps(report.as_dict(), allow_nan=False)
    with hilrp.register(torch.nn.functional.linear, "stop"):  # nothing left to explain
        report = verify(["reduction"])
    failed = [row.name for row in report.sections[0].rows if row.verdict == "failed"]
    assert failed == ["patch merging", "patch merging with its LayerNorm"]
    assert any("stopped by ModelError" in failure for failure in report.failures)


def test_an_error_of_any_kind_is_a_failure_not_a_crash(monkeypatch):
    def fail():
        raise RuntimeError("something is wrong")

    monkeypatch.setattr(equivariance, "check", fail)
    report = verify(["equivariance"])
    assert not report.passed
    assert "something is wrong" in report.failures[0]


def test_import_hilrp_does_not_import_it():
    code = "import sys, hilrp; sys.exit(any(name.startswith('hilrp.verify') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
