"""The calls of torch by name: what they are called in the table, and which of them are no operations.

Questions about a tensor's form, calls that make constants, and calls through which values leave torch.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from hilrp.util.nested import tensors

#: Other names of the same operations.
_SYNONYMS = {
    other: name
    for name, others in {
        "add": "radd", "sub": "subtract", "mul": "multiply rmul", "div": "divide true_divide truediv",
        "abs": "absolute", "neg": "negative", "cat": "concat concatenate", "clamp": "clip", "sigmoid": "special_expit",
        "logit": "special_logit",
        "item": "is_nonzero", "softmax": "special_softmax", "atan": "arctan", "asinh": "arcsinh",
        "vstack": "row_stack", "norm": "frobenius_norm", "matmul": "linalg_matmul",
    }.items()
    for other in others.split()
}  # fmt: skip

#: Operations that take only shape and type from their operands: what they make is a constant.
CREATION = frozenset(
    "zeros_like ones_like full_like empty_like rand_like randn_like randint_like new_zeros new_ones new_full new_empty "
    "new_tensor new_empty_strided".split()
)
#: Operations that take only shape or type from their second operand.
SHAPED_BY_SECOND = frozenset("type_as to expand_as view_as reshape_as broadcast_to".split())

#: Questions about a tensor's form, whose answers don't depend on its values (or only show them to a reader).
QUERIES = frozenset(
    "shape size dim ndim ndimension numel nelement stride storage_offset dtype device layout is_cuda "
    "is_floating_point is_complex is_contiguous is_nested is_sparse is_quantized is_meta is_mkldnn is_mps is_xla "
    "is_cpu is_leaf is_inference requires_grad grad_fn grad names itemsize element_size get_device len hash id "
    "retains_grad _version _base _is_view is_same_size is_shared is_pinned output_nr _backward_hooks is_conj is_neg "
    "_has_compatible_shallow_copy_type dim_order nbytes has_names is_tensor dlpack_device array_priority "
    "register_hook retain_grad".split()
)
#: Calls that take a tensor's values out of torch: as Python numbers, as an array, or as an address in memory. Any other
#: call that returns no tensor does so, too (``torch.equal``); these would fail on a tensor with a graph.
READ_OUTS = frozenset("item tolist numpy array dlpack data_ptr untyped_storage storage format repr".split())
#: Operations in which whole numbers are values, and no indices.
TAKES_WHOLE_NUMBERS = frozenset(
    "add sub rsub mul div rdiv rtruediv pow rpow where masked_fill cat stack hstack vstack clamp clamp_min clamp_max "
    "threshold maximum "
    "minimum lerp addcmul addcdiv".split()
)
#: Operations that write to places that an index gives.
WRITES_TO_PLACES = frozenset("scatter scatter_add index_add index_copy index_fill index_put set_item".split())
#: In-place operations that leave nothing of what was there, those of torch.nn.init among them.
FILLS = frozenset(
    "zero fill uniform normal bernoulli exponential random cauchy log_normal geometric kaiming_uniform "
    "kaiming_normal xavier_uniform "
    "xavier_normal trunc_normal constant ones zeros eye dirac orthogonal sparse".split()
)
#: Operations whose result has a shape that depends on values, and the arguments that it depends on: each of its sizes
#: is a number that leaves torch. Of those without arguments here, it is whole numbers that are given as single tensors
#: (``torch.zeros(n)``).
SHAPED_BY_VALUES: dict[str, tuple[tuple[int, str], ...]] = dict.fromkeys(
    "nonzero argwhere unique unique_consecutive _unique2 bincount one_hot".split(), ((0, "input"),)
) | {
    "masked_select": ((1, "mask"),),
    "repeat_interleave": ((1, "repeats"),),
    "tensor_split": ((1, "tensor_indices_or_sections"), (1, "indices_or_sections")),
    "torchvision::nms": ((0, "dets"), (1, "scores")),
} | dict.fromkeys(
    "arange range linspace logspace zeros ones full empty eye rand randn randint tril_indices triu_indices new_zeros "
    "new_ones new_full new_empty "
    "narrow expand repeat tile split chunk topk view reshape unflatten pad unfold getitem setitem where".split(),
    (),
)  # fmt: skip


def shaping(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Of the operands of such an operation those whose values its result's shape depends on."""
    if name in ("getitem", "setitem"):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        masks = [t for t in index if isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8)]
        return (masks if name == "getitem" else []) + tensors([part for part in index if isinstance(part, slice)])
    if name == "where":
        return tensors((args, kwargs)) if len(args) + len(kwargs) == 1 else []
    if name == "repeat_interleave" and len(args) + len(kwargs) == 1:
        return tensors((args, kwargs))
    named = SHAPED_BY_VALUES[name]
    if not named:
        return [t for t in tensors((args, kwargs)) if t.ndim == 0 and not t.is_floating_point()]
    return tensors([args[i] if i < len(args) else kwargs.get(key) for i, key in named])


@lru_cache(maxsize=4096)
def operation_name(func: Callable[..., Any]) -> tuple[str, bool]:
    """The canonical name of a torch function, and whether it works in place.

    Example:
        >>> import torch
        >>> operation_name(torch.Tensor.__iadd__), operation_name(torch.nn.functional.gelu)
        (('add', True), ('gelu', False))
    """
    if isinstance(func, (OpOverload, OpOverloadPacket)):
        namespace, _, name = (
            func._qualified_op_name if isinstance(func, OpOverloadPacket) else func._schema.name
        ).partition("::")
        if namespace != "aten":
            return f"{namespace}::{name}", False
    else:
        name = getattr(func, "__name__", repr(func))
        if name in ("__get__", "__set__"):
            attribute = func.__self__.__name__  # type: ignore[attr-defined]
            is_set = name == "__set__" and attribute not in QUERIES
            return (f"{attribute} =", True) if is_set else (attribute, False)
    in_place = False
    if name.startswith("__") and name.endswith("__"):
        # Tensor.float() casts; float(tensor) reads a number out.
        name = "item" if name in _NUMBERS else name.strip("_")
        in_place = name in _IN_PLACE
        name = name[1:] if in_place else name
    elif name.endswith("_") and not name.startswith("_"):
        name, in_place = name[:-1], True
    return _SYNONYMS.get(name, name), in_place


_NUMBERS = frozenset(["__float__", "__int__", "__bool__", "__complex__", "__index__"])
_IN_PLACE = frozenset("iadd isub imul itruediv idiv ipow imatmul iand ior ixor ifloordiv imod".split())


@lru_cache(maxsize=4096)
def is_python_source(func: Any) -> bool:
    """Whether torch implements ``func`` in Python on top of operations that the engine can meet one by one."""
    module = getattr(func, "__module__", None) or ""
    return isinstance(func, types.FunctionType) and func.__closure__ is None and module.startswith("torch.")
