"""In-place calls, run out of place.

Rules attach to tensors, and a tensor that a rule has seen must not change. So ``x.relu_()`` runs ``x.relu()``,
and from then on the new tensor *stands for* ``x`` wherever the model uses it, and for the part of it that any
view of ``x`` shows. Values are the same as if ``x`` had been written to; nothing ever is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hilrp.errors import ModelError

if TYPE_CHECKING:
    from hilrp.engine import Engine

#: In-place calls that assign values and have no out-of-place twin.
_ASSIGN: dict[str, Any] = {"copy": lambda value, *_: value, "fill": lambda value: value, "zero": lambda: 0}
#: In-place calls that change the shape and not the values.
_RESHAPE = frozenset(["transpose", "t", "squeeze", "unsqueeze", "swapaxes", "swapdims"])


def run(engine: Engine, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an in-place call (or one with ``out=``) and returns the tensor that stands for its target."""
    if isinstance(kwargs.get("out"), Tensor):
        target = kwargs["out"]
        new = engine.apply(func, args, {key: value for key, value in kwargs.items() if key != "out"})
    else:
        target = args[0]
        if name == "setitem":
            new = engine.apply(set_item, args, kwargs)
        elif name in _ASSIGN:
            new = engine.apply(set_item, (target, (...,), _ASSIGN[name](*args[1:], *kwargs.values())), {})
        else:
            new = engine.apply(_twin(name, engine.path), args, kwargs)
    if name in _RESHAPE:
        engine.tracker.alias(target, new)
        return new
    if engine.tracker.is_detached(target):
        raise ModelError(
            f"`{name}` in {engine.path or '(model)'} writes to a tensor that shares its memory with another through detach() or "
            ".data, which hilrp can't follow. Write to a clone() of it."
        )
    if new.dtype != target.dtype:
        new = engine.apply(Tensor.to, (new, target.dtype), {})
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
    if new is target:  # an identity, such as dropout in evaluation
        return target
    root = target if target._base is None else target._base
    views = [view for view in engine.tracker.views(root) if view is not target]
    # A base that the model never held (a rule made it) needs no keeping.
    if not views and (root is target or not (engine.tracker.varies(root) or root.is_leaf)):
        engine.tracker.alias(target, new)
        return new

    new_root = engine.apply(write, (engine.tracker.current(root), new, root.stride(), *_place(target, root)), {})
    engine.tracker.alias(root, new_root)
    for view in (target, *views):
        if view is not root:
            refresh(engine, view)
    return engine.tracker.current(target)


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


def write(root: Tensor, part: Tensor, strides: tuple[int, ...], *place: Any) -> Tensor:
    """A copy of ``root``, laid out with ``strides``, in which the view at ``place`` holds ``part``."""
    copy = torch.empty_strided(root.shape, strides, dtype=root.dtype, device=root.device)
    copy.copy_(root)
    copy.as_strided(*place).copy_(part)
    return copy
