"""Layer-wise relevance: HiLRP and the rule sets that it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from torch import Tensor, nn

from hilrp.attribution.chains import Chains
from hilrp.attribution.explainer import Explainer
from hilrp.jobs.bench.methods.base import Function, Method
from hilrp.method.rules import Rules
from hilrp.util.errors import InputError

#: Options of the method ``hilrp`` on some families, by the module that their models are made in: the paper has a
#: smaller gamma for the deep convolutional stack of EfficientViT (MIT's).
OF_FAMILIES: Mapping[str, Mapping[str, Any]] = {"timm.models.efficientvit_mit": {"gamma_conv": 0.05}}


def as_in_the_paper(method: Method, model: nn.Module) -> Method:
    """The method ``hilrp`` with the setting that the paper has for a model's family; every other as it is.

    With options of its own (``hilrp:gamma=0.1``), or as ``rules:hilrp``, it is what it says.
    """
    options = OF_FAMILIES.get(type(model).__module__, {}) if method.name == "hilrp" else {}
    return replace(method, options=tuple(options.items())) if options else method


def relevance(preset: str) -> Function:
    """The map of a rule set; options change it (``gamma=0.1``), or spend more passes (``passes=8``)."""

    def function(model: nn.Module, x: Tensor, target: Tensor, **options: Any) -> Tensor:
        rules, chains = rules_and_chains(preset, options)
        # What the books of a map say is a figure of the benchmark; one score near zero must not keep the others.
        return Explainer(model, rules, audit="off", stages=None).explain(x, target, passes=chains).map

    return function


def rules_and_chains(preset: str, options: Mapping[str, Any]) -> tuple[Rules, Chains]:
    """What the options of a method say of its rules (``gamma=0.1``), and of its chains (``passes=8,seed=1``).

    Raises:
        InputError: Where there is no such option, or an option can't have its value.
    """
    known = [each.name for each in fields(Rules)]
    for name in options:
        if name not in (*known, *_OF_CHAINS, "passes"):
            raise InputError(
                f"{name}= is no option of rules. Choose from {', '.join((*known, 'passes', *_OF_CHAINS))}."
            )
    own = {name: value for name, value in options.items() if name in _OF_CHAINS}
    rest = {name: value for name, value in options.items() if name not in (*_OF_CHAINS, "passes")}
    return replace(Rules.named(preset), **rest), replace(Chains.of(options.get("passes", 1)), **own)


def check_chains(method: Method) -> None:
    """Raises where a method is to spend passes on rules without a reference, from which they begin."""
    if method.rules is None:
        return
    rules, chains = rules_and_chains(method.rules, dict(method.options))
    if chains.passes > 1 and rules.constants != "reference":
        raise InputError(
            f"{method.name}: these rules have no reference, from which they begin. Leave passes= out, or use "
            f"secant:passes={chains.passes}."
        )


_OF_CHAINS = ("steps", "draws", "cells", "fill", "seed")
