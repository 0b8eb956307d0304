"""The table: every torch operation that vision models use, and the primitive that it is.

This is the heart of the library. A row gives the primitive (for the audit), the rule, the form relative to a
reference, how the samples move (for the per-sample ledger), the gate level of the output and the names of the
operations. Names are canonical (`torch_calls.operation_name`): ``torch.add``, ``Tensor.add``, ``Tensor.__add__`` and
``Tensor.add_`` are all ``add``. Functions of ``torch.nn.functional`` that are written in Python aren't listed: the
engine opens them and meets the operations they are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.method import bilinear, composite, normalisation, recurrence, reindexing
from hilrp.method.call import Call, Level
from hilrp.method.composite import Surrogate
from hilrp.method.rules import REFERENCE_IS_DEFAULT
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
from hilrp.util.errors import AuditError

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

    ``secant`` names its form relative to a reference, which `secant` enters into `FORMS`; ``"same"`` is the rule
    itself, and what is made of others needs none. ``level`` is the gate level of the output, or a function of the
    call; ``None`` keeps the lowest of the operands'. A linear map makes a new signal of an operand whose level is at
    most ``renews``. ``users`` marks a rule that the user has registered.
    """

    primitive: Primitive
    rule: Rule
    secant: str
    follow: Follow
    level: Level | Callable[[Call], Level | None] | None = None
    renews: Level | None = None
    users: bool = False


L, B, N, R, T = Primitive
_, SIGNAL, FEATURE, GATE, _, ATTENTION, _ = Level

_ROWS: list[tuple[Row, str]] = [
    # Linear maps: Definition 1, Eq. (6) ----------------------------------------------------------------------
    (Row(L, bilinear.layer, "layer", kept, renews=GATE), "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d"),
    (Row(L, reindexing.native, "affine", traced), "sum mean nansum nanmean"),
    (Row(L, reindexing.average_pool, "same", kept), "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d "
        "adaptive_avg_pool3d"),
    (Row(L, reindexing.native, "affine", kept), "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d "
        "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"),
    (Row(L, reindexing.native, "affine", kept), "fft_fft fft_ifft fft_rfft fft_irfft fft_fft2 fft_ifft2 fft_rfft2 fft_irfft2 fft_fftn "
        "fft_ifftn cumsum"),
    (Row(L, reindexing.add, "affine", aligned), "add sub rsub"),
    (Row(L, reindexing.native, "affine", aligned), "neg"),
    (Row(L, normalisation.batch_norm, "same", kept), "batch_norm"),
    # Bilinear mixing: Definition 2 (linear, if only one factor depends on the input) ---------------------------
    (Row(B, bilinear.mix, "mix", multiplied, bilinear.mixed_level, renews=FEATURE), "matmul mm bmm mv dot rmatmul"),
    (Row(B, bilinear.mix, "mix", summed_by_letters, bilinear.mixed_level, renews=FEATURE), "einsum"),
    (Row(B, bilinear.multiply, "product", aligned), "mul"),
    (Row(B, bilinear.attention, "attention", values_kept, SIGNAL), "scaled_dot_product_attention"),
    (Row(B, bilinear.sample, "sample", kept), "grid_sampler"),
    (Row(B, bilinear.deformable, "deformable", kept, renews=GATE), "torchvision::deform_conv2d"),
    (Row(B, bilinear.pooled_regions, "pooled_regions", kept), "torchvision::roi_align torchvision::ps_roi_align"),
    # Normalisation, gates, activations: Definition 3 ------------------------------------------------------------
    (Row(N, normalisation.normalise, "normalise", kept, SIGNAL), "layer_norm rms_norm group_norm instance_norm"),
    (Row(N, normalisation.divide, "divide", aligned, normalisation.divide_level), "div rdiv rtruediv"),
    (Row(N, normalisation.activation, "elementwise", aligned), "gelu silu mish hardswish selu celu hardshrink softshrink sin asinh atan squash"),
    (Row(N, normalisation.activation, "elementwise", aligned, FEATURE), "elu relu6"),
    (Row(N, normalisation.activation, "product", aligned, FEATURE), "square"),
    (Row(N, normalisation.activation, "elementwise", aligned, GATE), "tanh erf sqrt log1p expm1"),
    (Row(N, normalisation.power, "elementwise", aligned, normalisation.power_level), "pow rpow"),
    (Row(N, normalisation.offset_activation, "elementwise", aligned, FEATURE), "exp exp2 softplus"),
    (Row(N, normalisation.offset_activation, "elementwise", aligned, GATE), "sigmoid hardsigmoid log_sigmoid"),
    (Row(N, normalisation.offset_activation, "elementwise", aligned, normalisation.clamp_level), "clamp"),
    (Row(N, normalisation.offset_activation, "elementwise", aligned, GATE), "hardtanh erfc"),
    (Row(N, normalisation.offset_activation, "elementwise", aligned), "clamp_min clamp_max threshold maximum minimum cos"),
    (Row(N, bilinear.softmax, "softmax", aligned, ATTENTION), "softmax _softmax"),
    (Row(N, normalisation.variance, "product", traced, GATE), "var"),
    (Row(N, reindexing.native, "root", traced, GATE), "std"),
    (Row(N, normalisation.norm, "norm", traced, GATE), "norm linalg_norm linalg_vector_norm"),
    (Row(N, normalisation.stop, "elementwise", aligned, normalisation.reciprocal_level), "rsqrt reciprocal"),
    (Row(N, normalisation.stop, "elementwise", aligned, GATE), "log log2 log10 logit floor ceil round trunc sign"),
    (Row(N, normalisation.stop, "log_sum", aligned, GATE), "log_softmax"),
    (Row(N, normalisation.stop, "log_sum", traced, GATE), "logsumexp"),
    # Selections: homogeneous of degree one, so that the native backward is exact --------------------------------
    (Row(N, reindexing.native, "elementwise", aligned, FEATURE), "relu abs"),
    (Row(N, reindexing.hypot, "elementwise", aligned, FEATURE), "hypot"),
    (Row(N, reindexing.native, "elementwise", aligned), "leaky_relu prelu rrelu"),
    (Row(R, reindexing.native, "pool", kept), "max_pool1d max_pool2d max_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d "
        "max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"),
    (Row(R, reindexing.native, "affine", kept), "affine_grid_generator"),
    (Row(R, reindexing.unpool, "unpool", kept), "max_unpool2d max_unpool3d"),
    (Row(R, normalisation.select, "extreme", aligned_or_traced), "max min"),
    (Row(R, reindexing.native, "extreme", traced), "amax amin"),
    (Row(R, reindexing.native, "ordered", traced), "median kthvalue topk sort"),
    (Row(R, normalisation.quantile, "quantile", traced), "quantile"),
    # Reindexing: Definition 4 -----------------------------------------------------------------------------------
    (Row(R, reindexing.native, "affine", row_major), "view reshape view_as reshape_as flatten unflatten ravel squeeze unsqueeze"),
    (Row(R, reindexing.native, "affine", aligned), "contiguous clone alias positive to type float double half bfloat16 cuda cpu type_as expand "
        "expand_as broadcast_tensors broadcast_to dropout feature_dropout alpha_dropout feature_alpha_dropout native_dropout conj real imag "
        "roll flip laid_out"),
    (Row(R, reindexing.native, "affine", traced), "permute transpose t T mT H mH movedim moveaxis swapaxes swapdims select unbind diagonal"),
    (Row(R, reindexing.native, "affine", kept), "chunk split split_with_sizes tensor_split unsafe_chunk narrow pixel_shuffle pixel_unshuffle "
        "channel_shuffle im2col col2im gather index_select take_along_dim meshgrid"),
    (Row(R, reindexing.native, "affine", indexed), "getitem"),
    (Row(R, reindexing.native, "affine", probed), "masked_select unfold as_strided repeat tile repeat_interleave rot90 "
        "view_as_real view_as_complex atleast_1d _pack_padded_sequence"),
    (Row(R, reindexing.unpacked, "affine", probed), "_pad_packed_sequence"),
    (Row(R, reindexing.affine, "affine", kept), "cat hstack vstack pad scatter scatter_add index_add index_copy index_fill index_put "
        "masked_scatter slice_scatter select_scatter write set_item"),
    (Row(R, reindexing.affine, "choose", kept), "where masked_fill"),
    (Row(R, reindexing.affine, "affine", stacked), "stack"),
    (Row(R, reindexing.detach, "detach", aligned, reindexing.detached_level), "detach data"),
    # Made of others: written out in composite.py ----------------------------------------------------------------
    (Row(B, Surrogate(composite.cosine_similarity), "", traced), "cosine_similarity"),
    (Row(L, Surrogate(composite.addmm), "", kept), "addmm"),
    (Row(L, Surrogate(composite.baddbmm), "", kept), "baddbmm"),
    (Row(L, Surrogate(composite.addcmul), "", aligned), "addcmul"),
    (Row(L, Surrogate(composite.addcdiv), "", aligned), "addcdiv"),
    (Row(L, Surrogate(composite.lerp), "", aligned), "lerp"),
    (Row(N, Surrogate(composite.glu), "", kept), "glu"),
    (Row(N, Surrogate(composite.var_mean), "", traced), "var_mean"),
    (Row(N, Surrogate(composite.std_mean), "", traced), "std_mean"),
    # The fifth primitive: a recurrence, unrolled in recurrence.py into steps that are made of the four ------------
    (Row(T, Surrogate(recurrence.recurrent(recurrence.lstm_cell)), "", kept), "lstm"),
    (Row(T, Surrogate(recurrence.recurrent(recurrence.gru_cell)), "", kept), "gru"),
    (Row(T, Surrogate(recurrence.recurrent(recurrence.tanh_cell)), "", kept), "rnn_tanh"),
    (Row(T, Surrogate(recurrence.recurrent(recurrence.relu_cell)), "", kept), "rnn_relu"),
]  # fmt: skip

TABLE: dict[str, Row] = {name: row for row, names in _ROWS for name in names.split()}

#: The forms relative to a reference, by name.
FORMS: dict[str, Rule] = {}


def secant_form(row: Row, name: str) -> Rule:
    """The rule of an operation relative to a reference. Never the plain one in silence: without a form, an error."""
    found = row.rule if row.secant == "same" else FORMS.get(row.secant)
    if found is None:
        raise no_form(name)
    return found


def no_form(name: str) -> AuditError:
    """What to say of an operation that can't be explained relative to a reference."""
    return AuditError(
        f"The operation `{name}` has no form relative to a reference. {REFERENCE_IS_DEFAULT}. Or give it a rule that "
        "has one: hilrp.register with a name, or with a function that writes it in known operations."
    )


def _listed(rule: Rule, module: type[nn.Module]) -> Rule:
    """A rule for calls from modules of just that class; a subclass with a forward of its own has no rule."""
    return lambda call: rule(call) if type(call.module) is module else call.run()


#: What the naive rule set (``unlisted="raw"``) changes: operations that AttnLRP doesn't list run on raw gradients.
NAIVE: dict[str, Row] = {
    name: replace(TABLE[name], rule=reindexing.native)
    for name in ("mul", "div", "rdiv", "rtruediv", "group_norm", "instance_norm")
} | {
    "layer_norm": replace(TABLE["layer_norm"], rule=_listed(normalisation.normalise, nn.LayerNorm)),
    "rms_norm": replace(TABLE["rms_norm"], rule=_listed(normalisation.normalise, nn.RMSNorm)),
}

#: Operations whose parameters may depend on the input, too: then they are made of parts.
BY_PARTS: dict[str, Row] = {
    "layer_norm": Row(N, Surrogate(composite.by_parts(torch.layer_norm, 2)), "", kept),
    "rms_norm": Row(N, Surrogate(composite.by_parts(torch.rms_norm, 2)), "", kept),
    "group_norm": Row(N, Surrogate(composite.by_parts(torch.group_norm, 2, channels=True)), "", kept),
    "instance_norm": Row(N, Surrogate(composite.by_parts(torch.instance_norm, 1, channels=True)), "", kept),
    "batch_norm": Row(N, Surrogate(composite.batch_norm), "", kept),
    "prelu": Row(N, Surrogate(composite.prelu), "", kept),
}
