"""What fails only since there is a reference says that there is one by default, and how to do without."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hilrp

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Model(nn.Module):
    """A small classifier with something in its middle."""

    def __init__(self, middle) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.head, self.middle = nn.Conv2d(3, 4, 3), nn.Linear(144, 3), middle

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.conv(x)).flatten(1))


def flat(h: Tensor) -> Tensor:
    return h.flatten(2)


MIDDLES = {
    "an operation without a form": (
        lambda h: torch.quantile(flat(h), h.mean().sigmoid(), dim=2)[:, :, None, None] + h,
        "The operation `quantile` has no form relative to a reference",
    ),
    "a number that is read out": (lambda h: h * h.std().item(), "`item` in the model itself"),
    "a branch": (lambda h: h * 2 if h.std() > 0.1 else h, "reads out of its tensors"),
    "a shape that depends on values": (lambda h: h + h[h > 0].sum(), "a result has the shape"),
    "an operation that raises there": (
        lambda h: h + torch.linalg.cholesky(flat(h) @ flat(h).mT).sum(),
        r"raised _LinAlgError in the model itself \(Model\) on the reference, though it runs on the input",
    ),
    "a score that is infinite there": (
        lambda h: h + h.std((2, 3), keepdim=True).log(),
        "score on the reference isn't finite",
    ),
    "an operation without a rule": (lambda h: torch.erfinv(h.tanh()), "No rule for the operation `erfinv`"),
}


@pytest.mark.parametrize(("middle", "reason"), MIDDLES.values(), ids=MIDDLES)
def test_the_remedy_is_named(middle, reason):
    remedy = r'relative to a reference, on which the model runs as well; rules="hilrp" explains it without one'
    with pytest.raises(hilrp.HilrpError, match=f"(?s){reason}.*{remedy}"):
        hilrp.explain(Model(middle).eval(), X, 0)


@pytest.mark.parametrize("name", [name for name in MIDDLES if "operation" not in name])
def test_the_remedy_helps(name):
    found = hilrp.explain(Model(MIDDLES[name][0]).eval(), X, 0, rules="hilrp")
    assert float(found.ledger.residual.max()) < 1e-4


def test_what_is_wrong_with_the_input_is_not_the_references_fault():
    with pytest.raises(hilrp.ModelError, match=r"in `conv` \(Conv2d\) on an input of shape \(2, 5, 8, 8\)") as caught:
        hilrp.explain(Model(nn.Identity()).eval(), torch.randn(2, 5, 8, 8), 0)
    assert "hilrp" not in str(caught.value)
