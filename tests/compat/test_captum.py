"""captum's contract, kept: forms, targets, arguments, and captum's own wrappers, metrics and pictures."""

from __future__ import annotations

import importlib
import sys
from functools import partial

import matplotlib
import numpy as np
import pytest
import timm
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import hilrp
from helpers.models import randomised
from hilrp.compat.functions import modules_of
from hilrp.compat.peers import MissingPeerError

captum = pytest.importorskip("captum")
matplotlib.use("Agg")
from captum import attr, metrics  # noqa: E402
from captum.attr import visualization  # noqa: E402
from captum.attr._utils.input_layer_wrapper import ModelInputWrapper  # noqa: E402

from hilrp.compat.captum import LayerRelevance, Relevance  # noqa: E402


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def network(outputs: int = 3) -> nn.Sequential:
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.GELU(), nn.Flatten()
    return nn.Sequential(*layers, nn.LayerNorm(64), nn.Linear(64, outputs)).eval()


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Answers(nn.Module):
    """A small model for questions about pictures: two inputs, several axes of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.picture, self.words = nn.Conv2d(3, 8, 4, 4), nn.Embedding(20, 8)
        self.attend, self.answer = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 12)

    def forward(self, picture, embedded, temperature=1.0):
        patches = self.picture(picture).flatten(2).mT
        found, _ = self.attend(embedded, patches, patches)
        return self.answer((found + embedded).mean(1)).unflatten(1, (4, 3)) / temperature


# The contract ---------------------------------------------------------------------------------------------------


def test_it_is_captums():
    relevance = Relevance(network())
    assert isinstance(relevance, attr.Attribution)
    assert relevance.has_convergence_delta()
    assert relevance.multiplies_by_inputs
    assert isinstance(LayerRelevance(network(), nn.ReLU()), attr.LayerAttribution)
    assert Relevance.get_name() == "Relevance"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_attributions_are_hilrps_and_the_delta_is_captums(dtype):
    model, x = network().to(dtype), X.to(dtype)
    attributions, delta = Relevance(model).attribute(x, target=1, return_convergence_delta=True)
    assert torch.equal(attributions, hilrp.explain(model, x, 1).relevance)
    limit = 1e-6 if dtype == torch.float32 else 1e-13
    assert delta.shape == (2,)
    assert delta.abs().max() < limit
    mean = x.mean((2, 3), keepdim=True).expand_as(x)
    own = Relevance(model).compute_convergence_delta(attributions, mean, x, target=1)
    assert torch.allclose(own, delta, atol=limit)
    assert Relevance(model).compute_convergence_delta(2 * attributions, mean, x, target=1).abs().max() > 1e-2


BASELINES = {
    "0": 0,
    "0.5": 0.5,
    "one for all": torch.rand(1, 3, 8, 8),
    "one for each": torch.rand(2, 3, 8, 8),
    "blurred": "blurred",
}


@pytest.mark.parametrize("baselines", BASELINES.values(), ids=BASELINES)
def test_baselines(baselines):
    model = network()
    found, delta = Relevance(model).attribute(X, baselines, 2, return_convergence_delta=True)
    reference = float(baselines) if isinstance(baselines, int) else baselines
    assert torch.allclose(found, hilrp.explain(model, X, 2, reference=reference).relevance, atol=1e-6)
    assert delta.abs().max() < 1e-5


def test_where_deep_lift_is_right_epsilon_equals_it():
    layers = nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    model, x, baseline = nn.Sequential(*layers).eval(), torch.randn(4, 6), torch.randn(1, 6)
    wanted = attr.DeepLift(model).attribute(x, baseline, target=1)
    assert torch.allclose(Relevance(model, rules="epsilon").attribute(x, baseline, 1), wanted, atol=1e-5)


TARGETS = [
    (network, 1, 1),
    (network, [2, 0], [2, 0]),
    (network, torch.tensor([2, 0]), [2, 0]),
    (network, torch.tensor(2), 2),
    (network, (1,), 1),
    (network, -1, 2),
    (network, np.int64(1), 1),
    (partial(network, 1), None, 0),
    (partial(network, 1), 0, 0),
]


@pytest.mark.parametrize(("make", "target", "plain"), TARGETS)
def test_targets_of_classifiers(make, target, plain):
    model = make()
    assert torch.equal(Relevance(model).attribute(X, target=target), hilrp.explain(model, X, plain).relevance)


def test_targets_of_more_axes():
    model = nn.Sequential(network(12), nn.Unflatten(1, (4, 3)), nn.Unflatten(2, (3, 1))).eval()
    flat = model[0]
    for target, plain in (((1, 2), 5), ((1, 2, 0), 5), ([(0, 1), (3, -1)], [1, 11])):
        found, delta = Relevance(model).attribute(X, target=target, return_convergence_delta=True)
        assert torch.allclose(found, hilrp.explain(flat, X, plain).relevance, atol=1e-6)
        assert delta.abs().max() < 1e-5


def test_one_number_for_each_sample():
    model = nn.Sequential(network(1), nn.Flatten(0)).eval()
    found, delta = Relevance(model).attribute(X, return_convergence_delta=True)
    assert found.shape == X.shape
    assert delta.abs().max() < 1e-5


def test_several_inputs_and_arguments_that_are_held_fixed():
    model = Answers().eval()
    words = model.words(torch.tensor([[1, 2, 3], [4, 5, 6]])).detach()
    temperature = torch.tensor([0.5, 2.0]).reshape(2, 1, 1)
    relevance = Relevance(model)
    picture, word = relevance.attribute((X, words), target=(1, 2))
    assert (picture.shape, word.shape) == (X.shape, words.shape)
    cooled, other = relevance.attribute((X, words), target=(1, 2), additional_forward_args=temperature)
    assert torch.allclose(cooled, picture / temperature[:, None], atol=1e-6)
    assert torch.allclose(other, word / temperature, atol=1e-6)
    halved, _ = relevance.attribute((X, words), (0, 0), (1, 2), 2.0)
    again, delta = relevance.attribute((X, words), (0, 0), (1, 2), (torch.tensor(2.0),), True)
    assert torch.allclose(halved, again[0], atol=1e-7)
    assert delta.abs().max() < 1e-6
    # What is held fixed goes with its samples.
    parts = Relevance(model, batch=1).attribute((X, words), target=(1, 2), additional_forward_args=temperature)
    assert torch.allclose(parts[0], cooled, atol=1e-6)
    # Words beside a picture that is explained alone.
    alone, delta = relevance.attribute(X, 0, (1, 2), words, True)
    assert alone.shape == X.shape
    assert delta.abs().max() < 1e-6


class Tool:
    """A model within an object, as training code has it."""

    def __init__(self) -> None:
        self.nets = {"main": network()}

    def score(self, x):
        return self.nets["main"](x).softmax(-1)

    def __call__(self, x):
        return self.nets["main"](x)


GLOBAL = network()


def by_global(x):
    return GLOBAL(x)


def test_functions_of_all_kinds():
    model, tool = network(), Tool()

    def closed(x, scale=1.0):
        return model(x * scale)

    def helped(x):
        return closed(x)

    cases = [
        (model.forward, model), (closed, model), (partial(closed, scale=1.0), model), (helped, model),
        (lambda x: model(x), model), (tool, tool.nets["main"]), (by_global, GLOBAL), (tool.score, tool.nets["main"]),
    ]  # fmt: skip
    for function, own in cases:
        assert modules_of(function) == [own]
        found, delta = Relevance(function).attribute(X, target=1, return_convergence_delta=True)
        assert delta.abs().max() < 1e-6
        if function != tool.score:
            assert torch.allclose(found, hilrp.explain(own, X, 1).relevance, atol=1e-6)
    with pytest.raises(hilrp.InputError, match=r"uses no torch.nn.Module"):
        Relevance(lambda x: x.flatten(1)).attribute(X, target=1)


def test_arguments_that_are_no_tensors_may_change():
    model, x = nn.Linear(4, 3).eval(), torch.randn(3, 4)
    relevance = Relevance(lambda rows, scale, mask, _: model(rows.masked_fill(mask, 0)) * scale)
    mask = torch.tensor([[True, False, False, False]]).expand(3, -1)
    found = {scale: relevance.attribute(x, 0, 1, (scale, mask, None), True) for scale in (1.0, 3.0)}
    assert all(delta.abs().max() < 1e-6 for _, delta in found.values())
    assert torch.allclose(3 * found[1.0][0], found[3.0][0], atol=1e-6)
    assert not found[1.0][0][:, 0].any()


def test_a_tensor_that_all_samples_share_is_not_cut_with_them():
    """A table of two rows beside two samples: in parts the function would be another."""
    model = network()

    def scaled(x, table):
        return model(x) * table.sum()

    table = torch.tensor([1.0, 3.0])
    whole, delta = Relevance(scaled).attribute(X, 0, 1, table, True)
    assert delta.abs().max() < 1e-5
    assert torch.allclose(whole, 4 * Relevance(model).attribute(X, 0, 1), atol=1e-5)
    with pytest.raises(hilrp.ModelError, match=r"additional_forward_args.*batch=None"):
        Relevance(scaled, batch=1).attribute(X, 0, 1, table)
    with pytest.warns(hilrp.AuditWarning, match="what was explained is"):
        Relevance(scaled, batch=1, audit="warn").attribute(X, 0, 1, table)


@pytest.mark.parametrize("nested", [[torch.ones(2, 1)], {"scale": torch.ones(2, 1)}, (torch.ones(2, 1),)], ids=str)
def test_tensors_within_an_argument_are_refused(nested):
    model = network()
    with pytest.raises(hilrp.InputError, match=r"additional_forward_args\[1\] is a .* arguments of their own"):
        Relevance(lambda x, scale, other: model(x) * scale).attribute(X, 0, 1, (2.0, nested))


class Doubling(nn.Module):
    """Writes to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x.mul_(2))


def test_inputs_stay_as_they_are():
    x = torch.randn(3, 4)
    before = x.clone()
    _, delta = Relevance(Doubling().eval()).attribute(x, 0, 1, return_convergence_delta=True)
    assert torch.equal(x, before)
    assert delta.abs().max() < 1e-6


def test_models_that_return_more_than_a_tensor():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return {"logits": self.inner(x), "hidden": x}

    found, delta = Relevance(Two().eval()).attribute(X[:1], target=1, return_convergence_delta=True)
    assert found.shape == (1, 3, 8, 8)
    assert delta.abs().max() < 1e-6


# captum's wrappers, metrics and pictures ------------------------------------------------------------------------


def test_noise_tunnel():
    model = network()
    tunnel = attr.NoiseTunnel(Relevance(model))
    found, delta = tunnel.attribute(
        X, nt_type="smoothgrad", nt_samples=3, stdevs=0.05, target=[0, 1], baselines=0, return_convergence_delta=True
    )
    assert delta.shape == (6,)
    assert delta.abs().max() < 1e-5
    assert torch.allclose(found, Relevance(model).attribute(X, 0, [0, 1]), atol=0.05)


def test_infidelity_and_sensitivity():
    model = network()
    relevance = Relevance(model)
    found = relevance.attribute(X, 0, 1)

    @metrics.infidelity_perturb_func_decorator(True)
    def all_of_it(inputs, baselines):
        """Takes everything away: attributions that add up are right about that."""
        return baselines

    zeros = torch.zeros_like(X)
    assert metrics.infidelity(model, all_of_it, X, found, zeros, target=1, n_perturb_samples=2).max() < 1e-10
    assert metrics.infidelity(model, all_of_it, X, 2 * found, zeros, target=1, n_perturb_samples=2).max() > 1e-4
    sensitive = metrics.sensitivity_max(relevance.attribute, X, perturb_radius=0.01, n_perturb_samples=2, target=1)
    assert sensitive.shape == (2,)
    assert (sensitive > 0).all()


def test_visualization():
    from matplotlib import pyplot as plt

    found = Relevance(network()).attribute(X, target=1)[0].permute(1, 2, 0).numpy()
    picture = X[0].permute(1, 2, 0).sigmoid().numpy()
    _, axes = visualization.visualize_image_attr(found, picture, "blended_heat_map", "all", use_pyplot=False)
    assert len(axes.images) == 2
    visualization.visualize_image_attr_multiple(
        found, picture, ["original_image", "heat_map"], ["all", "absolute_value"], use_pyplot=False
    )
    plt.close("all")


# captum's tutorials, by one changed import ----------------------------------------------------------------------


def test_tutorial_resnet():
    """Interpreting a ResNet: the predicted class, smoothed, and a layer's attributions, enlarged."""
    model, x = randomised(timm.create_model("resnet10t", num_classes=4)), torch.randn(1, 3, 64, 64)
    predicted = torch.topk(model(x).softmax(1), 1)[1].squeeze()
    integrated_gradients = Relevance(model)
    found, delta = integrated_gradients.attribute(x, target=predicted, return_convergence_delta=True)
    assert delta.abs() < 1e-4 * model(x).abs().max()
    smoothed = attr.NoiseTunnel(integrated_gradients).attribute(
        x, nt_samples=2, nt_type="smoothgrad_sq", target=predicted
    )
    assert smoothed.shape == found.shape
    layer = LayerRelevance(model, model.layer3).attribute(x, target=predicted)
    assert layer.shape[:1] == (1,)
    enlarged = attr.LayerAttribution.interpolate(layer.sum(1, keepdim=True), x.shape[2:])
    assert enlarged.shape == (1, 1, 64, 64)
    assert torch.allclose(layer.sum(), found.sum(), rtol=1e-4)


class Question(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.drop, self.tanh = nn.Embedding(20, 8, padding_idx=0), nn.Dropout(0.5), nn.Tanh()
        self.lstm = nn.LSTM(8, 6)

    def forward(self, q, q_len):
        embedded = self.tanh(self.drop(self.embedding(q)))
        _, (_, c) = self.lstm(pack_padded_sequence(embedded, q_len, batch_first=True))
        return c.squeeze(0)


class VisualQuestions(nn.Module):
    """The tutorial's model, pytorch-vqa, in small: the words' state says where to look in a ResNet's features."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.picture = Question(), nn.Sequential(nn.Conv2d(3, 8, 4, 4), nn.ReLU(inplace=True))
        self.v_conv, self.q_lin, self.x_conv = nn.Conv2d(8, 5, 1, bias=False), nn.Linear(6, 5), nn.Conv2d(5, 2, 1)
        self.classifier = nn.Sequential(nn.Linear(22, 9), nn.ReLU(), nn.Linear(9, 4))

    def forward(self, v, q, q_len):
        q, v = self.text(q, q_len), self.picture(v)
        v = v / (v.norm(p=2, dim=1, keepdim=True).expand_as(v) + 1e-8)
        a = self.x_conv((self.v_conv(v) + self.q_lin(q)[:, :, None, None]).relu())
        seen = (a.flatten(2).softmax(-1).unsqueeze(2) * v.flatten(2).unsqueeze(1)).sum(-1).flatten(1)
        return self.classifier(torch.cat([seen, q], 1))


@pytest.mark.parametrize("by_layers", [False, True])
@pytest.mark.filterwarnings("ignore:In order to make embedding layers", "ignore:Multiple layers provided")
def test_tutorial_multimodal(by_layers):
    """Questions about pictures, in both of its ways, with the arguments that it gives."""
    model = VisualQuestions().eval()
    image, q, q_len = torch.rand(1, 3, 16, 16).requires_grad_(), torch.tensor([3, 4, 5, 6, 0]), torch.tensor(4)
    q_reference = attr.TokenReferenceBase(reference_token_idx=0).generate_reference(5, device="cpu").unsqueeze(0)
    if by_layers:
        model = ModelInputWrapper(model)
        method = LayerRelevance(model, [model.input_maps["v"], model.module.text.embedding])
        inputs, baselines = (image, q.unsqueeze(0)), (image * 0.0, q_reference)
    else:
        embedding = attr.configure_interpretable_embedding_layer(model, "text.embedding")
        method = Relevance(model)
        inputs = image, embedding.indices_to_embeddings(q).unsqueeze(0)
        baselines = image * 0.0, embedding.indices_to_embeddings(q_reference)
    answer = model(*inputs, q_len.unsqueeze(0))
    given = {"target": answer.argmax(1), "additional_forward_args": q_len.unsqueeze(0)}
    with pytest.warns(UserWarning, match="n_steps=30 changes nothing: one pass is exact"):
        (pixels, words), delta = method.attribute(inputs, baselines, n_steps=30, return_convergence_delta=True, **given)
    assert (pixels.shape, words.shape) == ((1, 3, 16, 16), (1, 5, 8))
    with torch.no_grad():
        difference = (answer - model(*baselines, q_len.unsqueeze(0)))[0, given["target"]]
    assert abs(float(pixels.sum() + words.sum() - difference)) < 1e-6
    assert float(delta.abs()) < 1e-6
    assert float(pixels.abs().sum()) > 1e-3
    assert words[0, :4].abs().sum(1).gt(1e-5).all()
    assert not words[0, 4:].any()  # what is padded has no part


def test_words_go_in_as_numbers_where_a_layer_embeds_them():
    model = Answers().eval()
    words, reference = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.zeros(2, 3, dtype=torch.long)

    def forward(picture, q, temperature=1.0):
        return model(picture, model.words(q), temperature)

    embedded, padding = model.words(words).detach(), model.words(reference).detach()
    pixels, wanted = Relevance(model).attribute((X, embedded), (0, padding), (1, 2), 2.0)
    layer = LayerRelevance(forward, [model.words, model.picture])
    (found, patches), delta = layer.attribute((X, words), (0, reference), (1, 2), 2.0, True)
    assert torch.allclose(found, wanted, atol=1e-7)
    assert torch.allclose(patches.sum((1, 2, 3)), pixels.sum((1, 2, 3)), atol=1e-6)
    assert delta.abs().max() < 1e-6
    _, delta = LayerRelevance(forward, model.words, batch=1).attribute((X, words), (X, 0), (1, 2), None, True)
    assert delta.abs().max() < 1e-6
    whole = LayerRelevance(forward, model.words).attribute((X, words), target=(1, 2))  # relative to zero
    assert torch.allclose(whole, Relevance(model).attribute((X, embedded), target=(1, 2))[1], atol=1e-6)
    # Where there is nothing but words, a later layer's output is explained as well.
    alone, later = (LayerRelevance(lambda q: forward(X, q), each) for each in (model.words, model.attend))
    beside = layer.attribute((X, words), (X, reference), (1, 2))[0]
    assert torch.allclose(alone.attribute(words, reference, (1, 2)).sum((1, 2)), beside.sum((1, 2)), atol=1e-6)
    with pytest.raises(hilrp.ModelError, match=r"1 times in a pass, and returns tuple"):
        later.attribute(words, reference, (1, 2))
    with pytest.raises(hilrp.ModelError, match=r"layer: NonDynamically.* does not run"):
        LayerRelevance(lambda q: forward(X, q), model.attend.out_proj).attribute(words, reference, (1, 2))
    for given, said in (
        ({"attribute_to_layer_input": True}, "attribute_to_layer_input=True: inputs hold whole numbers"),
        ({"baselines": (0, 0.5)}, r"baselines\[1\] is 0.5, the input holds torch.int64"),
        ({"baselines": (0, embedded[:, :, 0])}, r"baselines\[1\] holds torch.float32, the input torch.int64"),
    ):
        with pytest.raises(hilrp.InputError, match=said):
            layer.attribute((X, words), target=(1, 2), **given)


@pytest.mark.parametrize("name", ["n_steps", "method", "internal_batch_size"])
def test_arguments_of_a_path_change_nothing_and_that_is_said(name):
    model = network()
    with pytest.warns(UserWarning, match=f"{name}=.* changes nothing") as warned:
        found = Relevance(model).attribute(X, target=1, **{name: 50})
    assert warned[0].filename == __file__
    assert torch.equal(found, Relevance(model).attribute(X, target=1))


# Layers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [False, True])
def test_layers_sum_to_the_difference(wrapped):
    model = network().double()
    forward = (lambda x: model(x)) if wrapped else model
    x = X.double()
    for layer in (model[0], model[1], model[4]):
        for of_input in (False, True):
            found, delta = LayerRelevance(forward, layer).attribute(
                x, target=1, return_convergence_delta=True, attribute_to_layer_input=of_input
            )
            features = model[: list(model).index(layer) + (not of_input)](x)
            assert found.shape == features.shape
            assert delta.abs().max() < 1e-12


def test_the_last_layer_is_the_product_of_its_parts():
    """Where nothing follows but a linear layer, relevance is weight times difference."""
    model = network()
    found = LayerRelevance(model, model[5]).attribute(X, baselines=0, target=2)
    difference = model[:6](X) - model[:6](X * 0)
    assert torch.allclose(found, difference * model[6].weight[2], atol=1e-6)


def test_what_layers_can_not_be():
    relu = nn.ReLU()
    model = nn.Sequential(nn.Conv2d(3, 4, 3), relu, nn.Conv2d(4, 4, 3), relu, nn.Flatten(), nn.Linear(64, 2)).eval()
    with pytest.raises(hilrp.ModelError, match="`1` runs more than once"):
        LayerRelevance(model, relu).attribute(X, target=1)
    with pytest.raises(hilrp.InputError, match=r"layer=.*is no module of the model"):
        LayerRelevance(model, nn.ReLU()).attribute(X, target=1)
    model.unused = nn.Linear(2, 2)
    model.forward = nn.Sequential(*list(model)[:6]).forward
    with pytest.raises(hilrp.ModelError, match="`unused` does not run"):
        LayerRelevance(model, model.unused).attribute(X, target=1)
    with pytest.raises(hilrp.InputError, match="layer='3'"):
        LayerRelevance(model, "3")
    with pytest.raises(hilrp.InputError, match="device_ids"):
        LayerRelevance(model, model[0], [0, 1])


# What is wrong is said ------------------------------------------------------------------------------------------


def test_targets_that_name_nothing():
    relevance = Relevance(network())
    for target, said in (
        (None, r"target=logits.argmax\(1\)"), (3, "target=3 is out of range"), ([0], "1 entries for 2 samples"),
        ((0, 1), "no single number"), (0.5, "is a float"), (True, "is a bool"), ("cat", "is a str"),
    ):  # fmt: skip
        with pytest.raises(hilrp.TargetError, match=said):
            relevance.attribute(X, target=target)
    with pytest.raises(AssertionError, match="Target not provided when necessary"):
        attr.Saliency(network()).attribute(X.clone().requires_grad_())  # captum raises as well
    with pytest.raises(hilrp.TargetError, match="give no target"):
        Relevance(nn.Sequential(network(1), nn.Flatten(0)).eval()).attribute(X, target=0)
    with pytest.raises(hilrp.TargetError, match="let it return one row for each"):
        Relevance(nn.Sequential(network(), nn.Flatten(0)).eval()).attribute(X, target=0)


def test_arguments_that_make_no_sense():
    model = network()
    with pytest.raises(hilrp.InputError, match=r"stdevs= is no argument of Relevance.attribute: .*NoiseTunnel"):
        Relevance(model).attribute(X, target=1, stdevs=0.1)
    with pytest.raises(hilrp.InputError, match=r"colour= is no argument"):
        Relevance(model).attribute(X, target=1, colour=50)
    with pytest.raises(hilrp.InputError, match="multiply_by_inputs=False"):
        Relevance(model, multiply_by_inputs=False)
    with pytest.raises(hilrp.InputError, match="forward_func is a str"):
        Relevance("resnet50")
    with pytest.raises(hilrp.InputError, match=r"inputs\[1\] holds torch.int64.*additional_forward_args"):
        Relevance(model).attribute((X, torch.ones(2, 3, dtype=torch.long)), target=1)
    with pytest.raises(hilrp.InputError, match="holds a list"):
        Relevance(model).attribute([X], target=1)
    with pytest.raises(hilrp.InputError, match="inputs has the shapes"):
        Relevance(model).attribute((X, X[:1]), target=1)
    with pytest.raises(hilrp.InputError, match="baselines has 2 parts for 1 inputs"):
        Relevance(model).attribute(X, (0, 0), 1)
    with pytest.raises(hilrp.InputError, match=r"baselines\[0\] has the shape \(3, 3, 8, 8\)"):
        Relevance(model).attribute(X, torch.zeros(3, 3, 8, 8), 1)
    with pytest.raises(hilrp.InputError, match=r"baselines\[0\] is a NoneType"):
        Relevance(model).attribute((X,), (None,), 1)
    with pytest.raises(hilrp.InputError, match='use rules="secant"'):
        Relevance(model, rules="hilrp").attribute(X, target=1, return_convergence_delta=True)
    with pytest.raises(hilrp.ModelError, match="training"):
        Relevance(nn.Sequential(nn.BatchNorm2d(3), network()).train()).attribute(X, target=1)


def test_without_captum_the_error_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "hilrp.compat.captum")
    for name in [each for each in sys.modules if each.partition(".")[0] == "captum"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPeerError, match=r"captum is not installed.*hilrp\[compat\]") as raised:
        importlib.import_module("hilrp.compat.captum")
    assert isinstance(raised.value, ImportError)
