"""What all destinations are sent, and what none of them takes."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from helpers.models import small_classifier
from hilrp.export import to_fiftyone, to_mlflow, to_tensorboard, to_wandb
from hilrp.export.records import records
from hilrp.util.errors import InputError
from hilrp.util.peers import MissingPeerError

NAMES = ["cat", "dog", "cow", "ant", "bee"]


class Everything:
    """Has every method that is asked for, and remembers nothing."""

    def __getattr__(self, name):
        return lambda *args, **options: None


#: The functions that send figures, with a receiver.
SENDERS = {
    "tensorboard": lambda found, **options: to_tensorboard(Everything(), found, **options),
    "wandb": lambda found, **options: to_wandb(Everything(), found, **options),
    "mlflow": lambda found, **options: to_mlflow(found, run="a", client=Everything(), **options),
}


@pytest.fixture
def explanation():
    return hilrp.explain(small_classifier(), torch.randn(3, 3, 8, 8), [0, 3, 1])


def test_each_sample_has_its_picture_its_sentence_and_its_figures(explanation):
    found = records(explanation, "run/a/", NAMES, [2, 0])
    assert [each.name for each in found] == ["run/a/2", "run/a/0"]
    facts = explanation.facts()
    for i, each in zip((2, 0), found, strict=True):
        assert np.array_equal(each.overlay, explanation.overlay(i, NAMES, array=True))
        assert np.array_equal(np.asarray(each.picture), each.overlay)
        assert each.sentence == explanation.sentence(i, NAMES)
        assert (each.verdict, each.caption) == ("valid", f"{each.sentence} (valid)")
        assert each.figures == {
            name: facts[name][i] for name in ("score", "reference_score", "difference", "pixel_share", "residual")
        }
        assert each.named == {f"{each.name}/{name}": value for name, value in each.figures.items()}
    assert "dog" in found[0].sentence
    assert len(records(explanation)) == 3


def test_without_a_reference_there_is_none_to_send():
    found = hilrp.explain(small_classifier(), torch.randn(1, 3, 8, 8), 0, rules="hilrp")
    assert list(records(found)[0].figures) == ["score", "pixel_share", "residual"]


def test_tables_have_no_picture():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    (one, _) = records(hilrp.explain(model, torch.randn(2, 4), 1))
    assert one.overlay is None
    assert one.picture is None
    assert one.sentence.startswith("Of the ")
    assert one.figures["residual"] < 1e-4


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"samples": [0, 3]}, "samples has 3: what is explained has samples from 0 to 2"),
        ({"samples": [True]}, "samples has True"),
        ({"tag": ""}, "tag='': give what all names are to begin with"),
        ({"tag": None}, "tag=None"),
        ({"loaded": "cat"}, "loaded='cat': give what hilrp.load returned"),
        ({"step": 1.5}, "step=1.5 is a float: give a whole number"),
        ({"step": "last"}, "step='last' is a str"),
    ],
)
@pytest.mark.parametrize("name", SENDERS)
def test_what_does_not_fit_is_named(name, options, said, explanation):
    if name == "wandb":  # whose pictures are its own objects
        pytest.importorskip(name)
    with pytest.raises(InputError, match=f"^{said}"):
        SENDERS[name](explanation, **options)


@pytest.mark.parametrize("name", SENDERS)
def test_only_explanations_are_sent(name, explanation):
    if name == "wandb":  # whose pictures are its own objects
        pytest.importorskip(name)
    with pytest.raises(InputError, match=r"explanation is a Tensor: give what hilrp\.explain returned"):
        SENDERS[name](explanation.map)


@pytest.mark.parametrize(
    ("send", "said"),
    [
        (lambda found: to_tensorboard("runs", found), r"writer is a str, which has no add_image\(\): give a Summary"),
        (lambda found: to_wandb({}, found), r"run is a dict, which has no log\(\): give what wandb.init\(\) returned"),
        (lambda found: to_mlflow(found, run="a", client="b"), r"client is a str, which has no log_image\(\): give an"),
        (lambda found: to_mlflow(found, run=3, client=Everything()), "run is a int: give a run of mlflow, or its id"),
    ],
)
def test_receivers_that_can_not_receive_are_named(send, said, explanation):
    with pytest.raises(InputError, match=f"^{said}"):
        send(explanation)


@pytest.mark.parametrize(
    ("package", "send", "install"),
    [
        ("wandb", lambda found: to_wandb(Everything(), found), "'hilrp[export]'"),
        ("mlflow", to_mlflow, "'hilrp[export]'"),
        ("fiftyone", lambda found: to_fiftyone(Everything(), found), "fiftyone"),
    ],
)
def test_a_missing_package_is_named(package, send, install, explanation, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPeerError) as raised:
        send(explanation)
    assert str(raised.value) == f"{package} is not installed. Install it with: pip install {install}"


def test_without_lightning_the_callback_says_so(monkeypatch):
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "hilrp.export.lightning", raising=False)
    with pytest.raises(MissingPeerError, match=r"^lightning is not installed. .*pip install 'hilrp\[export\]'"):
        import hilrp.export.lightning  # noqa: F401
