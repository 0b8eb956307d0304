"""Packages that not every environment of the tests has: what needs them is left out, and that is said."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

#: What is imported, and the package that it needs.
PACKAGES = {
    "torch.utils.tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "lightning": "lightning",
    "hilrp.export.lightning": "lightning",
    "fiftyone": "fiftyone",
    **{name: name for name in ("nibabel", "pydicom", "highdicom", "rasterio", "av", "soundfile")},
    # Those of requirements/libraries.in.
    **{
        f"hilrp.models.libraries.{name}": name
        for name in ("monai", "segmentation_models_pytorch", "ultralytics", "torchxrayvision")
    },
}


def missing(code: str) -> set[str]:
    """The packages that some code, or an example in a docstring, imports and that aren't installed."""
    named = {package for name, package in PACKAGES.items() if re.search(_IMPORT.format(re.escape(name)), code, re.M)}
    return {each for each in named if find_spec(each) is None}


_IMPORT = r"^[ >.]*(?:import|from) {}(?![\w.])"


def keep_to_oneself(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Packages that report to a server, or count their users, write into a folder instead and say nothing."""
    settings = {
        "FIFTYONE_DO_NOT_TRACK": "true",
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(),
        "WANDB_DIR": str(folder),
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
