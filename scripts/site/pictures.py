"""Opens a figure at its full size when it is clicked: on a page it is as wide as the text."""

from __future__ import annotations

import re
from typing import Any

_FIGURE = re.compile(r"^(!\[[^\]]*\]\(([^)\s]+)\))$", re.M)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Makes each figure that stands alone a link to its file."""
    return _FIGURE.sub(r"[\1](\2)", markdown)
