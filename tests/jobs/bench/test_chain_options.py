"""Options of the benchmark's relevance methods: those of rules, and those of chains."""

from __future__ import annotations

import pytest
import torch

import hilrp
from helpers.models import small_classifier
from hilrp.jobs.bench.methods import find
from hilrp.jobs.bench.methods.relevance import rules_and_chains


def test_options_are_told_apart():
    rules, chains = rules_and_chains("secant", {"bound": 1.5, "passes": 8, "seed": 3})
    assert (rules.bound, rules.constants) == (1.5, "reference")
    assert (chains.steps, chains.draws, chains.seed) == (2, 4, 3)
    assert rules_and_chains("secant", {"steps": 3, "draws": 2})[1].passes == 6
    assert rules_and_chains("hilrp", {})[1].passes == 1


def test_a_method_with_more_passes():
    torch.manual_seed(0)
    model, x, labels = small_classifier(), torch.randn(2, 3, 8, 8), torch.tensor([1, 4])
    found = find("secant:passes=4")(model, x, labels)
    torch.testing.assert_close(found, hilrp.explain(model, x, labels, "secant", passes=4).map)
    assert not torch.allclose(found, find("secant")(model, x, labels))
    with pytest.raises(hilrp.InputError, match="passes=5"):
        find("secant:passes=5")(model, x, labels)
    with pytest.raises(hilrp.InputError, match="chains go from a reference"):
        find("hilrp:passes=4")(model, x, labels)
