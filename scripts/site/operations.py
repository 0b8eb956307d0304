"""Puts the library's table of operations, as it is, into the chapter on it."""

from __future__ import annotations

from typing import Any

from hilrp.method import secant
from hilrp.method.call import Level
from hilrp.method.composite import Surrogate
from hilrp.method.table import FORMS, TABLE, Row

#: Where in the chapter it stands.
PLACE = "<!-- the table of operations -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces the comment by the table."""
    return markdown.replace(PLACE, operations()) if PLACE in markdown else markdown


def operations() -> str:
    """The table: rows of operations that are alike, by primitive."""
    assert FORMS, secant  # its import has entered the forms
    rows: dict[int, tuple[Row, list[str]]] = {}
    for name, row in TABLE.items():
        rows.setdefault(id(row), (row, []))[1].append(name)
    lines = ["| operations | primitive | rule | relative to a reference | gate level |", "|---|---|---|---|---|"]
    for row, names in rows.values():
        words = ", ".join(f"`{name}`" for name in names)
        lines.append(f"| {words} | {row.primitive.value} | {_rule(row)} | {_form(row)} | {_level(row)} |")
    return "\n".join(lines)


def _rule(row: Row) -> str:
    if isinstance(row.rule, Surrogate):
        return "made of others"
    return f"`{row.rule.__module__.rpartition('.')[2]}.{row.rule.__name__}`"


def _form(row: Row) -> str:
    if isinstance(row.rule, Surrogate):
        return "that of its parts"
    return "the same rule" if row.secant == "same" else f"`{row.secant}`"


def _level(row: Row) -> str:
    if row.level is None:
        return "of its operands"
    return row.level.name.lower() if isinstance(row.level, Level) else "depends on the call"
