"""What can be said of an input, a model and a result before anybody looks at the map."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hilrp import messages
from hilrp.errors import InputError
from hilrp.tree import tensors

#: How far the books may be from closing, relative to the score, by the precision of the pass.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
#: The same for float32 on devices where torch multiplies in TF32, which has the mantissa of float16.
TF32_TOLERANCE = 5e-3


def tolerance(dtypes: Iterable[torch.dtype], device: torch.device) -> float:
    """How far the books may be from closing: that of the coarsest type that the pass computed in."""
    coarse = device.type == "cuda" and any(tf32())
    limits = TOLERANCE | ({torch.float32: TF32_TOLERANCE} if coarse else {})
    return max((limits.get(dtype, 0.0) for dtype in dtypes), default=0.0)


def tf32() -> tuple[bool, bool]:
    """Whether torch multiplies, and convolves, in TF32 on a GPU. Where the caller has used the newer names of these settings, the older raise."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(cudnn, "conv"):
        return matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"
    return matmul.allow_tf32, cudnn.allow_tf32


def zero_score(score: Tensor) -> str | None:
    """What to say of a score that is zero, or too small for its type to be divided up; ``None`` if it is neither."""
    small = score.abs() < torch.finfo(score.dtype).tiny
    if not bool(small.any()):
        return None
    sample = int(small.nonzero()[0])
    value = float(score[sample])
    return (
        f"The score of sample {sample} is {'zero' if value == 0 else f'{value:.1g}, too small to be divided up'}: there is nothing to "
        "decompose. (A classifier whose head is initialised with zeros does this, and so do an empty image and a contrast of a "
        "class with itself: load trained weights, choose another target, or leave the sample out.)"
    )


def check_input(x: Any) -> int:
    """The batch size of a sound input; an error that says what is wrong with any other."""
    found = [t for t in tensors(x) if t.is_floating_point()]
    if not found:
        types = ", ".join(str(t.dtype) for t in tensors(x)) or type(x).__name__
        raise InputError(
            f"The input ({types}) holds no floating-point tensor. Pass what the model takes: a float tensor [B,C,H,W], a tuple of "
            "inputs, or a mapping of keyword inputs; convert bytes with the model's own preprocessing."
        )
    for t in found:
        if t.ndim and t.shape[0] == 0:
            raise InputError(f"The input has shape {tuple(t.shape)}: an empty batch. Pass at least one sample.")
        if not bool(t.isfinite().all()):
            bad = "NaN" if bool(t.isnan().any()) else "infinite values"
            raise InputError(f"The input of shape {tuple(t.shape)} holds {bad}. Clean it before explaining.")
    # The image says how many samples there are; inputs of another length belong to all of them.
    first = next((t for t in found if t.ndim == 4), next((t for t in found if t.ndim), None))
    if first is None:
        raise InputError("The input is a single number. Pass a tensor whose first axis holds the samples.")
    if isinstance(x, (tuple, list)):
        _check_positional(x, first.shape[0])
    return first.shape[0]


def _check_positional(x: Sequence[Any], batch: int) -> None:
    """What is given by position for each sample is to be explained. By keyword a model may also be given what is held fixed."""
    for i, part in enumerate(x):
        whole = (t for t in tensors(part) if not (t.is_floating_point() or t.is_complex()))
        fixed = next((t for t in whole if t.ndim > 1 or t.shape == (batch,)), None)
        if fixed is not None:
            raise InputError(
                f"Input {i} ({fixed.dtype}, shape {tuple(fixed.shape)}) can't be explained: there is no gradient of whole numbers. To hold it fixed, name the inputs, "
                'x={"pixel_values": ..., "input_ids": ...} with the names of the model\'s arguments, or wrap the model in one that holds it. For the relevance of words '
                "beside that of pixels: hilrp.texts.Joint, or ImageText for a model of two towers."
            )


_CHANCE = ("dropout", "droppath", "drop_path", "stochasticdepth", "patchdropout", "dropblock")


def check_model(model: nn.Module) -> None:
    """Raises if a layer would behave as in training."""
    for path, module in model.named_modules():
        if not module.training:
            continue
        p = next(
            (
                getattr(module, name)
                for name in ("p", "drop_prob", "prob")
                if isinstance(getattr(module, name, None), float)
            ),
            1.0,
        )
        by_chance = type(module).__name__.lower().startswith(_CHANCE) and p > 0
        if by_chance or isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise messages.training_mode(path, module)
