"""Where the checkout, its scripts and its tests are."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DOCS, SCRIPTS, HELPERS = ROOT / "docs", ROOT / "scripts", ROOT / "tests" / "helpers"
#: What is written for readers.
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]


def script(name: str) -> Any:
    """A script as a module; scripts import each other by name."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(SCRIPTS))
