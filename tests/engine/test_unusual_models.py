"""Models that do unusual things rightly: they are explained, and not refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from helpers.nets import Net, net, pictures

Body = Callable[[Net, Tensor], Tensor]
RULES = ["hilrp", "secant"]


def masked(self: Net, x: Tensor) -> Tensor:
    return self.logits(x).masked_fill(torch.tensor([False, False, True, True]), float("-inf"))


def root_where_defined(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    return self.logits(torch.where(h > 0, h.sqrt(), torch.zeros_like(h)))


def logarithm_where_defined(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    return self.logits(torch.where(h > 0, h.log(), h))


def layer_made_inside(self: Net, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return nn.Linear(4, 4).double()(self.logits(x))


def overload_with_out(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    out = torch.empty_like(h)
    torch.ops.aten.add.out(h, h, out=out)
    return self.logits(out)


def product_with_out(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    return self.logits(torch.matmul(h, h, out=torch.empty_like(h)))


def slopes_of_the_input(self: Net, x: Tensor) -> Tensor:
    fixed = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).reshape(x.shape)
    return self.logits(F.prelu(fixed, x.mean((0, 2, 3))))


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "body",
    [
        product_with_out,
        slopes_of_the_input,
        masked,
        root_where_defined,
        logarithm_where_defined,
        layer_made_inside,
        overload_with_out,
    ],
)
def test_it_is_explained(body: Body, rules: str) -> None:
    for itemised in (False, True):
        found = hilrp.explain(net(body), pictures(), rules=rules, itemised=itemised)
        assert bool(found.relevance.isfinite().all())
        assert float(found.ledger.residual.max()) < 1e-10
        assert not found.unchecked


# Twins ----------------------------------------------------------------------------------------------------------------


def written_after_unsqueeze(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    h.unsqueeze_(1)
    h.mul_(2)
    h[:, 0, 0] = 0.0
    return self.logits(h)


def unsqueezed(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x) * 2
    return self.logits(torch.cat([torch.zeros_like(h[:, :1]), h[:, 1:]], 1))


def written_after_transposing(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x)
    part = h[:, 1:3]
    h.t_()
    h.mul_(2)
    h[0] = h[1]
    part.add_(1)
    return h.t() + part.sum(1, keepdim=True)


def transposed(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x) * 2
    h = torch.cat([h[:, 1:2], h[:, 1:3] + 1, h[:, 3:]], 1)
    return h + h[:, 1:3].sum(1, keepdim=True)


def written_through_a_transposed_view(self: Net, x: Tensor) -> Tensor:
    h = self.head(x.flatten(1))
    part = h[:1]
    part.t_()
    part[0] = 3.0
    h.mul_(2)
    return torch.cat([h, part.t() * 0.5], 1)


def through_a_transposed_view(self: Net, x: Tensor) -> Tensor:
    h = self.head(x.flatten(1))
    h = torch.cat([torch.full_like(h[:, :1], 3.0), h[:, 1:]], 1) * 2
    return torch.cat([h, h * 0.5], 1)


def relu_by_name(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    torch.relu_(input=h)
    return self.logits(h)


def relu(self: Net, x: Tensor) -> Tensor:
    return self.logits(self.conv(x).relu())


def assigned_twice(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x).flatten(1).clone()
    h[:, [0, 0, 1]] = h[:, 3:6] * 2
    return self.head(h)


def copied_twice(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x).flatten(1)
    return self.head(h.index_copy(1, torch.tensor([0, 0, 1]), h[:, 3:6] * 2))


def scattered_twice(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x).flatten(1)
    return self.head(h.scatter(1, torch.tensor([[0, 0, 1]]).expand(len(h), 3), h[:, 3:6] * 2))


def put_twice(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x).flatten(1)
    rows, columns = torch.arange(len(h))[:, None].expand(-1, 3), torch.tensor([[0, 0, 1]]).expand(len(h), 3)
    return self.head(h.index_put((rows, columns), h[:, 3:6] * 2))


def assigned_once(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x).flatten(1)
    return self.head(torch.cat([h[:, 4:6] * 2, h[:, 2:]], 1))


def beside_a_detached_view(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    part = h.detach()[..., :1]
    h.add_(1)
    first = part * 1
    h.mul_(2)
    return self.logits(h * part + first)


def beside_detached(self: Net, x: Tensor) -> Tensor:
    first = self.conv(x) + 1
    h = first * 2
    return self.logits(h * h[..., :1].detach() + first[..., :1].detach())


def part_written_after_transposing(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x)
    part = h[:, 2:]
    h.t_()
    h[0] = h[1] * 0.3
    part.mul_(2)
    return h.t() * 1


def part_written(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x)
    return torch.cat([h[:, 1:2] * 0.3, h[:, 1:2], h[:, 2:] * 2], 1)


def part_written_after_swapping(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    h.swapaxes_(1, 2)
    h[:, :, :, 0] *= 2
    h.swapaxes_(1, 2)
    return self.logits(h)


def column_doubled(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    return self.logits(torch.stack([h[..., 0] * 2, h[..., 1]], -1))


def cut_to_a_part(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x)
    h.as_strided_((len(x), 2), (4, 2))
    h.mul_(3)
    return h


def every_other(self: Net, x: Tensor) -> Tensor:
    return self.logits(x)[:, ::2] * 3


def constants_written_twice(self: Net, x: Tensor) -> Tensor:
    h, scale = self.logits(x), torch.ones(4, dtype=x.dtype)
    part = scale[:2]
    y = h * scale
    scale.mul_(2)
    y = y + (h[:, :2] * part).sum(1, keepdim=True) + h * scale
    scale.mul_(3)
    return y + (h[:, :2] * part).sum(1, keepdim=True) + h * scale


def constants_in_turn(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x)
    return h * 9 + h[:, :2].sum(1, keepdim=True) * 8


def masks_written(self: Net, x: Tensor) -> Tensor:
    mask = torch.zeros(len(x), 4, dtype=torch.bool)
    part = mask[:, :1]
    mask.copy_(self.logits(x) > 0)
    return self.logits(x) * (1 + mask.double()) * (1 + part.double())


def masks_made(self: Net, x: Tensor) -> Tensor:
    mask = self.logits(x) > 0
    return self.logits(x) * (1 + mask.double()) * (1 + mask[:, :1].double())


def used_and_then_chosen(self: Net, x: Tensor) -> Tensor:
    h, c = self.logits(x), torch.ones(len(x), 4, dtype=x.dtype)
    y = h * c
    c[torch.arange(len(x)), h.argmax(1)] = 5.0
    return y + c * h


def chosen(self: Net, x: Tensor) -> Tensor:
    h = self.logits(x)
    return h + h * (1 + 4 * torch.nn.functional.one_hot(h.argmax(1), 4).double())


TWINS: list[tuple[Body, Body, int]] = [
    (written_after_unsqueeze, unsqueezed, 2),
    (written_after_transposing, transposed, 2),
    (written_through_a_transposed_view, through_a_transposed_view, 1),
    (part_written_after_transposing, part_written, 2),
    (part_written_after_transposing, part_written, 4),
    (part_written_after_swapping, column_doubled, 2),
    (cut_to_a_part, every_other, 2),
    (constants_written_twice, constants_in_turn, 2),
    (masks_written, masks_made, 2),
    (used_and_then_chosen, chosen, 2),
    (relu_by_name, relu, 2),
    (beside_a_detached_view, beside_detached, 2),
    (assigned_twice, assigned_once, 2),
    (copied_twice, assigned_once, 2),
    (scattered_twice, assigned_once, 2),
    (put_twice, assigned_once, 2),
]


@pytest.mark.parametrize("rules", [*RULES, "epsilon"])
@pytest.mark.parametrize(
    ("body", "twin", "samples"), TWINS, ids=[f"{body.__name__}-{count}" for body, _, count in TWINS]
)
def test_it_has_the_map_of_its_plainer_twin(body: Body, twin: Body, samples: int, rules: str) -> None:
    x = pictures(samples)
    found, expected = (hilrp.explain(net(each), x, target=0, rules=rules) for each in (body, twin))
    assert torch.allclose(found.score, expected.score)
    assert torch.allclose(
        found.relevance, expected.relevance, rtol=0, atol=1e-10 * float(expected.relevance.abs().max())
    )


# What can't be done says so
# --------------------------------------------------------------------------------------------


def real_part_written(self: Net, x: Tensor) -> Tensor:
    c = torch.fft.fft(self.conv(x))
    c.real.mul_(2)
    return self.logits(torch.fft.ifft(c).real)


def conjugate_of_what_is_written(self: Net, x: Tensor) -> Tensor:
    c = torch.fft.fft(self.conv(x))
    conjugate = c.conj()
    c[:, 0] = c[:, 1] * 2
    return self.logits((conjugate * c).real)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("body", [real_part_written, conjugate_of_what_is_written])
def test_writing_to_parts_of_complex_numbers_is_refused_clearly(body: Body, rules: str) -> None:
    with pytest.raises(hilrp.ModelError, match=r"complex tensor.*clone\(\)"):
        hilrp.explain(net(body), pictures(), rules=rules)


@pytest.mark.parametrize(
    "body", [lambda self, x: torch.fft.fft(self.logits(x)), lambda self, x: self.logits(x) > 0], ids=["complex", "bool"]
)
def test_outputs_that_are_no_scores_are_refused_clearly(body: Body) -> None:
    with pytest.raises(hilrp.TargetError, match="not scores of classes"):
        hilrp.explain(net(body), pictures())


def test_layers_of_random_weights_made_inside_are_explained_and_unchecked() -> None:
    model = net(lambda self, x: nn.Linear(4, 4).double()(self.logits(x)))
    assert any("deterministic" in reason for reason in hilrp.explain(model, pictures()).unchecked)
