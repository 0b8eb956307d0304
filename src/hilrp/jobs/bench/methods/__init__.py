"""The methods of the benchmark by name. Those of captum and pytorch-grad-cam are imported when they are asked for."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from hilrp.jobs.bench.methods.base import Function, Method, Undefined
from hilrp.jobs.bench.methods.relevance import relevance, rules_and_chains
from hilrp.method.rules import Rules
from hilrp.util.errors import InputError, UnavailableError

__all__ = ["METHODS", "Method", "Undefined", "find"]


def _later(module: str, name: str) -> Function:
    """A function of a module that needs an optional package, imported at its first use."""

    def function(model: nn.Module, x: Tensor, target: Tensor, **options: Any) -> Tensor:
        try:
            found: Function = getattr(importlib.import_module(f"hilrp.jobs.bench.methods.{module}"), name)
        except ModuleNotFoundError as error:
            raise UnavailableError(
                f"{error.name} is not installed. Install it with: pip install 'hilrp[bench]'"
            ) from error
        return found(model, x, target, **options)

    return function


#: Name -> method, in the order of the paper's table.
METHODS = {
    method.name: method
    for method in (
        Method("grad-cam", "Grad-CAM", "cam", _later("cams", "grad_cam"), signed=False),
        Method("grad-cam++", "Grad-CAM++", "cam", _later("cams", "grad_cam_plus_plus"), signed=False),
        Method("rollout", "Attention Rollout", "attention", _later("attention", "rollout"), signed=False),
        Method(
            "attention-gradient",
            "Attention-gradient",
            "attention",
            _later("attention", "attention_gradient"),
            signed=False,
        ),
        Method("saliency", "Saliency", "gradient", _later("gradients", "saliency"), signed=False),
        Method("input-x-gradient", "Input x Gradient", "gradient", _later("gradients", "input_x_gradient")),
        Method("integrated-gradients", "Integrated Gradients", "gradient", _later("gradients", "integrated_gradients")),
        Method("smoothgrad", "SmoothGrad", "gradient", _later("gradients", "smooth_grad"), signed=False),
        Method("vargrad", "VarGrad", "gradient", _later("gradients", "var_grad"), signed=False),
        Method("gradient-shap", "GradientSHAP", "gradient", _later("gradients", "gradient_shap")),
        Method(
            "expected-gradients",
            "Expected Gradients",
            "gradient",
            _later("gradients", "expected_gradients"),
            needs_background=True,
        ),
        Method("libragrad", "LibraGrad (FullGrad+)", "gradient", _later("libragrad", "libragrad")),
        Method("dave", "DAVE", "gradient", _later("dave", "dave")),
        Method("occlusion", "Occlusion", "perturbation", _later("perturbation", "occlusion")),
        Method("rise", "RISE", "perturbation", _later("perturbation", "rise")),
        Method("lime", "LIME", "perturbation", _later("perturbation", "lime")),
        Method("epsilon", "epsilon-LRP", "relevance", relevance("epsilon"), rules="epsilon"),
        Method("attnlrp", "AttnLRP (naive)", "relevance", relevance("naive"), rules="naive"),
        Method("hilrp", "HiLRP", "relevance", relevance("hilrp"), rules="hilrp"),
        Method("secant", "HiLRP, secant", "relevance", relevance("secant"), rules="secant"),
        Method("uniform", "uniform", "control", _later("controls", "uniform"), signed=False),
        Method("random", "random", "control", _later("controls", "random"), signed=False),
        Method("centre-gaussian", "centre Gaussian", "control", _later("controls", "centre_gaussian"), signed=False),
    )
}


def find(name: str) -> Method:
    """A method by name; options may follow: ``rise:masks=200``, ``hilrp:gamma=0.1,attention=uniform``, ``rules:zplus``.

    Example:
        >>> find("hilrp:gamma=0.1").title
        'HiLRP (gamma=0.1)'
    """
    base, _, text = name.partition(":")
    if base == "rules":
        preset, _, text = text.partition(":")
        Rules.named(preset)  # an error that lists the presets, if there is none of that name
        plain = Method(f"rules:{preset}", f"rules {preset}", "relevance", relevance(preset), rules=preset)
    elif base in METHODS:
        plain = METHODS[base]
    else:
        raise InputError(f"{name}: not a method of the benchmark. Choose from {', '.join(METHODS)}.")
    if not text:
        return plain
    options = tuple(_option(name, part) for part in text.split(","))
    if plain.rules is not None:
        rules_and_chains(plain.rules, dict(options))  # an error that says which option is wrong
    return replace(plain, name=name, title=f"{plain.title} ({text})", options=options)


def of_rules(preset: str, passes: int = 1) -> str:
    """The name of the method that explains by a preset in a number of passes.

    Example:
        >>> of_rules("secant", 8), of_rules("zplus")
        ('secant:passes=8', 'rules:zplus')
    """
    known = preset in METHODS and METHODS[preset].rules == preset
    name = preset if known else f"rules:{preset}"
    return name if passes == 1 else f"{name}:passes={passes}"


def _option(name: str, text: str) -> tuple[str, Any]:
    key, sign, value = text.partition("=")
    if not sign or not key.isidentifier():
        raise InputError(f"{name}: write options as key=value, separated by commas.")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value
