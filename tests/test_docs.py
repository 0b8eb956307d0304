"""Examples in docstrings and documents run as they stand; the package imports torch and nothing else."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from PIL import Image

import hilrp
from helpers.paths import DOCUMENTS, ROOT

MODULES = [m.name for m in pkgutil.walk_packages(hilrp.__path__, "hilrp.")]


@pytest.mark.parametrize("name", ["hilrp", *MODULES])
def test_docstring_examples(name):
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/engine.md",
        "docs/zoo.md",
        "docs/benchmark.md",
        "docs/secant.md",
        "docs/targets.md",
        "docs/gallery.md",
    ],
)
def test_documents_examples(document, tmp_path, monkeypatch):
    """Every Python block of a document, run in order in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.S)
    assert blocks
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((260, 240), 60).convert("RGB").save("photo.jpg")
    # No model hub in a test: the same architecture with random weights.
    monkeypatch.setattr("timm.create_model", _without_download(__import__("timm").create_model))
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, document, "exec"), namespace)


def _without_download(create):
    return lambda name, pretrained=False, **options: create(name, **options)


#: Run in a process where nothing can be imported but Python's own modules, torch and what torch requires.
_ALONE = """
import sys

class Alone:
    allowed = {*sys.stdlib_module_names, "hilrp", "torch", "functorch", "torchgen", "typing_extensions", "filelock"}
    allowed |= {"sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "triton"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Alone())
"""
_EXPLAINED = """
import torch
import hilrp
from torch import nn

torch.manual_seed(0)
layers = nn.Conv2d(3, 8, 4, 4), nn.GELU(), nn.Flatten(2), nn.TransformerEncoderLayer(16, 2, 32), nn.Flatten()
model = nn.Sequential(*layers, nn.LayerNorm(128), nn.Linear(128, 5)).double().eval()
x = torch.randn(2, 3, 16, 16, dtype=torch.double)
for options in ({}, {"rules": "secant"}):
    explanation = hilrp.explain(model, x, **options)
    assert "score" in explanation.ledger.table()
    print(*(verdict.value for verdict in explanation.verdicts))
print(hilrp.audit(model, x).passed)
"""


def test_import_and_explaining_need_torch_alone():
    found = subprocess.run([sys.executable, "-c", _ALONE + _EXPLAINED], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == ["valid"] * 4 + ["True"]
    forbidden = subprocess.run([sys.executable, "-c", _ALONE + "import numpy"], capture_output=True, text=True)
    assert "No module named 'numpy'" in forbidden.stderr


def long_lines(text: str) -> list[str]:
    """The lines of a document of more than 120 characters; rows of tables, code and the targets of links aside."""
    found, fenced, code, empty = [], False, False, True
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            fenced = not fenced
        # Four spaces after an empty line are code, as they are after a line of code; in a list they would be text.
        code = line.startswith("    ") and (code or empty)
        empty = not line.strip()
        if not (fenced or code or line.startswith("|")) and len(re.sub(r"\]\([^)]*\)", "]()", line)) > 120:
            found.append(line)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_of_documents_are_short(document: Path):
    assert not long_lines(document.read_text())


def test_long_lines():
    text = "a " * 60 + "a"
    link = f"[a](https://b.c/{'d' * 120})"
    for allowed in (f"| {text}|", f"```\n{text}\n```", f"some code:\n\n    {text}\n    {text}", link):
        assert not long_lines(allowed)
    for forbidden in (text, f"- {text}", f"```\n```\n{text}", f"- an item\n    {text}", f"[a](b.md) {text}"):
        assert len(long_lines(forbidden)) == 1


def test_lines_of_code_are_short():
    """Ruff checks it; the only file that is allowed longer ones is the table of operations."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]
    assert settings["line-length"] == 120
    assert "E" in settings["lint"]["select"]
    assert "E501" not in settings["lint"]["ignore"]
    exceptions = {name for name, rules in settings["lint"]["per-file-ignores"].items() if {"E", "E501"} & set(rules)}
    assert exceptions == {"src/hilrp/method/table.py"}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 900


def test_the_page_of_the_zoo_says_what_the_cards_say():
    from hilrp.models.libraries import zoo

    page = (ROOT / "docs" / "zoo.md").read_text()
    for name in zoo.names():
        card = zoo.card(name)
        size, precision = f"{card['parameters'] / 1e6:.2f} M", f"{card['mean_average_precision']:.4f}"
        assert f"| `zoo/{name}` | {card['architecture']} | {size} | {precision} |" in page
    for name in zoo.others():
        words, value = zoo.figure(name)
        row = next(line for line in page.splitlines() if line.startswith(f"| `zoo/{name}` |"))
        assert row.endswith(f"| {zoo.card(name)['parameters'] / 1e6:.2f} M | {words} {value:.4f} |")
