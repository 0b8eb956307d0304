"""Examples in docstrings and documents run as they stand; the package imports torch and nothing else."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

import hilrp
from helpers.optional import keep_to_oneself, missing
from helpers.paths import DOCUMENTS, ROOT, SCRIPTS

MODULES = [m.name for m in pkgutil.walk_packages(hilrp.__path__, "hilrp.")]


@pytest.mark.parametrize("name", ["hilrp", *MODULES])
def test_docstring_examples(name, workplace):
    if absent := missing(f"import {name}"):
        pytest.skip(f"needs {', '.join(absent)}")
    module = importlib.import_module(name)
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    left_out = set()
    for example in finder.find(module):
        if absent := missing(example.docstring):
            left_out |= absent
        else:
            runner.run(example)
    assert runner.failures == 0
    if left_out:
        pytest.skip(f"examples that need {', '.join(left_out)} were left out; the others run")


def blocks(document: Path, language: str) -> list[str]:
    """The code blocks of a document in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.S | re.M)


def _name(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a photograph, where no model hub is asked: architectures get random weights."""
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((260, 240), 60).convert("RGB").save("photo.jpg")
    monkeypatch.setattr("timm.create_model", _without_download(__import__("timm").create_model))
    keep_to_oneself(monkeypatch, tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if blocks(each, "python")], ids=_name)
def test_documents_examples(document, workplace, capsys):
    """Every Python block of a document, run in order in one namespace; what it is said to print, it prints."""
    namespace: dict[str, object] = {}
    left_out = set()
    for block in blocks(document, "python"):
        if absent := missing(block):
            left_out |= absent
            continue
        exec(compile(block, str(document), "exec"), namespace)
    printed = " ".join(capsys.readouterr().out.split())
    for quoted in re.findall(r"^It prints:\n\n((?:> .*\n)+)", document.read_text(), re.M):
        assert " ".join(quoted.replace("> ", "").split()) in printed
    if left_out:
        pytest.skip(f"blocks that need {', '.join(left_out)} were left out; the others run")


def commands(code: str) -> list[list[str]]:
    """The command lines of hilrp in some code, as lists of arguments."""
    found = []
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            end = next((i for i, word in enumerate(words) if word.endswith(";")), len(words) - 1)
            command, words = [word.rstrip(";") for word in words[: end + 1]], words[end + 1 :]
            if command[0] == "hilrp":
                found.append([word.strip("[]") for word in command[1:]])
    return found


def _shell_code(document: Path) -> str:
    """What a document shows of a terminal: blocks of their own, or four spaces."""
    indented = re.findall(r"^    (hilrp .*(?:\\\n.*)*)", document.read_text(), re.M)
    return "\n".join([*blocks(document, "console"), *indented])


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if "hilrp " in _shell_code(each)], ids=_name)
def test_documents_commands_are_those_of_the_command_line(document):
    for words in commands(_shell_code(document)):
        parse(words)


def parse(words: list[str]) -> None:
    """Parses a command, without running it; an option that isn't there raises."""
    from hilrp.cli import app

    group: Any = typer.main.get_command(app)
    with group.context_class(group, info_name="hilrp") as context:
        name, command, rest = group.resolve_command(context, words)
        assert command is not None
        command.make_context(name, rest, parent=context).close()


#: Of click, which typer brings along.
_UsageError = typer.BadParameter.__mro__[1]


def test_parsing_finds_what_is_wrong():
    assert commands("pip install .\nhilrp models swin; hilrp explain a.jpg \\\n  -o out  # into a folder") == [
        ["models", "swin"],
        ["explain", "a.jpg", "-o", "out"],
    ]
    parse(["models", "swin"])
    for wrong in (
        ["model", "swin"],
        ["models", "--libary", "zoo"],
        ["explain"],
        ["explain", "a.jpg", "--passes", "few"],
    ):
        with pytest.raises(_UsageError):
            parse(wrong)


#: A block of commands after this comment is run.
_RUN = re.compile(r"^<!-- run -->\n```console\n(.*?)^```", re.S | re.M)


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if _RUN.search(each.read_text())], ids=_name)
def test_documents_commands_run(document, workplace):
    from hilrp.cli import app

    runs = [words for code in _RUN.findall(document.read_text()) for words in commands(code)]
    assert runs
    for words in runs:
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, (words, result.output)


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


@pytest.mark.parametrize(
    "document", [ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")], ids=_name
)
def test_links_of_documents_beside_the_site_lead_somewhere(document: Path):
    """Those of the site are checked when it is built."""
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        assert ":" in target or (ROOT / target).exists(), target


def test_documents_that_code_names_are_there():
    for folder in ("src", "scripts", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"\bdocs/[\w/-]+\.(?:md|png|jpg|webp)\b", path.read_text()):
                assert (ROOT / name).exists(), f"{path} names {name}"


def test_methods_that_the_walk_names_are_there():
    named = set(re.findall(r"`([A-Z]\w+)\.(\w+)`", (ROOT / "docs" / "engine.md").read_text()))
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    own = {(name, part) for name, part in named if any(re.search(rf"^class {name}\b", s, re.M) for s in sources)}
    assert len(own) > 8
    for name, part in own:
        body = "".join(re.findall(rf"^class {name}\b.*?(?=^\S|\Z)", "\n".join(sources), re.S | re.M))
        assert re.search(rf"^    (def )?{part}\b", body, re.M), f"{name}.{part}"


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


def test_the_chapter_on_coverage_says_what_the_rows_say():
    from hilrp.jobs.coverage.catalogue import representatives
    from hilrp.jobs.coverage.report import NOT_RUN, kept_runs, library_of

    page = (ROOT / "docs" / "coverage.md").read_text()
    runs = kept_runs(ROOT / "docs" / "coverage")
    rows = [row for _, each in runs for row in each]
    verdicts: dict[str, set[str]] = {}
    for row in rows:
        verdicts.setdefault(row["name"], set()).add(row["status"])
    sound = [name for name, found in verdicts.items() if found - {NOT_RUN} == {"pass"}]
    libraries = dict.fromkeys(library_of({"name": name}) for name in verdicts)
    assert len(libraries) == 8
    assert f"Of {len(verdicts):,} different models of eight libraries, {len(sound):,} passed" in page
    failed = sorted(name for name, found in verdicts.items() if found - {NOT_RUN, "pass"})
    assert all(f"`{name}`" in page for name in failed), failed
    assert sum(found == {NOT_RUN} for found in verdicts.values()) == len(verdicts) - len(sound) - len(failed) == 2
    for library in libraries:
        models, passed = (
            [name for name in names if library_of({"name": name}) == library] for names in (verdicts, sound)
        )
        assert re.search(rf"^\| {library} [^|]*\| {len(models):,} \| {len(passed):,} \|$", page, re.M), library
    assert f"audited in float64 instead: {sum(row.get('dtype') == 'float64' for row in rows)} rows" in page
    assert sum(bool(row.get("unseen")) for row in rows) == 1
    secant = {row["name"] for settings, each in runs if settings.rules == "secant" for row in each}
    assert len(secant & {f"timm/{name}" for name in representatives().values()}) == 98
    missing = sorted(name for name, found in verdicts.items() if found == {NOT_RUN})
    assert all(f"`{name.removeprefix('timm/')}`" in page for name in missing), missing


def test_the_chapter_on_coverage_says_which_code_was_audited():
    from hilrp.jobs.coverage.report import kept_runs

    folder = ROOT / "docs" / "coverage"
    page = (ROOT / "docs" / "coverage.md").read_text()
    for path, (settings, _) in zip(sorted(folder.glob("*.jsonl")), kept_runs(folder), strict=True):
        how = f"`{settings.rules}`, {settings.dtype}, {settings.device}"
        how += f", side {settings.size}" if settings.size else ""
        facts = f"{how} | {settings.versions['timm']} | {settings.source or 'not recorded'} |"
        assert f"| `{path.stem}` | {len(path.read_text().splitlines()):,} | {facts}" in page


def test_rows_are_taken_over_into_the_documents(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    from coverage_rows import take_over

    from hilrp.jobs.coverage import Settings, Store
    from hilrp.jobs.coverage.report import kept_runs

    store = Store(tmp_path / "run", Settings(batch=1))
    store.request(["timm/b", "timm/a", "timm/c"])
    store.add({"name": "timm/b", "status": "pass", "residual": 1.23456e-7})
    store.add({"name": "timm/a", "status": "fail"})
    store.add({"name": "timm/a", "status": "pass"})
    take_over(tmp_path / "run", "mine", tmp_path / "kept")
    ((settings, rows),) = kept_runs(tmp_path / "kept")
    assert settings == store.settings
    found = {row["name"]: row["status"] for row in rows}
    assert found == {"timm/a": "pass", "timm/b": "pass", "timm/c": "not run"}
    assert next(row for row in rows if row["name"] == "timm/b")["residual"] == 1.23e-7
