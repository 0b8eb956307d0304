"""In-place calls, run out of place.

Rules attach to tensors, and a tensor that a rule has seen must not change. So ``x.relu_()`` runs ``x.relu()``,
and from then on the new tensor *stands for* ``x`` wherever the model uses it, and for the part of it that any
view of ``x`` shows. Values are the same as if ``x`` had been written to; nothing ever is.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.errors import ModelError
from hilrp.tracking import Info
from hilrp.tree import map_tensors, tensors

if TYPE_CHECKING:
    from hilrp.engine import Engine

#: In-place calls that assign a value to all of their target.
_ASSIGN: dict[str, Any] = {"copy": lambda value, *_: value, "fill": lambda value: value, "zero": lambda: 0}
#: In-place calls that change the shape and not the values.
_RESHAPE = frozenset(["transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims"])


def written(name: str, works_in_place: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors that a call writes to."""
    return list(args[:1]) if works_in_place or name == "setitem" else tensors(kwargs.get("out"))


def run(engine: Engine, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an in-place call (or one with ``out=``) and returns the tensor that stands for its target."""
    if tensors(kwargs.get("out")):
        rest = {key: value for key, value in kwargs.items() if key != "out"}
        made = engine.apply(func, args, rest)
        pairs = zip(tensors(kwargs["out"]), tensors(made), strict=True)
        stands = {id(new): _assign(engine, target, new, name) for target, new in pairs}
        return map_tensors(lambda t: stands[id(t)], made)
    target = args[0]
    if name == "setitem":
        whole = _is_whole(args[1])
        new = args[2] if whole else engine.apply(set_item, args, kwargs)
    elif name in _ASSIGN:
        whole, new = True, _ASSIGN[name](*args[1:], *kwargs.values())
    else:
        whole, new = False, engine.apply(_twin(name, engine.path), args, kwargs)
    if whole:
        # Nothing of the target is left: what stands for it is the value, in the target's form.
        new = engine.apply(laid_out, (_tensor(new, target), *_form(target)), {})
    if name in _RESHAPE:
        engine.tracker.alias(target, new)
        return new
    return _assign(engine, target, new, name)


def _is_whole(index: Any) -> bool:
    """Whether an index means all of a tensor."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


def _tensor(value: Any, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else torch.tensor(value, dtype=like.dtype, device=like.device)


def _assign(engine: Engine, target: Tensor, new: Tensor, name: str) -> Tensor:
    """Lets ``new`` stand for ``target``, in the target's type and strides, as if it had been written there."""
    if engine.tracker.is_detached(target):
        raise ModelError(
            f"`{name}` in {engine.path or '(model)'} writes to a tensor that shares its memory with another through detach() or "
            ".data, which hilrp can't follow. Write to a clone() of it."
        )
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
    root = target if target._base is None else target._base
    views = [view for view in tracker.views(root) if view is not target]
    # A base that the model never held (a rule made it) needs no keeping.
    if not views and (root is target or not (tracker.varies(root) or root.is_leaf)):
        tracker.alias(target, new)
        return new

    family = [root, *views]
    known = {id(view): tracker.info(tracker.current(view)) for view in family}
    overlaps = {id(view): _overlap(view, target, root) for view in family}
    written = tracker.info(new)
    whole = overlaps[id(root)] is Overlap.COVERED
    kept = None if whole else tracker.current(root)
    new_root = engine.apply(write, (kept, new, tuple(root.shape), root.stride(), *_place(target, root)), {})
    tracker.alias(root, new_root)
    for view in (target, *views):
        if view is not root:
            refresh(engine, view)
    for view in family:
        _restore(tracker.info(tracker.current(view)), known[id(view)], written, overlaps[id(view)])
    if target is not root:
        _restore(tracker.info(tracker.current(target)), None, written, Overlap.COVERED)
    return tracker.current(target)


class Overlap(Enum):
    """How much of a view was written to."""

    COVERED = "covered"
    PARTLY = "partly"
    APART = "apart"


def _overlap(view: Tensor, target: Tensor, root: Tensor) -> Overlap:
    """How much of ``view`` a write to ``target`` changes; both are views of ``root``, or ``root`` itself."""
    place = _place(target, root)
    if target.numel() == root.numel() or place == _place(view, root):
        return Overlap.COVERED
    extent = 1 + sum((size - 1) * step for size, step in zip(root.shape, root.stride(), strict=True))
    written = torch.zeros(extent, dtype=torch.bool)
    written.as_strided(*place).fill_(True)
    own = written.as_strided(*_place(view, root))
    if bool(own.all()):
        return Overlap.COVERED
    return Overlap.PARTLY if bool(own.any()) else Overlap.APART


def _restore(info: Info | None, before: Info | None, written: Info | None, overlap: Overlap) -> None:
    """Gives what stands for a view the gate level that it has where nothing is written in place.

    What was written over has the level of what was written, what wasn't touched keeps its own, and a mixture has the lower, as a
    concatenation would.
    """
    if info is None:
        return
    levels = {Overlap.COVERED: [written], Overlap.PARTLY: [before, written], Overlap.APART: [before]}[overlap]
    if before is not None and (info.layout is None or overlap is not Overlap.COVERED):
        info.layout = before.layout  # the samples are where they were
    dependent = [each for each in levels if each is not None]
    carrying = [each for each in dependent if each.carries]
    if dependent:
        info.level = min(each.level for each in carrying or dependent)


def _form(t: Tensor) -> tuple[Any, ...]:
    return tuple(t.shape), t.stride(), t.dtype, t.device


def _place(view: Tensor, root: Tensor) -> tuple[Any, ...]:
    return tuple(view.shape), view.stride(), view.storage_offset() - root.storage_offset()


def refresh(engine: Engine, view: Tensor) -> Tensor:
    """Takes a view anew from the tensor that stands for its base."""
    root = view._base
    assert root is not None
    new = engine.apply(torch.as_strided, (engine.tracker.current(root), *_place(view, root)), {})
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


def write(
    root: Tensor | None, part: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], *place: Any
) -> Tensor:
    """A copy of ``root``, laid out with ``strides``, in which the view at ``place`` holds ``part``; without a root, of ``part`` alone."""
    copy = torch.empty_strided(shape, strides, dtype=part.dtype, device=part.device)
    if root is not None:
        copy.copy_(root)
    copy.as_strided(*place).copy_(part)
    return copy
