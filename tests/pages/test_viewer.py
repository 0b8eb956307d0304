"""The page of one explanation: its sentences, its charts, and its numbers in a browser, without a server."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from helpers.browser import drag
from hilrp.pages.arrays import errors_of
from hilrp.pages.charts import waterfall
from hilrp.pages.viewer import viewer_page
from hilrp.pages.words import fewest_with_errors, surety, verdict
from hilrp.targets import Contrast

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


def shown(found: hilrp.Explanation, **options) -> str:
    """The page of an explanation of a cat."""
    return viewer_page(found, "cat", "a picture", **options)


def said(tab) -> str:
    """The sentence that the page begins with."""
    return str(tab.locator("#headline").inner_text())


def opened(tab, tmp_path, found: hilrp.Explanation, **options) -> None:
    (tmp_path / "page.html").write_text(shown(found, **options))
    tab.goto((tmp_path / "page.html").as_uri())
    tab.locator("#region", has_text="Hover").wait_for()


@pytest.fixture
def tab(browser):
    found = browser.new_page()
    yield found
    found.close()


@pytest.mark.parametrize("options", [{}, {"passes": 1}, {"passes": 1, "rules": "hilrp"}], ids=str)
def test_it_begins_with_the_sentence_of_explain(options, tab, tmp_path):
    for found in higher_and_lower(**options):
        opened(tab, tmp_path, found)
        sentence = found.sentence(0, ["cat", "cat"])
        assert "comes from the marked region" in sentence
        assert said(tab) == sentence


def test_it_says_of_a_contrast_who_leads(tab, tmp_path):
    found = explained(Contrast(0, 1), passes=1)
    opened(tab, tmp_path, found, against="dog")
    assert said(tab) == found.sentence(0, ["cat", "dog"])
    assert "by which the lead of \u201ccat\u201d over \u201cdog\u201d is " in said(tab)
    assert tab.locator("h1").inner_text() == "cat rather than dog"


def test_it_says_where_there_is_no_difference(tab, tmp_path):
    torch.manual_seed(3)
    x = torch.rand(1, 3, SIDE, SIDE)
    found = hilrp.explain(Together().eval(), x, 0, "secant", reference=x)
    opened(tab, tmp_path, found)
    assert said(tab) == found.sentence(0, ["cat", "dog"])
    assert said(tab).endswith("there is nothing to explain.")
    drag(tab, tab.locator("#view"), 0.1, 0.1, 0.9, 0.6)
    assert said(tab) == found.sentence(0, ["cat", "dog"])
    assert "no difference to explain" in verdict(found)


def white(tab) -> np.ndarray:
    """Where a white line is on the picture, in pixels of the map, ``[H,W]``."""
    found = tab.locator("#view").evaluate(
        """(canvas, side) => {
          const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const [zoom, found] = [width / side, new Array(side * side).fill(false)];
          for (let i = 0; i < data.length / 4; i++)
            if (Math.min(data[4 * i], data[4 * i + 1], data[4 * i + 2]) > 250)
              found[Math.floor(Math.floor(i / width) / zoom) * side + Math.floor((i % width) / zoom)] = true;
          return found;
        }""",
        SIDE,
    )
    return np.array(found).reshape(SIDE, SIDE)


def beside(mask: np.ndarray) -> np.ndarray:
    """Pixels with a neighbour on the other side of the border of a mask."""
    found = np.zeros(mask.shape, bool)
    for axis in (0, 1):
        differ = np.diff(mask.astype(int), axis=axis) != 0
        for pad in ((0, 1), (1, 0)):
            found |= np.pad(differ, [pad if a == axis else (0, 0) for a in (0, 1)])
    return found


def test_a_line_is_around_the_region_that_is_spoken_of(tab, tmp_path):
    """The marked one; unless a rectangle is dragged, whose share the sentence then says, or a region is asked about."""
    found = explained(passes=1)
    opened(tab, tmp_path, found)
    for box in ("positive", "negative"):
        tab.locator(f"#{box}").uncheck()  # a plain dimmed picture
    marked, asked = found.marked().mask[0].numpy(), np.zeros((SIDE, SIDE), bool)
    inner = np.s_[1:-1, 1:-1]  # at the border of the picture the line is its frame
    np.testing.assert_array_equal(white(tab)[inner] & ~beside(marked)[inner], False)
    assert white(tab)[inner][beside(marked)[inner]].mean() > 0.9
    drag(tab, tab.locator("#view"), 8.5 / SIDE, 4.5 / SIDE, 15.5 / SIDE, 19.5 / SIDE)
    box = np.zeros((SIDE, SIDE), bool)
    box[4:20, 8:16] = True
    assert not white(tab)[~beside(box)].any()
    tab.keyboard.press("Escape")
    tab.locator("#around").uncheck()
    assert not white(tab).any()
    asked[5:9, 5:20] = True
    opened(tab, tmp_path, found, asked=torch.from_numpy(asked).float())
    assert f"{found.region(asked).text()} comes from what is drawn around" in said(tab)
    for box in ("positive", "negative"):
        tab.locator(f"#{box}").uncheck()
    assert white(tab)[beside(asked)].mean() > 0.9


def test_the_true_object_has_a_line_of_its_own(tab, tmp_path):
    found, truth = explained(passes=1), torch.zeros(SIDE, SIDE)
    truth[3:9, 3:9] = 1
    opened(tab, tmp_path, found, truth=truth)
    assert said(tab) == found.sentence(0, ["cat", "dog"])
    tab.locator("#around").uncheck()
    without = white(tab)
    tab.locator("#true").check()
    assert (white(tab) & ~without)[beside(truth.numpy() > 0)].mean() > 0.9


def test_verdicts_speak_of_the_difference():
    text = verdict(explained())
    assert "all of the difference" in text
    assert "on the picture&#x27;s mean colour" in text
    assert "constants of the model keep" in verdict(explained(rules="hilrp", passes=1))


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
def test_a_rectangle_in_the_browser(tab, tmp_path, monkeypatch, most):
    """Its error is that of `Explanation.region`, also where the page holds blocks of 4 x 4 pixels alone."""
    monkeypatch.setattr("hilrp.pages.arrays.MOST", most)
    mask = torch.zeros(SIDE, SIDE)
    mask[4:20, 8:16] = 1
    for found in higher_and_lower():
        opened(tab, tmp_path, found)
        drag(tab, tab.locator("#view"), 8.5 / SIDE, 4.5 / SIDE, 15.5 / SIDE, 19.5 / SIDE)
        region = found.region(mask)
        told = found.sentence(0, ["cat", "cat"], mask)
        assert "\u00b1" in told
        assert said(tab) == told.replace("the region", "the marked rectangle")
        if most < 1000:  # a block that is cut counts with its part: half of these rows
            drag(tab, tab.locator("#view"), 8.5 / SIDE, 4.5 / SIDE, 15.5 / SIDE, 5.5 / SIDE)
            rows = torch.zeros(SIDE, SIDE)
            rows[4:8, 8:16] = 1
            half = float(found.region(rows).stderr) / 2
            error = float(re.search(r"Together \S+ \u00b1 ([0-9.]+)", tab.locator("#region").inner_text()).group(1))
            assert error == pytest.approx(half, abs=0.6 * 10 ** -len(str(error).partition(".")[2]))
        tab.keyboard.press("Escape")
        assert said(tab) == found.sentence(0, ["cat", "cat"])
        assert region.stderr is not None


def test_one_pass_has_no_error_in_the_browser(tab, tmp_path):
    opened(tab, tmp_path, explained(passes=1))
    drag(tab, tab.locator("#view"), 0.1, 0.1, 0.9, 0.6)
    assert re.search(" % comes from the marked rectangle; nothing is missing.$", said(tab))
    assert "\u00b1" not in tab.locator("main").inner_text()
