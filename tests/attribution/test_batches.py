"""Explaining in batches: the result is that of all at once, and memory that doesn't suffice halves the batch."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import hilrp
from helpers.models import small_swin, small_vit
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.references import Constant, Neutral
from hilrp.targets import Contrast, Cosine, Detection, Direction, Region, Views
from hilrp.targets.slicing import part_of
from hilrp.util.memory import in_parts, shortage
from hilrp.util.nested import concatenated, tensors

FIELDS = ("relevance", "input", "score", "target", "against", "output", "stages", "trace", "reference")


def assert_same(found: Explanation, expected: Explanation) -> None:
    for name in FIELDS:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-9)
    for name in ("score", "pixels", "entries", "leaks", "inputs"):
        mine, other = getattr(found.ledger, name), getattr(expected.ledger, name)
        torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-9)
    assert (found.rules, found.tolerance, set(found.notes)) == (
        expected.rules,
        expected.tolerance,
        set(expected.notes),
    )


@pytest.fixture(scope="module")
def vit():
    return small_vit().double().eval()


@pytest.fixture(scope="module")
def x():
    torch.manual_seed(5)
    return torch.randn(5, 3, 32, 32).double()


class Small(nn.Module):
    """A model of few operations, which counts its calls and has memory for so many samples."""

    def __init__(self, room: int = 10**6, error: Exception | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head = nn.Conv2d(3, 4, 3).double(), nn.Linear(4, 3).double()
        self.room, self.calls = room, []
        self.error = (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.") if error is None else error
        )

    def forward(self, x):
        self.calls.append(len(x))
        if len(x) > self.room:
            raise self.error
        return self.head(self.conv(x).relu().mean((2, 3)))


def pictures(count: int, size: int = 8) -> torch.Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(count)).double()


class TestSameAsAtOnce:
    def test_bit_by_bit(self):
        """Where no product is computed in another order for fewer samples."""

        class Plain(nn.Module):
            def forward(self, x):
                return torch.stack([(weight * x).relu().flatten(1).sum(1) for weight in (1.5, -2.0, 0.3)], 1)

        x = pictures(7).float()
        expected = hilrp.explain(Plain(), x)
        for batch in (1, 3, np.int64(4), 7, 20, "auto"):
            assert torch.equal(hilrp.explain(Plain(), x, batch=batch).relevance, expected.relevance)
        assert torch.equal(hilrp.Explainer(Plain()).attribute(x, None, 2), expected.relevance)

    @pytest.mark.parametrize(
        "target",
        [
            None,
            2,
            [4, 1, 0, 3, 2],
            torch.tensor([[4], [1], [0], [3], [2]]),
            np.array([0, 0, 1, 1, 2]),
            Contrast([4, 1, 2, 3, 2], 0),
            Contrast(torch.tensor([4, 1, 2, 3, 2]), [0, 0, 0, 0, 1]),
            Direction(torch.randn(5, 5)),
            Cosine(torch.randn(5)),
            Cosine(torch.randn(1, 5)),
            Views(),
            lambda out: out[:, 1] - out[:, 0],
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_targets(self, target, vit, x):
        assert_same(hilrp.explain(vit, x, target, batch=2), hilrp.explain(vit, x, target))

    @pytest.mark.parametrize(
        "reference",
        ["mean", "blurred", "neutral", Neutral(small=1e-4), 0.5, Constant((0.1, 0.2, 0.3)), ["mean", 0.0]],
        ids=str,
    )
    def test_references(self, reference, vit, x):
        explainer = hilrp.Explainer(vit, "secant", reference)
        assert_same(explainer.explain(x, [0, 1, 2, 3, 4], 2), explainer.explain(x, [0, 1, 2, 3, 4]))

    def test_each_sample_has_its_own_neutral_colour(self):
        """One that is soon found is not looked for any longer because of its neighbour."""

        class First(nn.Module):
            def forward(self, x):
                return x[:, 0].mean((1, 2))[:, None] - 0.456

        x = torch.full((2, 3, 8, 8), 0.46).double()
        x[0, 0] = 2.0
        explainer = hilrp.Explainer(First(), "epsilon", Neutral(0.01, mean=(0.0,) * 3, std=(1.0,) * 3))
        expected = explainer.explain(x, 0)
        scores = expected.ledger.entries["reference"].abs()
        assert float(scores[0]) > 1e-3 > float(scores[1])
        assert_same(explainer.explain(x, 0, 1), expected)

    def test_references_that_are_given(self, vit, x):
        other = torch.randn_like(x)
        for reference in (other, other[0], other[:1], [other, "mean", other[0]]):
            explainer = hilrp.Explainer(vit, "secant", reference)
            assert_same(explainer.explain(x, batch=2), explainer.explain(x))
        # As many samples as channels: one sample all the same.
        explainer = hilrp.Explainer(vit, "secant", other[0])
        assert_same(explainer.explain(x[:3], batch=2), explainer.explain(x[:3]))
        with pytest.raises(hilrp.InputError, match=r"reference has the shape \(2, 3, 32, 32\)"):
            hilrp.explain(vit, x[:4], reference=other[:2], batch=2)

    def test_stages_and_itemised_books(self):
        swin, x = small_swin().double().eval(), torch.randn(3, 3, 64, 64).double()
        found, expected = (hilrp.explain(swin, x, 1, itemised=True, batch=batch) for batch in (2, None))
        assert_same(found, expected)
        assert len(found.stages) > 1
        assert found.facts().keys() == expected.facts().keys()
        assert len(found[1:]) == 2

    def test_notes_are_added_up(self):
        class Product(nn.Module):
            def forward(self, x):
                return (x * x.flip(1)).flatten(1).sum(1, keepdim=True)

        found, expected = (hilrp.explain(Product(), pictures(4), 0, batch=batch, rules="hilrp") for batch in (2, None))
        assert expected.notes
        assert found.notes == {note: 2 * count for note, count in expected.notes.items()}


class Worded(nn.Module):
    def forward(self, pixels, ids, weights, shift, scale):
        return (pixels.flatten(1) * weights).sum(1, keepdim=True) * scale + ids.sum(-1, keepdim=True) + shift.sum()


class TestInputs:
    @pytest.mark.parametrize("batch", [1, 2, 3, 4, "auto"])
    @pytest.mark.parametrize("fixed", [1, 2])
    def test_by_name_with_inputs_that_are_held_fixed(self, batch, fixed):
        """One that is held fixed stays so, also where a part has its length."""
        x = {
            "pixels": pictures(5),
            "ids": torch.arange(6)[None],
            "weights": torch.rand(5, 1).double(),
            "shift": torch.randn(fixed, 2).double(),
            "scale": torch.tensor(1.5).double(),
        }
        assert_same(hilrp.explain(Worded(), x, 0, batch=batch), hilrp.explain(Worded(), x, 0))
        x["ids"] = torch.arange(30).reshape(5, 6)
        found = hilrp.explain(Worded(), x, 0, "secant", dict(x, pixels=-x["pixels"]), batch=batch)
        assert_same(found, hilrp.explain(Worded(), x, 0, "secant", dict(x, pixels=-x["pixels"])))
        assert found.relevance["shift"].shape == (fixed, 2)

    def test_in_order(self):
        class Two(nn.Module):
            def forward(self, a, b):
                return {"logits": (a * 2).flatten(1).sum(1, keepdim=True) + b.tanh().sum(1, keepdim=True), "size": 3}

        x = (pictures(5), torch.randn(5, 4).double())
        found = hilrp.explain(Two(), x, 0, stages=None, batch=2)
        assert_same(found, hilrp.explain(Two(), x, 0, stages=None))
        assert found.output["size"] == 3

    @pytest.mark.parametrize("batch", [0, -1, 2.5, "x", True, "", [2]])
    def test_bad_sizes(self, batch):
        with pytest.raises(hilrp.InputError, match=r"batch=.*1 or more, \"auto\""):
            hilrp.explain(Small().eval(), pictures(2), batch=batch)


class TestTargets:
    def test_what_they_hold_for_each_sample(self):
        part = slice(1, 3)
        masks, rows = torch.rand(4, 6, 6), torch.rand(4, 9)
        assert torch.equal(part_of(Region([1, 2, 3, 4], mask=masks), part, 4).mask, masks[part])
        assert part_of(Region([1, 2, 3, 4], mask=masks), part, 4).label.tolist() == [2, 3]
        assert torch.equal(part_of(Cosine(rows), part, 4).vector, rows[part])
        found = part_of(Detection([3, 4, 5, 6], [0, 0, 1, 1]), part, 4)
        assert (found.query.tolist(), found.label.tolist()) == ([4, 5], [0, 1])

    def test_what_is_meant_for_all(self):
        """Also where its length is that of the batch."""
        part = slice(1, 3)
        box, pixel = Region(None, box=(0, 0, 3, 3)), Region(2, pixel=(1, 1))
        assert part_of(box, part, 4).box == (0, 0, 3, 3)
        assert part_of(pixel, slice(0, 1), 2).pixel == (1, 1)
        mask, vector = torch.rand(4, 6), torch.rand(4)
        assert part_of(Region(1, mask=mask), part, 4).mask is mask
        assert part_of(Region(1, mask=mask[None]), part, 4).mask.shape == (1, 4, 6)
        assert part_of(Direction(vector), part, 4).vector is vector
        assert part_of(Detection(2, side="left"), part, 4).query == 2
        assert part_of(Detection([2], 1), part, 4).query == [2]
        assert part_of("cat", part, 4) == "cat"
        function = torch.sum
        assert part_of(function, part, 4) is function

    @pytest.mark.parametrize(
        "target",
        [
            [0, 1],
            [0],
            Contrast(0, [1, 2]),
            Cosine(torch.rand(2, 3)),
            Region([0, 1]),
            Detection([0, 1]),
            Region(mask=torch.rand(2, 6, 6)),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_as_many_as_a_part_has(self, target):
        """Too few for the whole, although each part would be content."""
        with pytest.raises(hilrp.TargetError, match="for a batch of 4: give one, or one per sample"):
            hilrp.explain(Small().eval(), pictures(4), target, batch=2 if "[0]" not in str(target) else 1)

    def test_segmentation(self):
        model, x = nn.Conv2d(3, 4, 3, padding=1).double().eval(), pictures(5)
        target = Region([0, 1, 2, 3, 0], mask=torch.rand(5, 8, 8))
        assert_same(hilrp.explain(model, x, target, batch=2), hilrp.explain(model, x, target))


class TestMemory:
    """Calls are counted without those that an audit makes."""

    def test_halves_and_goes_on(self):
        model, x = Small(room=3).eval(), pictures(10)
        explainer = hilrp.Explainer(model, audit="off")
        found = explainer.explain(x, batch="auto")
        assert model.calls == [10, 5, 2, 2, 2, 2, 2]
        model.room = 10
        assert_same(found, explainer.explain(x))

    def test_what_is_done_is_kept(self):
        """Another program takes memory in the middle."""
        model, x = Small(room=4).eval(), pictures(12)
        model.register_forward_hook(lambda *_: setattr(model, "room", 4 if len(model.calls) < 4 else 2))
        found = hilrp.explain(model, x, list(range(3)) * 4, audit="off", batch="auto")
        assert model.calls == [12, 6, 3, 3, 3, 1, 1, 1, 1, 1, 1]
        model.room = 12
        assert found.target.tolist() == list(range(3)) * 4
        torch.testing.assert_close(found.score, model(x).gather(1, found.target[:, None])[:, 0].detach())

    def test_the_size_is_remembered(self):
        model = Small(room=3).eval()
        explainer = hilrp.Explainer(model, audit="off")
        explainer.explain(pictures(2), batch="auto")
        explainer.explain(pictures(8), batch="auto")
        assert model.calls == [2, 8, 4, 2, 2, 2, 2]
        model.calls.clear()
        explainer.explain(pictures(5), batch="auto")
        assert model.calls == [2, 2, 1]
        # Of another form nothing is known.
        model.calls.clear()
        explainer.explain(pictures(4, size=6), batch="auto")
        assert model.calls == [4, 2, 2]

    def test_a_processor_begins_with_less(self):
        model = Small().eval()
        hilrp.explain(model, pictures(40), audit="off", batch="auto")
        assert model.calls == [32, 8]

    @pytest.mark.parametrize(
        "error",
        [
            MemoryError(),
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: "
                "you tried to allocate 4 bytes."
            ),
            RuntimeError("[enforce fail] . DefaultCPUAllocator: not enough memory: you tried to allocate 4 bytes."),
        ],
    )  # fmt: skip
    def test_on_a_processor(self, error):
        model = Small(room=2, error=error).eval()
        found = hilrp.explain(model, pictures(4), audit="off", batch="auto")
        assert model.calls == [4, 2, 2]
        assert len(found) == 4

    def test_in_the_backward_pass(self):
        def fail(g):
            if len(g) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")

        class Deep(Small):
            def forward(self, x):
                y = x * 1.0
                y.register_hook(fail)
                return super().forward(y)

        model = Deep().eval()
        assert len(hilrp.explain(model, pictures(4), audit="off", batch="auto")) == 4
        assert model.calls == [4, 2, 2]

    @pytest.mark.parametrize("reference", [None, "mean"])
    def test_one_is_too_many(self, reference):
        explainer = hilrp.Explainer(Small(room=0).eval(), reference=reference)
        with pytest.raises(hilrp.TooLargeError, match=r"input of shape \(4, 3, 8, 8\), not even one sample") as caught:
            explainer.explain(pictures(4), batch="auto")
        assert isinstance(caught.value, hilrp.HilrpError)
        assert "Tried to allocate 2.00 GiB" in str(caught.value)
        assert "bfloat16" in str(caught.value)
        assert 'recompute="auto"' in str(caught.value)
        assert "device with more memory" in str(caught.value)
        assert caught.value.__cause__ is caught.value.__context__ is None

    def test_nothing_of_a_failed_attempt_is_held(self):
        """Neither while a smaller one runs, nor by the error that is raised in the end."""
        held: list[weakref.ref] = []

        def run(part):
            assert not any(ref() is not None for ref in held)
            big = torch.zeros(8)
            held.append(weakref.ref(big))
            loop = [big]
            loop.append(loop)
            raise torch.OutOfMemoryError("CUDA out of memory.")

        gc.disable()
        try:
            with pytest.raises(MemoryError, match="CUDA out of memory"):
                in_parts(run, 4, 4)
        finally:
            gc.enable()
        assert len(held) == 3
        assert all(ref() is None for ref in held)

    def test_other_errors_are_raised(self):
        model = Small(room=3, error=RuntimeError("sizes don't match")).eval()
        with pytest.raises(hilrp.ModelError, match="sizes don't match"):
            hilrp.explain(model, pictures(4), batch="auto")
        assert model.calls == [4]
        assert shortage(hilrp.ModelError("no")) is None
        # A given size is kept to.
        with pytest.raises(torch.OutOfMemoryError):
            hilrp.explain(Small(room=1).eval(), pictures(4), batch=2)

    def test_which_sample_an_error_means(self):
        x = torch.cat([pictures(3), torch.zeros(1, 3, 8, 8).double()])
        with pytest.raises(hilrp.ModelError, match="score of sample 1 is zero") as caught:
            hilrp.explain(
                nn.Sequential(nn.Flatten(), nn.Linear(192, 2, bias=False)).double(), x, 0, batch=2, rules="hilrp"
            )
        assert "samples 2 to 3 of 4" in caught.value.__notes__[0]


class TestOutputs:
    def test_as_many_objects_as_were_found(self):
        """Shorter ones are filled up, as detectors do within a batch."""
        first = {"labels": torch.ones(2, 3, dtype=torch.long), "scores": torch.rand(2, 3)}
        second = {"labels": torch.ones(1, 1, dtype=torch.long), "scores": torch.rand(1, 1)}
        found = concatenated([first, second], [2, 1])
        assert found["labels"].tolist() == [[1, 1, 1], [1, 1, 1], [1, -1, -1]]
        assert found["scores"][2].tolist()[1:] == [0, 0]

    def test_lists_with_one_item_for_each_sample(self):
        boxes = [[{"boxes": torch.rand(n, 4)} for n in counts] for counts in ((5, 3), (1, 4))]
        assert concatenated(boxes, [2, 2]) == boxes[0] + boxes[1]
        pyramids = [(torch.rand(2, 3), torch.rand(2, 5)) for _ in range(2)]
        assert [tuple(t.shape) for t in concatenated(pyramids, [2, 2])] == [(4, 3), (4, 5)]

    def test_of_transformers(self):
        output = pytest.importorskip("transformers.modeling_outputs").ImageClassifierOutput
        parts = [output(logits=torch.rand(n, 3), hidden_states=(torch.rand(n, 2),)) for n in (2, 1)]
        found = concatenated(parts, [2, 1])
        assert isinstance(found, output)
        assert [len(t) for t in tensors(found)] == [3, 3]
