"""The attention taxonomy: the engine against textbook propagation, mechanism by mechanism, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from hilrp.attribution.explainer import explain
from hilrp.method.rules import Rules
from hilrp.verify.attention import Block, SelfAttention, SpatialReduction
from hilrp.verify.attention_kernels import (
    CoordinateAttention,
    DeformableAttention,
    LinearAttention,
    SeparableAttention,
    SqueezeExcite,
)
from hilrp.verify.attention_parts import Grid, InTurn, Neighbourhood, Windows
from hilrp.verify.attention_streams import CoAttention, CrossAttention, CrossModal, GroupedQuery
from hilrp.verify.realised import joined, realise
from hilrp.verify.report import Row, in_order, primitives_of, relative_error, worst
from hilrp.verify.textbook import Sheet

#: Books (residual, leak, the textbook's own sum) and forward values; relevance of engine and textbook.
BOUNDS = {
    "forward": 1e-12,
    "residual": 1e-11,
    "leak": 1e-11,
    "textbook sum": 1e-11,
    "constants": 1e-10,
    "relevance": 1e-10,
}


Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class Mechanism:
    """A row of the paper's table: reference blocks, and real architectures that use the mechanism."""

    name: str
    blocks: tuple[Callable[[], Block], ...]
    models: tuple[str, ...]
    remark: str = ""


def _windowed() -> Block:
    return InTurn(Windows(6, 6, 4, 3), Windows(6, 6, 4, 3, shift=1))


def _multi_axis() -> Block:
    return InTurn(Windows(4, 6, 4, 2), Grid(4, 6, 4, 2))


def _neighbourhood() -> Block:
    return InTurn(Neighbourhood(7, 8, 4, 3, dilation=1), Neighbourhood(7, 8, 4, 3, dilation=2))


#: The paper's thirteen, in its order.
MECHANISMS = (
    Mechanism("self / multi-head (ViT)", (SelfAttention,), ("timm/vit_tiny_patch16_224",)),
    Mechanism(
        "windowed / shifted (Swin)",
        (_windowed,),
        ("timm/swin_tiny_patch4_window7_224",),
        "with Swin's mask and relative positions",
    ),
    Mechanism("spatial-reduction (PVT)", (SpatialReduction,), ("timm/pvt_v2_b0",)),
    Mechanism(
        "linear (EfficientViT)",
        (LinearAttention,),
        ("timm/efficientvit_b0",),
        "relu features and denominator held fixed",
    ),
    Mechanism(
        "separable (MobileViT)",
        (SeparableAttention,),
        ("timm/mobilevitv2_050",),
        "the keys carry, relu values and scores are held fixed; GroupNorm included; "
        "splitting and expanding are counted as reindexing",
    ),
    Mechanism(
        "multi-axis (MaxViT)", (_multi_axis,), ("timm/maxvit_rmlp_pico_rw_256",), "a window block and a grid block"
    ),
    Mechanism("cross-attention (CrossViT)", (CrossAttention,), ("timm/crossvit_tiny_240",), "two input streams"),
    Mechanism(
        "cross-modal (CLIP)", (CrossModal,), ("transformers/clip",), "cosines to fixed captions, norms held fixed"
    ),
    Mechanism("co-attention (bi-modal)", (CoAttention,), ("transformers/lxmert",), "two input streams"),
    Mechanism(
        "channel / coordinate (SE)",
        (SqueezeExcite, CoordinateAttention),
        ("timm/mobilenetv3_small_050", "timm/resnet10t with coordinate attention"),
        "torch's product with a gate is counted as bilinear, concatenation and splitting as reindexing",
    ),
    Mechanism(
        "dilated / sparse (NAT)",
        (_neighbourhood,),
        ("timm/halonet26t", "timm/volo_d1_224"),
        "neighbourhoods with dilation 1 and 2",
    ),
    Mechanism(
        "deformable (Def-DETR)",
        (DeformableAttention,),
        ("transformers/deformable_detr",),
        "two maps, offsets and weights predicted from the input, held fixed",
    ),
    Mechanism(
        "grouped-query, RoPE",
        (GroupedQuery,),
        ("timm/vit_base_patch16_sapiens2, small",),
        "rotary positions turn queries and keys, hence the held-fixed weights; SwiGLU shares evenly",
    ),
)


def randomised(block: Module, seed: int) -> Module:
    """Random weights, biases, scales and statistics, in float64 and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)

    def noise(t: Tensor) -> Tensor:
        return torch.randn(t.shape, generator=generator, dtype=torch.float64)

    block = block.double().eval()
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if parameter.ndim > 1:
                parameter.copy_(noise(parameter) / parameter[0].numel() ** 0.5)
            else:
                parameter.copy_(0.3 * noise(parameter) + name.endswith("weight"))
        for name, buffer in block.named_buffers():
            if name.endswith("running_mean"):
                buffer.copy_(0.3 * noise(buffer))
            elif name.endswith("running_var"):
                buffer.copy_((0.3 * noise(buffer)).exp())
    return block


def streams_for(block: Block, seed: int, batch: int = 2) -> tuple[Tensor, ...]:
    """Random inputs, one per stream."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, *shape, generator=generator, dtype=torch.float64) for shape in block.shapes)


@torch.no_grad()
def readout_for(block: nn.Module, streams: tuple[Tensor, ...], seed: int) -> Tensor:
    """Weights of the outputs in the score. They have the outputs' signs, so that the score isn't near zero."""
    out = block(*streams)
    generator = torch.Generator().manual_seed(seed)
    return out.sign() * (0.5 + torch.rand(out.shape, generator=generator, dtype=torch.float64))


def compare(block: Block, rules: str | Rules = "hilrp", seed: int = 0) -> dict[str, float]:
    """How far the engine, under these rules, is from the textbook's gamma rule, and both from closed books.

    ``forward``: the two values of the block; ``residual`` and ``leak``: the engine's books; ``textbook sum``: the
    textbook's; ``constants``: what constants keep, of the score; ``relevance``: of all inputs, relative to the
    largest of the stream.
    """
    block = randomised(block, seed)
    streams = streams_for(block, seed + 1)
    readout = readout_for(block, streams, seed + 2)
    found = explain(
        block,
        streams,
        lambda out: (out * readout).flatten(1).sum(1),
        rules,
        audit="off",
        stages=None,
        itemised=True,
    )
    measured = [
        {"residual": float(found.ledger.residual.max()), "leak": float(found.ledger.leak.max())},
    ]
    for sample in range(len(readout)):
        expected, value, kept = by_textbook(block, [x[sample] for x in streams], readout[sample])
        score = float((value * readout[sample]).sum())
        total = sum(float(r.sum()) for r in expected) + kept
        measured.append(
            {
                "forward": relative_error(found.output[sample], value),
                "textbook sum": abs(total - score) / abs(score),
                "constants": abs(float(found.ledger.constants[sample]) - kept) / abs(score),
            }
        )
        measured += [
            {"relevance": relative_error(r[sample], e)} for r, e in zip(found.relevance, expected, strict=True)
        ]
    return {name: worst(*measured)[name] for name in BOUNDS}


@torch.no_grad()
def by_textbook(block: Block, sample: Iterable[Tensor], readout: Tensor) -> tuple[list[Tensor], Tensor, float]:
    """The relevance of each stream, the block's value, and what constants keep, for one sample."""
    sheet = Sheet()
    streams = [sheet.given(x) for x in sample]
    out = block.textbook(sheet, *streams)
    relevance, kept = sheet.back(out, out.value * readout)
    return [relevance[stream] for stream in streams], out.value, kept


def check(mechanism: Mechanism, seeds: int = 3, real_models: bool = True) -> Row:
    """A row of the taxonomy: the worst numbers over the mechanism's blocks and some seeds."""
    found: set[str] = set()
    measured = []
    for make in mechanism.blocks:
        block = make()
        found |= primitives_of(randomised(block, 0), streams_for(block, 1))
        measured += [compare(make(), seed=10 * seed) for seed in range(seeds)]
    realised = joined([realise(model) for model in mechanism.models]) if real_models else None
    return Row(mechanism.name, worst(*measured), BOUNDS, {}, in_order(found), realised, mechanism.remark)
