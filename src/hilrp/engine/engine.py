"""The engine: watches a model run, and gives each torch operation the rule of its primitive.

A `torch.overrides.TorchFunctionMode` sees every torch call. The value is always the original function's, bit for bit;
only the backward pass is the rule's. Nothing on the model is changed: what the engine knows about a tensor it keeps in
a side table of its own, and constants are detached as they enter an operation, so that not even ``requires_grad`` flags
are touched. Only a custom autograd.Function that the user registers is wrapped, as long as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode

from hilrp.engine import choices, in_place, messages, read_outs, recompute, registered, relative
from hilrp.engine.gates import folds, note_product, output_level
from hilrp.engine.module_rules import ModuleRules
from hilrp.engine.module_stack import ModuleWatch
from hilrp.engine.python_functions import opened
from hilrp.engine.tape import Names, Tapes
from hilrp.engine.tensor_info import Tally, Tracker, writes_to
from hilrp.engine.unseen_tensors import Strangers
from hilrp.method import torch_calls
from hilrp.method.autograd import linearised
from hilrp.method.call import Call, KnownLayers, Layers, Level
from hilrp.method.composite import Surrogate
from hilrp.method.ledger import Account, Books, Site
from hilrp.method.linear import note_use
from hilrp.method.registered_functions import Waiting, is_users, listening
from hilrp.method.registry import MODULES, is_registered, row_of
from hilrp.method.rules import Rules
from hilrp.method.sample_axis import Layout
from hilrp.method.table import BY_PARTS, NAIVE, Primitive, Row, secant_form
from hilrp.util.errors import AuditError, ModelError
from hilrp.util.nested import map_tensors, tensors


class Engine(TorchFunctionMode):
    """One explained forward pass.

    Args:
        model: The model, for the paths of its modules.
        rules: The rule set.
        books: Where constants' shares are entered.
        on_problem: Called with an `AuditError` for an operation without a rule; it raises, warns or ignores.
        on_module: Called with (path, arguments, None, self) before each module, (path, None, output, self) after it.
        relative: Whether relevance is relative to a reference input. Every operation then runs on both, and has its
            secant form.
        inspect: Called with each operation's output.
        layers: What was found of the model's layers when it ran before.
        recomputed: Modules that run again in the backward pass, by identity.
        tally: Where to count, if not anew.
        tapes: What to take instead of running on the reference, and what to keep for other passes.
    """

    def __init__(
        self,
        model: nn.Module,
        rules: Rules,
        books: Books,
        on_problem: Callable[[AuditError], None],
        on_module: Callable[[str, Any, Any, Engine], None] | None = None,
        relative: bool = False,
        inspect: Callable[[Site, Tensor], None] | None = None,
        layers: KnownLayers | None = None,
        recomputed: frozenset[int] = frozenset(),
        tally: Tally | None = None,
        tapes: Tapes | None = None,
    ) -> None:
        super().__init__()
        self.tapes = tapes or Tapes()
        self.tapes.begin()
        self._recomputed = recomputed
        self._inspect = inspect
        self.model, self.rules, self.books = model, rules, books
        self._again = tally is not None
        self.tally = tally = tally or Tally()
        self.module_rules = ModuleRules(model, rules, tally.ran_in)
        self.counts, self.notes, self.gates, self.dtypes = tally.counts, tally.notes, tally.gates, tally.dtypes
        self.relative = relative
        self.on_problem, self.on_module = on_problem, on_module
        self.tracker = Tracker()
        self._modules = ModuleWatch(model, self._enter_module, self._leave_module)
        self._opaque: tuple[nn.Module, tuple[Any, ...], dict[int, Tensor]] | None = None
        self._strangers: Strangers | None = Strangers(model, tally, self.tracker)
        self._held = frozenset(map(id, (*model.parameters(), *model.buffers())))
        self.names = Names(self._held, self.tracker.varies if self.tapes.one_for_all else None, self.tapes.alone)
        self.functions = Waiting()
        self._depth = 0
        self._minds_modules = True
        self.layers = Layers(layers)

    # Entering and leaving -------------------------------------------------------------------------------------

    def __enter__(self) -> Engine:
        if self._depth == 0:
            for path, module in self.model.named_modules():
                if module._backward_hooks and module._is_full_backward_hook is False:
                    self.problem(messages.backward_hook(path))
            self._modules.open()
            self._listening = listening(partial(registered.run_function, self))
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
        self.functions.clear()
        self.on_module = self._inspect = None
        self.tapes = Tapes()

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
    def rules_here(self) -> Rules:
        """The rules of the running module."""
        return self.module_rules.at(self.path) if self.rules.modules else self.rules

    @property
    def module(self) -> nn.Module | None:
        """The running module."""
        return self._modules.innermost

    @contextmanager
    def without_modules(self) -> Iterator[None]:
        """Within, modules that run are another engine's."""
        self._minds_modules = False
        try:
            yield
        finally:
            self._minds_modules = True

    def _enter_module(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not self._minds_modules:
            return None
        if self._opaque is not None and not self._modules.is_running(self._opaque[0]):
            self._opaque = None  # it raised, and the model went on
        if self.on_module is not None and self._opaque is None:
            self.on_module(self.path, args, None, self)
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

    def _leave_module(self, module: nn.Module, given: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if not self._minds_modules:
            return None
        with self._aside():
            replaced = None
            if self._opaque is not None and self._opaque[0] is module:
                (_, args, copies), self._opaque = self._opaque, None
                own = {id(t) for t in (*copies.values(), *tensors(args))}
                if any(id(t) not in own for t in tensors(given)):
                    self.problem(messages.forward_pre_hook(self.path, module))
                run = registered.run_module if type(module) in MODULES else recompute.run
                if run is recompute.run:
                    recompute.check_unwritten(module, self.path, copies.values())
                    run = recompute.run_at_once if recompute.shares_memory(output, copies.values()) else run
                output = replaced = run(self, module, args, map_tensors(self.current, kwargs), output)
            if self.on_module is not None and self._opaque is None:
                self.on_module(self.path, None, output, self)
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
        if torch.is_inference_mode_enabled():
            # What is made there could not be followed: it counts no writes, and is no view of anything.
            with torch.inference_mode(False), torch.no_grad():
                return self.__torch_function__(func, types, args, kwargs)
        self._modules.went_on()
        operands = tensors((args, kwargs))
        if not operands:
            return self.made(func(*args, **kwargs))
        if self._opaque is not None and not self._modules.is_running(self._opaque[0]):
            self._opaque = None  # it raised, and the model went on
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
        name, works_in_place = torch_calls.operation_name(func)
        if works_in_place and not args:
            args, kwargs = in_place.with_target_first(args, kwargs)
        if name == "new_tensor" and isinstance(data := kwargs.get("data", args[-1]), Tensor):
            copied = self.apply(Tensor.clone, (self.apply(Tensor.detach, (data,), {}),), {})  # it copies values
            form = kwargs.get("device") or data.device, kwargs.get("dtype") or args[0].dtype
            return self.apply(Tensor.to, (copied, *form), {})
        if name == "as_strided" and not works_in_place:
            args, kwargs = in_place.from_memory(self, *args, **kwargs)
        if name == "register_hook" and self.tracker.varies(args[0]):
            return func(args[0], read_outs.watched_hook(self, *args[1:], **kwargs))
        if name == "grad_fn" and self.tracker.varies(args[0]):
            self.tally.unchecked[messages.graph_seen(self.path)] += 1
        if name in torch_calls.QUERIES:
            return func(*args, **kwargs)
        if name in ("as_tensor", "asarray") and args and isinstance(args[0], Tensor):
            return self.apply(Tensor.to, args[:1], kwargs) if kwargs else args[0]
        if works_in_place and name in torch_calls.FILLS and not self.tracker.varies(args[0]):
            self.tracker.vouch(args[0])  # nothing of it will be left
        varying = [t for t in operands if self.is_varying(t, name)]
        written = in_place.written(name, works_in_place, args, kwargs)
        if not written:
            # A part that holds nothing but constants is one, though the rest of its memory depends on the input.
            varying = [t for t in varying if self.tracker.level(t) is not Level.CONSTANT]
        if name in torch_calls.CREATION or name in torch_calls.SHAPED_BY_SECOND:
            # Of the others they take shape and type alone.
            first, *others = operands
            operands = [first] if name in torch_calls.SHAPED_BY_SECOND else others
            if name in torch_calls.CREATION and others:
                args, kwargs = map_tensors(lambda t: t.detach() if t is first else t, (args, kwargs))
            varying = [t for t in varying if any(t is each for each in operands)]
        chooses = not varying and choices.depends_on_choices(self, operands)
        if name in torch_calls.READ_OUTS and (varying or chooses):
            return read_outs.read_out(self, func, name, args, kwargs)
        if name in torch_calls.SHAPED_BY_VALUES and any(
            choices.depends(self, t) for t in torch_calls.shaping(name, args, kwargs)
        ):
            read_outs.tell_read_out(self, name, " (as the shape of its result)")
        if not varying and any(self._is_part(t) for t in written):
            return in_place.run(self, func, name, args, kwargs)
        if not varying and any(self._must_stay(t) for t in written):
            out = in_place.run_on_copies(self, func, args, kwargs, written)
            if chooses:
                choices.choose(self, [*tensors(out), *map(self.tracker.current, written)], name)
            return out
        if (
            not varying
            and torch_calls.is_python_source(func)
            and (kwargs.get("inplace") or any(arg is True for arg in args))
        ):
            with self:  # what it writes to has to be seen
                return opened(func)(*args, **kwargs)
        if not varying and not chooses:
            return self._run_on_constants(func, name, args, kwargs, operands, written)
        if not varying and not (self.relative and written):
            return choices.run_on_choices(self, func, name, args, kwargs, written)
        if written:
            return in_place.run(self, func, name, args, kwargs)
        row = row_of(name)
        if (
            torch_calls.is_python_source(func)
            and (row is None or func.__module__ == "torch.nn.functional")
            and not is_registered(name)
        ):
            with self:
                return opened(func)(*args, **kwargs)
        return self.run(func, name, args, kwargs, row, varying)

    def _is_part(self, t: Tensor) -> bool:
        """Whether a constant is a view of something that depends on the input."""
        root = self.tracker.root(t)
        return root is not None and self.tracker.varies(self.tracker.memory(root))

    def _must_stay(self, t: Tensor) -> bool:
        """Whether a constant must not be written to: it is the model's own, or a graph may keep it."""
        root = self.tracker.root(t)
        held = t if root is None else root
        return id(held) in self._held or (self.tracker.is_made(t) and self.tracker.is_used(t))

    @property
    def _stands_in(self) -> bool:
        """Whether any tensor stands for another."""
        return self.tracker.has_aliases or self.functions.waiting

    def _run_on_constants(
        self, func: Any, name: str, args: Any, kwargs: Any, operands: list[Tensor], written: list[Tensor]
    ) -> Any:
        before = [writes_to(t) for t in written]
        with torch.no_grad():
            out = func(*args, **kwargs)
        for t, count in zip(written, before, strict=True):
            self.tracker.wrote(t, count)
        if not written:
            self.made(out)
        if name in ("detach", "data") and isinstance(out, Tensor):
            self.tracker.detached(out, operands[0])  # what is written to one of them later is in the other
        return out

    def made(self, out: Any) -> Any:
        """Enters constants that the model made while the engine looked on."""
        for t in tensors(out):
            self.tracker.make(t)
        return out

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
        if row is not None and not row.users and self.rules_here.unlisted == "raw":
            row = NAIVE.get(name, row)
        if not (self.relative or torch.is_grad_enabled()):
            return self._run_without_graph(func, name, args, kwargs, row, varying)
        # Relative to a reference, what the model takes no gradient of depends on the input all the same.
        with torch.inference_mode(False), torch.enable_grad():
            return self._run_rule(func, name, args, kwargs, row, varying)

    def current(self, tensor: Tensor) -> Tensor:
        """The tensor that stands for this one; a view of a constant that has become dependent is taken anew."""
        if self.functions.waiting:
            registered.settle(self, tensor)
        found = self.tracker.current(tensor)
        root = self.tracker.root(found)
        # What depends on the input is brought up to date where something is written; views of constants are so when
        # they are used.
        return found if root is None or self.tracker.memory(root) is root else in_place.refresh(self, found)

    def is_varying(self, tensor: Tensor, name: str) -> bool:
        """Whether the tensor varies; finds those that came out of an operation the engine never saw."""
        info = self.tracker.info(tensor)
        if info is not None and writes_to(tensor) != info.version:
            self.problem(messages.unseen_write(tensor, self.path, name))
            info.version = writes_to(tensor)
        if info is not None and (info.ends or info.carries == tensor.requires_grad) and not is_users(tensor.grad_fn):
            return True
        if not tensor.requires_grad:
            if info is None and self._strangers is not None:
                self._strangers.meet(tensor, name, self.path)
            return info is not None
        if tensor.is_leaf or not self.tracker.reaches_input(tensor):
            if (self._again or self._recomputed) and not tensor.is_leaf:
                raise ModelError(messages.not_given(self.path, name))
            if self._strangers is not None:
                self._strangers.meet(tensor, name, self.path)
            return False
        if info is None or not info.hidden:
            self.problem(messages.hidden_operation(tensor, self.path, name))
            note_use([tensor], hidden=True)
            self.tracker.track(tensor, Level.SIGNAL, None, hidden=True)
        return True

    def _run_without_graph(
        self, func: Any, name: str, args: Any, kwargs: Any, row: Row | None, varying: list[Tensor]
    ) -> Any:
        def run() -> Any:
            with torch.no_grad():
                return func(*args, **kwargs)

        out = (
            read_outs.run_unknown(self, run, func, name, tensors((args, kwargs)), carries=False)
            if row is None
            else run()
        )
        if isinstance(out, Tensor):
            out = self._of_its_own(out, tensors((args, kwargs)))
        for t in tensors(out):
            if t.is_floating_point() or t.is_complex():
                # A view that torch takes without gradients says that it requires one, though none comes through.
                layout = self._follow(row, varying, t, args, kwargs, func)
                self.tracker.track(t, Level.GATE, layout, ends=t.requires_grad)
            else:
                self.tracker.choose(t)
        return out

    def _run_rule(self, func: Any, name: str, args: Any, kwargs: Any, row: Row | None, varying: list[Tensor]) -> Any:
        messages.check_randomness(name, args, kwargs, self.module, self.path)
        site, operands = self._site(name), tensors((args, kwargs))

        def follow(output: Tensor) -> Layout | None:
            return self._follow(row, varying, output, args, kwargs, func)

        def account(output: Tensor, kind: str) -> Account:
            return self.books.account(kind, site, self.tracker.layout(output) or follow(output))

        composite = row is not None and isinstance(row.rule, Surrogate)
        tapped = site if self.books.itemised and not composite else None
        own_args, own_kwargs = map_tensors(self._operand(tapped), (args, kwargs))
        reference = None
        if self.relative and not composite:
            reference = relative.on_reference(self, func, name, args, kwargs, follow)
        call = Call(
            func,
            name,
            own_args,
            own_kwargs,
            self.rules_here,
            self.tracker.level,
            self.tracker.varies,
            account,
            self.module,
            reference,
            self.layers,
            self.tracker.is_choice,
        )
        choices.note_values(self, name, operands)
        if row is None:
            out = read_outs.run_unknown(self, call.run, func, name, operands, carries=bool(call.carriers))
        elif isinstance(row.rule, Surrogate):
            out = self._run_surrogate(row.rule, call, site)
        elif reference is not None and (self.tapes.alone or not call.carriers):
            out = relative.values(call)
        else:
            out = (row.rule if reference is None else secant_form(row, name))(call)
        note_use(call.carriers, out)
        if isinstance(out, Tensor):
            out = self._of_its_own(out, operands)
        if reference is not None:
            relative.refer(self, out, reference.beside(out))
        if not self.tapes.alone and folds(name, varying, args, kwargs):
            with torch.no_grad():
                plain = map_tensors(lambda t: t.detach() if self.tracker.varies(t) else t, (args, kwargs))
                exact = func(*plain[0], **plain[1])
            out = self.exactly(out, exact)
        if reference is not None:
            relative.keep(self, name, args, kwargs, out)
        if row is not None or any(t.requires_grad for t in tensors(out)):
            primitive = Primitive.REINDEXING if row is None else row.primitive
            one_factor = primitive is Primitive.BILINEAR and len(varying) == 1
            self.counts[Primitive.LINEAR if one_factor else primitive, name] += 1
        if row is not None and call.rules.attention == "cp" and not self.relative:
            note_product(self.tally, row, call, out, varying, self.path, self.books.itemised)
        level = Level.SIGNAL if row is None else output_level(row, call, varying)
        for t in tensors(out):
            if not (t.is_floating_point() or t.is_complex()):
                self.tracker.choose(t)
                continue
            if name in ("detach", "data"):
                self.tracker.detached(t, operands[0])
            if not composite:
                own, ends = in_place.look_at_pieces(self.tracker, t, level) if self.tracker.pieces else (level, False)
                self.tracker.track(t, own, follow(t), ends=ends)
            self.dtypes.add(t.dtype)
            if self._inspect is not None:
                self._inspect(site, t)
            if self.books.itemised and t.requires_grad:
                self.books.measure(t, 1, site, self.tracker.layout(t), self.tracker.reference(t))
        return out

    def _of_its_own(self, t: Tensor, operands: list[Tensor]) -> Tensor:
        """A result that isn't a view of what a rule or a kernel made.

        The model could write to it, and nobody knows that base.
        """
        base = t._base
        if base is None or self.tracker.varies(base) or any(base is each or base is each._base for each in operands):
            return t
        if not t.requires_grad:
            return t.detach()
        if not base.requires_grad or base.is_leaf:
            return t
        note_use([t])
        return linearised(t, t.detach())

    def exactly(self, out: Tensor, exact: Tensor) -> Tensor:
        """A result with the numbers of another kernel, which are the same up to rounding."""
        note_use([out])
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
            if info.level is Level.CONSTANT:
                return t.detach()
            if info.ends:
                end = t.detach()
                self.tracker.track(end, info.level, info.layout, tap=True)
                return end
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
            note_use([s])
            carried[id(v)] = out = linearised(s, v)
            self.tracker.track(out, self.tracker.level(s), self.tracker.layout(s))
            if self.relative:
                self.tracker.refer(out, self.tracker.on_reference(s))
        return map_tensors(lambda t: carried[id(t)], value)

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
        self.tally.sites[path, name] += 1
        return Site(path, name, self.tally.sites[path, name])
