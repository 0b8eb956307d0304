"""What an attack on the promise found: each wrong map is made right, named, or refused."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import hilrp
from hilrp.attribution.plain_passes import separating

F64 = torch.float64


def made(kind: type[nn.Module], *args: object) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args).to(F64).eval()


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 6, 6, dtype=F64, generator=torch.Generator().manual_seed(seed))


class Two(nn.Module):
    """Two linear layers without a bias, with something between them."""

    def __init__(self, between=lambda self, h: h.relu()) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(108, 12, bias=False), nn.Linear(12, 5, bias=False)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self, self.first(x.flatten(1))))


# Numbers that are read out where nobody sees it ---------------------------------------------------------------------


@torch.jit.script
def scripted_peak(x: Tensor) -> float:
    return float(x.abs().max())


def peak_in_a_thread(x: Tensor) -> float:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: float(x.detach().abs().amax())).result()


def peak_in_a_transform(x: Tensor) -> float:
    found = []

    def norm(t: Tensor) -> Tensor:
        found.append(float(x.detach().abs().amax()))
        return (t**2).sum()

    torch.func.grad(norm)(torch.ones(2, dtype=F64))
    return found[0]


@pytest.mark.parametrize("peak", [scripted_peak, peak_in_a_thread, peak_in_a_transform])
def test_the_reference_is_checked_at_every_call(peak) -> None:
    """The first explanation is harmless: on both inputs the model takes the same way."""

    class Gated(Two):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (3.0 if peak(x) > 8 else 1.0)

    model, x = made(Gated), pictures(1) + 1
    explainer = hilrp.Explainer(model, "secant")
    found = explainer.explain(x, 1)
    with torch.no_grad():
        difference = (model(x) - model(found.reference))[:, 1]
    assert torch.allclose(found.relevance.sum().reshape(1), difference)
    with pytest.raises(hilrp.AuditError, match="on the reference would be"):
        explainer.explain(4 * x, 1)


# Samples that see each other ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(2, 40))
def test_any_two_samples_are_told_apart(count: int) -> None:
    sets = separating(count)
    assert sets.shape[1] == count
    for i in range(count):
        for j in range(count):
            assert i == j or bool((sets[:, i] & ~sets[:, j]).any())


class Groups(Two):
    """Statistics over every second sample, as StyleGAN's discriminator has them."""

    def forward(self, x: Tensor) -> Tensor:
        groups = self.first(x.flatten(1)).view(4, -1, 12)
        return self.head((groups / (groups.std(0, keepdim=True) + 0.1)).reshape(len(x), 12).relu())


class Pairs(Two):
    """A gate made of the sample that is half a batch away."""

    def forward(self, x: Tensor) -> Tensor:
        h, half = self.first(x.flatten(1)), len(x) // 2
        return self.head(h * torch.cat([h[half:], h[:half]]).sigmoid())


class OneSees(Two):
    """A gate of the first sample is made of the fourth, and no other sees any.

    The first set of `separating` has both.
    """

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        gate = torch.zeros(8, 8, dtype=z.dtype)
        gate[0, 3] = 1.0
        return z * (1 + gate @ z).sigmoid()


@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
@pytest.mark.parametrize(("kind", "count"), [(Groups, 8), (Pairs, 4), (Pairs, 8), (OneSees, 8)])
def test_samples_that_see_each_other_at_any_distance(kind, count, rules) -> None:
    model, x = made(kind), pictures(count)
    found = hilrp.explain(model, x, 1, rules)
    assert any("samples see each other" in note for note in found.notes)
    assert not hilrp.audit(model, x).passed or any("samples see" in note for note in hilrp.audit(model, x).notes)


class Running(Two):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).cumsum(0)


class Rolled(Two):
    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return z + z.roll(2, 0)


@pytest.mark.parametrize(
    ("kind", "batch", "rules"), [(Running, 1, "hilrp"), (Rolled, 2, "secant"), (Rolled, 3, "hilrp")]
)
def test_parts_are_compared_with_the_whole_batch(kind, batch, rules) -> None:
    found = hilrp.explain(made(kind), pictures(4), 1, rules, batch=batch)
    (note,) = [note for note in found.notes if "samples see each other: explained" in note]
    assert ("one at a time" if batch == 1 else f"in parts of {batch}") in note
    found = hilrp.explain(made(Two), pictures(4), 1, rules, batch=batch)
    assert not any("samples see" in note or "not checked" in note for note in found.notes)


# Modules that run again -----------------------------------------------------------------------------------------------


class Skipping(nn.Module):
    def __init__(self, way) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(12, 12), nn.Linear(12, 12), way

    def forward(self, h: Tensor) -> Tensor:
        return self.way(self, h)


WAYS = {
    "its input": lambda m, h: h,
    "a view of its input": lambda m, h: h.view(-1, 12),
    "a part of its input": lambda m, h: h[:, :],
    "something new": lambda m, h: h + m.b(m.a(h).relu()),
}


@pytest.mark.parametrize("way", WAYS)
def test_blocks_that_return_their_input(way) -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(108, 12), nn.Linear(12, 5)
            self.blocks = nn.Sequential(Skipping(WAYS[way]), Skipping(WAYS[way]))

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.flatten(1))
            y = self.blocks(h)
            y.relu_()
            return self.head(h + y)

    model, x = made(Written), pictures(2)
    whole = hilrp.explain(model, x, 1)
    again = hilrp.Explainer(model, recompute="auto").explain(x, 1)
    assert torch.equal(again.score, model(x)[:, 1])
    assert torch.allclose(again.relevance, whole.relevance, rtol=0, atol=1e-12)


def squeeze(last) -> type[nn.Module]:
    class Gate(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 4, bias=False), nn.Linear(4, 12, bias=False)

        def forward(self, h: Tensor) -> Tensor:
            return last(self.b(self.a(h).relu()))

    return Gate


@pytest.mark.parametrize("last", [torch.sigmoid, lambda t: t.softmax(-1), torch.relu, lambda t: t])
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "attnlrp"])
def test_gates_that_run_again_are_gates(last, rules) -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(108, 12, bias=False), nn.Linear(12, 5, bias=False)
            self.gates = nn.ModuleList(squeeze(last)() for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.flatten(1))
            for gate in self.gates:
                h = h + h * gate(h)
            return self.head(h)

    model, x = made(Gated), pictures(3)
    whole = hilrp.explain(model, x, 1, rules)
    explainer = hilrp.Explainer(model, rules, recompute=["gates.0", "gates.1", "gates.2"])
    for _ in range(2):  # the first time it is found out what a block returns
        again = explainer.explain(x, 1)
        assert torch.allclose(again.relevance, whole.relevance, rtol=0, atol=1e-12 * float(whole.relevance.abs().max()))
        assert set(again.ledger.entries) == set(whole.ledger.entries)


def test_a_block_that_counts_its_calls_is_named() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.calls = nn.Linear(12, 12), nn.Linear(12, 12), 0

        def forward(self, h: Tensor) -> Tensor:
            self.calls += 1
            return self.b(self.a(h).relu()) * self.calls

    class Model(Two):
        def __init__(self) -> None:
            super().__init__(lambda self, h: self.blocks(h))
            self.blocks = nn.Sequential(Counting(), Counting())

    with pytest.raises(hilrp.ModelError, match=r"something else when it ran a second time.*recompute="):
        hilrp.Explainer(made(Model), recompute="auto", audit="warn").explain(pictures(1), 1)


# Rules of the user's --------------------------------------------------------------------------------------------------


class Flip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.flip(1)

    @staticmethod
    def backward(ctx, g):
        return g.flip(1)


class Flipping(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h.flip(1)


@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
def test_the_native_gradient_of_a_registered_class(rules) -> None:
    x, twin = pictures(4), made(Two, lambda self, h: h + 0.5 * h.flip(1))
    expected = hilrp.explain(twin, x, 1, rules)
    flipping = Flipping()
    for target, flip in ((Flip, Flip.apply), (Flipping, flipping)):
        model = made(Two, lambda self, h, flip=flip: h + 0.5 * flip(h))
        with hilrp.register(target, "reindexing"):
            found = hilrp.explain(model, x, 1, rules)
        assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)
        assert set(found.ledger.entries) == set(expected.ledger.entries)


# Writes and hooks -----------------------------------------------------------------------------------------------------


def without_gradients(self, h: Tensor) -> Tensor:
    g = h * 2
    with torch.no_grad():
        g[:, :1] = 0.0
    return h + g


def view_without_gradients(self, h: Tensor) -> Tensor:
    g = h * 2
    part, other = g[:, :1], g[:, 1:]
    with torch.no_grad():
        part.zero_()
    return h + torch.cat([part, other], 1)


def twin(self, h: Tensor) -> Tensor:
    g = h * 2
    return h + torch.cat([torch.zeros_like(g[:, :1]), g[:, 1:]], 1)


@pytest.mark.parametrize("between", [without_gradients, view_without_gradients])
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
@pytest.mark.parametrize("itemised", [False, True])
def test_what_is_not_written_to_keeps_its_graph(between, rules, itemised) -> None:
    x = pictures(2)
    found, expected = (hilrp.explain(made(Two, own), x, 1, rules, itemised=itemised) for own in (between, twin))
    assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
def test_old_hooks_on_modules_are_named() -> None:
    model, x = made(Two), pictures(2)
    model.head.register_backward_hook(lambda module, given, got: (given[0].flip(0), *given[1:]))
    with pytest.raises(hilrp.AuditError, match=r"`head`.*register_backward_hook"):
        hilrp.explain(model, x, 1)


def test_hooks_on_the_graph_are_told_of() -> None:
    def between(self, h: Tensor) -> Tensor:
        value = h.detach()
        h.grad_fn.register_prehook(lambda grads: ((grads[0] * value).flip(1) / value,))  # what it loses here is there
        return h.relu()

    found = hilrp.explain(made(Two, between), pictures(2), 1, "hilrp")
    assert {str(verdict) for verdict in found.verdicts} == {"unverified"}
    assert any("grad_fn" in reason for reason in found.unchecked)


# What a model keeps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seen_before", [False, True])
def test_buffers_that_another_thread_writes(seen_before) -> None:
    class Threaded(Two):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.zeros(5))

        def forward(self, x: Tensor) -> Tensor:
            def write() -> None:
                with torch.no_grad():
                    self.held.data.copy_(x.flatten(1).mean(0)[:5])

            thread = threading.Thread(target=write)
            thread.start()
            thread.join()
            return super().forward(x) + self.held

    model, x = made(Threaded), pictures(1)
    if seen_before:
        model(x)
    with pytest.raises(hilrp.AuditError, match="held of the model depends on the input"):
        hilrp.explain(model, x, 1)


def test_the_explained_pass_leaves_buffers_alone() -> None:
    class Mean(Two):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            self.mean.mul_(0.5).add_(0.5 * x.detach().abs().mean())
            return super().forward(x) / self.mean

    model = made(Mean)
    found = hilrp.explain(model, pictures(1), 1, audit="off")
    assert float(model.mean) == 1
    assert torch.equal(found.score, model(pictures(1))[:, 1])


def test_several_outputs_are_told_of() -> None:
    class Features(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.first(x.flatten(1))
            return h, self.head(h)

    found = hilrp.explain(made(Features), pictures(2))
    assert any("several tensors of scores: the first, of shape (2, 12)" in note for note in found.notes)


# Honest models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "between",
    [
        lambda self, h: torch.as_tensor(h).relu(),
        lambda self, h: torch.asarray(h).relu(),
        lambda self, h: torch.ops.aten.add.Scalar(h, 2.0, 3),
    ],
)
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
def test_honest_calls(between, rules) -> None:
    found = hilrp.explain(made(Two, between), pictures(2), 1, rules)
    assert float(found.ledger.residual.max()) < 1e-10


# The second attack ----------------------------------------------------------------------------------------------------


class Beside(nn.Module):
    """A branch that the engine doesn't see, made with weights that could be trained."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(108, 12, bias=False), nn.Linear(12, 5, bias=False)
        self.side = torch.jit.script(nn.Linear(108, 12, bias=False)) if way == "script" else nn.Linear(108, 12)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        flat = x.detach().flatten(1)
        if self.way == "thread":
            with ThreadPoolExecutor(1) as pool:
                side = pool.submit(self.side, flat).result()
        else:
            side = torch.vmap(self.side)(flat) if self.way == "vmap" else self.side(flat)
        return self.head(2 * self.first(x.flatten(1)) + side)


@pytest.mark.parametrize("way", ["thread", "vmap", "script"])
@pytest.mark.parametrize("trainable", [True, False])
def test_unseen_branches_with_weights(way, trainable) -> None:
    with pytest.raises(hilrp.AuditError):
        hilrp.explain(made(Beside, way).requires_grad_(trainable), pictures(1), 3)


def test_a_block_that_leaves_a_tensor_behind() -> None:
    class Leaving(Skipping):
        def __init__(self) -> None:
            super().__init__(None)

        def forward(self, h: Tensor) -> Tensor:
            self.kept = self.a(h)
            return h + self.b(self.kept.relu())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(108, 12, bias=False), nn.Linear(12, 5, bias=False)
            self.blocks = nn.Sequential(Leaving(), Leaving())

        def forward(self, x: Tensor) -> Tensor:
            h = self.blocks(self.first(x.flatten(1)))
            return self.head(h + self.blocks[0].kept)

    with pytest.raises(hilrp.HilrpError):
        hilrp.Explainer(made(Model), "epsilon", recompute="auto").explain(pictures(1), 1)


def _written(write):
    def between(self, h: Tensor) -> Tensor:
        g = h * 2
        with torch.no_grad():
            write(g)
        return h + g

    return between


def _by_list(g: Tensor) -> None:
    g[:, [0, 1, 2, 3, 4, 5]] = 0.0


def _by_mask(g: Tensor) -> None:
    g[:, torch.arange(12) < 6] = 0.0


WRITES = {
    "list": _by_list,
    "mask": _by_mask,
    "masked_fill": lambda g: g.masked_fill_(torch.arange(12) < 6, 0.0),
    "index_fill": lambda g: g.index_fill_(1, torch.arange(6), 0.0),
    "scatter": lambda g: g.scatter_(1, torch.arange(6).expand(len(g), -1), 0.0),
    "index_put": lambda g: g.index_put_((torch.arange(len(g))[:, None], torch.arange(6)), torch.zeros((), dtype=F64)),
    "index_copy": lambda g: g.index_copy_(1, torch.arange(6), torch.zeros(len(g), 6, dtype=F64)),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "attnlrp", "secant"])
@pytest.mark.parametrize("itemised", [False, True])
def test_writes_to_places_without_gradients(write, rules, itemised) -> None:
    def twin(self, h: Tensor) -> Tensor:
        return h + torch.cat([torch.zeros_like(h[:, :6]), h[:, 6:] * 2], 1)

    models, x = (made(Two, _written(WRITES[write])), made(Two, twin)), pictures(2)
    found, expected = (hilrp.explain(model, x, 1, rules, itemised=itemised) for model in models)
    assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)


def _looked_at(self, h: Tensor) -> Tensor:
    y = Flip.apply(h)
    with torch.no_grad():
        self.size = y.abs().mean()
    return h + 0.5 * y


def _without_gradient(self, h: Tensor) -> Tensor:
    with torch.no_grad():
        y = Flip.apply(h)
    return h + 0.5 * y


@pytest.mark.parametrize(
    ("between", "twin"),
    [
        (_looked_at, lambda self, h: h + 0.5 * h.flip(1)),
        (_without_gradient, lambda self, h: h + 0.5 * h.flip(1).detach()),
    ],
)
@pytest.mark.parametrize("rules", ["hilrp", "epsilon"])
def test_registered_functions_have_the_gradients_of_where_they_ran(between, twin, rules) -> None:
    expected = hilrp.explain(made(Two, twin), pictures(2), 1, rules)
    with hilrp.register(Flip, "reindexing"):
        found = hilrp.explain(made(Two, between), pictures(2), 1, rules)
    assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)


def test_targets_that_read_numbers_where_nobody_sees_it() -> None:
    found = hilrp.explain(made(Two), pictures(1), lambda output: output[:, 1] * scripted_peak(output), "secant")
    assert any("the target reads numbers" in reason for reason in found.unchecked)


class Half(Two):
    """Samples see each other in some of the classes alone."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        return torch.cat([self.head(h)[:, :2], self.head(h * h.roll(1, 0).sigmoid())[:, 2:]], 1)


class EvenPairs(Two):
    """Samples see each other where there is an even number of them."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x.flatten(1))
        if len(x) % 2 == 0:
            h = h.view(-1, 2, 12)
            h = (h * h.flip(1).sigmoid()).reshape(-1, 12)
        return self.head(h)


def test_what_is_remembered_of_samples_that_see_each_other() -> None:
    def told(found: hilrp.Explanation) -> bool:
        return any("samples see each other" in note for note in found.notes)

    model, x = made(Half), pictures(4)
    assert told(hilrp.explain(model, x, 0)) == told(hilrp.explain(model, x, 3)) is True
    model = made(EvenPairs)
    assert told(hilrp.explain(model, x, 1, batch=1))
    found = hilrp.explain(model, x, 1, batch=2)
    assert not any("in parts of 2" in note for note in found.notes)
    model = made(EvenPairs)
    hilrp.explain(model, x, 1, batch=2)
    assert told(hilrp.explain(model, x, 1, batch=1))
    assert told(hilrp.explain(model, x, 1))
    assert not told(hilrp.explain(model, pictures(3), 1))


def test_other_layers_on_the_way_to_the_score() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 5)
            self.a, self.b, self.c = (nn.Conv2d(8, 8, 1) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            h = self.stem(x).relu()
            deep = self.c(self.b(self.a(h).relu()).relu()).relu()
            return self.head((deep if x.shape[-1] > 6 else h).mean((2, 3)))

    model = made(Routed)
    large, small = (torch.randn(1, 3, n, n, dtype=F64) for n in (9, 6))
    explainer = hilrp.Explainer(model, "secant")
    for x in (small, large, large, small, small, large):
        assert torch.equal(explainer.explain(x, 1).relevance, hilrp.explain(model, x, 1, "secant").relevance)


def _view_without_gradient(self, h: Tensor) -> Tensor:
    with torch.no_grad():
        part = h[:, :1]
    return h + part


def _gate_in_inference_mode(self, h: Tensor) -> Tensor:
    g = h * 2
    with torch.inference_mode():
        g.mul_(0.5)
    g[:, :6] = 0.0
    return h + g


def _zeros_in_inference_mode(self, h: Tensor) -> Tensor:
    g = h * 2
    with torch.inference_mode():
        g.zero_()
    return h + g.add_(1).relu_()


@pytest.mark.parametrize(
    ("between", "twin"),
    [
        (_view_without_gradient, lambda self, h: h + h[:, :1].detach()),
        (_zeros_in_inference_mode, lambda self, h: h + 1),
        (
            _gate_in_inference_mode,
            lambda self, h: h + torch.cat([torch.zeros_like(h[:, :6]), h[:, 6:].detach()], 1),
        ),
    ],
)
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "attnlrp", "secant"])
def test_views_and_writes_without_gradients(between, twin, rules) -> None:
    found, expected = (hilrp.explain(made(Two, own), pictures(2), 1, rules) for own in (between, twin))
    assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)


def test_blocks_that_are_called_in_several_ways() -> None:
    class Ways(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12, bias=False), nn.Linear(12, 12, bias=False)

        def forward(self, h: Tensor, gate: bool = False, both: bool = False) -> Tensor | tuple[Tensor, Tensor]:
            y = self.b(self.a(h).relu())
            y = y.sigmoid() if gate else y
            return (y, h * 2) if both else y

    class Model(Two):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Ways(), Ways()])
            self.between = self.through

        def through(self, _: nn.Module, h: Tensor) -> Tensor:
            block = self.blocks[0]
            h = h + block(h)
            h = h * block(h, gate=True)
            a, b = block(h, both=True)
            return a + b

    model, x = made(Model), pictures(2)
    whole = hilrp.explain(model, x, 1)
    again = hilrp.Explainer(model, recompute="auto").explain(x, 1)
    assert torch.allclose(again.relevance, whole.relevance, rtol=0, atol=1e-12)


def test_a_block_that_raises_and_is_caught() -> None:
    class Raising(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

        def forward(self, h: Tensor, fail: bool = False) -> Tensor:
            y = self.b(self.a(h).relu())
            if fail:
                raise ValueError("not this way")
            return y

    class Model(Two):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Raising(), Raising()])
            self.between = self.through

        def through(self, _: nn.Module, h: Tensor) -> Tensor:
            try:
                return self.blocks[0](h, fail=True)
            except ValueError:
                return self.blocks[1](h)

    model, x = made(Model), pictures(2)
    whole = hilrp.explain(model, x, 1)
    again = hilrp.Explainer(model, recompute="auto").explain(x, 1)
    assert torch.allclose(again.relevance, whole.relevance, rtol=0, atol=1e-12)


def test_outputs_that_name_their_logits_need_no_note() -> None:
    class Named(Two):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.first(x.flatten(1))
            return {"logits": self.head(h), "features": h}

    assert not hilrp.explain(made(Named), pictures(2), 1).notes

    class Single(Two):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            h = self.first(x.flatten(1))
            return h[:, 0], self.head(h)

    assert any("several tensors of scores" in note for note in hilrp.explain(made(Single), pictures(2)).notes)


def test_assignments_by_mask_are_selections() -> None:
    def assigned(self, h: Tensor) -> Tensor:
        h = h.clone()
        h[h.detach() > 0.1] = 0.05
        return h

    def filled(self, h: Tensor) -> Tensor:
        return h.masked_fill(h.detach() > 0.1, 0.05)

    found, expected = (hilrp.explain(made(Two, own), pictures(2), 1, "secant") for own in (assigned, filled))
    assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)


def test_functions_that_write_to_buffers_leave_them_alone() -> None:
    class Clipped(Two):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("shift", torch.tensor([-1.0, 2.0, -3.0, 4.0, -5.0]))

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + nn.functional.relu(self.shift, inplace=True)

    model = made(Clipped)
    found = hilrp.explain(model, pictures(1), 1, audit="off")
    assert torch.equal(model.shift, torch.tensor([-1.0, 2.0, -3.0, 4.0, -5.0], dtype=F64))
    assert torch.equal(found.score, model(pictures(1))[:, 1])


def test_what_is_known_of_blocks_does_not_outlive_its_reasons() -> None:
    """A switch, a rule of the user's and the number of samples change what a block returns."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.stop = nn.Linear(12, 12), nn.Linear(12, 12), True

        def forward(self, h: Tensor) -> Tensor:
            y = self.b(nn.functional.gelu(self.a(h)))
            y = y.sigmoid() if len(h) > 2 else y
            return h + (y.detach() if self.stop else y)

    class Model(Two):
        def __init__(self) -> None:
            super().__init__(lambda self, h: self.blocks(h))
            self.blocks = nn.Sequential(Block(), Block())

    def check(count: int) -> None:
        found, expected = (each.explain(pictures(count), 1) for each in (again, hilrp.Explainer(model)))
        assert torch.allclose(found.relevance, expected.relevance, rtol=0, atol=1e-12)

    model = made(Model)
    again = hilrp.Explainer(model, recompute="auto")
    check(2)
    for block in model.blocks:
        block.stop = False
    for count in (2, 3, 2):
        check(count)
    with hilrp.register(nn.functional.gelu, "stop"):
        check(2)
    check(2)


def test_a_module_that_raised_is_not_where_the_model_went_on() -> None:
    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad, self.good = nn.Conv2d(5, 3, 1), nn.Conv2d(3, 3, 1)

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.bad(x)
            except RuntimeError:
                x = x * 2
            return x

    model = nn.Sequential(Stage(), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(64, 5)).to(F64).eval()
    assert list(hilrp.explain(model, pictures(1), 1, stages=["0"]).stages) == ["0"]


def test_parts_need_no_more_memory_than_two_of_them() -> None:
    sizes = []

    class Counting(Two):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append(len(x))
            return super().forward(x)

    hilrp.explain(made(Counting), pictures(40), 1, batch=4)
    assert max(sizes) == 8


@pytest.mark.parametrize("kwargs", [{}, {"dtype": torch.float32}, {"requires_grad": False}])
def test_new_tensors_have_the_type_that_torch_gives_them(kwargs) -> None:
    def between(self, h: Tensor) -> Tensor:
        return h + h.float().new_tensor(h.detach(), **kwargs)

    found = hilrp.explain(made(Two, between), pictures(2), 1)
    assert torch.equal(found.score, made(Two, between)(pictures(2))[:, 1])


def _written_by_a_thread(self, h: Tensor) -> Tensor:
    scratch = torch.zeros(len(h), 12, dtype=F64)
    thread = threading.Thread(target=lambda: scratch.data.copy_(h.detach().flip(1)))
    thread.start()
    thread.join()
    return h.relu() + 0.5 * scratch


@pytest.mark.parametrize(
    "between",
    [
        lambda self, h: h.relu() + 0.3 * scripted_peak(h),
        lambda self, h: h.relu() + 0.3 * peak_in_a_thread(h),
        lambda self, h: h.relu() + 0.3 * peak_in_a_transform(h),
        _written_by_a_thread,
    ],
)
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "attnlrp"])
def test_what_depends_on_the_input_unseen_is_told_of(between, rules) -> None:
    found = hilrp.explain(made(Two, between), pictures(2), 2, rules)
    assert any("whether all that depends on the input was seen" in reason for reason in found.unchecked)
    assert hilrp.Verdict.VALID not in found.verdicts
    assert not hilrp.explain(made(Two), pictures(2), 2, rules).unchecked


# Hooks, truth values and places, whole numbers given to blocks -------------------------------------------------------


class Curve(nn.Module):
    def forward(self, h: Tensor) -> Tensor:
        return h * h.sigmoid()


@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
def test_a_forward_pre_hook_of_a_registered_module(rules):
    """One that gives it something else is named; one that looks on is none of hilrp's business."""
    x, reference = pictures(2), 0.0 if rules == "secant" else None

    class Net(Two):
        def __init__(self) -> None:
            super().__init__(lambda self, h: self.curve(h))
            self.curve = Curve()

    model = made(Net)
    with hilrp.register(Curve, "activation"):
        plain = hilrp.explain(model, x, 1, rules, reference=reference)
        seen = []
        with model.curve.register_forward_pre_hook(lambda module, args: seen.append(len(args))):
            watched = hilrp.explain(model, x, 1, rules, reference=reference)
        assert seen
        assert torch.equal(watched.relevance, plain.relevance)
        with (
            model.curve.register_forward_pre_hook(lambda module, args: (args[0].flip(1),)),
            pytest.raises(hilrp.AuditError, match="forward pre-hook"),
        ):
            hilrp.explain(model, x, 1, rules, reference=reference)


def put(h: Tensor) -> Tensor:
    h = h.clone()
    h[torch.arange(len(h)), h.argmax(1)] += 1.0
    return h


def indexed(h: Tensor) -> Tensor:
    ones = torch.ones(12, len(h), dtype=F64)
    return h.index_add(1, h.argmax(1), ones.T if len(h) == 12 else ones[: len(h)])


BY_CHOICE = {
    "truth values as numbers": lambda h: h + (h > 0),
    "truth values times a number": lambda h: h + 0.5 * (h > 0),
    "a mask among numbers": lambda h: torch.cat([h[:, :4], h[:, 4:] > 0], 1),
    "one more at the largest": put,
    "scatter_add": lambda h: h.scatter_add(1, h.argmax(1, keepdim=True), torch.ones(len(h), 1, dtype=F64)),
    "scatter of a number": lambda h: h.scatter(1, h.argmax(1, keepdim=True), 1.0),
    "index_put": lambda h: h.index_put((torch.arange(len(h)), h.argmax(1)), torch.ones(len(h), dtype=F64)),
    "index_add": indexed,
}


@pytest.mark.parametrize("program", BY_CHOICE.values(), ids=BY_CHOICE)
def test_constants_that_the_input_chooses_are_told_of(program):
    found = hilrp.explain(made(Two, lambda self, h: program(h)), pictures(1), 1, "hilrp")
    assert any("carr" in note and "no relevance" in note for note in found.notes), found.notes
    assert float(found.ledger.residual.max()) < 1e-10
    kept = {name: float(value.abs().max()) for name, value in found.ledger.entries.items()}
    if program is not put:  # there one is added to what was taken out, wherever that was
        assert kept.get("constant", 0.0) == 0.0
        assert kept["gate"] > 0


def test_a_mask_that_selects_needs_no_note():
    found = hilrp.explain(made(Two, lambda self, h: torch.where(h > 0, h, 0.1 * h)), pictures(1), 1)
    assert not found.notes
    found = hilrp.explain(made(Two, lambda self, h: h.gather(1, h.argsort(1))), pictures(1), 1)
    assert not found.notes


def test_indices_that_are_given_to_a_block_that_runs_again():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.table = nn.Linear(12, 12, bias=False), nn.Embedding(12, 12)

        def forward(self, h: Tensor, index: Tensor) -> Tensor:
            return 3 * self.a(h) + 0.1 * self.table(index)

    class Net(Two):
        def __init__(self) -> None:
            super().__init__(Net.run)
            self.blocks = nn.ModuleList([Block(), Block()])

        @staticmethod
        def run(self, h):
            for block in self.blocks:
                h = block(h, h.argmax(1))
            return h

    model, x = made(Net), pictures(2)
    whole = hilrp.Explainer(model).explain(x, 1)
    again = hilrp.Explainer(model, recompute="auto").explain(x, 1)
    assert set(again.notes) == set(whole.notes) != set()
    torch.testing.assert_close(again.ledger.entries, whole.ledger.entries)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_small_whole_numbers_do_not_wrap_around(dtype):
    numbers = torch.arange(12, dtype=dtype)
    for program in (lambda h: h - numbers, lambda h: torch.add(h, numbers, alpha=100), lambda h: numbers - h):
        found = hilrp.explain(made(Two, lambda self, h, program=program: program(h)), pictures(2), 1)
        assert float(found.ledger.residual.max()) < 1e-10


def test_a_number_as_the_reference_leaves_what_is_held_fixed():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(12, 8), nn.Linear(8, 5)

        def forward(self, features: Tensor, scale: Tensor) -> Tensor:
            return self.b(self.a(features).relu()) * (1 + scale)

    model, x = made(Net), torch.randn(2, 12, dtype=F64)
    given, plain = (
        hilrp.explain(model, {"features": x, "scale": scale}, 1, "secant", reference=0.0)
        for scale in (torch.tensor(2.0, dtype=F64), 2.0)
    )
    torch.testing.assert_close(given.relevance["features"], plain.relevance["features"])
