"""Directions among the channels, with what they do not hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hilrp
from hilrp.concepts import Concepts, Directions, Groups, graph

X = torch.randn(2, 3, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(3))


def small() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 6, 3), nn.GELU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)]
    return nn.Sequential(*layers).double().eval()


def random_directions(count: int, channels: int = 6) -> Tensor:
    return torch.randn(count, channels, dtype=torch.double, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
def test_unit_vectors_are_channels(rules):
    channels = Concepts(small(), "1", rules=rules, axis=1).maps(X, 1)
    made = Concepts(small(), "1", torch.eye(6).double(), rules, axis=1).maps(X, 1)
    assert torch.allclose(made.relevance, channels.relevance, atol=1e-14)
    assert torch.allclose(made.maps, channels.maps, atol=1e-14)
    assert float(made.rest.abs().max()) < 1e-14


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("count", [2, 6, 9])
def test_directions_and_what_they_do_not_hold_add_up(count, rules):
    made = Concepts(small(), "1", random_directions(count), rules, axis=1).maps(X, 1, concepts=[0, 1])
    assert float(made.ledger.residual.max()) < 1e-12
    assert float(made.residual.max()) < 1e-12
    assert float(made.difference.abs().max()) < 1e-12
    held = made.ledger.inputs.get("outside the basis", torch.zeros(2))
    assert bool((held.abs() > 1e-6).all()) == (count < 6)  # six or more span the layer


def test_a_direction_holds_its_coefficient_times_the_gradient_along_it():
    """The formula, with a pseudo-inverse of torch's own and plain gradients (epsilon rules on what is linear)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Linear(6, 2)).double().eval()
    x, directions = torch.randn(3, 3, 2, 2).double(), random_directions(3)
    made = Concepts(model, "1", directions, "epsilon").maps(x, 1)
    with torch.no_grad():
        h, g = model[:2](x), model[2].weight[1]
        codes = torch.linalg.lstsq(directions.T, h.T).solution.T
        assert torch.allclose(made.relevance, codes * (directions @ g))
        encoder = torch.linalg.pinv(directions).T
        back = ((directions @ g)[:, None] * encoder) @ model[1].weight
        maps = back * x.flatten(1)[:, None]
    assert torch.allclose(made.maps, maps.unflatten(2, (3, 2, 2)).sum(2))
    assert torch.allclose(made.kept["bias"], (directions @ g) * (encoder @ model[1].bias))


class TopK(nn.Module):
    """A sparse autoencoder that keeps the largest codes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        codes = self.inner(x).relu()
        values, places = codes.topk(3, -1)
        return torch.zeros_like(codes).scatter(-1, places, values)


class Jump(nn.Module):
    """One whose codes begin at a threshold."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> Tensor:
        codes = self.inner(x)
        return codes * (codes > 0.1)


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("kind", ["relu", "topk", "jump", "function"])
def test_encoders_of_every_kind_add_up(kind, rules):
    torch.manual_seed(1)
    encoder = {"relu": nn.Sequential(nn.Linear(6, 10), nn.ReLU()), "topk": TopK(), "jump": Jump()}.get(kind)
    weight = torch.randn(10, 6).double()
    codes = (lambda h: (h @ weight.T).relu()) if encoder is None else encoder.double().eval()
    basis = Directions(random_directions(10), codes)
    made = Concepts(small(), "1", basis, rules, axis=1).maps(X, 1, concepts=[0, 4, 9])
    assert float(made.ledger.residual.max()) < 1e-10
    assert float(made.residual.max()) < 1e-10
    assert float(made.difference.abs().max()) < 1e-10
    with torch.no_grad():
        h = small()[:2](X).movedim(1, -1).reshape(-1, 6)
        own = codes(h).reshape(2, -1, 10)
        if rules == "secant":
            mean = X.mean((2, 3), keepdim=True).expand_as(X)
            own = own - codes(small()[:2](mean).movedim(1, -1).reshape(-1, 6)).reshape(2, -1, 10)
    # Where a code is the same on both, it holds nothing.
    assert torch.equal(made.relevance == 0, (own == 0).all(1))
    one = Concepts(small(), "1", basis, rules, axis=1).maps(X, 1, concepts=[0, 4, 9], at_once=1)
    assert torch.allclose(one.maps, made.maps, atol=1e-13)


def test_groups_leave_out_what_is_in_none():
    channels = Concepts(small(), "1", axis=1).maps(X, 1)
    made = Concepts(small(), "1", [[0, 3], [5]], axis=1).maps(X, 1)
    assert torch.allclose(made.relevance, channels.relevance[:, [[0, 3], [5, 5]]].sum(2) / torch.tensor([1, 2]))
    assert torch.allclose(made.ledger.inputs["outside the basis"], channels.relevance[:, [1, 2, 4]].sum(1))
    assert torch.allclose(made.maps[:, 0], channels.maps[:, [0, 3]].sum(1))
    assert torch.allclose(made.rest, channels.maps[:, [1, 2, 4]].sum(1))
    two = Concepts(small(), "1", 2, axis=1).relevance(X, 1)
    assert torch.allclose(two.relevance, channels.relevance.unflatten(1, (2, 3)).sum(2))


BAD = {
    "in a group twice": [[0, 1], [1]],
    "is empty": [[]],
    "one group or more": 0,
    "no channel 6 in a layer of 6": [[6]],
    "can't be cut into so many groups": 4,
    "the layer 6 channels": torch.randn(3, 5),
    "numbers \\[K,C\\]": torch.ones(3),
    "aren't finite": torch.full((3, 6), float("nan")),
    'the one name is "heads"': "channels",
    "basis is a dict": {},
    "basis is a bool": True,
}


@pytest.mark.parametrize("told", BAD)
def test_bases_that_do_not_fit_are_told(told):
    with pytest.raises(hilrp.InputError, match=told):
        Concepts(small(), "1", BAD[told], axis=1).relevance(X, 1)


@pytest.mark.parametrize(
    ("encoder", "told"),
    [
        (lambda h: h, "codes are"),
        (lambda h: torch.zeros(len(h), 3, dtype=h.dtype), "depend"),
        (lambda h: h.undefined(), "can't be run"),
        (nn.Sequential(nn.Linear(6, 3), nn.Dropout()).double(), "training mode"),
        (torch.randn(2, 6), "Give both as"),
    ],
)
def test_encoders_that_do_not_fit_are_told(encoder, told):
    with pytest.raises(hilrp.InputError, match=told):
        Concepts(small(), "1", Directions(random_directions(3), encoder), axis=1).relevance(X, 1)


def test_a_decoder_has_to_be_a_tensor():
    with pytest.raises(hilrp.InputError, match="the decoder is a list"):
        Directions([[1.0]])
    assert Groups(2) == Groups(2)


class NotFinite(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.relu() * torch.tensor(float("nan"))


@pytest.mark.parametrize("audit", ["strict", "warn"])
def test_codes_that_are_not_finite_are_told(audit):
    """NaN is larger than no limit: a ledger of it must not pass for one that closes."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval(), torch.randn(2, 3)
    basis = Directions(torch.eye(4), NotFinite().eval())
    concepts = Concepts(model, "1", basis, audit=audit)
    if audit == "warn":
        with pytest.warns(hilrp.AuditWarning, match="isn't finite"):
            concepts.relevance(x, 1)
        return
    for ask in (concepts.relevance, concepts.maps):
        with pytest.raises(hilrp.BooksError, match="isn't finite"):
            ask(x, 1)
    with pytest.raises(hilrp.BooksError, match="does not add up"):
        graph(model, ["1", "0"], x, 1, basis={"1": None, "0": basis})


@pytest.mark.parametrize("rules", ["secant", "hilrp"])
@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_directions_in_16_bits(dtype, encoded, rules):
    """Backward passes in float16 begin with a larger seed, also those through an encoder."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(512, 3)).eval().to(dtype)
    encoder = nn.Sequential(nn.Linear(8, 20), nn.ReLU()).eval().to(dtype) if encoded else None
    basis = Directions(torch.randn(20 if encoded else 5, 8), encoder)
    made = Concepts(model, "1", basis, rules, axis=1).maps(torch.randn(2, 3, 8, 8, dtype=dtype), 1)
    limit = 5e-3 if dtype == torch.float16 else 4e-2  # eight times coarser
    assert float((made.difference.abs() / made.ledger.scale[:, None]).max()) < limit
    assert float(made.ledger.residual.max()) < limit
