"""Rules of modules: beside zennit's composites by name and by class, in models of every form, and misused."""

from __future__ import annotations

import json

import pytest
import torch
import zennit.composites
import zennit.rules
from torch import nn
from zennit.composites import (
    EpsilonPlus,
    ExcitationBackprop,
    LayerMapComposite,
    MixedComposite,
    NameLayerMapComposite,
    NameMapComposite,
    SpecialFirstLayerMapComposite,
)
from zennit.types import Linear as AnyLinear

import hilrp
from helpers.models import small_swin, small_vit
from hilrp import Rules
from hilrp.util.errors import InputError

HALF = zennit.rules.Gamma(0.5, stabilizer=1e-30)
GAMMA = zennit.rules.Gamma(0.25, stabilizer=1e-30)
EPSILON = zennit.rules.Epsilon(1e-30)
ZPLUS = zennit.rules.ZPlus(1e-12)


def convolutional() -> nn.Sequential:
    """Layers with biases."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 6), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(6, 2)).double().eval()


def of_zennit(model: nn.Module, composite: zennit.composites.Composite, x: torch.Tensor) -> torch.Tensor:
    """The relevance of class 1 under a composite of zennit."""
    x = x.clone().requires_grad_()
    with composite.context(model) as modified:
        y = modified(x)
        seed = torch.zeros_like(y)
        seed[:, 1] = y[:, 1].detach()
        (found,) = torch.autograd.grad(y, x, seed)
    return found


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            {"0": Rules(gamma=0.5), "2": "hilrp", "*": "epsilon"},
            NameMapComposite([(["0"], HALF), (["2"], GAMMA), (["5", "7"], EPSILON)]),
        ),
        (
            {nn.Conv2d: Rules(gamma=0.5), "*": "hilrp"},
            LayerMapComposite([(nn.Conv2d, HALF), (nn.Linear, GAMMA)]),
        ),
        (
            {"[57]": Rules(linear="zplus", epsilon=1e-12), "0": "epsilon", "*": Rules(gamma=0.5)},
            MixedComposite(
                [NameMapComposite([(["5", "7"], ZPLUS), (["0"], EPSILON)]), LayerMapComposite([(nn.Conv2d, HALF)])]
            ),
        ),
    ],
    ids=["names", "classes", "both"],
)  # fmt: skip
def test_agrees_with_composites_of_zennit(ours, theirs):
    model, x = convolutional(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    explanation = hilrp.explain(model, x, target=1, rules=ours)
    torch.testing.assert_close(explanation.relevance, of_zennit(model, theirs, x), rtol=1e-6, atol=1e-9)
    assert bool((explanation.ledger.residual < 1e-10).all())
    others = [hilrp.explain(model, x, target=1, rules=rules).relevance for rules in ("hilrp", "epsilon", "zplus")]
    assert not any(torch.allclose(explanation.relevance, other, rtol=1e-3) for other in others)


POSITIVE = Rules(linear="zplus", epsilon=1e-12)
WEIGHTS = Rules(linear="zplus_weights", epsilon=1e-12)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({nn.Conv2d: POSITIVE, "*": "epsilon"}, EpsilonPlus(epsilon=1e-30, stabilizer=1e-12)),
        (POSITIVE, ExcitationBackprop(stabilizer=1e-12)),
        (WEIGHTS, ExcitationBackprop(stabilizer=1e-12, zero_params="bias")),
        ({"[07]": POSITIVE, "*": "hilrp"}, NameLayerMapComposite([(["0", "7"], ZPLUS)], [(AnyLinear, GAMMA)])),
        ({"0": POSITIVE, nn.Linear: "epsilon"} | {"*": "hilrp"}, SpecialFirstLayerMapComposite(
            [(nn.Conv2d, GAMMA), (nn.Linear, EPSILON)], [(nn.Conv2d, ZPLUS)])),
    ],
    ids=["EpsilonPlus", "ExcitationBackprop", "without bias", "NameLayerMap", "SpecialFirstLayer"],
)  # fmt: skip
def test_rows_of_the_table_of_composites(ours, theirs):
    """What `docs/from-zennit-and-lxt.md` says of them, on inputs that aren't negative."""
    model, x = convolutional(), torch.rand(2, 3, 8, 8, dtype=torch.float64)
    found = hilrp.explain(model, x, target=1, rules=ours, audit="off").relevance
    torch.testing.assert_close(found, of_zennit(model, theirs, x), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("rules", ["hilrp", "secant", "attnlrp"])
def test_the_same_rules_for_all_modules_are_one_rule_set(rules):
    model, x = small_swin().double(), torch.randn(2, 3, 64, 64).double()
    spelled = hilrp.explain(model, x, rules={"layers*": rules, nn.Conv2d: rules, "*": rules})
    assert torch.equal(hilrp.explain(model, x, rules=rules).relevance, spelled.relevance)


MIXED = {
    "blocks.0*": Rules(gamma=0.5),
    "*.attn": Rules(linear="epsilon", attention="uniform"),
    nn.LayerNorm: "hilrp",
    "*": Rules(gamma=0.1),
}


@pytest.mark.parametrize("reference", [None, "mean"])
@pytest.mark.parametrize("options", [{}, {"itemised": True}, {"recompute": "auto"}], ids=str)
def test_mixed_rules_conserve_in_every_way_to_run(reference, options):
    torch.manual_seed(0)
    model, x = small_vit().double(), torch.randn(2, 3, 32, 32).double()
    explanation = hilrp.Explainer(model, MIXED, reference, **options).explain(x, 1)
    assert bool((explanation.ledger.residual < 1e-10).all())
    assert not [note for note in explanation.notes if "rules[" in note]
    plain = hilrp.Explainer(model, MIXED, reference).explain(x, 1)
    torch.testing.assert_close(explanation.relevance, plain.relevance, rtol=1e-9, atol=1e-12)
    for key, own in MIXED.items():  # each of them counts
        without = {k: rules for k, rules in MIXED.items() if k != key} | {"*": MIXED["*"]}
        other = hilrp.Explainer(model, without if key != "*" else MIXED | {"*": Rules(gamma=0.4)}, reference)
        same = torch.allclose(other.explain(x, 1).relevance, plain.relevance, rtol=1e-6)
        assert same == (key is nn.LayerNorm), (key, own)  # a norm has no gamma


def test_chains_and_the_bounded_rule_beside_others():
    model, x = small_vit().double(), torch.randn(1, 3, 32, 32).double()
    explanation = hilrp.explain(model, x, rules={"blocks.1.*": Rules(gamma=0.5)}, passes=4)
    assert explanation.rules.linear == "bounded"
    assert float(explanation.ledger.residual) < 1e-10
    other = hilrp.explain(model, x, passes=4)
    assert not torch.allclose(explanation.relevance, other.relevance, rtol=1e-3)


def test_operations_of_a_module_itself_and_of_modules_in_two_places():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(12, 12)
            self.again = self.first
            self.weight = nn.Parameter(torch.randn(3, 12))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(self.again(self.first(x.flatten(1)).relu()), self.weight)

    model, x = Twice().double().eval(), torch.randn(2, 3, 2, 2).double()
    expected = hilrp.explain(model, x, rules=Rules(gamma=0.5)).relevance
    found = hilrp.explain(model, x, rules={"first": Rules(gamma=0.5), Twice: Rules(gamma=0.5), "*": "epsilon"})
    torch.testing.assert_close(found.relevance, expected)
    with pytest.raises(InputError, match=r"'again' fits no module .* one that is in two places has the first name"):
        hilrp.explain(model, x, rules={"again": "epsilon", "*": "hilrp"})


def test_rules_that_no_operation_had_are_told_of():
    """The modules of an attention of torch hand it their weights, and don't run."""
    torch.manual_seed(0)

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0].sum(1)

    model, x = Attention().double().eval(), torch.randn(2, 5, 8).double()
    explanation = hilrp.explain(model, x, 1, rules={"attention.out_proj": "epsilon", "*": "hilrp"})
    assert any("rules['attention.out_proj'] were used by no operation" in note for note in explanation.notes)
    assert torch.equal(explanation.relevance, hilrp.explain(model, x, 1, rules="hilrp").relevance)
    around = hilrp.explain(model, x, 1, rules={nn.MultiheadAttention: "epsilon", "*": "hilrp"})
    assert not any("rules[" in note for note in around.notes)
    layers = hilrp.explain(model, x, 1, rules={nn.Linear: "epsilon", nn.MultiheadAttention: "hilrp", "*": "hilrp"})
    assert any("were used by no operation" in note for note in layers.notes)
    behind = hilrp.explain(model, x, 1, rules={"attention": "epsilon", "attention*": "zplus", "*": "hilrp"})
    assert any("rules['attention*'] were used by no operation" in note for note in behind.notes)


def test_modules_whose_weights_another_one_uses_are_named():
    """A class fits layers that run and one that does not: the map is not that of these rules everywhere."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.layer(x).mean(1))

    torch.manual_seed(0)
    model, x = Encoder().double().eval(), torch.randn(2, 5, 8).double()
    found = hilrp.explain(model, x, 1, rules={nn.Linear: Rules(gamma=0.5), "*": "epsilon"})
    (note,) = [note for note in found.notes if "rules[" in note]
    assert "torch.nn.modules.linear.Linear'] were not used at 'layer.self_attn.out_proj'" in note
    for rules in (
        {nn.Linear: Rules(gamma=0.5), nn.MultiheadAttention: Rules(gamma=0.5), "*": "epsilon"},
        {"*": "hilrp"},
    ):
        notes = hilrp.explain(model, x, 1, rules=rules).notes
        assert any("rules[" in note for note in notes) == (len(rules) > 1)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"blocks.9.*": "epsilon"}, r"'blocks.9.\*' fits no module of the model. Its modules are 'patch_embed'"),
        ({nn.Conv3d: "epsilon"}, r"no module of the class torch.nn.modules.conv.Conv3d"),
        ({"*": "hilrp", "head": "epsilon"}, r"'head' after it would never be used. Put \"\*\" last"),
        ({"head": "sharp"}, r"rules\['head'\]: rules='sharp' is not a preset"),
        ({3: "hilrp"}, "key 3 is neither a pattern of module paths nor a class"),
        ({"head": "secant", "*": "hilrp"}, r"rules\['head'\] are relative to a reference, those of \"\*\" are not"),
        ({"head": "zplus"}, r"rules\['head'\]: Rules\(linear='zplus', unlisted='rule'\) has no form relative"),
        ({"head": {"*": "hilrp"}, "*": "hilrp"}, None),
        ({"head": {"bias": "hilrp"}, "*": "hilrp"}, "has rules for modules of its own"),
        ({"head": "hilrp", "*": {"head": "epsilon", "*": "hilrp"}}, "has rules for modules of its own"),
        ([("head", "hilrp")], "a mapping from modules to rules"),
    ],
    ids=str,
)
def test_misuse(rules, said):
    model = small_vit()
    if said is None:
        assert hilrp.Explainer(model, rules).rules.modules == (("head", Rules()),)
        return
    with pytest.raises(InputError, match=said):
        hilrp.Explainer(model, rules)


def test_rules_without_a_form_beside_a_reference():
    with pytest.raises(InputError, match=r"rules\['head'\]: Rules\(linear='zplus'"):
        hilrp.Explainer(small_vit(), {"head": "zplus", "*": "hilrp"}, reference="mean")


def test_naive_rules_in_one_module_do_not_conserve_and_say_so():
    model, x = small_vit().double(), torch.randn(1, 3, 32, 32).double()
    explanation = hilrp.explain(model, x, 1, rules={"blocks.1": "naive", "*": "hilrp"})
    assert not explanation.rules.conserving
    own = dict(explanation.rules.modules)
    assert own["blocks.1"].unlisted == "raw"


def test_what_is_kept_of_an_explanation_names_the_rules_of_modules():
    model, x = convolutional(), torch.randn(1, 3, 8, 8, dtype=torch.float64)
    found = hilrp.explain(model, x, 1, rules={nn.Conv2d: "epsilon", "*": "hilrp"}).rules.described()
    assert json.loads(json.dumps(found))["modules"]["torch.nn.modules.conv.Conv2d"]["linear"] == "epsilon"
    assert "modules" not in Rules().described()
    assert Rules().described()["gamma"] == 0.25
