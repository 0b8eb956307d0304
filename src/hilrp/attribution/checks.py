"""What can be said of an input, a model and a result before anybody looks at the map."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hilrp.engine import messages
from hilrp.method.ledger import Ledger
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors, tensors

#: How far the books may be from closing, relative to the score, by the precision of the pass.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}
#: The same for float32 on devices where torch multiplies in TF32, which has the mantissa of float16.
TF32_TOLERANCE = 5e-3
#: How many units in the last place of the largest class score any class score may be off by rounding, whatever its own
#: size: two and a half times the most that was seen of networks of 3 to 60 layers. Products of 16 bits are summed in
#: float32.
_UNITS = {torch.float64: 8, torch.float32: 8, torch.bfloat16: 2, torch.float16: 2}
#: The mantissa's last place in TF32.
_TF32_EPS = 2.0**-10
#: Scores that are larger than most by more than this are masks (of classes that nobody asks for), and no scores.
_MASKED = 64


def tolerance(dtypes: Iterable[torch.dtype], device: torch.device) -> float:
    """How far the books may be from closing: that of the coarsest type that the pass computed in."""
    coarse = device.type == "cuda" and any(tf32())
    limits = TOLERANCE | ({torch.float32: TF32_TOLERANCE} if coarse else {})
    return max((limits.get(dtype, 0.0) for dtype in dtypes), default=0.0)


def floor(dtypes: Iterable[torch.dtype], device: torch.device, outputs: Sequence[Tensor]) -> Tensor:
    """The size below which a score's rounding is that of the other scores, ``[B]``.

    A score near zero is the sum of parts that cancel. The books may miss `tolerance` of this size at least, which is
    a few units in the last place of the largest class score.

    Args:
        dtypes: The types that the pass computed in.
        device: Where.
        outputs: The scores of all classes, ``[B,classes]``, on the input and on the reference.

    Example:
        >>> size = floor([torch.float32], torch.device("cpu"), [torch.tensor([[0.02, -3.0, 1.0]])])
        >>> bool(torch.isclose(1e-4 * size, 8 * 2**-23 * torch.tensor(3.0).double()))
        True
    """
    dtypes = list(dtypes)
    coarse = device.type == "cuda" and any(tf32())
    last = {dtype: _TF32_EPS if coarse and dtype == torch.float32 else torch.finfo(dtype).eps for dtype in _UNITS}
    units = _UNITS | ({torch.float32: _UNITS[torch.bfloat16]} if coarse else {})
    rounding = max((units[dtype] * last[dtype] for dtype in dtypes if dtype in units), default=0.0)
    limit = tolerance(dtypes, device)
    largest = torch.stack([_largest(each.detach().double()) for each in outputs]).amax(0)
    return largest * (rounding / limit if limit else 0.0)


def _largest(scores: Tensor) -> Tensor:
    """The size of the largest score of each sample; a class that is masked out has a huge one, or none at all."""
    sizes = torch.where(scores.isfinite(), scores.abs(), torch.nan)
    most = -(-sizes[:, :: max(1, sizes.shape[1] // 4096)]).nanmedian(1, keepdim=True).values  # the upper of two
    return torch.where(sizes <= _MASKED * most, sizes, 0.0).amax(1)


def near_zero(ledger: Ledger, limit: float) -> dict[str, int]:
    """What to note where a ledger closes beside the scores of other classes, and not beside its own score."""
    count = int(((ledger.residual <= limit) & (ledger.own_residual > limit)).sum())
    note = (
        "a score near zero beside those of other classes: what is not accounted for is no more than the rounding of "
        "the largest, but more of this score than the tolerance (ledger.own_residual)"
    )
    return {note: count} if count else {}


def tf32() -> tuple[bool, bool]:
    """Whether torch multiplies, and convolves, in TF32 on a GPU.

    Where the caller has used the newer names of these settings, the older raise.
    """
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
        f"The score of sample {sample} is {'zero' if value == 0 else f'{value:.1g}, too small to be divided up'}: "
        "there is nothing to decompose. (A classifier whose head is initialised with zeros does this, and so do an "
        "empty image and a contrast of a class with itself: load trained weights, choose another target, or leave "
        "the sample out.)"
    )


def ordinary(x: Any) -> Any:
    """The input as tensors of torch's own class, not of a subclass (torchvision's ``Image``), with signs resolved."""
    if all(type(t) in (Tensor, nn.Parameter) and not t.is_neg() for t in tensors(x)):
        return x
    return map_tensors(lambda t: t.as_subclass(Tensor).resolve_neg(), x)


#: Other containers of numbers, and how a tensor is made of them.
_REMEDIES = {"ndarray": "torch.from_numpy(x)", "list": "torch.tensor(x)", "tuple": "a tensor, or a tuple of tensors"}


def check_input(x: Any) -> int:
    """The batch size of a sound input; an error that says what is wrong with any other."""
    iterable = isinstance(x, (Tensor, Iterable))
    if tensors(x) and not iterable:
        remedy = "its values with an axis for samples, x.values[None]" if hasattr(x, "values") else "a float tensor"
        raise InputError(f"The input is a {type(x).__name__}, which no model takes. Pass {remedy}.")
    for t in tensors(x):
        check_storage(t, "The input")
    if isinstance(x, Mapping) and not all(isinstance(name, str) for name in x):
        raise InputError(
            f"The input is a mapping with the keys {list(x)}: its names are those of the model's arguments. Use "
            "strings, or a tuple of inputs."
        )
    found = [t for t in tensors(x) if t.is_floating_point()]
    if not found:
        types = ", ".join(str(t.dtype) for t in tensors(x)) or type(x).__name__
        remedy = "convert bytes with the model's own preprocessing"
        if any(t.is_complex() for t in tensors(x)):
            remedy = f"{_COMPLEX} for complex numbers"
        elif not tensors(x):
            item = next(iter(x), None) if isinstance(x, (tuple, list)) else None
            kind = type(item if type(item).__name__ == "ndarray" else x).__name__
            remedy = f"make one of it with {_REMEDIES[kind]}" if kind in _REMEDIES and len(x) else remedy
        raise InputError(
            f"The input ({types}) holds no floating-point tensor. Pass what the model takes: a float tensor "
            f"[B,C,H,W], a tuple of inputs, or a mapping of keyword inputs; {remedy}."
        )
    for t in found:
        if t.ndim and t.shape[0] == 0:
            raise InputError(f"The input has shape {tuple(t.shape)}: an empty batch. Pass at least one sample.")
        if not t.numel():
            raise InputError(f"The input has shape {tuple(t.shape)}, and so no values. Pass samples that have some.")
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


#: What to do with complex numbers, of which no relevance is defined.
_COMPLEX = "give the model torch.view_as_real(x), and let it begin with torch.view_as_complex,"


def check_storage(t: Tensor, name: str) -> None:
    """Raises for tensors that don't hold their values as ordinary ones do.

    There is no relevance of values that aren't there.
    """
    if t.is_nested:
        reason, remedy = "is a nested tensor", "explain its samples one by one, or pad them to one shape"
    elif t.is_meta:
        reason, remedy = "is on the device meta, and so has no values", "load it onto the model's device"
    elif t.is_quantized:
        reason, remedy = f"is quantised ({t.dtype})", "pass x.dequantize() to the float model"
    elif t.layout is torch._mkldnn:  # type: ignore[attr-defined]
        reason, remedy = "has the layout of MKL-DNN", "pass x.to_dense()"
    elif t.layout is not torch.strided:
        reason, remedy = f"is sparse ({t.layout})", "pass x.to_dense()"
    elif is_traceable_wrapper_subclass(t):
        reason, remedy = f"is a {type(t).__name__}, which holds other tensors", "pass an ordinary tensor"
    else:
        return
    raise InputError(f"{name} {reason}, and can't be explained as it is: {remedy}.")


def _check_positional(x: Sequence[Any], batch: int) -> None:
    """What is given by position for each sample is to be explained.

    By keyword a model may also be given what is held fixed.
    """
    for i, part in enumerate(x):
        for t in tensors(part):
            if t.is_complex() and t.ndim:
                raise InputError(
                    f"Input {i} ({t.dtype}, shape {tuple(t.shape)}) can't be explained: relevance is that of real "
                    f"numbers. To explain it, {_COMPLEX} "
                    'or hold it fixed by naming the inputs, x={"pixel_values": ..., "spectrum": ...}.'
                )
        whole = (t for t in tensors(part) if not (t.is_floating_point() or t.is_complex()))
        fixed = next((t for t in whole if t.ndim > 1 or t.shape == (batch,)), None)
        if fixed is not None:
            raise InputError(
                f"Input {i} ({fixed.dtype}, shape {tuple(fixed.shape)}) can't be explained: there is no gradient of "
                "whole numbers. To hold it fixed, name the inputs, "
                'x={"pixel_values": ..., "input_ids": ...} with the names of the model\'s arguments, or wrap the '
                "model in one that holds it. For the relevance of words "
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
