"""The table: every torch operation that vision models use, and the primitive that it is.

This is the heart of the library. A row gives the primitive (for the audit), the rule, how the samples move
(for the per-sample ledger), the gate level of the output and the names of the operations. Names are
canonical (`operation_name`): ``torch.add``, ``Tensor.add``, ``Tensor.__add__`` and ``Tensor.add_`` are all ``add``.
Functions of ``torch.nn.functional`` that are written in Python aren't listed: the engine opens them and
meets the operations they are made of.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from hilrp.method import bilinear, composite, normalisation, reindexing
from hilrp.method.call import Call, Level
from hilrp.method.composite import Surrogate
from hilrp.method.sample_axis import (
    Layout,
    Placed,
    aligned,
    aligned_or_traced,
    indexed,
    kept,
    multiplied,
    probed,
    row_major,
    stacked,
    summed_by_letters,
    traced,
    values_kept,
)
from hilrp.util.nested import tensors

Rule = Callable[[Call], Any]
Follow = Callable[[Placed, Tensor, int, Any, Any], Layout | None]


class Primitive(Enum):
    """The four kinds of operation that a vision model is made of, and a fifth for what steps through time."""

    LINEAR = "linear"
    BILINEAR = "bilinear"
    NORMALISATION = "normalisation"
    REINDEXING = "reindexing"
    RECURRENCE = "recurrence"


@dataclass(frozen=True)
class Row:
    """One kind of operation.

    ``level`` is the gate level of the output, or a function of the call; ``None`` keeps the lowest of the operands'. A
    linear map makes a new signal of an operand whose level is at most ``renews``. ``users`` marks a rule that the user
    has registered.
    """

    primitive: Primitive
    rule: Rule
    follow: Follow
    level: Level | Callable[[Call], Level | None] | None = None
    renews: Level | None = None
    users: bool = False


L, B, N, R, T = Primitive
_, SIGNAL, FEATURE, GATE, _, ATTENTION, _ = Level

_ROWS: list[tuple[Row, str]] = [
    # Linear maps ---------------------------------------------------------------------------------------------
    (Row(L, bilinear.layer, kept, renews=GATE), "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (Row(L, reindexing.native, traced), "sum mean nansum nanmean"),
    (Row(L, reindexing.average_pool, kept), "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"),
    (Row(L, reindexing.native, kept), "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_linear1d "
        "upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"),
    (Row(L, reindexing.native, kept), "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn fft_ifftn cumsum"),
    (Row(L, reindexing.add, aligned), "add sub rsub"),
    (Row(L, reindexing.native, aligned), "neg"),
    (Row(L, normalisation.batch_norm, kept), "batch_norm"),
    # Bilinear mixing (linear, if only one factor depends on the input) -------------------------------------
    (Row(B, bilinear.mix, multiplied, bilinear.mixed_level, renews=FEATURE), "matmul mm bmm mv dot rmatmul"),
    (Row(B, bilinear.mix, summed_by_letters, bilinear.mixed_level, renews=FEATURE), "einsum"),
    (Row(B, bilinear.multiply, aligned), "mul"),
    (Row(B, bilinear.attention, values_kept, SIGNAL), "scaled_dot_product_attention"),
    (Row(B, bilinear.sample, kept), "grid_sampler"),
    (Row(B, bilinear.deformable, kept, renews=GATE), "torchvision::deform_conv2d"),
    (Row(B, bilinear.pooled_regions, kept), "torchvision::roi_align torchvision::ps_roi_align"),
    # Normalisation, gates, activations ------------------------------------------------------------------------
    (Row(N, normalisation.layer_norm, kept, SIGNAL), "layer_norm"),
    (Row(N, normalisation.rms_norm, kept, SIGNAL), "rms_norm"),
    (Row(N, normalisation.group_norm, kept, SIGNAL), "group_norm"),
    (Row(N, normalisation.instance_norm, kept, SIGNAL), "instance_norm"),
    (Row(N, normalisation.divide, aligned, normalisation.divide_level), "div rdiv rtruediv"),
    (Row(N, normalisation.activation, aligned), "gelu silu mish hardswish selu celu hardshrink softshrink sin asinh atan squash"),
    (Row(N, normalisation.activation, aligned, FEATURE), "elu relu6 square"),
    (Row(N, normalisation.activation, aligned, GATE), "tanh erf sqrt log1p expm1"),
    (Row(N, normalisation.power, aligned, normalisation.power_level), "pow rpow"),
    (Row(N, normalisation.offset_activation, aligned, FEATURE), "exp exp2 softplus"),
    (Row(N, normalisation.offset_activation, aligned, GATE), "sigmoid hardsigmoid log_sigmoid"),
    (Row(N, normalisation.offset_activation, aligned, normalisation.clamp_level), "clamp"),
    (Row(N, normalisation.offset_activation, aligned, GATE), "hardtanh erfc"),
    (Row(N, normalisation.offset_activation, aligned), "clamp_min clamp_max threshold maximum minimum cos"),
    (Row(N, bilinear.softmax, aligned, ATTENTION), "softmax _softmax"),
    (Row(N, normalisation.variance, traced, GATE), "var"),
    (Row(N, reindexing.native, traced, GATE), "std"),
    (Row(N, normalisation.norm, traced, GATE), "norm linalg_norm linalg_vector_norm"),
    (Row(N, normalisation.stop, aligned, normalisation.reciprocal_level), "rsqrt reciprocal"),
    (Row(N, normalisation.stop, aligned, GATE), "log log2 log10 log_softmax floor ceil round trunc sign"),
    (Row(N, normalisation.stop, traced, GATE), "logsumexp"),
    # Selections: homogeneous of degree one, so that the native backward is exact ------------------------------
    (Row(N, reindexing.native, aligned, FEATURE), "relu abs"),
    (Row(N, reindexing.hypot, aligned, FEATURE), "hypot"),
    (Row(N, reindexing.native, aligned), "leaky_relu prelu rrelu"),
    (Row(R, reindexing.native, kept), "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
        "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices affine_grid_generator"),
    (Row(R, reindexing.unpool, kept), "max_unpool2d max_unpool3d"),
    (Row(R, normalisation.select, aligned_or_traced), "max min"),
    (Row(R, reindexing.native, traced), "amax amin median kthvalue topk sort"),
    (Row(R, normalisation.quantile, traced), "quantile"),
    # Reindexing ----------------------------------------------------------------------------------------------
    (Row(R, reindexing.native, row_major), "view reshape view_as reshape_as flatten unflatten ravel squeeze unsqueeze"),
    (Row(R, reindexing.native, aligned), "contiguous clone alias positive to type float double half bfloat16 cuda cpu type_as expand expand_as broadcast_tensors "
        "broadcast_to dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout conj real imag roll flip"),
    (Row(R, reindexing.native, traced), "permute transpose t T mT H mH movedim moveaxis swapaxes swapdims select unbind diagonal"),
    (Row(R, reindexing.native, kept), "chunk split split_with_sizes tensor_split unsafe_chunk narrow pixel_shuffle pixel_unshuffle channel_shuffle "
        "im2col col2im"),
    (Row(R, reindexing.native, indexed), "getitem"),
    (Row(R, reindexing.native, kept), "gather index_select take_along_dim"),
    (Row(R, reindexing.native, probed), "masked_select unfold as_strided repeat tile repeat_interleave rot90 "
        "view_as_real view_as_complex atleast_1d"),
    (Row(R, reindexing.affine, kept), "cat hstack vstack pad where masked_fill scatter scatter_add index_add index_copy index_fill index_put "
        "masked_scatter slice_scatter select_scatter write set_item"),
    (Row(R, reindexing.native, aligned), "laid_out"),
    (Row(R, reindexing.native, kept), "meshgrid"),
    (Row(R, reindexing.affine, stacked), "stack"),
    (Row(R, reindexing.detach, aligned, reindexing.detached_level), "detach data"),
    # Made of others: written out in primitives/composite.py ----------------------------------------------------
    (Row(B, Surrogate(composite.cosine_similarity), traced), "cosine_similarity"),
    (Row(L, Surrogate(composite.addmm), kept), "addmm"),
    (Row(L, Surrogate(composite.baddbmm), kept), "baddbmm"),
    (Row(L, Surrogate(composite.addcmul), aligned), "addcmul"),
    (Row(L, Surrogate(composite.addcdiv), aligned), "addcdiv"),
    (Row(L, Surrogate(composite.lerp), aligned), "lerp"),
    (Row(N, Surrogate(composite.glu), kept), "glu"),
    (Row(N, Surrogate(composite.var_mean), traced), "var_mean"),
    (Row(N, Surrogate(composite.std_mean), traced), "std_mean"),
    # The fifth primitive: a recurrence, unrolled into steps that are made of the four --------------------------------
    (Row(T, Surrogate(composite.recurrent(composite.lstm_cell)), kept), "lstm"),
    (Row(T, Surrogate(composite.recurrent(composite.gru_cell)), kept), "gru"),
    (Row(T, Surrogate(composite.recurrent(composite.tanh_cell)), kept), "rnn_tanh"),
    (Row(T, Surrogate(composite.recurrent(composite.relu_cell)), kept), "rnn_relu"),
]  # fmt: skip

TABLE: dict[str, Row] = {name: row for row, names in _ROWS for name in names.split()}

#: Operations whose parameters may depend on the input, too: then they are made of parts.
BY_PARTS: dict[str, Row] = {
    "layer_norm": Row(N, Surrogate(composite.layer_norm), kept),
    "rms_norm": Row(N, Surrogate(composite.rms_norm), kept),
    "group_norm": Row(N, Surrogate(composite.group_norm), kept),
    "instance_norm": Row(N, Surrogate(composite.instance_norm), kept),
    "batch_norm": Row(N, Surrogate(composite.batch_norm), kept),
    "prelu": Row(N, Surrogate(composite.prelu), kept),
}

#: Other names of the same operations.
_SYNONYMS = {
    "radd": "add", "subtract": "sub", "multiply": "mul", "rmul": "mul", "divide": "div", "true_divide": "div", "truediv": "div",
    "absolute": "abs", "negative": "neg", "concat": "cat", "concatenate": "cat", "clip": "clamp", "special_expit": "sigmoid",
    "is_nonzero": "item", "special_softmax": "softmax", "arctan": "atan", "arcsinh": "asinh", "row_stack": "vstack", "frobenius_norm": "norm",
    "linalg_matmul": "matmul",
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
    "_has_compatible_shallow_copy_type dim_order nbytes has_names is_tensor dlpack_device array_priority register_hook retain_grad".split()
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
#: In-place operations that leave nothing of what was there, those of torch.nn.init among them.
FILLS = frozenset(
    "zero fill uniform normal bernoulli exponential random cauchy log_normal geometric kaiming_uniform "
    "kaiming_normal xavier_uniform "
    "xavier_normal trunc_normal constant ones zeros eye dirac orthogonal sparse".split()
)
#: Operations whose result has a shape that depends on values, and the arguments that it depends on: each of its sizes
#: is a number that leaves torch. Of those without arguments here, it is whole numbers that are given as single tensors
#: (``torch.zeros(n)``).
SHAPED_BY_VALUES: dict[str, tuple[tuple[int, str], ...]] = dict.fromkeys("nonzero argwhere unique unique_consecutive _unique2 bincount one_hot".split(), ((0, "input"),)) | {
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
