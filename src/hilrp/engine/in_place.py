"""In-place calls, run out of place.

Rules attach to tensors, and a tensor that a rule has seen must not change. So ``x.relu_()`` runs ``x.relu()``,
and from then on the new tensor *stands for* ``x`` wherever the model uses it, and for the part of it that any
view of ``x`` shows. Values are the same as if ``x`` had been written to; nothing ever is.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from hilrp.engine.tensor_info import Info, Tracker
from hilrp.method.call import Level
from hilrp.method.graph import Edge, edge_of, stems_from
from hilrp.util.errors import ModelError
from hilrp.util.nested import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine.engine import Engine

#: In-place calls that assign a value to all of their target.
_ASSIGN: dict[str, Any] = {"copy": lambda value, *_: value, "fill": lambda value: value, "zero": lambda: 0}
#: In-place calls that write to places of their target.
_PARTIAL = frozenset(
    "setitem masked_fill masked_scatter index_fill index_copy index_put index_add scatter scatter_add".split()
)
#: In-place calls that change the shape and not the values.
_RESHAPE = frozenset(["transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims", "as_strided"])
#: In-place calls whose kernel rounds differently from the one that works out of place.
_ROUNDED = frozenset(["addmm", "baddbmm", "addbmm", "addmv", "addr"])
#: Calls whose kernel may round differently where they have an ``out=``.
_PRODUCTS = _ROUNDED | frozenset(["matmul", "mm", "bmm", "mv", "dot", "linear"])


def written(name: str, works_in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a call writes to."""
    return list(args[:1]) if works_in_place or name == "setitem" else tensors(kwargs.get("out"))


def with_target_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of an in-place call with what it writes to in the first place, though it was given by name."""
    name = next((name for name in ("input", "self", "tensor") if name in kwargs), None)
    return (args, kwargs) if name is None else ((kwargs[name],), {k: v for k, v in kwargs.items() if k != name})


def run(engine: Engine, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an in-place call (or one with ``out=``) and returns the tensor that stands for its target."""
    if tensors(kwargs.get("out")):
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        # An overload that is made for `out=` has one beside it that is not.
        made = engine.apply(func.overloadpacket if isinstance(func, OpOverload) else func, args, rest)
        if name in _PRODUCTS:
            made = engine.exactly(made, _written_out(func, args, kwargs))
        pairs = zip(tensors(kwargs["out"]), tensors(made), strict=True)
        stands = {id(new): _assign(engine, target, new) for target, new in pairs}
        return map_tensors(lambda t: stands[id(t)], made)
    target = args[0]
    if name.endswith("="):
        raise ModelError(
            f"Something in {engine.path or '(model)'} sets a tensor's `.{name} ...`, which hilrp can't follow. Make a "
            "new tensor, or write with copy_()."
        )
    if engine.tracker.is_detached(target) and name not in _RESHAPE:
        raise ModelError(
            f"`{name}` in {engine.path or '(model)'} writes to a tensor that shares its memory with another through "
            "detach() or .data, which hilrp can't follow. Write to a clone() of it."
        )
    if name == "setitem" and _is_view(args[1]):
        return _write_part(engine, target, args[1], args[2])
    if name in _PARTIAL and not torch.is_grad_enabled():
        new = _written_without_gradients(engine, name, args, kwargs)
    elif name == "setitem" and _is_masked(args):
        shape = (*args[1].shape, *[1] * (target.ndim - args[1].ndim))
        mask = engine.apply(Tensor.reshape, (args[1], shape), {})
        new = engine.apply(torch.masked_fill, (target, mask, args[2]), {})
    elif name == "setitem":
        new = engine.apply(set_item, args, kwargs)
    elif name in _ASSIGN:
        # Nothing of the target is left: what stands for it is the value, in the target's form.
        value = _ASSIGN[name](*args[1:], *kwargs.values())
        new = engine.apply(laid_out, (_tensor(value, target), *_form(target)), {})
    else:
        new = engine.apply(_twin(name, engine.path), args, kwargs)
    if name in _ROUNDED:
        new = engine.exactly(new, _written(func, args, kwargs))
    if name in _RESHAPE:
        engine.tracker.reshape(target, new)
        return new
    return _assign(engine, target, new)


def _written_without_gradients(engine: Engine, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A write to parts of a tensor where the model takes no gradients: what is not written to keeps its graph."""

    def bare(t: Tensor) -> Tensor:
        return engine.apply(Tensor.detach, (t,), {}) if t.is_floating_point() or t.is_complex() else t

    rest, options = map_tensors(bare, (args[1:], kwargs))
    function = set_item if name == "setitem" else _twin(name, engine.path)
    with torch.enable_grad():
        new: Tensor = engine.apply(function, (args[0], *rest), options)
    return new


def _is_masked(args: tuple[Any, ...]) -> bool:
    """Whether ``tensor[mask] = number`` is meant."""
    _, index, value = args
    number = value.ndim == 0 if isinstance(value, Tensor) else isinstance(value, (int, float))
    return isinstance(index, Tensor) and index.dtype == torch.bool and number


def run_on_copies(
    engine: Engine, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], written: list[Tensor]
) -> Any:
    """Runs a call that writes to constants on copies of them, which then stand for them.

    A graph may need them as they were.
    """
    copies = {id(t): _copy(t) for t in written}
    with torch.no_grad():
        own = map_tensors(lambda t: copies.get(id(t), t), (args, kwargs))
        out = func(*own[0], **own[1])
    for t in written:
        engine.tracker.make(copies[id(t)])
        _replace(engine, t, copies[id(t)])
    return map_tensors(engine.tracker.current, out)


def _copy(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The value that an in-place call gives, written to a copy."""
    with torch.no_grad():
        value: Tensor = func(_copy(args[0]), *args[1:], **kwargs)
        return value


def _written_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The value that a call with ``out=`` gives, written to a copy."""
    with torch.no_grad():
        value: Tensor = func(*args, **kwargs | {"out": _copy(kwargs["out"])})
        return value


def _is_view(index: Any) -> bool:
    """Whether an index gives a view of a tensor, and no copy."""
    parts = index if isinstance(index, tuple) else (index,)
    plain = (part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)
    return all(plain) and not any(isinstance(part, bool) for part in parts)


def _write_part(engine: Engine, target: Tensor, index: Any, value: Any) -> None:
    """``target[index] = value`` for a part that is a view."""
    with torch.no_grad():
        part = target[index]
    if part.numel():
        form = tuple(part.shape), torch.empty(part.shape, device="meta").stride(), part.dtype, part.device
        _replace(engine, part, engine.apply(laid_out, (_tensor(value, part), *form), {}))


def _tensor(value: Any, like: Tensor) -> Tensor:
    # Made on the device: a number that is copied there could not be recorded.
    return value if isinstance(value, Tensor) else torch.full((), value, dtype=like.dtype, device=like.device)


def _assign(engine: Engine, target: Tensor, new: Tensor) -> Tensor:
    """Lets ``new`` stand for ``target``, in the target's type and strides, as if it had been written there."""
    if new is target:  # an identity, such as dropout in evaluation
        return target
    if new.shape == target.shape and (new.dtype != target.dtype or new.stride() != target.stride()):
        new = engine.apply(laid_out, (new, *_form(target)), {})
    return _replace(engine, target, new)


def _twin(name: str, path: str) -> Any:
    for space in (torch.Tensor, torch, torch._C._nn):
        for own in (name, f"bitwise_{name}"):
            if hasattr(space, own):
                return getattr(space, own)
    raise ModelError(
        f"The in-place operation `{name}_` in {path or '(model)'} has no out-of-place form in torch. "
        "Write that line of the model without it, for instance with torch.where or torch.cat."
    )


def _replace(engine: Engine, target: Tensor, new: Tensor) -> Tensor:
    """Lets ``new`` stand for ``target``, and brings its base and the other views of it up to date."""
    tracker = engine.tracker
    held = tracker.root(target)
    root = target if held is None else held
    views = [view for view in tracker.views(root) if view is not target]
    for view in (target, *views):
        _check_form(engine, view, root)
    # A base that the model never held (a rule made it) needs no keeping.
    if not target.numel() or (not views and (root is target or not (tracker.varies(root) or root.is_leaf))):
        tracker.alias(target, new)
        return new

    family = [root, *views]
    layouts = {id(view): tracker.layout(tracker.memory(view)) for view in family}
    kept = None if target.numel() == root.numel() else tracker.memory(root)
    pieces = _pieces_of(engine, root).with_write(_place(target, root), Piece.of(new, tracker.info(new)))
    place = (tuple(root.shape), root.stride(), *_place(target, root))
    # What is not written to keeps its graph, also where the model takes no gradients.
    with torch.inference_mode(False), torch.enable_grad():
        new_root = engine.apply_to(write, (kept, new, *place), {})
    tracker.alias(root, new_root)
    tracker.pieces.pop(id(root), None)
    tracker.pieces[id(new_root)] = weakref.ref(new_root), pieces
    for view in (target, *views):
        if view is not root:
            refresh(engine, view)
    for view in (target, *family):
        current = tracker.memory(view)
        info, shown = tracker.info(current), pieces.shown(_place(view, root))
        if info is not None and not tracker.is_detached(view):
            info.level = _level(shown)
            info.ends = info.ends or not any(piece.carries for piece in shown)
            info.carries = info.carries and not info.ends
            info.layout = info.layout or layouts.get(id(view))  # the samples are where they were
            stems_from(current, [piece.edge for piece in shown])
    return tracker.current(target)


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements of a tensor that were written at once: where they are from in torch's graph, and their gate level.

    Those that are constants, or carry no relevance, have no say where others carry.
    """

    edge: Edge
    level: Level
    carries: bool

    @classmethod
    def of(cls, source: Tensor, info: Info | None) -> Piece:
        """What is written from a tensor."""
        level = Level.CONSTANT if info is None else info.level
        return cls(edge_of(source), level, info is not None and info.carries and level is not Level.CONSTANT)


@dataclass(frozen=True, slots=True)
class Pieces:
    """What a tensor of which parts were written to is made of, element by element.

    So that a tensor whose halves are made gates one after the other is a gate in the end, one that is partly a gate is
    a signal, as a concatenation of both would be, and a half depends on nothing that is in the other alone.

    Attributes:
        pieces: What was written, and what was there before.
        owners: For each element in memory, the number of its piece.
    """

    pieces: tuple[Piece, ...]
    owners: Tensor

    def with_write(self, place: tuple[Any, ...], piece: Piece) -> Pieces:
        """The same after a write to a place."""
        owners = self.owners.clone()
        owners.as_strided(*place).fill_(len(self.pieces))
        return Pieces((*self.pieces, piece), owners)

    def shown(self, place: tuple[Any, ...]) -> list[Piece]:
        """The pieces that a view shows."""
        counts = torch.bincount(self.owners.as_strided(*place).flatten(), minlength=len(self.pieces))
        return [piece for piece, count in zip(self.pieces, counts.tolist(), strict=True) if count]


def pieces_shown(tracker: Tracker, view: Tensor) -> list[Piece]:
    """The pieces that a view of a tensor shows of which parts were written to; none, if it is no such view."""
    base = view._base
    reference, pieces = tracker.pieces.get(id(base), (None, None))
    if base is None or pieces is None or reference is None or reference() is not base or not view.numel():
        return []
    return pieces.shown(_place(view, base))


def look_at_pieces(tracker: Tracker, view: Tensor, level: Level) -> tuple[Level, bool]:
    """The gate level of a result, and whether no gradient comes through it.

    Of a view of a tensor that was written to in parts, both are those of the pieces that it shows, and it stems from
    these alone.
    """
    shown = pieces_shown(tracker, view)
    if not shown:
        return level, False
    stems_from(view, [piece.edge for piece in shown])
    return _level(shown), not any(piece.carries for piece in shown)


def _level(shown: list[Piece]) -> Level:
    return min(piece.level for piece in [piece for piece in shown if piece.carries] or shown)


def _pieces_of(engine: Engine, root: Tensor) -> Pieces:
    """The pieces of the tensor that stands for a root; of one that was not written to, itself."""
    current = engine.tracker.memory(root)
    reference, pieces = engine.tracker.pieces.get(id(current), (None, None))
    if pieces is not None and reference is not None and reference() is current:
        return pieces
    extent = 1 + sum((size - 1) * step for size, step in zip(root.shape, root.stride(), strict=True))
    whole = Piece.of(current, engine.tracker.info(current))
    return Pieces((whole,), torch.zeros(extent, dtype=torch.int32, device="cpu"))


def _form(t: Tensor) -> tuple[Any, ...]:
    return tuple(t.shape), t.stride(), t.dtype, t.device


def _check_form(engine: Engine, view: Tensor, root: Tensor) -> None:
    """Raises where a view shows other numbers than those in memory: parts of complex ones, conjugates."""
    if view.dtype != root.dtype or view.is_conj() != root.is_conj() or view.is_neg() != root.is_neg():
        raise ModelError(
            f"Something in {engine.path or '(model)'} writes to a complex tensor of which there is a view as real "
            "numbers or as its conjugate (real, imag, view_as_real, conj), or to that view, which hilrp can't "
            "follow. Write to a clone() of it, or make a new one (torch.complex)."
        )


def _place(view: Tensor, root: Tensor) -> tuple[Any, ...]:
    return tuple(view.shape), view.stride(), view.storage_offset() - root.storage_offset()


def from_memory(
    engine: Engine, input: Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of as_strided, which reads the memory of a tensor, be it outside of it.

    Of a view, that of its base.
    """
    base = input._base
    offset = input.storage_offset() if storage_offset is None else storage_offset
    whole = input if base is None or not engine.tracker.varies(base) else base
    return (whole, size, stride, offset), {}


def refresh(engine: Engine, view: Tensor) -> Tensor:
    """Takes a view anew from the tensor that stands for its base."""
    root = engine.tracker.root(view)
    assert root is not None
    _check_form(engine, view, root)
    grad = torch.is_grad_enabled() or view.requires_grad
    with torch.inference_mode(False), torch.set_grad_enabled(grad):
        new = engine.apply_to(torch.as_strided, (engine.tracker.memory(root), *_place(view, root)), {})
    if engine.tracker.is_detached(view):
        new = engine.apply(Tensor.detach, (new,), {})
    engine.tracker.alias(view, new)
    return new


def set_item(tensor: Tensor, index: Any, value: Any) -> Tensor:
    """``tensor[index] = value`` on a copy."""
    tensor = tensor.clone()
    tensor[index] = value
    return tensor


def laid_out(
    value: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """A copy of ``value``, broadcast to a shape, with these strides, of that type and on that device."""
    copy = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    # Where a value has more axes than what it is assigned to, the first ones have the length one.
    return copy.copy_(value.reshape(value.shape[max(value.ndim - len(shape), 0) :]))


def write(root: Tensor | None, part: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], *place: Any) -> Tensor:
    """A copy of ``root``, laid out with ``strides``, in which the view at ``place`` holds ``part``.

    Without a root, of ``part`` alone.
    """
    copy = torch.empty_strided(shape, strides, dtype=part.dtype, device=part.device)
    if root is not None:
        copy.copy_(root)
    copy.as_strided(*place).copy_(part)
    return copy
