"""Models as users have them: forms of input and output, precision, contexts and wrappers."""

from __future__ import annotations

import copy
from collections import namedtuple

import pytest
import timm
import torch
from torch import nn

import hilrp
from helpers.models import randomised, small_swin, small_vit


class TestForms:
    """Models as users have them."""

    @pytest.mark.parametrize("form", ["tuple", "dict", "namedtuple", "nested"])
    def test_outputs(self, swin, x, form):
        Output = namedtuple("Output", ["logits", "aux"])

        class Wrapped(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = swin

            def forward(self, x):
                out = self.inner(x)
                forms = {
                    "tuple": (out, out * 2),
                    "dict": {"aux": out * 2, "logits": out},
                    "namedtuple": Output(out, out * 2),
                    "nested": ([out], 3),
                }
                return forms[form]

        found = hilrp.explain(Wrapped().eval(), x, 1)
        torch.testing.assert_close(found.relevance, hilrp.explain(swin, x, 1).relevance)
        assert type(found.output) is {"tuple": tuple, "dict": dict, "namedtuple": Output, "nested": tuple}[form]

    def test_several_inputs(self):
        class Two(nn.Module):
            def __init__(self):
                super().__init__()
                self.image, self.other = nn.Linear(12, 4), nn.Linear(5, 4)

            def forward(self, image, other, index=None):
                return self.image(image.flatten(1)) + self.other(other)[:, index]

        x = (torch.randn(2, 3, 2, 2), torch.randn(2, 5), torch.tensor([3, 2, 1, 0]))
        found = hilrp.explain(Two().eval(), x, 1)
        assert [r.shape for r in found.relevance] == [t.shape for t in x]
        assert not found.relevance[2].any()
        total = found.relevance[0].flatten(1).sum(1) + found.relevance[1].sum(1)
        torch.testing.assert_close(found.ledger.pixels, total.double())
        named = hilrp.explain(Two().eval(), {"image": x[0], "other": x[1], "index": x[2]}, 1)
        assert set(named.relevance) == {"image", "other", "index"}

    def test_inputs_that_belong_to_all_samples_are_held_fixed(self):
        """Class embeddings of a zero-shot classifier, a temperature."""

        class ZeroShot(nn.Module):
            def __init__(self):
                super().__init__()
                self.encode = nn.Linear(12, 4)

            def forward(self, image, classes, temperature):
                return nn.functional.normalize(self.encode(image.flatten(1)), dim=1) @ classes.T * temperature

        found = hilrp.explain(ZeroShot().eval(), (torch.randn(2, 3, 2, 2), torch.randn(7, 4), torch.tensor(3.0)), 5)
        assert float(found.ledger.residual.max()) < 1e-4
        assert not found.relevance[1].any()

    def test_what_a_processor_of_transformers_returns(self):
        transformers = pytest.importorskip("transformers")
        config = transformers.ViTConfig(
            hidden_size=24, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32
        )
        model = randomised(transformers.ViTForImageClassification(config))
        inputs = transformers.BatchFeature({"pixel_values": torch.randn(2, 3, 32, 32)})
        assert hilrp.explain(model, inputs, 1).map.shape == (2, 32, 32)
        assert hilrp.audit(model, inputs, 1).passed

    def test_gradient_checkpointing_is_refused_with_a_remedy(self):
        model = small_vit()
        model.set_grad_checkpointing()
        with pytest.raises(hilrp.HilrpError, match=r"(?s)checkpointing.*turn it off|did not see"):
            hilrp.explain(model, torch.randn(1, 3, 32, 32))

    @pytest.mark.parametrize("size", [(32, 32), (48, 80), (33, 47)])
    def test_any_size_that_the_model_takes(self, size):
        model = randomised(timm.create_model("test_resnet"))
        found = hilrp.explain(model, torch.randn(2, 3, *size))
        assert found.map.shape == (2, *size)
        assert float(found.ledger.residual.max()) < 1e-4

    def test_video(self, tmp_path):
        """Frames and a curve, arrays and figures."""
        model = nn.Sequential(
            nn.Conv3d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2)
        ).eval()
        files = hilrp.explain(model, torch.randn(2, 3, 4, 8, 8), 1).save(tmp_path / "video")
        assert [f.name for f in files] == ["video.npz", "video.png", "video.details.png", "video.json"]

    @pytest.mark.parametrize("layer", [nn.Dropout(0.1, inplace=True), nn.Dropout2d(0.1, inplace=True), nn.Identity()])
    def test_layers_that_return_their_input(self, layer):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), layer, nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(288, 3)).eval()
        assert hilrp.audit(model, torch.randn(2, 3, 8, 8), 1).passed
        hilrp.explain(model, torch.randn(2, 3, 8, 8), 1)

    @pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, nn.LSTM])
    def test_recurrent_networks(self, kind):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = kind(6, 4, num_layers=2, batch_first=True, bidirectional=True)
                self.head = nn.Linear(8, 3)

            def forward(self, x):
                return self.head(self.net(x)[0].mean(1))

        assert hilrp.audit(Model().double().eval(), torch.randn(2, 5, 6).double(), 1).passed

    def test_channels_last(self, x):
        model = randomised(timm.create_model("test_convnext")).double()
        x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
        plain = hilrp.explain(model, x, 1)
        last = hilrp.explain(model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last), 1)
        torch.testing.assert_close(plain.relevance, last.relevance, rtol=1e-9, atol=1e-12)
        assert hilrp.audit(model, x.to(memory_format=torch.channels_last), 1).passed

    @pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
    def test_under_the_callers_context(self, swin, x, context):
        expected = hilrp.explain(swin, x, 1).relevance
        with context():
            inside = hilrp.explain(swin, x * 1, 1)
            assert torch.equal(inside.relevance, expected)
            assert not inside.relevance.requires_grad

    def test_a_model_made_in_inference_mode(self, x):
        with torch.inference_mode():
            model = small_swin()
            expected = model(x)
        found = hilrp.explain(model, x, 1)
        assert torch.equal(found.output, expected.clone())

    def test_wrappers_are_looked_through(self, swin, x):
        expected = hilrp.explain(swin, x, 1).relevance
        assert torch.equal(hilrp.explain(nn.DataParallel(swin), x, 1).relevance, expected)
        assert torch.equal(hilrp.explain(torch.compile(swin), x, 1).relevance, expected)
        assert torch.equal(hilrp.explain(torch.compile(nn.DataParallel(swin)), x, 1).relevance, expected)

    def test_a_compiled_part_runs_as_written(self, x):
        model = small_swin()
        expected = hilrp.explain(model, x, 1).relevance
        model.layers[1] = torch.compile(model.layers[1], backend="eager")
        assert torch.equal(hilrp.explain(model, x, 1).relevance, expected)
        model = small_swin()
        expected = hilrp.explain(model, x, 1).relevance
        model.layers[1].compile(backend="eager")
        assert torch.equal(hilrp.explain(model, x, 1).relevance, expected)

    def test_threads_that_overlap_leave_compilation_as_it_was(self):
        """The switch belongs to the process: the last to leave restores it, whatever the order."""
        from torch._dynamo import eval_frame

        from hilrp.attribution.forward_backward import as_written

        before = eval_frame._stance.stance
        one, other = as_written(), as_written()
        one.__enter__()
        other.__enter__()
        one.__exit__(None, None, None)
        assert eval_frame._stance.stance == "force_eager"
        other.__exit__(None, None, None)
        assert eval_frame._stance.stance == before

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision(self, dtype):
        model, x = small_vit(), torch.randn(2, 3, 32, 32)
        exact = hilrp.explain(model, x, 1)
        found = hilrp.explain(copy.deepcopy(model).to(dtype), x.to(dtype), 1)
        assert found.relevance.dtype == dtype
        assert torch.equal(found.output, copy.deepcopy(model).to(dtype)(x.to(dtype)))
        assert _correlation(found.map, exact.map) > 0.97

    def test_autocast(self):
        model, x = small_vit(), torch.randn(2, 3, 32, 32)
        exact = hilrp.explain(model, x, 1)
        with torch.autocast("cpu", torch.bfloat16):
            found = hilrp.explain(model, x, 1)
            assert torch.equal(found.output, model(x))
        assert found.relevance.dtype == torch.float32
        assert _correlation(found.map, exact.map) > 0.97


def _correlation(a, b):
    return float(torch.corrcoef(torch.stack([a.float().flatten(), b.float().flatten()]))[0, 1])
