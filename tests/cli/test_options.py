"""Options that commands share: one name, one type, one default, one help, one meaning."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from pathlib import Path
from typing import get_type_hints

import pytest
import typer
from typer.models import OptionInfo

from helpers.commands import invoke, words
from helpers.paths import ROOT
from hilrp.cli import app
from hilrp.cli.options import batch_size, named_models, one_model
from hilrp.models.loading import DEFAULT_MODEL
from hilrp.util.errors import InputError

COMMANDS = typer.main.get_command(app).commands
#: What is the same in every command that has it.
SHARED = "model checkpoint classes target against rules reference passes method device batch max_megapixels".split()
SHARED += "samples size dtype json".split()
#: Who has which of those that the documents promise; who lacks one says why in its help.
PROMISED = {
    "explain": "model checkpoint rules reference passes target against device batch",
    "ask": "model checkpoint rules reference passes against device",
    "run": "model checkpoint rules reference passes target against device batch",
    "serve": "model checkpoint rules reference passes device",
    "bench": "model checkpoint device",
    "audit": "model checkpoint rules device",
    "views": "model checkpoint device",
}


def declared(command: str) -> dict[str, str]:
    """What the options of a command are: type, default, spelling, help, and all else that is said of them."""
    function = next(each.callback for each in app.registered_commands if each.callback.__name__ == command)
    defaults = {name: each.default for name, each in inspect.signature(function).parameters.items()}
    found = {}
    for name, hint in get_type_hints(function, include_extras=True).items():
        option = next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, OptionInfo)), None)
        if option is not None:
            spelled = next((each for each in option.param_decls or () if each.startswith("--")), f"--{name}")
            facts = {key: value for key, value in vars(option).items() if key != "autocompletion"}
            key = spelled.partition("/")[0].removeprefix("--").replace("-", "_")
            found[key] = repr((hint.__origin__, defaults[name], facts))
    return found


def test_shared_options_are_the_same_in_every_command():
    found = defaultdict(dict)
    for command in COMMANDS:
        for name, facts in declared(command).items():
            found[name][command] = facts
    for name in SHARED:
        assert found[name], f"no command has --{name}"
        assert len(set(found[name].values())) == 1, f"--{name} differs: {found[name]}"
    # And no command has an option of a shared meaning under another name.
    assert not {"methods", "models", "weights", "baseline", "preset"} & set(found)


@pytest.mark.parametrize("command", PROMISED)
def test_who_has_which_option_and_why_not(command):
    every = set(" ".join(PROMISED.values()).split())
    has = set(PROMISED[command].split())
    assert every & set(declared(command)) == has
    said = COMMANDS[command].help
    for name in every - has:
        assert re.search(rf"(no|nor|and|,)\s(\S+\s)*?--{name}\b", said), f"{command} --help doesn't say why no --{name}"


def test_the_table_of_the_documents_is_that_of_the_commands():
    page = (ROOT / "docs" / "command_line.md").read_text()
    table = re.findall(r"^\| `--(\w+)` \|(.*)\|$", page, re.MULTILINE)
    order = ["explain", "ask", "run", "serve", "bench", "audit", "views"]
    assert re.search(r"\| option \| " + r" \| ".join(f"`{name}`" for name in order), page)
    rows = {name: [cell.strip() == "yes" for cell in cells.split("|")] for name, cells in table}
    assert rows == {name: [name in declared(command) for command in order] for name in rows}
    assert set(rows) == set(" ".join(PROMISED.values()).split())


def examples(text: str) -> list[str]:
    return re.findall(r"^hilrp .*$", text or "", re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_readable_at_80_columns(command, monkeypatch):
    """Every command has examples, and none of their lines is broken."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    result = invoke(command, "--help")
    assert result.exit_code == 0
    shown = [line.strip() for line in result.output.splitlines()]
    assert max(map(len, shown)) <= 80
    assert examples(COMMANDS[command].help)
    for line in examples(COMMANDS[command].help):
        assert line.strip() in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_can_be_parsed(command):
    """Each example names a command that there is, and options that it has."""
    lines = (COMMANDS[command].help or "").replace("\\\n", " ")
    for line in examples(lines):
        _, name, *rest = line.partition("#")[0].split()
        assert name in COMMANDS, line
        options = {part for part in rest if part.startswith("--")}
        known = {spelling for option in COMMANDS[name].params for spelling in option.opts}
        assert options <= known, line


def test_without_arguments_there_are_three_examples():
    result = invoke()
    assert result.exit_code == 0
    shown = [line.strip() for line in result.output.splitlines()]
    assert len([line for line in shown if re.match(r"hilrp \w+", line)]) == 3
    for command in COMMANDS:
        assert any(re.match(rf"\W*{command}\b", line) for line in shown), command


def test_models_and_their_checkpoints():
    assert named_models(None, None) == (DEFAULT_MODEL,)
    assert named_models([], Path("w.pt")) == (f"{DEFAULT_MODEL}@w.pt",)
    assert one_model(["zoo/swin@w.pt"], None) == one_model(["zoo/swin"], Path("w.pt")) == ("zoo/swin", "w.pt")
    for names, said in (
        (["zoo/vit", "zoo/swin"], "of which of the 2 models"),
        (["zoo/vit@a.pt"], "has a checkpoint already"),
    ):
        with pytest.raises(InputError, match=said):
            named_models(names, Path("w.pt"))
    with pytest.raises(InputError, match="Run it once for each"):
        one_model(["zoo/vit", "zoo/swin"], None)


def test_batches():
    assert [batch_size(None, "cpu"), batch_size(None, "cuda:1"), batch_size(3, "cuda")] == [16, 64, 3]


#: What is wrong, and what is said of it by every command that has the option.
WRONG = [
    (["--device", "quantum"], "--device quantum can't be used"),
    (["--model", "zoo/none"], "no model of that name in zoo"),
    (["--model", "zoo/vit", "--checkpoint", "nowhere.pt"], "nowhere.pt"),
    (["--model", "zoo/vit", "--model", "zoo/swin", "--checkpoint", "w.pt"], "of which of the 2 models is it?"),
    (["--model", "nowhere:make"], "Give the name of an importable module"),
    (["--model", "zoo/vit", "--rules", "magic"], "magic"),
    (["--model", "zoo/vit", "--reference", "nowhere.png"], "neither an image file nor one of neutral"),
    (["--model", "zoo/vit", "--passes", "7"], "chains come in pairs"),
    (["--model", "zoo/vit", "--rules", "hilrp", "--passes", "8"], "has no reference, from which they begin"),
    (["--model", "zoo/vit", "--rules", "zplus", "--reference", "blurred"], "has no form relative to a reference"),
    (["--model", "zoo/vit", "--method", "secant:gamma=bad"], "Rules(gamma='bad') is no number"),
    (["--model", "zoo/vit", "--method", "secant:gama=0.1"], "gama= is no option of rules"),
    (["--model", "zoo/vit", "--method", "secant:passes=7"], "chains come in pairs"),
    (["--model", "zoo/vit", "--method", "hilrp:passes=8"], "have no reference, from which they begin"),
]

#: What concerns one model of several.
OF_ONE_MODEL = {said for _, said in WRONG[1:3] + WRONG[4:5]}


CASES = [
    pytest.param(command, options, said, id=" ".join([command, *options]))
    for command in PROMISED
    for options, said in WRONG
    if {option[2:] for option in options if option.startswith("--")} <= set(declared(command))
    and not (command == "views" and "--method" in options)  # its methods have no options
]


@pytest.mark.parametrize(("command", "options", "said"), CASES)
def test_what_is_wrong_is_said_alike(command, options, said, tmp_path, monkeypatch):
    pytest.importorskip("gradio")
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    invoke("scenes", 1, "-o", "scenes") if command == "explain" else None
    first = {"explain": ["scenes/images", "-o", "out"], "run": ["--data", "scenes:1:1", "-o", "out"]}
    first |= {"serve": ["--port", "0"], "bench": ["--images", "1", "--method", "uniform", "-o", "out"], "audit": []}
    first |= {"views": ["--images", "1", "-o", "out"], "ask": ["what is torch?", "-o", "out"]}
    monkeypatch.setattr("hilrp.app.server.serve", lambda *_: pytest.fail("it began"))
    result = invoke(command, *first[command], *options)
    assert said in words(result)
    # Nothing is begun that can't be gone on with.
    assert command != "run" or not (tmp_path / "out").exists()
    # What is wrong with one model of a grid stays in its cells: the others are compared all the same.
    assert result.exit_code == (1 if command == "bench" and said in OF_ONE_MODEL else 2)
