"""Shows docstrings as they are meant.

mkdocstrings knows examples as ``Examples:``, no comments with ``#:``, and names of the interface as links alone.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Attribute, Docstring, Extension, Object

#: A name of the interface, as docstrings write it.
_NAME = re.compile(
    r"(?<![`\[])`(hilrp\.(?:AuditReport|Chains|Expla\w+|Ledger|Loaded|Rules|Verdict|audit|explain|load|references|register"
    r"|scenes|targets|texts)(?:\.\w+)?)`(?!`)"
)


class Written(Extension):
    """Reads ``Example:`` as ``Examples:``, ``#:`` before an attribute as its docstring, and names as links."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Changes the docstring of a class, function, attribute or module before it is parsed."""
        if isinstance(obj, Attribute) and obj.docstring is None and (text := _comment(obj)):
            obj.docstring = Docstring(text, parent=obj)
        if obj.docstring is not None:
            text = re.sub(r"^(\s*)Example:$", r"\1Examples:", obj.docstring.value, flags=re.M)
            obj.docstring.value = _NAME.sub(r"[`\1`][\1]", text)


def _comment(attribute: Attribute) -> str:
    """The lines with ``#:`` right above an attribute of a module."""
    found: list[str] = []
    for line in reversed(attribute.lines_collection[attribute.filepath][: (attribute.lineno or 1) - 1]):
        if not line.startswith("#:"):
            break
        found.insert(0, line.removeprefix("#:").strip())
    return "\n".join(found)
