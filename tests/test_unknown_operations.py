"""Each way in which an operation can be unknown is named, under every preset, in explain, audit and coverage.

And can be registered.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import hilrp
from hilrp.method.composite import Surrogate
from hilrp.method.secant.table import rule_for
from hilrp.method.table import TABLE

F64 = torch.float64
PRESETS = [name for name in hilrp.PRESETS if name != "naive"]


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))


class Scaled(Function):
    """In the newer form, with an argument that is no tensor, and two outputs."""

    @staticmethod
    def forward(x, by):
        return x.sigmoid() * by * x, x * by

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.by = inputs[1]

    @staticmethod
    def backward(ctx, g, h):
        return (g + h) * ctx.by, None


class Doubling(Function):
    """Writes to its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


swish = Swish.apply


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class Model(nn.Module):
    def __init__(self, middle) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.middle = nn.Conv2d(3, 4, 3), nn.Linear(4, 3), middle

    def forward(self, x):
        return self.head(self.middle(self.conv(x)).mean((2, 3)))


def make(middle) -> nn.Module:
    return Model(middle).to(F64).eval()


def picture() -> Tensor:
    return torch.randn(2, 3, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(1))


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
    "custom Function": (lambda x: swish(x), "did not see.*Swish"),
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


@pytest.mark.parametrize("rules", PRESETS)
@pytest.mark.parametrize("kind", UNKNOWN)
def test_unknown_operations_are_named(kind, rules):
    middle, words = UNKNOWN[kind]
    model, x = make(middle), picture()
    with pytest.raises(hilrp.AuditError, match=f"(?s){words}") as caught:
        hilrp.explain(model, x, 1, rules)
    assert not isinstance(caught.value, hilrp.BooksError)
    report = hilrp.audit(model, x, 1, rules)
    assert not report.passed
    assert "did not see" in str(report) or "No rule" in str(report)


def test_a_small_error_is_named_as_well():
    """A function that is nearly linear leaks next to nothing; it is unknown all the same."""

    class Nearly(Function):
        @staticmethod
        def forward(ctx, x):
            return x * (1 + 1e-14)

        @staticmethod
        def backward(ctx, g):
            return g

    for rules in PRESETS:
        with pytest.raises(hilrp.AuditError, match=r"did not see.*Nearly"):
            hilrp.explain(make(Nearly.apply), picture(), 1, rules)


# Registered functions
# ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", PRESETS)
@pytest.mark.parametrize("rule", ["activation", lambda x: torch.nn.functional.silu(x)], ids=["named", "surrogate"])
def test_a_registered_function(rules, rule):
    """It has the map of the operation that it is; also where it is called by another name."""
    known, x = make(nn.SiLU()), picture()
    model = make(lambda x: swish(x))
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
        for rules in PRESETS:
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
        y = swish(x)
        y *= 2
        return y

    def plain(x):
        return torch.nn.functional.silu(x + 3) * 2

    with hilrp.register(Swish, "activation"):
        found, expected = (hilrp.explain(make(each), picture(), 1) for each in (written, plain))
    torch.testing.assert_close(found.relevance, expected.relevance, rtol=1e-9, atol=1e-11)


# A user's rule comes first
# ----------------------------------------------------------------------------------------------


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


def test_every_rule_of_the_table_has_a_form_relative_to_a_reference():
    for name, row in TABLE.items():
        if not isinstance(row.rule, Surrogate):
            assert callable(rule_for(name, row.rule))
    with pytest.raises(hilrp.AuditError, match=r"`mine` has no form relative to a reference.*hilrp.register"):
        rule_for("mine", lambda call: call.run(), users=True)


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
