"""Explainer and Explanation: models as users have them, targets, stages, batches, threads, and nothing left behind."""

from __future__ import annotations

import copy
import json
import threading
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from torch import nn

import hilrp
from helpers.models import randomised, small_swin, small_vit


class TestTargets:
    def test_prediction_by_default(self, swin, x):
        found = hilrp.explain(swin, x)
        assert torch.equal(found.target, swin(x).argmax(1))
        torch.testing.assert_close(found.score, swin(x).amax(1))

    def test_forms_of_a_class(self, swin, x):
        expected = hilrp.explain(swin, x, [2, 0, 2]).relevance
        for target in (
            (2, 0, 2),
            torch.tensor([2, 0, 2]),
            np.array([2, 0, 2]),
            lambda out: out[torch.arange(3), [2, 0, 2]],
        ):
            torch.testing.assert_close(hilrp.explain(swin, x, target).relevance, expected)
        torch.testing.assert_close(hilrp.explain(swin, x, 2).relevance[0], expected[0])

    def test_contrast_is_the_difference_of_two_classes_under_epsilon(self, swin, x):
        """Relevance is linear in the seed as long as the rules are."""
        swin, x = swin.double(), x.double()
        one, other = (hilrp.explain(swin, x, c, rules="epsilon").relevance for c in (3, 1))
        both = hilrp.explain(swin, x, hilrp.targets.Contrast(3, 1), rules="epsilon")
        torch.testing.assert_close(both.relevance, one - other, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(both.score, swin(x)[:, 3] - swin(x)[:, 1])

    def test_any_scalar(self, swin, x):
        features = swin(x).detach()[0]
        found = hilrp.explain(swin, x, lambda out: nn.functional.cosine_similarity(out, features.expand_as(out)))
        assert float(found.ledger.residual.max()) < 1e-4
        assert found.target is None


@pytest.mark.parametrize("make", [small_swin, small_vit, lambda: small_vit(global_pool="map", class_token=False)])
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "attnlrp"])
def test_a_batch_gives_what_its_samples_give_alone(make, rules):
    model = make().double()
    x = torch.randn(3, 3, *model.patch_embed.img_size, dtype=torch.float64)
    together = hilrp.explain(model, x, [0, 1, 2], rules=rules)
    assert not together.notes
    for i in range(3):
        alone = hilrp.explain(model, x[i : i + 1], i, rules=rules)
        torch.testing.assert_close(together.relevance[i : i + 1], alone.relevance, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(together.score[i : i + 1], alone.score)
        for name, value in together.ledger.entries.items():
            torch.testing.assert_close(value[i : i + 1], alone.ledger.entries[name], rtol=1e-8, atol=1e-11)
        for name, value in together.stages.items():
            torch.testing.assert_close(value[i : i + 1], alone.stages[name], rtol=1e-8, atol=1e-11)
        for name, value in together.trace.items():
            torch.testing.assert_close(value[i : i + 1], alone.trace[name], rtol=1e-8, atol=1e-11)


def test_two_rule_sets_from_two_threads(swin, x):
    """Each thread gets what it gets alone, although both explain the same model at the same time."""
    expected = {rules: hilrp.explain(swin, x, 1, rules=rules, itemised=True) for rules in ("hilrp", "epsilon")}
    failures: list[str] = []

    def same(one, other):
        stages = all(torch.equal(one.stages[name], other.stages[name]) for name in other.stages)
        return (
            stages
            and torch.equal(one.relevance, other.relevance)
            and one.ledger.entries.keys() == other.ledger.entries.keys()
        )

    def work(rules):
        explainer = hilrp.Explainer(swin, rules, itemised=True)
        for _ in range(4):
            found = explainer.explain(x, 1)
            if not same(found, expected[rules]) or float(found.ledger.residual.max()) > 1e-4:
                failures.append(rules)

    threads = [threading.Thread(target=work, args=(rules,)) for rules in (*expected, *expected)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class TestNothingIsLeftBehind:
    def state(self, model):
        from torch.nn.modules import module as registry

        hooks = [
            len(getattr(registry, name)) for name in dir(registry) if name.startswith("_global") and "hooks" in name
        ]
        own = [
            len(getattr(m, name))
            for m in model.modules()
            for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
        ]
        flags = [p.requires_grad for p in model.parameters()] + [m.training for m in model.modules()]
        ids = [id(p) for p in (*model.parameters(), *model.buffers())]
        classes = [type(m).forward for m in model.modules()]
        attributes = [sorted(vars(m)) for m in model.modules()]
        grads = [p.grad is None for p in model.parameters()]
        return (
            hooks,
            own,
            flags,
            ids,
            classes,
            attributes,
            grads,
            torch.is_grad_enabled(),
            len(torch.overrides._get_current_function_mode_stack()),
        )

    def check(self, model, act):
        mixed = list(model.parameters())[::2]
        for parameter in mixed:
            parameter.requires_grad_(False)
        before, values = self.state(model), copy.deepcopy(model.state_dict())
        act()
        assert self.state(model) == before
        for name, value in model.state_dict().items():
            assert torch.equal(value, values[name]), name

    def test_after_a_call(self, swin, x):
        self.check(swin, lambda: hilrp.explain(swin, x))

    def test_after_an_exception_in_the_model(self, x):
        model = small_swin()

        def act():
            with pytest.raises(hilrp.ModelError):
                hilrp.explain(model, torch.randn(2, 4, 64, 64))

        self.check(model, act)

    def test_after_an_exception_in_the_engine(self, swin, x, monkeypatch):
        from hilrp.method.table import TABLE

        def broken(call):
            raise ZeroDivisionError

        monkeypatch.setitem(TABLE, "softmax", replace(TABLE["softmax"], rule=broken))
        swin.layers[1].blocks[0].attn.fused_attn = False

        def act():
            with pytest.raises(hilrp.ModelError, match="ZeroDivisionError"):
                hilrp.explain(swin, x, rules="hilrp")

        self.check(swin, act)

    def test_after_an_exception_in_the_target(self, swin, x):
        def act():
            with pytest.raises(KeyError):
                hilrp.explain(swin, x, lambda out: {}["nothing"])

        self.check(swin, act)


class TestExplanation:
    def test_save_and_read_back(self, swin, x, tmp_path):
        found = hilrp.explain(swin, x)
        files = found.save(tmp_path / "deep" / "result.png", list("abcde"))
        assert [f.name for f in files] == ["result.npz", "result.png", "result.details.png", "result.json"]
        assert sorted((tmp_path / "deep").iterdir()) == sorted(files)
        arrays = np.load(files[0])
        np.testing.assert_array_equal(arrays["map"], found.map.numpy())
        assert arrays["stage/layers.1"].shape == (3, 8, 8)
        facts = json.loads(files[-1].read_text())
        np.testing.assert_allclose(facts["score"], found.score.numpy(), rtol=1e-6)
        np.testing.assert_allclose(
            np.add(facts["pixels"], sum(np.array(v) for v in facts["entries"].values())), facts["score"], rtol=1e-4
        )
        assert all(file.read_bytes().startswith(b"\x89PNG") for file in files[1:3])

    def test_several_inputs_are_all_saved(self, tmp_path):
        class Two(nn.Module):
            def forward(self, a, b):
                return (a + b).flatten(1)[:, :3]

        found = hilrp.explain(Two().eval(), (torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4)), 1)
        arrays = np.load(found.save(tmp_path / "two")[0])
        assert {"relevance/0", "relevance/1", "input/0", "map", "target"} <= set(arrays)

    def test_a_contrast_says_so(self, swin, x, tmp_path):
        found = hilrp.explain(swin, x, hilrp.targets.Contrast(3, 1))
        assert json.loads(found.save(tmp_path / "c")[-1].read_text())["against"] == [1, 1, 1]
        assert found.plot_details().axes[0].get_title().startswith("class 3 rather than class 1")
        assert "class 3 rather than class 1" in [text.get_text() for text in found.plot().texts]

    def test_repr_is_short(self, swin, x):
        assert len(repr(hilrp.explain(swin, x))) < 200

    def test_a_failed_save_leaves_nothing_half_written(self, swin, x, tmp_path):
        with pytest.raises(hilrp.InputError, match="classes has 1 names"):
            hilrp.explain(swin, x, 3).save(tmp_path / "result", ["only one"])
        assert not list(tmp_path.iterdir())

    def test_plot_and_show(self, swin, x, monkeypatch):
        import matplotlib.pyplot

        matplotlib.use("Agg", force=True)
        found = hilrp.explain(swin, x[:1])
        assert len(found.plot_details().axes) == 3 + 3 + 1  # input, map, ledger; stages; the map's scale
        assert len(found.plot().axes) == 1 + 1  # the picture and its legend
        grey = randomised(timm.create_model("test_resnet", in_chans=1))
        hilrp.explain(grey, torch.randn(1, 1, 32, 32)).plot()
        shown = []
        monkeypatch.setattr("matplotlib.pyplot.show", lambda: shown.append(len(matplotlib.pyplot.gcf().axes)))
        found.show()
        assert shown == [1 + 1]

    def test_bfloat16_can_be_saved(self, tmp_path):
        model = small_vit().to(torch.bfloat16)
        found = hilrp.explain(model, torch.randn(1, 3, 32, 32, dtype=torch.bfloat16))
        arrays = np.load(found.save(tmp_path / "b")[0])
        np.testing.assert_array_equal(arrays["map"], found.map.float().numpy())

    def test_ledger_table(self, swin, x):
        text = hilrp.explain(swin, x).ledger.table(1)
        assert text.splitlines()[0].startswith("score")
        assert "pixels" in text
        assert "not accounted for" in text

    def test_one_number_a_sample_no_map(self, tmp_path):
        class Curved(nn.Module):
            def forward(self, x):
                return torch.stack([x, x.square()], 1)

        found = hilrp.explain(Curved().eval(), torch.randn(2))
        with pytest.raises(hilrp.InputError, match=r"No input has a map \(the shapes are \(2,\)\); use .relevance"):
            _ = found.map
        assert [f.name for f in found.save(tmp_path / "it")] == ["it.npz", "it.json"]


def test_attribute_follows_captums_contract(swin, x):
    """captum's Input x Gradient is the epsilon rule on a net of linear layers and relu."""
    captum = pytest.importorskip("captum.attr")
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).double().eval()
    x = torch.randn(2, 3, 8, 8).double()
    ours = hilrp.Explainer(net, "epsilon").attribute(x, target=torch.tensor([0, 2]))
    theirs = captum.InputXGradient(net).attribute(x.clone().requires_grad_(), target=torch.tensor([0, 2]))
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-10, atol=1e-12)


def test_no_graph_outlives_an_explanation():
    """Not even a cycle for the garbage collector: a pass's tensors are gone when the explanation is."""
    import gc
    import weakref

    class Ties(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            y = self.linear(x)
            y += 1  # an alias
            return nn.functional.silu(y) * self.linear(y)  # an even split

    model, alive = Ties().eval(), []
    model.linear.register_forward_hook(lambda module, args, output: alive.append(weakref.ref(output.grad_fn)))
    gc.collect()
    gc.disable()
    try:
        for itemised in (False, True):
            hilrp.explain(model, torch.randn(2, 6), 0, audit="off", itemised=itemised)
        assert alive
        assert not any(node() is not None for node in alive)
    finally:
        gc.enable()
