"""Relevance of the zoo's twelve families under every preset, to be compared before and after a change.

    python scripts/golden.py write FILE      # at the commit before
    python scripts/golden.py compare FILE    # after: how many arrays are bitwise the same, and the largest difference

Compare on the same machine: another one's kernels round differently. ``--tolerance 1e-12`` fails only above that
difference, relative to the largest relevance of a map, in float64.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import torch
from torch import Tensor

import hilrp
from hilrp.scenes import Scenes
from hilrp.zoo.architectures import ARCHITECTURES

#: Rules by name; with a reference, those that have a form relative to one.
PLAIN = ["hilrp", "hilrp-conv", "attnlrp", "epsilon", "zplus", "naive"]
RELATIVE = {
    "secant": hilrp.Rules.named("secant"),
    "gamma": hilrp.Rules(constants="reference"),
    "epsilon": hilrp.Rules(linear="epsilon", constants="reference"),
}


def arrays() -> Iterator[tuple[str, Tensor]]:
    """Name and value of each array: relevance, and what constants keep."""
    for family in ARCHITECTURES:
        for dtype in (torch.float64, torch.float32):
            loaded = hilrp.load(f"zoo/{family}")
            model = loaded.model.to(dtype).eval()
            x = loaded.batch([PIL.Image.fromarray(scene.image) for scene in Scenes(seed=3, count=2)]).to(dtype)
            cases = [(name, hilrp.Rules.named(name), None) for name in PLAIN]
            cases += [(f"{name} relative", rules, 0.1 * x.flip(-1)) for name, rules in RELATIVE.items()]
            for name, rules, reference in cases:
                found = hilrp.explain(model, x, rules=rules, reference=reference, audit="off")
                label = f"{family}, {name}, {str(dtype).removeprefix('torch.')}"
                yield f"{label}: relevance", found.relevance
                for entry, value in sorted(found.ledger.entries.items()):
                    yield f"{label}: {entry}", value


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["write", "compare"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: value.detach().numpy() for name, value in arrays()}
    if options.action == "write":
        np.savez(options.file, **found)
        print(f"{len(found)} arrays written")
        return 0
    return compare(found, dict(np.load(options.file)), options.tolerance)


def compare(found: dict[str, np.ndarray], before: dict[str, np.ndarray], tolerance: float) -> int:
    """Prints how much has changed; 1 if that is more than the tolerance in float64, or anything is missing."""
    same, worst, where = 0, 0.0, ""
    for name in found.keys() & before.keys():
        same += np.array_equal(found[name], before[name], equal_nan=True)
        if "float64" in name:
            scale = np.abs(before[name]).max() or 1.0
            difference = float(np.nan_to_num(np.abs(found[name] - before[name])).max() / scale)
            if difference > worst:
                worst, where = difference, name
    missing = found.keys() ^ before.keys()
    print(f"{same} of {len(before)} bitwise the same; largest difference in float64 {worst:.2g} {where}")
    if missing:
        print(f"in one of them alone: {', '.join(sorted(missing)[:5])} ({len(missing)})")
    return int(bool(missing) or worst > tolerance or (tolerance == 0.0 and same < len(before)))


if __name__ == "__main__":
    sys.exit(main())
