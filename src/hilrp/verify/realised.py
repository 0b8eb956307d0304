"""Real architectures that use the mechanisms of the taxonomy, audited in float64 with random weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hilrp.attribution.audit import audit
from hilrp.models.random_models import build, calibrate, randomise_constants
from hilrp.util.errors import HilrpError, UnavailableError
from hilrp.verify.report import Realisation, Verdict


class Source(NamedTuple):
    """Where a model comes from.

    A name and an image size for `hilrp.models.random_models.build`, or a function that makes it.
    """

    name: str = ""
    size: int | None = None
    make: Callable[[], tuple[nn.Module, Any, Callable[[Any], Tensor] | None]] | None = None


def _lxmert() -> tuple[nn.Module, Any, Callable[[Any], Tensor]]:
    """A small LXMERT: words and regions of an image read each other in every cross-modal layer."""
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise UnavailableError("transformers is not installed. Install it with: pip install 'hilrp[hf]'") from error
    config = transformers.LxmertConfig(
        vocab_size=50, hidden_size=24, num_attention_heads=3, intermediate_size=48, num_qa_labels=5, l_layers=1,
        x_layers=2, r_layers=1, visual_feat_dim=16, max_position_embeddings=16,
    )  # fmt: skip
    words, regions, boxes = torch.randn(2, 8, 24), torch.randn(2, 6, 16), torch.rand(2, 6, 4)
    inputs = {"inputs_embeds": words, "visual_feats": regions, "visual_pos": boxes}

    def score(out: Any) -> Tensor:
        return out.language_output[:, :, 0].mean(1) + out.vision_output[:, :, 1].mean(1)

    return transformers.LxmertModel(config), inputs, score


def _coordinate_resnet() -> tuple[nn.Module, Any, None]:
    """Timm's ResNet-10 with its coordinate attention in every block."""
    import timm

    model = timm.create_model("resnet10t", block_args={"attn_layer": "coord"})
    return model, torch.randn(2, 3, 64, 64), None


def _grouped_query_eva() -> tuple[nn.Module, Any, None]:
    """Timm's Sapiens2 (grouped queries, rotary positions, RMS norms, SwiGLU), small, every block grouped."""
    import timm

    if not timm.is_model("vit_base_patch16_sapiens2"):
        raise UnavailableError(f"timm {timm.__version__} has no Sapiens2. Install a later version.")
    small = {"img_size": 64, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_kv_heads": 2, "global_pool": "avg"}
    return timm.create_model("vit_base_patch16_sapiens2", **small), torch.randn(2, 3, 64, 64), None


#: What the report calls a model -> where it comes from.
SOURCES: dict[str, Source] = {
    "timm/vit_tiny_patch16_224": Source("timm/vit_tiny_patch16_224", 64),
    "timm/swin_tiny_patch4_window7_224": Source("timm/swin_tiny_patch4_window7_224", 112),
    "timm/pvt_v2_b0": Source("timm/pvt_v2_b0", 64),
    "timm/efficientvit_b0": Source("timm/efficientvit_b0", 96),
    "timm/mobilevitv2_050": Source("timm/mobilevitv2_050", 128),
    "timm/maxvit_rmlp_pico_rw_256": Source("timm/maxvit_rmlp_pico_rw_256"),
    "timm/crossvit_tiny_240": Source("timm/crossvit_tiny_240"),
    "transformers/clip": Source("transformers/clip"),
    "transformers/lxmert": Source(make=_lxmert),
    "timm/mobilenetv3_small_050": Source("timm/mobilenetv3_small_050", 96),
    "timm/resnet10t with coordinate attention": Source(make=_coordinate_resnet),
    "timm/halonet26t": Source("timm/halonet26t"),
    "timm/volo_d1_224": Source("timm/volo_d1_224", 64),
    "transformers/deformable_detr": Source("transformers/deformable_detr"),
    "timm/vit_base_patch16_sapiens2, small": Source(make=_grouped_query_eva),
}


def realise(model: str) -> Realisation:
    """Audits a model of `SOURCES` in float64. One that can't be had here is reported as not run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries' own
        try:
            network, inputs, target = _made(SOURCES[model])
        except UnavailableError as error:
            return Realisation(model, "not run", remark=f"not run: {error}")
        except HilrpError as error:
            return Realisation(model, "failed", remark=str(error))
        report = audit(network, inputs, target, "hilrp")
    verdict: Verdict = "passed" if report.passed else "failed"
    remark = report.error or "; ".join(report.problems)
    if report.passed and report.tolerance > 1e-10:
        remark = "computes in float32 by itself, whatever its weights are: its books close to that precision"
    return Realisation(model, verdict, report.residual, report.leak, report.tolerance, remark)


def joined(models: list[Realisation]) -> Realisation:
    """Several models as one entry: the worst of each number; one that could not be run is no failure."""
    run = [each for each in models if each.verdict != "not run"]
    verdict: Verdict = "failed" if any(each.verdict == "failed" for each in run) else "passed"
    return Realisation(
        ", ".join(each.model for each in models),
        verdict if run else "not run",
        _largest([each.residual for each in run]),
        _largest([each.leak for each in run]),
        _largest([each.tolerance for each in run]),
        "; ".join(each.remark for each in models if each.remark),
    )


def _largest(values: list[float]) -> float:
    """NaN if one is, or if there are none."""
    return math.nan if not values or any(map(math.isnan, values)) else max(values)


def _made(source: Source) -> tuple[nn.Module, Any, Any]:
    if source.make is None:
        built = build(source.name, dtype=torch.float64, size=source.size)
        return built.model, built.inputs, built.target
    torch.manual_seed(0)
    model, inputs, target = source.make()
    model = randomise_constants(model.double().eval())
    if isinstance(inputs, dict):
        inputs = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    else:
        inputs = inputs.double()
    return calibrate(model, inputs), inputs, target
