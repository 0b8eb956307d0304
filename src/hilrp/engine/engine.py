"""The engine: watches a model run, and gives each torch operation the rule of its primitive.

A `torch.overrides.TorchFunctionMode` sees every torch call. The value is always the original function's, bit for bit;
only the backward pass is the rule's. Nothing on the model is changed: what the engine knows about a tensor it keeps in
a side table of its own, and constants are detached as they enter an operation, so that not even ``requires_grad`` flags
are touched. Only a custom autograd.Function that the user registers is wrapped, as long as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from hilrp.engine import in_place, messages, recompute, registered_modules
from hilrp.engine.gates import folds, note_product, output_level
from hilrp.engine.module_stack import ModuleWatch
from hilrp.engine.python_functions import opened
from hilrp.engine.tensor_info import Tally, Tracker, writes_to
from hilrp.engine.unseen_tensors import Strangers
from hilrp.method.autograd import linearised
from hilrp.method.call import Account, Call, KnownLayers, Layers, Level, Reference
from hilrp.method.composite import Surrogate
from hilrp.method.fast import linear_layers
from hilrp.method.ledger import Books, Site
from hilrp.method.registered_functions import FunctionCall, Waiting, is_users, listening
from hilrp.method.registry import MODULES, is_registered, row_of
from hilrp.method.rules import Rules
from hilrp.method.sample_axis import Layout
from hilrp.method.secant.table import rule_for
from hilrp.method.table import (
    BY_PARTS,
    CREATION,
    FILLS,
    QUERIES,
    READ_OUTS,
    SHAPED_BY_SECOND,
    SHAPED_BY_VALUES,
    TAKES_WHOLE_NUMBERS,
    Primitive,
    Row,
    is_python_source,
    operation_name,
    shaping,
)
from hilrp.util.errors import AuditError, ModelError
from hilrp.util.nested import map_tensors, tensors


class Engine(TorchFunctionMode):
    """One explained forward pass.

    Args:
        model: The model, for the paths of its modules.
        rules: The rule set.
        books: Where constants' shares are entered.
        on_problem: Called with an `AuditError` for an operation without a rule; it raises, warns or ignores.
        on_module: Called with (path, module, output) after each module.
        relative: Whether relevance is relative to a reference input. Every operation then runs on both, and has its
            secant form.
        inspect: Called with each operation's output.
        layers: What was found of the model's layers when it ran before.
        recomputed: Modules that run again in the backward pass, by identity.
        tally: Where to count, if not anew.
    """

    def __init__(
        self,
        model: nn.Module,
        rules: Rules,
        books: Books,
        on_problem: Callable[[AuditError], None],
        on_module: Callable[[str, nn.Module, Any], None] | None = None,
        relative: bool = False,
        inspect: Callable[[Site, Tensor], None] | None = None,
        layers: KnownLayers | None = None,
        recomputed: frozenset[int] = frozenset(),
        tally: Tally | None = None,
    ) -> None:
        super().__init__()
        self._recomputed = recomputed
        self._inspect = inspect
        self.model, self.rules, self.books = model, rules, books
        again = tally is not None
        self.tally = tally = tally or Tally()
        self.counts, self.notes, self.gates, self.dtypes = tally.counts, tally.notes, tally.gates, tally.dtypes
        self.relative = relative
        self.on_problem, self.on_module = on_problem, on_module
        self.tracker = Tracker()
        self._modules = ModuleWatch(model, self._enter_module, self._leave_module)
        self._opaque: tuple[nn.Module, tuple[Any, ...], dict[int, Tensor]] | None = None
        self._sites = tally.sites
        self._strangers: Strangers | None = Strangers(model, tally, self.tracker)
        self._again = again
        self._functions = Waiting()
        self._depth = 0
        self.layers = Layers(layers)

    # Entering and leaving -------------------------------------------------------------------------------------

    def __enter__(self) -> Engine:
        if self._depth == 0:
            self._modules.open()
            self._listening = listening(self._run_function)
            self._listening.__enter__()
        self._depth += 1
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._depth -= 1
        if self._depth == 0:
            self._listening.__exit__(*exception)
            self._modules.close()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Within, the engine doesn't look, nor does any other mode that the model runs under."""
        others = []
        while any(mode is self for mode in _get_current_function_mode_stack()):
            others.append(_pop_mode())
        try:
            yield
        finally:
            for mode in reversed(others):
                _push_mode(mode)

    def release(self) -> None:
        """Lets go of the pass's tensors and of whoever asked for them."""
        self.tracker.release()
        self._functions.clear()
        self.on_module = self._inspect = None

    @contextmanager
    def unwatched(self) -> Iterator[None]:
        """Within, numbers that are read out and tensors from elsewhere aren't told of.

        They are part of the question.
        """
        strangers, reads = self._strangers, self.tally.read_outs.copy()
        self._strangers = None
        try:
            yield
        finally:
            self._strangers = strangers
            self.tally.read_outs.clear()
            self.tally.read_outs.update(reads)

    @property
    def path(self) -> str:
        """Path of the running module."""
        return self._modules.path

    @property
    def module(self) -> nn.Module | None:
        """The running module."""
        return self._modules.innermost

    def _enter_module(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._opaque is not None and not self._modules.is_running(self._opaque[0]):
            self._opaque = None  # it raised, and the model went on
        if self._opaque is not None or (type(module) not in MODULES and id(module) not in self._recomputed):
            return None
        with self._aside():
            args, copies = map_tensors(self.current, args), {}
            for t in tensors(args):
                if self.tracker.varies(t):
                    # What runs inside is the module's own affair: it may write to its copy.
                    copies[id(t)] = t.detach().clone()
            self._opaque = (module, args, copies)
            return tuple(map_tensors(lambda t: copies.get(id(t), t), args))

    def _leave_module(self, module: nn.Module, kwargs: dict[str, Any], output: Any) -> Any:
        with self._aside():
            replaced = None
            if self._opaque is not None and self._opaque[0] is module:
                (_, args, copies), self._opaque = self._opaque, None
                run = registered_modules.run if type(module) in MODULES else recompute.run
                if run is recompute.run:
                    recompute.check_unwritten(module, self.path, copies.values())
                output = replaced = run(self, module, args, map_tensors(self.current, kwargs), output)
            if self.on_module is not None and self._opaque is None:
                shown = map_tensors(self.current, output) if self.tracker.has_aliases else output
                self.on_module(self.path, module, shown)
            return replaced

    # Calls ----------------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch._C._are_functorch_transforms_active():
            # Inside torch.vmap and its like tensors are wrapped, and can't be told apart: what comes out of it is
            # looked at.
            return func(*args, **kwargs)
        operands = tensors((args, kwargs))
        if not operands:
            return self._made(func(*args, **kwargs))
        if self._opaque is not None:
            if self._stands_in:
                args, kwargs = map_tensors(self.current, (args, kwargs))
            with torch.no_grad():
                return func(*args, **kwargs)
        return self.apply(func, args, kwargs, operands)

    def apply(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor] | None = None
    ) -> Any:
        """Runs one call under its rule, on the tensors that stand for its arguments."""
        if self._stands_in:
            args, kwargs = map_tensors(self.current, (args, kwargs))
            operands = None
        return self.apply_to(func, args, kwargs, operands)

    def apply_to(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor] | None = None
    ) -> Any:
        """Runs one call under its rule, on its arguments as they are."""
        operands = tensors((args, kwargs)) if operands is None else operands
        name, works_in_place = operation_name(func)
        if works_in_place and not args:
            args, kwargs = in_place.with_target_first(args, kwargs)
        if name == "new_tensor" and isinstance(data := kwargs.get("data", args[-1]), Tensor):
            copied = self.apply(Tensor.clone, (self.apply(Tensor.detach, (data,), {}),), {})  # it copies values
            rest = {key: value for key, value in kwargs.items() if key != "data"}
            return self.apply(Tensor.to, (copied,), rest) if rest.get("dtype") else copied
        if name == "as_strided" and not works_in_place:
            args, kwargs = in_place.from_memory(self, *args, **kwargs)
        if name == "register_hook" and self.tracker.varies(args[0]):
            return func(args[0], self._watched_hook(*args[1:], **kwargs))
        if name in QUERIES:
            return func(*args, **kwargs)
        if works_in_place and name in FILLS and not self.tracker.varies(args[0]):
            self.tracker.vouch(args[0])  # nothing of it will be left
        varying = [t for t in operands if self.is_varying(t, name)]
        if name in CREATION or name in SHAPED_BY_SECOND:
            # Of the others they take shape and type alone.
            first, *others = operands
            operands = [first] if name in SHAPED_BY_SECOND else others
            if name in CREATION and others:
                args, kwargs = map_tensors(lambda t: t.detach() if t is first else t, (args, kwargs))
            varying = [t for t in varying if any(t is each for each in operands)]
        chooses = not varying and self._depends_on_choices(operands)
        if name in READ_OUTS and (varying or chooses):
            return self._read_out(func, name, args, kwargs)
        if name in SHAPED_BY_VALUES and any(map(self._depends, shaping(name, args, kwargs))):
            self._tell_read_out(name, " (as the shape of its result)")
        written = in_place.written(name, works_in_place, args, kwargs)
        if not varying and any(self.tracker.is_made(t) and self.tracker.is_used(t) for t in written):
            out = in_place.run_on_copies(self, func, args, kwargs, written)
            if chooses:
                self._choose([*tensors(out), *map(self.tracker.current, written)], name)
            return out
        if not varying and not chooses:
            return self._run_on_constants(func, name, args, kwargs, operands, written)
        if not varying and not (self.relative and written):
            return self._run_on_choices(func, name, args, kwargs, written)
        if written:
            return in_place.run(self, func, name, args, kwargs)
        row = row_of(name)
        if (
            is_python_source(func)
            and (row is None or func.__module__ == "torch.nn.functional")
            and not is_registered(name)
        ):
            with self:
                return opened(func)(*args, **kwargs)
        return self.run(func, name, args, kwargs, row, varying)

    @property
    def _stands_in(self) -> bool:
        """Whether any tensor stands for another."""
        return self.tracker.has_aliases or self._functions.waiting

    def _depends_on_choices(self, operands: list[Tensor]) -> bool:
        """Whether an operand depends on the input without carrying anything.

        A mask, an index, a table looked up by one.
        """
        if self.relative:
            return any(self.tracker.reference(t) is not None for t in operands)
        return self.tracker.has_masks and any(map(self.tracker.is_choice, operands))

    def _run_on_constants(
        self, func: Any, name: str, args: Any, kwargs: Any, operands: list[Tensor], written: list[Tensor]
    ) -> Any:
        before = [writes_to(t) for t in written]
        with torch.no_grad():
            out = func(*args, **kwargs)
        for t, count in zip(written, before, strict=True):
            self.tracker.wrote(t, count)
        if not written:
            self._made(out)
        if name in ("detach", "data") and isinstance(out, Tensor):
            self.tracker.detached(out, operands[0])  # what is written to one of them later is in the other
        return out

    def _made(self, out: Any) -> Any:
        """Enters constants that the model made while the engine looked on."""
        for t in tensors(out):
            self.tracker.make(t)
        return out

    def _read_out(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """A call that takes values out of torch. What the model makes of them, the engine can't follow.

        That is told.
        """
        self._tell_read_out(name)
        self.tally.values_read[name] += any(t.is_floating_point() or t.is_complex() for t in tensors((args, kwargs)))
        with torch.no_grad():
            return func(*map_tensors(Tensor.detach, args), **map_tensors(Tensor.detach, kwargs))

    def _tell_read_out(self, name: str, how: str = "") -> None:
        self.tally.read_outs[f"`{name}` in {messages.place(self.path)}{how}"] += 1

    def _depends(self, t: Tensor) -> bool:
        return self.tracker.varies(t) or self.tracker.is_choice(t) or self.tracker.reference(t) is not None

    def _is_whole_number(self, t: Tensor) -> bool:
        """Whether a tensor depends on the input and holds numbers, but whole ones."""
        return t.dtype != torch.bool and self.tracker.is_choice(t)

    def _watched_hook(self, hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        """A hook of the model's on a tensor: where it changes gradients, the map is no longer the rules' own."""
        path = self.path

        @wraps(hook)
        def watched(gradient: Tensor) -> Any:
            count = writes_to(gradient)
            found = hook(gradient)
            changed = writes_to(gradient) != count
            recorded = gradient.is_cuda and torch.cuda.is_current_stream_capturing()  # it ran before, and was looked at
            if found is not None and found is not gradient and not recorded:
                changed = changed or not torch.equal(found.nan_to_num(), gradient.nan_to_num())
            if changed:
                self.problem(messages.changed_gradient(path))
            return found

        return watched

    def _run_unknown(
        self, run: Callable[[], Any], func: Any, name: str, operands: list[Tensor], *, carries: bool
    ) -> Any:
        """Runs an operation that isn't in the table.

        It has no rule, unless it makes masks, indices or numbers of its operands.
        """
        before = [writes_to(t) for t in operands]
        out = run()
        found = tensors(out)
        if not found:
            self._tell_read_out(name)
        numbers = [t for t in found if t.is_floating_point() or t.is_complex()]
        writes = any(writes_to(t) != count for t, count in zip(operands, before, strict=True))
        if any(t.requires_grad for t in found) or (numbers and carries) or writes:
            self.problem(messages.unknown_operation(func, name, self.path, self.module))
        return out

    # Custom functions ---------------------------------------------------------------------------------------------

    def _run_function(self, call: FunctionCall) -> Any:
        """Runs the forward of a registered autograd.Function, and remembers its arguments until its output is used."""
        call.args, call.kwargs = map_tensors(self.current, (call.args, call.kwargs))
        with torch.no_grad(), torch._C.DisableTorchFunction():
            out = call.forward()
        self._functions.add(call, out)
        return out

    def _settle(self, tensor: Tensor) -> None:
        """Puts the rule of a registered autograd.Function on its output, if this is one that has not been used yet."""
        call = self._functions.take(tensor)
        if call is None:
            return
        given = tensors((call.args, call.kwargs))
        varying = [t for t in given if self.is_varying(t, call.name)]
        if not varying:
            self._made(call.output)
            return
        out = self.run(call.again, call.name, call.args, call.kwargs, call.row, varying)
        for old, new in zip(tensors(call.output), tensors(out), strict=True):
            self.tracker.alias(old, new)

    def problem(self, error: AuditError) -> None:
        """Tells of something that a strict audit raises."""
        self.tally.problems[str(error)] += 1
        self.on_problem(error)

    def run(self, func: Any, name: str, args: Any, kwargs: Any, row: Row | None, varying: list[Tensor]) -> Any:
        """Runs an operation with its rule, or without a graph where none is wanted."""
        if (
            name in BY_PARTS
            and row is not None
            and not row.users
            and any(map(self.tracker.varies, tensors((args, kwargs))[1:]))
        ):
            row = BY_PARTS[name]  # its parameters depend on the input, too
        if self.relative and not torch.is_grad_enabled():
            # What the model takes no gradient of depends on the input all the same.
            with torch.inference_mode(False), torch.enable_grad():
                return self._run_rule(func, name, args, kwargs, row, varying)
        if not torch.is_grad_enabled():
            return self._run_without_graph(func, name, args, kwargs, row, varying)
        return self._run_rule(func, name, args, kwargs, row, varying)

    def current(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for this one; a view of a constant that has become dependent is taken anew."""
        if self._functions.waiting:
            self._settle(tensor)
        found = self.tracker.current(tensor)
        root = self.tracker.root(tensor)
        if root is None or self.tracker.memory(root) is root:
            return found
        # What depends on the input is brought up to date where something is written; views of constants are so when
        # they are used.
        return found if found is not tensor and self.tracker.varies(tensor) else in_place.refresh(self, tensor)

    def is_varying(self, tensor: Tensor, name: str) -> bool:
        """Whether the tensor varies; finds those that came out of an operation the engine never saw."""
        info = self.tracker.info(tensor)
        if info is not None and writes_to(tensor) != info.version:
            self.problem(messages.unseen_write(tensor, self.path, name))
            info.version = writes_to(tensor)
        if info is not None and info.carries == tensor.requires_grad and not is_users(tensor.grad_fn):
            return True
        if not tensor.requires_grad:
            if info is None and self._strangers is not None:
                self._strangers.meet(tensor, name, self.path)
            return info is not None
        if tensor.is_leaf or not self.tracker.reaches_input(tensor):
            if self._again and not tensor.is_leaf:
                raise ModelError(messages.not_given(self.path, name))
            if self._strangers is not None and tensor.is_leaf:
                self._strangers.meet(tensor, name, self.path)
            return False
        if info is None or not info.hidden:
            self.problem(messages.hidden_operation(tensor, self.path, name))
            linear_layers.watch_hidden(tensor)
            self.tracker.track(tensor, Level.SIGNAL, None, hidden=True)
        return True

    def _run_without_graph(
        self, func: Any, name: str, args: Any, kwargs: Any, row: Row | None, varying: list[Tensor]
    ) -> Any:
        def run() -> Any:
            with torch.no_grad():
                return func(*args, **kwargs)

        out = self._run_unknown(run, func, name, tensors((args, kwargs)), carries=False) if row is None else run()
        for t in tensors(out):
            if t.is_floating_point() or t.is_complex():
                self.tracker.track(t, Level.GATE, self._follow(row, varying, t, args, kwargs, func))
            else:
                self.tracker.choose(t)
        return out

    def _run_on_choices(self, func: Any, name: str, args: Any, kwargs: Any, written: list[Tensor]) -> Any:
        """An operation on masks and indices alone: it carries no relevance, but is another one on the reference."""
        with torch.no_grad():
            out = func(*args, **kwargs)
        found = [*tensors(out), *written]
        if not found:
            self._tell_read_out(name)
        self._choose(found, name)
        if self.relative:
            self._refer(out, self._on_reference(func, args, kwargs).output)
        return out

    def _choose(self, found: list[Tensor], name: str) -> None:
        """Enters what an operation made of masks and indices alone."""
        for t in found:
            for each in (t,) if t._base is None else (t, t._base):
                if not (each.is_floating_point() or each.is_complex()):
                    self.tracker.choose(each)
                elif not self.tracker.varies(each):
                    self.tracker.track(each, Level.GATE, None)
                    self.tally.notes[messages.by_choice(name, self.path)] += each is t

    def _refer(self, out: Any, reference: Any) -> None:
        for t, t0 in zip(tensors(out), tensors(reference), strict=True):
            if t.shape != t0.shape:
                raise ModelError(
                    f"The model took another way on the reference than on the input: at {self.path or '(model)'} a "
                    f"result has the shape {tuple(t0.shape)} there and {tuple(t.shape)} here. Use a reference of the "
                    "same shape, and a model whose control flow doesn't depend on pixel values."
                )
            self.tracker.refer(t, t0)

    def _run_rule(self, func: Any, name: str, args: Any, kwargs: Any, row: Row | None, varying: list[Tensor]) -> Any:
        messages.check_randomness(name, args, kwargs, self.module, self.path)
        site, operands = self._site(name), tensors((args, kwargs))

        def account(output: Tensor, kind: str) -> Account:
            layout = self.tracker.layout(output) or self._follow(row, varying, output, args, kwargs, func)
            return self.books.account(kind, site, layout)

        composite = row is not None and isinstance(row.rule, Surrogate)
        tapped = self.books.itemised and not composite
        own_args, own_kwargs = map_tensors(self._operand(site if tapped else None), (args, kwargs))
        reference = self._on_reference(func, args, kwargs) if self.relative and not composite else None
        call = Call(
            func,
            name,
            own_args,
            own_kwargs,
            self.rules,
            self.tracker.level,
            self.tracker.varies,
            account,
            self.module,
            reference,
            self.layers,
            self._is_whole_number,
        )
        if name in TAKES_WHOLE_NUMBERS and any(map(self._is_whole_number, operands)):
            self.tally.notes[messages.whole_numbers(name, self.path)] += 1
        if row is None:
            out = self._run_unknown(call.run, func, name, operands, carries=bool(call.carriers))
        elif isinstance(row.rule, Surrogate):
            out = self._run_surrogate(row.rule, call, site)
        elif reference is not None and not call.carriers:
            out = call.value()
        else:
            out = (row.rule if reference is None else rule_for(name, row.rule, row.users))(call)
        linear_layers.watch(call.carriers, out)
        if isinstance(out, Tensor):
            out = self._of_its_own(out)
        if reference is not None:
            self._refer(out, reference.output)
        if folds(name, varying, args, kwargs):
            with torch.no_grad():
                plain = map_tensors(lambda t: t.detach() if self.tracker.varies(t) else t, (args, kwargs))
                exact = func(*plain[0], **plain[1])
            out = self.exactly(out, exact)
        if row is not None or any(t.requires_grad for t in tensors(out)):
            self._count(row, name, varying)
        if row is not None and self.rules.attention == "cp" and not self.relative:
            note_product(self.tally, row, call, out, varying, self.path, self.books.itemised)
        level = Level.SIGNAL if row is None else output_level(row, call, varying)
        for t in tensors(out):
            if not (t.is_floating_point() or t.is_complex()):
                self.tracker.choose(t)
                continue
            layout = self._follow(row, varying, t, args, kwargs, func)
            if name in ("detach", "data"):
                self.tracker.detached(t, operands[0])
            if not composite:
                own = in_place.level_of(self.tracker, t, level) if self.tracker.regions else level
                self.tracker.track(t, own, layout)
            self.dtypes.add(t.dtype)
            if self._inspect is not None:
                self._inspect(site, t)
            if self.books.itemised and t.requires_grad:
                self.books.measure(t, 1, site, self.tracker.layout(t), self.tracker.reference(t))
        return out

    def _of_its_own(self, t: Tensor) -> Tensor:
        """A result that isn't a view of what a rule made: the model could write to it, and nobody knows that base."""
        base = t._base
        if base is None or not base.requires_grad or base.is_leaf or self.tracker.varies(base):
            return t
        linear_layers.watch([t])
        return linearised(t, t.detach())

    def exactly(self, out: Tensor, exact: Tensor) -> Tensor:
        """A result with the numbers of another kernel, which are the same up to rounding."""
        linear_layers.watch([out])
        made, info = linearised(out, exact), self.tracker.info(out)
        if info is not None:
            self.tracker.track(made, info.level, info.layout)
        if self.relative:
            self.tracker.refer(made, self.tracker.on_reference(out))
        return made

    def _operand(self, site: Site | None) -> Callable[[Tensor], Tensor]:
        """What a rule gets for an operand: constants detached; with itemised books (a site), a tap on each carrier."""

        def own(t: Tensor) -> Tensor:
            info = self.tracker.info(t)
            if info is None:
                if not isinstance(t, nn.Parameter):
                    self.tracker.use(t)
                t = t.detach() if t.requires_grad else t
                return t.clone() if t.is_inference() else t
            if site is None or not t.requires_grad:
                return t
            tap = torch.ops.aten.alias(t)
            self.tracker.track(tap, info.level, info.layout, tap=True)
            self.books.measure(tap, -1, site, info.layout, self.tracker.reference(t))
            return tap

        return own

    def _run_surrogate(self, rule: Surrogate, call: Call, site: Site) -> Any:
        value = call.value()
        with self:
            surrogate = rule(call)
        if rule.unproven:
            for problem in messages.differences(call.name, self.path, tensors(value), tensors(surrogate)):
                self.problem(problem)
        pairs = list(zip(tensors(value), tensors(surrogate), strict=True))
        if self.books.itemised:
            for _, s in pairs:
                if s.requires_grad:
                    self.books.measure(s, -1, site, self.tracker.layout(s), self.tracker.reference(s))
        carried = {}
        for v, s in pairs:
            linear_layers.watch([s])
            carried[id(v)] = out = linearised(s, v)
            self.tracker.track(out, self.tracker.level(s), self.tracker.layout(s))
            if self.relative:
                self.tracker.refer(out, self.tracker.on_reference(s))
        return map_tensors(lambda t: carried[id(t)], value)

    def _count(self, row: Row | None, name: str, varying: list[Tensor]) -> None:
        primitive = Primitive.REINDEXING if row is None else row.primitive
        if primitive is Primitive.BILINEAR and len(varying) == 1:
            primitive = Primitive.LINEAR
        self.counts[primitive, name] += 1

    # Samples ----------------------------------------------------------------------------------------------------

    def _follow(
        self, row: Row | None, varying: list[Tensor], out: Tensor, args: Any, kwargs: Any, func: Any
    ) -> Layout | None:
        if self.books.batch == 1:
            return None
        # Those that carry relevance come first: a gate may hold the samples in another order.
        placed = [(t, self.tracker.layout(t)) for t in sorted(varying, key=lambda t: not t.requires_grad)]
        same_shape = [layout for t, layout in placed if t.shape == out.shape and layout is not None]
        if row is None:
            return same_shape[0] if same_shape else None
        if same_shape and row.primitive in (Primitive.LINEAR, Primitive.NORMALISATION):
            return same_shape[0]
        return row.follow(placed, out, self.books.batch, (args, kwargs), func)

    def _site(self, name: str) -> Site:
        if not self.books.itemised:
            return Site("", name)
        path = self.path
        self._sites[path, name] += 1
        return Site(path, name, self._sites[path, name])

    # References -----------------------------------------------------------------------------------------------------

    def _on_reference(self, func: Any, args: Any, kwargs: Any) -> Reference:
        """The same operation on the reference."""
        changed = [self.tracker.reference(t) is not None for t in tensors((args, kwargs))]
        args, kwargs = map_tensors(self.tracker.on_reference, (args, kwargs))
        with torch.no_grad():
            return Reference(tensors((args, kwargs)), changed, func(*args, **kwargs), self.tracker.has_choices)
