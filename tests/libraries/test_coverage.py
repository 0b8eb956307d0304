"""Audits of one small model of each family of the libraries that `make test-libraries` installs, with both rule sets.

Where a library isn't there, as in `make test`, its tests are left out, and pytest says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
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


@pytest.mark.parametrize("name", ["yolov8n", "yolov10n", "yolo11n-seg", "yolo26n"])
def test_the_surest_class_of_a_yolo_is_what_it_reports(name):
    """The logit before the sigmoid: the largest probability in its own output."""
    pytest.importorskip("ultralytics")
    built = build(f"ultralytics/{name}", batch=2)
    with torch.no_grad():
        output = built.model(built.inputs)
    found = built.target(output).sigmoid()
    reported = output[0][0] if isinstance(output[0], tuple) else output[0]  # of a model of masks also their prototypes
    torch.testing.assert_close(found, reported[:, 4:84].flatten(1).amax(1))


def test_ultralytics_asks_no_server_and_installs_nothing():
    pytest.importorskip("ultralytics")
    code = (
        "import os; from hilrp.models.libraries import ultralytics; import ultralytics.utils as u; "
        "print(os.environ['YOLO_OFFLINE'], u.AUTOINSTALL, u.ONLINE)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("YOLO_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split()[-3:] == ["true", "False", "False"]


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
