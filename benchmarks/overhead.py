"""What an explanation costs beside a plain forward pass and input gradient of the same model, in the same run.

    python benchmarks/overhead.py [--device cpu] [--batch 4] [--repeats 5] [MODEL ...]

Prints one line per model: the median time of the plain pass, and the ratios of the explanations to it, with the
smallest and largest ratio over the repeats. The plain pass has its parameters frozen, as input-gradient code does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

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

        explainers = {rules: hilrp.Explainer(model, rules) for rules in ("epsilon", "hilrp")}
        plain()
        for explainer in explainers.values():
            explainer.explain(x)
        base: list[float] = []
        ratios: dict[str, list[float]] = {rules: [] for rules in explainers}
        for _ in range(options.repeats):
            base.append(timed(plain, options.device))
            for rules, explainer in explainers.items():
                ratios[rules].append(timed(lambda e=explainer, x=x: e.explain(x), options.device) / base[-1])
        shown = "  ".join(
            f"{'gamma' if rules == 'hilrp' else rules} {statistics.median(r):.2f} [{min(r):.2f}, {max(r):.2f}]"
            for rules, r in ratios.items()
        )
        print(f"{name:32s} plain {statistics.median(base) * 1000:7.0f} ms  {shown}", flush=True)


if __name__ == "__main__":
    main()
