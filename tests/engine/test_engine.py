"""The engine: exact values, in-place calls, hidden operations, opened functions."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.nets import Apply
from hilrp.engine.module_stack import ModuleWatch


def check(function, x, target=None, **options):
    """Explains a function and asserts what must always hold: the exact value and closed books."""
    model = Apply(function).eval()
    plain = model(x.clone() if isinstance(x, torch.Tensor) else tuple(t.clone() for t in x))
    found = hilrp.explain(
        model, x, target or (lambda out: out.flatten(1).sum(1)), stages=None, itemised=True, **options
    )
    assert torch.equal(found.output, plain)
    assert float(found.ledger.residual.max()) < 1e-10
    assert float(found.ledger.leak.max()) < 1e-10
    return found


def statement(x):
    y = x * 2
    y.add_(1)
    y.relu_()
    return y


def augmented(x):
    y = x + 0.5
    y *= 3
    y -= x
    y /= 2
    return y


def through_a_view(x):
    y = x * 1.5
    first = y[:, :2]
    first.mul_(3)
    return y


def other_view(x):
    y = x * 1.5
    flat, half = y.view(y.shape[0], -1), y[:, 1:]
    y.add_(2)
    half.mul_(2)
    return flat


def chain_of_views(x):
    y = x.clone()
    y.transpose(1, 2)[:, 0].view(-1).copy_(y[:, :, 1].reshape(-1) * 2)
    return y


def setitem_constant_target(x):
    out = torch.zeros(x.shape[0], 3, 4, dtype=x.dtype) + 0.3
    out[:, 1] = x[:, 0] * 2
    out[:, 2, ::2] = x[:, 1, ::2]
    return out


def setitem_constant_value(x):
    y = x * 2
    y[:, 0] = 5.0
    y[y > 1] = 0.25
    return y


def functional_inplace(x):
    y = F.relu(x * 2 - 0.1, inplace=True)
    F.silu(y, inplace=True)
    return F.hardswish(y, inplace=True)


def zero_fill_copy(x):
    y, z, w = x * 2, x * 3, x * 4
    y[:, 0].zero_()
    z[:, 1].fill_(2.0)
    w.copy_(y + z)
    return w


def out_argument(x):
    y = torch.empty_like(x)
    torch.add(x, x * 2, out=y)
    return y * 3


def writes_to_its_input(x):
    x.mul_(2)
    return x + 1


def view_of_a_constant(x):
    buffer = torch.zeros(2, 3, 4, dtype=x.dtype)
    first = buffer[:, 0]
    buffer[:, 0] = x[:, 0]
    return first * 2 + x[:, 1]


def filled_by_keyword(x):
    y = x * 2
    y[:, 0].fill_(value=0.5)
    return y


def masked(x):
    y = x * 1.0
    y.masked_fill_(x > 0.5, -1.0)
    return y.clamp_(-2, 0.4)


def in_place_transpose(x):
    y = x * 2
    y.transpose_(1, 2)
    return y.contiguous() + 1


def accumulated(x):
    out = torch.zeros_like(x)
    for i in range(3):
        out[:, i] += x[:, i] * (i + 1)
    return out


IN_PLACE = [
    statement, augmented, through_a_view, other_view, chain_of_views, setitem_constant_target, setitem_constant_value,
    functional_inplace, zero_fill_copy, out_argument, writes_to_its_input, masked, in_place_transpose, accumulated,
    view_of_a_constant, filled_by_keyword,
]  # fmt: skip


@pytest.mark.parametrize("function", IN_PLACE)
def test_in_place_calls_have_the_values_of_in_place_calls(function):
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    before = x.clone()
    check(function, x)
    assert torch.equal(x, before), "the caller's tensor was written to"


def test_writing_to_what_was_detached_is_refused():
    def function(x):
        y = x * 2
        y.detach().mul_(2)
        return y

    with pytest.raises(hilrp.ModelError, match="shares its memory"):
        hilrp.explain(Apply(function).eval(), torch.randn(1, 4), lambda out: out.sum(1))


def test_in_place_calls_explain_as_their_twins_do():
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    inplace = check(lambda t: F.relu(t * 2, inplace=True) * 3, x)
    twin = check(lambda t: F.relu(t * 2) * 3, x)
    assert torch.equal(inplace.relevance, twin.relevance)


class TestMultiheadAttention:
    @pytest.mark.parametrize("need_weights", [True, False])
    @pytest.mark.parametrize("batch_first", [True, False])
    def test_conserves(self, need_weights, batch_first):
        attention = nn.MultiheadAttention(8, 2, batch_first=batch_first).double()
        nn.init.normal_(attention.in_proj_bias)

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.attention = attention

            def forward(self, x):
                x = x if batch_first else x.transpose(0, 1)
                out = self.attention(x, x, x, need_weights=need_weights)[0]
                return out if batch_first else out.transpose(0, 1)

        model = Model().eval()
        x = torch.randn(3, 5, 8, dtype=torch.float64)
        found = hilrp.explain(model, x, lambda out: out[:, 0].sum(1), itemised=True, rules="hilrp")
        assert torch.equal(found.output, model(x))
        assert float(found.ledger.leak.max()) < 1e-10
        assert set(found.ledger.entries) == {"attention: linear (bias)", "attention: linear #2 (bias)"}

    def test_the_fast_path_is_not_taken(self):
        """Under no_grad nn.TransformerEncoderLayer would run as one opaque kernel."""
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu").eval()
        x = torch.randn(2, 5, 8)
        with torch.no_grad():
            found = hilrp.explain(layer, x, lambda out: out[:, 0, 0])
        report = hilrp.audit(layer, x, lambda out: out[:, 0, 0])
        assert report.passed, report
        assert report.operations["bilinear"]["scaled_dot_product_attention"] == 1
        assert float(found.ledger.residual.max()) < 1e-4


def test_even_where_a_model_catches_exceptions_the_path_is_right():
    class Fails(nn.Module):
        def forward(self, x):
            raise RuntimeError("no")

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.fails, self.linear = Fails(), nn.Linear(4, 2)

        def forward(self, x):
            try:
                return self.fails(x)
            except RuntimeError:
                return self.linear(x)

    found = hilrp.explain(Model().eval(), torch.randn(1, 4), 0, itemised=True)
    assert any(name.startswith("linear: linear") for name in found.ledger.leaks)


def test_modules_of_other_threads_are_not_ours():
    """torch's hooks for all modules see every thread; a watch minds the one that it was opened in."""
    entered = []
    watch = ModuleWatch(
        nn.ReLU(), lambda module, args: entered.append(module), lambda module, args, kwargs, output: None
    )
    watch.open()
    try:
        thread = threading.Thread(target=lambda: nn.GELU()(torch.zeros(1)))
        thread.start()
        thread.join()
        assert not entered
        nn.GELU()(torch.zeros(1))
        assert len(entered) == 1
    finally:
        watch.close()


@pytest.mark.parametrize("change", [lambda y: y.unsqueeze_(1), lambda y: y.transpose_(1, 2), lambda y: y.squeeze_(1)])
def test_reshaped_in_place(change):
    """The result of an in-place reshape is a view of what it stands for."""
    layer = nn.Conv2d(3, 4, 3).double()

    def function(x):
        y = layer(x)[:, :1].contiguous()
        y = change(y)
        return y.flatten(1) ** 2

    check(function, torch.randn(2, 3, 8, 8).double())
