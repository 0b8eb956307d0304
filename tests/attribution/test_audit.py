"""The audit: everything that could make a map wrong is found, and named with its place and its remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.blocks import Block, X, raises
from helpers.hidden import Square
from hilrp.method import reindexing
from hilrp.method.table import TABLE


class FusedNorm(torch.autograd.Function):
    """A normalisation that hides in a custom function, as fused kernels do."""

    @staticmethod
    def forward(ctx, x):
        std = x.std((1, 2, 3), keepdim=True)
        ctx.save_for_backward(x, std)
        return x / std

    @staticmethod
    def backward(ctx, g):
        _, std = ctx.saved_tensors
        return g / std


@torch.jit.script
def scripted(x):
    return x * torch.sigmoid(x)


def test_an_unknown_operation():
    with raises(hilrp.AuditError, "`special_i0`|`i0`", "`middle` .Middle.", "hilrp.register", 'audit="warn"'):
        hilrp.explain(Block(torch.special.i0).eval(), X, 0)


@pytest.mark.parametrize(("function", "word"), [(Square.apply, "Square"), (FusedNorm.apply, "FusedNorm")])
def test_a_custom_autograd_function(function, word):
    with raises(hilrp.AuditError, "head|model", "did not see", word, "hilrp.register"):
        hilrp.explain(Block(function).eval(), X, 0)


def test_a_scripted_region():
    with raises(hilrp.AuditError, "scripted, compiled|custom autograd", "did not see"):
        hilrp.explain(Block(lambda x: scripted(x)).eval(), X, 0)
    with raises(hilrp.AuditError, "did not see"):
        hilrp.explain(Block(torch.jit.script(nn.Sequential(nn.BatchNorm2d(4), nn.GELU()))).eval(), X, 0)


def test_a_scripted_function_of_constants_is_no_problem():
    weight = nn.Parameter(torch.randn(4, 1, 1))
    model = Block(lambda x: x * scripted(weight)).eval()
    found = hilrp.explain(model, X, 0)
    model.middle.function = lambda x: x * (weight * weight.sigmoid())
    torch.testing.assert_close(found.relevance, hilrp.explain(model, X, 0).relevance)


class TestBrokenRules:
    """The books fail when a rule is broken, and name the operation."""

    def broken(self, monkeypatch, name, rule):
        row = TABLE[name]
        monkeypatch.setitem(TABLE, name, replace(row, rule=rule))

    def test_layer_norm_whose_denominator_is_not_detached(self, monkeypatch):
        self.broken(monkeypatch, "layer_norm", reindexing.native)
        model = Block(nn.Sequential(nn.LayerNorm(6), nn.GELU())).eval()
        with raises(hilrp.BooksError, "do not close", "middle.0: layer_norm"):
            hilrp.explain(model, X, 0, "hilrp")
        report = hilrp.audit(model, X, 0, "hilrp")
        assert not report.passed
        assert report.leak > 1e-2

    def test_gelu_without_its_rule(self, monkeypatch):
        self.broken(monkeypatch, "gelu", reindexing.native)
        with raises(hilrp.BooksError, "do not close", "middle: gelu"):
            hilrp.explain(Block(nn.GELU()).eval(), X, 0, "hilrp")

    def test_a_product_that_counts_twice(self, monkeypatch):
        self.broken(monkeypatch, "mul", reindexing.native)
        with raises(hilrp.BooksError, "do not close", "middle: mul"):
            hilrp.explain(Block(lambda x: x * x.sigmoid()).eval(), X, 0, "hilrp")

    def test_a_constant_that_is_not_booked(self, monkeypatch):
        self.broken(monkeypatch, "add", reindexing.native)
        with raises(hilrp.BooksError, "do not close", "middle: add"):
            hilrp.explain(Block(lambda x: x + 0.3).eval(), X, 0, "hilrp")

    def test_opposite_leaks_do_not_cancel_in_itemised_books(self, monkeypatch):
        """gelu run raw leaks at each call; the leak adds up sizes while the residual nets them."""
        self.broken(monkeypatch, "gelu", reindexing.native)
        model = Block(lambda x: F.gelu(x) - F.gelu(x * 1.0)).double().eval()
        with torch.no_grad():
            model.head.bias.fill_(1.0)
        ledger = hilrp.explain(model, X.double(), 0, "hilrp", audit="off", itemised=True).ledger
        assert float(ledger.residual.max()) < 1e-10
        assert float(ledger.leak.max()) > 1e-4

    def test_a_wrong_registration(self):
        with hilrp.register(torch.special.i0, "reindexing"), raises(hilrp.BooksError, "i0", "correct its rule"):
            hilrp.explain(Block(torch.special.i0).eval(), X, 0)

    def test_the_naive_preset_leaks_and_says_so_without_raising(self):
        model = Block(nn.GroupNorm(2, 4)).eval()
        found = hilrp.explain(model, X, 0, rules="naive")
        assert float(found.ledger.leak.min()) > 0.1


def test_a_failed_audit_says_why():
    zero = Block(nn.ReLU()).eval()
    nn.init.zeros_(zero.head.weight)
    nn.init.zeros_(zero.head.bias)
    assert "is zero" in str(hilrp.audit(zero, X, 0, "hilrp"))
    assert "is the same on the reference" in str(hilrp.audit(zero, X, 0))
    noisy = Block(lambda x: x + torch.randn_like(x)).eval()
    assert "isn't deterministic" in str(hilrp.audit(noisy, X, 0))
    with hilrp.register(torch.special.i0, "reindexing"):
        assert "largest leak is at `middle: special_i0`" in str(hilrp.audit(Block(torch.special.i0).eval(), X, 0))


def test_warn_warns_and_off_is_silent(recwarn):
    model = Block(torch.special.i0).eval()
    with pytest.warns(hilrp.AuditWarning, match="No rule"):
        hilrp.explain(model, X, 0, audit="warn")
    recwarn.clear()
    hilrp.explain(model, X, 0, audit="off")
    assert not [w for w in recwarn if issubclass(w.category, hilrp.AuditWarning)]


def test_report():
    model = Block(lambda x: x * x.sigmoid() + F.silu(x) * x).eval()
    report = hilrp.audit(model, X, 0, "hilrp")
    assert report.passed
    assert report.operations["linear"]["conv2d"] == 1
    assert report.operations["bilinear"] == {"mul": 2}
    assert report.operations["normalisation"] == {"sigmoid": 1, "silu": 1}
    assert report.notes == {"even split of mul in middle": 1}
    text = str(report)
    assert text.startswith("PASS")
    assert "forward difference 0" in text
    failed = hilrp.audit(Block(torch.special.i0).eval(), X, 0)
    assert not failed.passed
    assert str(failed).startswith("FAIL")
    assert any("No rule" in problem for problem in failed.problems)
    assert "out of range" in str(hilrp.audit(model, X, 99))


def test_what_was_kept_adds_up():
    """Kinds of constants come from many operations: with the pixels they make up the score."""
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 3)
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    report = hilrp.audit(model.double().eval(), X.double(), 1, "hilrp")
    assert report.passed
    for sample, share in enumerate(report.share):
        assert share + sum(shares[sample] for shares in report.kept.values()) == pytest.approx(1, abs=1e-10)
    assert abs(report.kept["bias"][0]) > 1e-3
