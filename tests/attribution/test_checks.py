"""Bad inputs, weights, targets and arguments: each has an error that names it, the reason and the remedy.

And what a ledger may miss by rounding.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hilrp
from helpers.blocks import Block, Middle, X, raises
from helpers.nets import Apply, Leaking, cancelling
from hilrp.attribution import checks


class TestBadInput:
    model = Block(nn.ReLU()).eval()

    def test_nan(self):
        x = X.clone()
        x[0, 0, 0, 0] = float("nan")
        with raises(hilrp.InputError, "NaN", r"\(2, 3, 8, 8\)"):
            hilrp.explain(self.model, x, 0)

    def test_infinite(self):
        with raises(hilrp.InputError, "infinite"):
            hilrp.explain(self.model, torch.full_like(X, float("inf")), 0)

    def test_weights_that_are_not_finite(self):
        model = Block(nn.ReLU()).eval()
        with torch.no_grad():
            model.stem.weight[0, 0, 0, 0] = float("nan")
        with raises(hilrp.ModelError, "`stem.weight`", "finite"):
            hilrp.explain(model, X, 0)

    def test_overflow_is_traced_to_its_operation(self):
        with raises(hilrp.ModelError, "NaN first appears at", "middle"):
            hilrp.explain(Block(lambda x: (x * 1e30 * 1e30).sub(x * 1e30 * 1e30)).eval(), X, 0)

    def test_an_output_that_overflows(self):
        with raises(hilrp.ModelError, "overflows", "wider type"):
            hilrp.explain(Middle(lambda x: (x.abs() * 1e30 * 1e30).flatten(1)).eval(), X, 0)

    def test_target_out_of_range(self):
        with raises(hilrp.TargetError, "5 is out of range", "0 to 4"):
            hilrp.explain(self.model, X, 5)
        with raises(hilrp.TargetError, "-1 is out of range"):
            hilrp.explain(self.model, X, [0, -1])

    def test_target_of_a_wrong_kind(self):
        with raises(hilrp.TargetError, "is a name", "loaded.index"):
            hilrp.explain(self.model, X, "cat")
        with raises(hilrp.TargetError, "not a class"):
            hilrp.explain(self.model, X, 1.5)
        with raises(hilrp.TargetError, "3 classes for a batch of 2"):
            hilrp.explain(self.model, X, [0, 1, 2])
        with raises(hilrp.TargetError, "one scalar per sample"):
            hilrp.explain(self.model, X, lambda out: out)
        with raises(hilrp.TargetError, "returned float"):
            hilrp.explain(self.model, X, lambda out: 1.0)

    def test_dense_output_needs_a_function(self):
        with raises(hilrp.TargetError, "not .2, classes.", "target=function"):
            hilrp.explain(nn.Conv2d(3, 4, 3).eval(), X)

    def test_wrong_shape(self):
        with raises(hilrp.ModelError, "`stem` .Conv2d.", r"\(2, 5, 8, 8\)"):
            hilrp.explain(self.model, torch.randn(2, 5, 8, 8), 0)

    def test_wrong_type(self):
        with raises(hilrp.InputError, "torch.uint8", "floating-point"):
            hilrp.explain(self.model, torch.zeros(2, 3, 8, 8, dtype=torch.uint8), 0)
        with raises(hilrp.InputError, "str"):
            hilrp.explain(self.model, "cat.jpg", 0)

    def test_inputs_of_which_one_has_no_gradient(self):
        """By position each is one to explain; by keyword it is held fixed."""

        class Worded(nn.Module):
            def __init__(self):
                super().__init__()
                self.block, self.words = Block(nn.ReLU()), nn.Embedding(9, 5)

            def forward(self, pixels, ids, more=None):
                return self.block(pixels) + self.words(ids).mean(1)

        model, ids = Worded().eval(), torch.tensor([[1, 2], [3, 4]])
        for x, where in (((X, ids), "Input 1"), ([X, X, ids.bool()], "Input 2")):
            with raises(hilrp.InputError, where, str(x[-1].dtype), r"\(2, 2\)", "hold it fixed", "hilrp.texts"):
                hilrp.explain(model, x, 0)
        found = hilrp.explain(model, {"pixels": X, "ids": ids}, 0)
        assert float(found.ledger.residual.max()) < 1e-4
        assert not found.relevance["ids"].any()

    def test_empty_batch(self):
        with raises(hilrp.InputError, "empty batch"):
            hilrp.explain(self.model, X[:0], 0)

    def test_a_single_number(self):
        with raises(hilrp.InputError, "single number"):
            hilrp.explain(self.model, torch.tensor(1.0), 0)

    @pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm2d(4)])
    def test_training_mode(self, layer):
        model = Block(layer)
        with raises(hilrp.ModelError, "training mode", "`middle`", r"model.eval\(\)"):
            hilrp.explain(model, X, 0)

    def test_functional_dropout(self):
        with raises(hilrp.ModelError, "Dropout is active", "`middle`"):
            hilrp.explain(Block(lambda x: F.dropout(x, 0.1, training=True)).eval(), X, 0)

    def test_functional_batch_statistics(self):
        with raises(hilrp.ModelError, "statistics of the batch", "`middle`"):
            hilrp.explain(Block(lambda x: F.batch_norm(x, None, None, training=True)).eval(), X, 0)

    def test_training_mode_without_chance_is_fine(self):
        model = Block(nn.GELU())
        training = hilrp.explain(model, X, 0)
        assert torch.equal(training.relevance, hilrp.explain(model.eval(), X, 0).relevance)

    def test_output_that_does_not_depend_on_the_input(self):
        with raises(hilrp.ModelError, "does not depend on the input"):
            hilrp.explain(Block(lambda x: torch.ones(2, 4, 3, 3)).eval(), X, 0)

    def test_output_behind_detach_or_gates_only(self):
        with raises(hilrp.ModelError, "only through gates"):
            hilrp.explain(self.model, X, lambda out: out.softmax(1)[:, 0], "hilrp")

    def test_zero_score(self):
        model = Block(nn.ReLU()).eval()
        nn.init.zeros_(model.head.weight)
        nn.init.zeros_(model.head.bias)
        with raises(hilrp.ModelError, "score of sample 0 is zero"):
            hilrp.explain(model, X, 0, "hilrp")
        assert set(map(str, hilrp.explain(model, X, 0).verdicts)) == {"nothing to explain"}

    def test_arguments(self):
        with raises(hilrp.InputError, "'typo' is not a preset", "hilrp, "):
            hilrp.explain(self.model, X, 0, rules="typo")
        with raises(hilrp.InputError, "gamma=-1"):
            hilrp.Rules(gamma=-1)
        with raises(hilrp.InputError, "linear='alpha'", "'zplus'"):
            hilrp.Rules(linear="alpha")
        with raises(hilrp.InputError, "audit='loose'"):
            hilrp.explain(self.model, X, 0, audit="loose")
        with raises(hilrp.InputError, "no module named 'nothing'", "stem"):
            hilrp.explain(self.model, X, 0, stages=["nothing"])
        with raises(hilrp.InputError, "not a torch.nn.Module"):
            hilrp.explain(lambda x: x, X)
        with raises(hilrp.InputError, "'magic' is not a rule"):
            hilrp.register(torch.special.i0, "magic")
        with raises(hilrp.InputError, "choose from neutral"):
            hilrp.explain(self.model, X, 0, reference="magic")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_running_out_of_memory_is_passed_on_as_it_is(error):
    """Callers catch it to try again with fewer samples; it says nothing about the model."""

    def too_large(x):
        raise error("no room")

    with pytest.raises(error, match="no room"):
        hilrp.explain(Block(too_large).eval(), X, 0)


def test_a_scripted_model():
    model = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(192, 3)).eval())
    with raises(hilrp.ModelError, "TorchScript", "Python model"):
        hilrp.explain(model, X, 0)


@pytest.mark.parametrize("reference", [lambda x: x * 0, torch.zeros_like], ids=["operator", "torch"])
def test_a_reference_that_takes_a_tensor(reference):
    with pytest.raises(hilrp.InputError, match=r"given a hilrp.references.Question.*lambda question"):
        hilrp.explain(
            nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval(), torch.randn(1, 3, 2, 2), 0, reference=reference
        )


def test_a_reference_that_returns_no_list():
    with pytest.raises(hilrp.InputError, match=r"returned Tensor, not a list"):
        hilrp.explain(
            nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval(),
            torch.randn(1, 3, 2, 2),
            0,
            reference=lambda q: q.x * 0,
        )


def test_compile_is_automatic_yes_or_no():
    with pytest.raises(hilrp.InputError, match="compile='max': use \"auto\", True or False"):
        hilrp.Explainer(nn.Linear(2, 2), compile="max")


class Hungry(nn.Module):
    def forward(self, x):
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 "
            "bytes."
        )


def test_memory_that_does_not_suffice():
    with pytest.raises(
        hilrp.TooLargeError, match=r"shape \(2, 3, 2, 2\) at once.*can't allocate.*batch=\"auto\".*recompute"
    ):
        hilrp.explain(Hungry().eval(), torch.randn(2, 3, 2, 2), 0)


def test_a_score_too_small_to_be_divided_up():
    """Also where the books close: one pixel holds all of it."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2, bias=False)).eval()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].weight[0, 0] = 2.0**-133
    with pytest.raises(hilrp.ModelError, match="too small to be divided up"):
        hilrp.explain(model, torch.ones(1, 3, 2, 2), 0, "hilrp")


# Inputs that aren't a batch of pictures
# ---------------------------------------------------------------------------------


SMALL = nn.Sequential(nn.Flatten(), nn.Linear(12, 3)).eval()
PICTURE = torch.randn(2, 3, 2, 2, generator=torch.Generator().manual_seed(1))


def jagged():
    return torch.nested.nested_tensor([torch.randn(3, 4), torch.randn(2, 4)], layout=torch.jagged)


UNSOUND = {
    "meta": (lambda: PICTURE.to("meta"), "device meta", "load it"),
    "sparse": (lambda: PICTURE.to_sparse(), "sparse_coo", r"to_dense\(\)"),
    "sparse rows": (lambda: PICTURE.flatten(1).to_sparse_csr(), "sparse_csr", r"to_dense\(\)"),
    "quantised": (
        lambda: torch.quantize_per_tensor(PICTURE, 0.1, 0, torch.quint8), "quantised .torch.quint8", "dequantize",
    ),
    "nested": (lambda: torch.nested.nested_tensor([PICTURE[0], PICTURE[1]]), "nested", "one by one"),
    "jagged": (jagged, "nested", "one by one"),
    "no values": (lambda: PICTURE[:, :, :0], r"shape \(2, 3, 0, 2\)", "no values"),
    "whole numbers": (lambda: PICTURE.long(), "torch.int64", "floating-point"),
    "complex": (lambda: PICTURE.to(torch.complex64), "torch.complex64", "view_as_real"),
    "one of two is complex": (
        lambda: (PICTURE, PICTURE.to(torch.complex64)), "Input 1 .torch.complex64", "view_as_real",
    ),
    "one of two is meta": (lambda: (PICTURE, PICTURE.to("meta")), "device meta", "load it"),
    "an array": (lambda: PICTURE.numpy(), "ndarray", "torch.from_numpy"),
    "a list of arrays": (lambda: [PICTURE.numpy()], "list", "torch.from_numpy"),
    "numbers": (lambda: [1.0, 2.0], "list", r"torch.tensor\(x\)"),
    "nothing": (lambda: None, "NoneType", "floating-point"),
    "an empty tuple": (lambda: (), "tuple", "floating-point"),
    "an empty mapping": (dict, "dict", "floating-point"),
    "numbered": (lambda: {0: PICTURE}, r"keys \[0\]", "strings"),
}  # fmt: skip


@pytest.mark.parametrize("kind", UNSOUND)
def test_an_input_that_cannot_be_explained(kind):
    make, reason, remedy = UNSOUND[kind]
    with raises(hilrp.InputError, reason, remedy):
        hilrp.explain(SMALL, make(), 0)


@pytest.mark.parametrize("kind", ["meta", "sparse", "nested", "quantised"])
def test_such_a_reference(kind):
    make, reason, remedy = UNSOUND[kind]
    with raises(hilrp.InputError, "reference", reason, remedy):
        hilrp.explain(SMALL, PICTURE, 0, reference=make())


class Labelled(torch.Tensor):
    """A subclass that keeps its type through operations, as torchvision's pictures may."""


def in_inference_mode():
    with torch.inference_mode():
        return PICTURE * 1


SOUND = {
    "subclass": lambda: PICTURE.clone().as_subclass(Labelled),
    "parameter": lambda: nn.Parameter(PICTURE.clone()),
    "requires a gradient": lambda: PICTURE.clone().requires_grad_(),
    "has a graph": lambda: PICTURE.clone().requires_grad_() * 1,
    "made in inference mode": in_inference_mode,
    "another order in memory": lambda: PICTURE.contiguous(memory_format=torch.channels_last),
    "a view that notes a sign": lambda: torch.imag(torch.complex(PICTURE, -PICTURE).conj()),
}


@pytest.mark.parametrize("kind", SOUND)
def test_an_ordinary_input_in_another_guise(kind, tmp_path):
    expected = hilrp.explain(SMALL, PICTURE, 1)
    found = hilrp.explain(SMALL, SOUND[kind](), 1)
    assert type(found.relevance) is torch.Tensor
    assert torch.equal(found.relevance, expected.relevance)
    assert found.ledger.table() == expected.ledger.table()
    assert found.save(tmp_path / "found")


def test_an_expanded_input():
    x = torch.randn(2, 3, 1, 1).expand(2, 3, 2, 2)
    torch.testing.assert_close(hilrp.explain(SMALL, x, 1).relevance, hilrp.explain(SMALL, x.clone(), 1).relevance)


@pytest.mark.parametrize("options", [{}, {"itemised": True}, {"batch": 2}, {"reference": 0.0}])
@pytest.mark.parametrize("samples", [1, 4])
def test_one_number_for_each_sample(samples, options, tmp_path):
    """``3 x + 1/2`` and ``x^2``, of which the second is explained.

    All is the input's, but for what the first's constant keeps.
    """
    x = torch.randn(samples, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    model = Apply(lambda t: torch.stack([3 * t + 0.5, t.square()], 1)).eval()
    for target, expected, kept in ((0, 3 * x, 0.5), (1, x.square(), 0.0)):
        found = hilrp.explain(model, x, target, "hilrp", **options)
        torch.testing.assert_close(found.relevance, expected)
        assert float(found.ledger.residual.max()) < 1e-10
        torch.testing.assert_close(found.ledger.constants, torch.full_like(x, kept), rtol=1e-10, atol=1e-10)
        assert str(found.verdicts[0])
        assert "score" in found.ledger.table(samples - 1)
        assert found.save(tmp_path / f"found{target}")


@pytest.mark.parametrize("itemised", [True, False])
def test_an_entry_without_axes(itemised, tmp_path):
    """A constant that is added to a sum over everything, which a batch of one may have."""
    model = Apply(lambda x: x.sum() + 0.5).eval()
    found = hilrp.explain(model, PICTURE[:1], lambda out: out, "hilrp", itemised=itemised, stages=None)
    assert found.ledger.constants.tolist() == [0.5]
    assert "constant" in found.ledger.table()
    assert found.save(tmp_path / "found")


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda m: torch.jit.trace(m, torch.randn(2, 12))], ids=["script", "trace"]
)
def test_a_scripted_part_of_a_model(make):
    """It is the largest, and stages are looked for in it."""
    part = make(nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 400), nn.Sequential(nn.ReLU())).eval())
    model = nn.Sequential(nn.Flatten(), Apply(lambda x: x), nn.Sequential(), part, nn.Linear(400, 3)).eval()
    with raises(hilrp.AuditError, "did not see", "plain Python form"):
        hilrp.explain(model, PICTURE, 0, stages="auto")


@pytest.mark.parametrize("output", [None, {}, (), 1.0, "cat"])
def test_a_model_without_scores(output):
    with raises(hilrp.TargetError, f"returned {type(output).__name__}", "target=function"):
        hilrp.explain(Apply(lambda x: output).eval(), PICTURE)


# Rounding -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rules", ["secant", "epsilon"])
@pytest.mark.parametrize(
    ("dtype", "score"), [(torch.float32, 1e-4), (torch.bfloat16, 1e-2), (torch.float16, 1e-3), (torch.float64, 1e-12)]
)
def test_a_score_near_zero_beside_others_is_rounded_as_they_are(dtype, score, rules):
    """Large parts cancel: the score is off by rounding that is nothing beside these parts."""
    model, x = cancelling(score, dtype)
    options = {"reference": 0.0} if rules == "secant" else {}
    found = hilrp.explain(model, x.expand(40, -1), list(range(40)), rules, **options)
    ledger = found.ledger
    assert not found.unchecked
    assert (ledger.residual <= found.tolerance).all()
    own = torch.maximum(ledger.score.abs(), ledger.entries.get("reference", ledger.score).abs())
    assert (ledger.difference.abs() > found.tolerance * own).any()  # what the score's own size would not allow
    assert {*map(str, found.verdicts)} <= {"valid", "unverified", "inflated", "absorbed", "nothing to explain"}
    rough = ledger.own_residual > found.tolerance
    assert not any(word == "valid" for word, own in zip(found.verdicts, rough, strict=True) if own)
    assert [count for note, count in found.notes.items() if "a score near zero beside" in note] == [int(rough.sum())]
    with pytest.MonkeyPatch.context() as patched:  # as it would be without a floor
        patched.setattr(checks, "_UNITS", dict.fromkeys(checks._UNITS, 0))
        with pytest.raises(hilrp.BooksError, match="do not close"):
            hilrp.explain(model, x.expand(40, -1), list(range(40)), rules, **options)


def test_a_leak_of_a_small_score_is_an_error():
    """Of a score of 0.02 beside others of about 3, a thousandth is lost."""
    model, x = cancelling(0.02, torch.float32)
    assert float(model(x)[0, 0].detach()) == pytest.approx(0.02, rel=1e-3)
    with hilrp.register(torch.special.i1, "reindexing"):
        wide = Leaking(model, 1.0).double().eval()
        whole = hilrp.explain(wide, x.double(), 0, reference=0.0, audit="off").ledger.difference
        part = 2e-5 / float(whole.abs())
        model.float()
        with pytest.raises(hilrp.BooksError, match=r"largest leak is at `\(model\): (special_)?i1`"):
            hilrp.explain(Leaking(model, part).eval(), x, 0, reference=0.0)
        hilrp.explain(Leaking(model, part / 100).eval(), x, 0, reference=0.0)  # less than the rounding of the others


@pytest.mark.parametrize("passes", [1, 2])
def test_a_small_score_that_is_no_sum_of_large_parts_is_not_called_valid(passes):
    """A head of its own: of its score a third is lost, which is nothing beside the largest score."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = nn.Linear(12, 4), nn.Linear(12, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.flatten(1)
            return torch.cat([60 + self.large(h), 1e-5 * torch.special.i1(3 * self.small(h))], 1)

    torch.manual_seed(0)
    model, x = Heads().eval(), torch.randn(2, 3, 2, 2)
    with hilrp.register(torch.special.i1, "reindexing"):
        found = hilrp.explain(model, x, 4, reference=0.0, passes=passes)
        whole = hilrp.explain(model, x, 0, reference=0.0, passes=passes)
    assert float(found.ledger.own_residual.max()) > 0.1
    assert {*map(str, found.verdicts)}.isdisjoint({"valid"})
    assert any("a score near zero beside" in note for note in found.notes)
    assert not any("a score near zero beside" in note for note in whole.notes)


def test_what_a_residual_is_relative_to_at_least():
    cpu, wide = torch.device("cpu"), torch.tensor([[0.02, -3.0, 1.0], [0.5, 2.0, float("nan")]])
    for dtype, units in ((torch.float32, 8), (torch.float64, 8), (torch.bfloat16, 2), (torch.float16, 2)):
        rounding = units * torch.finfo(dtype).eps
        for used in ([dtype], [torch.float64, dtype], [dtype, torch.complex64]):
            found = checks.floor(used, cpu, [wide]) * checks.tolerance(used, cpu)
            assert torch.allclose(found, rounding * torch.tensor([3.0, 2.0], dtype=torch.float64))
    largest = partial(checks.floor, [torch.float32], cpu)
    whole = largest([wide])
    assert torch.equal(largest([wide / 2, wide]), whole)  # on the input and on the reference
    for mask in (-1e9, float("-inf"), torch.finfo(torch.float32).min):  # classes that nobody asks for
        masked = torch.cat([wide, torch.full((2, 2), mask)], 1)
        masked[1, 2] = 1.0
        assert torch.equal(largest([masked]), whole)
    assert torch.equal(largest([torch.tensor([[0.02, 3.0]])]), whole[:1])  # of two either may be small
    assert largest([torch.zeros(1, 5)]).tolist() == [0.0]
    assert checks.floor([torch.int64], cpu, [wide]).tolist() == [0.0, 0.0]
