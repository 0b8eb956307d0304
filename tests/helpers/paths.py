"""Where the checkout, its scripts and its tests are."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS, SCRIPTS, HELPERS = ROOT / "docs", ROOT / "scripts", ROOT / "tests" / "helpers"
#: What is written for readers.
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
