"""The Triton kernels without a GPU.

Interpreted beside the plain functions, compiled for two generations, and turned off.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from helpers.paths import HELPERS
from hilrp.method.fast import kernels

TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not TRITON, reason="Triton is not installed")

#: How far kernels may be off, relative to the largest value: they compute in float32 and round once.
BOUNDS = {"float32": 1e-5, "float16": 3e-3}
KERNELS = [
    "quotient", "shares_of", "shared_out", "size_and_sign", "with_sign", "times_slope", "normalised_back", "add_shares",
    "slope", "bounded_shares", "chord", "through_norm", "change_of_norm", "slope_of", "through_weights",
    "through_softmax", "mean_weights",
]  # fmt: skip


def printed(script: str, *arguments: str, **environment: str) -> dict:
    """What a script of the helpers prints, in a process of its own.

    Triton looks at its settings when it is imported.
    """
    found = subprocess.run(
        [sys.executable, str(HELPERS / script), *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def interpreted() -> dict[str, tuple[float, int, bool]]:
    return printed("kernel_cases.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", BOUNDS)
def test_kernels_beside_the_plain_functions(interpreted, kernel, dtype):
    found = {name: result for name, result in interpreted.items() if name.startswith(f"{dtype} {kernel} ")}
    assert len(found) >= 5
    # In half precision the plain function rounds after each of a dozen steps.
    bound = BOUNDS[dtype] * (4 if kernel == "bounded_shares" else 1)
    far = {name: error for name, (error, _, _) in found.items() if not error <= bound}
    assert not far
    # A comparison of the plain function with itself would say nothing.
    assert not {name for name, (_, ran, expected) in found.items() if bool(ran) != expected}


@needs_triton
def test_kernels_compile_without_a_gpu(tmp_path):
    targets = ["80:bf16", "90:fp32"]  # two generations, and numbers of both sizes
    found = printed("kernel_builds.py", *targets, TRITON_CACHE_DIR=str(tmp_path), TRITON_INTERPRET="0")
    assert list(found) == targets
    for sizes in found.values():
        assert {name.split()[0].lstrip("_") for name in sizes} == set(KERNELS)
        assert all(size > 1000 for size in sizes.values())


@pytest.fixture
def _fresh():
    """What was found out about Triton is forgotten before and after."""
    kernels._triton.cache_clear()
    yield
    kernels._triton.cache_clear()


class OnGpu:
    """All that the choice of kernels asks of a tensor on a GPU."""

    def __init__(self, like: torch.Tensor) -> None:
        self.like, self.is_cuda = like, True

    def __getattr__(self, name: str):
        return getattr(self.like, name)


@needs_triton
@pytest.mark.usefixtures("_fresh")
@pytest.mark.parametrize(("setting", "used"), [(None, True), ("1", True), ("0", False)])
def test_the_switch(monkeypatch, setting, used):
    monkeypatch.delenv("HILRP_FUSED", raising=False)
    if setting is not None:
        monkeypatch.setenv("HILRP_FUSED", setting)
    assert (kernels._triton() is not None) == used
    assert (kernels._fused(OnGpu(torch.zeros(3))) is not None) == used
    assert kernels._fused(torch.zeros(3)) is None


@pytest.mark.usefixtures("_fresh")
def test_without_triton(monkeypatch):
    monkeypatch.delenv("HILRP_FUSED", raising=False)
    monkeypatch.setitem(sys.modules, "hilrp.method.fast.triton_kernels", None)
    monkeypatch.delattr("hilrp.method.fast.triton_kernels", raising=False)
    assert kernels._triton() is None
    assert kernels._fused(OnGpu(torch.zeros(3))) is None


@needs_triton
def test_what_kernels_take():
    from hilrp.method.fast.triton_kernels import takes

    t = torch.zeros(2, 3, 4, 5)
    assert takes(t, torch.ones_like(t))
    assert takes(*[t.to(memory_format=torch.channels_last)] * 2)
    assert takes(t.half())
    assert takes(t.bfloat16())
    assert not takes(t.double())
    assert not takes(t, t.half())
    assert not takes(t, t.to(memory_format=torch.channels_last))
    assert not takes(t, t[:1])
    assert not takes(t[..., 1:])
    assert not takes(t.transpose(2, 3))
    assert not takes(t[:1].expand(2, 3, 4, 5))
