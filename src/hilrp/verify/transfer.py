"""Approximate equivariance on published weights and photographs: how far maps follow a cyclic shift of the image.

These are measurements. The forward pass of a real model doesn't commute with a shift (positions, window masks,
padding); the question is how well its maps follow all the same, beside those of the plain gradient.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.explainer import explain
from hilrp.models.images import read
from hilrp.models.libraries.recipe import download
from hilrp.util.errors import InputError
from hilrp.verify.report import Row

#: Model -> options, side of the cells that maps are summed over, shifts in pixels. Those of Swin-T, the paper's model,
#: are one, two and four of its windows (seven tokens of four pixels).
MODELS: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    "deit_tiny_patch16_224": ({}, 16, (16, 32, 64, 112)),
    "tiny_vit_5m_224": ({"num_classes": 1000}, 4, (16, 32, 64, 112)),
    "swin_tiny_patch4_window7_224": ({}, 4, (28, 56, 112)),
}
#: For comparison.
PAPER = "The paper has, for Swin-T under shifts by windows: drift 0.07, HiLRP 0.90, gradient map 0.41 to 0.61."


def ranks(values: Tensor) -> Tensor:
    """Ranks from 0 along the last axis; equal values share the mean of theirs.

    Example:
        >>> ranks(torch.tensor([3.0, 1.0, 3.0])).tolist()
        [1.5, 0.0, 1.5]
    """
    flat = values.reshape(-1, values.shape[-1])
    found = torch.empty(flat.shape, dtype=torch.float64)
    for row, out in zip(flat, found, strict=True):
        _, group, sizes = row.unique(return_inverse=True, return_counts=True)
        first = sizes.cumsum(0) - sizes
        out.copy_((first + (sizes - 1) / 2)[group])
    return found.reshape(values.shape)


def spearman(a: Tensor, b: Tensor) -> Tensor:
    """Spearman's rank correlation along the last axis."""
    a, b = (r - r.mean(-1, keepdim=True) for r in (ranks(a), ranks(b)))
    return (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def maps_of(model: nn.Module, x: Tensor, classes: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The explained logits, and maps ``[B,H,W]`` of HiLRP, of the gradient's size and of gradient x input."""
    found = explain(model, x, classes, "hilrp", audit="off", stages=None)
    leaf = x.clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(model(leaf).gather(1, classes[:, None]).sum(), leaf)
    return found.score, {
        "HiLRP": found.relevance.sum(1),
        "size of the gradient": gradient.abs().sum(1),
        "gradient x input": (gradient * x).sum(1),
    }


def cells(maps: Tensor, side: int) -> Tensor:
    """Maps summed over square cells, ``[B,cells]``."""
    return F.avg_pool2d(maps.unsqueeze(1), side).flatten(1) * side**2


def measure(model: nn.Module, x: Tensor, cell: int, shifts: tuple[int, ...]) -> dict[int, dict[str, Tensor]]:
    """For each shift and photograph: the drift of the logit, and Spearman of ``R(pi x)`` with ``pi R(x)``.

    Beside it, as a control, that of ``R(pi x)`` with ``R(x)`` itself.
    """
    with torch.no_grad():
        classes = model(x).argmax(1)
    score, plain = maps_of(model, x, classes)
    results = {}
    for shift in shifts:
        moved_score, moved = maps_of(model, x.roll((shift, shift), (2, 3)), classes)
        results[shift] = {"drift": (moved_score - score).abs() / score.abs()} | {
            name: spearman(cells(moved[name], cell), cells(plain[name].roll((shift, shift), (1, 2)), cell))
            for name in plain
        }
        # A map that stays where it was on the canvas would be high here, and low above.
        unmoved = cells(moved["HiLRP"], cell), cells(plain["HiLRP"], cell)
        results[shift]["HiLRP, not moved"] = spearman(*unmoved)
    return results


def check(name: str, checkpoints: Path | None, images: Path | None, photographs: int = 8) -> Iterator[Row]:
    """A row per shift for a model of `MODELS`; one that says what is missing where weights or photographs are."""
    options, cell, shifts = MODELS[name]
    try:
        model, x = _load(name, options, checkpoints, images, photographs)
    except InputError as error:
        yield Row(f"transfer, {name}", missing=f"not run: {error}")
        return
    for shift, results in measure(model, x, cell, shifts).items():
        numbers = {}
        for what, values in results.items():
            numbers[what] = float(values.double().mean())
            numbers[f"{what} ±"] = float(values.double().std())
        yield Row(
            f"transfer, {name}, {shift} px",
            numbers,
            remark=f"{name}: {len(x)} photographs shifted both ways, maps summed over cells of {cell} px, float32",
        )


def _load(
    name: str, options: dict[str, Any], checkpoints: Path | None, images: Path | None, count: int
) -> tuple[nn.Module, Tensor]:
    """The model with weights from the folder, or from the hub where none is given, and photographs for it."""
    import timm
    from safetensors.torch import load_file

    if images is None:
        raise InputError(
            "give a folder of photographs with an index.json (--images), and that of the weights if offline "
            "(--checkpoints)"
        )
    if not (images / "index.json").is_file():
        raise InputError(f'there is no index.json in {images}: a list of {{"file": name}} for the photographs')
    if checkpoints is None:
        model = download(name, lambda: timm.create_model(name, pretrained=True, **options)).eval()
    else:
        file = checkpoints / f"{name}.safetensors"
        if not file.is_file():
            raise InputError(f"{name}.safetensors is not in {checkpoints}: put timm's weights there")
        model = timm.create_model(name, **options).eval()
        model.load_state_dict(load_file(file))
    transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=model))
    files = [item["file"] for item in json.loads((images / "index.json").read_text())]
    chosen = files[:: max(len(files) // count, 1)][:count]  # spread over the set, which may be sorted by class
    return model, torch.stack([transform(read(images / file)[0]) for file in chosen])
