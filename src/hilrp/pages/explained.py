"""The page of one explanation, of whatever kind its input is."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hilrp.attribution.charts import draw_chart
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.kinds import Kind
from hilrp.attribution.marking import marked_part
from hilrp.attribution.panels import classes_of, names_of
from hilrp.attribution.sentences import sentence, titled
from hilrp.pages.charts import drawn
from hilrp.pages.parts import folded, page, table
from hilrp.pages.stacks import Space, stack_page
from hilrp.pages.viewer import STYLE, ledger_of, viewer_page
from hilrp.pages.words import surety, verdict
from hilrp.util.atomic_files import write_whole
from hilrp.util.errors import InputError

#: At most so many rows are in the table of a table's features.
_ROWS = 1000


def save_page(
    explanation: Explanation,
    path: str | Path,
    loaded: Any = None,
    sample: int = 0,
    features: Sequence[str] | None = None,
    space: Space | None = None,
) -> Path:
    """Writes the page of a sample: a single file that needs nothing else, with sliders for slices and frames.

    Args:
        explanation: The explanation.
        path: The file, ``.html``.
        loaded: What `hilrp.load` returned, or the names of the classes.
        sample: Which sample.
        features: The names of a table's features, or of tokens.
        space: How a volume lies in space, and films and sounds in time.

    Example:
        >>> import torch, hilrp
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(480, 2)).eval()
        >>> save_page(hilrp.explain(model, torch.rand(1, 1, 6, 8, 10)), "scan.html").name
        'scan.html'
    """
    place = Path(path)
    if place.suffix not in (".html", ".htm"):
        raise InputError(f"{place}: a page is an .html file.")
    one = explanation[sample]
    name, against = classes_of(one, 0, names_of(loaded))
    picture = None
    if one.main_of(one.relevance)[1] is Kind.PICTURE and hasattr(loaded, "picture"):
        x = one.image_of(one.input)
        picture = loaded.picture(x)[0] if x.shape[1] == 3 else None
    write_whole(place, explanation_page(one, name, "", (), picture, features, space, against=against).encode())
    return place


def explanation_page(
    explanation: Explanation,
    title: str | None,
    about: str,
    notes: Sequence[str] = (),
    picture: Any = None,
    features: Sequence[str] | None = None,
    space: Space | None = None,
    code: str = "",
    name: str = "hilrp",
    against: str | None = None,
) -> str:
    """The page of an explanation of one sample: a picture's, a stack's, or that of a chart.

    Args:
        explanation: Of one sample.
        title: What is explained, in words.
        about: Of what, with which model and rules.
        notes: What should be known of it.
        picture: What the model saw of a picture, ``[3,H,W]`` from 0 to 1.
        features: The names of a table's features, or of tokens.
        space: How a volume lies in space, and films and sounds in time.
        code: The lines of Python that make the same explanation.
        name: What files that are saved from the page are named by.
        against: What the title is contrasted with.
    """
    kind = explanation.main_of(explanation.relevance)[1]
    if kind is Kind.PICTURE:
        return viewer_page(explanation, title, about, notes, picture, code=code, name=name, against=against)
    if kind in (Kind.TABLE, Kind.TOKENS):
        return _bars(explanation, kind, title, about, notes, features, code, against)
    return stack_page(explanation, title, about, notes, space, code, name, against)


def _bars(
    explanation: Explanation,
    kind: Kind,
    title: str | None,
    about: str,
    notes: Sequence[str],
    features: Sequence[str] | None,
    code: str,
    against: str | None,
) -> str:
    """The largest features as bars, and all of them in a table."""
    marked = explanation.marked()
    said = sentence(explanation, 0, title, marked.held, marked_part(kind), against)
    title = titled(title, against) or "the score"
    figure = Figure(figsize=(8, 0.28 * min(explanation.map.shape[1], 21) + 0.9), layout="constrained")
    draw_chart(figure.subplots(), explanation, 0, features, marked.mask[0])
    values = explanation.map[0].detach().float().cpu()
    errors = explanation.stderr
    names = [f"{kind.place} {i}" for i in range(len(values))] if features is None else list(map(str, features))
    order = values.abs().argsort(descending=True).tolist()[:_ROWS]
    rows = [
        f"<tr><td>{escape(names[i])}</td><td>{float(values[i]):.4g}</td>"
        f"<td>{'' if errors is None else f'{float(errors[0, i]):.2g}'}</td></tr>"
        for i in order
    ]
    noted = "".join(f'<p class="note">Note: {escape(note)}.</p>' for note in notes)
    bold = "Bold: " + marked_part(kind)
    body = f"""<h1>{escape(title)}</h1>
<p id="headline">{escape(str(said))}</p><p class="soft">{escape(about)}</p>{noted}
<div class="scroll">{drawn(figure, f"{title}: relevance of each {kind.place}")}</div>
<p class="soft">{bold}. Red speaks for it, blue against it.</p>{verdict(explanation)}
<p class="soft">{escape(surety(explanation))}</p>
{folded(f"All {kind.places}", table([kind.place, "relevance", "standard error"], rows))}
{folded("The ledger", ledger_of(explanation))}
{folded("The same in Python", f"<pre>{escape(code)}</pre>") if code else ""}"""
    return page(title, body, STYLE)
