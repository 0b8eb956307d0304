"""``hilrp bench``: what it asks for, and what it says of what goes wrong."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from helpers.commands import invoke
from hilrp.cli.bench import _run
from hilrp.jobs.bench import grid
from hilrp.jobs.bench.grid import Cell
from hilrp.jobs.bench.suites import suite
from hilrp.models.loading import DEFAULT_MODEL


def test_what_goes_wrong_is_said_once_of_each_method(capsys):
    lacking, other = "UnavailableError: captum is not installed.", "RuntimeError: no"
    cells = [Cell("zoo/vit", "rise", name, {}, error=lacking) for name in ("pointing", "flip")]
    cells += [Cell("zoo/vit", "dave", "flip", {}, error=other), Cell("zoo/vit", "secant", "flip", {"flip": [1.0]})]
    assert _run(SimpleNamespace(total=4, run=lambda: iter(cells))) == cells
    said = capsys.readouterr().err
    assert said.count(lacking) == said.count(other) == 1
    assert "zoo/vit, rise, pointing" in said
    assert "3 cells have an error" in " ".join(said.split())


@pytest.mark.parametrize(
    ("options", "models"),
    [
        ([], suite("quick").models),
        (["--data", "photos"], (DEFAULT_MODEL,)),
        (["--data", "photos", "--checkpoint", "w.pt"], (f"{DEFAULT_MODEL}@w.pt",)),
        (["--model", "zoo/vit@w.pt", "--model", "zoo/swin"], ("zoo/vit@w.pt", "zoo/swin")),
    ],
)
def test_which_models_are_compared(options, models, tmp_path, monkeypatch):
    """Those of the zoo on scenes alone: they know nothing else."""
    found = []

    class Begun(Exception):
        pass

    def begin(chosen, *_):
        found.append(chosen.models)
        raise Begun

    monkeypatch.setattr(grid, "Grid", begin)
    result = invoke("bench", *options, "-o", tmp_path / "out")
    assert isinstance(result.exception, Begun), result.output
    assert found == [models]
