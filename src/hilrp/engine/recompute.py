"""Modules that run again in the backward pass, instead of keeping what their rules need.

Gradient checkpointing, for relevance.

Of such a module only the inputs are kept. Its first run computes values; in the backward pass it runs again under an
engine of its own, whose rules and books are those of the first. Memory then holds one module's insides at a time, for
the price of one more forward pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from hilrp.engine import choices, relative
from hilrp.engine.tensor_info import Info, Tally
from hilrp.method.call import Level
from hilrp.method.linear import live_layers, note_layers, note_use
from hilrp.method.registered_functions import FUNCTIONS
from hilrp.method.registry import MODULES, OPERATIONS
from hilrp.method.sample_axis import kept
from hilrp.util.errors import HilrpError, InputError, ModelError
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine


def find_recomputed(model: nn.Module, recompute: str | Sequence[str] | None) -> frozenset[int]:
    """The modules that are to run again, by identity: a model's repeated blocks, those named by the user, or none."""
    if recompute is None:
        return frozenset()
    modules = dict(model.named_modules())
    if isinstance(recompute, str) and recompute == "auto":
        found = _blocks(model)
        if not found:
            raise InputError(
                'recompute="auto": the model has no blocks of one class in a row, in a Sequential or a ModuleList. '
                'Name the modules that are to run again: recompute=["encoder.a", ...].'
            )
        return frozenset(map(id, found))
    if isinstance(recompute, str) or not isinstance(recompute, Sequence):
        raise InputError(f'recompute={recompute!r}: use "auto", a list of module paths, or None.')
    unknown = [name for name in recompute if name not in modules]
    if unknown:
        names = [name for name, module in modules.items() if any(module is block for block in _blocks(model))]
        raise InputError(
            f"recompute: the model has no module named {', '.join(map(repr, unknown))}. model.named_modules() lists "
            f"the names; hilrp would choose {names}."
        )
    return frozenset(id(modules[name]) for name in recompute)


def _blocks(module: nn.Module) -> list[nn.Module]:
    """The innermost modules that stand in a row with others of their class, and have parts of their own."""
    inner = [block for child in module.children() for block in _blocks(child)]
    if inner or not isinstance(module, (nn.Sequential, nn.ModuleList)):
        return inner
    made_of_parts = [child for child in module if len(list(child.children())) > 1]
    kinds = [type(child) for child in made_of_parts]
    return [child for child in made_of_parts if kinds.count(type(child)) > 1]


@contextmanager
def _second_run(engine: Engine, module: nn.Module) -> Iterator[None]:
    """Within, a module that ran before runs again, in the backward pass or on the reference."""
    try:
        yield
    except (HilrpError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise ModelError(
            f"`{engine.path or type(module).__name__}` could not run a second time: {type(error).__name__}: {error}. "
            "Leave it out of recompute=."
        ) from error


@dataclass(frozen=True)
class _Rerun:
    """A module's call, to be run again; its tensors are without a graph.

    Attributes:
        engine: Makes an engine like the one that the module ran under.
        known: What was known of the tensors that depend on the input, by identity.
        references: What they are on the reference, by identity, where there is one.
        choices: Which are masks, indices or other whole numbers that depend on the input, by identity.
        autocast: What the module computed in, where not in the types of its tensors.
        first: The number of its first layer.
    """

    engine: Callable[[Tally | None, int], Engine]
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    known: dict[int, Info]
    references: dict[int, Tensor]
    choices: set[int]
    autocast: torch.dtype | None
    first: int

    def __call__(self, tally: Tally | None = None) -> tuple[list[Tensor], list[Tensor], _Known]:
        """Leaves that stand for what carries relevance, the module's outputs, and what is known of these.

        What is met on the way is counted in the pass's tally, unless another is given.
        """
        engine = self.engine(tally, self.first)
        leaves: list[Tensor] = []
        stands: dict[int, Tensor] = {}

        def own(t: Tensor) -> Tensor:
            info, reference = self.known.get(id(t)), self.references.get(id(t))
            if reference is not None and (info is None or not info.carries):
                engine.tracker.refer(t, reference)
            if id(t) in self.choices:
                engine.tracker.choose(t)
            elif info is None:
                engine.tracker.make(t)  # whoever gave it has looked at it
            if info is None or id(t) in stands:
                return stands.get(id(t), t)
            if info.carries:
                leaves.append(t.detach().requires_grad_())
                stands[id(t)] = found = engine.tracker.watch(leaves[-1], info.layout, reference)
            else:
                stands[id(t)] = found = t.clone()
                if reference is not None:
                    engine.tracker.refer(found, reference)
            engine.tracker.track(found, info.level, info.layout)
            return found

        device, enabled = tensors((self.args, self.kwargs))[0].device.type, self.autocast is not None
        with torch.enable_grad(), torch.autocast(device, self.autocast, enabled, cache_enabled=False):
            args, kwargs = map_tensors(own, (self.args, self.kwargs))
            with _second_run(engine, self.module), engine:
                output = self.module(*args, **kwargs)
        found = [engine.current(t) for t in _numbers(output)]
        note_use(found)
        kinds = [(engine.tracker.level(t), t.requires_grad) for t in found]
        live = {number - self.first for t in found if t.requires_grad for number in live_layers(t)}
        known = _Known(kinds, engine.layers.count - self.first, tuple(sorted(live)))
        engine.release()
        return leaves, found, known


class _Again(Function):
    @staticmethod
    def forward(
        ctx: Any, rerun: _Rerun, values: list[Tensor], kinds: list[_Kind], *carriers: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.rerun, ctx.kinds = rerun, kinds
        outputs = tuple(value.detach() for value in values)
        ctx.save_for_backward(*outputs)
        ctx.mark_non_differentiable(*(t for t, (_, carries) in zip(outputs, kinds, strict=True) if not carries))
        return outputs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        leaves, outputs, known = ctx.rerun()
        if not _same(outputs, ctx.saved_tensors):
            raise ModelError(
                f"{type(ctx.rerun.module).__name__} gave something else when it ran a second time (it keeps a state, "
                "or a hook of its own changes its output). Leave it out of recompute=."
            )
        if known.kinds != ctx.kinds:
            _kinds.pop(ctx.rerun.module, None)
            raise Outdated(f"What is known of {type(ctx.rerun.module).__name__} no longer holds. Explain once more.")
        pairs = [(t, g) for t, g in zip(outputs, gradients, strict=True) if t.requires_grad and g is not None]
        if not pairs:
            return None, None, None, *(None for _ in leaves)
        found = torch.autograd.grad([t for t, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True)
        return None, None, None, *found


class Outdated(ModelError):
    """A module's output is another kind of tensor than it was when it ran before: the pass has to run once more."""


def _described(engine: Engine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
    """What a module was called with, and by which rules of the user's: what its output is may depend on it."""

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            return engine.tracker.level(value), value.requires_grad, value.dtype, value.shape
        if isinstance(value, (list, tuple)):
            return tuple(map(plain, value))
        if isinstance(value, dict):
            return tuple((key, plain(each)) for key, each in value.items())
        return value if isinstance(value, (bool, int, float, str, type(None))) else type(value)

    rows = [id(row) for table in (OPERATIONS, MODULES, FUNCTIONS) for own in table.values() for row in own]
    return plain(args), plain(kwargs), tuple(rows)


def _same(outputs: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Whether two runs gave the same but for rounding."""
    if any(t.is_cuda for t in outputs) and torch.cuda.is_current_stream_capturing():
        return True  # it ran before the recording, and was looked at
    pairs = zip(outputs, before, strict=True)
    return all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=_rounding(b) * float(b.abs().amax()), equal_nan=True)
        for a, b in pairs
        if b.numel()
    )


def _rounding(t: Tensor) -> float:
    return max(1e-3, 8 * torch.finfo(t.dtype).eps)


#: What is known of an output of a module before it runs again: its gate level, and whether it carries relevance.
_Kind = tuple[Level, bool]


class _Known(NamedTuple):
    """What is known of a module before it runs again.

    Of each output its kind; how many layers it has, and which of them its outputs depend on, counted from its first.
    """

    kinds: list[_Kind]
    layers: int = 0
    live: tuple[int, ...] = ()


#: The same of modules that have run, by what was known of their inputs.
_kinds: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, _Known]] = weakref.WeakKeyDictionary()


def again(engine: Engine) -> Callable[[Tally | None, int], Engine]:
    """Makes engines for parts of the same pass that run again: with its rules and books, and none of its tensors."""
    kind, model, rules, books = type(engine), engine.model, engine.rules, engine.books
    on_problem, on_module, own = engine.on_problem, engine.on_module, engine.tally
    is_relative, layers = engine.relative, engine.layers

    def make(tally: Tally | None = None, first: int = 0) -> Engine:
        told = on_module if tally is None else None
        made = kind(model, rules, books, on_problem, told, is_relative, tally=tally or own)
        # How deep its layers are is known when the whole model has run.
        made.layers = replace(layers, count=first)
        return made

    return make


def check_unwritten(module: nn.Module, path: str, given: Iterable[Tensor]) -> None:
    """Raises if a module wrote to copies of its inputs: whoever gave it the inputs would read what it wrote."""
    if any(t._version for t in given):
        raise ModelError(
            f"`{path or type(module).__name__}` writes to its input, and can't be run again. Leave it out of "
            "recompute=, or take a copy of the input in it (x = x.clone())."
        )


def shares_memory(output: Any, given: Iterable[Tensor]) -> bool:
    """Whether a module returned one of its inputs, or a view of it: what is written to one is then in the other."""
    memory = {t.untyped_storage().data_ptr() for t in given if t.numel()}
    return any(t.untyped_storage().data_ptr() in memory for t in tensors(output) if t.numel())


def run_at_once(engine: Engine, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Runs a module under the engine after all, as one that does not run again."""
    with engine:
        return module.forward(*args, **kwargs)


def run(engine: Engine, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Puts a graph on what the module has just returned, which runs it again."""
    given = tensors((args, kwargs))
    varying = [t for t in given if engine.is_varying(t, type(module).__name__)]
    carriers = list({id(t): t for t in varying if t.requires_grad}.values())
    values = _numbers(output)
    if engine.relative and (not values or not varying) and any(choices.depends(engine, t) for t in given):
        return run_at_once(engine, module, args, kwargs, output)  # masks and indices alone
    if not varying or not values:
        return output
    placed = [(t, engine.tracker.layout(t)) for t in sorted(varying, key=lambda t: not t.requires_grad)]
    made = [value.detach() for value in values]
    found = _Known([(Level.GATE, False)] * len(made))
    name, reference = type(module).__name__, None
    if engine.relative:
        with _second_run(engine, module), engine.without_modules():
            reference = relative.on_reference(engine, module, name, args, kwargs).output
    if carriers and torch.is_grad_enabled():
        note_use(carriers)
        known: dict[int, Info] = {}
        references: dict[int, Tensor] = {}
        chosen: set[int] = set()
        bared: dict[int, Tensor] = {}

        def bare(t: Tensor) -> Tensor:
            if id(t) not in bared:
                info, bared[id(t)] = engine.tracker.info(t), t.detach()
                if info is not None:
                    known[id(bared[id(t)])] = info
                if (there := engine.tracker.reference(t)) is not None:
                    references[id(bared[id(t)])] = there
                if engine.tracker.is_choice(t):
                    chosen.add(id(bared[id(t)]))
            return bared[id(t)]

        bare_args, bare_kwargs = map_tensors(bare, (args, kwargs))
        device = carriers[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        first = engine.layers.count
        rerun = _Rerun(again(engine), module, bare_args, bare_kwargs, known, references, chosen, autocast, first)
        # What its output is, only a run under the engine can say: the first time there is one more.
        shapes = tuple(value.shape for value in values)
        form = engine.rules, engine.relative, _described(engine, args, kwargs), shapes, autocast
        of_module = _kinds.setdefault(module, {})
        # One that carries nothing leaves no trace by which it would be noticed that this has changed.
        if not all(carries for _, carries in of_module.get(form, found).kinds):
            with engine.without_modules():
                of_module[form] = rerun(Tally())[2]
        found = of_module[form]
        engine.layers.count += found.layers
        if any(carries for _, carries in found.kinds):
            made = list(_Again.apply(rerun, values, found.kinds, *carriers))
            note_layers(made, [first + number for number in found.live])
    if reference is not None:
        relative.refer(engine, made, _numbers(reference))
        for t, t0 in zip(tensors(output), tensors(reference), strict=True):
            if not (t.is_floating_point() or t.is_complex()):
                engine.tracker.choose(t)
                engine.tracker.refer(t, t0)
        relative.keep(engine, name, args, kwargs, output)
    stands = dict(zip(map(id, values), made, strict=True))
    for t, (level, _) in zip(made, found.kinds, strict=True):
        engine.tracker.track(t, level, kept(placed, t, engine.books.batch, None, None))
        engine.dtypes.add(t.dtype)
    return map_tensors(lambda t: stands.get(id(t), t), output)


def _numbers(output: Any) -> list[Tensor]:
    return [t for t in tensors(output) if t.is_floating_point() or t.is_complex()]
