"""The page of an answer in a browser: a word that is clicked shows its own map, parts and words."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

pytest.importorskip("transformers")

import hilrp
from helpers.answer_models import photo, picture_model, prompt_of, text_model, tokenizer
from hilrp.attribution.sentences import number
from hilrp.pages.answer import answer_page

SIZES = [(40, 24), (24, 48)]


@cache
def answer(**options) -> hilrp.Answer:
    model, processor = picture_model("llava")
    photos = [photo(*size, seed=i) for i, size in enumerate(SIZES)]
    return hilrp.explain_answer(model, processor, photos, prompt_of("llava", 2), "a red cat", **options)


@pytest.fixture
def tab(browser, tmp_path):
    """A tab that shows the page of an answer, and what went wrong in it."""
    opened, errors = [], []

    def show(found, title="what colour is the cat?", **options):
        file = tmp_path / f"{len(opened)}.html"
        file.write_text(answer_page(found, title, "two pictures", **options))
        opened.append(browser.new_page())
        opened[-1].on("pageerror", lambda error: errors.append(str(error)))
        opened[-1].goto(file.as_uri())
        opened[-1].locator("#said", has_text="\u201c").wait_for()
        return opened[-1]

    yield show
    for each in opened:
        each.close()
    assert errors == []


def numbers(tab) -> list[float]:
    """What the parts of the score are said to be."""
    return [float(each.replace("\u2212", "-")) for each in tab.locator(".parts .number").all_inner_texts()]


def drawn(tab) -> list[bytes]:
    return [canvas.screenshot() for canvas in tab.locator("canvas.picture").all()]


def test_each_word_shows_its_own(tab):
    """Sentence, parts, shades of the prompt and of the answer, and maps."""
    found = answer()
    page = tab(found)
    seen = []
    for i, word in enumerate(found.words):
        button = page.locator(".words button").nth(i)
        button.click()
        assert button.get_attribute("aria-pressed") == "true"
        assert page.locator(".words [aria-pressed=true]").count() == 1
        assert page.locator("#said").inner_text() == found.sentence(i)
        assert page.locator("#verdict").inner_text() == str(word.verdict)
        assert numbers(page) == pytest.approx(list(word.parts.values()), rel=0.01, abs=0.01)
        assert sum(word.parts.values()) == pytest.approx(word.score)
        titles = [float(each.get_attribute("title")) for each in page.locator("#prompt span:not(.mark)").all()]
        words = [value for value, mark in zip(word.prompt, found.prompt_marks, strict=True) if not mark]
        assert titles == pytest.approx([float(value) for value in words], rel=0.01, abs=0.01)
        assert page.locator("#answer .own").inner_text().strip() == word.text
        seen.append(drawn(page))
    assert len({picture for pictures in seen for picture in pictures}) == 6
    assert page.locator("#prompt").inner_text().startswith("<image> \u00d7 32")


def test_it_begins_with_the_word_that_owes_most_to_the_pictures(tab):
    found = answer()
    strongest = max(found.words, key=lambda word: abs(word.image))
    assert tab(found).locator(".words [aria-pressed=true]").inner_text().splitlines()[0] == strongest.text


def test_red_is_for_and_blue_against(tab):
    """Where the map is strongest, the canvas has the colour of its sign; without opacity the picture is bare."""
    found = answer()
    page = tab(found)
    page.locator("#smoothing").fill("0")
    page.locator(".words button").nth(2).click()
    relevance = found[2].maps[0].numpy()
    for extreme, sign in ((relevance.argmax(), 1), (relevance.argmin(), -1)):
        row, column = np.unravel_index(extreme, relevance.shape)
        if relevance[row, column] * sign <= 0:
            continue
        script = f"""c => {{ const z = c.width / {relevance.shape[1]};
            return [...c.getContext("2d").getImageData({column} * z + z / 2, {row} * z + z / 2, 1, 1).data] }}"""
        red, _, blue, _ = page.locator("canvas.picture").first.evaluate(script)
        assert (red > blue) == (sign > 0)
    before = drawn(page)
    page.locator("#opacity").fill("0")
    bare = drawn(page)
    assert bare != before
    page.locator(".words button").nth(0).click()
    assert drawn(page) == bare


def test_the_table_and_the_code(tab):
    found = answer()
    page = tab(found, code="import hilrp", notes=["a note of its own"])
    assert "Note: a note of its own." in page.locator("main").inner_text()
    page.locator("summary", has_text="All words").click()
    rows = page.locator("table tr").all_inner_texts()
    assert [row.split()[0] for row in rows[1:]] == ["a", "red", "cat"]
    assert number(found[1].prior) in rows[2]
    page.locator("summary", has_text="Python").click()
    assert "import hilrp" in page.locator("pre").inner_text()


def test_rules_without_a_reference(tab):
    found = answer(rules="hilrp")
    page = tab(found)
    assert "Constants of the model keep a part of each score." in page.locator("main").inner_text()
    assert "constants of the model" in page.locator(".parts").inner_text()


def test_text_alone(tab):
    """No picture, no map, and nothing said of one."""
    found = hilrp.explain_answer(text_model("gpt2"), tokenizer(), None, "what colour is the cat", "a red cat")
    page = tab(found)
    assert page.locator("canvas").count() == 0
    text = page.locator("main").inner_text()
    assert not re.search("picture(?!s$)", text.replace("two pictures", ""))
    page.locator(".words button").nth(2).click()
    assert numbers(page) == pytest.approx(list(found[2].parts.values()), rel=0.01, abs=0.01)


def test_words_are_never_code(tab):
    """Words, questions and labels may be anything: they are shown as they are."""
    found = answer()
    evil = '</script><img src=x onerror="document.title=1">'
    words = [replace(word, text=evil) for word in found.words]
    found = replace(found, words=words, labels=[evil] * 3, prompt_labels=[evil] * len(found.prompt_labels))
    page = tab(found, title=evil, code=evil, notes=[evil])
    assert page.title() == evil
    assert page.locator("img").count() == 0
    assert page.locator("h1").inner_text() == evil
    assert page.locator(".words button").first.inner_text().splitlines()[0] == evil


def test_on_a_phone_in_the_dark_and_on_paper(browser, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(answer_page(answer(), "what colour is the cat?", "two pictures"))
    page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page.goto(file.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    ground = page.locator("body").evaluate("e => getComputedStyle(e).backgroundColor")
    assert max(map(int, re.findall("[0-9]+", ground)[:3])) < 60
    page.emulate_media(media="print")
    assert not page.locator(".controls").is_visible()
    page.close()
