"""Ten models under SHAP, captum, pytorch-grad-cam and hilrp: what runs, what crashes, and what adds up.

    python scripts/compare_peers.py

Writes docs/results/drop-ins.csv (every outcome, with the message) and docs/results/drop-ins.md. Weights are random,
drawn from a seed, and models are small: architectures are compared, and no model hub is needed. All are given the same
two references, and the same output of each model.
"""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
import torchvision
import transformers
from captum.attr import LRP, DeepLiftShap
from pytorch_grad_cam import GradCAM
from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
from torch import Tensor, nn

import hilrp
import hilrp.compat.shap as drop_in
from hilrp.attribution.stages import channels_last
from hilrp.compat.detections import Detections
from hilrp.models.random_models import randomise_constants

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
#: How far sums may be off, relative to the difference, to be called equal to it: hilrp's own tolerance in float32.
EQUAL = 1e-4


class Case(NamedTuple):
    """A model that is compared.

    Attributes:
        make: Makes it, as ``[B,outputs]``.
        layer: The module that a user of Grad-CAM would name: the last stage.
        shape: Of a sample.
    """

    make: Callable[[], nn.Module]
    layer: Callable[[nn.Module], nn.Module] | None
    shape: tuple[int, ...] = (3, 64, 64)


class Outcome(NamedTuple):
    """What a method did: ``runs``, ``fails its check`` or ``crashes``; how far the sum is off; and what was said."""

    kind: str
    gap: float | None = None
    message: str = ""


def named(name: str, **options: object) -> Callable[[], nn.Module]:
    """A model of timm."""
    return lambda: timm.create_model(name, num_classes=5, **options)


class Surest(nn.Module):
    """A detector as scores of its surest object."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=5, score_thresh=0.0, detections_per_img=1
        )

    def forward(self, x: Tensor) -> Tensor:
        """The box and the score of each image's surest object, ``[B,5]``."""
        found = [(each["boxes"][0], each["scores"][:1]) for each in self.inner(list(x))]
        return torch.stack([torch.cat(each) for each in found])


class SurestOfPlaces(Surest):
    """The same, made of what can be explained: hilrp's drop-in for Grad-CAM makes it of a detector by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Detections(self.inner)

    holds_fixed = Detections.holds_fixed

    def forward(self, x: Tensor) -> Tensor:
        """As of `Surest`."""
        return torch.stack([torch.cat([each["boxes"][0], each["scores"][:1]]) for each in self.inner(x)])


class Segmenter(nn.Module):
    """A segmenter as the mean scores of its classes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torchvision.models.segmentation.lraspp_mobilenet_v3_large(
            weights=None, weights_backbone=None, num_classes=5
        )

    def forward(self, x: Tensor) -> Tensor:
        """``[B,5]``."""
        return self.inner(x)["out"].mean((2, 3))


class Clip(nn.Module):
    """CLIP with three captions."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
        words = sizes | {"vocab_size": 99, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
        config = transformers.CLIPConfig(
            text_config=words, vision_config=sizes | {"image_size": 64, "patch_size": 16}, projection_dim=32
        )
        self.clip = transformers.CLIPModel(config)

    def forward(self, x: Tensor) -> Tensor:
        """``[B,3]``."""
        ids = torch.tensor([[1, 5, 6, 2], [1, 7, 8, 2], [1, 9, 5, 2]], device=x.device)
        return self.clip(pixel_values=x, input_ids=ids, attention_mask=torch.ones_like(ids)).logits_per_image


def table() -> nn.Module:
    """A network for rows of a table."""
    return nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))


SWIN = {"img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (1, 1, 2, 1)}
CASES = {
    "MobileNet-v2": Case(named("mobilenetv2_050"), lambda m: m.blocks[-1]),
    "DeiT": Case(named("deit_tiny_patch16_224", img_size=64, depth=4), lambda m: m.blocks[-1]),
    "Swin": Case(named("swin_tiny_patch4_window7_224", **SWIN), lambda m: m.layers[-1]),
    "ConvNeXt": Case(named("convnext_atto"), lambda m: m.stages[-1]),
    "MaxViT": Case(named("maxvit_rmlp_pico_rw_256", img_size=64), lambda m: m.stages[-1]),
    "EfficientViT": Case(named("efficientvit_b0"), lambda m: m.stages[-1]),
    "SSDlite (detector)": Case(Surest, lambda m: m.inner.backbone.features[-1]),
    "LR-ASPP (segmenter)": Case(Segmenter, lambda m: m.inner.backbone["16"]),
    "CLIP": Case(Clip, lambda m: m.clip.vision_model.encoder.layers[-1]),
    "table's MLP": Case(table, None, (12,)),
}


def made(case: Case, make: Callable[[], nn.Module] | None = None) -> nn.Module:
    """A model of a case with the same random weights each time.

    Batch norms have the statistics of random pictures: else the output of a deep model hardly depends on its input.
    """
    torch.manual_seed(0)
    model = randomise_constants((make or case.make)()).eval()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the mean over all batches
        norm.train()
    with torch.no_grad():
        for _ in range(2):
            model(torch.randn(8, *case.shape))
    return model.eval()


def gap_of(sums: Tensor, difference: Tensor) -> float:
    """How far a sum is off, relative to what it should be."""
    return float(((sums - difference).abs() / difference.abs()).max())


def by_shap(package: object, case: Case, model: nn.Module, background: Tensor, x: Tensor, output: int) -> Outcome:
    """DeepExplainer: shap's, or the drop-in."""
    explainer = package.DeepExplainer(model, background)  # type: ignore[attr-defined]
    with torch.no_grad():
        difference = (model(x) - model(background).mean(0))[:, output]
    try:
        values, said = explainer.shap_values(x), ""
    except AssertionError as error:
        said = " ".join(str(error).split())
        values = explainer.shap_values(x, check_additivity=False)
    sums = torch.from_numpy(np.asarray(values))[..., output].flatten(1).sum(1)
    return Outcome("fails its check" if said else "runs", gap_of(sums, difference), said)


def by_hilrp(case: Case, model: nn.Module, background: Tensor, x: Tensor, output: int) -> Outcome:
    """The drop-in for SHAP; of a detector hilrp's own call, since on a reference it would find another object."""
    if not isinstance(model, SurestOfPlaces):
        return by_shap(drop_in, case, model, background, x, output)
    ledger = hilrp.explain(model, x, output, reference=list(background)).ledger
    return Outcome("runs", gap_of(ledger.pixels, ledger.explained))


def by_captum(method: type, case: Case, model: nn.Module, background: Tensor, x: Tensor, output: int) -> Outcome:
    """A method of captum; LRP has no baseline, and decomposes the output itself."""
    options = {} if method is LRP else {"baselines": background}
    attributions = method(model).attribute(x, target=output, **options)
    with torch.no_grad():
        difference = model(x)[:, output] - (0 if method is LRP else model(background).mean(0)[output])
    return Outcome("runs", gap_of(attributions.detach().flatten(1).sum(1), difference))


def by_grad_cam(case: Case, model: nn.Module, background: Tensor, x: Tensor, output: int) -> Outcome:
    """Grad-CAM at the last stage, without a function that lays out its tokens; its maps sum to nothing."""
    if case.layer is None:
        return Outcome("does not apply", None, "")
    cam = GradCAM(model, [case.layer(model)])
    cam(x, [ClassifierOutputTarget(output)])
    features = cam.activations_and_grads.activations[0]
    mistaken = features.ndim == 4 and channels_last(features.shape, x.shape[2:])
    return Outcome("runs", None, "(nothing: it takes the rows of the layer's map for its channels)" if mistaken else "")


def outcome(run: Callable[..., Outcome], case: Case, make: Callable[[], nn.Module] | None = None) -> Outcome:
    """What a method does with a model."""
    model = made(case, make)
    generator = torch.Generator().manual_seed(1)
    background, x = (torch.randn(n, *case.shape, generator=generator) for n in (2, 1))
    with torch.no_grad():
        output = int((model(x) - model(background).mean(0)).abs().argmax())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(case, model, background, x, output)
    except Exception as error:
        return Outcome("crashes", None, " ".join(f"{type(error).__name__}: {error}".split()))


def methods() -> dict[str, Callable[..., Outcome]]:
    """Name -> method."""
    import shap

    return {
        "SHAP DeepExplainer": lambda *given: by_shap(shap, *given),
        "captum DeepLiftShap": lambda *given: by_captum(DeepLiftShap, *given),
        "captum LRP": lambda *given: by_captum(LRP, *given),
        "Grad-CAM": by_grad_cam,
        "hilrp": by_hilrp,
    }


def cell(found: Outcome) -> str:
    """An outcome in few words."""
    if found.kind in ("crashes", "does not apply"):
        return "crashes" if found.kind == "crashes" else "–"
    if found.gap is None:
        return "runs, and takes rows for channels" if found.message else "runs"
    off = (
        "adds up"
        if found.gap <= EQUAL
        else f"off by {found.gap:.0%}"
        if found.gap < 10
        else f"off {found.gap:.0f}-fold"
    )
    return f"{off}; its own check fails" if found.kind != "runs" else off


def beginning(message: str) -> str:
    """What a message begins with, for a row of a table."""
    return message if len(message) <= 160 else f"{message[:157]}..."


def page(rows: dict[str, dict[str, Outcome]]) -> str:
    """The document of the comparison."""
    columns = list(methods())
    versions = ", ".join(f"{name} {version(name)}" for name in ("shap", "captum", "grad-cam", "torch", "timm"))
    lines = [
        "# Ten models under four packages",
        "",
        f"By `scripts/compare_peers.py`, with {versions}.",
        "",
        "Weights are random, pictures have 64 pixels on a side (rows of the table twelve features), and references are",
        "two. What sums should come to is the difference between the output on the sample and in the mean over the",
        "references (captum's LRP, which has none: the output itself). Grad-CAM has the last stage for its layer, and",
        "its maps sum to nothing. `hilrp` is `hilrp.compat.shap.DeepExplainer`.",
        "",
        f"| | {' | '.join(columns)} |",
        f"|---{'|---' * len(columns)}|",
        *(f"| {name} | {' | '.join(cell(found[column]) for column in columns)} |" for name, found in rows.items()),
        "",
        f"*Adds up*: to {EQUAL:g} of the difference. Of the detector the box and the score of its surest object are",
        "explained; hilrp (`hilrp.explain`) settles on the picture which object that is, and compares with the same",
        "place of the references.",
        "",
        "## What was said",
        "",
        "captum's methods say nothing where their sums are off, unless they are asked for the convergence delta.",
        "",
        "| method | message | models |",
        "|---|---|---|",
    ]
    said: dict[tuple[str, str], list[str]] = {}
    for name, found in rows.items():
        for column, each in found.items():
            if each.message and cell(each) != "–":
                message = beginning(each.message).replace("|", chr(92) + "|")
                said.setdefault((column, message), []).append(name)
    lines += [f"| {column} | {message} | {', '.join(names)} |" for (column, message), names in sorted(said.items())]
    return "\n".join([*lines, "", "[drop-ins.csv](drop-ins.csv) has the whole messages.", ""])


def main() -> None:
    """Runs all, and writes both files."""
    rows: dict[str, dict[str, Outcome]] = {}
    for name, case in CASES.items():
        rows[name] = {}
        for method, run in methods().items():
            own = SurestOfPlaces if method == "hilrp" and case.make is Surest else None
            rows[name][method] = outcome(run, case, own)
            print(
                f"{name:22}{method:22}{cell(rows[name][method]):34}{beginning(rows[name][method].message)}", flush=True
            )
    with (RESULTS / "drop-ins.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["model", "method", "outcome", "gap", "message"])
        for name, found in rows.items():
            for method, each in found.items():
                gap = "" if each.gap is None else f"{each.gap:.3g}"
                writer.writerow([name, method, each.kind, gap, each.message])
    (RESULTS / "drop-ins.md").write_text(page(rows))


if __name__ == "__main__":
    main()
