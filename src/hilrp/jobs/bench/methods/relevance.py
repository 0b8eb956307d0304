"""Layer-wise relevance: HiLRP and the rule sets that it is compared with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from hilrp.attribution.explainer import Explainer
from hilrp.jobs.bench.methods.base import Function
from hilrp.method.rules import Rules


def relevance(preset: str) -> Function:
    """The map of a rule set; options change it (``gamma=0.1``)."""

    def function(model: nn.Module, x: Tensor, target: Tensor, **options: Any) -> Tensor:
        rules = replace(Rules.named(preset), **options)
        # What the books of a map say is a figure of the benchmark; one score near zero must not keep the others.
        return Explainer(model, rules, audit="off", stages=None).explain(x, target).map

    return function
