"""Licences and known vulnerabilities of the locked environment.

    make audit-deps

Prints a table of licences, those that are not permissive with how they are used, and what pip-audit knows of the
locked versions. Exits with 0 if all is well, with 1 if a licence has no explanation or a version has an advisory, and
with 3 if no advisories could be had: then nothing is known, and that is said.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from dependencies import LOCK, licence, locked

OK, FOUND, UNKNOWN = 0, 1, 3
#: Words of licences that ask for more than to be named, or forbid something.
NOT_PERMISSIVE = re.compile(r"GPL|General Public|MPL|Mozilla|EPL|Eclipse|CDDL|EUPL|SSPL|Proprietary|Commercial", re.I)
#: How the packages of such licences are used, and those that declare none: by the beginning of a name.
USES = {
    "zennit": "a comparator in tests and benchmarks; not imported by the package, not distributed with it",
    "quantus": "a comparator in tests and benchmarks; not imported by the package, not distributed with it",
    "hypothesis": "draws the inputs of tests; not distributed",
    "pathspec": "needed by mypy and mkdocs; not distributed",
    "docutils": "needed by twine; not distributed",
    "certifi": "certificates for downloads, unchanged; installed by the user's pip",
    "orjson": "needed by gradio, unchanged; installed by the user's pip",
    "tqdm": "needed by timm and others, unchanged; installed by the user's pip",
    "nvidia-": "CUDA, needed by torch's wheels for Linux; installed by the user's pip under NVIDIA's terms",
    "cuda-toolkit": "names the CUDA packages that torch needs, and holds nothing; NVIDIA's terms",
}


def use_of(name: str) -> str | None:
    """How a package is used, where that has been written down."""
    return next((use for beginning, use in USES.items() if name.startswith(beginning)), None)


def licences(found: Mapping[str, str | None]) -> tuple[list[str], bool]:
    """A table of licences by package, and whether each that is not permissive has an explanation."""
    groups, special = defaultdict(list), []
    for name, terms in sorted(found.items()):
        groups[terms or "not declared"].append(name)
        if terms is None or NOT_PERMISSIVE.search(terms):
            special.append(name)
    lines = ["| licence | packages |", "|---|---|"]
    lines += [f"| {terms} | {', '.join(names)} |" for terms, names in sorted(groups.items())]
    lines += ["", "| not permissive, or not declared | licence | use |", "|---|---|---|"]
    lines += [f"| {name} | {found[name]} | {use_of(name) or 'NOT EXPLAINED'} |" for name in special]
    return lines, all(use_of(name) for name in special)


def ask() -> str:
    """What pip-audit prints about the locked versions; it downloads nothing but advisories."""
    how = ["--require-hashes", "--no-deps", "--disable-pip", "--progress-spinner", "off", "--format", "json"]
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), *how]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def advisories(report: str, count: int) -> tuple[list[str], int]:
    """What a report of pip-audit says of so many packages, and the status to exit with.

    Where the service doesn't know a package, as if it can't be reached, pip-audit skips it and calls that success.
    """
    try:
        packages: list[dict[str, Any]] = json.loads(report)["dependencies"]
    except (ValueError, KeyError):
        packages = []
    answered = [package for package in packages if "vulns" in package]
    bad = [f"{each['name']} {each['version']}: {found['id']}" for each in answered for found in each["vulns"]]
    lines = [*bad]
    if answered:
        lines.append(f"{len(bad)} known vulnerabilities in the {len(answered)} packages that were answered for")
    if len(answered) < count:
        lines.append(
            f"advisories: the service could not be asked about {count - len(answered)} of {count} packages, so nothing "
            "is known of them. Run this where it can be reached."
        )
    return lines, FOUND if bad else OK if len(answered) >= count else UNKNOWN


def main(asked: Callable[[], str] = ask) -> int:
    """Prints both, and returns the status to exit with."""
    names = locked()
    table, explained = licences({name: licence(name) for name in names})
    lines, status = advisories(asked(), len(names))
    print("\n".join([*table, "", *lines]))
    return status if explained else FOUND


if __name__ == "__main__":
    sys.exit(main())
