"""Draws the pictures of docs/engine.md.

    docs/house.png        the rooms of the package, with arrows from the imports in its files
    docs/operations.png   a linear layer, a softmax, a LayerNorm and an attention: values, and their relevance

    python scripts/engine_figures.py

Needs matplotlib alone. Every number is computed here by hilrp, in float64, on examples that are small enough to be
checked by hand; the script stops if one of them does not sum to its score. The same code draws the same picture.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import hilrp

ROOT = Path(__file__).resolve().parent.parent
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "hilrp"
#: Colours that people who confuse red and green can tell apart (Okabe and Ito).
POSITIVE, NEGATIVE, FIXED, KEPT = "#c2410c", "#0072b2", "#8a8f98", "#7a5c00"
LINEAR, BILINEAR, NORMALISATION = "#0072b2", "#b45309", "#7b4b94"
INK, QUIET, PAPER = "#1f2328", "#57606a", "#ffffff"


def canvas(width: int, height: int) -> tuple[Figure, Axes]:
    """A drawing whose coordinates are pixels, from the upper left corner."""
    drawing = Figure(figsize=(width / 100, height / 100), dpi=100)
    axis = drawing.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(height, 0))
    axis.set_axis_off()
    return drawing, axis


def box(
    axis: Axes, x: float, y: float, width: float, height: float, face: str = PAPER, edge: str = INK, **style: object
) -> None:
    """A box with round corners around a point."""
    corner = x - width / 2, y - height / 2
    shape = "round,pad=0,rounding_size=7"
    axis.add_patch(
        FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor=face, edgecolor=edge, **{"zorder": 3, **style})
    )


def write(axis: Axes, x: float, y: float, text: str, **style: object) -> None:
    """A text around a point."""
    plain = {"fontsize": 11, "color": INK, "ha": "center", "va": "center", "zorder": 5}
    axis.text(x, y, text, **(plain | style))


def arrow(axis: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK, **style: object) -> None:
    """An arrow between two points."""
    plain = {"arrowstyle": "-|>", "mutation_scale": 13, "shrinkA": 0, "shrinkB": 0, "zorder": 2, "linewidth": 1.3}
    axis.add_patch(FancyArrowPatch(start, end, color=colour, **(plain | style)))


# The house ----------------------------------------------------------------------------------------------------

#: Where each room stands (its middle, from left to right), and what it is for.
ROOMS = {
    "util": (485, "knows nothing of relevance"),
    "scenes": (185, "pictures with known truth"),
    "zoo": (185, "twelve families, small"),
    "method": (485, "core: table, rules, ledger"),
    "method/secant": (485, "relative to a reference"),
    "method/fast": (485, "the same numbers, sooner"),
    "engine": (772, "intercepts torch's calls"),
    "targets": (1018, "what is explained"),
    "attribution": (830, "one explanation"),
    "models": (330, "model, weights, pictures"),
    "answers": (330, "generated words, explained"),
    "hilrp": (330, "the door: what users import"),
    "compat": (930, "drop-ins for scripts"),
    "export": (1018, "to where runs are kept"),
    "verify": (640, "the theory in float64"),
    "jobs": (330, "long work that goes on"),
    "concepts": (600, "channels, heads, directions"),
    "pages": (330, "pages that are single files"),
    "app": (330, "the page that is served"),
    "cli": (600, "the command line"),
}
#: Rooms that one call of `hilrp.explain` walks through.
WALK = {"hilrp", "attribution", "targets", "engine", "method", "method/secant", "method/fast"}


def room_of(module: str) -> str:
    """The room of a module; those in ``method`` that the rest of it must not import are rooms of their own."""
    parts = module.split(".")
    if len(parts) < 2 or not (PACKAGE / parts[1]).is_dir():
        return "hilrp"
    inner = "/".join(parts[1:3])
    return inner if inner in ROOMS else parts[1]


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
            yield from (f"{node.module}.{each.name}" for each in node.names)


def import_graph() -> dict[str, set[str]]:
    """Of each room, those that it imports. ``python -m hilrp`` comes in by the command line, and is left out."""
    graph: dict[str, set[str]] = {room: set() for room in ROOMS}
    for file in PACKAGE.rglob("*.py"):
        if file != PACKAGE / "__main__.py":
            room = room_of(".".join(["hilrp", *file.relative_to(PACKAGE).with_suffix("").parts]))
            graph[room] |= {room_of(each) for each in imports(file)} - {room}
    return graph


def without_detours(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """The arrows that don't follow from others (the transitive reduction)."""

    @cache
    def reached(room: str) -> frozenset[str]:
        return frozenset(graph[room]).union(*(reached(each) for each in graph[room]))

    return {
        room: {each for each in below if not any(each in reached(other) for other in below)}
        for room, below in graph.items()
    }


def house() -> None:
    """The rooms, each above all that it imports."""
    graph = import_graph()
    assert not graph["method"] & {"method/secant", "method/fast"}

    @cache
    def floor(room: str) -> int:
        return max((floor(each) + 1 for each in graph[room]), default=0)

    step, high, wide = 88, 54, 250
    floors = max(map(floor, ROOMS)) + 1
    height = 100 + floors * step
    drawing, axis = canvas(1200, height)
    place = {room: (x, height - 62 - floor(room) * step) for room, (x, _) in ROOMS.items()}

    eaves = place["cli"][1] + high / 2 + 16
    axis.add_patch(Polygon([(20, eaves), (600, 14), (1180, eaves)], facecolor="#eef1f4", edgecolor=QUIET, lw=1.6))
    walls = [(40, eaves), (1160, eaves), (1160, height - 16), (40, height - 16)]
    axis.add_patch(Polygon(walls, facecolor="#f8f9fa", edgecolor=QUIET, lw=1.6))
    inner = [place[room] for room in ("method", "method/secant", "method/fast")]
    top, bottom = min(y for _, y in inner) - high / 2 - 14, max(y for _, y in inner) + high / 2 + 12
    frame = [(inner[0][0] - wide / 2 - 14, y) for y in (top, bottom)] + [
        (inner[0][0] + wide / 2 + 14, y) for y in (bottom, top)
    ]
    axis.add_patch(Polygon(frame, facecolor="#fbe9d7", edgecolor=BILINEAR, lw=1.2, ls="--", zorder=1))

    for room, (x, y) in place.items():
        walks = room in WALK
        box(axis, x, y, wide, high, "#fff4e8" if walks else PAPER, BILINEAR if walks else QUIET, lw=1.5)
        write(axis, x, y - 11, f"{room}/" if room != "hilrp" else "hilrp", weight="bold", fontsize=13)
        write(axis, x, y + 13, ROOMS[room][1], color=QUIET)
    for room, below in without_detours(graph).items():
        x, y = place[room]
        for each in sorted(below):
            x0, y0 = place[each]
            leave = min(max(x0, x - wide / 2 + 25), x + wide / 2 - 25)
            enter = min(max(leave, x0 - wide / 2 + 25), x0 + wide / 2 - 25)
            arrow(axis, (leave, y + high / 2), (enter, y0 - high / 2), zorder=4)

    style = {"ha": "left", "va": "top", "linespacing": 1.5, "fontsize": 12}
    left, y = 812, place["app"][1] - high / 2
    write(
        axis,
        left,
        y,
        "An arrow goes from a room to one\nthat it imports: always downwards.\n"
        "Arrows that follow from others\nare left out.",
        **style,
    )
    box(axis, left + 11, y + 117, 22, 22, "#fff4e8", BILINEAR, lw=1.5)
    write(axis, left + 32, y + 106, "Rooms that one call of\nhilrp.explain walks through.", **style)
    box(axis, left + 11, y + 173, 22, 22, "#fbe9d7", BILINEAR, lw=1.2, ls="--")
    write(
        axis,
        left + 32,
        y + 162,
        "The method. Its core imports\nneither secant/ nor fast/:\nthese enter their forms\ninto the core.",
        **style,
    )
    drawing.savefig(DOCS / "house.png", metadata={"Software": None})


# Four operations ----------------------------------------------------------------------------------------------


def number(value: float, digits: int = 2) -> str:
    """A number with a minus sign that can be seen."""
    return f"{round(float(value), 9) + 0.0:.{digits}f}".replace("-", "−")


def total(parts: Sequence[float]) -> str:
    """A sum, written out."""
    first, *others = parts
    return number(first) + "".join(f" {'−' if each < 0 else '+'} {number(abs(each))}" for each in others)


def explained(
    model: nn.Module, *inputs: Tensor, target: object = 0, rules: str | hilrp.Rules = "hilrp"
) -> hilrp.Explanation:
    """One explanation, whose ledger must close."""
    found = hilrp.explain(model.double().eval(), inputs if len(inputs) > 1 else inputs[0], target, rules)  # type: ignore[arg-type]
    assert float(found.ledger.residual) < 1e-12
    return found


def colour_of(value: float) -> str:
    """Red speaks for the score, blue against it."""
    return QUIET if abs(value) < 5e-3 else POSITIVE if value > 0 else NEGATIVE


class Panel:
    """A part of the picture, with a coordinate system of its own."""

    width, height = 584, 500

    def __init__(self, axis: Axes, x: float, y: float, title: str, formula: str, colour: str) -> None:
        self.axis, self.x, self.y = axis, x, y
        box(axis, x + self.width / 2, y + self.height / 2, self.width, self.height, PAPER, "#c8ccd1", zorder=0)
        box(axis, x + self.width / 2, y + 24, self.width, 48, colour, colour, zorder=1)
        write(axis, x + 18, y + 24, title, ha="left", color=PAPER, weight="bold", fontsize=14)
        write(axis, x + self.width - 18, y + 24, formula, ha="right", color=PAPER, fontsize=12.5)

    def write(self, x: float, y: float, text: str, **style: object) -> None:
        """A text."""
        write(self.axis, self.x + x, self.y + y, text, **style)

    def node(self, x: float, y: float, name: str, relevance: float | None, kind: str = "", width: float = 112) -> None:
        """A value of the forward pass and, below it, the relevance that it holds."""
        x, y = self.x + x, self.y + y
        face, edge = {"": (PAPER, INK), "fixed": ("#e9ebee", FIXED), "ledger": ("#fff8e1", KEPT)}[kind]
        box(self.axis, x, y, width, 50, face, edge, lw=1.4, ls="--" if kind == "ledger" else "-")
        write(self.axis, x, y - 11, name, fontsize=11.5)
        text, colour = ("held fixed", QUIET) if relevance is None else ("R  " + number(relevance), colour_of(relevance))
        write(self.axis, x, y + 12, text, color=colour, weight="normal" if relevance is None else "bold")

    def flow(self, start: tuple[float, float], end: tuple[float, float], relevance: float) -> None:
        """Relevance on its way back."""
        points = [(self.x + x, self.y + y) for x, y in (start, end)]
        width = 1.2 + 4.5 * min(1, abs(relevance) / 1.6)
        arrow(
            self.axis, *points, colour_of(relevance), linewidth=width, mutation_scale=11 + 2 * width, alpha=0.85
        )  # fmt: skip

    def forward(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """A value on its way forward, to something that is held fixed."""
        points = [(self.x + x, self.y + y) for x, y in (start, end)]
        arrow(self.axis, *points, FIXED, linestyle=(0, (4, 3)), mutation_scale=11)

    def label(self, x: float, y: float, text: str, colour: str = INK) -> None:
        """A text on a line."""
        self.write(x, y, text, color=colour, bbox={"facecolor": PAPER, "edgecolor": "none", "pad": 1.5})

    def sums(self, *lines: str) -> None:
        """What the reader may check, at the bottom."""
        for i, line in enumerate(reversed(lines)):
            self.write(self.width / 2, self.height - 22 - 25 * i, line, fontsize=11.5)


def linear_layer(axis: Axes, x: float, y: float) -> None:
    """Three inputs, two outputs, a bias."""
    layer, a = nn.Linear(3, 2).double(), torch.tensor([[2.0, 1.0, 1.0]], dtype=torch.float64)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.2, -2.4, 0.4], [-1.2, 1.6, 0.8]])
        layer.bias[:] = torch.tensor([0.4, 0.8])
    found = explained(layer, a, target=lambda y: y.sum(1))
    alone = [explained(layer, a, target=i) for i in (0, 1)]
    shares = [[*each.relevance[0].tolist(), float(each.ledger.entries["bias"])] for each in alone]
    given = torch.cat([layer.weight * a, layer.bias[:, None]], 1).tolist()
    kept = float(found.ledger.entries["bias"])

    panel = Panel(axis, x, y, "Linear layer", r"$y = W a + b$", LINEAR)
    panel.write(292, 72, "on each line: contribution  ▸  its share of the output's relevance", color=QUIET)
    rows, outputs = [112, 204, 296, 388], [204, 296]
    for i, top in enumerate(outputs):
        for j, row in enumerate(rows):
            start, end = (358.0, top), (134.0, row)
            panel.flow(start, end, shares[i][j])
            at = 1 / 3
            text = f"{number(given[i][j], 1)} ▸ {number(shares[i][j])}"
            panel.label(end[0] + at * (start[0] - end[0]), row + at * (top - row), text, colour_of(shares[i][j]))
        panel.node(414, top, f"$y_{i + 1}$ = {number(found.output[0, i], 1)}", float(alone[i].score))
        panel.flow((514, 250 + (top - 250) * 0.5), (470, top), float(alone[i].score))
    for j in range(3):
        panel.node(78, rows[j], f"$a_{j + 1}$ = {number(a[0, j], 0)}", float(found.relevance[0, j]))
    panel.node(78, rows[3], "bias, ledger", kept, "ledger")
    panel.write(543, 250, f"score\n{number(found.score)}", linespacing=1.5, weight="bold")
    parts = [*found.relevance[0].tolist(), kept]
    panel.sums(
        "a share goes as $z + \\gamma z^{s}$; $z^{s}$: what has the output's sign; $\\gamma$ = 0.25",
        f"{total(parts)} = {number(sum(parts))}",
    )


class Weighted(nn.Module):
    """Values, weighted by a softmax of logits."""

    def forward(self, logits: Tensor, values: Tensor) -> Tensor:
        """Their weighted sum."""
        return (logits.softmax(-1) * values).sum(1, keepdim=True)


def softmax(axis: Axes, x: float, y: float) -> None:
    """Three logits, three values."""
    logits = torch.tensor([[5.0, 3.0, 2.0]], dtype=torch.float64).log()
    values = torch.tensor([[2.0, -1.0, 4.0]], dtype=torch.float64)
    weights = logits.softmax(-1)[0]
    found = {name: explained(Weighted(), logits, values, rules=hilrp.Rules(attention=name)) for name in _ATTENTION}  # type: ignore[arg-type]
    relevance, score = found["cp"].relevance[1][0], float(found["cp"].score)

    panel = Panel(axis, x, y, "Softmax", r"$A = \mathrm{softmax}(s), \; y = A \cdot v$", NORMALISATION)
    panel.write(78, 74, "logits", color=QUIET)
    panel.write(236, 74, "weights: a gate", color=QUIET)
    panel.write(388, 74, "values", color=QUIET)
    for j, row in enumerate((116, 182, 248)):
        panel.node(78, row, f"$s_{j + 1}$ = {number(logits[0, j])}", float(found["cp"].relevance[0][0, j]))
        panel.node(236, row, f"$A_{j + 1}$ = {number(weights[j], 1)}", None, "fixed")
        panel.node(388, row, f"$v_{j + 1}$ = {number(values[0, j], 0)}", float(relevance[j]))
        panel.forward((134, row), (178, row))
        panel.write(312, row, "×", fontsize=15, color=QUIET)
        panel.flow((504, 182 + (row - 182) * 0.35), (446, row), float(relevance[j]))
    panel.write(541, 182, f"score\n{number(score)}", linespacing=1.5, weight="bold")
    panel.write(292, 302, "Who gets what, under three rule sets:", color=QUIET)
    columns = (40, 178, 300, 420)
    for column, text in zip(columns, ("attention=", "values", "logits", "ledger keeps"), strict=True):
        panel.write(column, 332, text, ha="left", weight="bold")
    for i, (name, each) in enumerate(found.items()):
        kept = float(each.ledger.constants)
        kind = {"gate": "gate", "softmax Taylor term": "Taylor term"}.get(next(iter(each.ledger.entries), ""), "")
        sent = [float(part.sum()) for part in each.relevance]
        cells = (
            f'"{name}"',
            number(sent[1]),
            number(sent[0]),
            f"{number(kept)}  {kind}".strip() if kind else "nothing",
        )
        for column, text in zip(columns, cells, strict=True):
            panel.write(column, 360 + 26 * i, text, ha="left")
        assert abs(sum(sent) + kept - score) < 1e-9
    taylor = found["attnlrp"]
    parts = [float(part.sum()) for part in reversed(taylor.relevance)] + [float(taylor.ledger.constants)]
    panel.sums(f"each row sums to the score: {total(parts)} = {number(sum(parts))}")


_ATTENTION = ("cp", "uniform", "attnlrp")


def layer_norm(axis: Axes, x: float, y: float) -> None:
    """Four inputs."""
    norm, a = nn.LayerNorm(4, eps=1e-12).double(), torch.tensor([[1.0, 7.0, 7.0, 9.0]], dtype=torch.float64)
    with torch.no_grad():
        norm.weight[:] = torch.tensor([0.6, 1.5, 0.9, 1.2])
        norm.bias[:] = torch.tensor([0.5, 0.25, 0.25, 0.5])
    found = explained(norm, a, target=lambda y: y.sum(1))
    kept = float(found.ledger.entries["norm shift"])
    leaf = a.clone().requires_grad_()
    raw = float((a * torch.autograd.grad(norm(leaf).sum(), leaf)[0]).sum())

    panel = Panel(axis, x, y, "LayerNorm", r"$y = (x - \mathrm{mean}) \, / \, d \cdot w + b$", NORMALISATION)
    rows = [98, 166, 234, 302]
    mean, deviation = float(a.mean()), float(a.std(correction=0))
    box(axis, panel.x + 240, panel.y + 200, 118, 254, "#e9ebee", FIXED, lw=1.4)
    for line, text, style in (
        (110, f"− mean {number(mean, 0)}", {}),
        (134, "a linear map", {"color": QUIET}),
        (184, f"÷ d = {number(deviation, 0)}", {}),
        (208, "held fixed", {"color": QUIET}),
        (258, "× weight w", {}),
        (282, "a constant", {"color": QUIET}),
    ):
        panel.write(240, line, text, **style)
    for j, row in enumerate(rows):
        relevance, out = float(found.relevance[0, j]), float(found.output[0, j])
        panel.node(78, row, f"$x_{j + 1}$ = {number(a[0, j], 0)}", relevance)
        panel.node(402, row, f"$y_{j + 1}$ = {number(out)}", out)
        panel.flow((181, row), (134, row), relevance)
        panel.flow((346, row), (299, row), out - float(norm.bias.detach()[j]))
        panel.flow((514, 200 + (row - 200) * 0.3), (458, row), out)
    panel.write(541, 200, f"score\n{number(found.score)}", linespacing=1.5, weight="bold")
    panel.node(402, 386, "shift b, ledger", kept, "ledger", 132)
    panel.flow((402, 327), (402, 361), kept)
    panel.write(478, 386, "from all y", ha="left", color=QUIET)
    panel.write(150, 374, f"w = {_listed(norm.weight)}", color=QUIET)
    panel.write(150, 398, f"b = {_listed(norm.bias)}", color=QUIET)
    parts = [*found.relevance[0].tolist(), kept]
    panel.sums(
        f"{total(parts)} = {number(sum(parts))}",
        f"with the raw gradient, which moves d as well, x would get {number(raw)} in all",
    )


def _listed(parameter: Tensor) -> str:
    return f"({', '.join(f'{each:g}' for each in parameter.tolist())})"


class Attention(nn.Module):
    """Three tokens of two channels, values of one, and the first token's output."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 1)
        self.double()
        with torch.no_grad():
            self.q.weight[:] = math.sqrt(2) * torch.eye(2)
            self.k.weight[:] = torch.tensor([[math.log(2), 0.0], [0.0, 0.0]], dtype=torch.float64)
            self.v.weight[:] = torch.tensor([[2.0, -1.0]])
            self.v.bias[:] = -0.5

    def forward(self, x: Tensor) -> Tensor:
        """The first token's output."""
        return scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))[:, 0]


class Fused(nn.Module):
    """The fused call alone."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The first token's output."""
        return scaled_dot_product_attention(q, k, v)[:, 0]


def attention(axis: Axes, x: float, y: float) -> None:
    """Three tokens; the score is the first one's output."""
    model, tokens = Attention(), torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]], dtype=torch.float64)
    found = explained(model, tokens)
    with torch.no_grad():
        q, k, v = model.q(tokens), model.k(tokens), model.v(tokens)
        weights = (q @ k.transpose(-2, -1) / math.sqrt(2)).softmax(-1)[0, 0]
    inner = explained(Fused(), q, k, v)
    assert not any(bool(part.any()) for part in inner.relevance[:2])  # queries and keys get nothing
    at_values, kept = inner.relevance[2][0, :, 0], float(found.ledger.entries["bias"])

    panel = Panel(axis, x, y, "Attention", r"$\mathrm{softmax}(q k^{T}) \, v$", BILINEAR)
    rows = [176, 252, 328]
    box(axis, panel.x + 272, panel.y + 92, 290, 58, "#e9ebee", FIXED, lw=1.4)
    panel.write(272, 80, "queries and keys: softmax gives A", fontsize=11)
    panel.write(272, 104, "R  0.00, no relevance goes there", color=QUIET)
    panel.forward((78, 151), (127, 96))
    panel.forward((417, 96), (440, 150))
    for j, row in enumerate(rows):
        relevance, value = float(found.relevance[0, j].sum()), float(at_values[j])
        token = ", ".join(number(each, 0) for each in tokens[0, j])
        panel.node(78, row, f"$x_{j + 1}$ = ({token})", relevance)
        panel.node(252, row, f"$v_{j + 1}$ = {number(v[0, j, 0], 1)}", value)
        panel.node(408, row, f"$A_{j + 1}$ = {number(weights[j], 1)}", None, "fixed", 104)
        panel.flow((196, row), (134, row), relevance)
        panel.flow((356, row), (308, row), value)
        panel.flow((512, 252 + (row - 252) * 0.35), (460, row), value)
    panel.write(543, 252, f"score\n{number(found.score)}", linespacing=1.5, weight="bold")
    panel.node(252, 404, "bias of v, ledger", kept, "ledger", 144)
    panel.flow((252, 353), (252, 379), kept)
    panel.write(334, 404, "from all v", ha="left", color=QUIET)
    parts = [*found.relevance[0].sum(-1).tolist(), kept]
    panel.sums(
        f"at the values: {total(at_values.tolist())} = {number(at_values.sum())}",
        f"at the tokens: {total(parts)} = {number(sum(parts))}",
    )


def operations() -> None:
    """The four panels, and what is drawn how."""
    drawing, axis = canvas(1200, 1076)
    linear_layer(axis, 10, 10)
    softmax(axis, 606, 10)
    layer_norm(axis, 10, 522)
    attention(axis, 606, 522)
    y = 1050
    texts = (
        (24, "value", None),
        (164, "for the score", POSITIVE),
        (352, "against it", NEGATIVE),
        (516, "held fixed", "fixed"),
        (680, "kept, in the ledger", "ledger"),
    )
    for x, text, kind in texts:
        if kind in (POSITIVE, NEGATIVE):
            arrow(axis, (x + 48, y), (x, y), kind, linewidth=3.5, mutation_scale=17)
        else:
            face, edge = {None: (PAPER, INK), "fixed": ("#e9ebee", FIXED), "ledger": ("#fff8e1", KEPT)}[kind]
            box(axis, x + 22, y, 44, 22, face, edge, lw=1.4, ls="--" if kind == "ledger" else "-")
        write(axis, x + 56, y, text, ha="left", fontsize=12)
    write(axis, 930, y, "R: relevance of the value", ha="left", fontsize=12)
    drawing.savefig(DOCS / "operations.png", metadata={"Software": None})


if __name__ == "__main__":
    house()
    operations()
