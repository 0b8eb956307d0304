"""The notebooks run as they are, say the truth, and hold nothing of the machine that they were made on."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT, SCRIPTS

sys.path.insert(0, str(SCRIPTS))

import notebooks

FILES = notebooks.paths()
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def texts(notebook: Any) -> list[list[str]]:
    """What each cell of a notebook prints."""
    found = []
    for cell in notebook["cells"]:
        outputs = cell.get("outputs", [])
        shown = [each.get("text") or each["data"].get("text/plain", "") for each in outputs]
        found.append(["".join(each) for each in shown])
    return found


def source(notebook: Any, kind: str) -> list[str]:
    """The lines of a notebook's cells of one kind."""
    return [line for c in notebook["cells"] if c["cell_type"] == kind for line in "".join(c["source"]).splitlines()]


def test_which_there_are() -> None:
    names = {path.stem for path in FILES}
    assert names == {"explain_my_model", "does_my_model_cheat", "compare_methods", "from_shap_and_gradcam"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_runs_and_prints_what_it_says_that_it_prints(path: Path) -> None:
    """An error in a cell is raised, also that of a claim (`assert`); numbers may differ a little between machines."""
    before, now = texts(json.loads(path.read_text())), texts(notebooks.executed(path))
    for number, (old, new) in enumerate(zip(before, now, strict=True)):
        assert [NUMBER.sub("#", each) for each in old] == [NUMBER.sub("#", each) for each in new], f"cell {number}"
        for one, other in zip(NUMBER.findall("".join(old)), NUMBER.findall("".join(new)), strict=True):
            assert float(one) == pytest.approx(float(other), rel=0.05, abs=0.05), f"cell {number}: {one}, now {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_small_and_of_no_machine(path: Path) -> None:
    text = path.read_text()
    notebook = json.loads(text)
    assert len(text) < 400_000
    written = " ".join("".join(each) for each in texts(notebook)) + " ".join(source(notebook, "code"))
    for place in (str(ROOT), str(Path.home()), tempfile.gettempdir(), "/home/", "site-packages", "\x1b["):
        assert place not in written
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    for number, cell in enumerate(notebook["cells"]):
        assert cell["id"] == f"cell-{number}"
        assert cell["metadata"] == {}
        assert all(each.get("name") != "stderr" and each["output_type"] != "error" for each in cell.get("outputs", []))
    counts = [cell["execution_count"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(counts) + 1))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_short_and_says_how_to_go_on(path: Path) -> None:
    notebook = json.loads(path.read_text())
    prose = source(notebook, "markdown")
    text = "\n".join(prose)
    assert len(text.split()) < 600  # with the code, five minutes
    assert re.search("your own|your data|your photographs", text, re.I)
    assert not [line for line in prose if len(re.sub(r"\]\([^)]*\)", "]()", line)) > 120]
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert link.startswith("https://") or (path.parent / link).exists(), link


def test_what_a_machine_leaves_is_taken_away() -> None:
    import nbformat

    cell = nbformat.v4.new_code_cell("1", metadata={"execution": {"iopub.status.busy": "2020"}}, id="random")
    made = notebooks.tidied(nbformat.v4.new_notebook(cells=[cell], metadata={"widgets": {}}))
    assert made.cells[0].id == "cell-0"
    assert not made.cells[0].metadata
    assert set(made.metadata) == {"kernelspec", "language_info"}
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="a warning")]
    with pytest.raises(SystemExit, match="cell 0 writes warnings or errors: a warning"):
        notebooks.tidied(nbformat.v4.new_notebook(cells=[cell]))
