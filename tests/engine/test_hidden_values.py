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
from helpers.nets import Net, net, pictures

# Numbers that leave as a shape, or as text -------------------------------------------------------------------------


def count(x: Tensor) -> Tensor:
    """A whole number that depends on the input."""
    return (x > 0).sum()


SHAPES: dict[str, Callable[[Tensor], int]] = {
    "nonzero": lambda x: (x > 0).nonzero().shape[0],
    "arange": lambda x: len(torch.arange(count(x))),
    "one_hot": lambda x: torch.nn.functional.one_hot(count(x)).shape[0],
    "new_zeros": lambda x: len(x.new_zeros(count(x))),
    "zeros": lambda x: len(torch.zeros(count(x))),
    "tensor_split": lambda x: len(torch.ones(12).tensor_split(count(x).cpu())[0]) + 1,
    "argwhere": lambda x: len(torch.argwhere(x > 0)),
    "where": lambda x: len(torch.where(x > 0)[0]),
    "getitem": lambda x: x[x > 0].numel(),
    "masked_select": lambda x: torch.masked_select(mask=x > 0, input=torch.ones_like(x)).numel(),
    "unique": lambda x: len(torch.unique(x.round())),
    "repeat_interleave": lambda x: len(torch.repeat_interleave((x[0] > 0).flatten().long())),
}


@pytest.mark.parametrize(
    "size", [lambda x: torch.ones(100)[: count(x)].numel(), lambda x: x.expand(100, 3, 2, 2)[count(x) :].shape[0]]
)
def test_a_slice_that_depends_on_values_is_named(size: Callable[[Tensor], int]) -> None:
    """Also under a reference on which nothing was found the first time."""
    model, x = net(lambda self, x: self.logits(x) * size(x)), pictures(1)
    assert any("`getitem`" in note for note in hilrp.explain(model, x, 0, rules="hilrp").notes)
    with pytest.raises((hilrp.AuditError, hilrp.ModelError), match="on the reference"):
        hilrp.explain(model, x, 0, "secant", reference=x.abs())


def test_weights_of_a_count_do_not_shape_it() -> None:
    weights = torch.tensor([0, 1, 1, 2])
    model = net(lambda self, x: self.logits(x) * (1 + len(torch.bincount(weights, x.detach().flatten()[:4]))))
    assert not any("shape" in note for note in hilrp.explain(model, pictures(1), rules="hilrp").notes)


# Values that are taken for constants
# -----------------------------------------------------------------------------------

FILLED: dict[str, Callable[[Tensor], Tensor]] = {
    "full_like": lambda x: torch.full_like(x[:, 0, 0, :1], x.detach().mean() * 3),
    "new_full": lambda x: x.new_full((1, 1), x.detach().mean() * 3),
    "new_tensor": lambda x: x.new_tensor([x.detach().mean() * 3, x.detach().amax(), 1.0, 2.0]),
    "full": lambda x: torch.full((1,), x.detach().mean() * 3),
}


@pytest.mark.parametrize("name", FILLED)
def test_what_is_filled_with_values_of_the_input_is_a_gate(name: str) -> None:
    found = hilrp.explain(net(lambda self, x: self.logits(x) + FILLED[name](x)), pictures(1), 0, rules="hilrp")
    assert float(found.ledger.entries["gate"].abs()) > 1e-3
    assert "constant" not in found.ledger.entries


WHOLE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": lambda z, x: z + (x * 100).long().sum(),
    "sub": lambda z, x: z - x.flatten(1).argmax(1, keepdim=True),
    "where": lambda z, x: torch.where(torch.tensor([True, False, True, False]), count(x), z),
    "cat": lambda z, x: torch.cat([count(x).view(1, 1), z], 1),
    "clamp": lambda z, x: z.clamp(min=count(x)),
    "masked_fill": lambda z, x: z.masked_fill(torch.tensor([True, False, True, False]), count(x)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_of_the_input_are_no_constants(name: str) -> None:
    model = net(lambda self, x: WHOLE[name](self.logits(x), x) + self.logits(x).sum(1, keepdim=True))
    found = hilrp.explain(model, pictures(1), 0, rules="hilrp")
    assert any("whole numbers" in note for note in found.notes), found.notes
    assert "gate" in found.ledger.entries
    assert not {"constant", "activation at zero"} & set(found.ledger.entries)


MASK = torch.tensor([True, False, True, False])
DETACHED: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "where": lambda self, x: torch.where(MASK, x.mean().detach(), self.logits(x)),
    "masked_fill": lambda self, x: self.logits(x).masked_fill(MASK, x.detach().mean()),
    "cat": lambda self, x: torch.cat([x.detach().mean((1, 2, 3))[:, None], self.logits(x)], 1),
    "bias": lambda self, x: torch.nn.functional.linear(x.flatten(1), self.head.weight, x.detach().flatten()[:4]),
}


@pytest.mark.parametrize("name", DETACHED)
def test_detached_values_of_the_input_are_gates(name: str) -> None:
    found = hilrp.explain(
        net(lambda self, x: DETACHED[name](self, x) + self.logits(x).sum(1, keepdim=True)),
        pictures(1),
        0,
        rules="hilrp",
    )
    assert float(found.ledger.entries["gate"].abs()) > 1e-6
    assert "constant" not in found.ledger.entries


# Shapes, once more
# -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_depends_on_values_is_named(name: str) -> None:
    model = net(lambda self, x: self.logits(x) * SHAPES[name](x))
    found = hilrp.explain(model, pictures(1), rules="hilrp")
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


MEMORY = [
    (borrowed, "hilrp", hilrp.AuditError, "hilrp did not see how they were made"),
    (borrowed, "secant", hilrp.AuditError, "through operations that hilrp did not see"),
    (stored, "hilrp", hilrp.AuditError, "hilrp did not see how they were made"),
    (stored, "secant", hilrp.AuditError, "hilrp did not see how they were made"),
    (replaced, "hilrp", hilrp.ModelError, "sets a tensor's `.data = ...`"),
    (replaced, "secant", hilrp.ModelError, "sets a tensor's `.data = ...`"),
]


@pytest.mark.parametrize(("body", "rules", "kind", "reason"), MEMORY)
def test_values_that_come_by_memory_are_no_constants(
    body: Callable[[Net, Tensor], Tensor], rules: str, kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=re.escape(reason)):
        hilrp.explain(net(body), pictures(), rules=rules)


def written_unseen(self: Net, x: Tensor, touch: bool) -> Tensor:
    memory = torch.ones(12, dtype=x.dtype)
    part = memory[:2]
    with torch._C.DisableTorchFunction():
        memory[2:] = x.detach().flatten(1)[0, 2:]
    if touch:
        part.view(-1)
        memory[:1].zero_()
    return self.head(x.flatten(1) * memory)


@pytest.mark.parametrize("touch", [False, True])
def test_a_write_that_nobody_saw_stays_unseen_when_other_parts_are_touched(touch: bool) -> None:
    with pytest.raises(hilrp.AuditError, match="did not see how they were made"):
        hilrp.explain(net(lambda self, x: written_unseen(self, x, touch)), pictures(1))


def unseen_mean(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.detach().mean((1, 2, 3))[:, None]


def unseen_chance() -> Tensor:
    with torch._C.DisableTorchFunction():
        return 1e-9 * torch.rand(1, dtype=torch.float64)


def test_chance_does_not_hide_what_depends_on_the_input() -> None:
    model = net(lambda self, x: self.logits(x) * unseen_chance() + self.logits(x) + unseen_mean(x))
    with pytest.raises(hilrp.AuditError, match="did not see how they were made"):
        hilrp.explain(model, pictures())


def test_what_could_not_be_checked_is_unchecked_the_second_time_too() -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        if not torch.equal(x.detach(), pictures()):
            raise ValueError("no such picture")
        return self.logits(x) + unseen_mean(x)

    explainer = hilrp.Explainer(net(body), audit="warn", rules="hilrp")
    for _ in range(2):
        assert any("outside the pass" in reason for reason in explainer.explain(pictures()).unchecked)


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
    def hook(g: Tensor, h: Tensor) -> None:
        g.mul_(2)

    with pytest.raises(hilrp.AuditError, match="hook on a tensor"):
        hilrp.explain(with_hook(hook), pictures())


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
    with_masked = net(lambda self, x: mixed(self, x).masked_fill(MASK, float("-inf")))
    assert any(note in each for each in hilrp.explain(with_masked, pictures(), rules=rules, batch=1).notes)
    apart = net(lambda self, x: self.logits(x))
    assert not hilrp.explain(apart, pictures(), rules=rules, batch=1).notes


def short_of_memory(self: Net, x: Tensor) -> Tensor:
    if len(x) > 1:
        raise torch.OutOfMemoryError("no room for two")
    return self.logits(x)


def test_one_sample_at_a_time_needs_no_memory_for_two() -> None:
    found = hilrp.explain(net(short_of_memory), pictures(), batch=1)
    assert any("not checked: whether samples see each other" in note for note in found.notes)


@pytest.mark.parametrize("second", [lambda x: x[:, :0], lambda x: x[..., : 1 + int(x.sum() > 0)]])
def test_one_sample_at_a_time_with_other_outputs(second: Callable[[Tensor], Tensor]) -> None:
    model = net(lambda self, x: (self.logits(x), second(x)))  # type: ignore[arg-type,return-value]
    assert hilrp.explain(model, pictures(), batch=1).map.shape == (2, 2, 2)


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


class Keeping(nn.Module):
    """A block that adds what it finds in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.skip = nn.Linear(12, 12).double(), None

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu() + self.skip


def test_a_block_that_uses_what_it_was_not_given_can_not_run_again() -> None:
    def body(self: Net, x: Tensor) -> Tensor:
        h = self.conv(x).flatten(1)
        self.block.skip = h * 2
        return self.head(self.block(h))

    model = net(body)
    model.block = Keeping()
    hilrp.explain(model, pictures())
    with pytest.raises(hilrp.ModelError, match="wasn't called with"):
        hilrp.Explainer(model, recompute=["block"]).explain(pictures())


@pytest.mark.parametrize("recomputed", [None, ["1"]])
def test_values_from_elsewhere_are_named_in_blocks_that_run_again(recomputed: list[str] | None) -> None:
    model = nn.Sequential(nn.Flatten(), Block(numpy=True), nn.Linear(12, 4).double()).eval()
    with pytest.raises(hilrp.AuditError, match="depend on the input"):
        hilrp.Explainer(model, recompute=recomputed).explain(pictures())


def test_scratch_tensors_may_be_written_to_in_blocks_that_run_again() -> None:
    model = nn.Sequential(nn.Flatten(), Block(numpy=False), nn.Linear(12, 4).double()).eval()
    plain, again = (hilrp.Explainer(model, recompute=paths).explain(pictures()) for paths in (None, ["1"]))
    assert torch.allclose(plain.relevance, again.relevance, rtol=0, atol=1e-14)
