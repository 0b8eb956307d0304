"""The pages of volumes, videos, bands, sounds and tables: their sliders, curves and numbers, in a browser."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from hilrp.pages import stacks
from hilrp.pages.explained import save_page
from hilrp.pages.stacks import Space


class Squares(nn.Module):
    """The squares of its input, weighted: relevance relative to zero is known voxel by voxel."""

    def __init__(self, *shape):
        super().__init__()
        self.weight = torch.randn(*shape, generator=torch.Generator().manual_seed(1))

    def forward(self, x):
        return (x.square() * self.weight).flatten(1).sum(1, keepdim=True)


def explained(*shape, kind=None, **options):
    x = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0)) + 0.1
    return hilrp.explain(Squares(*shape).eval(), x, 0, kind=kind, **({"reference": 0.0} | options))


@pytest.fixture
def tab(browser):
    page = browser.new_page(viewport={"width": 1100, "height": 900})
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    yield page
    page.close()
    assert problems == []


def opened(tab, tmp_path, found, **options):
    tab.goto(save_page(found, tmp_path / "page.html", ["thing"], **options).as_uri())


def number(text: str) -> float:
    """The relevance that is said: "...: -0.52 (12 % of the difference)"."""
    return float(re.search(r": ([+\u2212]?[\d.e\u2212-]+)", text)[1].replace("\u2212", "-"))


def slide(tab, i: int, index: int) -> str:
    tab.locator(f"#slider{i}").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input')); }", index
    )
    return tab.locator(f"#said{i}").inner_text()


def point(tab, i: int, down: float, across: float, click: bool = False) -> str:
    """Moves the pointer to a part of a slice; what is said of the place."""
    canvas = tab.locator(f"#view{i}")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    tab.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
    if click:
        tab.mouse.down()
        tab.mouse.up()
    return tab.locator("#pixel").inner_text()


def close(said: float, wanted: float) -> bool:
    """Two significant digits are said, or two after the point."""
    return abs(said - wanted) <= 0.006 + 0.06 * abs(wanted)


def test_a_volume_has_a_slider_for_each_axis(tab, tmp_path):
    found = explained(1, 6, 9, 12)
    opened(tab, tmp_path, found)
    held = found.map[0]
    assert tab.locator("canvas.slice").count() == 3
    for axis, index in ((0, 4), (1, 7), (2, 1)):
        said = slide(tab, axis, index)
        assert said.startswith(f"slice along axis {axis + 1} {index + 1} of {held.shape[axis]}: ")
        assert close(number(said), float(held.select(axis, index).sum()))
    # The slices are at (4, 7, 1): the middle one shows axes 1 and 3.
    said = point(tab, 1, (2 + 0.5) / 6, (10 + 0.5) / 12)
    assert said.startswith("slice along axis 1 3, slice along axis 2 8, slice along axis 3 11: ")
    assert close(number(said), float(held[2, 7, 10]))
    # A click moves the other two slices there.
    point(tab, 0, (3 + 0.5) / 9, (5 + 0.5) / 12, click=True)
    assert tab.locator("#slider1").input_value() == "3"
    assert tab.locator("#slider2").input_value() == "5"
    assert "The voxels hold all of the difference" in tab.locator("main").inner_text()


def test_slices_have_the_colours_of_their_relevance(tab, tmp_path):
    """One voxel speaks for it, one against it: red and blue, and grey elsewhere."""
    model = Squares(1, 4, 8, 8).eval()
    model.weight.zero_()
    model.weight[0, 1, 2, 3], model.weight[0, 1, 5, 6] = 1.0, -1.0
    found = hilrp.explain(model, torch.ones(1, 1, 4, 8, 8), 0, reference=0.0)
    opened(tab, tmp_path, found)
    tab.evaluate("byId('smoothing').value = 0; byId('smoothing').dispatchEvent(new Event('input'));")
    tab.locator("#around").uncheck()
    slide(tab, 1, 0)  # away with the crossing lines
    slide(tab, 2, 0)
    slide(tab, 0, 1)

    def colour(row, column):
        code = """([x, y]) => {
            const c = byId("view0");
            return [...c.getContext("2d").getImageData(x * c.width, y * c.height, 1, 1).data];
        }"""
        return tab.evaluate(code, [(column + 0.5) / 8, (row + 0.5) / 8])

    red, blue, other = colour(2, 3), colour(5, 6), colour(6, 2)
    assert red[0] > red[2] + 60
    assert blue[2] > blue[0] + 60
    assert other[0] == other[1] == other[2]
    tab.locator("#negative").uncheck()
    assert colour(5, 6) == other
    slide(tab, 0, 2)
    assert colour(2, 3) == colour(6, 2)


@pytest.mark.parametrize("orientation", ["SPL", "RAS", "LPI", "AIR"])
def test_scans_are_upright(tab, tmp_path, orientation):
    """Feet below, the front on top or to the left, the patient's right side to the left: wherever axes go."""
    shape = (5, 6, 7)
    found = explained(1, *shape)
    opened(tab, tmp_path, found, space=Space((1.0, 1.0, 1.0), orientation))
    held = found.map[0].numpy()
    # The value that is highest, foremost and rightmost.
    towards = ["SA".find(letter) < 0 and letter not in "R" for letter in orientation]
    index = tuple(0 if low else -1 for low in towards)
    names = tab.locator("b.small").all_inner_texts()
    assert names == ["axial", "coronal", "sagittal"]
    sides = {letter: shape[i] for i, letter in enumerate(orientation)}
    height = next(sides[each] for each in "SI" if each in sides)
    depth = next(sides[each] for each in "AP" if each in sides)
    slide(tab, 0, height - 1)
    said = [point(tab, 0, 0.5 / depth, 0.01)]
    slide(tab, 1, 0)
    said.append(point(tab, 1, 0.5 / height, 0.01))
    slide(tab, 2, 0)
    said.append(point(tab, 2, 0.5 / height, 0.01))
    for text in said:
        assert close(number(text), float(held[index])), (orientation, text)


def test_a_video_has_frames_and_a_curve(tab, tmp_path):
    found = explained(3, 8, 10, 12, kind="video", passes=16)
    opened(tab, tmp_path, found, space=Space(rate=50))
    said = slide(tab, 0, 5)
    assert said.startswith("frame 6 of 8: ")
    assert close(number(said), float(found.map[0, 5].sum()))
    curve = tab.locator("#curve0")
    curve.scroll_into_view_if_needed()
    box = curve.bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 2.5 / 8, box["y"] + 20)
    told = tab.locator("#pixel").inner_text()
    assert told.startswith("frame 3: ")
    assert "\u00b1" in told
    tab.mouse.down()
    tab.mouse.up()
    assert tab.locator("#slider0").input_value() == "2"
    tab.locator("#play").click()
    tab.wait_for_function("document.getElementById('slider0').value !== '2'")
    tab.locator("#play").click()
    assert tab.locator("#play").inner_text() == "Play"
    place = tab.evaluate("at[0]")
    said = point(tab, 0, 0.5 / 10, 0.5 / 12)
    assert close(number(said), float(found.map[0, place, 0, 0]))


def test_bands_are_beside_each_other(tab, tmp_path):
    found = explained(14, 8, 9)
    opened(tab, tmp_path, found)
    shown = tab.locator("b.small").all_inner_texts()
    assert len(shown) == 13
    assert shown[0] == "all bands"
    assert "12 of 14 bands are shown" in tab.locator("main").inner_text()
    said = point(tab, 0, 2.5 / 8, 3.5 / 9)
    assert said.startswith("row 3, column 4: ")
    assert close(number(said), float(found.map[0, 2, 3]))
    band = int(shown[5].removeprefix("band ")) - 1
    assert close(number(point(tab, 5, 2.5 / 8, 3.5 / 9)), float(found.relevance[0, band, 2, 3]))


@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_a_spectrogram_is_upright(tab, tmp_path, shape):
    """Time goes to the right, whichever axis it is; the lowest frequency is at the bottom."""
    found = explained(*shape, kind="sound")
    opened(tab, tmp_path, found)
    held = found.map[0] if shape == (8, 20) else found.map[0].T
    said = point(tab, 0, 7.5 / 8, 3.5 / 20)
    assert said.startswith("frequency 1, moment 4: ")
    assert close(number(said), float(held[0, 3]))


def test_a_wave_has_two_curves(tab, tmp_path):
    found = explained(1, 4000, kind="sound")
    opened(tab, tmp_path, found, space=Space(rate=8000))
    assert tab.locator("canvas").count() == 2
    box = tab.locator("#curve0").bounding_box()
    tab.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 20)
    said = tab.locator("#pixel").inner_text()
    assert said.startswith("0.250 s: ")
    assert not tab.locator("#opacity").is_visible()


def test_a_table_has_bars_and_rows(tab, tmp_path):
    found = explained(30, passes=16)
    opened(tab, tmp_path, found, features=[f"value <{i}>" for i in range(30)])
    tab.locator("summary", has_text="All features").click()
    rows = tab.locator("tbody tr").all_inner_texts()
    assert len(rows) == 30
    strongest = int(found.map[0].abs().argmax())
    name, value, _ = rows[0].split("\t")
    assert name == f"value <{strongest}>"
    assert float(value) == pytest.approx(float(found.map[0, strongest]), rel=1e-3)
    assert f"value <{strongest}>" in tab.locator("svg").first.text_content()


def test_large_volumes_are_shown_in_blocks_whose_sums_stay(tab, tmp_path, monkeypatch):
    found = explained(1, 7, 9, 12)
    monkeypatch.setattr(stacks, "MOST", 200)
    opened(tab, tmp_path, found)
    assert "blocks of 2 values along each axis, which are summed" in tab.locator("main").inner_text()
    said = slide(tab, 0, 3)  # the last block is cut
    assert close(number(said), float(found.map[0, 6:].sum()))
    assert "slice along axis 1 4 of 4" in said


def test_pages_need_an_ending_and_hold_no_markup_of_names(tmp_path):
    found = explained(1, 4, 5, 6)
    with pytest.raises(hilrp.InputError, match=r"a page is an .html file"):
        save_page(found, tmp_path / "page.png")
    text = save_page(found, tmp_path / "page.html", ["<script>alert(1)</script>"]).read_text()
    assert "<script>alert" not in text
    assert not re.search(r"(?:src|href)=\"?(?:http|//)", text)
    picture = save_page(explained(3, 6, 6), tmp_path / "picture.html", ["cat"]).read_text()
    assert 'id="view"' in picture
    several = hilrp.explain(Squares(1, 4, 5, 6).eval(), torch.rand(3, 1, 4, 5, 6), 0)
    assert save_page(several, tmp_path / "third.html", ["a"], sample=2).stat().st_size > 1000
    assert np.isfinite(float(several.map.sum()))
