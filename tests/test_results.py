"""Tables of the documents are made of committed figures: a number that isn't in the data is noticed."""

from __future__ import annotations

import csv
import re
import runpy
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.paths import ROOT
from helpers.real_data import shared

RESULTS = ROOT / "docs" / "results"
#: What the columns of the README's table are called in passes.csv.
COLUMNS = {
    "Shapley agreement": "Shapley agreement, four removals (Voronoi)",
    "flip": "flip",
    "calibration": "calibration (Voronoi)",
    "pointing": "pointing",
}


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "scripts" / "result_tables.py"))


def test_tables_are_what_the_figures_give(tables):
    marked = 0
    for path in tables["DOCUMENTS"]:
        text = path.read_text()
        marked += text.count("<!-- table: ")
        assert tables["with_tables"](text) == text, f"{path}: run scripts/result_tables.py"
    assert marked >= 3


@pytest.mark.parametrize("broken", [("<!-- end -->", "<!-- and -->"), ("-->\n| claim", "->\n| claim")])
def test_a_table_whose_marks_are_broken_is_an_error(tables, broken):
    text = (RESULTS / "README.md").read_text()
    assert tables["with_tables"](text)
    with pytest.raises(ValueError, match="tables begin and"):
        tables["with_tables"](text.replace(*broken, 1))


def test_every_template_is_in_a_document(tables):
    named = {name for path in tables["DOCUMENTS"] for name in re.findall(r"<!-- table: ([\w-]+) -->", path.read_text())}
    assert named == {path.stem for path in (RESULTS / "tables").glob("*.txt")}


def test_a_number_that_is_not_in_the_data_fails(tables, tmp_path):
    """One digit changed in a document, and in the data behind it."""
    text = (RESULTS / "README.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith("| HiLRP, secant | **0.96**"))
    assert tables["with_tables"](text.replace(row, row.replace("0.96", "0.97"))) == text
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "result_tables.py", tmp_path / "scripts")
    shutil.copytree(RESULTS, tmp_path / "docs" / "results")
    cards = Path("src", "hilrp", "zoo", "weights")
    shutil.copytree(ROOT / cards, tmp_path / cards, ignore=shutil.ignore_patterns("*.safetensors"))
    for path in tables["DOCUMENTS"]:
        shutil.copy(path, tmp_path / path.relative_to(ROOT))
    assert check(tmp_path).returncode == 0
    scenes = tmp_path / "docs" / "results" / "scenes.md"
    scenes.write_text(scenes.read_text().replace("**0.96 ± 0.05**", "**0.95 ± 0.05**", 1))
    failed = check(tmp_path)
    assert failed.returncode == 1
    assert "README.md: a table is not what the figures give" in failed.stderr


#: Tables of figures that stand without marks, and why: reports are the data, others are held against it elsewhere.
UNMARKED = {
    "README.md": "test_the_readme_has_the_figures_of_passes",
    "docs/zoo.md": "test_the_page_of_the_zoo_says_what_the_cards_say, of its second table",
    "docs/coverage.md": "test_the_chapter_on_coverage_says_what_the_rows_say",
    "docs/export.md": "versions of packages",
}
#: Documents of which docs/results/README.md says that no rows were kept.
NOT_KEPT = {f"docs/{name}.md" for name in ("performance", "run", "security", "references", "secant")}


def test_every_table_of_figures_is_made_of_data_or_named():
    """Four numbers with a point, or more, are a table of figures; reports in docs/results are data themselves."""
    said = (RESULTS / "README.md").read_text()
    kept = said[said.index("## What is kept") :]
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), RESULTS / "README.md"):
        name = str(path.relative_to(ROOT))
        text = re.sub(r"<!-- table: .*?<!-- end -->", "", path.read_text(), flags=re.S)
        for table in re.findall(r"^\|[^\n]*\n\|[-:| ]+\|\n((?:\|[^\n]*\n)+)", text, re.M):
            if len(re.findall(r"\d\.\d", re.sub(r"`[^`]*`|\]\([^)]*\)", "", table))) >= 4:
                assert name in UNMARKED or name in NOT_KEPT, (
                    f"{name}: mark the table, or say why it has no data:\n{table}"
                )
    for name in NOT_KEPT:
        assert f"](../{Path(name).name})" in kept, name


#: Numbers with a point that stand in templates: gammas, the part of a scene that an object covers; those of the paper.
SETTINGS = {"0.01", "0.05", "0.25"}
OF_THE_PAPER = set("0.29 0.82 0.97 0.55 0.980 0.53 0.52 0.21 0.417 0.077 0.90 0.41 0.61 0.13 0.77 0.86 0.70".split())
#: Pointing on the eight transformers of the paper's benchmark.
IN_ITS_TABLE = {
    "LIME": (0.87, 0.89, 0.86, 0.86, 0.90, 0.80, 0.90, 0.80),
    "HiLRP": (0.70, 0.90, 0.96, 0.98, 0.86, 0.96, 0.97, 0.96),
}


def test_a_measured_number_in_a_template_is_looked_up():
    """But of what was only printed: it stands where it was printed, too."""
    printed = {
        number
        for name in ("performance.md", "results/targets.md")
        for number in re.findall(r"(?<![\w.])\d+\.\d+", (ROOT / "docs" / name).read_text())
    }
    spreads = {f"{statistics.pstdev(values):.2f}" for values in IN_ITS_TABLE.values()}
    for path in (RESULTS / "tables").glob("*.txt"):
        for line in path.read_text().splitlines():
            text = re.sub(r"\{[^{}]*\}|`[^`]*`|\]\([^)]*\)", "", line)
            allowed = SETTINGS | OF_THE_PAPER | spreads
            if "performance.md" in line or "targets.md" in line:
                allowed = allowed | printed
            found = set(re.findall(r"(?<![\w.-])\d+\.\d+", text))
            assert found <= allowed, f"{path.name}: {found - allowed} in {line[:80]}"


def check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "result_tables.py"), "--check"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "query",
    [
        "masks|pointing|HiLRP|swin",
        "masks|pointing|Grad-CAM|nothing",
        "boxes|pointing|Attention Rollout|all",
        "masks.csv.gz|pointing|hilrp|swin",
        "chain_settings.csv|2, 5|8|flip",
        "verify.json|taxonomy|nothing",
        "classic_lrp.csv|captum|zoo|largest",
        "card|nothing|mAP",
        "masks.csv.gz|pointing|nothing|*",
        "passes.csv|photographs|nothing|flip",
        "passes.csv|photographs/deit_tiny_patch16_224 nothing|secant|flip",
        "nowhere.csv.gz|pointing|hilrp|*",
    ],
)
def test_a_figure_that_is_not_there_is_an_error(tables, query):
    with pytest.raises(LookupError, match="no such figure in the data"):
        tables["look_up"](query)


def test_means_are_of_all_images(tables):
    import gzip

    with gzip.open(RESULTS / "figures" / "masks.csv.gz", "rt") as file:
        wanted = ("pointing", "hilrp", "tiny_vit_5m_224")
        rows = [row for row in csv.DictReader(file) if (row["figure"], row["method"], row["model"]) == wanted]
    assert len(rows) == 199  # of 200: of one the object is cropped away
    mean = sum(float(row["value"]) for row in rows) / len(rows)
    assert tables["look_up"]("masks.csv.gz|pointing|hilrp|tiny_vit_5m_224|mean:3") == f"{mean:.3f}"


def test_the_readme_has_the_figures_of_passes(tables):
    """The README's table is not marked, since it is shown where marks would be seen; its rows are looked up."""
    lines = (ROOT / "README.md").read_text().splitlines()
    (start,) = (i for i, line in enumerate(lines) if line.startswith("| | passes | Shapley agreement"))
    header = [cell.strip() for cell in lines[start].strip("|").split("|")]
    method, seen = "", 0
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        cells = [cell.strip().replace("*", "") for cell in line.strip("|").split("|")]
        named = re.search(r"`(\w+)`", cells[0])
        method = named[1] if named else cells[0].lower() or method
        passes = int(cells[1])
        name = f"{method}:passes={passes}" if method == "secant" and passes > 1 else method
        for column, cell in zip(header[2:], cells[2:], strict=True):
            with (RESULTS / "passes.csv").open() as file:
                values = [
                    float(row[COLUMNS[column]])
                    for row in csv.DictReader(file)
                    if (row["source"], row["method"]) == ("photographs", name)
                ]
            assert len(values) == 3, (name, column)
            digits = len(cell.partition(".")[2])
            assert abs(sum(values) / 3 - float(cell)) <= 0.5001 * 10**-digits, (name, column, cell)
            seen += 1
    assert seen >= 20


@pytest.mark.parametrize("table", ["passes.csv", "masks.csv.gz"])
def test_the_border_of_an_animal_counts_alike_in_all_tables(table, tables):
    """The centre Gaussian looks at no model: rows made anew, from masks as they are read now, are those kept."""
    import torch

    import hilrp
    from hilrp.jobs.bench.data import find
    from hilrp.jobs.bench.methods.controls import bell
    from hilrp.jobs.bench.metrics.localisation import energy_excess, pointing

    loaded = hilrp.load("timm/mobilenetv2_100", shared("checkpoints", "mobilenetv2_100.safetensors"))
    pets = shared("images", "pets")
    pictures = runpy.run_path(str(ROOT / "benchmarks" / "pictures.py"))
    some = pictures["photographs"](pets.parents[1], 48, pictures["REPORT"])
    samples = some if table == "passes.csv" else find(str(pets))
    seen = [loaded.seen_mask(sample.place()) for sample in samples]
    masks = torch.stack([mask for mask in seen if mask.any() and not mask.all()])
    maps = bell(*masks.shape[-2:]).expand(masks.shape)
    for figure, values in {"pointing": pointing(maps, masks), "energy excess": energy_excess(maps, masks)}.items():
        query = {
            "passes.csv": f"passes.csv|photographs/mobilenetv2_100|centre-gaussian|{figure}|5",
            "masks.csv.gz": f"masks.csv.gz|{figure}|centre-gaussian|mobilenetv2_100|mean:5",
        }
        assert float(tables["look_up"](query[table])) == pytest.approx(float(values.double().mean()), abs=2e-5)


def test_the_readme_counts_the_drop_ins():
    """Of each package as many models crash, don't add up and do as the comparison found."""
    with (RESULTS / "drop-ins.csv").open() as file:
        rows = list(csv.DictReader(file))
    named = re.findall(
        r"^\| (?:\*\*)?([\w -]*`?\w+`?)(?:\*\*)? ((?:\| \**\d+\** ){3})\|$", (ROOT / "README.md").read_text(), re.M
    )
    found = {name.replace("`", ""): [int(each) for each in re.findall(r"\d+", cells)] for name, cells in named}
    assert set(found) == {row["method"] for row in rows}
    for method, counts in found.items():
        own = [row for row in rows if row["method"] == method]
        crashed = sum(row["outcome"] == "crashes" for row in own)
        added_up = sum(row["outcome"] == "runs" and row["gap"] != "" and float(row["gap"]) <= 1e-4 for row in own)
        applies = sum(row["outcome"] != "does not apply" for row in own)
        assert counts == [crashed, applies - crashed - added_up, added_up], method
