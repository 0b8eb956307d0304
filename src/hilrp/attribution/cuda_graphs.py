"""Explanations recorded as CUDA graphs.

At small batches a GPU waits for Python between its kernels. A graph of the whole explanation, forward, backward and
books, is launched as one. It is recorded when inputs of the same form come for the second time: the first run, as it
always was, is what it warms up with.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from hilrp.attribution.checks import tf32
from hilrp.attribution.forms import of_registered
from hilrp.method.sample_axis import copied, is_one_for_all
from hilrp.targets.classes import Checked
from hilrp.util.memory import shortage
from hilrp.util.nested import map_tensors, tensors

_Result = TypeVar("_Result")

#: How many forms of input are kept: the usual one, and the rest of a data set that doesn't divide evenly.
_KEPT = 4
_RECORDING = threading.Lock()


class Snapshot:
    """What a recording takes for granted of a model: its modules, and where its parameters are in memory.

    With ``counters``, also what modules have as plain attributes, with all that is in their dictionaries, lists and
    configurations: a model that counts its calls is never the same.
    """

    def __init__(self, model: nn.Module, counters: bool = False) -> None:
        self._modules = [(module, module.training) for module in model.modules()]
        tables: list[Any] = []
        for m, _ in self._modules:
            tables += [m._modules, m._parameters, m._buffers, m._forward_hooks, m._forward_pre_hooks]
        self._sizes = [(table, len(table)) for table in tables]
        self._members = [(table, name, member) for table in tables for name, member in table.items()]
        # Tensors that are plain attributes, such as masks that a model keeps.
        own = [vars(module) for module, _ in self._modules]
        self._members += [(table, name, t) for table in own for name, t in table.items() if isinstance(t, Tensor)]
        plain = [(table, name, value) for table in own for name, value in table.items() if name not in _OF_MODULES]
        self._plain = [(table, name, _frozen(value)) for table, name, value in plain] if counters else []
        self._sizes += [(table, len(table)) for table in own] if counters else []
        self._tensors = [(t, _place(t)) for _, _, t in self._members if isinstance(t, Tensor)]
        self.devices = {t.device for t, _ in self._tensors if t.is_cuda}

    def holds(self) -> bool:
        """Whether all is as it was. Values of parameters may have changed: a graph reads them where they are."""
        return (
            all(len(table) == size for table, size in self._sizes)
            and all(table.get(name) is member for table, name, member in self._members)
            and all(_place(t) == place for t, place in self._tensors)
            and all(module.training == before for module, before in self._modules)
            and all(_frozen(table.get(name)) == value for table, name, value in self._plain)
        )


#: Attributes that every module has, and that are looked at elsewhere or don't matter.
_OF_MODULES = frozenset(vars(nn.Module()))


def _frozen(value: Any, depth: int = 4) -> Hashable:
    """What a plain attribute holds, in a form that can be compared later: the contents of containers and settings."""
    if value is None or isinstance(value, (int, float, str, torch.dtype, torch.device)):
        return type(value), value
    if depth and isinstance(value, Mapping):
        return type(value), tuple((_frozen(k, depth - 1), _frozen(v, depth - 1)) for k, v in value.items())
    if depth and isinstance(value, (tuple, list)):
        return type(value), tuple(_frozen(each, depth - 1) for each in value)
    if depth and isinstance(value, (set, frozenset)):
        return type(value), frozenset(_frozen(each, depth - 1) for each in value)
    if depth and not callable(value) and not isinstance(value, Tensor) and hasattr(value, "__dict__"):
        return id(value), _frozen(vars(value), depth - 1)
    return id(value)


def _place(t: Tensor) -> tuple[Any, ...]:
    return t.data_ptr(), t.dtype, t.stride(), t.shape


class _Recording(Generic[_Result]):
    """A step, recorded with its inputs and its result at fixed places in memory."""

    def __init__(self, inputs: Any, step: Callable[[Any], _Result], pool: Any) -> None:
        self._inputs = map_tensors(copied, inputs)
        self._graph = torch.cuda.CUDAGraph()
        stream, current = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream), _never_asking():
            step(self._inputs)  # kernels and libraries make what they need for a stream when they first meet it
        current.wait_stream(stream)
        try:
            # Other threads may go on with what they do with the device.
            recorded = torch.cuda.graph(self._graph, pool=pool, stream=stream, capture_error_mode="thread_local")
            with _no_collection(), recorded:
                self._result = step(self._inputs)
        except BaseException:
            torch.cuda.set_stream(current)  # torch does so only where a recording succeeds
            _end_recording()
            raise

    def replay(self, inputs: Any) -> _Result:
        """The result for other inputs, in memory of its own."""
        for held, t in zip(tensors(self._inputs), tensors(inputs), strict=True):
            if is_one_for_all(held):
                held[:1].copy_(t[:1])
            else:
                held.copy_(t)
        self._graph.replay()
        result: _Result = map_tensors(Tensor.clone, self._result)
        return result


class Recorder(Generic[_Result]):
    """Recordings of a step on a model, by the form of the inputs.

    Args:
        model: The model.
        automatic: Whether nobody has asked for recordings: then there are none where they could be noticed.

    Attributes:
        failure: Why nothing can be recorded: a model that asks the device for numbers while it runs can't.
    """

    def __init__(self, model: nn.Module, automatic: bool = False) -> None:
        self._model, self.automatic = model, automatic
        self._snapshot: Snapshot | None = None
        self._recordings: OrderedDict[Hashable, _Recording[_Result]] = OrderedDict()
        self._forms_seen: set[Hashable] = set()
        self._too_large: set[Hashable] = set()
        self._lock = threading.Lock()
        self._pool: Any = None
        self._done: torch.cuda.Event | None = None
        self.failure: str | None = None
        self._recording_thread: int | None = None

    @property
    def is_recording(self) -> bool:
        """Whether what this thread runs is being recorded, so that nothing may be asked of the device."""
        return self._recording_thread == threading.get_ident()

    def same_model(self) -> bool:
        """Whether the model is as it was when this was last asked.

        If it isn't, what was recorded of it is forgotten.
        """
        with self._lock:
            if self._snapshot is not None and self._snapshot.holds():
                return True
            self._snapshot, self._pool, self.failure = Snapshot(self._model, self.automatic), None, None
            self._recordings.clear()
            self._forms_seen.clear()
            self._too_large.clear()
            return False

    def is_welcome(self, device: torch.device) -> bool:
        """Whether a recording may be made: always, if it was asked for.

        Else not of a model with forward hooks, which would run once, nor where it would take memory that is scarce.
        """
        if not self.automatic:
            return True
        hooks = torch.nn.modules.module
        if hooks._global_forward_hooks or hooks._global_forward_pre_hooks:
            return False
        if any(m._forward_hooks or m._forward_pre_hooks for m in self._model.modules()):
            return False
        if self._recordings:
            return True  # their memory is taken already
        free, total = torch.cuda.mem_get_info(device)
        free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free >= total / 4

    @property
    def devices(self) -> set[torch.device]:
        """The GPUs that the model's tensors are on."""
        return set() if self._snapshot is None else self._snapshot.devices

    def run(self, inputs: Any, step: Callable[[Any], _Result]) -> _Result | None:
        """The step's result by its recording, of a model that is known to be the `same_model`.

        ``None`` if there is none, and the step is to be run as it is.
        """
        key = form(inputs)
        with self._lock:
            if key is None or key in self._too_large or self.failure is not None:
                return None
            recording = self._recordings.get(key)
            if recording is None and key in self._forms_seen:
                recording = self._record(key, inputs, step)
            self._forms_seen.add(key)
            if recording is None:
                return None
            self._recordings.move_to_end(key)
            # Recordings share their memory: one at a time, whatever stream it is on.
            if self._done is not None:
                torch.cuda.current_stream().wait_event(self._done)
            result = recording.replay(inputs)
            self._done = torch.cuda.current_stream().record_event()
            return result

    def meet(self, inputs: Any) -> None:
        """Says that the step has run on inputs of this form: the next ones are recorded."""
        with self._lock:
            self._forms_seen.add(form(inputs))

    def _record(self, key: Hashable, inputs: Any, step: Callable[[Any], _Result]) -> _Recording[_Result] | None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self._recording_thread = threading.get_ident()
        try:
            self._recordings[key] = _Recording(inputs, step, self._pool)
        except Exception as error:
            if shortage(error):
                self._too_large.add(key)  # a recording needs more than the step alone
                torch.cuda.empty_cache()
                return None
            self.failure = f"{type(error).__name__}: {error}".splitlines()[0]
            return None
        finally:
            self._recording_thread = None
        while len(self._recordings) > _KEPT:
            self._recordings.popitem(last=False)
        return self._recordings[key]


@contextmanager
def _never_asking() -> Iterator[None]:
    """Raises if what runs within asks the device for numbers.

    A recording would fail of it, and leave torch in disorder.
    """
    before, thread, asked = torch.cuda.get_sync_debug_mode(), threading.get_ident(), []
    show = warnings.showwarning

    def collect(message: Warning | str, *details: Any, **more: Any) -> None:
        if threading.get_ident() == thread and "called a synchronizing CUDA operation" in str(message):
            asked.append(message)
        else:
            show(message, *details, **more)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", ".*called a synchronizing CUDA operation")
        warnings.filterwarnings("ignore", ".*Synchronization debug mode is a prototype")
        warnings.showwarning = collect
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    if asked:
        raise RuntimeError("the model asks the device for numbers while it runs")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Collects garbage now and not within.

    An earlier graph in it, freed while another is recorded, would spoil that one.
    """
    with _RECORDING:  # collection is the whole process's
        gc.collect()
        before = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if before:
                gc.enable()


def _end_recording() -> None:
    """A recording that fails leaves torch's random generator in the belief that it is recorded.

    One that succeeds ends that.
    """
    with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros(1, device="cuda")


def form(inputs: Any) -> Hashable | None:
    """What must be the same for a recording to be used.

    Names, shapes, types, devices, what isn't a tensor, and how torch is told to compute.

    ``None`` if there is something among the inputs that nobody knows how to compare.
    """
    if not _comparable(inputs):
        return None
    kinds = repr(map_tensors(lambda t: f"{tuple(t.shape)} {t.stride()} {t.dtype} {t.device}", inputs))
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    attention = cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()
    autocast = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda")
    exact = cudnn.enabled, cudnn.benchmark, cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    return kinds, autocast, tf32(), exact, attention, of_registered()


def _comparable(tree: Any) -> bool:
    if isinstance(tree, Mapping):
        return all(map(_comparable, tree.values()))
    if isinstance(tree, (tuple, list)):
        return all(map(_comparable, tree))
    if isinstance(tree, Checked):
        return True
    return isinstance(tree, (Tensor, int, float, str, type(None)))
