"""The fingerprint of the code that makes explanations and figures: all of it, and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hilrp
from hilrp.jobs.bench import grid
from hilrp.jobs.coverage.store import Settings, source
from hilrp.util.sources import fingerprint, reached

PACKAGE = Path(hilrp.__file__).parent
EXPLAINED = ("hilrp.attribution.audit", "hilrp.models.random_models")


@pytest.fixture
def copy(tmp_path):
    """A copy of hilrp's code in another place."""
    return Path(
        shutil.copytree(PACKAGE, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("*.safetensors", "*.pyc"))
    )


def test_the_same_wherever_hilrp_is(copy):
    assert fingerprint(*EXPLAINED, package=copy) == fingerprint(*EXPLAINED) == source() == Settings().source


@pytest.mark.parametrize("file", [
    "targets/classes.py",
    "targets/dense.py",
    "method/secant/elementwise.py",
    "method/fast/triton_kernels.py",
    "engine/engine.py",
    "attribution/explainer.py",
    "__init__.py",
    "models/libraries/timm.py",
    "zoo/dense.py",
])  # fmt: skip
def test_a_byte_of_what_explains_changes_both(copy, file):
    before = [fingerprint(*entries, package=copy) for entries in (EXPLAINED, [grid.__name__])]
    (copy / file).write_bytes((copy / file).read_bytes() + b"\n")
    after = [fingerprint(*entries, package=copy) for entries in (EXPLAINED, [grid.__name__])]
    assert all(old != new for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize(
    "file",
    [
        "scenes/objects.py",
        "jobs/bench/methods/cams.py",
        "jobs/bench/metrics/shapley.py",
        "jobs/bench/measures.py",
        "jobs/bench/grid.py",
    ],
)
def test_a_byte_of_what_measures_changes_that_of_the_benchmark(copy, file):
    before = fingerprint(grid.__name__, package=copy)
    (copy / file).write_bytes((copy / file).read_bytes() + b"\n")
    assert fingerprint(grid.__name__, package=copy) != before


@pytest.mark.parametrize("folder", ["cli", "pages", "app", "verify", "jobs/run"])
def test_what_only_shows_does_not_count(copy, folder):
    before = [fingerprint(*entries, package=copy) for entries in (EXPLAINED, [grid.__name__])]
    files = list((copy / folder).rglob("*.py"))
    assert files
    for file in files:
        file.write_text("'Something else.'\n")
    assert [fingerprint(*entries, package=copy) for entries in (EXPLAINED, [grid.__name__])] == before


def test_a_file_that_moves_stays_in(copy):
    (copy / "targets" / "deeper").mkdir()
    (copy / "targets" / "classes.py").rename(copy / "targets" / "deeper" / "moved.py")
    (copy / "targets" / "deeper" / "__init__.py").touch()
    (copy / "targets" / "__init__.py").write_text("def later():\n    from .deeper import moved\n")
    found = reached(*EXPLAINED, package=copy)
    assert {"hilrp.targets.deeper", "hilrp.targets.deeper.moved"} <= set(found)
    assert "hilrp.targets.classes" not in found
    (copy / "attribution" / "audit.py").unlink()
    with pytest.raises(ModuleNotFoundError, match=r"hilrp\.attribution\.audit"):
        reached(*EXPLAINED, package=copy)


def test_what_is_there_for_type_checkers_does_not_count(copy):
    (copy / "util" / "errors.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import hilrp.cli\nelse:\n    import "
        "hilrp.pages.parts\n"
    )
    found = reached("hilrp.util.errors", package=copy)
    assert "hilrp.pages.parts" in found
    assert "hilrp.cli" not in found


def test_all_that_an_audit_loads_is_in():
    code = (
        "import sys, hilrp\n"
        "from hilrp.models.random_models import build\n"
        "built = build('timm/test_convnext')\n"
        "hilrp.explain(built.model, built.inputs, rules='secant').ledger.table()\n"
        "hilrp.audit(built.model, built.inputs)\n"
        "print(*(name for name in sys.modules if name.partition('.')[0] == 'hilrp'))\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert {"hilrp.targets.classes", "hilrp.engine", "hilrp.models.libraries.timm"} <= loaded
    assert loaded <= set(reached(*EXPLAINED))
