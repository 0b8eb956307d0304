"""Writes what a release is made of, as CycloneDX 1.6 in JSON, from requirements/dev.lock.

    make sbom        # dist/hilrp-VERSION.cdx.json

A component is *required* if a plain installation needs it, *optional* if an extra does, and *excluded* if only
development does. Its hashes are those of all files of its version. Licences are those that the installed packages
declare. The same lock gives the same file: there is no time in it.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

from dependencies import ROOT, Package, licence, locked, required_by

OUT = ROOT / "dist"
#: Licences that are written as SPDX has them; others are given as a name.
SPDX = re.compile(r"[A-Za-z0-9.+-]+-[A-Za-z0-9.+-]+|MIT|ISC|Zlib")


def version() -> str:
    """The version of the project, without importing it."""
    text = (ROOT / "src" / "hilrp" / "__init__.py").read_text()
    return re.search(r'^__version__ = "([^"]+)"', text, re.M)[1]


def address(name: str, number: str) -> str:
    """The package URL of a version."""
    return f"pkg:pypi/{name}@{number}"


def licences(declared: str | None) -> list[dict[str, Any]]:
    """A declared licence, as CycloneDX writes it: an SPDX expression where it is one, else a name."""
    if declared is None:
        return []
    parts = re.split(r" AND | OR | WITH ", declared.replace("(", "").replace(")", ""))
    if all(SPDX.fullmatch(part) for part in parts):
        return [{"expression": declared}]
    return [{"license": {"name": declared}}]


def component(package: Package, scope: str) -> dict[str, Any]:
    """A pinned package."""
    found = {
        "type": "library",
        "bom-ref": address(package.name, package.version),
        "name": package.name,
        "version": package.version,
        "scope": scope,
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
        "purl": address(package.name, package.version),
    }
    return found | {key: value for key, value in {"licenses": licences(licence(package.name))}.items() if value}


def bill() -> dict[str, Any]:
    """The bill of materials."""
    packages, own = locked(), address("hilrp", version())
    plain, extras = required_by(""), required_by("all")
    scopes = {name: "required" if name in plain else "optional" if name in extras else "excluded" for name in packages}
    references = {name: address(name, package.version) for name, package in packages.items()} | {"hilrp": own}
    needs: dict[str, list[str]] = {reference: [] for reference in references.values()}
    for name, package in packages.items():
        for parent in package.parents:
            needs[references[parent]].append(references[name])
    components = [component(package, scopes[name]) for name, package in packages.items()]
    content = json.dumps(components, sort_keys=True)
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + content)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": "hilrp",
                "version": version(),
                "purl": own,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [{"ref": reference, "dependsOn": sorted(set(used))} for reference, used in needs.items()],
    }


def main(out: Path = OUT) -> Path:
    """Writes it; the path of the file."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"hilrp-{version()}.cdx.json"
    path.write_text(json.dumps(bill(), indent=1) + "\n")
    return path


if __name__ == "__main__":
    print(main())
