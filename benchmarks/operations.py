"""Operations and peak memory of the secant rules relative to the gamma rule, counted on a CPU.

    python benchmarks/operations.py [--batch 8] [MODEL ...]

*First* is an explainer's first pass; *later* ones know how many layers the model has, and leave out what only a gamma would need. Counted are calls of
torch's kernels; memory is what these calls allocate and nobody has let go of.
"""

from __future__ import annotations

import argparse
import gc
import weakref
from typing import Any

import timm
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import hilrp

MODELS = ("resnet50", "swin_tiny_patch4_window7_224", "pvt_v2_b2")


class Count(TorchDispatchMode):
    """Counts calls, and the memory that is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.alive = self.peak = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        for t in tree_leaves(out):
            storage = t.untyped_storage() if isinstance(t, torch.Tensor) else None
            if storage is None or storage._cdata in self._known:
                continue
            self._known[storage._cdata] = storage.nbytes()
            self.alive += storage.nbytes()
            self.peak = max(self.peak, self.alive)
            weakref.finalize(storage, self._free, storage._cdata)
        return out

    def _free(self, key: int) -> None:
        self.alive -= self._known.pop(key, 0)


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
        explainer = hilrp.Explainer(model, audit="off", stages=None)
        explainer.explain(x, 0)  # what is made once and kept is not counted
        gamma = counted(explainer, x)
        secant = hilrp.Explainer(model, "secant", 0.0, audit="off", stages=None)
        passes = [counted(secant, x) for _ in range(2)]
        ratios = [[p[i] / gamma[i] for p in passes] for i in range(2)]
        print(f"| {name} | " + " | ".join(f"{first:.2f}, {later:.2f}" for first, later in ratios) + " |", flush=True)


if __name__ == "__main__":
    main()
