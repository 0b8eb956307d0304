"""What is explained is what the model computes: scores, references and samples beside plain passes of the model."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hilrp
from hilrp.attribution.plain_passes import separating
from hilrp.targets import Contrast

RULES = ["hilrp", "epsilon", "secant"]
F64 = torch.float64


class Model(nn.Module):
    """A small classifier, of whose logits ``then(self, logits, x)`` makes the output."""

    def __init__(self, then) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(216, 6)
        self.table = nn.Embedding(5, 6)
        self.then = then

    def forward(self, x: Tensor) -> Tensor:
        return self.then(self, self.head(self.features(x)), x)


def pictures(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 8, 8, dtype=F64, generator=torch.Generator().manual_seed(seed))


def make(then) -> Model:
    return Model(then).to(F64).eval()


# The output that the model returns, written to in place --------------------------------------------------------------


def add(self, z, x):
    z.add_(torch.arange(6, dtype=F64) * 3)
    return z


def assign(self, z, x):
    z[:, int(torch.tensor(2))] = -1e4
    z[:, 4] += 5
    return z


def fill(self, z, x):
    z.masked_fill_(torch.tensor([True, False, True, True, True, True]), -50.0)
    return z


def pieces(self, z, x):
    out = torch.empty(len(x), 6, dtype=F64)
    out[:, :3] = z[:, 3:]
    out[:, 3:] = 5 + z[:, :3]
    return out


def copied(self, z, x):
    out = torch.zeros(len(x), 6, dtype=F64)
    out.copy_(z.flip(1) * 2)
    return out


def through_a_view(self, z, x):
    z.view(-1)[1::6] += 7
    return z


def into(self, z, x):
    out = torch.zeros_like(z)
    torch.mul(z, -3.0, out=out)
    return out


def named(self, z, x):
    z.mul_(-2)
    return {"logits": z}


def as_an_object(self, z, x):
    z.mul_(-2)
    return SimpleNamespace(logits=z)


WRITTEN = [add, assign, fill, pieces, copied, through_a_view, into, named, as_an_object]


def logits_of(output):
    return (
        output
        if isinstance(output, Tensor)
        else vars(output).get("logits")
        if isinstance(output, SimpleNamespace)
        else output["logits"]
    )


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("then", WRITTEN, ids=lambda then: then.__name__)
@pytest.mark.parametrize("batch", [1, 3])
def test_the_class_that_is_explained_is_the_one_predicted(then, rules, batch):
    model, x = make(then), pictures(batch)
    with torch.no_grad():
        logits = logits_of(model(x.clone()))
    found = hilrp.explain(model, x, rules=rules)
    assert found.target.tolist() == logits.argmax(1).tolist()
    assert torch.equal(found.score, logits.amax(1))
    assert torch.equal(logits_of(found.output), logits)
    assert float(found.ledger.residual.max()) < 1e-10
    # The map is that class's, too: asked for by number it is the same.
    again = hilrp.explain(model, x, logits.argmax(1), rules)
    assert torch.equal(found.relevance, again.relevance)


def test_contrasts_and_functions_see_what_was_written():
    model, x = make(add), pictures()
    with torch.no_grad():
        z = model(x.clone())
    assert torch.equal(hilrp.explain(model, x, Contrast(5, 0)).score, z[:, 5] - z[:, 0])
    assert torch.equal(hilrp.explain(model, x, lambda out: out.amax(1)).score, z.amax(1))


def test_a_score_that_is_not_the_models_is_an_error():
    """A state that changes from call to call: what was explained is not what the model gives."""

    class Doubling(Model):
        def forward(self, x):
            return super().forward(x) * (1 if torch.is_grad_enabled() else 2)

    model = Doubling(lambda self, z, x: z).to(F64).eval()
    with pytest.raises(hilrp.AuditError, match=r"explained score of sample 0 is .* the model itself gives"):
        hilrp.explain(model, pictures())
    with pytest.warns(hilrp.AuditWarning, match="the model itself gives"):
        found = hilrp.explain(model, pictures(), audit="warn")
    assert set(map(str, found.verdicts)) <= {"unverified", "absorbed", "inflated"}
    assert any(note.startswith("not checked: ") for note in found.notes)
    assert not hilrp.audit(model, pictures()).passed


def test_another_class_than_the_predicted_is_an_error():
    class Turning(Model):
        def forward(self, x):
            z = super().forward(x)
            return z if torch.is_grad_enabled() else z.flip(1)

    model = Turning(lambda self, z, x: z).to(F64).eval()
    with pytest.raises(hilrp.AuditError, match="explained class of sample"):
        hilrp.explain(model, pictures())


def test_a_model_that_is_not_deterministic_is_told_of():
    model = make(lambda self, z, x: z + torch.randn(()))
    found = hilrp.explain(model, pictures(), target=1)
    assert "isn't deterministic" in " ".join(found.notes)
    assert "valid" not in map(str, found.verdicts)


def test_random_numbers_and_the_input_stay_as_they_were():
    def drawing(self, z, x):
        x.mul_(0)
        return z * (1 + 0 * torch.rand(()))

    model, x = make(drawing), pictures()
    before = x.clone()
    torch.manual_seed(5)
    hilrp.explain(model, x, audit="off")
    without = torch.rand(3)
    torch.manual_seed(5)
    hilrp.explain(model, x)
    assert torch.equal(torch.rand(3), without)
    assert torch.equal(x, before)


# The reference --------------------------------------------------------------------------------------------------------


def by_item(self, z, x):
    return z * (3 * x.square().mean().item())


def by_list(self, z, x):
    return z * torch.tensor(x.square().mean((1, 2, 3)).tolist(), dtype=F64)[:, None]


def by_if(self, z, x):
    return z * 2 if x.std() > 0.5 else z


def by_int(self, z, x):
    return z * int(10 * x.std())


def by_float(self, z, x):
    return z + float(x.square().sum())


def by_array(self, z, x):
    return z + float(np.asarray(x.detach()).std())


def by_equality(self, z, x):
    return z * (1 if torch.equal(x, x.mean((2, 3), keepdim=True).expand_as(x)) else 2)


def by_a_mask(self, z, x):
    return z * 2 if (x > 1).any() else z


READING = [by_item, by_list, by_if, by_int, by_float, by_array, by_equality, by_a_mask]


@pytest.mark.parametrize("then", READING, ids=lambda then: then.__name__)
def test_numbers_that_are_read_out_make_no_false_difference(then):
    model, x = make(then), pictures()
    with pytest.raises(
        hilrp.AuditError, match=r"would be .* the model itself gives .*out of its tensors \(`(item|tolist|equal|array)`"
    ):
        hilrp.explain(model, x, 1, "secant")
    assert not hilrp.audit(model, x, 1, "secant").passed
    # Without a reference the numbers are the input's, as they should be: that is noted.
    notes = " ".join(hilrp.explain(model, x, 1, "hilrp").notes)
    assert "reads numbers out of the pass" in notes


def test_numbers_that_make_no_difference_are_a_note():
    def harmless(self, z, x):
        assert not bool(x.isnan().any())
        return z

    model, x = make(harmless), pictures()
    explainer = hilrp.Explainer(model, "secant")
    for _ in range(2):
        found = explainer.explain(x, 1)
        assert set(map(str, found.verdicts)) == {"valid"}
        assert sum("`item` in the model itself reads numbers" in note for note in found.notes) == 1


def test_the_reference_is_checked_for_each_input_where_numbers_are_read_out():
    """A first explanation on which both take the same way says nothing of a second."""
    model = make(lambda self, z, x: z * 2 if float(x.detach().amax()) > 5 else z)
    explainer = hilrp.Explainer(model, "secant")
    explainer.explain(pictures(), 1)
    with pytest.raises(hilrp.AuditError, match="on the reference would be"):
        explainer.explain(10 * pictures(), 1)


def test_a_target_may_choose_by_the_input():
    model, x = make(lambda self, z, x: z), pictures()
    found = hilrp.explain(model, x, lambda out: out[:, int(out[0].argmax())], "secant")
    assert set(map(str, found.verdicts)) == {"valid"}


# What reaches the score without having been seen ----------------------------------------------------------------------


def in_a_thread(self, z, x):
    made = []

    def work():
        with torch.no_grad():
            made.append(x.square().mean((1, 2, 3))[:, None])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return z + made[0]


def through_numpy(self, z, x):
    return z + torch.from_numpy(np.square(x.detach().numpy()).mean((1, 2, 3)))[:, None]


def through_dlpack(self, z, x):
    return z + torch.from_dlpack(x.detach()).square().mean((1, 2, 3))[:, None]


def behind_the_back(self, z, x):
    with torch.no_grad(), torch._C.DisableTorchFunction():
        found = x.square().mean((1, 2, 3))[:, None]
    return z + found


@torch.jit.script
def scripted(x: Tensor) -> Tensor:
    return x.square().mean((1, 2, 3))[:, None]


def scripted_without_a_graph(self, z, x):
    with torch.no_grad():
        found = scripted(x)
    return z + found


def mapped(self, z, x):
    return z + torch.vmap(lambda a: a.square().mean() * self.head.bias)(x)


def mapped_without_a_graph(self, z, x):
    with torch.no_grad():
        found = torch.vmap(lambda a: a.square().mean() * torch.ones(6, dtype=F64))(x)
    return z + found


def through_a_kept_array(self, z, x):
    """The same memory each time: compared by reference it would always be the same."""
    self.kept = getattr(self, "kept", np.zeros((len(x), 1)))
    self.kept[:] = np.square(x.detach().numpy()).mean((1, 2, 3))[:, None]
    return z + torch.from_numpy(self.kept)


def as_a_parameter(self, z, x):
    return z + nn.Parameter(x.detach().square().mean((1, 2, 3))[:, None])


def as_an_attribute(self, z, x):
    with torch.no_grad(), torch._C.DisableTorchFunction():
        self.held = x.square().mean((1, 2, 3))[:, None]
    return z + self.held


def into_a_buffer(self, z, x):
    with torch.no_grad(), torch._C.DisableTorchFunction():
        self.table.weight.copy_(x.square().mean().expand(5, 6))
    return z + self.table.weight[:1]


UNSEEN = [
    through_a_kept_array, as_a_parameter, as_an_attribute, into_a_buffer, in_a_thread, through_numpy, through_dlpack,
    behind_the_back, scripted_without_a_graph, mapped, mapped_without_a_graph,
]  # fmt: skip


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("then", UNSEEN, ids=lambda then: then.__name__)
def test_what_was_not_seen_being_made_is_named(then, rules):
    model = make(then)
    with pytest.raises(hilrp.AuditError, match="did not see"):
        hilrp.explain(model, pictures(), 1, rules)
    report = hilrp.audit(model, pictures(), 1, rules)
    assert not report.passed
    assert "did not see" in str(report)


def test_constants_from_elsewhere_are_no_problem():
    held, cache = torch.randn(6, dtype=F64), {}

    def then(self, z, x):
        if "mask" not in cache:
            cache["mask"] = torch.ones(6, dtype=F64)
        return z * cache["mask"] + held + torch.from_numpy(np.arange(6.0))

    for rules in RULES:
        found = hilrp.explain(make(then), pictures(), 1, rules)
        assert not found.unchecked
        assert not found.notes


def test_whole_numbers_and_tables_are_named():
    """`.long()`, an embedding, a one-hot code: they depend on the input, and carry nothing."""

    def looked_up(self, z, x):
        return z + self.table(x.square().mean((1, 2, 3)).mul(3).long().clamp(0, 4))

    def one_hot(self, z, x):
        code = torch.zeros(len(x), 6, dtype=F64)
        code[torch.arange(len(x)), z.argmax(1)] = 3.0
        return z + code

    for then in (looked_up, one_hot):
        found = hilrp.explain(make(then), pictures(), 1)
        assert "through whole numbers or masks alone" in " ".join(found.notes)
        assert float(found.ledger.residual.max()) < 1e-10
        assert "constant" not in found.ledger.entries or float(found.ledger.entries["constant"].abs().max()) < 1e-12
    assert "gate" in hilrp.explain(make(looked_up), pictures(), 1, "hilrp").ledger.entries


def test_a_copy_by_value_is_seen():
    """`new_tensor` copies values: out of the graph, but not out of sight."""
    found = hilrp.explain(
        make(lambda self, z, x: z + x.new_tensor(x.square().mean((1, 2, 3), keepdim=True)[..., 0, 0])), pictures(), 1
    )
    assert float(found.ledger.residual.max()) < 1e-10
    assert "constant" not in found.ledger.entries


def other(x):
    """What a model adds without gradients alone: the explained score isn't the model's."""
    return 0.0 if torch.is_grad_enabled() else x.mean((1, 2, 3))[:, None]


def test_a_masked_class_hides_nothing():
    """What scores differ by is measured beside the scores, not beside the largest number of the output."""
    masked = torch.tensor([False] * 5 + [True])
    model = make(lambda self, z, x: (z + 3 * other(x)).masked_fill(masked, -1e30))
    for rules in RULES:
        with pytest.raises(hilrp.AuditError):
            hilrp.explain(model, pictures(), 0, rules)


def test_a_large_output_beside_hides_nothing():
    model = make(lambda self, z, x: {"logits": z + 3 * other(x), "boxes": 1e6 * x})
    with pytest.raises(hilrp.AuditError):
        hilrp.explain(model, pictures(), 0, "secant")


def test_what_is_wrong_for_another_class_is_an_error_at_once():
    only = torch.tensor([0.0, 5.0, 0, 0, 0, 0], dtype=F64)
    model = make(lambda self, z, x: z + only * other(x))
    with pytest.raises(hilrp.AuditError):
        hilrp.explain(model, pictures(), 0)


def test_a_hook_that_comes_later_is_checked():
    model, x = make(lambda self, z, x: z), pictures()
    hilrp.explain(model, x, 1)
    model.head.register_forward_hook(lambda module, args, out: out + torch.from_numpy(out.detach().numpy().copy()))
    with pytest.raises(hilrp.AuditError, match="did not see"):
        hilrp.explain(model, x, 1)


def test_a_tensor_from_elsewhere_that_changes_later_is_found():
    """Constant on the first two inputs, and not on a third."""

    def then(self, z, x):
        with torch.no_grad(), torch._C.DisableTorchFunction():
            extra = (x.amax() - 100).relu()
        return z + extra

    model = make(then)
    hilrp.explain(model, pictures(), 1)
    with pytest.raises(hilrp.AuditError, match="did not see"):
        hilrp.explain(model, 200 * pictures().abs(), 1)


def test_a_score_that_is_not_a_number_is_no_agreement():
    model = make(lambda self, z, x: z if torch.is_grad_enabled() else z * float("nan"))
    with pytest.raises(hilrp.AuditError, match="the model itself gives nan"):
        hilrp.explain(model, pictures(), 1)


def test_inference_mode_inside_a_model():
    def then(self, z, x):
        with torch.inference_mode():
            gate = x.mean((1, 2, 3))[:, None] * 5
        return z + gate.clone()

    model, x = make(then), pictures()
    found = hilrp.explain(model, x, 1, "secant", reference=0.0)
    with torch.no_grad():
        difference = model(x.clone())[:, 1] - model(torch.zeros_like(x))[:, 1]
    torch.testing.assert_close(found.relevance.sum((1, 2, 3)), difference)


def test_scratch_tensors_are_written_to_as_torch_does():
    def then(self, z, x):
        noise = torch.full((6,), 100.0, dtype=F64)
        y = z * noise
        noise.uniform_(1.0, 1.0 + 1e-12)
        return y + noise.round()

    found = hilrp.explain(make(then), pictures(), 1, "hilrp")
    assert float(found.ledger.entries["constant"].max()) == 1.0


def test_constants_that_share_their_memory():
    """What is written to one of them is in the other, also where torch knows nothing of that."""

    def written(self, z, x):
        held = torch.zeros(len(x), 6, dtype=F64)
        alias = held.detach()
        held.copy_(z * 2)
        return z + alias

    for rules in RULES:
        found, plain = (
            hilrp.explain(make(then), pictures(), 1, rules)
            for then in (written, lambda self, z, x: z + (z * 2).detach())
        )
        torch.testing.assert_close(found.relevance, plain.relevance, rtol=1e-10, atol=1e-12)
        assert torch.equal(found.output, plain.output)


# Samples
# ----------------------------------------------------------------------------------------------------------------


def batch_mean(self, z, x):
    return z - z.mean(0, keepdim=True) / 2


def attention_over_samples(self, z, x):
    weights = (z @ z.T).softmax(-1)
    return z + weights @ z


def cumulative(self, z, x):
    return z.cumsum(0)


def neighbours(self, z, x):
    return z + 0.5 * z.roll(1, 0)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize(
    "then", [batch_mean, attention_over_samples, cumulative, neighbours], ids=lambda then: then.__name__
)
def test_samples_that_see_each_other(then, rules):
    model, x = make(then), pictures(4)
    found = hilrp.explain(model, x, 2, rules)
    assert "samples see each other" in " ".join(found.notes)
    others = found.ledger.entries["other samples"]
    assert float(others.abs().max()) > 1e-6
    assert float(found.ledger.residual.max()) < 1e-10
    torch.testing.assert_close(found.relevance.flatten(1).sum(1), found.ledger.pixels)

    # The same samples as one, of whose scores one is asked for: there is nothing to be told apart.
    class AsOne(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x):
            return self.model(x.reshape(4, 3, 8, 8)).unsqueeze(0)

    reference = x.mean((2, 3), keepdim=True).expand_as(x).reshape(1, 12, 8, 8) if rules == "secant" else None
    for i in range(4):
        alone = hilrp.explain(AsOne().eval(), x.reshape(1, 12, 8, 8), lambda out, i=i: out[:, i, 2], rules, reference)
        own = alone.relevance.reshape(4, 3, 8, 8)
        torch.testing.assert_close(own[i], found.relevance[i], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(own.sum() - own[i].sum(), others[i], rtol=1e-9, atol=1e-11)


def test_attention_without_batch_first():
    """nn.MultiheadAttention takes sequences first by default: fed with samples first, it attends over samples."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.attention, self.head = nn.MultiheadAttention(8, 2), nn.Linear(8, 3)

        def forward(self, x):
            tokens = x.flatten(2).mT
            return self.head(self.attention(tokens, tokens, tokens)[0].mean(1))

    model, x = Mixed().to(F64).eval(), torch.randn(3, 8, 4, 4, dtype=F64)
    found = hilrp.explain(model, x, 1)
    assert "other samples" in found.ledger.entries
    assert float(found.ledger.residual.max()) < 1e-10
    assert "other samples" not in hilrp.explain(model, x[:1], 1).ledger.entries


def test_samples_that_see_each_other_through_gates_are_told_of():
    """Nothing lands on the others, but each map is of its batch."""
    model = make(lambda self, z, x: z / (z.detach().std(0, keepdim=True) + 0.1))
    found = hilrp.explain(model, pictures(4), 2, "hilrp")
    assert "samples see each other" in " ".join(found.notes)
    assert "could not be followed" not in " ".join(found.notes)


def test_samples_that_are_apart_have_no_such_entry():
    for rules in RULES:
        found = hilrp.explain(make(lambda self, z, x: z), pictures(4), 2, rules)
        assert "other samples" not in found.ledger.entries
        assert not found.notes


# Verdicts
# ----------------------------------------------------------------------------------------------------------------


def test_nothing_to_explain():
    model, x = make(lambda self, z, x: z), pictures()
    reference = x.clone()
    reference[0] *= 0.5
    verdicts = list(map(str, hilrp.explain(model, x, 1, reference=reference).verdicts))
    assert verdicts[1:] == ["nothing to explain"] * 2
    assert verdicts[0] == "valid"
    assert str(hilrp.explain(model, x, 1, reference=x * (1 + 1e-13)).verdicts[0]) == "nothing to explain"


def test_valid_is_earned():
    model, x = make(lambda self, z, x: z), pictures()
    found = hilrp.explain(model, x, 1, "secant", audit="off")
    assert set(map(str, found.verdicts)) == {"unverified"}
    assert any(note.startswith("not checked: ") for note in found.notes)
    assert found.facts()["unchecked"]
    assert set(map(str, hilrp.explain(model, x, 1, "secant").verdicts)) == {"valid"}


def test_plain_passes_run_once_for_a_model():
    model, x, runs = make(lambda self, z, x: z), pictures(), []
    model.register_forward_hook(lambda *_: runs.append(1))
    counts = []
    for _ in range(3):
        hilrp.explain(model, x, 1, "hilrp")
        counts.append(len(runs))
    assert [b - a for a, b in itertools.pairwise(counts)] == [1, 1]
    # The explanation, the score, sets of samples of which others are changed, and another input, followed and plain.
    assert counts[0] == 4 + len(separating(len(x)))
