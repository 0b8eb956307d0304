"""Standard errors of pixels and regions: against scipy, and against what many runs spread."""

from __future__ import annotations

import re

import pytest
import torch
from scipy import stats
from torch import nn

import hilrp
from hilrp import Chains
from hilrp.attribution.error_bars import RegionSum, region_sum, standard_error, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 8, 31, 64, 511])
def test_quantiles_are_students(freedom):
    for probability in (0.5, 0.8, 0.95, 0.975, 0.9995):
        expected = stats.t.ppf(probability, freedom)
        assert student_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for wrong in (0.4, 1.0):
        with pytest.raises(hilrp.InputError):
            student_quantile(wrong, 3)


def test_the_error_is_that_of_the_mean_of_pairs():
    torch.manual_seed(0)
    pairs, explained = torch.randn(2, 6, 4, 5, dtype=torch.float64), torch.tensor([2.0, -4.0], dtype=torch.float64)
    expected = stats.sem(pairs.numpy(), axis=1)
    torch.testing.assert_close(standard_error(pairs), torch.tensor(expected))
    mask = torch.rand(4, 5) > 0.5
    found = region_sum(pairs.mean(1), pairs, mask, explained)
    sums = pairs[:, :, mask].sum(2).numpy()
    torch.testing.assert_close(found.stderr, torch.tensor(stats.sem(sums, axis=1)))
    torch.testing.assert_close(found.relevance, torch.tensor(sums.mean(1)))
    torch.testing.assert_close(found.share, found.relevance / explained)
    torch.testing.assert_close(found.share_stderr, found.stderr / explained.abs())
    for sample in range(2):
        low, high = (float(end[sample]) for end in found.interval(0.9))
        expected = stats.t.interval(0.9, 5, loc=sums[sample].mean(), scale=stats.sem(sums[sample]))
        assert (low, high) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("share", "error", "expected"),
    [
        (0.42, 0.03, "42 % ± 3 %"),
        (-0.421, 0.004, "−42.1 % ± 0.4 %"),
        (0.786, 0.0099, "79 % ± 1 %"),
        (0.786, 0.0056, "78.6 % ± 0.6 %"),
        (0.7861, 0.0004, "78.61 % ± 0.04 %"),
        (0.42142, 0.00006, "42.14 % ± 0.01 %"),
        (1.0, 1e-9, "100 % ± 0 %"),
        (-0.001, 0.02, "0 % ± 2 %"),
        (0.42, None, "42 %"),
    ],
)
def test_shares_have_the_digits_that_their_error_leaves(share, error, expected):
    error = None if error is None else torch.tensor([error])
    assert RegionSum(torch.tensor([share]), torch.tensor([share]), error, error, 2).text() == expected


class Spread(nn.Module):
    """Its pixels matter together, so that chains differ."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, 4, stride=4)
        self.head = nn.Linear(8 * 16, 2)

    def forward(self, x):
        return self.head(self.conv(x).tanh().pow(2).flatten(1).softmax(-1) * 20)


def test_standard_errors_say_how_far_runs_spread():
    """Their squares, averaged over runs, are the variance between runs, and intervals hold the mean of many."""
    torch.manual_seed(1)
    model, copies = Spread().double().eval(), 80
    one = torch.randn(3, 1, 16, 16, dtype=torch.float64).repeat_interleave(copies, 0)
    x = one + 1e-9 * torch.randn_like(one)  # chains depend on the sample: these are runs of one picture
    found = hilrp.explain(model, x, 1, "secant", passes=Chains(2, 16, cells=4), audit="off")
    region = found.region(torch.arange(16).repeat(16, 1) < 8)
    runs = region.relevance.reshape(3, copies)
    said = (region.stderr**2).reshape(3, copies).mean(1)
    torch.testing.assert_close(said, runs.var(1), rtol=0.4, atol=0)
    low, high = (end.reshape(3, copies) for end in region.interval())
    centre = runs.mean(1, keepdim=True)
    assert 0.9 <= float(((low <= centre) & (centre <= high)).double().mean()) <= 0.99


def test_a_linear_model_leaves_nothing_to_chance():
    torch.manual_seed(2)
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).double(), torch.randn(2, 3, 4, 4, dtype=torch.float64)
    found = hilrp.explain(model.eval(), x, 0, "epsilon", "mean", passes=8)
    assert float(found.stderr.max()) < 1e-14
    torch.testing.assert_close(found.map, hilrp.explain(model, x, 0, "epsilon", "mean").map, rtol=0, atol=1e-13)


def test_regions_of_one_pass_have_no_error():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), torch.randn(2, 3, 4, 4)
    for passes in (1, 2, 4):
        found = hilrp.explain(model, x, 0, "secant", passes=passes)
        region = found.region(torch.ones(4, 4))
        assert found.stderr is None
        assert region.stderr is region.share_stderr is region.interval() is None
        assert region.text() == "100 %"
        torch.testing.assert_close(region.relevance, found.ledger.explained, rtol=1e-5, atol=1e-6)


def test_regions_that_can_not_be():
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), torch.randn(2, 3, 4, 4)
    found = hilrp.explain(model, x, 0, "secant", passes=8)
    with pytest.raises(hilrp.InputError, match=r"mask has the shape \(3, 3\)"):
        found.region(torch.ones(3, 3))
    with pytest.raises(hilrp.InputError, match="between 0 and 1"):
        found.region(torch.full((4, 4), 2))
    half = found.region(torch.full((2, 4, 4), 0.5))
    torch.testing.assert_close(half.share, torch.full((2,), 0.5, dtype=torch.float64), rtol=1e-5, atol=0)
    assert half.text(1) == "50 % ± 0 %"


def test_parts_and_files_keep_the_errors(tmp_path):
    import numpy as np

    torch.manual_seed(3)
    model, x = Spread().eval(), torch.randn(3, 1, 16, 16)
    found = hilrp.explain(model, x, 0, "secant", passes=8)
    assert torch.equal(found[1].stderr, found.stderr[1:2])
    found.save(tmp_path / "found")
    saved = np.load(tmp_path / "found.npz")
    assert np.array_equal(saved["stderr"], found.stderr.numpy())
    assert found.facts()["passes"] == 8


@pytest.mark.parametrize("mask", ["x", None, [[1], [1, 2]]], ids=str)
def test_masks_that_are_none(mask):
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), torch.randn(2, 3, 4, 4)
    found = hilrp.explain(model, x, 0, "secant", passes=8)
    with pytest.raises(hilrp.InputError, match="region: the mask is no tensor"):
        found.region(mask)
    with pytest.raises(hilrp.InputError, match="interval"):
        found.region(torch.ones(4, 4)).interval(95)


def test_masks_of_numpy_and_where_there_is_nothing():
    import numpy as np

    model, x = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), torch.randn(2, 3, 4, 4)
    found = hilrp.explain(model, x, 0, "secant")
    upper = np.arange(16).reshape(4, 4)[::-1] >= 8
    torch.testing.assert_close(found.region(upper).relevance, found.map[:, :2].double().sum((1, 2)))
    assert found.region(np.zeros((4, 4))).text() == "0 %"
    assert hilrp.explain(model, x, 0, "secant", x).region(upper).text() == "nothing to explain"


@pytest.mark.parametrize(
    ("passes", "said"),
    [
        (1, r"[0-9.]+ % comes from the marked region;"),
        (4, r"[0-9.]+ % comes from the marked region \(± from 16 passes on\);"),
        (8, r"[0-9.]+ % comes from the marked region \(± from 16 passes on\);"),
        (16, r"[0-9.]+ % ± [0-9.]+ % comes from the marked region;"),
        (Chains(6, 4, cells=4), r"[0-9.]+ % comes from the marked region \(± takes 4 pairs of chains\);"),
    ],
    ids=str,
)
def test_the_sentence_has_an_error_or_says_what_it_takes(passes, said):
    """One pass has none, and promises none; of several the marked region takes twice as many as one that is given."""
    torch.manual_seed(4)
    model, x = Spread().eval(), torch.randn(1, 1, 16, 16)
    found = hilrp.explain(model, x, 1, "secant", passes=passes)
    assert re.search(said, found.sentence())
    mask = torch.arange(16).repeat(16, 1) < 8
    ending = {1: "the region;", 4: r"the region \(± from 8 passes on\);"}.get(passes, r"[0-9] % comes from the region;")
    assert re.search(ending, found.sentence(region=mask))
    assert ("±" in found.sentence(region=mask)) == (found.passes > 1)
    words = [text.get_text().replace("\n", " ").replace("\u00a0", " ") for text in found.plot().texts]
    assert found.sentence() in words
