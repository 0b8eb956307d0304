"""Every even split that the coverage run found, looked at: why neither factor of the product is the gate.

A split is known by the model and by where it happens. One that isn't here has not been looked at, and the page says so.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Judgement(NamedTuple):
    """Which splits (patterns of the model's name and of the place), what they are, and why they are even."""

    model: str
    place: str
    what: str
    why: str


JUDGEMENTS = (
    Judgement(
        r"^(timm|transformers|open_clip)/", r"^mul in (.*\.)?(blocks|layers?)\.\*\.mlp(_channels)?$",
        "gated MLP, `silu(a) * b` or `gelu(a) * b` (SwiGLU, GEGLU)",
        "Both factors are linear in the same token, so that either choice gives the token the same sum, up to what "
        "biases keep: the split moves relevance between channels, not between places. Neither is bounded or "
        "non-negative as a gate is; AttnLRP splits here, too.",
    ),
    Judgement(
        r"^timm/gmixer", r"^mul in blocks\.\*\.mlp_tokens$",
        "the same across tokens (gMixer)",
        "Both factors are mixtures of the same tokens with constant weights; neither selects.",
    ),
    Judgement(
        r"^timm/gmlp", r"^mul in blocks\.\*\.mlp_channels\.gate$",
        "spatial gating unit, `u * (W v)` over tokens (gMLP)",
        "The factor that is called a gate is the only way between tokens in the whole network. Held fixed, no "
        "relevance would ever leave its token; alone, the token itself would have none.",
    ),
    Judgement(
        r"^timm/(test_)?mambaout", r"^mul in stages\.\*\.blocks\.\*$",
        "gated convolution, `gelu(g) * [i, conv(c)]` (MambaOut)",
        "A gated MLP whose second factor reads a 7 x 7 neighbourhood: half stays at the place, half goes to the "
        "neighbourhood. Neither is bounded.",
    ),
    Judgement(
        r"/focalnet", r"^mul in .*\.modulation$",
        "focal modulation, `q * h(sum of context * gates)` (FocalNet)",
        "`q` is what is at the place, the modulator what is around it, and the raw linear `gates` aren't squashed. "
        "Held fixed, either would hide the local or the contextual evidence altogether.",
    ),
    Judgement(
        r"^timm/coat_", r"^mul in crpe\d$",
        "convolutional relative positions, `q * conv(v)` (CoaT)",
        "Query times convolved value without weights that are normalised or non-negative: the form says of neither "
        "that it is the gate. (The attention itself, `q (softmax(k)^T v)`, is no longer split: the values carry.)",
    ),
    Judgement(
        r"^timm/(lambda|lamhalo)", r"^matmul in stages\.\*\.\*\.self_attn$",
        "position lambdas, `q (conv(v))` (LambdaNetworks)",
        "As in CoaT. (The content lambdas, `q (softmax(k)^T v)`, are no longer split: the values carry.)",
    ),
    Judgement(
        r"^timm/csatv2", r"^mul in stages\.\*\.\*$",
        "spatial attention without squashing, `x * attn` (CSATv2)",
        "The map that is called attention ends in a residual MLP, is signed and unbounded, and is made of the "
        "channels' mean and maximum of the same `x`.",
    ),
    Judgement(
        r"^timm/efficientvim", r"^(mat)?mul in stages\.\*\.blocks\.\*\.mixer$",
        "state space duality, `x (a b)^T`, `h silu(z)`, `h c` (EfficientViM)",
        "`a` is a softmax and held fixed; what is left are products of projections of the same tokens (input and "
        "input matrix, state and gate, state and readout), signed and unbounded all of them.",
    ),
    Judgement(
        r"^timm/swiftformer", r"^mul in stages\.\*\.blocks\.\*\.attn$",
        "additive attention, `sum(w q) * k` (SwiftFormer)",
        "The weights are normalised to unit length, not to a sum of one, and are signed: no softmax. In `w * q` both "
        "factors come from the same token; in the product with the key one is the image, the other the place.",
    ),
    Judgement(
        r"^segmentation_models_pytorch/PAN", r"^mul in decoder\.fpa$",
        "feature pyramid attention without squashing, `x * pyramid(x)` (PAN)",
        "The pyramid that is called attention ends in a convolution and a rectifier, and is unbounded, as is what it "
        "is multiplied with: a convolution of the same features at the same place, rectified, too.",
    ),
    Judgement(
        r"^transformers/(maskformer|mask2former|sam)$",
        r"^(einsum|matmul) in (\(model\)|mask_decoder|.*\.mask_predictor)$",
        "mask logits, the product of a query's and a pixel's embedding (MaskFormer, Mask2Former, SAM)",
        "A similarity of two embeddings of the same kind, as in image-text models: the query (what the object is) "
        "and the pixel (what is here) share the evidence.",
    ),
)  # fmt: skip


def judge(model: str, place: str) -> Judgement | None:
    """What was said of an even split, given as in `AuditReport.splits`.

    Example:
        >>> judge("timm/eva02_tiny_patch14_224", "mul in blocks.*.mlp").what[:9], judge("timm/new", "mul in stem")
        ('gated MLP', None)
    """
    found = (j for j in JUDGEMENTS if re.search(j.model, model) and re.search(j.place, place))
    return next(found, None)
