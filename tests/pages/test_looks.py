"""What pages look like in a browser: on a phone, in the dark, on paper."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from typer.testing import CliRunner

from hilrp.attribution.verdicts import Verdict
from hilrp.cli import app
from hilrp.jobs.bench.grid import Cell
from hilrp.jobs.demo import control, families
from hilrp.jobs.demo import shown as questions
from hilrp.pages.bench import bench_page
from hilrp.pages.charts import drawn
from hilrp.pages.demo import demo_page
from hilrp.pages.parts import badge, card, cards, folded, image, legend, page, stack, table
from hilrp.pages.words import meaning, meanings

PHONE = {"width": 390, "height": 800}
#: A4 less its margins, in pixels of style sheets.
PAPER = {"width": 703, "height": 1000}
COLOURS = "e => { const s = getComputedStyle(e); return [s.color, s.backgroundColor] }"


def chart() -> str:
    drawing = Figure(figsize=(8, 3))
    axis = drawing.subplots()
    axis.plot([0, 1], [1, 0], label="a model")
    axis.legend()
    return drawn(drawing, "A line")


def wide() -> str:
    """A table that is wider than a phone, with all else that pages consist of."""
    rows = [f"<tr><td>method {i}</td>{'<td>0.123</td>' * 14}</tr>" for i in range(3)]
    return page(
        "Parts",
        f"<h1>{'Along_name_without_a_space_' * 4}</h1>"
        + cards([card(table(["name", *map(str, range(14))], rows)), card(chart())])
        + legend()
        + stack([(0.5, "var(--for)", "half")])
        + folded("More", f'<p id="more">{badge(Verdict.VALID)} what is folded</p>')
        + image(Image.fromarray(np.zeros((90, 1600, 3), np.uint8)), "a wide picture"),
    )


@pytest.fixture
def looked_at(browser, tmp_path):
    """Opens a page, in the form that is asked for."""
    opened = []

    def open_(content: str | Path, **options):
        file = content if isinstance(content, Path) else tmp_path / "page.html"
        if not isinstance(content, Path):
            file.write_text(content)
        opened.append(browser.new_page(**options))
        opened[-1].goto(file.as_uri())
        return opened[-1]

    yield open_
    for tab in opened:
        tab.close()


def luminance(colour: str) -> float:
    """How light a colour is, from 0 to 1 (WCAG)."""
    parts = [int(v) / 255 for v in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def width(tab) -> int:
    return int(tab.evaluate("document.documentElement.scrollWidth"))


def test_on_a_phone_tables_scroll_and_the_page_does_not(looked_at):
    tab = looked_at(wide(), viewport=PHONE)
    assert width(tab) == PHONE["width"]
    inside, outside = tab.locator(".scroll").evaluate("e => [e.scrollWidth, e.clientWidth]")
    assert inside > outside


def test_letters_can_be_read_in_the_light_and_in_the_dark(looked_at):
    grounds = []
    for scheme in ("light", "dark"):
        tab = looked_at(wide(), color_scheme=scheme)
        ink, ground = tab.locator("body").evaluate(COLOURS)
        held = tab.locator(".card").first.evaluate(COLOURS)
        soft = tab.locator("th").last.evaluate(COLOURS)[0]
        letters = tab.locator("svg.chart text").first.evaluate("e => getComputedStyle(e).fill")
        assert min(contrast(ink, ground), contrast(*held)) > 7
        assert contrast(soft, held[1]) > 4.5
        assert letters == held[0]
        white = tab.locator(".badge").evaluate(COLOURS)
        assert contrast(*white) > 4.5
        grounds.append(luminance(ground))
    assert grounds[0] > 0.8
    assert grounds[1] < 0.05


def test_on_paper_nothing_is_folded_or_cut_off(looked_at):
    tab = looked_at(wide(), color_scheme="dark")
    more = tab.locator("#more")
    assert not more.is_visible()
    tab.emulate_media(media="print")
    assert more.is_visible()
    assert tab.locator("body").evaluate(COLOURS)[1] == "rgb(255, 255, 255)"
    assert luminance(tab.locator("h1").evaluate(COLOURS)[0]) < 0.05
    assert tab.locator(".scroll").evaluate("e => getComputedStyle(e).overflowX") == "visible"


def test_charts_have_no_colour_of_their_own_for_letters_and_ground():
    text = chart()
    assert "#000000" not in text
    assert "#ffffff" not in text
    assert "currentColor" in text
    assert 'aria-label="A line"' in text


def test_verdicts_mean_the_same_everywhere():
    assert "What the verdicts mean" in meanings([Verdict.VALID], relative=True)
    assert meaning(Verdict.VALID, relative=True) in meanings([Verdict.VALID], relative=True)
    assert meanings([], relative=True) == ""
    for verdict in Verdict:
        assert meaning(verdict, relative=False) == verdict.meaning
        assert "books" not in meaning(verdict, relative=True) + verdict.meaning


@pytest.fixture(scope="module")
def explained(tmp_path_factory) -> Path:
    """The folder of a run of `hilrp explain` on a photograph that the model sees a part of."""
    folder = tmp_path_factory.mktemp("explained")
    noise = np.random.default_rng(0).integers(0, 255, (60, 96, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((192, 120)).save(folder / "photo.png")
    command = ["explain", str(folder / "photo.png"), "--model", "zoo/resnet", "--target", "top2", "-o"]
    result = CliRunner().invoke(app, [*command, str(folder / "out")])
    assert result.exit_code == 0, result.output
    return folder / "out"


def test_the_page_of_explain_shows_each_picture_with_its_sentence(explained, looked_at):
    facts = json.loads((explained / "photo.json").read_text())
    tab = looked_at(explained / "index.html", viewport=PHONE)
    assert width(tab) == PHONE["width"]
    said = tab.locator(".said").all_inner_texts()
    assert len(said) == 2
    for text, sentence, each in zip(said, facts["sentence"], facts["drawn"], strict=True):
        assert sentence in text
        assert each["title"] in text
        assert each["likelihood"] in text
    sizes = tab.locator(".explained img").evaluate_all("all => all.map(i => [i.naturalWidth, i.naturalHeight])")
    # The whole photograph, at least 512 pixels high, and nothing of the letters around it.
    assert sizes == [[round(512 * 192 / 120), 512]] * 2
    assert not tab.locator("details.folded img").is_visible()
    assert "pale: not seen by the model" in tab.locator(".legend").first.inner_text()
    tab.emulate_media(media="print")
    assert tab.locator("details.folded img").is_visible()


def test_the_places_of_pictures_are_where_they_are_drawn(explained):
    figure = np.asarray(Image.open(explained / "photo.png").convert("RGB"))
    for each in json.loads((explained / "photo.json").read_text())["drawn"]:
        left, top, right, bottom = each["place"]
        assert (figure[top:bottom, left:right] != 255).any((1, 2)).all()
        for row in (figure[top - 2, left:right], figure[bottom + 2, left:right]):
            assert (row == 255).all()


def benchmark() -> str:
    """The page of a benchmark of eight models, with charts, maps, and a failure."""
    figures = {"pointing": [0.0, 1.0], "pixels' share": [0.9, 1.0], "residual": [0.0, 0.1], "flip": [0.3, 0.5]}
    figures |= {f"trace {name}": [1.0, 0.8] for name in ("a", "b")}
    figures |= {"faithfulness correlation (pixels)": [0.1, 0.4]}
    models = [f"timm/a_model_of_a_long_name_{i}" for i in range(8)]
    cells = [Cell(model, name, "all", figures) for model in models for name in ("hilrp", "attnlrp", "grad-cam")]
    cells.append(Cell(models[0], "lime", "all", {}, error="RuntimeError: out of luck"))
    picture, relevance = np.zeros((1, 32, 32, 3), np.uint8), np.ones((1, 32, 32), np.float32)
    grid = SimpleNamespace(shown=lambda model: (["a picture"], picture), maps=lambda model, name: relevance)
    facts = {"effort": {"images": 2}, "data": "scenes", "hilrp": "1", "packages": {"torch": "2"}, "device": "cpu"}
    return bench_page(grid, cells, facts, "Methods")


def demonstration() -> str:
    """The page of the demonstration, of one family."""
    return demo_page([next(families(1))], questions(), control(1))


@pytest.mark.parametrize("made", [benchmark, demonstration])
def test_pages_of_wide_tables_fit_a_phone_and_paper(made, looked_at, monkeypatch):
    """On a phone tables scroll, and not the page; on paper they shrink."""
    monkeypatch.setattr("hilrp.jobs.demo._SHOWN", 1)
    content = made()
    assert "#fff" not in content.partition("</style>")[2]  # all colours are those of the style sheet
    tab = looked_at(content, viewport=PHONE)
    assert width(tab) == PHONE["width"]
    assert tab.locator(".scroll").evaluate_all("all => Math.max(...all.map(e => e.scrollWidth))") > PHONE["width"]
    tab.set_viewport_size(PAPER)
    tab.emulate_media(media="print")
    assert width(tab) == PAPER["width"]
