"""Paragraphs of documents that are written by code."""

from __future__ import annotations

import re

#: Lines of documents have at most 120 characters; those that are wrapped here stay below that.
WIDTH = 119
#: What is not broken: a word, with the code and the links in it; a number and its "%".
_WORD = re.compile(r"(?:`[^`]*`|\[[^\]]*\]\([^)]*\)|\S)+(?: %\S*)?")
#: At the start of a line these would begin a list, a heading, a quotation or a table.
_MARKER = re.compile(r"(?:[-+*]|\d+[.)]|#+|>.*|\|.*)")


def paragraph(text: str, start: str = "", indent: str = "") -> str:
    """The words of a text on lines that are short enough; code and links stay whole.

    Args:
        text: The paragraph. Its own line breaks count as spaces.
        start: What the first line begins with, as ``"- "``.
        indent: What every other line begins with.

    Example:
        >>> [len(line) for line in paragraph("word " * 30, "- ", "  ").splitlines()]
        [116, 36]
    """
    lines, line = [], start
    words = _WORD.findall(text)
    for i, word in enumerate(words):
        marker = i + 1 < len(words) and _MARKER.fullmatch(words[i + 1])
        needed = f"{word} {words[i + 1]}" if marker else word
        if line not in (start, indent) and len(line) + len(needed) > WIDTH and not _MARKER.fullmatch(word):
            lines.append(line.rstrip())
            line = indent
        line += f"{word} "
    return "\n".join([*lines, line.rstrip()])
