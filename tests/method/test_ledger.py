"""The ledger against numbers that are computed by hand: shares of samples, entries, leaks, and what is made of them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import hilrp
from helpers.blocks import Block, X, raises
from hilrp.method.ledger import Books, Ledger, Site, UnknownLayout, per_sample
from hilrp.method.sample_axis import Layout

F64 = torch.float64
HERE, THERE = Site("stem", "conv2d"), Site("head", "linear", 2)


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def ledger(score: Tensor, pixels: Tensor, entries: dict[str, Tensor], leaks: dict[str, Tensor] | None = None) -> Ledger:
    return Ledger(score, pixels, entries, leaks or {}, leaks is not None, {"pixels": pixels})


# Shares of samples ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(12, 5), (5,), (1,), (12, 1)])
@pytest.mark.parametrize("inner", [1, 2, 6])
def test_shares_are_sums_over_the_elements_of_a_sample(shape, inner):
    """Of two samples folded into an axis of twelve; the constant has all axes of the gradient, or is broadcast."""
    c, g = torch.randn(shape, dtype=F64), torch.randn(12, 5, dtype=F64)
    expected = [0.0, 0.0]
    for i, j in itertools.product(range(12), range(5)):
        expected[i // inner % 2] += float(c.expand(12, 5)[i, j] * g[i, j])
    found = per_sample(c, g, Layout(0, inner), 2)
    torch.testing.assert_close(found, vector(*expected), rtol=1e-12, atol=1e-12)


def test_samples_on_another_axis():
    c, g = torch.randn(3, 4, 1, dtype=F64), torch.randn(3, 4, 2, dtype=F64)
    expected = [sum(float(c[i, b, 0] * g[i, b, k]) for i in range(3) for k in range(2)) for b in range(4)]
    torch.testing.assert_close(per_sample(c, g, Layout(1, 1), 4), vector(*expected), rtol=1e-12, atol=1e-12)


def test_shares_are_summed_in_float64():
    """In float32 the second number would be lost."""
    found = per_sample(torch.ones(2), torch.tensor([[1e8, 1.0]]), Layout(0, 1), 1)
    assert found.tolist() == [1e8 + 1]
    assert found.dtype == F64


def test_shares_of_complex_constants():
    """With torch's convention for gradients it is the real part of ``conj(c) g``: here 1 * 3 + 2 * 4."""
    c, g = torch.tensor([1 + 2j], dtype=torch.complex128), torch.tensor([[3 + 4j]], dtype=torch.complex128)
    assert per_sample(c, g, Layout(0, 1), 1).tolist() == [11.0]


def test_where_samples_are_not_known():
    c, g = vector(2.0), torch.ones(2, 3, dtype=F64)
    with pytest.raises(UnknownLayout):
        per_sample(c, g, None, 2)
    assert per_sample(c, g, None, 1).tolist() == [12.0]  # a single one needs no layout


# Books ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("itemised", [True, False])
def test_accounts(itemised):
    """Totals are by kind; itemised, by operation and kind."""
    books, g = Books(2, itemised), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=F64)
    books.account("bias", HERE, Layout(0, 1))(vector(10.0, 1.0), g)
    books.account("bias", THERE, Layout(0, 1))(vector(1.0, 0.0), g)
    books.account("mask", THERE, Layout(0, 1))(vector(0.0, 1.0), g)
    books.account("mask", THERE, Layout(0, 1))(vector(0.0, 1.0), None)  # a gradient of zeros
    found = {key: share.tolist() for key, share in books.shares.items()}
    if itemised:
        assert found == {(HERE, "bias"): [12.0, 34.0], (THERE, "bias"): [1.0, 3.0], (THERE, "mask"): [2.0, 4.0]}
    else:
        assert found == {(None, "bias"): [13.0, 37.0], (None, "mask"): [2.0, 4.0]}
    books.clear()
    assert not books.shares


def test_a_seed_of_the_backward_pass_is_taken_out():
    books = Books(1, seed=8.0)
    books.account("bias", HERE, Layout(0, 1))(vector(3.0), torch.tensor([[8.0]], dtype=F64))
    assert books.shares[None, "bias"].tolist() == [3.0]


def test_masks_have_no_share():
    """What isn't finite is a mask, whose gradient is zero; parameters that aren't finite are not hidden."""
    masked, g = vector(float("-inf"), 2.0), torch.tensor([[0.0, 3.0]], dtype=F64)
    books = Books(1)
    books.account("constant", HERE, Layout(0, 1))(masked, g)
    books.account("bias", HERE, Layout(0, 1))(masked, g)
    assert books.shares[None, "constant"].tolist() == [6.0]
    assert books.shares[None, "bias"].isnan().all()


def test_what_can_not_be_told_apart_is_remembered():
    books = Books(2)
    books.account("bias", HERE, None)(vector(1.0), torch.ones(2, 1, dtype=F64))
    assert books.unsplit
    assert not books.shares


def test_flows_are_measured_in_the_backward_pass():
    """Relevance into an operation less what comes out: of ``y = x + 2`` at 3, relative to 1 in the second books."""
    for reference, expected in ((None, [5.0 - 3.0]), (1.0, [4.0 - 2.0])):
        books, x = Books(1, itemised=True), torch.tensor([[3.0]], dtype=F64, requires_grad=True)
        y = x + 2
        for tensor, sign in ((y, 1), (x, -1)):
            before = None if reference is None else torch.full_like(tensor, reference)
            books.measure(tensor, sign, HERE, Layout(0, 1), before)
        y.sum().backward()
        assert books.flows[HERE].tolist() == expected


# The ledger -----------------------------------------------------------------------------------------------------------


def test_the_ledger_of_a_unit_by_hand():
    """``3 relu(2 a - b - 1)`` at (2, 1): contributions 4, -1 and -1, each times 3."""
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU(), nn.Linear(1, 1)).double().eval()
    with torch.no_grad():
        model[0].weight[:], model[0].bias[:] = torch.tensor([[2.0, -1.0]]), -1.0
        model[2].weight[:], model[2].bias[:] = 3.0, 0.5
    x = torch.tensor([[2.0, 1.0], [-2.0, 1.0]], dtype=F64)  # the unit is off for the second
    found = hilrp.explain(model, x, 0, "epsilon", stages=None)
    assert found.relevance.tolist() == [[12.0, -3.0], [0.0, 0.0]]
    assert found.ledger.score.tolist() == [6.5, 0.5]
    assert {name: share.tolist() for name, share in found.ledger.entries.items()} == {"bias": [-2.5, 0.5]}
    itemised = hilrp.explain(model, x, 0, "epsilon", stages=None, itemised=True).ledger
    assert {name: share.tolist() for name, share in itemised.entries.items()} == {
        "0: linear (bias)": [-3.0, 0.0],
        "2: linear (bias)": [0.5, 0.5],
    }
    assert max(float(leak.abs().max()) for leak in itemised.leaks.values()) == 0.0
    assert itemised.leaks.keys() >= {"0: linear", "2: linear"}


def test_closing():
    """Flows that shares explain are no leaks."""
    books = Books(2, itemised=True)
    books.shares = {(HERE, "bias"): vector(1, 2), (HERE, "mask"): vector(0.5, 0.5), (THERE, "bias"): vector(1, 1)}
    books.flows = {HERE: vector(1.5, 3.5), THERE: vector(1, 1)}
    found = Ledger.close(books, vector(10, 20), {"pixels": vector(4, 5), "words": vector(3, 4)})
    assert {name: share.tolist() for name, share in found.entries.items()} == {
        "stem: conv2d (bias)": [1, 2],
        "stem: conv2d (mask)": [0.5, 0.5],
        "head: linear #2 (bias)": [1, 1],
    }
    assert {name: leak.tolist() for name, leak in found.leaks.items()} == {
        "stem: conv2d": [0, 1],
        "head: linear #2": [0, 0],
    }
    assert found.pixels.tolist() == [7, 9]
    assert found.constants.tolist() == [2.5, 3.5]
    assert found.difference.tolist() == [0.5, 7.5]
    assert found.residual.tolist() == [0.05, 0.375]
    assert found.leak.tolist() == [0, 0.05]
    assert list(found.arrived) == ["pixels", "words"]


def test_without_items_the_leak_is_the_residual():
    found = ledger(vector(-4.0), vector(-3.0), {"bias": vector(-2.0)})
    assert found.difference.tolist() == [1.0]
    assert found.leak.tolist() == found.residual.tolist() == [0.25]
    assert list(found.arrived) == ["pixels"]


def test_opposite_leaks_do_not_cancel():
    found = ledger(vector(2.0), vector(2.0), {}, {"a": vector(0.5), "b": vector(-0.5)})
    assert found.residual.tolist() == [0.0]
    assert found.leak.tolist() == [0.5]


def test_relative_to_a_reference():
    """Amounts are relative to the larger of the two scores, either of which may be zero."""
    found = ledger(vector(0.0, 3.0, 0.0), vector(-4.5, 2.0, 0.0), {"reference": vector(5.0, 1.0, 0.0)})
    assert found.explained.tolist() == [-5.0, 2.0, 0.0]
    assert found.residual.tolist() == [0.1, 0.0, 0.0]
    assert found.contrast.tolist() == pytest.approx([1.0, 2 / 3, 0.0])
    plain = ledger(vector(2.0), vector(1.0), {})
    assert plain.explained.tolist() == [2.0]
    assert plain.contrast.tolist() == [1.0]
    assert plain.share.tolist() == [0.5]


def test_scores_near_zero_have_a_floor():
    """Beside others a score of 0.001 is no more exact than these: of a chain, than those of its largest state."""
    exact = ledger(vector(1e-3), vector(0.9e-3), {"reference": vector(0.0)})
    whole = ledger(vector(3.0), vector(2.7), {})
    assert exact.residual.tolist() == pytest.approx([0.1])
    small = replace(exact, floor=vector(0.02))
    assert small.residual.tolist() == small.leak.tolist() == pytest.approx([0.005])
    assert small.contrast.tolist() == pytest.approx([0.05])
    assert replace(whole, floor=vector(0.02)).residual.tolist() == whole.residual.tolist() == pytest.approx([0.1])
    both = [small, replace(exact, floor=vector(0.06))]
    assert Ledger.joined([*both, exact]).residual.tolist() == pytest.approx([0.005, 1e-4 / 0.06, 0.1])
    assert Ledger.weighted(both, [0.5, 0.5]).floor.tolist() == pytest.approx([0.04])
    assert Ledger.of_chain(both).floor.tolist() == pytest.approx([0.06])
    assert Ledger.of_chain([exact, exact]).floor is None


def test_ledgers_together():
    """One after the other, or their mean; an entry that one of them doesn't have is zero there."""
    first, second = (
        ledger(vector(1), vector(0.5), {"bias": vector(0.5)}),
        ledger(vector(3), vector(1), {"mask": vector(2)}),
    )
    joined, mean = Ledger.joined([first, second]), Ledger.weighted([first, second], [0.5, 0.5])
    assert {name: share.tolist() for name, share in joined.entries.items()} == {"bias": [0.5, 0], "mask": [0, 2]}
    assert joined.score.tolist() == [1, 3]
    assert joined.residual.tolist() == [0, 0]
    assert {name: share.tolist() for name, share in mean.entries.items()} == {"bias": [0.25], "mask": [1]}
    assert mean.score.tolist() == [2]
    assert mean.pixels.tolist() == [0.75]


def test_the_table():
    found = ledger(vector(4.0), vector(1.0), {"bias": vector(-0.5), "mask": vector(2.0), "other": vector(0.25)})
    lines = [line.split() for line in found.table(rows=2).splitlines()]
    assert lines == [
        ["score", "4", "share"],
        ["pixels", "1", "0.2500"],
        ["mask", "2", "0.5000"],
        ["bias", "-0.5", "-0.1250"],
        ["1", "smaller", "entries", "0.25", "0.0625"],
        ["not", "accounted", "for", "1.25", "0.3125"],
    ]


def test_a_leak_that_cancels_is_found_by_itemised_books():
    model = Block(lambda x: x + torch.special.i0(x) - torch.special.i0(x.flip(1)).flip(1)).double().eval()
    with hilrp.register(torch.special.i0, "reindexing"), raises(hilrp.BooksError, "i0"):
        hilrp.explain(model, X.double(), 0, itemised=True, rules="hilrp")
