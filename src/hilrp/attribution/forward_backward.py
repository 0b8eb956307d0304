"""One forward pass under the engine, and its backward passes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hilrp.attribution.checks import floor, tolerance
from hilrp.attribution.single_samples import each_score
from hilrp.attribution.stages import OF_INPUT, channels_last, stream_name, streams, to_map
from hilrp.engine import messages
from hilrp.engine.engine import Engine
from hilrp.engine.tape import Tapes
from hilrp.method import fast, secant  # noqa: F401 (they enter their forms into the rules and the table)
from hilrp.method.call import KnownLayers
from hilrp.method.graph import graph_nodes
from hilrp.method.ledger import Books, Ledger, Site
from hilrp.method.linear import live_layers, note_use
from hilrp.method.rules import Rules
from hilrp.method.sample_axis import Layout, copied
from hilrp.targets import Target, logits_of, score_of
from hilrp.targets.classes import Checked, is_own
from hilrp.util.errors import AuditError, ConstantScoreError, HilrpError, InputError, ModelError
from hilrp.util.memory import shortage
from hilrp.util.nested import map_objects, map_tensors, tensors

#: Gradients of single pixels underflow in float16; the backward pass is started with this instead of one.
_FLOAT16_SEED = 4096.0


@dataclass(frozen=True)
class Outcome:
    """What an explanation leaves: relevance, the books, and what was found on the way.

    See `Explanation` for most of it.

    Attributes:
        sums: Stage -> sum of relevance per sample; ``maps``: stage -> map; ``layers``: the whole relevance of others;
            ``layer_rows``: how many rows of that are a sample's, one after the other; 0, where it has none of its own.
        unsplit: Whether an entry of the books could not be told apart by sample.
        limit: How far the books may be from closing.
        sound: Whether all is finite, the books close, and there is a score to decompose: one flag on the device.
        chosen: The explained classes as a target, where the target is one.
        reference_score: The scores on the reference, and ``reference_output`` the model's output there.
        read_outs: Where the model read numbers out of tensors that depend on the input.
        strangers: Tensors that came in without having been seen being made, with where they were used.
        problems: What a strict audit would have raised.
        unchecked: What nobody can see.
        target_chooses: Whether the target is a function of the user's that reads whole numbers out of the output (which
            class it is), and no others.
        shared: Whether a reference that all samples have in common ran as one of them.
    """

    relevance: Any
    score: Tensor
    classes: Tensor | None
    against: Tensor | None
    output: Any
    sums: dict[str, Tensor]
    maps: dict[str, Tensor]
    ledger: Ledger
    unsplit: bool
    limit: float
    sound: Tensor
    notes: dict[str, int]
    chosen: Checked | None
    reference_score: Tensor | None
    reference_output: Any
    read_outs: dict[str, int]
    strangers: list[tuple[str, Tensor]]
    problems: dict[str, int]
    unchecked: dict[str, int]
    target_chooses: bool
    layers: dict[str, Tensor]
    layer_rows: dict[str, int]
    shared: bool = False


@dataclass(frozen=True)
class Kept:
    """A tensor whose relevance a pass keeps, as long as its graph is there.

    Attributes:
        tensor: The tensor, with its graph.
        value: What a gradient at it is multiplied with: its value, or its difference to the reference.
        rows: How many of its rows are a sample's, one after the other; 0, where a sample has none of its own.
        reading: The hook that reads its relevance.
    """

    tensor: Tensor
    value: Tensor
    rows: int
    reading: torch.utils.hooks.RemovableHandle


class Pass:
    """A model run forward under the engine, ready to be run backward.

    Args:
        model: The model.
        x: Its input: a tensor, a tuple of positional ones, or a mapping of keyword ones.
        target: What to explain.
        rules: The rule set.
        books: Where constants' shares are entered.
        on_problem: What to do about an operation without a rule.
        batch: Number of samples. Inputs whose first axis has another length are held fixed.
        stages: Modules whose maps to read in the backward pass.
        inspect: Called with the output of each operation.
        reference: What relevance is relative to, in the form of the input.
        layers: What was found of the model's layers when it ran before.
        recomputed: Modules that run again in the backward pass, by identity.
        tapes: What the model computed on the reference, if it ran on it before, and what to keep for other passes.
        keep: Modules whose relevance to keep whole: see `hilrp.attribution.stages.find_kept`.

    Attributes:
        score: The explained scalars, ``[B]``; ``reference_score``: what they are on the reference, where there is one.
        classes: The explained classes, where the target is one; ``against``: what they are contrasted with.
        output: The model's output, without a graph.
        dtypes: The types that the score was computed in.
        sums: Stage -> sum of relevance per sample, after `backward`.
        maps: Stage -> relevance map, after `backward`.
        layers: Kept module -> its relevance, after `backward`.
        kept: Kept module -> the tensor itself, until `close`.
    """

    def __init__(
        self,
        model: nn.Module,
        x: Any,
        target: Target,
        rules: Rules,
        books: Books,
        on_problem: Callable[[AuditError], None],
        batch: int,
        stages: Sequence[str] = (),
        inspect: Callable[[Site, Tensor], None] | None = None,
        reference: Any = None,
        layers: KnownLayers | None = None,
        recomputed: frozenset[int] = frozenset(),
        tapes: Tapes | None = None,
        keep: Sequence[str] = (),
    ) -> None:
        self.books = books
        self.sums: dict[str, Tensor] = {}
        self.maps: dict[str, Tensor] = {}
        self.layers: dict[str, Tensor] = {}
        self.layer_rows: dict[str, int] = {}
        self.kept: dict[str, Kept] = {}
        self._keep, self._runs, self._held_at = keep, Counter[str](), list[tuple[str, Tensor, Tensor]]()
        self._channels_last: list[bool | None] = []
        self._stages, self._batch = stages, batch
        self._image = next((t.shape[2:] for t in tensors(x) if t.ndim == 4), None)
        self.input_names = input_names(model, x)
        # Words beside a picture: their tokens are no places in it.
        self._lengths = {t.shape[1] for t in tensors(x) if t.ndim == 2}
        relative = reference is not None
        self._one_reference = tapes is not None and tapes.batch > 1
        self.engine = engine = Engine(
            model, rules, books, on_problem, self._capture, relative, inspect, layers, recomputed, tapes=tapes
        )
        with torch.inference_mode(False), torch.enable_grad(), as_written(), autocast_without_cache():
            self._leaves = map_tensors(self._leaf, x)
            # Inputs that are held fixed have no reference.
            pairs = zip(tensors(self._leaves), tensors(reference), strict=False)
            before = {
                id(t): copied(t0) if self._one_reference else t0.detach().clone() for t, t0 in pairs if t.requires_grad
            }
            inputs = map_tensors(
                lambda t: engine.tracker.watch(t, Layout(0, 1), before.get(id(t))) if t.requires_grad else t,
                self._leaves,
            )
            self._before = before
            for t in tensors(self._leaves):
                engine.tracker.make(t)  # inputs that are held fixed come in as they are
            with engine:
                output = self._forward(model, inputs)
            if self._one_reference:  # what is asked may be another thing of every sample
                engine.tapes.end()
                engine.tapes = Tapes()
            output = map_objects(engine.current, output)  # what the model wrote in place is in other tensors
            tally = engine.tally
            reads, values = tally.read_outs.total(), tally.values_read.total()
            with engine, engine.unwatched() if is_own(target) else nullcontext():
                found = score_of(output, target, batch)
            self._target_chooses = tally.read_outs.total() > reads and tally.values_read.total() == values
            score = engine.current(found.value)
        self._check_held()
        engine.tapes.end()
        _check_score(engine, score)
        note_use([score])
        self.as_expected = True
        if engine.layers.count:
            live = set(live_layers(score))
            self.as_expected = engine.layers.as_expected(live)
            if layers is None:
                engine.layers.settle(live)
        self._graph, self.score = score, score.detach()
        self.dtypes = self._dtypes(recomputed)
        self.reference_score = engine.tracker.reference(score)
        self.classes, self.against = found.classes, found.against
        self._chosen = None if found.classes is None else Checked(found.classes, found.against)
        self.reference_output = (
            map_objects(lambda t: engine.tracker.on_reference(t).detach(), output) if relative else None
        )
        self.output = map_objects(lambda t: engine.current(t).detach(), output)
        engine.release()
        books.seed = _FLOAT16_SEED if torch.float16 in engine.dtypes else 1.0

    def _dtypes(self, recomputed: frozenset[int]) -> set[torch.dtype]:
        """The types that the score was computed in: of several, those on the way from the input to it."""
        used = self.engine.dtypes
        if len(used) == 1 or recomputed:  # of modules that run again the graph shows the outside alone
            return used
        nodes = graph_nodes(self._graph)
        found = {data.dtype for node in nodes for data in getattr(node, "_input_metadata", ()) if data is not None}
        return {dtype for dtype in used if dtype in found or dtype.is_complex} or used

    def backward(self, sample: int | None = None) -> tuple[Any, dict[str, Tensor]]:
        """Relevance in the form of the input, and the sum of each input's per sample.

        With ``sample``, only that one's score is propagated, and the graph is kept for others.
        """
        relevance = self.relevance_of(self.gradients_from(None, self._seeds(sample), retain=sample is not None))
        pairs = zip(self.input_names, tensors(self._leaves), tensors(relevance), strict=True)
        return relevance, {name: r.double().reshape(len(r), -1).sum(1) for name, t, r in pairs if t.requires_grad}

    def gradients(self) -> Any:
        """What each number of the input counts in the score, in the form of the input; the graph is let go."""
        given = self._by_input(self.gradients_from(None, self._seeds(None), retain=False))
        self.close()
        return map_tensors(lambda t: given[id(t)] if id(t) in given else torch.zeros_like(t), self._leaves)

    def _seeds(self, sample: int | None) -> Tensor:
        """What the backward pass begins with at the score, or at that of one sample."""
        seeds = torch.full_like(self.score, self.books.seed)
        if sample is not None:
            seeds = seeds * (torch.arange(len(seeds), device=seeds.device) == sample)
        return seeds

    def gradients_from(self, of: Tensor | None, seeds: Tensor, retain: bool) -> list[Tensor | None]:
        """The gradients of the inputs that relevance comes back to, from gradients at a tensor of the graph.

        Args:
            of: The tensor; by default the score.
            seeds: The gradients there, with `Books.seed` in them.
            retain: Whether the graph is kept for others.
        """
        wanted = [t for t in tensors(self._leaves) if t.requires_grad]
        try:
            # In the types of the forward pass: the caller's autocast is not for what runs here.
            with torch.inference_mode(False), torch.autocast(self.score.device.type, enabled=False):
                return list(
                    torch.autograd.grad(
                        self._graph if of is None else of, wanted, seeds, retain_graph=retain, allow_unused=True
                    )
                )
        except RuntimeError as error:
            if (reason := shortage(error)) is not None and not isinstance(error, torch.OutOfMemoryError):
                shapes = ", ".join(str(tuple(t.shape)) for t in tensors(self._leaves))
                raise messages.too_large(reason, shapes) from error
            if isinstance(error, (HilrpError, torch.OutOfMemoryError)):
                raise
            if "modified by an inplace operation" in str(error):
                raise ModelError(
                    "The model writes to a tensor of its own that it has multiplied with what depends on the input, "
                    f"and that the backward pass needs as it was ({error}). Write to a copy of it (clone()), or let "
                    "the model make a new one."
                ) from error
            raise ModelError(messages.failed_backward(error)) from error

    def relevance_of(self, gradients: list[Tensor | None]) -> Any:
        """Relevance in the form of the input, of what `gradients_from` returned."""
        given = self._by_input(gradients)
        return map_tensors(
            lambda t: self._held(t) * given[id(t)] if id(t) in given else torch.zeros_like(t), self._leaves
        )

    def _by_input(self, gradients: list[Tensor | None]) -> dict[int, Tensor]:
        """Gradients by the identity of the inputs that have some."""
        wanted = [t for t in tensors(self._leaves) if t.requires_grad]
        return {id(t): g / self.books.seed for t, g in zip(wanted, gradients, strict=True) if g is not None}

    def close(self) -> None:
        """Lets go of the graph: modules that run again hold this pass, and the graph holds them."""
        self._graph = self.score
        self.kept.clear()

    def outcome(self) -> Outcome:
        """Runs backward, and closes the books."""
        tally = self.engine.tally
        if len(self.score) == self._batch:
            relevance, pixels = self.backward()
            ledger = Ledger.close(self.books, self.score, pixels, self.reference_score)
        else:
            relevance, ledger = each_score(self)
        self.close()
        limit = tolerance(self.dtypes, self.score.device)
        ledger = replace(ledger, floor=self._floor())
        numbers = [t for t in tensors((relevance, self.score)) if t.is_floating_point()]
        flags = [t.isfinite().all() for t in numbers]
        flags += [(ledger.leak <= limit).all(), (ledger.residual <= limit).all()]
        if self.reference_score is None:
            flags.append((self.score.abs() >= torch.finfo(self.score.dtype).tiny).all())
        return Outcome(
            relevance,
            self.score,
            self.classes,
            self.against,
            self.output,
            self.sums,
            self.maps,
            ledger,
            self.books.unsplit,
            limit,
            torch.stack([flag.to(self.score.device) for flag in flags]).all(),
            dict(self.engine.notes)
            | dict.fromkeys(map(messages.unused_rules, self.engine.module_rules.unused), 1)
            | {messages.rules_left_out(key, at): len(at) for key, at in self.engine.module_rules.left_out.items()}
            | dict.fromkeys((messages.carries_nothing(name) for name, runs in self._runs.items() if not runs), 1),
            self._chosen,
            self.reference_score,
            self.reference_output,
            dict(tally.read_outs),
            list(tally.strangers),
            dict(tally.problems),
            dict(tally.unchecked),
            self._target_chooses,
            self.layers,
            self.layer_rows,
        )

    def _floor(self) -> Tensor | None:
        """What a class's residual is relative to at least, by the scores of all classes; of functions ``None``."""
        if self._chosen is None:
            return None
        outputs = [self.output] if self.reference_score is None else [self.output, self.reference_output]
        scores = [logits_of(each).reshape(self._batch, -1) for each in outputs]
        return floor(self.dtypes, self.score.device, scores)

    def _held(self, leaf: Tensor) -> Tensor:
        """What a gradient at the input is multiplied with: the input, or its difference to the reference."""
        before = self._before.get(id(leaf))
        return leaf.detach() if before is None else leaf.detach() - before

    def _leaf(self, t: Tensor) -> Tensor:
        # A clone made here is an ordinary tensor even where the caller's was made in inference mode.
        t = t.detach().clone()
        return t.requires_grad_() if t.is_floating_point() and t.shape[:1] == (self._batch,) else t

    def _forward(self, model: nn.Module, inputs: Any) -> Any:
        try:
            return call_model(model, inputs)
        except (HilrpError, MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            where = messages.place(self.engine.path, self.engine.module)
            shapes = ", ".join(str(tuple(t.shape)) for t in tensors(inputs))
            if (reason := shortage(error)) is not None:
                raise messages.too_large(reason, shapes) from error
            if "marked as dirty" in str(error):
                raise messages.function_that_writes(where) from error
            if "torch.utils.checkpoint" in str(error):
                raise ModelError(messages.failed_backward(error)) from error
            if messages.is_of_reference(error) and self._runs_plainly(model):
                raise ModelError(messages.failed_on_reference(error, where)) from error
            raise ModelError(messages.failed_forward(error, where, shapes)) from error

    def _runs_plainly(self, model: nn.Module) -> bool:
        """Whether the model runs on the input without the engine: what failed then failed on the reference."""
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                call_model(model, map_tensors(lambda t: t.detach().clone(), self._leaves))
        except Exception:
            return False
        return True

    def _capture(self, path: str, given: Any, output: Any, engine: Engine) -> None:
        """Reads the relevance of a stage's streams, and of what is kept, when the backward pass comes by.

        Args:
            path: The module's.
            given: Its arguments, when it begins.
            output: What it returned, when it has ended.
            engine: What it runs under: of modules that run again one of their own.
        """
        name, tree = (path, output) if given is None else (path + OF_INPUT, given)
        with torch._C.DisableTorchFunction():
            if name in self._keep:
                self._hold(name, tree, engine)
            if path in self._stages and given is None:
                for i, features in enumerate(streams(map_tensors(engine.current, output))):
                    if features.shape[0] == self._batch:
                        self._read(stream_name(path, i), features, engine.tracker.reference(features))

    def _hold(self, name: str, tree: Any, engine: Engine) -> None:
        """Keeps the relevance of tensors whole; of those that none reaches, zeros.

        A run that has nothing to do with what is explained counts for none.
        """
        layers, books, tracker = self.layers, self.books, engine.tracker
        found = {id(now): (t, now) for t in tensors(tree) if (now := engine.current(t)).requires_grad}
        self._runs[name] += bool(found)
        name = name if self._runs[name] < 2 else f"{name}#{self._runs[name]}"
        for i, (named, t) in enumerate(found.values()):
            before, key = tracker.reference(t), stream_name(name, i)
            if t is not named and t._is_view():
                raise _written(key)
            self._held_at.append((key, named, t))
            self.layer_rows[key] = self._rows(t, tracker.layout(t))
            value = t.detach() if before is None else t.detach() - before
            layers[key] = value.new_zeros(()).expand(value.shape)

            def read(g: Tensor | None, key: str = key, value: Tensor = value) -> None:
                if g is not None:
                    layers[key] = value * (g / books.seed)

            self.kept[key] = Kept(t, value, self.layer_rows[key], t.register_hook(read))

    def _rows(self, t: Tensor, layout: Layout | None) -> int:
        """How many rows of a tensor are a sample's, one after the other; 0, where it has none of its own."""
        if self._batch == 1:
            return len(t)
        in_rows = layout is not None and layout.axis == 0 and len(t) == self._batch * layout.inner
        return layout.inner if layout is not None and in_rows else 0

    def _check_held(self) -> None:
        """Raises where what is kept is a view whose memory was written to: part of its relevance goes another way."""
        for name, named, t in self._held_at:
            if t._is_view() and self.engine.current(named) is not t:
                raise _written(name)
        self._held_at.clear()

    def _read(self, name: str, features: Tensor, before: Tensor | None) -> None:
        value, image, books, sums, maps = features.detach(), self._image, self.books, self.sums, self.maps
        if before is not None:
            value = value - before
        order = self._channels_last
        words = features.ndim == 3 and features.shape[1] in self._lengths
        if image is not None and features.ndim == 4:
            order.append(channels_last(features.shape, image))

        def read(g: Tensor | None) -> None:
            if g is None:
                return
            relevance = value * (g / books.seed)
            sums[name] = relevance.flatten(1).sum(1).double()
            # A model keeps to one order: a stage whose shape doesn't tell it (32 channels of 32 x 32) goes by the
            # others.
            known = next((last for last in order if last is not None), None)
            found = to_map(relevance, image, known) if image is not None and not words else None
            if found is not None:
                maps[name] = found

        features.register_hook(read)


def input_names(model: nn.Module, x: Any) -> list[str]:
    """What the inputs of a model are called in its books.

    As the model says (``input_names``), by their keywords, or by their place.

    Example:
        >>> input_names(nn.Identity(), torch.zeros(1, 3, 8, 8))
        ['pixels']
        >>> input_names(nn.Identity(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 5)))
        ['pixels', 'input 1']
    """
    own = getattr(model, "input_names", None)
    if isinstance(x, Tensor):
        return ["pixels"]
    parts = list(x.items()) if isinstance(x, Mapping) else list(enumerate(x))
    found = []
    for i, (key, part) in enumerate(parts):
        several = tensors(part)
        name = key if isinstance(key, str) else f"input {key}"
        if isinstance(own, tuple) and i < len(own):
            name = own[i]
        elif (
            not isinstance(key, str) and sum(t.ndim == 4 for t in tensors(x)) == 1 and any(t.ndim == 4 for t in several)
        ):
            name = "pixels"
        found += [name if len(several) == 1 else f"{name}[{j}]" for j in range(len(several))]
    return found


def _written(name: str) -> InputError:
    return InputError(
        f"keep: what is at `{name}` is a view of memory that the model writes to, so that its relevance also goes "
        "other ways. Keep another module, or let the model write to memory of its own (inplace=False)."
    )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Calls a model with a tensor, a tuple of positional inputs, or a mapping of keyword inputs."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def call_plainly(model: nn.Module, inputs: Any) -> Any:
    """Calls a model without the engine, on a copy: it may write to what it is given, which others may share."""
    try:
        return call_model(model, map_tensors(Tensor.clone, inputs))
    except (HilrpError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        shapes = ", ".join(str(tuple(t.shape)) for t in tensors(inputs))
        if (reason := shortage(error)) is not None:
            raise messages.too_large(reason, shapes) from error
        raise ModelError(messages.failed_forward(error, "the model itself", shapes)) from error


def _check_score(engine: Engine, score: Tensor) -> None:
    if score.requires_grad and engine.tracker.varies(score):
        return
    if engine.tracker.varies(score):
        raise ModelError(
            "The score depends on the input only through gates (softmax, log, reciprocals, rounding), which keep the "
            "relevance that reaches them, or through what the model takes no gradient of (torch.no_grad(), "
            "torch.inference_mode(), detach()). Explain what goes into the last gate, for instance the logit instead "
            "of its softmax, and call the model without those."
        )
    raise ConstantScoreError(
        "The score does not depend on the input: the output is constant, or the model computes it without torch, under "
        "torch.no_grad() or behind .detach()."
    )


@contextmanager
def autocast_without_cache() -> Iterator[None]:
    """Autocast keeps what it made of weights until the caller's block ends, though they may change before."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


_stance_lock = threading.Lock()
_stance_users: list[Any] = []


@contextmanager
def as_written() -> Iterator[None]:
    """Compiled parts of the model run as written.

    torch's switch for it is the process's, so that the first thread to come sets it and the last to go restores it.
    Nothing is done where nothing was compiled.
    """
    if "torch._dynamo.eval_frame" not in sys.modules:
        yield
        return
    with _stance_lock:
        if not _stance_users:
            _stance_users.append(torch.compiler.set_stance("force_eager"))
            _stance_users[0].__enter__()
        _stance_users.append(None)
    try:
        yield
    finally:
        with _stance_lock:
            _stance_users.pop()
            if len(_stance_users) == 1:
                _stance_users.pop().__exit__(None, None, None)
