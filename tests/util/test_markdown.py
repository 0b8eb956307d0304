"""Paragraphs of documents that are written by code."""

from __future__ import annotations

from itertools import pairwise

from hilrp.util.markdown import WIDTH, paragraph


def test_no_line_is_too_long_and_no_word_is_lost():
    text = " ".join("x" * (1 + i % 17) for i in range(200))
    lines = paragraph(text).split("\n")
    assert max(map(len, lines)) <= WIDTH
    assert " ".join(lines) == text
    # Each line is as full as it can be.
    for line, after in pairwise(lines):
        assert len(line) + 1 + len(after.split()[0]) > WIDTH


def test_line_breaks_of_the_text_are_spaces():
    assert paragraph("one\n  two") == "one two"


def test_items_of_lists_are_indented():
    first, *others = paragraph("word " * 100, "- ", "  ").split("\n")
    assert first.startswith("- word")
    assert len(others) == 4
    assert all(line.startswith("  word") for line in others)


def test_code_links_and_per_cents_stay_whole():
    for whole in ("`some code with spaces`", "[a link with spaces](docs/target.md)", "99.6 %"):
        for before in range(WIDTH - len(whole), WIDTH + 1):
            assert whole in paragraph(f"{'x' * before} {whole} and more").split("\n", 1)[1]


def test_no_line_begins_like_a_list_a_heading_or_a_table():
    for marker in ("-", "+", "*", "1.", "#", "|"):
        for before in range(WIDTH - 12, WIDTH + 1):
            lines = paragraph(f"{'x' * (before - 5)} last {marker} next {'y' * 20}").split("\n")
            assert not any(line.startswith(marker) for line in lines)
            assert max(map(len, lines)) <= WIDTH


def test_a_word_that_is_too_long_has_its_own_line():
    assert paragraph(f"a {'x' * 200} b").split("\n") == ["a", "x" * 200, "b"]
