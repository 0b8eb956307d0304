"""Libraries whose models are those of a table, and films of torchvision."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hilrp.models.libraries import torchvision
from hilrp.models.libraries.small import Small, Table
from hilrp.util.errors import InputError

TABLE = Table(
    "mine",
    {
        "UNet": Small(lambda: nn.Conv3d(1, 2, 1), (1, 4, 6, 8)),
        "Sum": Small(nn.Identity, (3, 5, 5), lambda output: output.flatten(1).sum(1)),
    },
)


def test_names():
    assert TABLE.names() == TABLE.kinds() == ["UNet", "Sum"]
    assert TABLE.trained() == []
    assert (TABLE.find("unet"), TABLE.find("SUM"), TABLE.find("net")) == ("UNet", "Sum", None)


def test_recipes():
    made = TABLE.recipe("UNet", size=8)
    x = made.inputs(3)
    assert x.shape == (3, 1, 4, 6, 8)
    assert made.target(made.model(x)).shape == (3,)
    own = TABLE.recipe("Sum")
    x = own.inputs(2)
    torch.testing.assert_close(own.target(own.model(x)), x.sum((1, 2, 3)))


def test_what_can_not_be_made():
    with pytest.raises(InputError, match="mine/UNet is a small model for inputs of 4 x 6 x 8"):
        TABLE.recipe("UNet", size=64)
    for ask in (lambda: TABLE.recipe("UNet", pretrained=True), lambda: TABLE.load("UNet")):
        with pytest.raises(InputError, match=r"with random weights\. Build the one that you trained"):
            ask()


@pytest.mark.parametrize(("name", "side"), [("r3d_18", 112), ("s3d", 224), ("mvit_v1_b", 224)])
def test_films_have_the_size_that_models_take(name, side):
    made = torchvision.recipe(name)
    with torch.device("meta"):
        assert made.inputs(2).shape == (2, 3, 16, side, side)
    if name == "r3d_18":
        with torch.device("meta"):
            assert torchvision.recipe(name, size=64).inputs(1).shape == (1, 3, 16, 64, 64)
    if name == "mvit_v1_b":
        with pytest.raises(InputError, match="mvit_v1_b takes frames of 224 x 224"):
            torchvision.recipe(name, size=112)


def test_one_film_model_of_each_file_is_audited():
    films = [name for name in torchvision.kinds() if torchvision._task(name) == "video"]
    assert films == ["mc3_18", "mvit_v2_s", "s3d", "swin3d_t"]
