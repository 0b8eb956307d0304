"""Ways in which values of the input leave the pass, or gradients are changed behind it: each is named."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hilrp
from nets import Net, net, pictures

# Numbers that leave as a shape, or as text -------------------------------------------------------------------------

SHAPES: dict[str, Callable[[Tensor], int]] = {
    "nonzero": lambda x: (x > 0).nonzero().shape[0],
    "argwhere": lambda x: len(torch.argwhere(x > 0)),
    "where": lambda x: len(torch.where(x > 0)[0]),
    "getitem": lambda x: x[x > 0].numel(),
    "masked_select": lambda x: x.masked_select(x > 0).numel(),
    "unique": lambda x: len(torch.unique(x.round())),
    "repeat_interleave": lambda x: len(torch.ones(12).repeat_interleave((x[0] > 0).flatten().long())),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_depends_on_values_is_named(name: str) -> None:
    model = net(lambda self, x: self.logits(x) * SHAPES[name](x))
    found = hilrp.explain(model, pictures(1))
    assert any(f"`{name}`" in note and "shape" in note for note in found.notes), found.notes


def test_a_constant_mask_reads_nothing_out() -> None:
    mask = torch.arange(12).reshape(3, 2, 2) % 2 == 0
    model = net(lambda self, x: self.head.weight[:, :6] @ x[:, mask].T)
    found = hilrp.explain(model, pictures(1), target=lambda output: output[0])
    assert not found.notes


@pytest.mark.parametrize("name", ["format", "repr"])
def test_a_number_that_leaves_as_text_is_named(name: str) -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        text = f"{x.sum():.3f}" if name == "format" else repr(x.sum())
        return self.logits(x) * float(re.search(r"-?\d+\.\d+", text).group())  # type: ignore[union-attr]

    found = hilrp.explain(net(body), pictures(1))
    assert any(f"`{name}`" in note for note in found.notes)
    with pytest.raises(hilrp.AuditError, match=f"`{name}`"):
        hilrp.explain(net(body), pictures(1), rules="secant", reference=0.1 * pictures(1))


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_what_is_drawn_by_chances_of_the_input_is_no_constant(rules: str) -> None:
    model = net(lambda self, x: self.logits(torch.bernoulli(x.sigmoid()) + x))
    with pytest.raises(hilrp.ModelError, match="Chance is active"):
        hilrp.explain(model, pictures(1), rules=rules)


# Memory that changes hands --------------------------------------------------------------------------------------------


def borrowed(self: Net, x: Tensor) -> Tensor:
    h, y = self.conv(x), torch.zeros(0, dtype=x.dtype)
    y.set_(h.detach())
    return self.logits(h + y)


def stored(self: Net, x: Tensor) -> Tensor:
    h, file = self.conv(x), io.BytesIO()
    torch.save(h.detach(), file)
    file.seek(0)
    return self.logits(h + torch.load(file))


def replaced(self: Net, x: Tensor) -> Tensor:
    h = self.conv(x)
    y = torch.zeros_like(h)
    y.data = h.detach() * 3
    return self.logits(h + y)


@pytest.mark.parametrize("body", [borrowed, stored, replaced])
@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_values_that_come_by_memory_are_no_constants(body: Callable[[Net, Tensor], Tensor], rules: str) -> None:
    with pytest.raises((hilrp.AuditError, hilrp.ModelError), match=r"depend|\.data =|on the reference"):
        hilrp.explain(net(body), pictures(), rules=rules)


def test_memory_of_the_models_own_may_change_hands() -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        y = torch.zeros(0, dtype=x.dtype)
        y.set_(self.head.bias.detach())
        return self.logits(x) + y

    found = hilrp.explain(net(body), pictures())
    assert float(found.ledger.residual.max()) < 1e-10


@torch.library.custom_op("hilrp_tests::twice_into", mutates_args=("y",))
def twice_into(x: Tensor, y: Tensor) -> None:
    """Writes twice a tensor into another."""
    y.copy_(x * 2)


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
@pytest.mark.parametrize("gradients", [True, False])
def test_an_unknown_operation_that_writes_is_named(rules: str, gradients: bool) -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        h = self.conv(x)
        y = torch.zeros_like(h)
        with torch.set_grad_enabled(gradients):
            torch.ops.hilrp_tests.twice_into(h.detach(), y)
        return self.logits(h + y)

    with pytest.raises(hilrp.AuditError, match="twice_into"):
        hilrp.explain(net(body), pictures(), rules=rules)


# Gradients that are changed -------------------------------------------------------------------------------------------


def with_hook(hook: Callable[[Tensor, Tensor], Any]) -> Net:
    def body(self: Net, x: Tensor) -> Tensor:
        h = self.conv(x)
        if h.requires_grad:
            h.register_hook(lambda g: hook(g, h.detach()))
        return self.logits(h)

    return net(body)


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_a_hook_that_moves_relevance_is_named(rules: str) -> None:
    """Under the plain rules it conserves, so that no ledger could show it."""
    model = with_hook(lambda g, h: (g * h).flip(-1) / h)
    with pytest.raises(hilrp.AuditError, match="hook on a tensor"):
        hilrp.explain(model, pictures(), rules=rules)
    with pytest.warns(hilrp.AuditWarning, match="hook on a tensor"):
        found = hilrp.explain(model, pictures(), rules="hilrp", audit="warn")
    assert found.unchecked


def test_a_hook_that_writes_to_gradients_is_named() -> None:
    with pytest.raises(hilrp.AuditError, match="hook on a tensor"):
        hilrp.explain(with_hook(lambda g, h: g.mul_(2) and None if g.numel() == 1 else g.mul_(2)), pictures())


def test_a_hook_that_looks_on_is_nobodys_business() -> None:
    seen: list[Tensor] = []
    found = hilrp.explain(with_hook(lambda g, h: seen.append(g)), pictures())
    assert len(seen) >= 1
    assert not found.notes


def test_a_modules_backward_hook_is_called_that() -> None:
    model = net(lambda self, x: self.logits(self.conv(x)))
    handle = model.conv.register_full_backward_hook(lambda module, given, taken: (given[0].flip(-1),))
    with pytest.raises(hilrp.AuditError, match="full backward hook"):
        hilrp.explain(model, pictures())
    handle.remove()
    hilrp.explain(model, pictures())


# Targets, batches, types ----------------------------------------------------------------------------------------------


def test_a_target_that_reads_numbers_out_is_unverified_on_a_reference() -> None:
    model = net(lambda self, x: self.logits(x))
    found = hilrp.explain(model, pictures(1), lambda output: output[:, 0] * float(output[0, 1]), rules="secant")
    assert any("target reads numbers" in reason for reason in found.unchecked)


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_samples_explained_one_at_a_time_say_that_they_see_each_other(rules: str) -> None:
    def mixed(self: Net, x: Tensor) -> Tensor:
        logits = self.logits(x)
        return logits - 0.5 * logits.mean(0, keepdim=True)

    note = "samples see each other: explained one at a time"
    assert any(note in each for each in hilrp.explain(net(mixed), pictures(), rules=rules, batch=1).notes)
    apart = net(lambda self, x: self.logits(x))
    assert not hilrp.explain(apart, pictures(), rules=rules, batch=1).notes


def test_a_coarse_type_beside_the_way_does_not_widen_the_tolerance() -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        x.bfloat16().sum()
        return self.logits(x)

    assert hilrp.explain(net(body), pictures()).tolerance == 1e-10
    on_the_way = net(lambda self, x: self.logits(self.conv(x).bfloat16().double()))
    assert hilrp.explain(on_the_way, pictures()).tolerance == 5e-2


def test_what_a_model_keeps_of_its_last_call_is_of_the_input() -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        self.kept = x
        return self.logits(x)

    model, x = net(body), pictures()
    hilrp.explain(model, x, rules="secant")
    assert torch.equal(model.kept, x)


# With modules that run again ------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer that uses a value from numpy, or a scratch tensor."""

    def __init__(self, numpy: bool) -> None:
        super().__init__()
        self.layer, self.numpy = nn.Linear(12, 12).double(), numpy

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x)
        if self.numpy:
            return h * torch.from_numpy(x.detach().numpy().mean(1, keepdims=True))
        scratch = torch.ones(12, dtype=x.dtype)
        h = h * scratch
        scratch.mul_(2)
        return h + scratch


@pytest.mark.parametrize("recomputed", [None, ["1"]])
def test_values_from_elsewhere_are_named_in_blocks_that_run_again(recomputed: list[str] | None) -> None:
    model = nn.Sequential(nn.Flatten(), Block(numpy=True), nn.Linear(12, 4).double()).eval()
    with pytest.raises(hilrp.AuditError, match="depend on the input"):
        hilrp.Explainer(model, checkpoint=recomputed).explain(pictures())


def test_scratch_tensors_may_be_written_to_in_blocks_that_run_again() -> None:
    model = nn.Sequential(nn.Flatten(), Block(numpy=False), nn.Linear(12, 4).double()).eval()
    plain, again = (hilrp.Explainer(model, checkpoint=paths).explain(pictures()) for paths in (None, ["1"]))
    assert torch.allclose(plain.relevance, again.relevance, rtol=0, atol=1e-14)
