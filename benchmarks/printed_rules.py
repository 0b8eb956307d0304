"""The paper's rules on weights as printed, in float64 on published weights: what the pixels hold, and where maps point.

    python benchmarks/printed_rules.py [--count 40]    # docs/results/figures/printed.csv.gz

In float32 their sums overflow on some models, so that a benchmark's run can't draw them. Photographs with masks, evenly
chosen; the labelled class. Needs the shared material: see scripts/figures.py.
"""

from __future__ import annotations

import argparse
import os
import runpy
from pathlib import Path

import hilrp
from hilrp.jobs.bench.data import find, inputs_for
from hilrp.jobs.bench.metrics.localisation import pointing
from hilrp.jobs.bench.suites import PUBLISHED

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("HILRP_SHARED") or ROOT.parent / "shared")
RULES = ("gamma_weights", "zplus_weights")


def main() -> None:
    """Measures, and writes a row for each image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    samples = find(str(SHARED / "images" / "pets"), parser.parse_args().count)
    keep, rows = runpy.run_path(str(ROOT / "scripts" / "keep_figures.py")), []
    for name, file in PUBLISHED.items():
        loaded = hilrp.load(name, SHARED / "checkpoints" / f"{file}.safetensors")
        inputs = inputs_for(loaded, samples)
        model = loaded.model.double()
        for linear in RULES:
            explainer = hilrp.Explainer(model, hilrp.Rules(linear=linear), stages=None, audit="off")
            for i in range(len(inputs.x)):
                found = explainer.explain(inputs.x[i : i + 1].double(), inputs.labels[i : i + 1])
                share = float(found.ledger.share)
                figures = {"pixels' share": share, "size of the share": abs(share)}
                if bool(found.map.isfinite().all()):
                    figures["pointing"] = float(pointing(found.map, inputs.masks[i : i + 1]))
                rows += [(file, linear, figure, i, f"{value:.6g}") for figure, value in figures.items()]
            print(file, linear, flush=True)
    print(keep["write"]("printed", rows))


if __name__ == "__main__":
    main()
