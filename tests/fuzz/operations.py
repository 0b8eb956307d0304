"""torch's own samples of every operation, as models.

In every form that the operation has, on operands in several layouts.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

from fuzz.checks import Case
from hilrp.method.table import TABLE
from hilrp.method.torch_calls import _SYNONYMS
from hilrp.util.nested import map_tensors, tensors

# That import forbids to set torch's flags, for the whole process: other tests do.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

#: Operations that are not explained, and why.
SKIPPED = {
    "jiterator": "compiled for CUDA alone",
    "torch._scaled_mm": "eight-bit types alone",
    "sparse.": "sparse operands: no dense input to explain",
    "to_sparse": "a sparse result",
    "as_strided": "places in memory, which belong to other samples in a batch",
    "empty": "memory that nobody wrote to",
    "new_empty": "memory that nobody wrote to",
    "resize_": "memory that nobody wrote to",
    "nn.functional.rrelu": "chance, unless in evaluation",
    "svd_lowrank": "chance",
    "pca_lowrank": "chance",
    "_segment_reduce": "an internal name",
    "_flash_attention": "CUDA alone",
    "_efficient_attention": "CUDA alone",
}
#: How many samples of an operation are looked at.
SAMPLES = 40
#: Forms of a call, layouts of its operands, and which of them are explained.
FORMS = ("function", "method", "in place", "in place through a view", "out=")
LAYOUTS = ("as it is", "transposed", "strided", "channels-last")
CARRIERS = ("first", "others", "all")
#: How samples come: one in a batch of one; two, one after the other; or along the first axis of the operand, where they
#: are apart.
BATCHES = ("one", "two", "along")

#: Operations of one operand whose epsilon relevance is gradient x input: linear maps, selections, and what is
#: homogeneous of degree one.
HOMOGENEOUS = frozenset(
    "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d sum mean nansum avg_pool1d "
    "avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d add sub rsub neg mul matmul "
    "mm bmm mv dot einsum relu leaky_relu prelu abs max_pool1d max_pool2d max_pool3d adaptive_max_pool1d "
    "adaptive_max_pool2d adaptive_max_pool3d amax amin median quantile kthvalue topk sort view reshape view_as "
    "reshape_as flatten unflatten ravel squeeze unsqueeze contiguous clone positive expand expand_as broadcast_to "
    "roll flip permute transpose t T mT movedim select unbind diagonal chunk split split_with_sizes tensor_split "
    "narrow pixel_shuffle pixel_unshuffle channel_shuffle gather index_select take_along_dim unfold repeat tile "
    "rot90 cat hstack vstack "
    "stack where masked_fill index_fill cumsum addmm baddbmm lerp".split()
)


@dataclass(frozen=True)
class Choice:
    """Which call of an operation.

    By number of the operation and its sample, form, layout, what is explained, and how samples come.
    """

    operation: str
    sample: int
    form: str = "function"
    layout: str = "as it is"
    carrier: str = "first"
    batch: str = "one"

    def __str__(self) -> str:
        return f"{self.operation}, sample {self.sample}: {self.form}, {self.layout}, {self.carrier}, {self.batch}"


@lru_cache
def operations() -> dict[str, Any]:
    """Every operation that has a derivative, by name."""
    kept = [op for op in op_db if op.supports_autograd and torch.float64 in op.dtypes]
    return {
        op.full_name: op
        for op in kept
        if not any(op.full_name.startswith(s) or f".{s}" in op.full_name for s in SKIPPED)
    }


def table_name(operation: str) -> str | None:
    """What the operation is called in the table, if it is in it."""
    name = operations()[operation].name.removeprefix("nn.functional.")
    name = name.strip("_") if name.startswith("__") else name.replace(".", "_")
    name = _SYNONYMS.get(name, name)
    return name if name in TABLE else None


@contextmanager
def _no_search_for_a_test() -> Iterator[None]:
    """Torch looks through the stack for the `unittest.TestCase` that asks for samples, which takes most of the time.

    Here there is none, which is what it would find.
    """
    with ExitStack() as patches:
        for module in (common_utils, core):
            patches.enter_context(patch.object(module, "extract_test_fn", lambda: None))
        yield


@lru_cache(maxsize=64)
def samples(operation: str) -> list[Any]:
    """The operation's samples in double precision."""
    torch.manual_seed(0)
    with warnings.catch_warnings(), _no_search_for_a_test():
        warnings.simplefilter("ignore")
        return list(itertools.islice(operations()[operation].sample_inputs("cpu", torch.float64), SAMPLES))


def _explained(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype == torch.float64 and t.layout == torch.strided and t.numel() > 0


class Called(nn.Module):
    """A sample of an operation as a model of the operands that are explained, which come with an axis for samples."""

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        op, sample = operations()[choice.operation], samples(choice.operation)[choice.sample]
        self.choice, self.name = choice, choice.operation
        self.call = _form(op, choice.form)
        self.out = choice.form == "out="
        self.kwargs = sample.kwargs
        self.arguments = (sample.input, *sample.args)
        operands = [t for t in tensors((self.arguments, self.kwargs)) if _explained(t)]
        if operands and operands[0] is not next(iter(tensors(sample.input)), None):
            operands = []
        chosen = {"first": operands[:1], "others": operands[1:], "all": operands}[choice.carrier]
        self.chosen = list({id(t): t.detach() for t in chosen}.items())

    def inputs(self, rng: torch.Generator) -> tuple[Tensor, ...]:
        """The sample's own values, once, twice (in another order of its elements), or as they are."""
        own = [t.clone() for _, t in self.chosen]
        if self.choice.batch == "along":
            return tuple(own)
        own = [t if t.ndim else t.reshape(1) for t in own]
        if self.choice.batch == "one":
            return tuple(t[None] for t in own)
        return tuple(
            torch.stack([t, t.flatten()[torch.randperm(t.numel(), generator=rng)].reshape(t.shape)]) for t in own
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """What the operation gives, as one row of numbers for each sample."""
        if self.choice.batch == "along":
            out = self._once(inputs)
            return torch.cat([t.reshape(inputs[0].shape[0], -1) for t in out], 1)
        rows = [torch.cat([t.reshape(-1) for t in self._once([x[i] for x in inputs])]) for i in range(len(inputs[0]))]
        return torch.stack(rows)

    def _once(self, inputs: Any) -> list[Tensor]:
        pairs = zip(self.chosen, inputs, strict=True)
        given = {key: self._laid_out(x if own.ndim else x.reshape(())) for (key, own), x in pairs}
        args, kwargs = map_tensors(
            lambda t: given[id(t)] if id(t) in given else t.detach(), (self.arguments, self.kwargs)
        )
        if self.choice.form.startswith("in place"):
            return _real(self._write(args, kwargs))
        if self.out:
            with torch.no_grad():
                shaped = self.call(*map_tensors(torch.clone, args), **kwargs)
            kwargs = kwargs | {"out": map_tensors(torch.empty_like, shaped)}
        return _real(self.call(*args, **kwargs))

    def _write(self, args: Any, kwargs: Any) -> Any:
        first = args[0].clone()
        if self.choice.form == "in place":
            return self.call(first, *args[1:], **kwargs)
        base = torch.stack([first, first * 0.5])
        view = base[0]
        self.call(view, *args[1:], **kwargs)
        return base, view

    def _laid_out(self, x: Tensor) -> Tensor:
        if self.choice.layout == "transposed" and x.ndim > 1:
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        if self.choice.layout == "strided" and x.ndim:
            return torch.stack([x, -x], -1)[..., 0]
        if self.choice.layout == "channels-last" and x.ndim == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x


def _real(out: Any) -> list[Tensor]:
    """The floating-point tensors of a result; complex ones by their parts."""
    found = [torch.stack([t.real, t.imag], -1) if t.is_complex() else t for t in tensors(out)]
    if any(t.is_floating_point() and t.dtype != torch.float64 for t in found):
        raise Unfit("not in double precision")
    kept = [t for t in found if t.is_floating_point()]
    if not kept or any(t.layout != torch.strided for t in kept):
        raise Unfit("no numbers")
    return kept


class Unfit(Exception):
    """The choice makes no model: the operation has no such form, or its result can't be explained."""


def _form(op: Any, form: str) -> Callable[..., Any]:
    in_place = form.startswith("in place")
    found = op.inplace_variant if in_place else op.method_variant if form == "method" else op.op
    if found is None or (form == "out=" and not op.supports_out):
        raise Unfit(f"no form {form}")
    return found


def _has(op: Any, form: str) -> bool:
    try:
        _form(op, form)
    except Unfit:
        return False
    return True


def model_of(choice: Choice) -> Case:
    """The choice as a question; `Unfit` if it makes none."""
    model = Called(choice).eval()
    generator = torch.Generator().manual_seed(choice.sample)
    if not model.chosen:
        raise Unfit("nothing to explain")
    x = model.inputs(generator)
    if choice.batch == "along" and (len(x) > 1 or not x[0].ndim or len(x[0]) < 2):
        raise Unfit("one sample alone")
    if not all(bool(t.isfinite().all()) for t in x):
        raise Unfit("not finite")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            output = model(*(t.clone() for t in x))
        except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            raise Unfit(f"torch refuses it: {type(error).__name__}") from error
    if not output.numel():
        raise Unfit("an empty result")
    if choice.batch == "along" and not _apart(model, x[0], output):
        raise Unfit("samples are not apart")
    weights = torch.randn(output.shape[1], dtype=torch.float64, generator=generator)
    listed = table_name(choice.operation) is not None
    # Where several values go to one place, which of them is there in the end is a choice.
    chooses = "max_unpool" in choice.operation
    return Case(model, x if len(x) > 1 else x[0], lambda out: (out * weights).sum(1), listed, chooses)


def _apart(model: nn.Module, x: Tensor, output: Tensor) -> bool:
    """Whether each sample of the output depends on its own of the input alone.

    In plain passes that change one sample each.
    """
    for i in range(len(x)):
        other = x.clone()
        other[i] = other[i].flip(0) * 0.9 + 0.1 if other[i].ndim else other[i] * 0.9
        try:
            with torch.no_grad():
                found = model(other)
        except RuntimeError:  # outside of the operation's domain
            return False
        if found.shape != output.shape:
            return False
        changed = (found != output).any(1)
        if not bool(changed[i]) or int(changed.sum()) != 1:
            return False
    return True


def random_choice(seed: int, operation: str | None = None) -> Choice:
    """A choice by chance, of any operation or of one."""
    rng = Random(seed)
    operation = operation or rng.choice(list(operations()))
    sample = rng.randrange(max(1, len(samples(operation))))
    forms = [form for form in FORMS if _has(operations()[operation], form)]
    several = sum(map(_explained, tensors(_arguments(operation, sample)))) > 1
    carrier = rng.choices(CARRIERS, [2, 1, 2])[0] if several else "first"
    batch = rng.choices(BATCHES, [2, 2, 1 if carrier == "first" else 0])[0]
    return Choice(operation, sample, rng.choice(forms), rng.choices(LAYOUTS, [3, 1, 1, 1])[0], carrier, batch)


def _arguments(operation: str, sample: int) -> tuple[Any, ...]:
    found = samples(operation)
    return (found[sample].input, found[sample].args, found[sample].kwargs) if found else ()
