"""Figures of explanations."""

from __future__ import annotations

import io

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text

import hilrp
from hilrp.attribution.plotting import as_text

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
    figure = hilrp.explain(model, torch.randn(1, 3, 2, 2), 0).plot([name])
    title = figure.axes[0].get_title()
    assert Text(text=title)._preprocess_math(title)[0].replace("\n", "").startswith(name)
    assert isinstance(figure, Figure)
    figure.savefig(io.BytesIO(), format="png")
