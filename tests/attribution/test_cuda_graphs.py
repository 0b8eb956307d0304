"""Recordings as far as they can be looked at without a GPU: what they take for granted, and when they are made."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from helpers.models import small_classifier
from hilrp.attribution import cuda_graphs as capture
from hilrp.attribution.cuda_graphs import Recorder, Snapshot, form
from hilrp.targets.classes import Checked


@pytest.fixture
def model() -> nn.Module:
    return small_classifier()


# What is taken for granted
# ---------------------------------------------------------------------------------------------

HARMLESS = {
    "nothing": lambda m: None,
    "a weight in place": lambda m: m[0].weight.data.mul_(2),
    "a step of an optimiser": lambda m: torch.optim.SGD(m.parameters(), 0.1).step(),
    "a state": lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    "a buffer in place": lambda m: m[1].running_mean.add_(1),
    "flags of parameters": lambda m: m.requires_grad_(False),
    "a type that it has": lambda m: m.to(torch.float32),
}
CHANGES = {
    "another type": lambda m: m.double(),
    "there and back": lambda m: m.double().float(),
    "another parameter": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach().clone())),
    "other memory": lambda m: setattr(m[0].weight, "data", m[0].weight.data.clone()),
    "no bias": lambda m: setattr(m[0], "bias", None),
    "a bias where there was none": lambda m: setattr(m[3], "bias", nn.Parameter(torch.ones(4))),
    "another buffer": lambda m: setattr(m[1], "running_mean", torch.ones(4)),
    "one more buffer": lambda m: m[1].register_buffer("more", torch.ones(4)),
    "another module": lambda m: m.__setitem__(2, nn.ReLU()),
    "one more module": lambda m: m.append(nn.Softplus()),
    "a module less": lambda m: m.__delitem__(5),
    "a module deep down": lambda m: m[2].add_module("inner", nn.Identity()),
    "training": lambda m: m.train(),
    "training of a part": lambda m: m[1].train(),
}


#: What a model does by these, a recording can't know.
SETTINGS = {
    "a number": lambda m: setattr(m, "gain", 5),
    "a number in a dictionary": lambda m: m.config.update(gain=5),
    "a number deep in a configuration": lambda m: m.settings.inner.append(1),
    "a name that hides one of the class": lambda m: setattr(m[0], "dump_patches", True),
    "a name instead of nothing": lambda m: setattr(m, "head_of", "aux"),
    "a tuple": lambda m: setattr(m, "sizes", (1, 3)),
    "a list that grows": lambda m: m.calls.append(1),
    "the type of a number": lambda m: setattr(m, "gain", True),
}


@pytest.mark.parametrize("change", SETTINGS)
def test_settings_may_not_change_unasked(model, change):
    model.gain, model.config, model.head_of, model.sizes, model.calls = 1, {"gain": 1}, None, (1, 2), []
    model.settings = SimpleNamespace(inner=[0])
    snapshot, trusting = Snapshot(model, counters=True), Snapshot(model)
    assert snapshot.holds()
    SETTINGS[change](model)
    assert not snapshot.holds()
    assert trusting.holds()


@pytest.mark.parametrize("change", HARMLESS)
def test_values_of_weights_may_change(model, change):
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    snapshot = Snapshot(model)
    before = model(torch.ones(1, 3, 8, 8))
    with torch.no_grad():
        HARMLESS[change](model)
    assert snapshot.holds()
    assert torch.equal(model(torch.ones(1, 3, 8, 8)), before) == (
        change in ("nothing", "flags of parameters", "a type that it has")
    )


@pytest.mark.parametrize("change", CHANGES)
def test_where_weights_are_and_what_the_model_is_made_of_may_not(model, change):
    snapshot = Snapshot(model)
    assert snapshot.holds()
    CHANGES[change](model)
    assert not snapshot.holds()
    assert Snapshot(model).holds()


X = torch.randn(2, 3, 4, 4)


def test_forms_of_inputs():
    """Values are all that may differ."""
    classes = torch.tensor([1, 2])
    forms = [
        form((X, Checked(None), None)),
        form((X[:1], Checked(None), None)),
        form((X.double(), Checked(None), None)),
        form((X.to(memory_format=torch.channels_last), Checked(None), None)),
        form((X, Checked(classes), None)),
        form((X, Checked(classes, classes), None)),
        form((X, Checked(None), X)),
        form(((X, X), Checked(None), None)),
        form(({"a": X, "b": X}, Checked(None), None)),
        form(({"b": X, "a": X}, Checked(None), None)),
        form(({"a": X, "c": X}, Checked(None), None)),
        form(({"a": X, "whole": True}, Checked(None), None)),
        form(({"a": X, "whole": False}, Checked(None), None)),
    ]
    assert len(set(forms)) == len(forms)
    assert forms[0] == form((X + 1, Checked(None), None))
    assert forms[4] == form((X * 2, Checked(classes + 1), None))
    assert forms[11] == form(({"a": -X, "whole": True}, Checked(None), None))


def test_forms_of_computing():
    plain = form(X)
    seen = [plain]
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    for dtype in (torch.bfloat16, torch.float16):
        try:
            # As torch.autocast does where there is a GPU.
            torch.set_autocast_enabled("cuda", True)
            torch.set_autocast_dtype("cuda", dtype)
            seen.append(form(X))
        finally:
            torch.set_autocast_enabled("cuda", before[0])
            torch.set_autocast_dtype("cuda", before[1])
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        seen.append(form(X))
    for module, name in (
        (torch.backends.cuda.matmul, "allow_tf32"),
        (torch.backends.cudnn, "allow_tf32"),
        (torch.backends.cudnn, "deterministic"),
    ):
        before = getattr(module, name)
        setattr(module, name, not before)
        try:
            seen.append(form(X))
        finally:
            setattr(module, name, before)
    assert len(set(seen)) == len(seen)
    assert form(X) == plain


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch has but the older names")
@pytest.mark.parametrize(
    ("setting", "value", "multiplies", "convolves"),
    [
        ("cuda.matmul.fp32_precision", "tf32", True, True),
        ("cudnn.conv.fp32_precision", "ieee", False, False),
        ("fp32_precision", "tf32", True, True),
    ],
)
def test_tf32_by_its_older_and_newer_names(setting, value, multiplies, convolves):
    """Once the newer are used, torch refuses to answer by the older, and they can't be unused.

    Hence a process for each.
    """
    code = (
        f"import torch; torch.backends.{setting} = {value!r}\n"
        "from hilrp.attribution.cuda_graphs import form\nfrom hilrp.attribution.checks import tf32, tolerance\n"
        "form(torch.ones(1)); print(tf32(), tolerance([torch.float32], torch.device('cuda')))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    limit = 5e-3 if multiplies or convolves else 1e-4
    assert found.stdout.strip() == f"{(multiplies, convolves)} {limit}", found.stderr[-500:]


# When they are made ---------------------------------------------------------------------------------------------------


class Recorded:
    """A recording that runs its step when it is replayed."""

    made = 0
    error: Exception | None = None

    def __init__(self, inputs, step, pool) -> None:
        if Recorded.error is not None:
            raise Recorded.error
        Recorded.made += 1
        self.step = step

    def replay(self, inputs):
        return "recorded", self.step(inputs)


class Stream:
    def wait_event(self, event) -> None: ...
    def record_event(self) -> str:
        return "event"


@pytest.fixture
def recorder(model, monkeypatch) -> Recorder:
    monkeypatch.setattr(Recorded, "made", 0)
    monkeypatch.setattr(Recorded, "error", None)
    monkeypatch.setattr(capture, "_Recording", Recorded)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    return Recorder(model)


def shape(inputs: torch.Tensor) -> tuple[int, ...]:
    return tuple(inputs.shape)


def test_the_second_input_of_a_form_is_recorded(recorder):
    assert recorder.run(X, shape) is None
    assert recorder.run(X[:1], shape) is None
    assert Recorded.made == 0
    for _ in range(3):
        assert recorder.run(X + 1, shape) == ("recorded", (2, 3, 4, 4))
    assert Recorded.made == 1
    assert recorder.run(X[:1], shape) == ("recorded", (1, 3, 4, 4))
    assert Recorded.made == 2


def test_a_model_that_is_another_is_recorded_anew(recorder, model):
    assert not recorder.same_model()
    for _ in range(2):
        recorder.run(X, shape)
    with torch.no_grad():
        model[0].weight.mul_(2)
    assert recorder.same_model()
    assert recorder.run(X, shape) is not None
    assert Recorded.made == 1
    model[2] = nn.ReLU()
    assert not recorder.same_model()
    assert recorder.run(X, shape) is None
    for _ in range(2):
        assert recorder.same_model()
        assert recorder.run(X, shape) is not None
    assert Recorded.made == 2


def test_some_forms_are_kept(recorder):
    """The latest: a fifth takes the place of the one that was not used for longest."""
    forms = [torch.zeros(n, 3) for n in range(1, 6)]
    for t in forms * 2:
        recorder.run(t, shape)
    assert Recorded.made == 5
    recorder.run(forms[1], shape)
    assert Recorded.made == 5
    recorder.run(forms[0], shape)
    assert Recorded.made == 6
    recorder.run(forms[1], shape)
    assert Recorded.made == 6


def test_what_cannot_be_recorded_is_not_tried_again(recorder):
    recorder.run(X, shape)
    Recorded.error = RuntimeError("operation not permitted when stream is capturing\nmore")
    assert recorder.run(X, shape) is None
    assert recorder.failure == "RuntimeError: operation not permitted when stream is capturing"
    Recorded.error = None
    assert recorder.run(X, shape) is None
    assert Recorded.made == 0


@pytest.mark.parametrize("asks", [True, False])
def test_a_step_that_asks_the_device_is_not_recorded(asks, monkeypatch):
    """torch warns of it where it is told to; the setting is put back, and other warnings are no reason."""
    modes = [0]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: modes[-1])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)
    with contextlib.ExitStack() as stack:
        if asks:
            stack.enter_context(pytest.raises(RuntimeError, match="asks the device for numbers"))
        with capture._never_asking():
            said = (
                "called a synchronizing CUDA operation"
                if asks
                else "a prototype that doesn't detect all synchronizing operations"
            )
            with contextlib.nullcontext() if asks else pytest.warns(UserWarning, match="prototype"):
                warnings.warn(f"{said} (Triggered internally)", stacklevel=1)
    assert modes == [0, "warn", 0]


def test_what_is_too_large_to_be_recorded_runs_as_it_is(recorder, monkeypatch):
    """A recording needs more memory than the step alone; inputs of another form are recorded."""
    freed = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(True))
    recorder.run(X, shape)
    Recorded.error = torch.OutOfMemoryError("CUDA out of memory")
    assert recorder.run(X, shape) is None
    assert freed
    assert recorder.failure is None
    Recorded.error = None
    assert recorder.run(X, shape) is None
    recorder.run(X[:1], shape)
    assert recorder.run(X[:1], shape) is not None


def test_a_corrected_model_is_recorded(recorder, model):
    recorder.same_model()
    recorder.run(X, shape)
    Recorded.error = RuntimeError("operation not permitted when stream is capturing")
    recorder.run(X, shape)
    Recorded.error = None
    model[2] = nn.ReLU()
    assert not recorder.same_model()
    recorder.run(X, shape)
    assert recorder.run(X, shape) is not None


def replaced_attribute(model: nn.Module) -> None:
    model[0].mask = torch.ones(3)


def added_hook(model: nn.Module) -> None:
    model[0].register_forward_hook(lambda *_: None)


def other_strides(model: nn.Module) -> None:
    weight = model[0].weight
    weight.data = weight.data.as_strided(weight.shape, weight.stride()[::-1])


@pytest.mark.parametrize("change", [replaced_attribute, added_hook, other_strides])
def test_what_else_a_recording_takes_for_granted(change):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    model[0].mask = torch.ones(3)
    snapshot = Snapshot(model)
    assert snapshot.holds()
    change(model)
    assert not snapshot.holds()


def test_what_cannot_be_compared_is_not_recorded(recorder):
    for other in (object(), np.zeros(5000)):
        assert form((X, other)) is None
        for _ in range(3):
            assert recorder.run((X, other), lambda inputs: 1) is None
    assert Recorded.made == 0
