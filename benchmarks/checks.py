"""What the comparison with plain passes adds to an explanation.

    python benchmarks/checks.py [--device cuda] [--batch 1 8] [--models NAME ...]

One row per model, rule set and batch: the median time of an explanation of a model that is known, what the checks of
its first explanation add to that (as a ratio), and what a check of the reference alone adds, which runs at every
explanation relative to one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import timm
import torch
from torch import Tensor, nn

import hilrp

MODELS = ("vit_base_patch16_224", "swin_tiny_patch4_window7_224", "resnet50")


def timed(run: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def first(model: nn.Module, x: Tensor, rules: str, device: str) -> float:
    """The first explanation of a model that nothing is known of: its outermost module is a new one."""
    fresh = nn.Sequential(model).eval()
    return timed(lambda: hilrp.explain(fresh, x, 0, rules, stages=None), device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        "| model | rules | batch | explanation, ms | first explanation | reference checked |\n|---|---|---|---|---|---|"
    )
    for name in options.models:
        torch.manual_seed(0)
        model = timm.create_model(name).eval().to(options.device)
        for batch in options.batch:
            x = torch.randn(batch, 3, 224, 224, device=options.device)
            for rules in ("hilrp", "secant"):
                known, unchecked = (hilrp.Explainer(model, rules, audit=a, stages=None) for a in ("strict", "off"))
                for each in (known, unchecked):
                    each.explain(x, 0)
                times: dict[str, list[float]] = {"known": [], "first": [], "unchecked": []}
                for _ in range(options.repeats):
                    times["known"].append(timed(lambda e=known, x=x: e.explain(x, 0), options.device))
                    times["first"].append(first(model, x, rules, options.device))
                    times["unchecked"].append(timed(lambda e=unchecked, x=x: e.explain(x, 0), options.device))
                own, began, plain = (median(each) for each in times.values())
                checked = f"{own / plain:.2f} x" if rules == "secant" else ""
                print(
                    f"| {name} | {rules} | {batch} | {1000 * own:.1f} | {began / own:.2f} x | {checked} |", flush=True
                )


if __name__ == "__main__":
    main()
