"""What the maps of all channels of a stage cost, beside plain passes of the same model, in the same run.

    python benchmarks/concepts.py [--device cuda] [--at-once 16 32 64 128] [--rules secant hilrp] [--json FILE]

One picture, both ResNets of torchvision with random weights (no other package is needed), the 512 channels of a stage.
Writes JSON lines: seconds and bytes (beside what was there before) of a forward pass, of a plain pass
(forward and the gradient of the input), and of `Concepts.maps` with as many backward passes at once; the ratios; how
far maps and rest are from the whole map; and whether they ran at once. Lines go to standard output, and are added to
the file.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from statistics import median
from typing import Any

import torch
import torchvision
from measuring import add_options, attempt, environment, on_gpu, peak, plain_pass, precision, release, timed
from torch import Tensor, nn

from hilrp.concepts import Concepts
from hilrp.models.random_models import randomise_constants

#: Model -> a stage of 512 channels.
STAGES = {"resnet18": "layer4", "resnet50": "layer2"}


def of_maps(model: nn.Module, at: str, rules: str, x: Tensor, at_once: int, options: Any) -> dict[str, Any]:
    """Seconds, bytes and soundness of the maps of all channels."""
    concepts = Concepts(model, at, rules=rules, audit="strict" if options.audit else "off")
    run = partial(concepts.maps, x, 0, at_once=at_once)
    made = run()  # the first explanation of a model is compared with more plain passes
    found = {
        "channels": made.maps.shape[1],
        "residual": float(made.residual.max()),
        "difference": float((made.difference.abs().amax(1) / made.ledger.scale).max()),
        "ledger": float(made.ledger.residual.max()),
        "one_by_one": made.one_by_one,
    }
    del made
    run()
    return found | {"seconds": median(timed(run, options.device) for _ in range(options.repeats)),
                    "bytes": peak(run, options.device)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, repeats=5)
    parser.add_argument("--model", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--at-once", nargs="+", type=int, default=[1, 8, 16, 32, 64, 128, 256])
    parser.add_argument("--rules", nargs="+", default=["secant", "hilrp"])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--audit", action="store_true", help="with the comparisons that an explanation makes by itself")
    options = parser.parse_args()
    about = environment(options, torchvision)

    def tell(row: dict[str, Any]) -> None:
        line = json.dumps(about | row)
        print(line, flush=True)
        if options.json is not None:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            with options.json.open("a") as file:
                file.write(line + "\n")

    with precision(options.precision, options.device):
        for name in options.model:
            torch.manual_seed(0)
            made = getattr(torchvision.models, name)(weights=None)
            model = randomise_constants(made).eval().requires_grad_(False).to(options.device)
            x = torch.randn(1, 3, options.size, options.size, device=options.device)
            plain, forward = plain_pass(model, x), torch.no_grad()(partial(model, x))
            for _ in range(3):
                plain(), forward()
            base = {
                "plain": {"seconds": median(timed(plain, options.device) for _ in range(20)),
                          "bytes": peak(plain, options.device)},
                "forward": {"seconds": median(timed(forward, options.device) for _ in range(20)),
                            "bytes": peak(forward, options.device)},
            }  # fmt: skip
            parameters = sum(p.numel() * p.element_size() for p in model.parameters())
            tell({"model": name, "what": "plain passes", **base, "bytes_of_weights": parameters})
            for rules in options.rules:
                for at_once in options.at_once:
                    found, why = attempt(partial(of_maps, model, STAGES[name], rules, x, at_once, options))
                    row = {"model": name, "at": STAGES[name], "rules": rules, "at_once": at_once, "failed": why}
                    for kind, each in base.items() if found else ():
                        for unit in ("seconds", "bytes"):
                            row[f"{unit} / {kind}"] = round(found[unit] / each[unit], 2) if found else None
                    tell(row | (found or {}))
                    release()
            if on_gpu(options.device):
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
