"""How time and memory of an explanation grow with resolution and batch.

    python benchmarks/resolution.py [--device cuda] [--resolutions 224 448] [--batches 1 2 4] [--json FILE]
    python benchmarks/resolution.py --plot FILE.json OUT.png

Prints a row per model, resolution and batch: medians of the plain pass (forward and gradient of the input, parameters
frozen), the epsilon rule and the gamma rule (``hilrp``), not recorded, and at the end the exponent with which memory
grows with tokens between the two largest resolutions at batch 1: one is linear. ``--plot`` draws both as functions of
tokens from figures written before. Swin has windows of 7, and of 8 at resolutions that 7 doesn't divide; exponents are
of one window.
"""

from __future__ import annotations

import argparse
import json
import math
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from measuring import (
    add_options,
    attempt,
    environment,
    explainer,
    header,
    heading,
    interleaved,
    line,
    peak,
    plain_pass,
    precision,
    release,
    save,
)
from torch import nn

MODELS = ("vit_base_patch16_224", "swin_tiny_patch4_window7_224")
RESOLUTIONS = {"vit": (224, 384, 512, 768, 1024), "swin": (224, 448, 672, 896, 1024, 1120)}
RULES = {"plain": None, "epsilon": "epsilon", "gamma": "hilrp"}
COLUMNS = ("model", "pixels", "batch", "tokens", *(f"{name}, ms" for name in RULES), *(f"{name}, MB" for name in RULES))


def kind(name: str) -> str:
    return "swin" if name.startswith("swin") else "vit"


def window(name: str, resolution: int) -> int:
    return 0 if kind(name) == "vit" else 7 if resolution % 224 == 0 else 8


def made(name: str, resolution: int, device: str) -> nn.Module:
    torch.manual_seed(0)
    windows = {"window_size": window(name, resolution)} if kind(name) == "swin" else {}
    model: nn.Module = timm.create_model(name, img_size=resolution, **windows)
    return model.eval().requires_grad_(False).to(device)


def measured(model: nn.Module, resolution: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    x = torch.randn(batch, 3, resolution, resolution, device=options.device)
    found: dict[str, Any] = {"seconds": {}, "bytes": {}, "failures": {}}
    for name, rules in RULES.items():
        run = plain_pass(model, x) if rules is None else partial(explainer(model, rules).explain, x)

        def one(run: Any = run, name: str = name) -> None:
            run()
            memory = peak(run, options.device)
            found["seconds"] |= interleaved({name: run}, options.device, options.repeats)
            found["bytes"][name] = memory

        _, reason = attempt(one)
        if reason is not None:
            found["failures"][name] = reason
    return found


def cells(row: dict[str, Any]) -> list[str]:
    start = [row["model"], str(row["resolution"]), str(row["batch"]), str(row["tokens"])]
    if "failure" in row:
        return [*start, row["failure"]]
    times = [
        f"{median(row['seconds'][name]) * 1000:.1f}" if name in row["seconds"] else row["failures"][name]
        for name in RULES
    ]
    return [*start, *times, *(f"{row['bytes'][name] / 2**20:.0f}" if name in row["bytes"] else "" for name in RULES)]


def by_resolution(rows: list[dict[str, Any]], model: str, name: str, key: str) -> list[tuple[int, float, int]]:
    """Tokens, the figure and the window, of a model at batch 1, in the order of tokens."""
    found = [
        (row["tokens"], median(row[key][name]) if key == "seconds" else row[key][name], row["window"])
        for row in rows
        if row["model"] == model and row["batch"] == 1 and name in row.get(key, {})
    ]
    return sorted(set(found))


def exponent(rows: list[dict[str, Any]], model: str, name: str, key: str) -> str:
    """Of the growth between the two largest resolutions that have the same window."""
    points = by_resolution(rows, model, name, key)
    points = [point for point in points if point[2] == points[-1][2]]  # attention's share depends on the window
    if len(points) < 2:
        return "-"
    (fewer, less, _), (more, most, _) = points[-2:]
    return f"{math.log(most / less) / math.log(more / fewer):.2f}"


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Rows of exponents, under the columns whose growth they are."""
    found = []
    for model in dict.fromkeys(row["model"] for row in rows):
        of = [exponent(rows, model, name, key) for key in ("seconds", "bytes") for name in RULES]
        found.append(f"| {model} | exponent | 1 | between the two largest | {' | '.join(of)} |")
    return found


def plot(figures: Path, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import NullFormatter

    held = json.loads(figures.read_text())
    rows = held["rows"]
    models = list(dict.fromkeys(row["model"] for row in rows))
    colours = dict(zip(RULES, ("0.45", "tab:blue", "tab:orange"), strict=True))
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    for axis, key, label, scale in zip(
        axes, ("bytes", "seconds"), ("peak memory, MB", "time, ms"), (2**-20, 1000.0), strict=True
    ):
        for model, style, mark in zip(models, ("-", "--", ":", "-.") * len(models), "os^v" * len(models), strict=False):
            series = {name: by_resolution(rows, model, name, key) for name in RULES}
            for name, points in series.items():
                tokens, values = [p[0] for p in points], [p[1] * scale for p in points]
                axis.plot(
                    tokens, values, style, marker=mark, color=colours[name], label=f"{model.split('_patch')[0]}, {name}"
                )
            if plain := series["plain"]:
                ends = (plain[0][0], plain[-1][0])
                start = plain[0][1] * scale
                axis.plot(ends, (start, start * ends[1] / ends[0]), color="0.8", linewidth=1, zorder=0)
        axis.plot([], [], color="0.8", linewidth=1, label="linear growth")
        axis.set(xscale="log", yscale="log", xlabel="tokens", ylabel=label)
        axis.xaxis.set_minor_formatter(NullFormatter())
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    figure.suptitle(f"Batch 1, {held['environment']['device']}, {held['environment']['precision']}", fontsize=9)
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL")
    parser.add_argument("--resolutions", type=int, nargs="+", help="at batch 1; each model's own if not given")
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 2, 4, 8, 16, 32, 64), help="at 224 pixels")
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("FILE.json", "OUT.png"))
    add_options(parser, repeats=3)
    options = parser.parse_args()
    if options.plot:
        plot(*options.plot)
        return
    about = environment(options, timm)
    print(header(about) + "\n")
    print(heading(COLUMNS), flush=True)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        sizes = [(224, batch) for batch in options.batches]
        sizes += [(each, 1) for each in options.resolutions or RESOLUTIONS[kind(name)]]
        held: tuple[int, nn.Module | None, str | None] = (0, None, None)
        for resolution, batch in dict.fromkeys(sizes):
            if held[0] != resolution:
                held = (resolution, *attempt(partial(made, name, resolution, options.device)))
            _, model, failure = held
            found = None
            if model is not None:
                with precision(options.precision, options.device):
                    found, failure = attempt(partial(measured, model, resolution, batch, options))
            tokens = (resolution // (16 if kind(name) == "vit" else 4)) ** 2
            row = {"model": name, "resolution": resolution, "batch": batch, "tokens": tokens}
            row |= {"window": window(name, resolution)} | (found if found is not None else {"failure": failure})
            rows.append(row)
            print(line(cells(row)), flush=True)
            save(options.json, about, rows)
            release()
    print("\n".join(growth(rows)), flush=True)


if __name__ == "__main__":
    main()
