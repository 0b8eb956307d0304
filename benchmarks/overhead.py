"""What an explanation costs beside a plain forward pass and input gradient of the same model, in the same run.

    python benchmarks/overhead.py [--device cpu] [--batch 4] [--repeats 5] [MODEL ...]

Prints one line per model: the median time of the plain pass, and the ratios of the explanations to it, with the
smallest and largest ratio over the repeats; on a GPU also the ratios of peak memory. The plain pass has its parameters frozen, as
input-gradient code does. ``secant`` is relative to a plain grey. Nothing is audited.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import timm
import torch

import hilrp


def timed(run: Callable[[], object], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak(run: Callable[[], object]) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", default=["vit_base_patch16_224", "swin_tiny_patch4_window7_224"], metavar="MODEL"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    print(
        f"torch {torch.__version__}, timm {timm.__version__}, {options.device}, {torch.get_num_threads()} threads, batch {options.batch}"
    )
    for name in options.models:
        torch.manual_seed(0)
        model = timm.create_model(name).eval().requires_grad_(False).to(options.device)
        x = torch.randn(options.batch, *model.default_cfg["input_size"], device=options.device)

        def plain(model: torch.nn.Module = model, x: torch.Tensor = x) -> torch.Tensor:
            leaf = x.clone().requires_grad_()
            return torch.autograd.grad(model(leaf).amax(1).sum(), leaf)[0]

        explainers = {
            "epsilon": hilrp.Explainer(model, "epsilon", audit="off"),
            "gamma": hilrp.Explainer(model, "hilrp", audit="off"),
            "secant": hilrp.Explainer(model, "secant", reference=0.0, audit="off"),
        }
        runs = {rules: partial(explainer.explain, x) for rules, explainer in explainers.items()}
        for run in (plain, *runs.values()):
            run()
        base: list[float] = []
        ratios: dict[str, list[float]] = {rules: [] for rules in runs}
        for _ in range(options.repeats):
            base.append(timed(plain, options.device))
            for rules, run in runs.items():
                ratios[rules].append(timed(run, options.device) / base[-1])
        shown = "  ".join(
            f"{rules} {statistics.median(r):.2f} [{min(r):.2f}, {max(r):.2f}]" for rules, r in ratios.items()
        )
        if options.device != "cpu":
            own = peak(plain)
            shown += f"  memory {own / 2**20:.0f} MB  " + "  ".join(
                f"{k} {peak(run) / own:.2f}" for k, run in runs.items()
            )
        print(f"{name:32s} plain {statistics.median(base) * 1000:7.0f} ms  {shown}", flush=True)


if __name__ == "__main__":
    main()
