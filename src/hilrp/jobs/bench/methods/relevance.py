"""Layer-wise relevance: HiLRP and the rule sets that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from hilrp.attribution.chains import Chains
from hilrp.attribution.explainer import Explainer
from hilrp.jobs.bench.methods.base import Function
from hilrp.method.rules import Rules


def relevance(preset: str) -> Function:
    """The map of a rule set; options change it (``gamma=0.1``), or spend more passes (``passes=8``)."""

    def function(model: nn.Module, x: Tensor, target: Tensor, **options: Any) -> Tensor:
        rules, chains = rules_and_chains(preset, options)
        # What the books of a map say is a figure of the benchmark; one score near zero must not keep the others.
        return Explainer(model, rules, audit="off", stages=None).explain(x, target, passes=chains).map

    return function


def rules_and_chains(preset: str, options: Mapping[str, Any]) -> tuple[Rules, Chains]:
    """What the options of a method say of its rules (``gamma=0.1``), and of its chains (``passes=8,seed=1``)."""
    own = {name: value for name, value in options.items() if name in _OF_CHAINS}
    rest = {name: value for name, value in options.items() if name not in (*_OF_CHAINS, "passes")}
    return replace(Rules.named(preset), **rest), replace(Chains.of(options.get("passes", 1)), **own)


_OF_CHAINS = ("steps", "draws", "cells", "fill", "seed")
