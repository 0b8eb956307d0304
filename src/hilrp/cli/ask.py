"""``hilrp ask``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

import hilrp
from hilrp.answers.answer import Answer
from hilrp.attribution.sentences import number
from hilrp.cli.base import app, console, errors, fail, make_folder, print_json
from hilrp.cli.options import (
    Against,
    Checkpoint,
    Device,
    Json,
    MaxMegapixels,
    Models,
    Passes,
    Preset,
    Reference,
    check_device,
    folder_name,
    one_model,
)
from hilrp.jobs.inquiry import Inquiry
from hilrp.method.rules import DEFAULT_RULES
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.loading import ANSWERING_MODEL
from hilrp.models.picture_files import MEGAPIXELS, allow
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import HilrpError
from hilrp.zoo.architectures import SIZE


@app.command()
def ask(
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="[IMAGES]... QUESTION", help="Image files, then what is asked of them; or a text alone."
        ),
    ],
    model: Models = None,
    checkpoint: Checkpoint = None,
    answer: Annotated[
        str | None,
        typer.Option("--answer", metavar="TEXT", help="Explain this answer. Default: what the model answers."),
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Option(
            "--explain",
            metavar="TEXT",
            help="'words' (default), 'tokens', 'answer' as a whole, or a word or phrase of it. May be repeated.",
        ),
    ] = None,
    against: Against = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="WORD",
            help="Words of the question that the reference doesn't have. Default: all. May be repeated.",
        ),
    ] = None,
    reference: Reference = None,
    rules: Preset = DEFAULT_RULES,
    passes: Passes = 1,
    longest: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", min=1, help="At most so many tokens are answered.")
    ] = 40,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="Folder for the results. Default: out/ask/MODEL."),
    ] = None,
    device: Device = "cpu",
    max_megapixels: MaxMegapixels = MEGAPIXELS,
    json: Json = False,
) -> None:
    """Asks a model about pictures, and explains its answer word by word.

    Each word is traced to the pixels, to the prompt and to the words before
    it. What it scores without the picture is the language prior. The page,
    index.html, shows a word's map when the word is clicked.

    \b
    hilrp scenes 4 -o scenes
    hilrp ask scenes/images/0001.png "what colour is the ring?" \\
        --model zoo/captioner
    hilrp ask photo.jpg "What is this?" \\
        --model transformers/llava-hf/llava-onevision-qwen2-0.5b-ov-hf
    hilrp ask photo.jpg "Is it a cat?" --model FOLDER --explain Yes --against No
    hilrp ask "The capital of France is" \\
        --model transformers/openai-community/gpt2

    All words are explained at once: no --target, no --batch.

    The exit status is 2 if nothing could be explained.
    """
    try:
        check_device(device)
        allow(max_megapixels)
        name, weights = one_model(model, checkpoint, ANSWERING_MODEL)
        output = output or Path("out/ask") / folder_name(name)
        question, files = Inquiry.split(given)
        explained = tuple(words or ["words"])
        inquiry = Inquiry(
            question, files, answer, explained, against, tuple(without or ()), reference, rules, passes, longest
        )
        with errors.status(f"loading {escape(name)}"):
            loaded = hilrp.load(name, weights, device=device)
        with errors.status("asking"):
            found = inquiry.run(loaded)
        make_folder(output)
        found.save(output)
        page = output / "index.html"
        write_whole(page, _page(inquiry, found, loaded, weights))
    except (HilrpError, OSError) as error:
        raise fail(error) from None
    if json:
        print_json(found.facts())
        return
    console.print(f"[bold]{escape(found.text)}[/]", highlight=False)
    console.print(_table(found))
    for i in range(len(found)):
        console.print(escape(found.sentence(i)), highlight=False)
    for note in found.notes:
        console.print(f"[yellow]note[/]: {escape(note)}", highlight=False)
    console.print(f"Look at {escape(str(page))}", soft_wrap=True)


def _page(inquiry: Inquiry, found: Answer, loaded: Loaded, checkpoint: str | None) -> str:
    from hilrp.pages.answer import answer_page

    names = [each.name for each in inquiry.images]
    images = repr([str(each) for each in inquiry.images]) if inquiry.images else "None"
    code = inquiry.code(loaded, images, checkpoint=checkpoint)
    notes = loaded.notes(found.pictures[0].shape[1::-1], (SIZE, SIZE)) if found.pictures else []
    return answer_page(found, inquiry.question, inquiry.about(loaded, names), notes, code)


def _table(answer: Answer) -> Table:
    """A row for each word."""
    parts = answer.part_names
    table = Table("word", *([] if not answer.pictures else ["without the picture"]), "score")
    for name in parts:
        table.add_column(name.removeprefix("the "), justify="right")
    table.add_column("verdict")
    for word in answer.words:
        share = "" if word.prior_share is None else f"{word.prior_share:.0%}"
        cells: list[Any] = [escape(word.text), *([] if not answer.pictures else [share]), number(word.score)]
        cells += [number(word.parts[name]) if name in word.parts else "" for name in parts]
        table.add_row(*cells, f"[{word.verdict.colour}]{word.verdict}[/]")
    return table
