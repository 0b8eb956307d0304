"""What the lock file of the development environment says, and the licences of what it names.

Python's own modules are enough for it, since the environment is built with it.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.lock"
#: Model libraries that some tests need besides, and that nothing else does: what is wanted, and what is pinned.
LIBRARIES, LIBRARIES_LOCK = (ROOT / "requirements" / f"libraries.{ending}" for ending in ("in", "lock"))


@dataclass(frozen=True)
class Package:
    """A version of a package, as it is pinned.

    Attributes:
        name: Its normalised name.
        version: The version.
        hashes: The SHA-256 digests of the files of this version, any of which may be installed.
        parents: The normalised names of those who need it; the project itself is ``hilrp``.
        text: The lines of the lock file that say so.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    parents: tuple[str, ...]
    text: str


def normalised(name: str) -> str:
    """The name of a package as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(text: str | None = None) -> dict[str, Package]:
    """The packages of a lock file by name; of the project's own where no text is given."""
    text = LOCK.read_text() if text is None else text
    found = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", re.sub(r"\A(#.*\n)*", "", text)):
        pinned = re.match(r"([A-Za-z0-9._-]+)==(\S+)", entry)
        if pinned is None:
            raise ValueError(f"requirements/dev.lock: no pinned version in {entry.splitlines()[0]!r}")
        # "# via a", or "# via" and a line for each.
        via = re.findall(r"^    #(?: via|  ) +([A-Za-z0-9._-]+)", entry, re.M)
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
        name = normalised(pinned[1])
        found[name] = Package(name, pinned[2], hashes, tuple(map(normalised, via)), entry.rstrip() + "\n")
    return found


def requirements(extra: str = "dev") -> list[str]:
    """All dependencies of pyproject.toml with those of an extra; references to other extras of its own are followed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found, queue = [], [*project["dependencies"], *(extras[extra] if extra else [])]
    while queue:
        item = queue.pop(0)
        if item.startswith("hilrp["):
            queue += [each for name in item[6:-1].split(",") for each in extras[name.strip()]]
        else:
            found.append(item)
    return sorted(set(found))


def required_by(extra: str) -> set[str]:
    """The names of all packages that an extra needs, directly or not; of a plain installation for ``""``."""
    packages = locked()
    found = {normalised(re.match(r"[A-Za-z0-9._-]+", item)[0]) for item in requirements(extra)}
    while more := {name for name, package in packages.items() if found & {*package.parents}} - found:
        found |= more
    return found


def licence(name: str) -> str | None:
    """The licence that an installed package declares, in few words; ``None`` if it isn't installed or says nothing."""
    try:
        declared = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return None
    if expression := declared.get("License-Expression"):
        return expression
    classifiers = [each.split(" :: ")[-1] for each in declared.get_all("Classifier") or () if "License ::" in each]
    classifiers = [each for each in classifiers if each != "OSI Approved"]
    # The field may hold a whole licence.
    named = (declared.get("License") or "").strip().splitlines()
    if named and len(named[0]) < 60 and named[0] != "UNKNOWN" and not classifiers:
        return named[0]
    return "; ".join(sorted(classifiers)) or None
