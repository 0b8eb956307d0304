"""Each way in which an operation can be unknown is named, under every preset, in explain and audit."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import hilrp
from helpers.hidden import CONSERVING, Doubling, Model, Scaled, Swish, make, picture

F64 = torch.float64


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def library_operation(autograd: bool):
    """A custom operation of torch.library, with a gradient or without one."""
    name = f"hilrptests::swish{int(autograd)}"
    found = getattr(torch.ops.hilrptests, f"swish{int(autograd)}", None)
    if found is None:
        made = torch.library.custom_op(name, lambda x: x * x.sigmoid(), mutates_args=(), schema="(Tensor x) -> Tensor")
        if autograd:
            made.register_autograd(
                lambda ctx, g: g * (lambda x, s: s + x * s * (1 - s))(ctx.x, ctx.x.sigmoid()),
                setup_context=lambda ctx, inputs, output: setattr(ctx, "x", inputs[0]),
            )
        found = getattr(torch.ops.hilrptests, f"swish{int(autograd)}")
    return lambda x: found(x)


UNKNOWN = {
    "custom Function": (lambda x: Swish.apply(x), "did not see.*Swish"),
    "custom Function, new form": (lambda x: Scaled.apply(x, 2.0)[0], "did not see.*Scaled"),
    "custom Function that writes": (
        lambda x: Doubling.apply(x * 1.0),
        "did not see.*custom autograd.Function writes to its input",
    ),
    "scripted": (lambda x: scripted(x), "did not see"),
    "unlisted": (lambda x: torch.special.i1(x), "No rule for the operation `special_i1"),
    "unlisted, without a gradient": (
        lambda x: torch.heaviside(x, torch.zeros((), dtype=F64)) * x,
        "No rule.*heaviside",
    ),
    "library operation": (library_operation(True), "No rule for the operation `hilrptests::swish1"),
    "library operation without a gradient": (lambda x: library_operation(False)(x) + x, "No rule.*hilrptests::swish0"),
    "mapped": (lambda x: torch.vmap(lambda a: a * a.sigmoid())(x), "did not see"),
}


@pytest.mark.parametrize("rules", CONSERVING)
@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_operations_are_named(kind, rules):
    middle, words = UNKNOWN[kind]
    model, x = make(middle), picture()
    with pytest.raises(hilrp.AuditError, match=f"(?s){words}") as caught:
        hilrp.explain(model, x, 1, rules)
    assert not isinstance(caught.value, hilrp.BooksError)
    report = hilrp.audit(model, x, 1, rules)
    assert not report.passed
    assert re.search(words, str(report), re.DOTALL)


def test_a_small_error_is_named_as_well():
    """A function that is nearly linear leaks next to nothing; it is unknown all the same."""

    class Nearly(Function):
        @staticmethod
        def forward(ctx, x):
            return x * (1 + 1e-14)

        @staticmethod
        def backward(ctx, g):
            return g

    for rules in CONSERVING:
        with pytest.raises(hilrp.AuditError, match=r"did not see.*Nearly"):
            hilrp.explain(make(Nearly.apply), picture(), 1, rules)


# Leaks
# --------------------------------------------------------------------------------------------------------------------


def test_what_leaks_is_blamed():
    """A rule that loses half, in the middle of a model."""
    model = make(lambda x: torch.special.i1(x))
    with (
        hilrp.register(torch.special.i1, "reindexing"),
        pytest.raises(hilrp.BooksError, match=r"largest leak is at `\(model\): (special_)?i1`"),
    ):
        hilrp.explain(model, picture(), 1)


def test_what_no_operation_leaks_is_not_blamed_on_one():
    """A hook of the model's own takes relevance away before the first operation."""

    class Hooked(Model):
        def forward(self, x):
            if x.requires_grad:
                with torch._C.DisableTorchFunction():  # a hook that is seen is named
                    x.register_hook(lambda g: 0.5 * g)
            return super().forward(x)

    for rules in ("hilrp", "secant"):
        model = Hooked(nn.ReLU()).to(F64).eval()
        with pytest.raises(hilrp.BooksError, match="No operation that hilrp saw leaks as much"):
            hilrp.explain(model, picture(), 1, rules)
