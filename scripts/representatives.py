"""Writes src/hilrp/jobs/coverage/representatives.json: the smallest model of each module of timm.

Takes some minutes.
"""

from __future__ import annotations

import json
from pathlib import Path

from hilrp.jobs.coverage.catalogue import smallest
from hilrp.models.libraries import timm

if __name__ == "__main__":
    found = {module: smallest(names) for module, names in sorted(timm.modules().items())}
    path = Path(__file__).resolve().parents[1] / "src/hilrp/jobs/coverage/representatives.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
