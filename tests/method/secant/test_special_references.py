"""Every operation of the table relative to references that are small, zero, or equal to the input.

The pixels hold the difference.
"""

from __future__ import annotations

from inspect import signature

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torchvision.ops import deform_conv2d, ps_roi_align, roi_align

import hilrp
from helpers.nets import Apply, total
from hilrp.engine import engine
from hilrp.method import recurrence
from hilrp.method.rules import Rules
from hilrp.method.table import TABLE

EXACT = Rules(linear="epsilon", constants="reference")
W = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
V = torch.randn(6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def w(x):
    return W.to(x.dtype)


def v(x):
    return V.to(x.dtype)


def spread(x):
    """A variance with an epsilon, as norms have it: tiny on a zero reference."""
    return x.square().mean(-1, keepdim=True) + 1e-5


def recurrent(kind, **options):
    def run(x):
        torch.manual_seed(5)
        return getattr(nn, kind)(6, 3, batch_first=True, **options).to(x.dtype)(x)[0]

    return run


def lengths(x):
    """One of three for each sample."""
    return torch.tensor([(5, 2, 4)[i % 3] for i in range(len(x))])


def packed(x):
    return pack_padded_sequence(x, lengths(x), batch_first=True, enforce_sorted=False)


def filled_up(x):
    return pad_packed_sequence(packed(x), batch_first=True, padding_value=0.3)[0]


def regions(x):
    """One of two for each sample."""
    return x.new_tensor([[i, *((0, 0, 4, 3), (1, 1, 3, 4))[i % 2]] for i in range(len(x))])


def written(x):
    y = x.clone()
    y[:, 1] = 2 * x[:, 0]
    return y


def picked(x):
    y = x.clone()
    y[:, torch.tensor([1, 3])] = 2 * x[:, :2]
    return y


def copied(x):
    y = x.clone()
    y.copy_(2 * x)
    return y


def index(x, size=6):
    return torch.arange(size).flip(0).expand(*x.shape[:-1], size)


#: The operation's name in the table -> a function of a tensor [B,5,6] that uses it.
CASES = {
    "linear": lambda x: F.linear(x, w(x), v(x)[0]),
    "conv1d": lambda x: F.conv1d(x, w(x)[:4, :5, None], v(x)[0, :4]),
    "conv2d": lambda x: F.conv2d(x[:, None], w(x)[:3, None, :3, None], v(x)[0, :3]),
    "conv3d": lambda x: F.conv3d(x[:, None, None], w(x)[:3, None, None, :3, None]),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x, w(x)[:5, :4, None]),
    "conv_transpose2d": lambda x: F.conv_transpose2d(x[:, None], w(x)[None, :2, :3, None]),
    "conv_transpose3d": lambda x: F.conv_transpose3d(x[:, None, None], w(x)[None, :2, :3, None, None]),
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(1),
    "nansum": lambda x: x.nansum(-1),
    "nanmean": lambda x: x.nanmean(-1),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 3, 1, 1),
    "avg_pool2d": lambda x: F.avg_pool2d(x[:, None], 2),
    "avg_pool3d": lambda x: F.avg_pool3d(x[:, None, None], (1, 2, 2)),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 4),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x[:, None], (2, 4)),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x[:, None, None], (1, 2, 4)),
    "upsample_nearest1d": lambda x: F.interpolate(x, size=9),
    "upsample_nearest2d": lambda x: F.interpolate(x[:, None], size=(9, 7)),
    "upsample_nearest3d": lambda x: F.interpolate(x[:, None, None], size=(1, 9, 7)),
    "_upsample_nearest_exact2d": lambda x: F.interpolate(x[:, None], size=(9, 7), mode="nearest-exact"),
    "upsample_linear1d": lambda x: F.interpolate(x, size=9, mode="linear"),
    "upsample_bilinear2d": lambda x: F.interpolate(x[:, None], size=(9, 7), mode="bilinear"),
    "upsample_trilinear3d": lambda x: F.interpolate(x[:, None, None], size=(2, 9, 7), mode="trilinear"),
    "upsample_bicubic2d": lambda x: F.interpolate(x[:, None], size=(9, 7), mode="bicubic"),
    "_upsample_bilinear2d_aa": lambda x: F.interpolate(x[:, None], size=(3, 4), mode="bilinear", antialias=True),
    "_upsample_bicubic2d_aa": lambda x: F.interpolate(x[:, None], size=(3, 4), mode="bicubic", antialias=True),
    "fft_fft": lambda x: torch.fft.fft(x).real,
    "fft_ifft": lambda x: torch.fft.ifft(x).imag,
    "fft_rfft": lambda x: torch.fft.rfft(x).abs(),
    "fft_irfft": lambda x: torch.fft.irfft(torch.fft.rfft(x) ** 2),
    "fft_fft2": lambda x: torch.fft.fft2(x).real,
    "fft_ifft2": lambda x: torch.fft.ifft2(x).real,
    "fft_rfft2": lambda x: torch.view_as_real(torch.fft.rfft2(x)),
    "fft_irfft2": lambda x: torch.fft.irfft2(torch.fft.rfft2(x) * w(x)[:5, :4]),
    "fft_fftn": lambda x: torch.fft.fftn(x, dim=(1, 2)).real,
    "fft_ifftn": lambda x: torch.fft.ifftn(x, dim=(1, 2)).real,
    "cumsum": lambda x: x.cumsum(-1),
    "add": lambda x: x + 0.5,
    "sub": lambda x: x - x.mean(-1, keepdim=True),
    "rsub": lambda x: torch.rsub(x, 1.5, alpha=2),
    "neg": lambda x: -x,
    "batch_norm": lambda x: F.batch_norm(x, w(x)[0, :5], w(x)[1, :5].abs(), v(x)[0, :5], v(x)[1, :5]),
    "matmul": lambda x: (x @ w(x)) @ (x @ v(x)).transpose(1, 2),
    "mm": lambda x: torch.mm(x.flatten(0, 1), w(x)).reshape(x.shape),
    "bmm": lambda x: torch.bmm(x, (x @ w(x)).transpose(1, 2)),
    "mv": lambda x: torch.mv(x.flatten(0, 1), w(x)[0]).reshape(x.shape[:2]),
    "dot": lambda x: torch.stack([torch.dot(row, w(row)[0]) for row in x.flatten(0, 1)]).reshape(x.shape[:2]),
    "rmatmul": lambda x: x.__rmatmul__(w(x)[:5, :5]),
    "einsum": lambda x: torch.einsum("bij,bkj->bik", x, x @ w(x)),
    "mul": lambda x: x * (x @ w(x)),
    "scaled_dot_product_attention": lambda x: F.scaled_dot_product_attention(x @ w(x), x @ v(x), x.sin()),
    "grid_sampler": lambda x: F.grid_sample(
        (x @ w(x))[:, None], x[:, :, :2].tanh().unsqueeze(2), padding_mode="border", align_corners=False
    ),
    "torchvision::deform_conv2d": lambda x: deform_conv2d(
        (x @ w(x))[:, None], x[:, None].tanh().expand(-1, 2, -1, -1), v(x)[:1, :1].reshape(1, 1, 1, 1),
        mask=x[:, None].sigmoid(),
    ),
    "torchvision::roi_align": lambda x: roi_align(x[:, None], regions(x), 2),
    "torchvision::ps_roi_align": lambda x: ps_roi_align(x[:, :4].reshape(-1, 4, 2, 3), regions(x), 2),
    "layer_norm": lambda x: F.layer_norm(x, (6,), w(x)[0], v(x)[0]),
    "rms_norm": lambda x: F.rms_norm(x, (6,), w(x)[0], 1e-5),
    "group_norm": lambda x: F.group_norm(x.transpose(1, 2), 3, w(x)[0], v(x)[0]),
    "instance_norm": lambda x: F.instance_norm(x, weight=w(x)[0, :5], bias=v(x)[0, :5]),
    "div": lambda x: x / spread(x).sqrt(),
    "rdiv": lambda x: x * (1 / spread(x).sqrt()),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
    "sin": torch.sin,
    "asinh": torch.asinh,
    "squash": recurrence.squash,
    "atan": torch.atan,
    "elu": F.elu,
    "relu6": F.relu6,
    "square": torch.square,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sqrt": lambda x: spread(x).sqrt(),
    "log1p": lambda x: x.abs().log1p(),
    "expm1": lambda x: x.tanh().expm1(),
    "pow": lambda x: x**3 + x * spread(x) ** -0.5,
    "rpow": lambda x: 2 ** x.tanh(),
    "exp": lambda x: x.tanh().exp(),
    "exp2": lambda x: x.tanh().exp2(),
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "hardsigmoid": F.hardsigmoid,
    "log_sigmoid": F.logsigmoid,
    "clamp": lambda x: x.clamp(-0.5, 0.7),
    "hardtanh": F.hardtanh,
    "erfc": torch.erfc,
    "clamp_min": lambda x: x.clamp_min(0.1),
    "clamp_max": lambda x: x.clamp_max(0.1),
    "threshold": lambda x: F.threshold(x, 0.2, -1.0),
    "maximum": lambda x: torch.maximum(x, x @ w(x)),
    "minimum": lambda x: torch.minimum(x, v(x)[:5]),
    "cos": torch.cos,
    "softmax": lambda x: (x @ w(x)).softmax(-1) * x,
    "_softmax": lambda x: torch._softmax(x, -1, False) * x,
    "var": lambda x: x.var(-1),
    "std": lambda x: x.std(-1),
    "norm": lambda x: x.norm(dim=-1),
    "linalg_norm": lambda x: torch.linalg.norm(x, dim=-1),
    "linalg_vector_norm": lambda x: torch.linalg.vector_norm(x, 3, dim=-1),
    "rsqrt": lambda x: x * spread(x).rsqrt(),
    "reciprocal": lambda x: x * spread(x).sqrt().reciprocal(),
    "log": lambda x: spread(x).log(),
    "log2": lambda x: spread(x).log2(),
    "log10": lambda x: spread(x).log10(),
    "logit": lambda x: torch.logit(0.1 + 0.8 * x.sigmoid()),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "relu": torch.relu,
    "abs": torch.abs,
    "hypot": lambda x: torch.hypot(x, x @ w(x)) + torch.hypot(x, v(x)[:5]),
    "leaky_relu": F.leaky_relu,
    "prelu": lambda x: F.prelu(x, w(x)[0, :5]),
    "rrelu": lambda x: F.rrelu(x),
    "max_pool1d": lambda x: F.max_pool1d(x, 3, 2, 1),
    "max_pool2d": lambda x: F.max_pool2d(x[:, None], 2),
    "max_pool3d": lambda x: F.max_pool3d(x[:, None, None], (1, 2, 2)),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 4),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x[:, None], (2, 4)),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x[:, None, None], (1, 2, 4)),
    "max_pool1d_with_indices": lambda x: F.max_pool1d_with_indices(x, 3, 2, 1)[0],
    "max_pool2d_with_indices": lambda x: F.max_pool2d(x[:, None], 2, return_indices=True)[0],
    "max_pool3d_with_indices": lambda x: F.max_pool3d(x[:, None, None], (1, 2, 2), return_indices=True)[0],
    "max_unpool2d": lambda x: F.max_unpool2d(
        x[:, None, :2, :3], torch.tensor([[0, 2, 5], [12, 15, 17]]).expand(len(x), 1, 2, 3), 2
    ),
    "max_unpool3d": lambda x: F.max_unpool3d(
        x[:, None, None, :2, :3], torch.tensor([[0, 2, 5], [12, 15, 17]]).expand(len(x), 1, 1, 2, 3), (1, 2, 2)
    ),
    "affine_grid_generator": lambda x: F.affine_grid(x[:, :2, :3], (len(x), 1, 2, 3), align_corners=False),
    "max": lambda x: x.max(-1).values,
    "min": lambda x: x.flatten(1).min(1).values.unsqueeze(1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((1, 2)).unsqueeze(1),
    "median": lambda x: x.median(-1).values,
    "quantile": lambda x: x.quantile(0.4, -1),
    "kthvalue": lambda x: x.kthvalue(3, -1).values,
    "topk": lambda x: x.topk(2, -1).values,
    "sort": lambda x: x.sort(-1).values,
    "view": lambda x: x.view(len(x), 30),
    "reshape": lambda x: x.reshape(len(x), 6, 5),
    "view_as": lambda x: x.view_as(x.detach()),
    "reshape_as": lambda x: x.reshape_as(x.detach()),
    "flatten": lambda x: x.flatten(1),
    "unflatten": lambda x: x.unflatten(2, (2, 3)),
    "ravel": lambda x: x.ravel().reshape(x.shape),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "contiguous": lambda x: x.transpose(1, 2).contiguous(),
    "clone": lambda x: x.clone(),
    "alias": torch.ops.aten.alias,
    "positive": lambda x: +x,
    "to": lambda x: x.to(torch.float64),
    "type": lambda x: x.type(torch.float64),
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "cpu": lambda x: x.cpu(),
    "type_as": lambda x: x.type_as(w(x)),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 2, -1, -1),
    "expand_as": lambda x: x[:, :1].expand_as(x),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, x[:, :1])[1],
    "broadcast_to": lambda x: x[:, :1].broadcast_to(x.shape),
    "dropout": lambda x: F.dropout(x, training=False),
    "feature_dropout": lambda x: torch.feature_dropout(x, 0.5, False),
    "alpha_dropout": lambda x: torch.alpha_dropout(x, 0.5, False),
    "feature_alpha_dropout": lambda x: torch.feature_alpha_dropout(x, 0.5, False),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, False)[0],
    "conj": lambda x: torch.fft.fft(x).conj().imag,
    "real": lambda x: torch.fft.fft(x).real,
    "imag": lambda x: torch.fft.fft(x).imag,
    "roll": lambda x: x.roll(1, 2),
    "flip": lambda x: x.flip(1),
    "permute": lambda x: x.permute(0, 2, 1),
    "transpose": lambda x: x.transpose(1, 2),
    "t": lambda x: x.flatten(1).t().t(),
    "T": lambda x: x.flatten(1).T.T,
    "mT": lambda x: x.mT,
    "H": lambda x: x.flatten(1).H.H,
    "mH": lambda x: x.mH,
    "movedim": lambda x: x.movedim(1, 2),
    "moveaxis": lambda x: x.moveaxis(1, 2),
    "swapaxes": lambda x: x.swapaxes(1, 2),
    "swapdims": lambda x: x.swapdims(1, 2),
    "select": lambda x: x.select(1, 2),
    "unbind": lambda x: x.unbind(1)[2],
    "diagonal": lambda x: x.diagonal(dim1=1, dim2=2),
    "chunk": lambda x: x.chunk(2, 2)[1],
    "split": lambda x: x.split(2, 2)[1],
    "split_with_sizes": lambda x: x.split_with_sizes([2, 4], 2)[1],
    "tensor_split": lambda x: x.tensor_split(2, 2)[1],
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 2)[1],
    "narrow": lambda x: x.narrow(1, 1, 3),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[:, :4, :, None], 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, None, :4], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x[:, :4, :, None], 2),
    "im2col": lambda x: F.unfold(x[:, None], 2),
    "col2im": lambda x: F.fold(x[:, :4], (3, 4), 2),
    "getitem": lambda x: x[:, 1:, ::2],
    "gather": lambda x: x.gather(-1, index(x)),
    "index_select": lambda x: x.index_select(1, torch.tensor([3, 1])),
    "take_along_dim": lambda x: x.take_along_dim(index(x), -1),
    "masked_select": lambda x: x.masked_select(torch.ones(5, 6, dtype=torch.bool)).reshape(x.shape),
    "unfold": lambda x: x.unfold(2, 3, 1),
    "as_strided": lambda x: x.as_strided(x.shape, x.stride()),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "tile": lambda x: x.tile(1, 2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "rot90": lambda x: x.rot90(1, (1, 2)),
    "view_as_real": lambda x: torch.view_as_real(torch.fft.fft(x)),
    "view_as_complex": lambda x: torch.view_as_complex(x.unflatten(2, (3, 2))).abs(),
    "atleast_1d": torch.atleast_1d,
    "cat": lambda x: torch.cat([x, v(x)[:5].expand_as(x)], 1),
    "hstack": lambda x: torch.hstack([x, x.sin()]),
    "vstack": lambda x: torch.vstack([x[:, 0], x[:, 1]]).reshape(2, len(x), 6).transpose(0, 1),
    "pad": lambda x: F.pad(x, (1, 1), value=0.3),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "masked_fill": lambda x: x.masked_fill(torch.eye(6).bool()[:5], 2.0),
    "scatter": lambda x: x.scatter(-1, index(x, 2), 2 * x[..., :2]),
    "scatter_add": lambda x: x.scatter_add(-1, index(x, 2), 2 * x[..., :2]),
    "index_add": lambda x: x.index_add(1, torch.tensor([0, 2]), x[:, :2].sin()),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([0, 2]), x[:, :2].sin()),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([0, 2]), 1.5),
    "index_put": lambda x: x.index_put((torch.arange(len(x)), torch.tensor(1)), x[:, 0].sin()),
    "masked_scatter": lambda x: x.masked_scatter(torch.eye(6).bool()[:5], 2 * x[:, 0, :5].contiguous()),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :1].sin(), 1, 0, 1),
    "select_scatter": lambda x: x.select_scatter(x[:, 0].sin(), 1, 2),
    "set_item": picked,
    "write": written,
    "laid_out": copied,
    "meshgrid": lambda x: torch.stack([sum(torch.meshgrid(t[0], t[1], indexing="ij")) for t in x]),
    "stack": lambda x: torch.stack([x, x.sin()], 1),
    "detach": lambda x: x + (x.tanh() - x).detach(),
    "data": lambda x: x + x.data.tanh(),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x @ w(x) + 0.3, dim=-1),
    "addmm": lambda x: torch.addmm(v(x)[0], x.flatten(0, 1), w(x)).reshape(x.shape),
    "baddbmm": lambda x: torch.baddbmm(x[:, :, :5], x, x.transpose(1, 2)),
    "addcmul": lambda x: torch.addcmul(x, x @ w(x), x.sigmoid(), value=0.5),
    "addcdiv": lambda x: torch.addcdiv(x, x @ w(x), spread(x).sqrt(), value=0.5),
    "lerp": lambda x: torch.lerp(x, x @ w(x), x.sigmoid()),
    "glu": F.glu,
    "var_mean": lambda x: torch.var_mean(x, -1)[0] + torch.var_mean(x, -1)[1],
    "std_mean": lambda x: torch.std_mean(x, -1)[0] + torch.std_mean(x, -1)[1],
    "_pack_padded_sequence": filled_up,
    "_pad_packed_sequence": filled_up,
    "lstm": recurrent("LSTM"),
    "gru": recurrent("GRU"),
    "rnn_tanh": recurrent("RNN"),
    "rnn_relu": recurrent("RNN", nonlinearity="relu"),
}  # fmt: skip

#: Casts to types that are coarser than the bound, a cast that needs a GPU, and another name of `rdiv`.
LEFT_OUT = {"half", "bfloat16", "cuda", "rtruediv"}
#: Other forms of operations above, each with a secant of its own.
FORMS = {
    "gated norm": lambda x: normed(x[..., :3] * F.silu(x[..., 3:])),
    "norm of a detached divisor": lambda x: x * spread(x).rsqrt().detach(),
    "norm with its weight first": lambda x: (w(x)[0] * spread(x).rsqrt().unsqueeze(0))[0] * x,
    "standardised": lambda x: (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True) + 1e-5).rsqrt(),
    "divided by a norm": lambda x: F.normalize(x, dim=-1, eps=1e-5) + F.normalize(x, p=1, dim=-1, eps=1e-5),
    "softmax by hand": lambda x: (e := x.tanh().exp()) * (1 / e.sum(-1, keepdim=True)),
    "median of all": lambda x: torch.stack([t.median() for t in x]).unsqueeze(1),
    "maximum of all": lambda x: torch.stack([t.max() for t in x]).unsqueeze(1),
    "maximum over axes apart": lambda x: x.unflatten(2, (2, 3)).amax((1, 3), keepdim=True),
    "minimum over axes apart": lambda x: x.unflatten(2, (2, 3)).amin((-1, 1)),
    "norm of the first order": lambda x: torch.linalg.norm(x, 1, dim=-1),
    "spectral norm": lambda x: torch.stack([torch.linalg.norm(t, 2) for t in x]).unsqueeze(1),
    "frobenius norm": lambda x: torch.linalg.norm(x, "fro", dim=(1, 2)).unsqueeze(1),
    "hypot of a constant first": lambda x: torch.hypot(input=v(x)[:5], other=x[:, :1]),
    "hypot, broadcast": lambda x: x[:, :1].hypot(v(x)[:5]),
} | {
    f"norm of order {order} over {dim}": lambda x, order=order, dim=dim: torch.linalg.vector_norm(x, order, dim, True)
    for order in (0, 0.5, 1, 2, 3, float("inf")) for dim in (-1, (1, 2))
} | {
    f"quantile, {kind}": lambda x, kind=kind: (
        x.quantile(x.new_tensor([0.1, 0.5, 1.0]), 1, True, interpolation=kind).movedim(0, 1)
    )
    for kind in ("linear", "lower", "higher", "midpoint", "nearest")
}  # fmt: skip


def normed(x):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def references(x):
    noise = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(x.dtype)
    half = torch.arange(x.numel()).reshape(x.shape) % 2 == 0
    return {
        "zero": torch.zeros_like(x),
        "tiny": 1e-8 * noise,
        "small": 1e-3 * noise,
        "equal": x.clone(),
        "next to equal": x + 1e-9 * noise,
        "equal in places": torch.where(half, x, noise),
        "zero in places": torch.where(half, x, 0),
        "opposite": -x,
        "another": noise,
    }


def test_no_operation_is_left_out():
    assert set(CASES) | LEFT_OUT == set(TABLE)


def batches(x):
    """References of inputs: all in one batch, whose samples don't know of each other, and the input itself alone.

    What is chosen for a whole batch because nothing in it differs is chosen there alone.
    """
    found = references(x)
    kinds = [kind for kind in found for _ in range(len(x))]
    joined = kinds, torch.cat([x] * len(found)), torch.cat(list(found.values()))
    return [joined, (["equal"] * len(x), x, found["equal"])]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", [*CASES, *FORMS])
def test_the_pixels_hold_the_difference(name, dtype, monkeypatch):
    """Relative to the larger of the two scores, both from plain passes."""
    function = (CASES | FORMS)[name]
    met = set()
    monkeypatch.setattr(engine, "row_of", lambda called: met.add(called) or TABLE.get(called))
    # Of scores of the size of 1e4, attention has the rounding of its kernel.
    for scale in (1.0,) if name == "scaled_dot_product_attention" else (1.0, 100.0):
        noise = torch.randn(2, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
        for kinds, x, x0 in batches(scale * (noise + 0.5).to(dtype)):
            found = hilrp.explain(Apply(function).eval(), x, total, EXACT, x0, "off", None)
            score, before = (total(function(t)).double() for t in (x, x0))
            difference = found.relevance.double().flatten(1).sum(1) - (score - before)
            bound = 1e-10 if dtype == torch.float64 and name not in ("float",) else 1e-4
            held = difference.abs() <= bound * torch.maximum(score.abs(), before.abs())
            held &= found.relevance.isfinite().flatten(1).all(1)
            assert held.all(), (scale, [kind for kind, each in zip(kinds, held, strict=True) if not each])
            assert set(found.ledger.entries) == {"reference"}
    assert name in met or name in FORMS


BY_HAND = {
    "rsqrt": lambda s: s.rsqrt(),
    "power": lambda s: s**-0.5,
    "reciprocal": lambda s: s.sqrt().reciprocal(),
    "one over it": lambda s: 1 / s.sqrt(),
    "detached": lambda s: s.rsqrt().detach(),
    "moved and scaled": lambda s: (2 * s.rsqrt()).transpose(1, 2).float().double().transpose(1, 2) / 2,
}  # fmt: skip


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize("form", BY_HAND)
def test_a_norm_by_hand_has_the_form_of_torchs(form, scale):
    """Whichever way the divisor is written, and however large the input is beside the reference.

    Torch's norms have a form of their own.
    """
    generator = torch.Generator().manual_seed(6)
    x, g = (torch.randn(2, 5, 6, dtype=torch.float64, generator=generator) for _ in range(2))
    x = x * scale
    fine = 1e-6 if form == "moved and scaled" else 1e-9  # one goes through float32
    for x0 in (x0 for kind, x0 in references(x).items() if "equal" not in kind):
        torchs = hilrp.explain(
            Apply(lambda t: F.rms_norm(t, (6,), eps=1e-5) * g).eval(), x, total, EXACT, x0, "off", None
        )
        ours = Apply(lambda t: t * BY_HAND[form](spread(t)) * g).eval()
        found = hilrp.explain(ours, x, total, EXACT, x0, "off", None)
        size = float(torchs.relevance.abs().max())
        torch.testing.assert_close(found.relevance, torchs.relevance, rtol=0, atol=fine * size)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_gated_norm_of_mamba(dtype):
    """It computes in float32 inside: a difference of huge numbers would show there, whatever the model's type."""
    module = pytest.importorskip("transformers.models.mamba2.modeling_mamba2")
    groups = {"group_size": 16} if "group_size" in signature(module.MambaRMSNormGated).parameters else {}  # from 5.23
    norm = module.MambaRMSNormGated(16, eps=1e-5, **groups).to(dtype)
    x = 30 * torch.randn(2, 5, 32, dtype=dtype, generator=torch.Generator().manual_seed(7))
    for x0 in references(x).values():
        found = hilrp.explain(Apply(lambda t: norm(t[..., :16], t[..., 16:])).eval(), x, total, EXACT, x0, "off", None)
        assert float(found.ledger.residual.max()) < 1e-5


def test_a_quotient_of_parts_that_cancel():
    """Linear attention of a token that no key matches, in either pass: nothing changes, and nothing is enlarged."""

    def attend(x):
        matches = (x[:, 0] * x[:, 1]).sum(-1, keepdim=True)
        return 3 * matches / (matches + 1e-15) + x.sum((1, 2))[:, None]

    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    found = hilrp.explain(Apply(attend).eval(), x, 0, EXACT, x.flip(2))
    torch.testing.assert_close(found.relevance, x - x.flip(2))
