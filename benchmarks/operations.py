"""Operations and peak memory of the secant rules relative to the gamma rule, counted on a CPU.

    python benchmarks/operations.py [--batch 8] [MODEL ...]

*First* is an explainer's first pass; *later* ones know how many layers the model has, and leave out what only a gamma
would need. Counted are calls of torch's kernels; memory is what these calls allocate and nobody has let go of.
"""

from __future__ import annotations

import argparse
import gc

import timm
import torch
from counting import Count

import hilrp

MODELS = ("resnet50", "swin_tiny_patch4_window7_224", "pvt_v2_b2")


def counted(explainer: hilrp.Explainer, x: torch.Tensor) -> tuple[int, int]:
    gc.collect()
    with Count() as count:
        explainer.explain(x, 0)
    return count.calls, count.peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--batch", type=int, default=8)
    options = parser.parse_args()
    print("| model | operations: first, later | peak memory: first, later |\n|---|---|---|")
    for name in options.models:
        torch.manual_seed(0)
        model, x = timm.create_model(name).eval(), torch.randn(options.batch, 3, 224, 224)
        explainer = hilrp.Explainer(model, "hilrp", audit="off", stages=None)
        explainer.explain(x, 0)  # what is made once and kept is not counted
        gamma = counted(explainer, x)
        secant = hilrp.Explainer(model, "secant", 0.0, audit="off", stages=None)
        passes = [counted(secant, x) for _ in range(2)]
        ratios = [[p[i] / gamma[i] for p in passes] for i in range(2)]
        print(f"| {name} | " + " | ".join(f"{first:.2f}, {later:.2f}" for first, later in ratios) + " |", flush=True)


if __name__ == "__main__":
    main()
