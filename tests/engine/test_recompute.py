"""Modules that run again in the backward pass: the same explanation, less memory."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

import hilrp
from hilrp.targets import Contrast


def a_model(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name, **options).eval().double()


VIT = {"name": "vit_tiny_patch16_224", "img_size": 64, "depth": 4, "num_classes": 7}
SWIN = {
    "name": "swin_tiny_patch4_window7_224",
    "img_size": 56,
    "window_size": 7,
    "depths": (2, 2),
    "embed_dim": 24,
    "num_heads": (2, 2),
    "num_classes": 7,
}


def some_input(size: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(
    ("rules", "reference", "passes"),
    [("hilrp", None, 1), ("epsilon", None, 1), ("secant", None, 1), ("epsilon", "blurred", 1), ("secant", 0.0, 4)],
)
@pytest.mark.parametrize(("made", "size"), [(VIT, 64), (SWIN, 56)], ids=["vit", "swin"])
def test_the_explanation_is_the_same(
    made: dict[str, object], size: int, rules: str, reference: object, passes: int
) -> None:
    model, x = a_model(**made), some_input(size)
    before = hilrp.Explainer(model, rules, reference).explain(x, Contrast([1, 2, 3], 0), passes=passes)
    after = hilrp.Explainer(model, rules, reference, recompute="auto").explain(x, Contrast([1, 2, 3], 0), passes=passes)
    assert before.notes == after.notes
    assert torch.equal(before.relevance, after.relevance)
    assert torch.equal(before.output, after.output)
    assert before.stages.keys() == after.stages.keys()
    assert all(torch.equal(before.stages[name], after.stages[name]) for name in before.stages)
    assert all(torch.allclose(before.trace[name], after.trace[name], rtol=1e-12) for name in before.trace)
    assert before.ledger.entries.keys() == after.ledger.entries.keys()
    assert all(
        torch.allclose(before.ledger.entries[k], after.ledger.entries[k], rtol=1e-12) for k in before.ledger.entries
    )
    assert float(after.ledger.residual.max()) < 1e-12


def test_itemised_books_close_inside_of_what_runs_again() -> None:
    model, x = a_model(**SWIN), some_input(56, 2)
    before = hilrp.Explainer(model, itemised=True).explain(x).ledger
    after = hilrp.Explainer(model, itemised=True, recompute="auto").explain(x).ledger
    assert before.leaks.keys() == after.leaks.keys()
    assert float(after.leak.max()) < 1e-12


def kept(model: nn.Module, x: Tensor, **options: object) -> int:
    """Bytes that the graph keeps for the backward pass, at most at one time."""
    explainer = hilrp.Explainer(model, audit="off", stages=None, **options)
    explainer.explain(x, 0)  # the first time it is found out what blocks return
    now = most = 0

    class Held:
        def __init__(self, t: Tensor) -> None:
            nonlocal now, most
            self.t, self.size = t, t.numel() * t.element_size()
            now += self.size
            most = max(most, now)

        def __del__(self) -> None:
            nonlocal now
            now -= self.size

    with saved_tensors_hooks(Held, lambda held: held.t):
        explainer.explain(x, 0)
    return most


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_it_keeps_less(rules: str) -> None:
    model = a_model(**{**VIT, "depth": 8})
    x = some_input(64)
    assert kept(model, x, rules=rules, recompute="auto") < 0.4 * kept(model, x, rules=rules)


def test_how_deep_layers_are_is_known_in_what_runs_again() -> None:
    """The bounded rule of a block depends on where in the model it is, and a head that is not asked counts nothing."""

    class TwoHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(12, 8)
            self.parts = nn.ModuleList([Part(), Part(), Part()])
            self.heads = nn.ModuleList([nn.Linear(8, 3), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))])

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.stem(x.flatten(1))
            for part in self.parts:
                z, _ = part(z)
            return self.heads[0](z), self.heads[1](z)

    torch.manual_seed(0)
    model, x = TwoHeads().double().eval(), some_input(2)
    for head in range(2):

        def asked(output: tuple[Tensor, Tensor], head: int = head) -> Tensor:
            return output[head][:, 1]

        plain, again = hilrp.Explainer(model, "secant"), hilrp.Explainer(model, "secant", recompute="auto")
        before = plain.explain(x, asked)
        for _ in range(2):  # the second time what was found is remembered
            after = again.explain(x, asked)
            torch.testing.assert_close(before.relevance, after.relevance, rtol=1e-12, atol=1e-14)
            assert float(after.ledger.residual.max()) < 1e-12


def test_named_modules_run_again_and_no_others() -> None:
    model, x, runs = a_model(**VIT), some_input(64), []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=i: runs.append(i))
    explainer = hilrp.Explainer(model, audit="off", recompute=["blocks.1", "blocks.2"], rules="hilrp")
    explainer.explain(x, 0)
    assert sorted(runs) == [0, 1, 1, 1, 2, 2, 2, 3]  # the first time it is found out what they return
    runs.clear()
    explainer.explain(x, 0)
    assert sorted(runs) == [0, 1, 1, 2, 2, 3]


class Twice(nn.Module):
    """A block that takes a keyword, returns two tensors, and is used twice; one output is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.part = Part()
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, unused = self.part(x.flatten(1)[:, :8], scale=2.0)
        b, _ = self.part(a.relu_(), scale=unused.detach().mean(1, keepdim=True))
        return self.head(a + b)


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor, scale: float | Tensor = 1.0) -> tuple[Tensor, Tensor]:
        y = self.second(nn.functional.gelu(self.first(x)))
        return x + y * scale, y


def test_a_module_used_twice_with_keywords_and_two_outputs() -> None:
    torch.manual_seed(0)
    model, x = Twice().double().eval(), some_input(4)
    before, after = (hilrp.Explainer(model, recompute=c).explain(x, 1) for c in (None, ["part"]))
    assert torch.allclose(before.relevance, after.relevance, rtol=1e-12)  # sums in another order
    assert float(after.ledger.residual.max()) < 1e-12


def test_under_autocast_it_runs_again_as_it_ran() -> None:
    model, x = a_model(**VIT).float(), some_input(64).float()
    with torch.autocast("cpu", torch.bfloat16):
        before, after = (hilrp.Explainer(model, recompute=c).explain(x, 1) for c in (None, "auto"))
    assert torch.equal(before.relevance, after.relevance)


def test_what_it_does_not_go_with_is_refused() -> None:
    model = a_model(**VIT)
    with pytest.raises(hilrp.InputError, match=r"'blocks.9'.*blocks.0"):
        hilrp.Explainer(model, recompute=["blocks.9"])
    with pytest.raises(hilrp.InputError, match="recompute='all'"):
        hilrp.Explainer(model, recompute="all")


class Writing(nn.Module):
    """Writes to its input, which the caller reads again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(x.add_(self.a(x)))


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.head = part, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)[:, :8] * 1
        return self.head(self.part(x) + x)


def test_a_module_that_writes_to_its_input_is_refused() -> None:
    model, x = Around(Writing()).double().eval(), some_input(4)
    assert torch.allclose(hilrp.Explainer(model).explain(x).output, model(x))
    with pytest.raises(hilrp.ModelError, match=r"`part` writes to its input.*recompute="):
        hilrp.Explainer(model, recompute=["part"]).explain(x)


class Once(nn.Module):
    """Runs but once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.ran = nn.Linear(8, 8), False

    def forward(self, x: Tensor) -> Tensor:
        if self.ran:
            raise TypeError("no cache")
        self.ran = True
        return self.a(x)


@pytest.mark.parametrize("rules", ["hilrp", "secant"])
def test_a_module_that_can_not_run_a_second_time_is_named(rules) -> None:
    with pytest.raises(hilrp.ModelError, match=r"`part` could not run a second time: TypeError: no cache.*recompute="):
        hilrp.Explainer(Around(Once()).double().eval(), rules, recompute=["part"]).explain(some_input(4))


class Attending(nn.Module):
    """One tensor is query, key and value; torch takes another kernel where they are not."""

    def __init__(self) -> None:
        super().__init__()
        self.same: list[bool] = []
        self.inner = Inner(self.same)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)


class Inner(nn.Module):
    def __init__(self, same: list[bool]) -> None:
        super().__init__()
        self.a, self.same = nn.Linear(8, 8), same

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.same.append(q is k is v)
        return self.a(q) + self.a(k) * 2 + self.a(v)


def test_inputs_that_are_one_tensor_stay_one() -> None:
    model, x = Around(Attending()).double().eval(), some_input(4)
    before, after = (
        hilrp.Explainer(model, audit="off", recompute=c, rules="hilrp").explain(x, 1) for c in (None, ["part.inner"])
    )
    assert model.part.same == [True] * 4
    assert torch.allclose(before.relevance, after.relevance, rtol=1e-12)


def test_a_model_without_blocks() -> None:
    with pytest.raises(hilrp.InputError, match=r"no blocks of one class in a row.*Name the modules"):
        hilrp.Explainer(nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).eval(), recompute="auto")


def test_weights_that_change_within_one_autocast() -> None:
    """Autocast's own cache would give the module its first run with the old ones."""
    model, x = a_model(**VIT).float(), some_input(64).float()
    explainer = hilrp.Explainer(model, recompute="auto")
    with torch.autocast("cpu", torch.bfloat16):
        explainer.explain(x, 1)
        with torch.no_grad():
            model.blocks[0].mlp.fc1.weight.mul_(3)
        after = explainer.explain(x, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(after.output, hilrp.Explainer(model).explain(x, 1).output)


class Masking(nn.Module):
    """Returns numbers with a mask and an index of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.other(self.layer(x).tanh())
        return h, h > 0, h.argmax(-1)


def test_masks_and_indices_that_come_out_of_what_runs_again() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part, self.table, self.head = Masking(), nn.Embedding(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            h, mask, best = self.part(x.flatten(1)[:, :8])
            return self.head(torch.where(mask, h, 0.1 * h) * self.table(best))

    torch.manual_seed(0)
    model, x = Model().double().eval(), some_input(4)
    before = hilrp.Explainer(model, "secant").explain(x, 1)
    after = hilrp.Explainer(model, "secant", recompute=["part", "table"]).explain(x, 1)
    torch.testing.assert_close(before.relevance, after.relevance, rtol=1e-12, atol=1e-14)
    assert torch.equal(before.ledger.entries["reference"], after.ledger.entries["reference"])
