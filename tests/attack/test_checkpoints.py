"""Bad checkpoints: each is refused with the file's name, the reason and the remedy, soon and cheaply; no code runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import hilrp
from attack.checkpoint_cases import BIAS, COUNT, GOOD, HEAD, PLACES, WIDTH, Forged, contents, saved, with_attributes
from helpers.bounded import bounded
from hilrp.util.errors import InputError

#: What any of the files may take; the model itself has four megabytes.
SECONDS, MEGABYTES = 5, 150
CASES = contents()


def outcome(path: Path) -> Any:
    return bounded(lambda: hilrp.load("zoo/resnet", path), SECONDS, MEGABYTES)


def assert_clear(error: Any, path: Path, words: str) -> None:
    """An error of ours that names the file, says why, and what to do."""
    assert isinstance(error, InputError), repr(error)
    said = str(error)
    assert said.startswith(f"checkpoint {path}")
    assert words in said
    assert re.search(r"Save|save|Give|Is it complete|Is the file complete|have to", said), said
    assert len(said) < 2000


@pytest.fixture(autouse=True)
def _no_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "code_was_run").exists()


def test_there_are_enough_of_them() -> None:
    assert len(CASES) + len(PLACES) >= 40


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_files_that_are_refused(tmp_path, name):
    content, words = CASES[name]
    path = tmp_path / name
    path.write_bytes(content)
    assert_clear(outcome(path), path, words)


@pytest.mark.parametrize("name", PLACES)
def test_paths_that_lead_to_no_checkpoint(tmp_path, name):
    make, words = PLACES[name]
    path = tmp_path / name
    make(path)
    assert_clear(outcome(path), path, words)


def taken(path: Path) -> dict[str, torch.Tensor]:
    found = outcome(path)
    assert not isinstance(found, Exception), found
    state: dict[str, torch.Tensor] = found.model.state_dict()
    return state


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_less_and_more_exact_numbers_are_taken(tmp_path, dtype):
    weights = {n: v.to(dtype) if v.is_floating_point() else v for n, v in GOOD.items()}
    torch.save(weights, tmp_path / "w.pt")
    save_file(weights, tmp_path / "w.safetensors")
    for name in ("w.pt", "w.safetensors"):
        state = taken(tmp_path / name)
        assert all(torch.equal(state[n], v.to(GOOD[n].dtype)) for n, v in weights.items())


def test_files_of_every_age_hold_the_same(tmp_path):
    torch.save(GOOD, tmp_path / "new.pt")
    torch.save(GOOD, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    torch.save({"state_dict": {f"module.{n}": v for n, v in GOOD.items()}}, tmp_path / "wrapped.pt")
    for name in ("new.pt", "old.pt", "wrapped.pt"):
        state = taken(tmp_path / name)
        (tmp_path / name).unlink()  # nothing of the model is a view of the file
        assert all(torch.equal(state[n], v) for n, v in GOOD.items())


def test_constants_that_are_repeated_are_taken(tmp_path):
    """Little is claimed by it, and the shape is the architecture's."""
    (tmp_path / "w.pt").write_bytes(saved(GOOD | {HEAD: Forged((COUNT, WIDTH), (0, 0))}))
    assert torch.equal(taken(tmp_path / "w.pt")[HEAD], torch.zeros(COUNT, WIDTH))


def test_what_hangs_on_a_tensor_does_not_matter(tmp_path):
    torch.save(GOOD | {HEAD: with_attributes()}, tmp_path / "w.pt")
    assert torch.equal(taken(tmp_path / "w.pt")[HEAD], GOOD[HEAD])


@pytest.mark.parametrize("count", [1, 3, COUNT + 1, 4 * COUNT])
def test_other_numbers_of_classes_are_taken(tmp_path, count):
    """Also more than the architecture has by itself, where the weights are there."""
    head = torch.randn(count, WIDTH)
    torch.save(GOOD | {HEAD: head, BIAS: torch.ones(count)}, tmp_path / "w.pt")
    assert torch.equal(taken(tmp_path / "w.pt")[HEAD], head)


def test_names_of_classes_from_a_pipe(tmp_path):
    import os

    from hilrp.models.loading import class_names

    os.mkfifo(tmp_path / "names.txt")
    error = bounded(lambda: class_names(tmp_path / "names.txt"), 5, MEGABYTES)
    assert isinstance(error, InputError)
    assert "pipe" in str(error)
