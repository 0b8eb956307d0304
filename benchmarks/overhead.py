"""What an explanation costs beside a plain forward pass and input gradient of the same model, in the same run.

    python benchmarks/overhead.py [--device cuda] [--batch 32 1] [--precision tf32] [--compile] [--rules epsilon hilrp
    secant] [--json FILE]

Prints one table with a row per model and batch: the median time of the plain pass (parameters frozen, as input-gradient
code does), on a GPU also that of the same pass captured as a CUDA graph, and for each rule set the ratio of its time to
the plain pass's, with the smallest and largest over the repeats, and the ratio of peak memory. With ``--compile``
explanations are recorded as CUDA graphs, and a second ratio is to the plain pass as a graph; memory is that without a
recording, whose pool hides it. On a CPU memory is what torch's kernels allocate and nobody has let go of. ``secant`` is
relative to a plain grey, which all pictures share, ``secant-each`` to each picture's own mean colour, and ``secant-8``
the same in eight passes. Nothing is audited, and no maps of stages are made.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Any

import timm
import torch
from measuring import (
    CALLS_TO_RECORD,
    EACH,
    Run,
    add_options,
    attempt,
    environment,
    explainer,
    graphed,
    header,
    heading,
    interleaved,
    line,
    on_gpu,
    peak,
    plain_pass,
    precision,
    ratio,
    recording_of,
    release,
    save,
)
from torch import Tensor, nn

MODELS = (
    "vit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
    "pvt_v2_b2",
    "maxvit_tiny_tf_224",
    "efficientvit_b2",
)


def made(name: str, device: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name).eval().requires_grad_(False)
    return model.to(device)


def prepared(model: nn.Module, x: Tensor, rules: str, options: argparse.Namespace) -> tuple[Run, int, str]:
    """An explanation that is ready to be timed, its peak memory, and whether it was recorded."""
    recompute = "auto" if options.recompute else None
    made = explainer(model, rules, recompute=recompute)
    passes = EACH.get(rules, 1)
    run = partial(made.explain, x, passes=passes)
    for _ in range(2):  # a second pass knows how many layers there are
        run()
    memory = peak(run, options.device)
    if options.compile:
        made = explainer(model, rules, True, recompute)
        run = partial(made.explain, x, passes=passes)
        for _ in range(CALLS_TO_RECORD + 1):
            run()
    return run, memory, recording_of(made)


def measured(model: Any, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    x = torch.randn(batch, *model.default_cfg["input_size"], device=options.device)
    plain = plain_pass(model, x)
    for _ in range(2):
        plain()
    runs: dict[str, Run] = {"plain": plain}
    memory = {"plain": peak(plain, options.device)}
    recorded: dict[str, str] = {}
    failures: dict[str, str | None] = {}
    for rules in options.rules:
        found, failures[rules] = attempt(partial(prepared, model, x, rules, options))
        if found is not None:
            runs[rules], memory[rules], recorded[rules] = found
    if on_gpu(options.device):
        graph, failures["graph"] = attempt(partial(graphed, plain))
        if graph is not None:
            runs["graph"] = graph
    return {
        "seconds": interleaved(runs, options.device, options.repeats),
        "bytes": memory,
        "recorded": recorded,
        "failures": {name: reason for name, reason in failures.items() if reason is not None},
    }


def columns(options: argparse.Namespace) -> list[str]:
    found = ["model", "batch", "plain, ms"]
    if on_gpu(options.device):
        found.append("plain as a graph, ms")
    for rules in options.rules:
        found.append(f"{rules} / plain")
        if on_gpu(options.device) and options.compile:
            found.append(f"{rules} / graph")
    return [*found, "plain, MB", *(f"{rules}, memory" for rules in options.rules), "recorded"]


def cells(row: dict[str, Any], options: argparse.Namespace) -> list[str]:
    if "failure" in row:
        return [row["model"], str(row["batch"]), row["failure"]]
    seconds, memory, failures = row["seconds"], row["bytes"], row["failures"]
    found = [row["model"], str(row["batch"]), f"{median(seconds['plain']) * 1000:.1f}"]
    if on_gpu(options.device):
        found.append(f"{median(seconds['graph']) * 1000:.1f}" if "graph" in seconds else failures["graph"])
    for rules in options.rules:
        found.append(ratio(seconds[rules], seconds["plain"]) if rules in seconds else failures[rules])
        if on_gpu(options.device) and options.compile:
            found.append(ratio(seconds[rules], seconds["graph"]) if {rules, "graph"} <= set(seconds) else "")
    found.append(f"{memory['plain'] / 2**20:.0f}")
    found += [f"{memory[rules] / memory['plain']:.2f}" if rules in memory else "" for rules in options.rules]
    said = row["recorded"]
    return [
        *found,
        next(iter(said.values()))
        if len(set(said.values())) == 1
        else ", ".join(f"{rules}: {each}" for rules, each in said.items()),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="MODEL")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[4], help="pictures at once, one or several numbers; default: 4"
    )
    rules = "default: epsilon hilrp; also secant, secant-each, secant-8"
    parser.add_argument("--rules", nargs="+", default=["epsilon", "hilrp"], help=rules)
    parser.add_argument("--compile", action="store_true", help="record explanations as CUDA graphs")
    parser.add_argument("--recompute", action="store_true", help="let blocks run again in the backward pass")
    add_options(parser, repeats=5)
    options = parser.parse_args()
    about = environment(options, timm)
    print(header(about) + "\n")
    print(heading(columns(options)), flush=True)
    rows: list[dict[str, Any]] = []
    for name in options.models:
        model, missing = attempt(partial(made, name, options.device))
        for batch in options.batch:
            found, failure = None, missing
            if model is not None:
                with precision(options.precision, options.device):
                    found, failure = attempt(partial(measured, model, batch, options))
            rows.append({"model": name, "batch": batch, **(found if found is not None else {"failure": failure})})
            print(line(cells(rows[-1], options)), flush=True)
            save(options.json, about, rows)
            release()


if __name__ == "__main__":
    main()
