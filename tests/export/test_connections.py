"""Sending an explanation asks no host, once the packages are told not to report on themselves; nor does importing."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

from helpers.connections import Spy, strangers
from helpers.optional import keep_to_oneself

#: What is done with each package that is installed.
_SENDING = {
    "tensorboard": """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter(sys.argv[1]) as writer:
    hilrp.export.to_tensorboard(writer, explanation)
""",
    "mlflow": """
import mlflow
with mlflow.start_run():
    hilrp.export.to_mlflow(explanation)
""",
    "wandb": """
import wandb
run = wandb.init(project="hilrp")
hilrp.export.to_wandb(run, explanation)
""",
    "fiftyone": """
import fiftyone
hilrp.export.to_fiftyone(fiftyone.Sample(filepath="a.png"), explanation)
""",
}
_BEGIN = """
import sys, torch, hilrp, hilrp.export
packages = {"tensorboard", "wandb", "mlflow", "lightning", "pytorch_lightning", "fiftyone"}
assert not packages & {*sys.modules}, "importing the room imports one of them"
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 2)).eval()
explanation = hilrp.explain(model, torch.randn(1, 3, 2, 2))
"""
_END = """
print("sent", flush=True)
sys.stdin.readline()
"""


def test_no_host_is_asked(tmp_path, monkeypatch):
    """Python's sockets are watched by a spy; those of W&B's own program, which is no Python, as Linux shows them."""
    installed = [name for name in _SENDING if find_spec(name) is not None]
    keep_to_oneself(monkeypatch, tmp_path)
    spy = Spy(tmp_path)
    settings = os.environ | spy.environment | {"HILRP_MARK": str(tmp_path)}
    settings.pop("PYTEST_CURRENT_TEST", None)  # some packages are quieter in tests
    code = "".join([_BEGIN, *(_SENDING[name] for name in installed), _END])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=settings, **pipes) as process:
        while (line := process.stdout.readline()) not in ("sent\n", ""):
            pass
        assert line == "sent\n"
        seen = strangers(f"HILRP_MARK={tmp_path}")
        process.communicate("\n", timeout=60)
    assert process.returncode == 0
    assert seen == set()
    assert spy.watched() >= 1
    assert spy.asked() == set()
