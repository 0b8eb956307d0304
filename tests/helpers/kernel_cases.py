"""The kernels beside the plain functions, case by case.

Run with ``TRITON_INTERPRET=1``, which must be set before Triton is imported, it does so on a processor, and prints as
JSON how far each is off.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from hilrp.method.call import Call, Level
from hilrp.method.fast import kernels
from hilrp.method.fast import triton_kernels as fused
from hilrp.method.ledger import Books, Site
from hilrp.method.normalisation import Norm
from hilrp.method.rules import Rules
from hilrp.method.sample_axis import Layout
from hilrp.method.secant import functions
from hilrp.method.secant.elementwise import chord, slope_of
from hilrp.util.nested import tensors

Case = tuple[str, Callable[[], Any], bool]
#: Whether the plain functions are running, which kernels are compared with.
without_kernels = False
SHAPES = [(1,), (3, 5, 7), (2, 1025), (2, 6, 5, 3)]


def uniform(*shape: int) -> Tensor:
    """Numbers from 0 to 1, the same on every device."""
    return torch.rand(shape, device="cpu").to(torch.get_default_device())


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of both signs, and zeros."""
    t = torch.randn(shape, device="cpu").to(torch.get_default_device())
    return t.masked_fill(uniform(*shape) < 0.2, 0.0).to(dtype)


def single_values(dtype: torch.dtype) -> Iterator[Case]:
    for shape in SHAPES:
        y, x, g, noise = (values(*shape, dtype=dtype) for _ in range(4))
        forms = {"": lambda t: t.clone()}
        if len(shape) == 4:
            forms[" channels last"] = lambda t: t.clone(memory_format=torch.channels_last)
        for form, own in forms.items():
            name = f"{'x'.join(map(str, shape))}{form}"
            m = torch.where(noise == 0, y.abs(), y.abs() + noise.abs())
            for share in (0.11, 0.5):
                yield (
                    f"quotient {share} {name}",
                    lambda y=y, m=m, s=share, own=own: kernels.quotient(own(y), own(m), s),
                    True,
                )
                yield (
                    f"shares_of {share} {name}",
                    lambda y=y, g=g, s=share, own=own: kernels.shares_of(own(g), own(y), s),
                    True,
                )
            left = torch.where(m == 0, 0, y / m).to(dtype)
            for bound in (1.5, 4.0):
                yield (
                    f"bounded_shares {bound} {name}",
                    lambda g=g, left=left, b=bound, own=own: kernels.bounded_shares(own(g), own(left), b),
                    True,
                )
            yield f"slope {name}", lambda y=y, x=x, own=own: kernels.slope(own(y), own(x)), True
            yield f"size_and_sign {name}", lambda x=x, own=own: kernels.size_and_sign(own(x)), True
            yield (
                f"slope of a change {name}",
                lambda y=y, x=x, g=g, own=own: kernels.slope(own(y), own(x), own(g)),
                True,
            )
            yield (
                f"size_and_sign of a change {name}",
                lambda x=x, y=y, own=own: kernels.size_and_sign(own(x), own(y)),
                True,
            )
            for fine, domain in ((0.0, False), (1e-6, False), (1e-6, True)):
                # Values that agree, that agree but for rounding, and a limit that isn't finite.
                limit = torch.where(noise == 0, float("inf"), noise) if domain else noise
                before = torch.where(g == 0, x * (1 + 1e-7), torch.where(noise == 0, x, y))
                numbers = [t.float() for t in (y, g, x, before, limit)]
                yield (
                    f"chord {fine} {domain} {name}",
                    lambda ts=numbers, f=fine, d=domain, own=own: chord(*(own(t) for t in ts), f, d),
                    True,
                )
            yield (
                f"times_slope {name}",
                lambda y=y, x=x, g=g, own=own: kernels.times_slope(own(g), own(y), own(x)),
                True,
            )
            for kind, sign in (("values", x), ("bytes", x.sign().to(torch.int8))):
                for more in (None, y):
                    yield (
                        f"with_sign {kind} {'' if more is None else 'and more '}{name}",
                        lambda g=g, s=sign, more=more, own=own: kernels.with_sign(
                            own(g), own(s), None if more is None else own(more)
                        ),
                        True,
                    )
    g, x = values(6, 5, dtype=dtype), values(5, 6, dtype=dtype).T
    yield "with_sign other strides", lambda: kernels.with_sign(g.clone(), x), False


def activations(dtype: torch.dtype) -> Iterator[Case]:
    """Slopes of activations whose values are far apart, close, and the same; near zero and far from it."""
    now = torch.cat([values(3, 500), 30 * values(3, 500), torch.linspace(-8, 8, 1500).reshape(3, 500)], 1)
    before = torch.where(now.flip(1) == 0, now, torch.where(now.flip(0) < -0.5, now * (1 + 1e-7), now.roll(7, 1)))
    for name in kernels.ACTIVATIONS:
        kind, *approximate = name.split()
        options = {"approximate": approximate[0]} if approximate else {}
        function = getattr(torch.nn.functional, kind)
        own, own0 = now.to(dtype), before.to(dtype)
        y, y0 = function(own, **options), function(own0, **options)
        leaf = own.clone().requires_grad_()
        rest = Call(function, kind, (leaf,), options, Rules(), lambda _: Level.SIGNAL, lambda _: True, None)

        def run(call=rest, leaf=leaf, found=(own, own0, y, y0)) -> tuple[Tensor, Tensor]:
            """What is passed on, and where the two values are the same but for rounding the slope itself.

            The quotient of small differences is as exact as these are.
            """
            with torch.no_grad():
                slope = slope_of(call, leaf, found)
            change = found[0].float() - found[1].float()
            return slope * change, slope.masked_fill(change.abs() > 2e-6, 0.0)

        yield f"slope_of {name}", run, True


def through_softmax(g: Tensor, mean: Tensor) -> Tensor:
    """Without kernels in single precision: in half precision the sums of long rows are further off than they may be."""
    if without_kernels:
        return functions.through_softmax(g.float(), mean.float(), -1).to(g.dtype)
    return functions.through_softmax(g, mean, -1)


def scores(dtype: torch.dtype) -> Iterator[Case]:
    """Rows of scores, some with masks, one that may look nowhere, and scores that lie far from zero."""
    for shape in ((2, 3, 5, 49), (4, 1), (3, 197), (2, 2, 1025), (1, 5000)):
        g, s, change = values(*shape), 3 * values(*shape), values(*shape)
        s0 = torch.where(change > 1, s + 1e-6 * change, s + change)
        masked = uniform(*shape) < 0.3
        hidden = s.masked_fill(masked, float("-inf")), s0.masked_fill(masked, float("-inf"))
        hidden[0][..., :1, :] = hidden[1][..., :1, :] = float("-inf")
        for name, (one, other) in {"": (s, s0), "masked ": hidden, "far ": (s - 300, s0 - 250)}.items():
            own = [t.to(dtype) for t in (g, one, other)]
            # Scores are never in half precision.
            yield (
                f"through_weights {name}{shape}",
                lambda own=own: functions.through_weights(*(t.to(torch.float32, copy=True) for t in own)),
                True,
            )
            mean = torch.where(own[1].isinf(), 0, own[1].softmax(-1).nan_to_num(0.0))
            yield f"through_softmax {name}{shape}", lambda g=own[0], m=mean: through_softmax(g, m), True
            yield (
                f"mean_weights {name}{shape}",
                lambda s=own[1], s0=own[2]: functions.mean_weights(s, s0, s.softmax(-1), s0.softmax(-1), s.ndim - 1),
                True,
            )
    s = values(3, 4, 5, dtype=dtype)
    yield "through_softmax another axis", lambda: functions.through_softmax(s, s.softmax(1), 1), False
    yield (
        "mean_weights another axis",
        lambda: functions.mean_weights(s, 2 * s, s.softmax(1), (2 * s).softmax(1), 1),
        False,
    )


def norms(dtype: torch.dtype) -> Iterator[Case]:
    for shape in ((3, 5, 48), (7, 1), (2, 3, 1000), (1, 2049)):
        g, columns = values(*shape, dtype=dtype), shape[-1]
        inverse, scale = uniform(g.numel() // columns, 1), values(columns)
        for own in (scale, None):
            # Of one column, less its mean, nothing is left but what a fused multiplication rounds otherwise.
            for centre in (True, False) if columns > 1 else (False,):
                yield (
                    f"normalised_back {shape} {own is not None} {centre}",
                    lambda g=g, i=inverse, s=own, n=columns, c=centre: kernels.normalised_back(g, i, s, (-1, n), c).to(
                        g.dtype
                    ),
                    True,
                )
    for shape in ((15, 48), (3, 1000), (1, 2049)):
        x, x0, g, scale = (values(*shape, dtype=dtype) for _ in range(4))
        for centre in (True, False):
            for own in (scale[0].clone(), None):
                norm = Norm(x, (-1, shape[-1]), own, None, centre, 1e-5)
                name = f"{shape} {own is not None} {centre}"
                yield (
                    f"through_norm {name}",
                    lambda g=g, x=x, x0=x0, norm=norm: functions.through_norm(g, x, x0, norm).to(g.dtype),
                    True,
                )
                yield f"change_of_norm {name}", lambda x=x, x0=x0, norm=norm: kernels.change_of_norm(x, x0, norm), True
    g = values(2, 4, 3, dtype=dtype)
    yield (
        "normalised_back two axes",
        lambda: kernels.normalised_back(g, torch.ones(2, 1), torch.ones(4, 3), (-1, 12), True).to(dtype),
        False,
    )


def shared(dtype: torch.dtype) -> Iterator[Case]:
    """Parts of longer rows, with what a bias keeps of the relevance of each sample."""
    whole, held = values(4, 5, 96, dtype=dtype).abs(), values(4, 5, 300, dtype=dtype)
    for first, last in ((32, 64), (0, 96), (95, 96), (3, 50)):
        g, y = whole[..., first:last], held[..., first + 7 : last + 7]
        m = y.abs() + uniform(*y.shape).to(dtype)
        m[(y == 0) & (uniform(*y.shape) < 0.5)] = 0
        bias = values(last - first, dtype=dtype) + 1
        for samples in (1, 2, 4):
            for constant in (bias, None):

                def run(g=g, y=y, m=m, constant=constant, samples=samples) -> Any:
                    books = Books(samples, seed=2.0)
                    layout = Layout(0, 4 // samples) if samples > 1 else None
                    account = books.account("bias", Site("", "linear"), layout)
                    found = kernels.shared_out(g, y, m.clone(), 0.11, constant, account)
                    return found, [share.float() for share in books.shares.values()]

                yield f"shared_out {first}:{last} {samples} {constant is not None}", run, True

    def apart() -> Any:
        """Samples that are not one after the other: the books are kept without the kernel."""
        books = Books(5)
        account = books.account("bias", Site("", "linear"), Layout(1, 1))
        found = kernels.shared_out(whole, held[..., :96], whole.abs() + 1, 0.11, whole[0, 0].abs(), account)
        return found, [share.float() for share in books.shares.values()]

    yield "shared_out another axis", apart, True


def shares(dtype: torch.dtype) -> Iterator[tuple[str, Tensor, Tensor, int, bool]]:
    """Name, gradient, constant, number of samples, and whether it can be added in one go."""
    tokens, picture = values(6, 50, 33, dtype=dtype), values(4, 7, 5, 3, dtype=dtype)
    other = picture.clone(memory_format=torch.channels_last)
    for samples in (1, 2, 6):
        yield f"last axis {samples}", tokens, values(33, dtype=dtype), samples, True
        yield f"second axis {samples}", tokens, values(50, 1, dtype=dtype), samples, True
        yield f"scalar {samples}", tokens, values(1, dtype=dtype)[0] + 1, samples, True
    for name, g in (("channels first", picture), ("channels last", other)):
        for samples in (1, 2, 4):
            yield f"{name} {samples}", g, values(7, 1, 1, dtype=dtype), samples, True
            yield f"{name}, scalar {samples}", g, torch.ones(1, 1, 1, 1, dtype=dtype) / 2, samples, True
    yield "channels first, last axis", picture, values(3, dtype=dtype), 4, True
    yield "channels last, last axis", other, values(3, dtype=dtype), 4, False
    yield "matrix", values(6, 300, dtype=dtype), values(300, dtype=dtype), 6, True
    yield "matrix, scalar", values(6, 300, dtype=dtype), values(1, 1, dtype=dtype) + 1, 3, True
    yield "wide type of the constant", tokens, values(33, dtype=torch.float64), 2, True
    yield "many rows", values(2, 3000, 3, dtype=dtype), values(3, dtype=dtype), 2, True
    yield "two axes", tokens, values(50, 33, dtype=dtype), 2, False
    yield "axis of the samples", tokens, values(6, 1, 1, dtype=dtype), 2, False
    yield "transposed", values(6, 33, 50, dtype=dtype).transpose(1, 2), values(33, dtype=dtype), 2, False
    yield "samples that don't divide", tokens, values(33, dtype=dtype), 4, False
    yield "vector", values(40, dtype=dtype), values(40, dtype=dtype), 1, False
    yield "double", tokens.double(), values(33), 2, False


def error(found: Any, expected: Any) -> float:
    """How far values are off, relative to the largest of each tensor; infinite where types or shapes are others."""
    worst = 0.0
    for a, b in zip(tensors(found), tensors(expected), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype) or not bool(a.isfinite().all()):
            return float("inf")
        a, b = a.double(), b.double()
        worst = max(worst, float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)))
    return worst


def compared(dtype: torch.dtype, choose: Callable[..., Any]) -> dict[str, tuple[float, int, bool]]:
    """By case.

    How far the kernels that ``choose`` gives for operands are off, how often one ran, and whether one was to run.
    """
    global without_kernels
    found: dict[str, tuple[float, int, bool]] = {}
    kind, chosen_by, ran = str(dtype).removeprefix("torch."), kernels._fused, 0

    def counted(*operands: Tensor, before: tuple[Tensor, ...] = ()) -> Any:
        nonlocal ran
        chosen = choose(*operands, before=before)
        ran += chosen is not None
        return chosen

    try:
        for name, run, expected in (
            *single_values(dtype),
            *activations(dtype),
            *scores(dtype),
            *norms(dtype),
            *shared(dtype),
        ):
            kernels._fused, without_kernels = (lambda *_, **__: None), True
            exact, ran = run(), 0
            kernels._fused, without_kernels = counted, False
            found[f"{kind} {name}"] = error(run(), exact), ran, expected
        for name, g, c, samples, expected in shares(dtype):
            total = torch.arange(float(samples), dtype=torch.float64)
            exact = total.clone()
            if expected:
                exact += 0.5 * (c.double() * g.double()).reshape(samples, -1).sum(1)
            done = kernels.add_shares(total, c, g, 0.5)
            found[f"{kind} add_shares {name}"] = error(total, exact), int(done), expected
    finally:
        kernels._fused = chosen_by
    return found


def main() -> None:
    torch.manual_seed(0)
    warnings.simplefilter("ignore", RuntimeWarning)
    # The interpreter takes the bits of bfloat16 for whole numbers where a kernel compares them.
    types = torch.float32, torch.float16
    found = [
        compared(dtype, lambda *operands, **given: fused if fused.takes(*operands, **given) else None)
        for dtype in types
    ]
    print(json.dumps(found[0] | found[1]))


if __name__ == "__main__":
    main()
