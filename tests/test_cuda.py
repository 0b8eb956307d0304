"""What runs on a GPU alone: kernels, explanations as CUDA graphs, and attention's values."""

from __future__ import annotations

import copy
import gc
import importlib.util
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hilrp
from hilrp.method.fast import attention_values as values
from hilrp.method.fast import kernels
from hilrp.targets import Contrast

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _exact() -> Iterator[None]:
    """Products in float32, and what was found out about Triton forgotten."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    kernels._triton.cache_clear()
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before
    kernels._triton.cache_clear()


class Block(nn.Module):
    """Attention whose queries, keys and values are made by one layer, and two layers with an activation."""

    def __init__(self, width: int, heads: int, activation: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width, bias=False)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(self.norm1(x)).reshape(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(*y.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, activation: type[nn.Module] = nn.GELU, classes: int = 7) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 48, 8, 8)
        self.place = nn.Parameter(torch.randn(1, 17, 48) * 0.1)
        self.token = nn.Parameter(torch.randn(1, 1, 48) * 0.1)
        self.blocks = nn.Sequential(*(Block(48, 3, activation()) for _ in range(3)))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


class Convolutions(nn.Module):
    """In the order of axes that the input comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(inplace=True),
            nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GroupNorm(4, 16), nn.Hardswish(),
            nn.Conv2d(16, 24, 1), nn.ReLU6(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(24, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(x))


class Asking(Transformer):
    """A model that asks the device for a number while it runs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > -1e9 else -x)


MODELS = {"transformer": Transformer, "elu": lambda: Transformer(nn.ELU), "convolutions": Convolutions}


def made(name: str) -> nn.Module:
    model = MODELS[name]()
    for p in model.parameters():
        if p.ndim == 1:
            nn.init.normal_(p, 0.3, 0.3)
    return model.to(DEVICE).eval()


def images(batch: int = 3) -> Tensor:
    return torch.randn(batch, 3, 32, 32, device=DEVICE)


def apart(a: Tensor, b: Tensor) -> float:
    """How far a tensor is off, relative to the size of the other; both may be zero."""
    return float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-30))


def same(found: hilrp.Explanation, expected: hilrp.Explanation, bound: float) -> None:
    """Relevance, stages, score, classes and books."""
    assert apart(found.relevance, expected.relevance) <= bound
    assert apart(found.score, expected.score) <= bound
    assert torch.equal(found.target, expected.target)
    assert found.stages.keys() == expected.stages.keys()
    assert all(apart(found.stages[name], value) <= bound for name, value in expected.stages.items())
    assert found.ledger.entries.keys() == expected.ledger.entries.keys()
    scale = expected.score.double().abs() + sum(v.abs() for v in expected.ledger.entries.values())
    for name, value in expected.ledger.entries.items():
        assert float(((found.ledger.entries[name] - value).abs() / scale).max()) <= 10 * bound, name


def recordings(explainer: hilrp.Explainer) -> list:
    assert explainer._runner.recorder is not None
    assert explainer._runner.recorder.failure is None
    return list(explainer._runner.recorder._recordings.values())


# Kernels --------------------------------------------------------------------------------------------------------------


@needs_triton
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_kernels_beside_the_plain_functions(dtype, bound):
    from helpers.kernel_cases import compared

    with torch.device(DEVICE):
        found = compared(dtype, kernels._fused)
    assert len(found) > 100
    # In half precision the plain function rounds after each of a dozen steps.
    bounds = {name: bound * (4 if "bounded_shares" in name else 1) for name in found}
    assert not {name: error for name, (error, _, _) in found.items() if not error <= bounds[name]}
    assert not {name for name, (_, ran, expected) in found.items() if bool(ran) != expected}


def with_and_without(monkeypatch: pytest.MonkeyPatch, run) -> list:
    """What a function returns with kernels, and without."""
    found = []
    for setting in ("1", "0"):
        monkeypatch.setenv("HILRP_FUSED", setting)
        kernels._triton.cache_clear()
        assert (kernels._fused(torch.zeros(3, device=DEVICE)) is not None) == (setting == "1")
        found.append(run())
    return found


RULES = ["hilrp", "hilrp-conv", "epsilon", "zplus", "attnlrp", "secant", hilrp.Rules(constants="reference")]


@needs_triton
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_explanations_with_and_without_kernels(monkeypatch, name, rules, order):
    """And both beside float64, which has no kernels."""
    model, x = made(name), images().contiguous(memory_format=order)
    fast, plain = with_and_without(monkeypatch, lambda: hilrp.explain(model, x, [0, 3, 6], rules))
    same(fast, plain, 2e-5)
    exact = hilrp.explain(copy.deepcopy(model).double(), x.double(), [0, 3, 6], rules)
    same(fast, exact, 1e-3)
    assert float(exact.ledger.residual.max()) < 1e-10
    assert float(fast.ledger.residual.max()) < 1e-4


@needs_triton
@pytest.mark.parametrize("rules", ["hilrp", "epsilon", "secant"])
@pytest.mark.parametrize("name", MODELS)
def test_in_bfloat16(monkeypatch, name, rules):
    model, x = made(name), images()

    def run() -> hilrp.Explanation:
        with torch.autocast(DEVICE, torch.bfloat16):
            return hilrp.explain(model, x, [0, 3, 6], rules, audit="off")

    fast, plain = with_and_without(monkeypatch, run)
    exact = hilrp.explain(copy.deepcopy(model).double(), x.double(), [0, 3, 6], rules)
    errors = [apart(found.relevance, exact.relevance) for found in (fast, plain)]
    # Kernels round once where torch rounds after each step.
    assert errors[0] < max(1.5 * errors[1], 0.02)
    assert errors[0] < 0.2


@needs_triton
@pytest.mark.parametrize("itemised", [False, True])
def test_books_with_and_without_kernels(monkeypatch, itemised):
    model, x = made("transformer"), images(4)
    fast, plain = with_and_without(monkeypatch, lambda: hilrp.explain(model, x, 1, itemised=itemised, rules="hilrp"))
    same(fast, plain, 2e-5)
    # Each sample alone has the books that it has among others.
    for i in range(4):
        alone = hilrp.explain(model, x[i : i + 1], 1, itemised=itemised, rules="hilrp")
        assert apart(fast.ledger.constants[i : i + 1], alone.ledger.constants) < 1e-4


@needs_triton
@pytest.mark.parametrize("name", ["resnet18", "convnext_atto", "vit_tiny_patch16_224", "mobilenetv3_small_050"])
def test_models_of_timm(monkeypatch, name):
    timm = pytest.importorskip("timm")
    options = {"img_size": 64} if name.startswith("vit") else {}
    model = timm.create_model(name, num_classes=10, **options).to(DEVICE).eval()
    x = torch.randn(2, 3, 64, 64, device=DEVICE)
    fast, plain = with_and_without(monkeypatch, lambda: hilrp.explain(model, x, [1, 2], rules="hilrp"))
    same(fast, plain, 1e-4)
    explainer = hilrp.Explainer(model, compile=True, rules="hilrp")
    for _ in range(3):
        found = explainer.explain(x, [1, 2])
    assert len(recordings(explainer)) == 1
    same(found, plain, 1e-4)


def test_signs_are_computed_from_what_an_activation_keeps():
    """There is no byte for each sign, as there is on a processor."""
    from helpers.kept_tensors import kept_by
    from hilrp.method.rules import Rules

    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 6)).to(DEVICE).eval()
    bytes_kept, run = kept_by(model, torch.randn(64, 8, device=DEVICE), Rules())
    # Memory comes in blocks of 512 bytes.
    assert bytes_kept <= 64 * (4 * 8 + 4 * 32 + 4 * 6) + 3 * 512
    assert run.backward()[0].isfinite().all()


@pytest.mark.parametrize("shape", [(48,), (17, 48)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_layer_norm_is_torchs_to_the_bit(shape, dtype, autocast):
    model = nn.LayerNorm(shape).to(DEVICE, dtype).eval()
    nn.init.normal_(model.weight)
    for x in (torch.randn(2, 17, 48), torch.randn(2, 48, 17).transpose(1, 2), torch.randn(48, 2, 17).permute(1, 2, 0)):
        x = x.to(DEVICE, dtype)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=autocast):
            value = model(x)
            found = hilrp.explain(
                model, x, lambda out: out[:, :, 3].double().sum(1), stages=None, audit="off", rules="hilrp"
            )
        assert found.output.dtype == value.dtype
        assert torch.equal(found.output, value)


# Attention's values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (32, 32), (33, 70), (197, 197), (197, 49), (1, 300)])
@pytest.mark.parametrize("width", [8, 32, 64])
@pytest.mark.parametrize(("scale", "size"), [(None, 1.0), (0.3, 1.0), (None, 12.0)])
def test_attention_hands_back_to_the_values(queries, keys, width, scale, size):
    """Against the softmax in float64: ``A^T g``, with weights that are nearly all on one key, too."""
    q, k, v, g = (torch.randn(2, 3, n, width, device=DEVICE) for n in (queries, keys, keys, queries))
    q = q * size
    if not values.fits(q, k, v, None, False, scale):
        pytest.skip("torch takes another kernel for these")
    v.requires_grad_()

    def attention(own: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, own, scale=scale)

    y = values.attend(attention, q, k, v, scale)
    (found,) = torch.autograd.grad(y, v, g)
    factor = width**-0.5 if scale is None else scale
    weights = (factor * q.double() @ k.double().transpose(-2, -1)).softmax(-1)
    torch.testing.assert_close(y.double(), weights @ v.detach().double(), rtol=1e-4, atol=1e-4)
    assert torch.equal(y, attention(v))
    assert apart(found, weights.transpose(-2, -1) @ g.double()) < 2e-5 * max(1, size)


def test_attention_that_is_left_to_torch():
    q = torch.randn(2, 3, 33, 32, device=DEVICE)
    assert values.fits(q, q, q, None, False, None)
    assert not values.fits(q, q, q, torch.zeros(33, 33, device=DEVICE), False, None)
    assert not values.fits(q, q, q, None, True, None)
    assert not values.fits(q[0], q[0], q[0], None, False, None)
    assert not values.fits(q.bfloat16(), q.bfloat16(), q.bfloat16(), None, False, None)
    assert not values.fits(q.cpu(), q.cpu(), q.cpu(), None, False, None)
    assert not values.fits(q, q[:, :1], q[:, :1], None, False, None)
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not values.fits(q, q, q, None, False, None)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert not values.fits(q, q, q, None, False, None)


@pytest.mark.parametrize("form", ["plain", "mask", "causal", "strided", "few heads"])
def test_attention_in_a_model(form):
    class Attention(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = x.unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4).unbind(0)
            mask = torch.linspace(-1, 1, 40, device=x.device, dtype=x.dtype).expand(40, 40)
            if form == "strided":
                q, k, v = (t[:, :, ::2] for t in (q, k, v))
            if form == "few heads":
                k, v = k[:, :2], v[:, :2]
            return F.scaled_dot_product_attention(
                q, k, v, mask if form == "mask" else None, is_causal=form == "causal", enable_gqa=form == "few heads"
            )

    x, model = torch.randn(2, 40, 192, device=DEVICE), Attention().eval()

    def target(out: Tensor) -> Tensor:
        flat = out.flatten(1)
        return (flat * torch.linspace(-1, 2, flat.shape[1], device=DEVICE, dtype=flat.dtype)).sum(1)

    for rules in ("hilrp", hilrp.Rules(attention="uniform"), "attnlrp"):
        found = hilrp.explain(model, x, target, rules, stages=None)
        exact = hilrp.explain(model, x.double(), target, rules, stages=None)
        assert apart(found.relevance, exact.relevance) < 1e-4


# Explanations as CUDA graphs
# --------------------------------------------------------------------------------------------

TARGETS = {
    "prediction": lambda i: None,
    "class": lambda i: i,
    "classes": lambda i: [i, 6 - i, 2],
    "tensor": lambda i: torch.tensor([6, i, 1], device=DEVICE),
    "contrast": lambda i: Contrast(i + 1, [0, i + 2, 6]),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("reference", [None, 0.2, "blurred"])
@pytest.mark.parametrize("name", ["transformer", "convolutions"])
def test_recorded_or_not(name, reference, target):
    """Other values and other classes of the same form."""
    model = made(name)
    plain, compiled = (
        hilrp.Explainer(model, reference=reference, compile=compile, rules="hilrp") for compile in (False, True)
    )
    for i in range(4):
        x = images()
        same(compiled.explain(x, TARGETS[target](i)), plain.explain(x, TARGETS[target](i)), 1e-5)
    assert len(recordings(compiled)) == 1


@pytest.mark.parametrize("rules", ["epsilon", "attnlrp", "zplus", "secant"])
def test_recorded_under_other_rules(rules):
    model = made("transformer")
    plain, compiled = (hilrp.Explainer(model, rules, compile=compile) for compile in (False, True))
    for i in range(3):
        x = images()
        same(compiled.explain(x, i), plain.explain(x, i), 1e-5)
    assert len(recordings(compiled)) == 1


@pytest.mark.parametrize("reference", ["mean", 0.2])
@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.parametrize("name", ["transformer", "convolutions"])
def test_recorded_chains(name, steps, reference):
    """Passes that take from each other what they computed, on other values each time."""
    model, chains = made(name), hilrp.Chains(steps, 24 // steps)
    plain, compiled = (hilrp.Explainer(model, reference=reference, compile=compile) for compile in (False, True))
    for i in range(4):
        x = images()
        found, expected = (explainer.explain(x, i, passes=chains) for explainer in (compiled, plain))
        same(found, expected, 1e-4)
        assert apart(found.pairs, expected.pairs) < 1e-4
    assert recordings(compiled)


def test_results_have_memory_of_their_own():
    compiled = hilrp.Explainer(made("transformer"), compile=True, rules="hilrp")
    x = images()
    for _ in range(2):
        found = compiled.explain(x, 1)
    kept = [t.clone() for t in (found.relevance, found.score, found.output, found.ledger.pixels)]
    given = x.clone()
    for _ in range(2):
        compiled.explain(images(), 2)
    assert all(map(torch.equal, (found.relevance, found.score, found.output, found.ledger.pixels), kept))
    assert torch.equal(x, given)


def test_weights_that_change():
    """In place they are read where they are; otherwise the recording is made anew."""
    model = made("transformer")
    plain, compiled = hilrp.Explainer(model, rules="hilrp"), hilrp.Explainer(model, compile=True, rules="hilrp")
    x = images()
    for _ in range(2):
        compiled.explain(x, 1)
    (first,) = recordings(compiled)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1).add_(0.01)
    same(compiled.explain(x, 1), plain.explain(x, 1), 1e-5)
    assert recordings(compiled) == [first]

    model.head = nn.Linear(48, 12).to(DEVICE)
    for _ in range(3):
        same(compiled.explain(x, 11), plain.explain(x, 11), 1e-5)
    (second,) = recordings(compiled)
    assert second is not first
    model.norm.weight = nn.Parameter(torch.randn(48, device=DEVICE))
    for _ in range(3):
        same(compiled.explain(x, 11), plain.explain(x, 11), 1e-5)
    assert recordings(compiled) != [second]


def test_other_forms_of_input():
    model = made("convolutions")
    plain, compiled = hilrp.Explainer(model, rules="hilrp"), hilrp.Explainer(model, compile=True, rules="hilrp")
    for batch in (2, 3, 2, 3, 2, 1, 3, 1, 1):
        x = images(batch)
        same(compiled.explain(x), plain.explain(x), 1e-5)
    assert len(recordings(compiled)) == 3
    for _ in range(3):
        x = images(2).contiguous(memory_format=torch.channels_last)
        same(compiled.explain(x), plain.explain(x), 1e-5)
    assert len(recordings(compiled)) == 4
    for _ in range(2):
        with torch.autocast(DEVICE, torch.bfloat16):
            x = images(2)
            assert apart(compiled.explain(x, 1).relevance, plain.explain(x, 1).relevance) < 1e-2


def test_inputs_by_name():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, a: Tensor, b: Tensor, more: bool = False) -> Tensor:
            return self.a(a) + self.b(b) * (2 if more else 1)

    model = Sum().to(DEVICE).eval()
    compiled = hilrp.Explainer(model, compile=True, rules="hilrp")
    a, b = torch.randn(2, 3, 6, device=DEVICE).unbind(0)
    for x in ({"a": a, "b": b}, {"b": b, "a": a}, {"a": a, "b": b, "more": True}):
        for _ in range(3):
            found, expected = compiled.explain(x, 1), hilrp.explain(model, x, 1, rules="hilrp")
            assert list(found.relevance) == list(x)
            assert all(apart(found.relevance[name], expected.relevance[name]) < 1e-5 for name in ("a", "b"))
    assert len(recordings(compiled)) == 3


def test_a_model_that_asks_the_device_for_numbers():
    """It runs as without a recording, and says so."""
    model = Asking().to(DEVICE).eval()
    plain, compiled = hilrp.Explainer(model, rules="hilrp"), hilrp.Explainer(model, compile=True, rules="hilrp")
    for i in range(4):
        x = images()
        found = compiled.explain(x, 1)
        same(found, plain.explain(x, 1), 1e-5)
        assert any("without a CUDA graph" in note for note in found.notes) == (i > 0)
    assert compiled._runner.recorder is not None
    assert compiled._runner.recorder.failure
    # Nothing of the attempt is left behind.
    other = hilrp.Explainer(made("transformer"), compile=True, rules="hilrp")
    for _ in range(3):
        other.explain(x, 1)
    assert len(recordings(other)) == 1


def test_functions_of_the_output_run_as_they_are():
    model, calls = made("transformer"), []

    def target(out: Tensor) -> Tensor:
        calls.append(len(out))
        return out[:, 1] - float(out.detach().mean())

    plain, compiled = (
        hilrp.Explainer(model, audit="off", rules="hilrp"),
        hilrp.Explainer(model, audit="off", compile=True, rules="hilrp"),
    )
    compiled.explain(images(), 1)
    for _ in range(3):
        x = images()
        found, expected = compiled.explain(x, target), plain.explain(x, target)
        assert apart(found.relevance, expected.relevance) < 1e-5
    assert len(calls) == 6
    assert recordings(compiled) == []


@pytest.mark.parametrize("wrong", [7, -1, [0, 1], Contrast(0, 9)])
def test_classes_that_there_are_not(wrong):
    """They are found before they reach the device."""
    compiled = hilrp.Explainer(made("transformer"), compile=True, rules="hilrp")
    x = images()
    for _ in range(3):
        with pytest.raises(hilrp.TargetError):
            compiled.explain(x, wrong)
        compiled.explain(x, 6)
    assert len(recordings(compiled)) == 1


def test_recordings_that_are_garbage():
    """An earlier graph that is thrown away while another is recorded would spoil it."""

    class Cycle:
        def __init__(self) -> None:
            self.itself, self.graph = self, torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                torch.zeros(1, device=DEVICE)

    class Littering(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.cuda.is_current_stream_capturing():
                gc.set_threshold(1)  # as soon as can be
            return x

    compiled = hilrp.Explainer(nn.Sequential(made("transformer"), Littering()), compile=True, rules="hilrp")
    x = images()
    compiled.explain(x, 1)
    thresholds = gc.get_threshold()
    gc.disable()
    Cycle()
    gc.set_threshold(10**6)
    gc.enable()
    try:
        compiled.explain(x, 1)
    finally:
        gc.set_threshold(*thresholds)
    assert len(recordings(compiled)) == 1


def test_what_is_found_out_about_a_result_is_found_out_when_replayed():
    """Inputs that give no sound result are told of, too."""
    compiled = hilrp.Explainer(made("convolutions"), compile=True, rules="hilrp")
    x = images()
    for _ in range(2):
        compiled.explain(x, 1)
    assert len(recordings(compiled)) == 1
    with torch.no_grad():
        compiled.model.head.weight[1] = float("nan")
    with pytest.raises(hilrp.ModelError, match="finite"):
        compiled.explain(x, 1)


def test_in_batches():
    model, x = made("transformer"), images(7)
    plain, compiled = hilrp.explain(model, x, 3, rules="hilrp"), hilrp.Explainer(model, compile=True, rules="hilrp")
    for batch in (2, 2, 3, "auto"):
        assert apart(compiled.explain(x, 3, batch).relevance, plain.relevance) < 1e-5
    assert len(recordings(compiled)) >= 2


def test_a_batch_that_does_not_fit():
    """A shortage of the device's memory: parts are halved until they fit, and all are explained."""
    model, x = made("transformer"), images(4096)
    plain = hilrp.explain(model, x, 3, rules="hilrp")
    peak = measured_peak(lambda: hilrp.explain(model, x[:512], 3, rules="hilrp"))
    gc.collect()
    torch.cuda.empty_cache()
    limit = torch.cuda.memory_reserved() + 2 * peak
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            hilrp.explain(model, x, 3, rules="hilrp")
        found = hilrp.explain(model, x, 3, batch="auto", rules="hilrp")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert apart(found.relevance, plain.relevance) < 1e-5


def measured_peak(run: Callable[[], object]) -> int:
    """What a run takes of the device's memory beyond what is held."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    return torch.cuda.max_memory_allocated() - before


def test_explanations_on_other_streams():
    """Recordings share their memory; replays on streams of the caller's wait for each other."""
    model = made("transformer")
    compiled = hilrp.Explainer(model, compile=True, rules="hilrp")
    inputs = [images() for _ in range(6)]
    expected = [hilrp.explain(model, x, 2, rules="hilrp") for x in inputs]
    for x in inputs[:2]:
        compiled.explain(x, 2)
    found = []
    torch.cuda.synchronize()
    for x in inputs:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append(compiled.explain(x, 2))
    torch.cuda.synchronize()
    for one, other in zip(found, expected, strict=True):
        same(one, other, 1e-5)
