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
SWIN = {"name": "swin_tiny_patch4_window7_224", "img_size": 56, "window_size": 7, "depths": (2, 2), "embed_dim": 24, "num_heads": (2, 2), "num_classes": 7}  # fmt: skip


def some_input(size: int, batch: int = 3) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("rules", ["hilrp", "epsilon"])
@pytest.mark.parametrize(("made", "size"), [(VIT, 64), (SWIN, 56)], ids=["vit", "swin"])
def test_the_explanation_is_the_same(made: dict[str, object], size: int, rules: str) -> None:
    model, x = a_model(**made), some_input(size)
    before = hilrp.Explainer(model, rules).explain(x, Contrast([1, 2, 3], 0))
    after = hilrp.Explainer(model, rules, checkpoint="auto").explain(x, Contrast([1, 2, 3], 0))
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
    after = hilrp.Explainer(model, itemised=True, checkpoint="auto").explain(x).ledger
    assert before.leaks.keys() == after.leaks.keys()
    assert float(after.leak.max()) < 1e-12


def kept(model: nn.Module, x: Tensor, **options: object) -> int:
    """Bytes that the graph keeps for the backward pass, at most at one time."""
    explainer = hilrp.Explainer(model, audit="off", stages=None, **options)
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


def test_it_keeps_less() -> None:
    model = a_model(**{**VIT, "depth": 8})
    x = some_input(64)
    assert kept(model, x, checkpoint="auto") < 0.4 * kept(model, x)


def test_named_modules_run_again_and_no_others() -> None:
    model, x, runs = a_model(**VIT), some_input(64), []
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, i=i: runs.append(i))
    hilrp.Explainer(model, checkpoint=["blocks.1", "blocks.2"]).explain(x, 0)
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
    before, after = (hilrp.Explainer(model, checkpoint=c).explain(x, 1) for c in (None, ["part"]))
    assert torch.allclose(before.relevance, after.relevance, rtol=1e-12)  # sums in another order
    assert float(after.ledger.residual.max()) < 1e-12


def test_under_autocast_it_runs_again_as_it_ran() -> None:
    model, x = a_model(**VIT).float(), some_input(64).float()
    with torch.autocast("cpu", torch.bfloat16):
        before, after = (hilrp.Explainer(model, checkpoint=c).explain(x, 1) for c in (None, "auto"))
    assert torch.equal(before.relevance, after.relevance)


def test_what_it_does_not_go_with_is_refused() -> None:
    model = a_model(**VIT)
    with pytest.raises(hilrp.InputError, match=r"'blocks.9'.*blocks.0"):
        hilrp.Explainer(model, checkpoint=["blocks.9"])
    with pytest.raises(hilrp.InputError, match="checkpoint='all'"):
        hilrp.Explainer(model, checkpoint="all")
    with pytest.raises(hilrp.InputError, match="without a reference"):
        hilrp.Explainer(model, "secant", checkpoint="auto")
