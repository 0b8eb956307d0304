"""Audits of one small model of each family of the libraries that `make test-libraries` installs, with both rule sets.

Where a library isn't there, as in `make test`, its tests are left out, and pytest says so.
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from helpers.audits import assert_sound
from helpers.paths import script
from hilrp.jobs.coverage import Settings
from hilrp.jobs.coverage.catalogue import catalogue
from hilrp.jobs.coverage.worker import audit_row
from hilrp.models.random_models import build
from hilrp.models.resolve import resolve
from hilrp.util.errors import InputError, UnavailableError

LIBRARIES = ("monai", "segmentation_models_pytorch", "ultralytics", "torchxrayvision")
#: With random weights its score hardly depends on the picture: in float32 the difference is lost in rounding.
IN_DOUBLE = {("segmentation_models_pytorch/Unet-se_resnet50", "secant")}


def names() -> list[str]:
    """One model of each family of what is installed."""
    return [name for library in LIBRARIES if find_spec(library) is not None for name in catalogue(library)]


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize(
    "name", names() or [pytest.param("", marks=pytest.mark.skip("none of the libraries is there"))]
)
def test_a_model_passes_the_audit(name, rules):
    dtype = "float64" if (name, rules) in IN_DOUBLE else "float32"
    row = audit_row(name, Settings(rules=rules, batch=1, dtype=dtype))
    assert_sound(row)
    assert row["forward_difference"] == 0


@pytest.mark.parametrize("library", LIBRARIES)
def test_names_are_found_and_explained(library):
    if find_spec(library) is None:
        with pytest.raises(UnavailableError, match=f"pip install {library}"):
            resolve(f"{library}/anything")
        return
    name = catalogue(library)[0].partition("/")[2]
    assert resolve(f"{library}/{name.upper()}") == (library, name)
    with pytest.raises(InputError, match="is a small model for inputs of"):
        build(f"{library}/{name}", size=7)
    with pytest.raises(UnavailableError, match="no model of that name"):
        resolve(f"{library}/no such model")


def test_grad_cam_is_monais():
    """The comparator of docs/inputs.md: the same map as MONAI's own, at two layers of a 3-D network."""
    visualize = pytest.importorskip("monai.visualize")
    measuring = script("measure_space_time")
    case, strongest = next(measuring.volumes(4, "cpu")), 0.0
    for layer in measuring.LAYERS["unet3d"].values():
        cam = visualize.GradCAM(case.question, f"model.{layer}", postprocessing=lambda maps: maps)
        theirs = cam(case.x, class_idx=0)
        ours = measuring.grad_cam(layer)(case.question, case.x, torch.zeros(1, dtype=torch.long))
        torch.testing.assert_close(ours, theirs[:, 0], rtol=1e-4, atol=1e-9)
        strongest = max(strongest, float(ours.max()))
    assert strongest > 1e-6
