"""The engine: exact values, in-place calls, hidden operations, opened functions."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from hilrp.engine.module_stack import ModuleWatch
from test_rules_by_hand import Apply


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


REINDEXING = {
    "windows": lambda x: x.view(2, 3, 2, 2, 2).permute(0, 2, 1, 3, 4).reshape(-1, 3, 4) + torch.arange(4.0),
    "roll": lambda x: torch.roll(x, (1, -1), (1, 2)) + torch.arange(8.0),
    "unfold": lambda x: F.unfold(x.reshape(2, 3, 4, 4), 3, padding=1) + 0.5,
    "pixel shuffle": lambda x: F.pixel_unshuffle(x.reshape(2, 3, 4, 4), 2) + 1,
    "gather": lambda x: x.gather(1, torch.tensor([0, 2, 1, 0]).expand(2, 1, 4)) + 1,
    "advanced indexing": lambda x: x[:, [2, 0, 1], :][..., torch.tensor([3, 1])] + 1,
    "sequence first": lambda x: x.transpose(0, 1) + torch.arange(8.0),
    "heads": lambda x: x.reshape(2, 12, 2, 2).permute(2, 0, 3, 1).flatten(1, 2) + 0.7,
    "batch folded inside": lambda x: x.permute(1, 0, 2).reshape(6, 8, -1) + torch.arange(8.0)[:, None],
    "cat and split": lambda x: torch.cat([x, torch.ones(2, 1, 8), *x.split(1, 1)], 1) + 0.1,
    "stack and unbind": lambda x: torch.stack(x.unbind(1), 2) + 0.1,
    "pad": lambda x: F.pad(x, (1, 1), value=0.5),
    "reflection": lambda x: F.pad(x, (1, 1), mode="reflect") + 1,
    "interpolate": lambda x: F.interpolate(x.reshape(2, 3, 4, 4), scale_factor=2, mode="bilinear") + 1,
    "bicubic": lambda x: F.interpolate(x.reshape(2, 3, 4, 4), size=(7, 5), mode="bicubic", antialias=True) + 1,
    "where": lambda x: torch.where(x > 0, x, torch.tensor(0.5)),
    "einsum": lambda x: torch.einsum("bij,kj->kbi", x, torch.randn(3, 8, generator=torch.Generator().manual_seed(0))) + 1,
    "repeat": lambda x: x.repeat(1, 2, 1) + 1,
    "fourier": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * (1 + 0.5j)) + 1,
    "cumsum": lambda x: x.cumsum(1) + 1,
    "max over an axis": lambda x: x.max(1).values + 1,
    "topk": lambda x: x.topk(2, dim=1).values + 1,
    "mean pooling": lambda x: F.adaptive_avg_pool2d(x.reshape(2, 3, 4, 4), 2) + 1,
    "max pooling": lambda x: F.max_pool2d(x.reshape(2, 3, 4, 4), 2) + 1,
}  # fmt: skip


@pytest.fixture
def _float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


#: Forms that see the input as an image of 4 x 4.
_IMAGES = ("unfold", "pixel shuffle", "interpolate", "bicubic", "mean pooling", "max pooling", "heads")


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("form", REINDEXING)
def test_reindexing_conserves_for_each_sample(form):
    """Constants enter wherever the samples have been moved to; the books are still kept per sample."""
    function, x = REINDEXING[form], torch.randn(2, 3, 16 if form in _IMAGES else 8)
    weights = torch.randn(1000)

    class Model(nn.Module):
        def forward(self, x):
            y = function(x)
            if form == "batch folded inside":
                y = y.reshape(3, 2, -1).transpose(0, 1)
            elif form in ("sequence first", "einsum"):
                y = y.transpose(0, 1)
            elif form == "heads":
                y = y.reshape(2, 2, 2, 12).transpose(0, 1)
            y = y.reshape(2, -1)
            return y @ weights[: y.shape[1]]

    model = Model().eval()
    found = hilrp.explain(model, x, lambda out: out, stages=None, itemised=True)
    assert torch.equal(found.output, model(x))
    assert float(found.ledger.leak.max()) < 1e-10
    assert float(found.ledger.residual.max()) < 1e-10
    assert not found.notes, "the samples could not be told apart in one pass"


def test_where_the_batch_cannot_be_followed_the_samples_are_explained_one_by_one():
    class Loop(nn.Module):
        def forward(self, x):
            return torch.stack([t * 2 + 0.5 for t in x]).sum((1, 2))

    model = Loop().eval()
    x = torch.randn(3, 2, 4).double()
    found = hilrp.explain(model, x, lambda out: out)
    assert float(found.ledger.residual.max()) < 1e-10
    torch.testing.assert_close(found.ledger.entries["constant"], torch.full((3,), 4.0).double())
    assert any("backward pass per sample" in note for note in found.notes)


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
        found = hilrp.explain(model, x, lambda out: out[:, 0].sum(1), itemised=True)
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
    watch = ModuleWatch(nn.ReLU(), lambda module, args: entered.append(module), lambda module, kwargs, output: None)
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
