"""The page of one explanation: its sentences, its charts, and its numbers in a browser, without a server."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from helpers.browser import drag
from hilrp.attribution.sentences import number
from hilrp.pages.arrays import errors_of
from hilrp.pages.charts import waterfall
from hilrp.pages.viewer import viewer_page
from hilrp.pages.words import fewest_with_errors, headline, share_of, surety, verdict

SIDE = 24


class Together(nn.Module):
    """Its pixels matter together, so that chains differ; what speaks for one class speaks against the other."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, stride=4)
        self.hidden, self.head = nn.Linear(8 * 36, 32), nn.Linear(32, 1)

    def forward(self, x):
        score = 20 * self.head(self.hidden(self.conv(x).relu().flatten(1)).relu())
        return torch.cat([score, -score], 1)


def explained(target: int = 0, passes: int = 16, **options) -> hilrp.Explanation:
    torch.manual_seed(3)
    model, x = Together().eval(), torch.rand(1, 3, SIDE, SIDE)
    return hilrp.explain(model, x, target, **({"rules": "secant", "passes": passes} | options))


def higher_and_lower(**options) -> tuple[hilrp.Explanation, hilrp.Explanation]:
    """The score rises for one class and falls as much for the other."""
    both = [explained(target, **options) for target in (0, 1)]
    first, second = sorted(both, key=lambda each: -float(each.ledger.explained))
    return first, second


def test_the_headline_says_how_much_higher_or_lower():
    higher, lower = higher_and_lower(passes=1)
    size = f"{float(higher.ledger.explained):.2f}"
    assert headline(higher, "cat", "its mean colour") == (
        f"\u201ccat\u201d scores {size} higher on this picture than on its mean colour"
    )
    assert f"scores {size} lower on this picture" in headline(lower, "cat", "its mean colour")
    plain = explained(rules="hilrp", passes=1)
    assert headline(plain, "cat", None) == f"\u201ccat\u201d scores {number(float(plain.score))} on this picture"


def test_the_headline_of_no_difference():
    torch.manual_seed(3)
    x = torch.rand(1, 3, SIDE, SIDE)
    found = hilrp.explain(Together().eval(), x, 0, "secant", reference=x)
    assert headline(found, "cat", "itself") == "\u201ccat\u201d scores the same on this picture as on itself"
    assert share_of(found, torch.ones(SIDE, SIDE), "the object") == ""
    assert "no difference to explain" in verdict(found, "itself")


def test_shares_of_differences_below_zero_have_the_right_sign():
    """What lowers the score is a part of what it is lower by."""
    mask = torch.zeros(SIDE, SIDE)
    mask[:12] = 1
    for found in higher_and_lower():
        region = found.region(mask)
        ending = share_of(found, mask, "the object")
        assert ending == f"; {region.text()} of that difference comes from the object"
        assert "\u00b1" in ending
    assert len({share_of(found, mask, "the object") for found in higher_and_lower()}) == 1


def test_verdicts_speak_of_the_difference():
    text = verdict(explained(), "its mean colour")
    assert "all of the difference" in text
    assert "on its mean colour" in text
    assert "constants of the model keep" in verdict(explained(rules="hilrp", passes=1), None)


def test_from_when_on_errors_are_known():
    least = fewest_with_errors()
    assert explained(passes=least).stderr is not None
    assert explained(passes=least // 2).stderr is None
    assert f"known from {least} passes on" in surety(explained(passes=1))
    assert surety(explained(passes=16)).startswith("16 passes, in 4 pairs")
    assert surety(explained(rules="hilrp", passes=1)) == ""


def test_the_waterfall_goes_from_the_reference_to_the_score():
    found = explained()
    text = waterfall(found, relative_to="its mean colour")
    names = re.findall(r'text-anchor="end">([^<]*)<', text)
    values = [float(v) for v in re.findall(r'y="[0-9]+">([^<]*)</text>', text)]
    assert names == ["score on its mean colour", "pixels", "missing", "score on this picture"]
    assert values[0] + values[1] == pytest.approx(values[3], abs=0.02)
    assert values[3] == pytest.approx(float(found.score), abs=0.01)


def decoded(halves: dict) -> np.ndarray:
    import base64

    return np.frombuffer(base64.b64decode(halves["values"]), "<f2").astype(float) * halves["scale"]


def test_the_page_holds_what_errors_are_computed_from():
    found = explained()
    errors = errors_of(found)
    apart = decoded(errors["apart"]).reshape(4, SIDE, SIDE)
    expected = (found.pair_maps[0] - found.pair_maps[0].mean(0)).numpy()
    np.testing.assert_allclose(apart, expected, rtol=1e-3, atol=1e-6 * np.abs(expected).max())
    pixels = decoded(errors["pixels"]).reshape(SIDE, SIDE)
    np.testing.assert_allclose(pixels, found.stderr[0].numpy(), rtol=1e-3, atol=1e-6 * float(found.stderr.max()))
    low, high = found.region(torch.ones(SIDE, SIDE)).interval(errors["level"])
    assert 2 * errors["reach"] * float(found.region(torch.ones(SIDE, SIDE)).stderr) == pytest.approx(float(high - low))
    assert errors_of(explained(passes=4)) is None


def test_large_pages_hold_sums_over_blocks(monkeypatch):
    monkeypatch.setattr("hilrp.pages.arrays.MOST", 4 * 5 * 5)
    found = explained()
    errors = errors_of(found)
    assert (errors["block"], errors["rows"], errors["columns"]) == (5, 5, 5)
    apart = decoded(errors["apart"]).reshape(4, 5, 5)
    expected = (found.pair_maps[0] - found.pair_maps[0].mean(0)).numpy()
    np.testing.assert_allclose(apart[:, 1, 4], expected[:, 5:10, 20:24].sum((1, 2)), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("most", [2**21, 4 * 6 * 6])
def test_a_rectangle_in_the_browser(browser, tmp_path, monkeypatch, most):
    """Its error is that of `Explanation.region`, also where the page holds blocks of 4 x 4 pixels alone."""
    monkeypatch.setattr("hilrp.pages.arrays.MOST", most)
    mask = torch.zeros(SIDE, SIDE)
    mask[4:20, 8:16] = 1
    tab = browser.new_page()
    for i, found in enumerate(higher_and_lower()):
        file = tmp_path / f"{i}.html"
        file.write_text(viewer_page(found, "cat", "a picture", relative_to="its mean colour"))
        tab.goto(file.as_uri())
        tab.locator("#region", has_text="Hover").wait_for()
        drag(tab, tab.locator("#view"), 8.5 / SIDE, 4.5 / SIDE, 15.5 / SIDE, 19.5 / SIDE)
        region = found.region(mask)
        said = tab.locator("#headline").inner_text()
        assert said.endswith(f"; {region.text()} of that difference comes from the marked rectangle.")
        if most < 1000:  # a block that is cut counts with its part: half of these rows
            drag(tab, tab.locator("#view"), 8.5 / SIDE, 4.5 / SIDE, 15.5 / SIDE, 5.5 / SIDE)
            rows = torch.zeros(SIDE, SIDE)
            rows[4:8, 8:16] = 1
            half = float(found.region(rows).stderr) / 2
            error = float(re.search(r"Together \S+ \u00b1 ([0-9.]+)", tab.locator("#region").inner_text()).group(1))
            assert error == pytest.approx(half, abs=0.6 * 10 ** -len(str(error).partition(".")[2]))
    tab.close()


def test_one_pass_has_no_error_in_the_browser(browser, tmp_path):
    found = explained(passes=1)
    (tmp_path / "one.html").write_text(viewer_page(found, "cat", "a picture", relative_to="its mean colour"))
    tab = browser.new_page()
    tab.goto((tmp_path / "one.html").as_uri())
    tab.locator("#region", has_text="Hover").wait_for()
    drag(tab, tab.locator("#view"), 0.1, 0.1, 0.9, 0.6)
    assert "of that difference comes from the marked rectangle" in tab.locator("#headline").inner_text()
    assert "\u00b1" not in tab.locator("main").inner_text()
    tab.close()
