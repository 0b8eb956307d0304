"""Figures of explanations."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

import hilrp
from hilrp.attribution.error_bars import share_text
from hilrp.attribution.panels import Panel, Words
from hilrp.attribution.pictures import composed, ends, figure_of
from hilrp.attribution.plotting import COLOURS, as_text
from hilrp.attribution.sentences import number

#: Names that matplotlib would typeset, or fail on.
NAMES = [r"$\badmacro{x}$", "$x^2$", "US $5 or $6", r"\$", "$", "$$", r"a\$b$c\\$", "50 %_{}^#&~", "<b>&amp;"]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_text(name):
    assert Text(text=as_text(name))._preprocess_math(as_text(name)) == (name, False)


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_figures_show_names_as_they_are(kind):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, len(NAMES))).eval()
    found = hilrp.explain(model, torch.randn(1, 3, 2, 2), 0)
    assert len(found.encode(kind, NAMES)) > 1000
    assert len(found.encode(kind, NAMES, titles=[NAMES[0]])) > 1000
    if kind == "svg":
        assert r"$\badmacro{x}$" in found.encode(kind, NAMES).decode()


def test_long_names_are_broken_between_their_letters():
    """The backslash that keeps a dollar sign from being mathematics must not be parted from it."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 1)).eval()
    name = "$" * 100
    found = hilrp.explain(model, torch.randn(1, 3, 2, 2), 0)
    figures = found.plot([name]), found.plot_details([name])
    for figure, title in zip(figures, (figures[0].texts[0].get_text(), figures[1].axes[0].get_title()), strict=True):
        assert Text(text=title)._preprocess_math(title)[0].replace("\n", "").startswith(name)
        assert isinstance(figure, Figure)
        figure.savefig(io.BytesIO(), format="png")


#: What is seen of linear red, green and blue without the cones for long, middle, or short waves (Machado et al., 2009).
BLIND = {
    "red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("blind", [None, *BLIND])
def test_colours_are_told_apart_by_all_eyes(blind):
    """As much relevance for as against is as dark, and of another colour, from a quarter of the scale on."""
    color = pytest.importorskip("skimage.color")
    parts = np.linspace(0.25, 1, 16)
    both = np.stack([colormaps[COLOURS](0.5 + side * parts / 2)[:, :3] for side in (-1, 1)])
    if blind:
        linear = np.where(both <= 0.04045, both / 12.92, ((both + 0.055) / 1.055) ** 2.4)
        linear = np.clip(linear @ np.array(BLIND[blind]).T, 0, 1)
        both = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    against, for_it = color.rgb2lab(both)
    assert np.abs(against[:, 0] - for_it[:, 0]).max() < (20 if blind else 8)
    assert np.linalg.norm(against - for_it, axis=1).min() > 20


@pytest.mark.parametrize("side", [114, 341, 512, 900], ids="{} wide".format)
def test_words_do_not_lie_on_each_other_or_leave_the_figure(side):
    """Below pictures of any width, of which the model saw a part."""
    unseen = np.zeros((512, side), bool)
    unseen[:100] = True
    relevance = np.zeros((512, side), np.float32)
    shown = Panel(np.ones((512, side, 3), np.float32), relevance, 0.00096, None, unseen)
    said = Words("bloodhound", "48.1 % likely, score 7.78 (−0.18 on the picture's mean colour)", "Of the 7.96 " * 9)
    figure = figure_of([shown, shown], [said, said])
    drawn = FigureCanvasAgg(figure).get_renderer()
    boxes = [text.get_window_extent(drawn) for text in figure.texts]
    boxes += [axis.get_window_extent(drawn) for axis in figure.axes]
    assert len(boxes) == 2 * (6 + 2)  # title, likelihood, two ends, what is pale, sentence; picture and colours
    for i, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0
        assert box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0
        shared = [Bbox.intersection(box, other) for other in boxes[:i]]
        assert not any(each.width > 1 and each.height > 1 for each in shared if each is not None)


def test_a_line_is_drawn_around_the_region_and_its_edge_is_smooth():
    rows, columns = np.mgrid[:400, :400]
    disc = (rows - 200) ** 2 + (columns - 200) ** 2 < 120**2
    plain = Panel(np.full((400, 400, 3), 0.5), np.zeros((400, 400)), 1.0, None, np.zeros((400, 400), bool))
    around = composed(replace(plain, region=disc.astype(np.float32))).astype(int)
    changed = np.abs(around - composed(plain)).max(2) > 0
    distance = np.abs(np.hypot(rows - 199.5, columns - 199.5) - 120)
    assert changed[distance < 1].all()
    assert not changed[distance > 5].any()
    # A line of pixels that are all light or all dark would be a staircase.
    ground = composed(plain)[0, 0, 0]
    between = (around[..., 0] > ground + 20) & (around[..., 0] < 235)
    assert between.sum() > 200


def test_numbers_have_one_minus_sign():
    assert {number(-0.71)[0], ends(0.0013)[0][-7], share_text(-0.42, None)[0]} == {"\u2212"}
