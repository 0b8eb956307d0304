"""Suites: which models, methods, measures and images, and how much is spent on each figure."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from hilrp.jobs.bench.context import Effort
from hilrp.jobs.bench.measures import MEASURES
from hilrp.jobs.bench.methods import METHODS
from hilrp.util.errors import InputError
from hilrp.zoo.architectures import ARCHITECTURES, PHOTOS


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


#: Methods that are offered with more passes, too.
_MORE = {"secant": ("secant", "secant:passes=8", "secant:passes=32")}
_ALL = tuple(each for name in METHODS for each in _MORE.get(name, (name,)))
#: Rule sets and gammas beside each other.
_RULES = (
    "rules:zplus", "rules:attnlrp", "rules:hilrp-conv", "hilrp:attention=uniform", "hilrp:attention=attnlrp",
    "hilrp:linear=gamma_weights", "hilrp:linear=gamma_weights_bias", "hilrp:linear=zplus_weights",
    "hilrp:gamma=0.01", "hilrp:gamma=0.05", "hilrp:gamma=0.1", "hilrp:gamma=0.5", "hilrp:gamma=1.0",
)  # fmt: skip
#: Fewer samples where a method takes many, for a first look.
_CHEAP = {
    "rise": "rise:masks=100",
    "lime": "lime:samples=100",
    "integrated-gradients": "integrated-gradients:steps=12",
    "dave": "dave:samples=4",
} | {name: f"{name}:samples=8" for name in ("smoothgrad", "vargrad", "gradient-shap", "expected-gradients")}
_QUICK = tuple(_CHEAP.get(name, name) for name in _ALL if name != "secant:passes=32")

_SIZES = {
    "quick": Effort(
        images=6,
        few=2,
        changed=4,
        runs=30,
        steps=6,
        shapley_images=3,
        permutations=4,
        cells=8,
        again=False,
        paper_images=3,
        paper_permutations=4,
        removal_permutations=2,
        grids=1,
        road=(50,),
        groups=5,
        insertion_steps=5,
    ),
    "zoo": Effort(images=100, few=20, changed=100, runs=100, steps=16, shapley_images=50, permutations=64, cells=8),
    "real": Effort(images=400, few=20, changed=100, runs=100, steps=16, shapley_images=25, permutations=32, cells=8),
    "photos": Effort(images=200, few=20, changed=100, runs=100, steps=16, shapley_images=25, permutations=16, cells=8),
}
SUITES = ("quick", "zoo", "photos", "real", "real-masks", "paper", "paper-voc")
#: Those whose models know the objects of scenes and nothing else.
OF_SCENES = ("quick", "zoo")
#: Models with published weights -> the names of their files.
PUBLISHED = {
    "timm/deit_tiny_patch16_224": "deit_tiny_patch16_224",
    "timm/tiny_vit_5m_224.dist_in22k_ft_in1k": "tiny_vit_5m_224",
    "timm/mobilenetv2_100": "mobilenetv2_100",
}


#: The ten architectures of the paper, with timm's weights for 224 pixels. Its text names the architectures; the tags
#: are in its supplement.
OF_THE_PAPER = (
    "timm/resnet50.a1_in1k",
    "timm/convnext_base.fb_in22k_ft_in1k",
    "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k",
    "timm/deit_base_patch16_224.fb_in1k",
    "timm/swin_base_patch4_window7_224.ms_in22k_ft_in1k",
    "timm/pvt_v2_b2.in1k",
    "timm/mobilevitv2_100.cvnets_in1k",
    "timm/efficientvit_b1.r224_in1k",
    "timm/efficientvit_b2.r224_in1k",
    "timm/maxvit_small_tf_224.in1k",
)
#: Suite of the paper -> images, what data it is, and how to write it.
_PAPER_DATA = {
    "paper": (100, "ImageNet-S", "the folder with ImageNetS919 (validation and validation-segmentation)"),
    "paper-voc": (1000, "PASCAL VOC 2007", "the folder with VOCdevkit/VOC2007 (JPEGImages, Annotations, ImageSets)"),
}


def suite(name: str, data: str | None = None) -> Suite:
    """A suite by name.

    ``quick`` is a first look at four families; ``zoo`` the whole grid on the zoo; ``photos`` that on the zoo's models
    of photographs, for a folder of theirs; ``real`` published weights on photographs with boxes, and ``real-masks`` on
    photographs with masks: these look for checkpoints and images where HILRP_SHARED points. ``paper`` is the paper's
    benchmark, for who is online: its ten architectures with timm's weights, ImageNet-S, Shapley values of superpixels;
    ``paper-voc`` is where maps lie on VOC 2007.
    """
    measures = tuple(MEASURES)
    photographs = tuple(m for m in measures if not MEASURES[m].scenes)
    if name == "quick":
        models = tuple(f"zoo/{family}" for family in ("resnet", "vit", "swin", "efficientvit"))
        return Suite(models, _QUICK, measures, data or "scenes", _SIZES[name])
    if name == "zoo":
        zoo = tuple(f"zoo/{family}" for family in ARCHITECTURES)
        return Suite(zoo, _ALL + _RULES, measures, data or "scenes", _SIZES[name])
    if name == "photos":
        if data is None:
            raise InputError(
                "--suite photos is for photographs of ten ImageNet classes, which hilrp doesn't bring along. Give "
                "--data a folder of them, with index.json or a folder for each class (Imagenette has them)."
            )
        return Suite(tuple(f"zoo/{family}" for family in PHOTOS), _ALL + _RULES, photographs, data, _SIZES[name])
    if name in ("real", "real-masks"):
        shared = Path(os.environ.get("HILRP_SHARED") or "../shared")
        if data is None and not shared.is_dir():
            raise InputError(
                f"--suite {name}: there is no folder {shared} with checkpoints and images. Set HILRP_SHARED, or give "
                "--data and --model."
            )
        models = tuple(f"{model}@{shared / 'checkpoints' / file}.safetensors" for model, file in PUBLISHED.items())
        images = shared / "images" / ("imagenet_val" if name == "real" else "pets")
        return Suite(models, _ALL, photographs, data or str(images), _SIZES["real"])
    if name in _PAPER_DATA:
        count, what, where = _PAPER_DATA[name]
        if data is None:
            raise InputError(f"--suite {name} is for {what}, which hilrp doesn't bring along. Give --data {where}.")
        effort = replace(_SIZES["zoo"], images=count, changed=100)
        return Suite(OF_THE_PAPER, _ALL, ("localisation",) if name == "paper-voc" else photographs, data, effort)
    raise InputError(f"--suite {name}: choose from {', '.join(SUITES)}.")
