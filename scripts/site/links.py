"""Lets documents link to files of the repository: the site, which doesn't hold these, names them instead.

On a page of a code host such a link leads to the file. It must be there: one that isn't is a warning, at which a strict
build fails.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

_LOG = logging.getLogger("mkdocs.hooks.links")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Replaces links that lead out of the documents by their words."""
    docs = Path(config.docs_dir)
    folder = Path(page.file.src_path).parent

    def named(match: re.Match[str]) -> str:
        words, target = match[1], Path(os.path.normpath(docs / folder / match[2]))
        if target.is_relative_to(docs):
            return match[0]
        if not target.exists():
            _LOG.warning("%s links to %s, which isn't there", page.file.src_path, match[2])
        return words

    return _LINK.sub(named, markdown)
