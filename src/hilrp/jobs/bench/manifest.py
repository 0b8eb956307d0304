"""What has to be known to repeat a run: versions, weights, preprocessing, seeds."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

import hilrp
from hilrp.jobs.bench.data import SCENES, contents
from hilrp.jobs.bench.methods import find
from hilrp.jobs.bench.methods.relevance import as_in_the_paper
from hilrp.jobs.store import versions
from hilrp.models.weights import fingerprint

if TYPE_CHECKING:
    from hilrp.jobs.bench.grid import Grid

_PACKAGES = ("torch", "torchvision", "timm", "numpy", "captum", "grad-cam", "quantus", "scikit-learn", "scipy")


def manifest(grid: Grid) -> dict[str, Any]:
    """The facts of a run as plain data."""
    suite = grid.suite
    models: dict[str, dict[str, Any]] = {}
    for name in suite.models:
        try:
            loaded = grid.load(name)
        except Exception as error:  # said in its cells
            models[name] = {"error": str(error)}
            continue
        models[name] = {
            "weights": loaded.weights,
            "sha256": fingerprint(loaded.model),
            "mean": loaded.preprocess.mean,
            "std": loaded.preprocess.std,
            "preprocessing": _described(loaded.preprocess.function),
            "options of hilrp": dict(as_in_the_paper(find("hilrp"), loaded.model).options),
        }
    return {
        "commit": _commit(),
        **versions(_PACKAGES),
        "device": torch.cuda.get_device_name() if grid.device.startswith("cuda") else platform.machine(),
        "data": suite.data,
        "pictures_sha256": sha256(json.dumps(contents(grid.samples)).encode()).hexdigest(),
        "scenes_seed": SCENES if suite.data == "scenes" else None,
        "effort": asdict(suite.effort),
        "methods": list(suite.methods),
        "measures": list(suite.measures),
        "models": models,
    }


def _described(function: Any) -> str:
    """A preprocessing in words: a function by its name, and not by where it was in memory."""
    plain = isinstance(function, FunctionType)
    return f"{function.__module__}.{function.__qualname__}" if plain else " ".join(str(function).split())


def _commit() -> str | None:
    """The commit of the checkout that hilrp runs from, if it does."""
    command = ["git", "-C", str(Path(hilrp.__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
