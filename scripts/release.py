"""Says whether a release is one: the version, the changelog and the citation tell the same, and so does the tag.

    python scripts/release.py            # before a tag is set
    python scripts/release.py v0.2.0     # the tag that a release is made of

Needs Python alone. What is wrong is printed, and the exit status is 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
#: File -> what its version is after, and what its day is after.
PLACES: Mapping[str, tuple[str, str | None]] = {
    "src/hilrp/__init__.py": (r'^__version__ = "([^"]+)"', None),
    "CHANGELOG.md": (r"^## (\S+) \(", r"^## \S+ \(([^)]+)\)"),
    "CITATION.cff": (r"^version: (\S+)", r"^date-released: (\S+)"),
    "CITATION.bib": (r"^  version = \{([^}]+)\}", None),
    "recipe/recipe.yaml": (r'^  version: "([^"]+)"', None),
}


def said(file: str, pattern: str, root: Path = ROOT) -> str:
    """The first thing that a file says after a pattern; the newest heading of the changelog stands first."""
    found = re.search(pattern, (root / file).read_text(), re.MULTILINE)
    return found[1] if found else "nothing"


def problems(tag: str | None = None, root: Path = ROOT) -> list[str]:
    """Where versions and days differ, or can't be those of a release."""
    versions = {file: said(file, pattern, root) for file, (pattern, _) in PLACES.items()}
    days = {file: said(file, pattern, root) for file, (_, pattern) in PLACES.items() if pattern}
    found = []
    for what, told in (("versions", versions), ("days", days)):
        if len(set(told.values())) > 1:
            found.append(f"The {what} differ: {', '.join(f'{file} says {each}' for file, each in told.items())}.")
    version, day = versions["src/hilrp/__init__.py"], days["CHANGELOG.md"]
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        found.append(f"{version} is no version: write MAJOR.MINOR.PATCH.")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", day):
        found.append(f"{day} is no day: write YEAR-MONTH-DAY.")
    if not day.startswith(year := said("CITATION.bib", r"(?s:@software.*?)year\s+= \{(\d+)\}", root)):
        found.append(f"CITATION.bib says {year}, the day is {day}.")
    if tag is not None and tag != f"v{version}":
        found.append(f"The tag is {tag}, the version {version}: set v{version}.")
    return found


if __name__ == "__main__":
    wrong = problems(*sys.argv[1:2])
    print("\n".join(wrong) or f"{said('src/hilrp/__init__.py', PLACES['src/hilrp/__init__.py'][0])} can be released")
    sys.exit(bool(wrong))
