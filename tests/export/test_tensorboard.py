"""What TensorBoard's own reader finds in a folder that explanations were written to."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

import hilrp
from helpers.models import small_classifier
from hilrp.export import to_tensorboard

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter


def test_pictures_figures_and_sentences_are_read_back(tmp_path):
    found = hilrp.explain(small_classifier(), torch.randn(2, 3, 8, 8), [1, 4])
    names = ["cat", "dog", "cow", "ant", "bee"]
    with SummaryWriter(str(tmp_path)) as writer:
        for step in (3, 8):
            to_tensorboard(writer, found, step, loaded=names)
    read = EventAccumulator(str(tmp_path), size_guidance={"tensors": 0, "scalars": 0, "images": 0}).Reload()
    assert read.Tags()["images"] == ["hilrp/0/overlay", "hilrp/1/overlay"]
    for i in (0, 1):
        pictures = read.Images(f"hilrp/{i}/overlay")
        assert [each.step for each in pictures] == [3, 8]
        drawn = np.asarray(Image.open(BytesIO(pictures[1].encoded_image_string)))
        assert np.array_equal(drawn, found.overlay(i, names, array=True))
        facts = found.facts()
        for name in ("score", "reference_score", "difference", "pixel_share", "residual"):
            scalars = read.Scalars(f"hilrp/{i}/{name}")
            assert [each.step for each in scalars] == [3, 8]
            assert scalars[0].value == pytest.approx(facts[name][i], rel=1e-6, abs=1e-12)
        (text,) = read.Tensors(f"hilrp/{i}/sentence/text_summary")[0].tensor_proto.string_val
        assert text.decode() == f"{found.sentence(i, names)} (valid)"


def test_tables_have_figures_and_a_sentence_alone(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
    with SummaryWriter(str(tmp_path)) as writer:
        to_tensorboard(writer, hilrp.explain(model, torch.randn(1, 4), 1), tag="table")
    read = EventAccumulator(str(tmp_path)).Reload()
    assert read.Tags()["images"] == []
    assert "table/0/score" in read.Tags()["scalars"]
    assert read.Tags()["tensors"] == ["table/0/sentence/text_summary"]
