"""The house: each room imports only rooms that are below it, and CONTRIBUTING.md's map of them is true."""

from __future__ import annotations

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import hilrp
from helpers.paths import DOCUMENTS, ROOT

PACKAGE = Path(hilrp.__file__).parent
#: From the ground up. ``hilrp`` itself is what a user imports: it stands on all that is above it in this list.
ORDER = ["util", "scenes", "method", "engine", "targets", "attribution", "zoo", "models", "answers", "hilrp"]
ORDER += ["verify", "jobs", "concepts", "pages", "app", "cli", "compat", "export"]
#: Files in the root of the package: the names that users import.
FILES = {"__init__.py", "__main__.py", "references.py", "texts.py"}


def room_of(module: str) -> str:
    """The room that a module is in."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "hilrp"


def imports(file: Path) -> Iterator[str]:
    """The modules of the package that a file imports, also inside of functions; not what is for type checkers alone."""
    waiting: list[ast.AST] = [ast.parse(file.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.split(".")[0] == "hilrp")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hilrp":
            named = [f"{node.module}.{each.name}" for each in node.names]
            yield from (name if (PACKAGE / name.split(".")[1]).exists() else node.module or "" for name in named)


def test_every_room_is_in_the_order() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.glob("*.py"))}
    assert rooms | {"hilrp"} == set(ORDER)
    assert {path.name for path in PACKAGE.glob("*.py")} == FILES


def test_no_room_imports_one_above_it() -> None:
    upward = []
    for file in PACKAGE.rglob("*.py"):
        module = ".".join(["hilrp", *file.relative_to(PACKAGE).with_suffix("").parts])
        own = room_of(module)
        if own == "hilrp":
            continue  # the door: users come in by it, and `python -m hilrp` by the command line
        upward += [
            f"{module} imports {each}" for each in imports(file) if ORDER.index(room_of(each)) > ORDER.index(own)
        ]
    assert not upward, "\n".join(upward)


#: The plain pass: what is read first.
CORE = ["engine/engine.py", *(f"method/{name}.py" for name in "table call linear bilinear normalisation".split())]
CORE += [f"method/{name}.py" for name in "reindexing composite autograd".split()]


def lines_of(*files: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in files)


def test_the_core_and_the_secant_forms_do_not_grow() -> None:
    """Both are to be read in one sitting; who adds to them takes something out."""
    assert lines_of(*(PACKAGE / name for name in CORE)) <= 2080
    assert lines_of(*(PACKAGE / "method" / "secant").glob("*.py")) <= 1090


def test_the_core_of_the_method_imports_neither_secant_nor_fast_forms() -> None:
    for file in (*(PACKAGE / "method").glob("*.py"), *(PACKAGE / "engine").glob("*.py")):
        assert not [each for each in imports(file) if each.startswith(("hilrp.method.secant", "hilrp.method.fast"))]


def test_the_picture_of_the_house_has_every_room() -> None:
    drawn = runpy.run_path(str(ROOT / "scripts" / "engine_figures.py"))
    assert set(drawn["ROOMS"]) == {*ORDER, "method/secant", "method/fast"}
    graph = drawn["import_graph"]()
    assert set(graph) == set(drawn["ROOMS"])
    arrows = drawn["without_detours"](graph)
    assert arrows["engine"] == {"method"}
    assert arrows["method/fast"] == {"method/secant"}


def test_the_door_opens_to_what_is_below_it() -> None:
    for name in FILES - {"__main__.py"}:
        above = [each for each in imports(PACKAGE / name) if ORDER.index(room_of(each)) > ORDER.index("hilrp")]
        assert not above


def test_the_map_of_contributing_is_true() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Where things are") : text.index("## Documents")]
    named = re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)
    assert named == [room for room in ORDER if room != "hilrp"]
    for path in re.findall(r"`((?:src|tests|docs|scripts|benchmarks)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
    for row in re.findall(r"^\| `(\w+)/` \|(.*)$", table, re.MULTILINE):
        for name in re.findall(r"`(\w+(?:/\w+)*(?:\.py|/))`", row[1]):
            assert (PACKAGE / row[0] / name).exists(), f"{row[0]}/{name}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", document.read_text())
    assert not [link for link in links if "://" not in link and not (document.parent / link).exists()]


def test_the_glossary_is_short() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(rows) - 1 <= 40
    assert len(set(rows)) == len(rows)
