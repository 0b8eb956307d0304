"""Real weights on real photographs: exact values, closed books, and maps that lie on the object."""

from __future__ import annotations

import json

import pytest
import torch

import hilrp
from helpers.real_data import CHECKPOINTS, load_checkpoint, photographs, shared


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_books_close(name, dtype):
    model, transform = load_checkpoint(name)
    # That samples are told apart is seen in float32.
    x = photographs(transform, 2 if dtype == torch.float32 else 1).to(dtype)
    target = (lambda out: out @ torch.ones(384, dtype=dtype)) if "dino" in name else None
    report = hilrp.audit(model.to(dtype), x, target, rules="hilrp")
    limit = 1e-4 if dtype == torch.float32 else 1e-10
    assert report.error is None
    assert not report.problems
    assert report.forward_difference == 0.0
    assert report.residual <= limit
    assert report.leak <= limit


@pytest.mark.parametrize("rules", ["epsilon", "attnlrp"])
@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "tiny_vit_5m_224"])
def test_books_close_under_other_presets(name, rules):
    model, transform = load_checkpoint(name)
    found = hilrp.explain(model, photographs(transform, 2), rules=rules, stages=None)
    assert float(found.ledger.residual.max()) <= 1e-4


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "tiny_vit_5m_224"])
def test_the_naive_extension_is_degenerate(name):
    """The paper's point: without rules for every operation the relevance that arrives is next to nothing."""
    model, transform = load_checkpoint(name)
    # What leaks is asserted here: the checks, which would name it too, need not run.
    found = hilrp.explain(model, photographs(transform, 5), rules="naive", stages=None, audit="off")
    assert float(found.ledger.share.abs().median()) < 0.1
    assert float(found.ledger.leak.median()) > 0.5


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("deit_tiny_patch16_224", 0.4, 0.8), ("tiny_vit_5m_224", 0.005, 0.05), ("mobilenetv2_100", None, None)],
)
def test_the_strongest_pixel_lies_on_the_object(name, low, high):
    """Pointing over 16 photographs with boxes, which cover about half of the picture, is far above that half.

    And how much of the logit reaches the pixels, on real weights: the figures that the design was written with.
    """
    model, transform = load_checkpoint(name)
    index = json.loads(shared("images", "imagenet_val", "index.json").read_text())[:16]
    x = photographs(transform, 16)
    # Whether books close is another test's: the checks would take most of the time of this one.
    found = hilrp.explain(model, x, [item["label"] for item in index], stages=None, audit="off", batch=8, rules="hilrp")
    if low is not None:
        assert low < float(found.ledger.share.median()) < high
    side, hits = x.shape[-1], 0
    from PIL import Image

    for item, relevance in zip(index, found.map, strict=True):
        width, height = Image.open(shared("images", "imagenet_val", item["file"])).size
        row, column = divmod(int(relevance.argmax()), side)
        # Back through crop and resize: the short side of the picture was scaled to side / crop_pct.
        scale = min(width, height) / _resized(transform)
        px, py = width / 2 + (column - side / 2) * scale, height / 2 + (row - side / 2) * scale
        hits += any(x0 <= px <= x1 and y0 <= py <= y1 for x0, y0, x1, y1 in item["boxes"])
    assert hits >= 12


def _resized(transform) -> int:
    size = transform.transforms[0].size
    return size if isinstance(size, int) else size[0]
