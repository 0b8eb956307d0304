"""Maps of one class of one picture, by shap, pytorch-grad-cam, captum and HiLRP: what methods_figure.py compares.

All take the same model, picture, reference and class. What isn't said is left at each library's defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from figures import SHARED
from torch import Tensor, nn

import hilrp

#: The defaults of captum and shap.
STEPS, SAMPLES, EVALUATIONS = 50, 200, 500
#: Where Grad-CAM looks: the last stage; the norm before the last attention, behind which a class token is read.
LAYERS = {"tiny_vit_5m_224.dist_in22k_ft_in1k": "stages.3", "deit_tiny_patch16_224": "blocks.11.norm1"}


@dataclass(frozen=True)
class Map:
    """What a method returned.

    Attributes:
        values: Relevance of each pixel, ``[H,W]``.
        how: Which explainer, with which setting.
        sums: Whether it is meant to add up to the difference of the scores.
        remark: What is to be known of it.
    """

    values: Tensor
    how: str
    sums: bool = True
    remark: str = ""

    def missing(self, difference: float) -> float | None:
        """The part of the difference that its sum misses; below zero, if it is too large."""
        return 1 - float(self.values.double().sum()) / difference if self.sums else None


class OneScore(nn.Module):
    """The score of one class, ``[B,1]``: what shap and captum are given."""

    def __init__(self, model: nn.Module, target: int) -> None:
        super().__init__()
        self.model, self.target = model, target

    def forward(self, x: Tensor) -> Tensor:
        """The score."""
        return self.model(x)[:, self.target : self.target + 1]


def fresh(name: str) -> hilrp.Loaded:
    """The model as it is loaded: shap leaves hooks on a model that it fails on."""
    return hilrp.load(name, SHARED / "checkpoints" / f"{name.split('.')[0]}.safetensors")


@cache
def runs_deep(name: str) -> str:
    """Nothing, if shap's DeepExplainer runs on this model; else what it says."""
    loaded = fresh(name)
    x = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    import shap

    try:
        shap.DeepExplainer(OneScore(loaded.model, 0).eval(), 0 * x).shap_values(x, check_additivity=False)
    except RuntimeError as error:
        return str(error).partition(". ")[0]
    return ""


def shap_of(name: str, x: Tensor, reference: Tensor, target: int) -> Map:
    """DeepExplainer; GradientExplainer where that raises."""
    import shap

    model = OneScore(fresh(name).model, target).eval()
    if runs_deep(name):
        explainer = shap.GradientExplainer(model, reference)
        found = explainer.shap_values(x, nsamples=SAMPLES, rseed=0)
        return Map(_summed(found), f"GradientExplainer, {SAMPLES} samples", remark="(DeepExplainer raises)")
    explainer = shap.DeepExplainer(model, reference)
    found = explainer.shap_values(x, check_additivity=False)
    try:
        explainer.shap_values(x)
        return Map(_summed(found), "DeepExplainer")
    except AssertionError:
        return Map(_summed(found), "DeepExplainer", remark="(its own check raises)")


def _summed(found: Any) -> Tensor:
    """``[1,3,H,W,1]`` as a map."""
    return torch.from_numpy(np.asarray(found)[0, ..., 0].sum(0))


def partition_of(name: str, x: Tensor, reference: Tensor, target: int) -> Map:
    """PartitionExplainer, which asks for the scores of pictures alone and adds up by construction."""
    import shap

    model = OneScore(fresh(name).model, target).eval()

    def scores(pictures: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = model(torch.as_tensor(pictures).float().permute(0, 3, 1, 2)).numpy()
        return found

    picture, plain = (t[0].permute(1, 2, 0).numpy() for t in (x, reference))
    explainer = shap.PartitionExplainer(scores, shap.maskers.Image(plain, picture.shape))
    found = explainer(picture[None], max_evals=EVALUATIONS, batch_size=50, silent=True)
    return Map(torch.from_numpy(found.values[0, ..., 0].sum(-1)), f"PartitionExplainer, {EVALUATIONS} evaluations")


def cam_of(name: str, x: Tensor, reference: Tensor, target: int) -> Map:
    """Grad-CAM at the last stage."""
    from pytorch_grad_cam import GradCAM
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    def on_grid(tokens: Tensor) -> Tensor:
        if tokens.ndim == 4:
            return tokens
        patches = tokens[:, 1:]
        side = round(patches.shape[1] ** 0.5)
        return patches.transpose(1, 2).unflatten(2, (side, side))

    model = fresh(name).model
    with GradCAM(model, [model.get_submodule(LAYERS[name])], reshape_transform=on_grid) as method:
        found = method(x.clone().requires_grad_(), [ClassifierOutputTarget(target)])
    return Map(torch.from_numpy(found[0]), LAYERS[name], sums=False)


def gradients_of(name: str, x: Tensor, reference: Tensor, target: int) -> Map:
    """Integrated Gradients with captum's own number of steps."""
    from captum.attr import IntegratedGradients

    method = IntegratedGradients(fresh(name).model)
    found = method.attribute(x, reference, target, n_steps=STEPS, internal_batch_size=10)
    return Map(found[0].sum(0).detach(), f"{STEPS} steps")


def hilrp_of(name: str, x: Tensor, reference: Tensor, target: int) -> Map:
    """HiLRP as it is: one pass."""
    found = hilrp.explain(fresh(name).model, x, target, reference=reference)
    return Map(found.map[0].detach(), "1 pass")


#: The columns: title, library, method.
Method = Callable[[str, Tensor, Tensor, int], Map]
METHODS: dict[str, tuple[str, Method]] = {
    "shap": ("shap", shap_of),
    "Grad-CAM": ("grad-cam", cam_of),
    "Integrated Gradients": ("captum", gradients_of),
    "HiLRP": ("hilrp", hilrp_of),
}
