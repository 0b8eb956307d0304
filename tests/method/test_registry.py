"""A user's own rules: for operations, modules and custom functions, in force until they are taken out."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.blocks import Block, X, raises
from helpers.hidden import CONSERVING, Scaled, Square, Swish, make, picture
from helpers.nets import Apply
from hilrp.method.registry import KINDS, is_registered, row_of
from hilrp.method.table import TABLE

X64 = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)

# What is in force -----------------------------------------------------------------------------------------------------


def test_the_latest_rule_is_in_force():
    """Whichever is taken out first, the latest of those that are left counts; in the end, the table."""
    name, table = "gelu", TABLE["gelu"]
    assert row_of(name) is table
    first, second, third = (hilrp.register(F.gelu, kind) for kind in ("stop", "gate", "reindexing"))
    try:
        assert is_registered(name)
        assert (row_of(name).rule, row_of(name).users) == (KINDS["reindexing"].rule, True)
        second.remove()
        assert row_of(name).rule is KINDS["reindexing"].rule
        third.remove()
        assert row_of(name).rule is KINDS["stop"].rule
    finally:
        for each in (first, second, third):
            each.remove()  # a second time does no harm
    assert not is_registered(name)
    assert row_of(name) is table


def test_a_rule_is_taken_out_when_an_error_leaves_the_block():
    with pytest.raises(ZeroDivisionError), hilrp.register(torch.special.i0, "stop"):
        raise ZeroDivisionError
    assert not is_registered("special_i0")
    assert row_of("special_i0") is None


@pytest.mark.parametrize(
    ("rule", "words"), [("linear", "'linear' is not a rule"), (None, "rule=None is neither a name")]
)
def test_rules_that_are_none(rule, words):
    with raises(hilrp.InputError, words, "reindexing, activation, gate, stop", "surrogate function"):
        hilrp.register(torch.special.i0, rule)


#: A rule, an operation that isn't in the table, a function that uses it, the relevance of its inputs for a gradient of
#: one, and what is kept.
BY_HAND = {
    "linear": ("reindexing", torch.deg2rad, torch.deg2rad, X64 * math.pi / 180, {}),
    "line through f(0)": ("activation", torch.cosh, torch.cosh, X64.cosh() - 1, {"activation at zero": 4.0}),
    "even split": (
        "activation",
        torch.cosh,
        lambda x: x * torch.cosh(x),
        X64 * X64.cosh() - X64 / 2,
        {"activation at zero": float(X64.sum()) / 2},
    ),
    "gate of a product": ("gate", torch.cosh, lambda x: x * torch.cosh(x), X64 * X64.cosh(), {}),
    "stop": ("stop", torch.sinh, lambda x: x + torch.sinh(x), X64, {"gate": float(X64.sinh().sum())}),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_named_rules_by_hand(name):
    rule, operation, function, expected, kept = BY_HAND[name]
    with hilrp.register(operation, rule):
        found = hilrp.explain(Apply(function).eval(), X64, lambda y: y.sum(1), "epsilon", stages=None)
    torch.testing.assert_close(found.relevance, expected, rtol=1e-12, atol=1e-12)
    assert {entry: float(share) for entry, share in found.ledger.entries.items()} == pytest.approx(kept, rel=1e-12)


# Operations and modules -----------------------------------------------------------------------------------------------


def test_the_remedy_for_an_unknown_operation_works():
    model = Block(torch.special.i0).double().eval()
    with hilrp.register(torch.special.i0, "activation"):
        found = hilrp.explain(model, X.double(), 0)
    assert float(found.ledger.residual.max()) < 1e-10
    with raises(hilrp.AuditError, "No rule"):
        hilrp.explain(model, X.double(), 0)


def test_an_operation_of_the_users_own_library():
    with torch.library._scoped_library("hilrptest", "FRAGMENT") as library:
        library.define("shift(Tensor x) -> Tensor")
        library.impl("shift", lambda x: x * 2 + 1, "CompositeImplicitAutograd")
        model = Block(lambda x: torch.ops.hilrptest.shift(x)).double().eval()
        with raises(hilrp.AuditError, "hilrptest::shift", "middle"):
            hilrp.explain(model, X.double(), 0)
        with hilrp.register(torch.ops.hilrptest.shift, lambda x: x * 2 + 1):
            assert float(hilrp.explain(model, X.double(), 0).ledger.residual.max()) < 1e-10


def test_a_module_with_a_rule_of_its_own():
    """The remedy for hidden operations: a module class is one operation, with a named rule or a surrogate."""

    class Fused(nn.Module):
        def forward(self, x):
            return Square.apply(x)

    model = Block(Fused()).double().eval()
    for rule in ("activation", lambda module, x: x * x.detach()):
        with hilrp.register(Fused, rule):
            found = hilrp.explain(model, X.double(), 0, itemised=True)
            assert torch.equal(found.output, model(X.double()))
            assert float(found.ledger.residual.max()) < 1e-10
            assert float(found.ledger.leak.max()) < 1e-10
    with raises(hilrp.AuditError, "did not see"):
        hilrp.explain(model, X.double(), 0)


def test_registered_modules_of_every_form():
    class Scaled(nn.Module):
        def forward(self, x, by=1.0):
            return Square.apply(x) * by

    class Writes(nn.Module):
        def forward(self, x):
            return x.mul_(torch.sigmoid(x))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.scaled, self.writes = nn.Linear(6, 6), Scaled(), Writes()

        def forward(self, x):
            y = self.linear(x)
            return self.scaled(y, by=2.0) + self.scaled(x=y) + self.writes(y * 1.0)

    model, x = Model().double().eval(), torch.randn(2, 6).double()
    with (
        hilrp.register(Scaled, lambda module, x, by=1.0: x * x.detach() * by),
        hilrp.register(Writes, "activation"),
    ):
        found = hilrp.explain(model, x, 0, itemised=True)
    assert torch.equal(found.output, model(x))
    assert float(found.ledger.leak.max()) < 1e-10


def test_what_can_be_registered():
    def relu(x):
        return x

    for target in (relu, lambda x: x, 3):
        with raises(hilrp.InputError, "is no torch function, nn.Module class or"):
            hilrp.register(target, "stop")
    first = hilrp.register(torch.special.i0, "stop")
    second = hilrp.register(torch.special.i0, "activation")
    model = Block(torch.special.i0).double().eval()
    first.remove()
    hilrp.explain(model, X.double(), 0)
    second.remove()
    with raises(hilrp.AuditError, "No rule"):
        hilrp.explain(model, X.double(), 0)
    # A function that torch writes in Python has the user's rule instead of being opened.
    with hilrp.register(F.normalize, "stop"), raises(hilrp.ModelError, "only through gates"):
        hilrp.explain(Block(lambda x: F.normalize(x)).eval(), X, 0)


def test_a_surrogate_is_compared_with_the_original():
    class Fused(nn.Module):
        def forward(self, x):
            return Square.apply(x)

    model = Block(Fused()).eval()
    with hilrp.register(Fused, lambda module, x: x * 2), raises(hilrp.AuditError, "surrogate of `Fused`", "differs"):
        hilrp.explain(model, X, 0)
    with hilrp.register(Fused, lambda module, x: x.mean()), raises(hilrp.AuditError, "shapes"):
        hilrp.explain(model, X, 0)
    with raises(hilrp.InputError, "class, not a module"):
        hilrp.register(Fused(), "activation")


# Custom functions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", CONSERVING)
@pytest.mark.parametrize("rule", ["activation", lambda x: torch.nn.functional.silu(x)], ids=["named", "surrogate"])
def test_a_registered_function(rules, rule):
    """It has the map of the operation that it is; also where it is called by another name."""
    known, x = make(nn.SiLU()), picture()
    model = make(lambda x: Swish.apply(x))
    reference = hilrp.explain(known, x, 1, rules)
    with hilrp.register(Swish, rule):
        for itemised in (False, True):
            found = hilrp.explain(model, x, 1, rules, itemised=itemised)
            assert torch.equal(found.output, model(x))
            assert float(found.ledger.residual.max()) < 1e-10
            assert float(found.ledger.leak.max()) < 1e-10
            torch.testing.assert_close(found.relevance, reference.relevance, rtol=1e-9, atol=1e-11)
        assert hilrp.audit(model, x, 1, rules).passed
    with pytest.raises(hilrp.AuditError, match="did not see"):
        hilrp.explain(model, x, 1, rules)


def test_a_registered_function_of_the_newer_form():
    def surrogate(x, by):
        return torch.nn.functional.silu(x) * by, x * by

    model = make(lambda x: sum(Scaled.apply(x, 2.0)))
    plain = make(lambda x: torch.nn.functional.silu(x) * 2.0 + x * 2.0)
    x = picture()
    with hilrp.register(Scaled, surrogate):
        for rules in CONSERVING:
            found, expected = (hilrp.explain(each, x, 1, rules) for each in (model, plain))
            torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-9, atol=1e-11)


def test_registering_leaves_a_function_as_it_was():
    own = Swish.__dict__["forward"]
    x = torch.randn(4, requires_grad=True)
    with hilrp.register(Swish, "activation"):
        with hilrp.register(Swish, "stop"):
            assert Swish.__dict__["forward"] is not own
            y = Swish.apply(x)  # without an engine it runs as it is
            (g,) = torch.autograd.grad(y.sum(), x)
        assert Swish.__dict__["forward"] is not own
    assert Swish.__dict__["forward"] is own
    assert torch.equal(y, x * x.sigmoid())
    assert torch.equal(g, x.sigmoid() + x * x.sigmoid() * (1 - x.sigmoid()))


def test_a_registered_function_after_a_write_in_place():
    """It is given what was written, though nothing ever is."""

    def written(x):
        x = x * 1.0
        x += 3
        y = Swish.apply(x)
        y *= 2
        return y

    def plain(x):
        return torch.nn.functional.silu(x + 3) * 2

    with hilrp.register(Swish, "activation"):
        found, expected = (hilrp.explain(make(each), picture(), 1) for each in (written, plain))
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", ["relu", "abs", "leaky_relu", "square", "amax", "log_softmax"])
def test_a_users_rule_is_used_relative_to_a_reference(name):
    """A gate that keeps what reaches it: nothing comes through, and the ledger says where it is."""
    calls = {"amax": lambda x: torch.amax(x, 1, keepdim=True), "log_softmax": lambda x: torch.log_softmax(x, 1)}
    function = {
        "relu": torch.relu, "abs": torch.abs, "leaky_relu": torch.nn.functional.leaky_relu, "square": torch.square,
        "amax": torch.amax, "log_softmax": torch.log_softmax,
    }[name]  # fmt: skip
    call = calls.get(name, function)
    model, x = make(lambda x: x + call(x)), picture()
    plain = make(lambda x: x)
    with hilrp.register(function, "stop"):
        found = hilrp.explain(model, x, 1, "secant", itemised=True)
    expected = hilrp.explain(plain, x, 1, "secant")
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-9, atol=1e-11)
    kept = sum(value for entry, value in found.ledger.entries.items() if "selection" in entry)
    assert float(kept.abs().max()) > 1e-6
    assert float(found.ledger.residual.max()) < 1e-10


# Names ----------------------------------------------------------------------------------------------------------------


def cubed(name: str, of_function: bool) -> type:
    """A class of that name: ``x ** 3 + x / 2``, as a module or as an autograd.Function."""

    def value(x):
        return x**3 + x / 2

    if not of_function:
        return type(name, (nn.Module,), {"forward": lambda self, x: value(x)})

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return value(x)

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (3 * x**2 + 0.5)

    return type(
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )


@pytest.mark.parametrize("of_function", [False, True], ids=["module", "function"])
@pytest.mark.parametrize("relative", [False, True], ids=["plain", "relative"])
@pytest.mark.parametrize("name", "gelu relu floor abs linear matmul prelu add clamp detach".split())
def test_a_class_that_is_called_like_an_operation_of_torchs(name, relative, of_function):
    """It is not taken for that: relative to a reference that agrees in places, gelu has a slope of its own there."""

    def explained(kind):
        torch.manual_seed(5)
        first, last = nn.Linear(4, 4).double(), nn.Linear(4, 3).double()
        curve = kind.apply if of_function else kind()
        x = torch.randn(2, 4, dtype=torch.float64)
        # Of the units one changes.
        reference = x + torch.linalg.inv(first.weight.detach())[:, :1].T if relative else None
        with hilrp.register(kind, "activation"):
            model = Apply(lambda x: last(curve(first(x)))).eval()
            return hilrp.explain(model, x, 1, "epsilon", reference=reference)

    found, plain = explained(cubed(name, of_function)), explained(cubed("Curve", of_function))
    assert found.ledger.residual.max() < 1e-10
    torch.testing.assert_close(found.relevance, plain.relevance, rtol=1e-12, atol=0)
