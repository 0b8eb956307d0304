"""Relevance relative to a reference: it sums to the difference of the scores, whatever the model is made of."""

from __future__ import annotations

import pytest
import torch
from captum.attr import IntegratedGradients
from PIL import Image
from torch import nn
from torch.nn import functional as F
from torchvision.ops import deform_conv2d

import hilrp
from helpers.models import small_swin
from helpers.nets import Apply, total
from hilrp.method.rules import Rules
from hilrp.scenes import Scenes
from hilrp.zoo.architectures import ARCHITECTURES

EXACT = Rules(linear="epsilon", constants="reference")
A, B = torch.randn(6, 6, dtype=torch.float64), torch.randn(6, 6, dtype=torch.float64)


def plain(y):
    return y.flatten(1).sum(1)


def explain(function, x, x0, rules=EXACT, target=total, **options):
    model = function if isinstance(function, nn.Module) else Apply(function)
    return hilrp.explain(model.eval(), x, target, rules, x0, stages=None, **options)


def without_grad(x):
    with torch.no_grad():
        return x.tanh()


def attend(**options):
    return lambda x: F.scaled_dot_product_attention(x @ A, x @ B, x.sin(), **options)


CELL = nn.LSTM(6, 3, batch_first=True, bidirectional=True).double()
torch.manual_seed(5)
for parameter in CELL.parameters():
    nn.init.normal_(parameter)


def lstm(x):
    return CELL(x)[0]


OPERATIONS = {
    "linear": lambda x: F.linear(x, A, A[0]),
    "matmul of two": lambda x: (x @ A) @ (x @ B).transpose(1, 2),
    "einsum of two": lambda x: torch.einsum("bij,bkj->bik", x, x @ A),
    "product": lambda x: x * (x @ A).sigmoid(),
    "quotient": lambda x: x / ((x @ A).square() + 0.1),
    "quotient that changes sign": lambda x: x / (x @ A),
    "constant divided": lambda x: 1 / (x.square() + 0.1),
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "relu": F.relu,
    "leaky": lambda x: F.leaky_relu(x, 0.1),
    "abs": torch.abs,
    "exp": torch.exp,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "softplus": F.softplus,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "clamp by tensors": lambda x: x.clamp(x @ A, 0.3 + x @ B),
    "maximum": lambda x: torch.maximum(x, x @ A),
    "round": lambda x: x.round() + x.sign(),
    "power": lambda x: x**3 + (x.square() + 1) ** -0.5,
    "power of two": lambda x: (x.square() + 0.5) ** (x @ A).tanh(),
    "two to the power": lambda x: 2**x,
    "log": lambda x: (x.square() + 0.1).log(),
    "logit": lambda x: torch.logit(x, 1e-3) + torch.special.logit(x.sigmoid()) * x,
    "hypot": lambda x: torch.hypot(x, x @ A),
    "softmax": lambda x: (x @ A).softmax(-1) * x,
    "softmax by hand": lambda x: (e := (x @ A - (x @ A).amax(-1, keepdim=True)).exp()) / e.sum(-1, keepdim=True) * x,
    "log-softmax": lambda x: x.log_softmax(-1) * x + x.logsumexp(-1, keepdim=True),
    "masked softmax": lambda x: (x.masked_fill(torch.eye(6).bool()[:5], float("-inf"))).softmax(-1) * x,
    "attention": attend(),
    "causal attention": attend(is_causal=True),
    "masked attention": attend(attn_mask=torch.ones(5, 5).tril().bool()),
    "attention with a bias that varies": lambda x: F.scaled_dot_product_attention(
        x, x, x, x @ x.transpose(1, 2), scale=0.3
    ),
    "grouped attention": lambda x: F.scaled_dot_product_attention(
        x.reshape(2, 5, 3, 2).transpose(1, 2).repeat(1, 2, 1, 1),
        *[x.reshape(2, 5, 3, 2).transpose(1, 2)] * 2,
        enable_gqa=True,
    ),
    "layer norm": lambda x: F.layer_norm(x, (6,), A[0], B[0]),
    "rms norm": lambda x: F.rms_norm(x, (6,), A[0]),
    "group norm": lambda x: F.group_norm(x.transpose(1, 2), 3, A[0], B[0]),
    "instance norm": lambda x: F.instance_norm(x, weight=A[0, :5], bias=B[0, :5]),
    "batch norm": lambda x: F.batch_norm(x, A[0, :5], A[1, :5].abs(), B[0, :5], B[1, :5]),
    "norm by hand": lambda x: (x - x.mean(-1, keepdim=True)) * (x.var(-1, keepdim=True, unbiased=False) + 0.1).rsqrt(),
    "standard deviation": lambda x: x.std(-1) + torch.std_mean(x, -1)[1],
    "euclidean norm": lambda x: x.norm(dim=-1) + torch.linalg.vector_norm(x, dim=1).sum(-1, keepdim=True),
    "cosine": lambda x: F.cosine_similarity(x, x @ A, dim=-1),
    "max-pool": lambda x: F.max_pool1d(x, 3, 2, 1) + F.adaptive_max_pool1d(x, 3),
    "max-pool in two dimensions": lambda x: F.max_pool2d(x[:, None], 2, stride=1, ceil_mode=True),
    "maximum over an axis": lambda x: x.amax(-1) + x.max(1).values.sum(-1, keepdim=True) - x.amin((1, 2))[:, None],
    "average pool": lambda x: F.avg_pool1d(x, 3, 1, 1),
    "sort": lambda x: x.sort(-1).values * torch.arange(6),
    "reindexing": lambda x: torch.cat([x.flip(1), x.roll(1, 2)], 1).transpose(1, 2).reshape(2, -1)[:, ::2] + 1,
    "interpolation": lambda x: F.interpolate(x, size=9, mode="linear"),
    "fourier": lambda x: torch.fft.fft(x).abs() + torch.fft.fft(x).real,
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "a mask of numbers": lambda x: (x > 0).double() * x,
    "detached": lambda x: x + (x.tanh() - x).detach() * 2,
    "without gradients": lambda x: x * without_grad(x),
    "in place": lambda x: x.clone().mul_(2).add_(x).relu_(),
    "grid sample": lambda x: F.grid_sample(
        (x @ A)[:, None], x[:, :, :2].tanh().reshape(2, 5, 1, 2), padding_mode="border", align_corners=False
    ),
    "lstm": lstm,
    "topk and median": lambda x: x.topk(2, -1).values * torch.tensor([1.0, 2.0]) + x.median(-1, keepdim=True).values,
    "norms of other orders": lambda x: x.norm(1, dim=-1) + torch.linalg.vector_norm(x, 3, dim=-1),
    "quantile": lambda x: x.quantile(0.4, -1),
    "deformable convolution": lambda x: deform_conv2d(
        (x @ A)[:, None],
        x[:, None].tanh().expand(-1, 2, -1, -1),
        B[:1, :1].reshape(1, 1, 1, 1),
        mask=x[:, None].sigmoid(),
    ),
    "kth value": lambda x: x.kthvalue(3, 1).values,
    "masked topk": lambda x: x.masked_fill(torch.eye(6).bool()[:5], float("-inf")).topk(2, -1).values,
    "logsumexp over axes": lambda x: x.logsumexp((1, 2), keepdim=True) * x,
    "einsum of three": lambda x: torch.einsum("bij,bij,bij->bi", x, x @ A, x @ B),
    "where by a mask": lambda x: torch.where(x > 0, x @ A, x @ B),
    "masked mean": lambda x: (x * (x > 0)).sum(-1) / ((x > 0).sum(-1) + 1),
    "complex square": lambda x: (torch.fft.fft(x) ** 2).real,
    "fixed memory": lambda x: (
        F.scaled_dot_product_attention(x[:, None], A[None, None, :4], B[None, None, :4] * 2)
        + F.scaled_dot_product_attention(x[:, None], (x @ A)[:, None].mean(0, keepdim=True), x[:1, None])
    ),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_passes_on_the_difference(name):
    """In float64, to rounding: nothing is kept and nothing is made."""
    _check(OPERATIONS[name], 1 if name == "fixed memory" else 2)


def test_filters_that_depend_on_the_input():
    """Of one sample: in a batch they would be shared."""
    _check(lambda x: F.conv1d(x, (x @ A)[:, :3, :3].transpose(0, 1)[:3].repeat(1, 5, 1)[:, :5]), batch=1)


def count_up(x):
    counts = torch.zeros(2, 5, 6, dtype=x.dtype)
    counts += x > 0
    return counts * x


def marked(x):
    marks = torch.zeros(2, 5, 6, dtype=torch.bool)
    marks |= x > 0
    marks[:, 0] = x[:, 0] > 0.5
    return torch.where(marks, x, 0.2 * x)


LEFT_OVER = {
    "a mask added": lambda x: x + (x > 0).double(),
    "a mask beside": lambda x: torch.cat([x, (x > 0).double()], 1),
    "gathered where it is largest": lambda x: x.gather(-1, x.abs().topk(2).indices),
    "a mask of attention": lambda x: F.scaled_dot_product_attention(
        x, x, x, (x @ x.transpose(1, 2) > 0) | torch.eye(5).bool()
    ),
    "a bias of attention": lambda x: F.scaled_dot_product_attention(x, x, x, (x @ x.transpose(1, 2) > 0).double()),
    "a mask of a softmax": lambda x: x.masked_fill(x < -0.5, float("-inf")).softmax(-1),
}


@pytest.mark.parametrize("name", LEFT_OVER)
def test_what_choices_leave_is_booked(name):
    """No operand's difference can carry it: the books show it, and close."""
    torch.manual_seed(1)
    x, x0 = torch.randn(2, 5, 6, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    found = explain(LEFT_OVER[name], x, x0)
    assert set(found.ledger.entries) == {"reference", "selection"}
    torch.testing.assert_close(found.ledger.entries["reference"], total(LEFT_OVER[name](x0)))
    assert float(found.ledger.residual.max()) < 1e-10
    assert bool(found.relevance.isfinite().all())


@pytest.mark.parametrize("function", [count_up, marked])
def test_choices_written_in_place(function):
    _check(function, batch=2)


#: Written for a batch of two, or sharing something between samples.
FOR_TWO = ("fixed memory", "grouped attention", "lstm", "reindexing", "grid sample")


@pytest.mark.parametrize("name", [name for name in [*OPERATIONS, *LEFT_OVER] if name not in FOR_TWO])
def test_a_map_does_not_depend_on_the_other_samples(name):
    function = (OPERATIONS | LEFT_OVER)[name]
    torch.manual_seed(7)
    x, x0 = torch.randn(2, 5, 6, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    x0[0] = x[0] + 1e-3 * x0[0]  # hardly any choice of the first differs
    both = explain(function, x, x0, audit="off").relevance
    alone = explain(function, x[:1], x0[:1], audit="off").relevance
    torch.testing.assert_close(both[:1], alone, rtol=1e-6, atol=1e-10)


def _check(function, batch):
    torch.manual_seed(1)
    x, x0 = torch.randn(batch, 5, 6, dtype=torch.float64), torch.randn(batch, 5, 6, dtype=torch.float64)
    found = explain(function, x, x0, itemised=True)
    score, before = (total(function(t)) for t in (x, x0))
    gross = found.relevance.abs().flatten(1).sum(1) + score.abs()
    torch.testing.assert_close(found.score, score, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found.ledger.entries["reference"], before, rtol=1e-12, atol=1e-12)
    pixels = found.relevance.flatten(1).sum(1)
    assert ((pixels - (score - before)).abs() / gross).max() < 1e-10
    assert float(found.ledger.leak.max()) < 1e-8
    assert set(found.ledger.entries) == {"reference"}


SMOOTH = [name for name in OPERATIONS if name not in (
    "round", "where", "grid sample", "deformable convolution", "quantile", "detached", "without gradients", "sort",
    "a mask of numbers", "lstm", "quotient that changes sign", "topk and median", "kth value", "masked topk",
    "where by a mask", "masked mean", "fixed memory",
)]  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_beside_the_reference_it_is_the_gradient(name):
    """What every secant becomes in the limit, by autograd: relevance is the gradient times a small difference."""
    torch.manual_seed(2)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    change = 1e-5 * torch.randn_like(x)
    found = explain(OPERATIONS[name], x, x - change)
    leaf = (x - change / 2).requires_grad_()
    (gradient,) = torch.autograd.grad(total(OPERATIONS[name](leaf)).sum(), leaf)
    torch.testing.assert_close(found.relevance, gradient * change, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", [*SMOOTH, "where", "sort", "round"])
@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e-7])
def test_nothing_breaks_where_input_and_reference_agree(name, scale):
    torch.manual_seed(3)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    model = Apply(OPERATIONS[name])
    found = hilrp.explain(
        model.eval(), x, lambda y: y.flatten(1).sum(1), EXACT, x - scale * torch.randn_like(x), "off", None
    )
    assert bool(found.relevance.isfinite().all())
    assert float(found.relevance.abs().max()) <= 1e3 * max(scale, 1e-7)


def test_saturated_units():
    """Far out a sigmoid is flat to the last digit, and a softmax is one.

    No relevance, and nothing that isn't a number.
    """
    x, x0 = torch.tensor([[40.0, -200.0, 90.0]]), torch.tensor([[60.0, -100.0, -90.0]])
    for function in (torch.sigmoid, lambda t: t.softmax(-1) * t, F.gelu, lambda t: (t / 100).exp().log()):
        found = explain(function, x, x0)
        assert bool(found.relevance.isfinite().all())
        torch.testing.assert_close(
            found.relevance.sum(1), total(function(x)) - total(function(x0)), rtol=1e-5, atol=1e-5
        )


def test_quadratic_functions_are_integrated_gradients():
    """Of products of linear maps the mean over the straight path is the midpoint.

    Captum's integral has the same value, pixel by pixel.
    """
    model = Apply(lambda x: ((x @ A) * (x @ B)).sum((1, 2))[:, None])
    x, x0 = torch.randn(2, 5, 6, dtype=torch.float64), torch.randn(2, 5, 6, dtype=torch.float64)
    theirs = IntegratedGradients(model).attribute(x, x0, target=0, n_steps=50)
    torch.testing.assert_close(explain(model, x, x0, target=plain).relevance, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("gamma", [0.0, 0.25, 1.0])
def test_gamma_rule_by_hand(gamma):
    torch.manual_seed(4)
    layer = nn.Linear(7, 3).double()
    x, x0 = torch.randn(1, 7, dtype=torch.float64), torch.randn(1, 7, dtype=torch.float64)
    found = explain(layer, x, x0, Rules(gamma=gamma, constants="reference"), plain)
    expected = torch.zeros(7, dtype=torch.float64)
    for i in range(3):
        z = layer.weight[i] * (x - x0)[0]
        favoured = z + gamma * z.where(z.sign() == z.sum().sign(), 0)
        expected += favoured / favoured.sum() * z.sum()
    torch.testing.assert_close(found.relevance[0], expected.detach())


@pytest.mark.parametrize("bound", [1.5, 3.0, 9.0])
@pytest.mark.parametrize("relative", [True, False])
def test_bounded_rule_by_hand(bound, relative):
    """Each unit hands out at most so many times what it gets, and no gamma is larger than that needs."""
    torch.manual_seed(4)
    layer = nn.Linear(40, 1, bias=False).double()
    for _ in range(10):
        x = torch.randn(1, 40, dtype=torch.float64)
        x0 = torch.randn_like(x) if relative else torch.zeros_like(x)
        rules = Rules(linear="bounded", bound=bound)
        found = hilrp.explain(layer, x, 0, rules, x0 if relative else None, stages=None)
        z = layer.weight[0].detach() * (x - x0)[0]
        ratio = found.relevance.abs().sum() / z.sum().abs()
        free = z.abs().sum() / z.sum().abs()
        assert float(ratio) == pytest.approx(min(bound, float(free)), rel=1e-9)
        assert float(found.relevance.sum()) == pytest.approx(float(z.sum()))


def test_the_bound_grows_with_depth():
    """Four layers of one unit: at depths 0, 1/3, 2/3 and 1.

    With exact_from 0.8 the bounds are 2, 1 + 1/(1 - 1/2.4), 1 + 1/(1 - 2/2.4), none.
    """

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(30, 1, bias=False).double() for _ in range(4))

        def forward(self, x):
            return torch.cat([layer(part) for layer, part in zip(self.layers, x.chunk(4, 1), strict=True)], 1)

    torch.manual_seed(6)
    model, x = Layers().eval(), torch.randn(1, 120, dtype=torch.float64)
    # Contributions that nearly cancel: every bound is felt.
    with torch.no_grad():
        for layer, part in zip(model.layers, x.chunk(4, 1), strict=True):
            layer.weight[0, -1] -= (layer(part) - 1e-3)[0, 0] / part[0, -1]
    found = hilrp.explain(model, x, plain, Rules(linear="bounded", bound=2.0, exact_from=0.8), stages=None)
    sizes = found.relevance.abs().reshape(4, 30).sum(1) / found.relevance.reshape(4, 30).sum(1)
    expected = [2.0, 1 + 1 / (1 - 1 / 2.4), 1 + 1 / (1 - 2 / 2.4)]
    assert sizes[:3].tolist() == pytest.approx(expected, rel=1e-6)
    z = model.layers[3].weight[0].detach() * x[0, 90:]
    torch.testing.assert_close(found.relevance[0, 90:], z)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "name", ["gelu", "abs", "leaky", "sigmoid", "softmax", "layer norm", "attention", "product", "max-pool"]
)
def test_half_types(name, dtype):
    """The difference is held to the precision of the type, relative to what flows."""
    torch.manual_seed(1)
    x, x0 = torch.randn(2, 5, 6).to(dtype), torch.randn(2, 5, 6).to(dtype)

    def function(t):
        return OPERATIONS[name](t)

    weights = {"A": A, "B": B}
    globals().update({k: v.to(dtype) for k, v in weights.items()})
    try:
        found = explain(function, x, x0, audit="off")
        expected = total(function(x).float()) - total(function(x0).float())
    finally:
        globals().update(weights)
    gross = found.relevance.float().abs().flatten(1).sum(1)
    assert bool(found.relevance.isfinite().all())
    assert ((found.relevance.float().flatten(1).sum(1) - expected).abs() / gross).max() < 0.05


# Models ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_trained_models_hold_the_difference(family):
    """To 1e-4 of what is explained in float32 and 1e-9 in float64; EfficientViT's attention always runs in float32."""
    loaded = hilrp.load(f"zoo/{family}")
    scene = Scenes(seed=9)[0]
    x = loaded.batch([Image.fromarray(scene.image)])
    fine = 1e-6 if family == "efficientvit" else 1e-9
    for dtype, bound in ((torch.float32, 1e-4), (torch.float64, fine)):
        model, own = loaded.model.to(dtype), x.to(dtype)
        with torch.no_grad():
            score, before = model(own), model(own.mean((2, 3), keepdim=True).expand_as(own))
        for rules in (Rules(constants="reference"), Rules(linear="bounded", constants="reference")):
            found = hilrp.explain(model, own, scene.things[0].label, rules, "mean")
            label = scene.things[0].label
            explained = score[0, label] - before[0, label]
            assert torch.equal(found.output, score)
            assert abs(float(found.ledger.pixels[0]) - float(explained)) <= bound * abs(float(explained))
            assert str(found.verdicts[0]) == "valid"


def test_stages_and_trace_hold_it_too():
    model, x = small_swin().double(), torch.randn(2, 3, 64, 64, dtype=torch.float64)
    found = hilrp.explain(model, x, 1, Rules(constants="reference"), 0.0)
    assert found.stages
    share = found.ledger.share
    for value in found.trace.values():
        torch.testing.assert_close(value, share, rtol=1e-6, atol=1e-9)


def test_another_way_through_the_model_is_an_error():
    class Chooses(nn.Module):
        def forward(self, x):
            return x[x > 0].sum().reshape(1) + x.sum(1)

    with pytest.raises(hilrp.ModelError, match="another way on the reference"):
        explain(Chooses(), torch.ones(1, 4), -torch.ones(1, 4), target=lambda y: y)


def test_the_branch_that_was_not_taken_has_no_part():
    """Where the choice is the same on both; of the rest, which differs, both may have one."""
    x = torch.tensor([[1.0, -1.0, 1.0, 5.0, 6.0, 7.0]])
    x0 = torch.tensor([[2.0, -2.0, -3.0, 1.0, 1.0, 1.0]])
    found = explain(lambda t: torch.where(t[:, :3] > 0, t[:, :3], t[:, 3:]), x, x0, target=plain)
    assert found.relevance[0, [0, 1, 3, 4]].tolist() == [-1.0, 0.0, 0.0, 5.0]
    assert float(found.relevance[0, [2, 5]].sum()) == pytest.approx(0.0, abs=1e-6)  # 1 on the input, 1 on the reference
