"""Suites: which models, methods, measures and images, and how much is spent on each figure."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hilrp.jobs.bench.context import Effort
from hilrp.jobs.bench.measures import MEASURES
from hilrp.jobs.bench.methods import METHODS
from hilrp.util.errors import InputError
from hilrp.zoo.architectures import ARCHITECTURES


@dataclass(frozen=True)
class Suite:
    """What is run.

    Attributes:
        models: Names for `hilrp.load`; a checkpoint may follow an @.
        methods: Names for `hilrp.jobs.bench.methods.find`.
        measures: Names of measures.
        data: What `hilrp.jobs.bench.data.find` takes.
        effort: How much is spent.
    """

    models: tuple[str, ...]
    methods: tuple[str, ...]
    measures: tuple[str, ...]
    data: str
    effort: Effort


_ALL = tuple(METHODS)
#: Rule sets and gammas beside each other.
_RULES = (
    "rules:zplus", "rules:attnlrp", "rules:hilrp-conv", "hilrp:attention=uniform", "hilrp:linear=gamma_weights",
    "hilrp:gamma=0.01", "hilrp:gamma=0.05", "hilrp:gamma=0.1", "hilrp:gamma=0.5", "hilrp:gamma=1.0",
)  # fmt: skip
#: Fewer samples where a method takes many, for a first look.
_CHEAP = {
    "rise": "rise:masks=100",
    "lime": "lime:samples=100",
    "integrated-gradients": "integrated-gradients:steps=12",
} | {name: f"{name}:samples=8" for name in ("smoothgrad", "vargrad", "gradient-shap")}
_QUICK = tuple(_CHEAP.get(name, name) for name in _ALL)

_SIZES = {
    "quick": Effort(
        images=6, few=2, changed=6, runs=30, steps=6, shapley_images=3, permutations=4, cells=8, again=False
    ),
    "paper": Effort(images=100, few=20, changed=100, runs=100, steps=16, shapley_images=50, permutations=64, cells=8),
    "real": Effort(images=400, few=20, changed=100, runs=100, steps=16, shapley_images=25, permutations=32, cells=8),
}
SUITES = ("quick", "paper", "real", "real-masks")
_REAL = {
    "timm/deit_tiny_patch16_224": "deit_tiny_patch16_224",
    "timm/tiny_vit_5m_224.dist_in22k_ft_in1k": "tiny_vit_5m_224",
    "timm/mobilenetv2_100": "mobilenetv2_100",
}


def suite(name: str, data: str | None = None) -> Suite:
    """A suite by name.

    ``quick`` is a first look at four families; ``paper`` the whole grid on the zoo; ``real`` published weights on
    photographs with boxes, and ``real-masks`` on photographs with masks: these look for checkpoints and images where
    HILRP_SHARED points.
    """
    measures = tuple(MEASURES)
    if name == "quick":
        models = tuple(f"zoo/{family}" for family in ("resnet", "vit", "swin", "efficientvit"))
        return Suite(models, _QUICK, measures, data or "scenes", _SIZES[name])
    if name == "paper":
        zoo = tuple(f"zoo/{family}" for family in ARCHITECTURES)
        return Suite(zoo, _ALL + _RULES, measures, data or "scenes", _SIZES[name])
    if name in ("real", "real-masks"):
        shared = Path(os.environ.get("HILRP_SHARED") or "../shared")
        if data is None and not shared.is_dir():
            raise InputError(
                f"--suite {name}: there is no folder {shared} with checkpoints and images. Set HILRP_SHARED, or give "
                "--data and --model."
            )
        models = tuple(f"{model}@{shared / 'checkpoints' / file}.safetensors" for model, file in _REAL.items())
        photographs = tuple(m for m in measures if not MEASURES[m].scenes)
        images = shared / "images" / ("imagenet_val" if name == "real" else "pets")
        return Suite(models, _ALL, photographs, data or str(images), _SIZES["real"])
    raise InputError(f"--suite {name}: choose from {', '.join(SUITES)}.")
