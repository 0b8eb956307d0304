"""A pass that is cut at a layer: what comes to it from the score, and what goes on from it to the input."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.forward_backward import Kept, Pass
from hilrp.concepts.basis import Basis, Written
from hilrp.concepts.layer import Layer
from hilrp.util.errors import ModelError
from hilrp.util.nested import tensors

#: How many backward passes run at once.
AT_ONCE = {"cpu": 8, "cuda": 32}
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Arrived:
    """Where the relevance of some gradients went.

    Attributes:
        maps: The map of the input, as `Explanation.map` has it.
        others: What arrived at inputs that have no map, by name, ``[B]``.
        kept: What constants kept of it, by kind, ``[B]``.
    """

    maps: Tensor
    others: dict[str, Tensor]
    kept: dict[str, Tensor]


class Cut:
    """A pass with its graph, and layers that it is cut at.

    Args:
        run: The pass, run forward.
        found: The explanation that it is a repetition of.
    """

    def __init__(self, run: Pass, found: Explanation) -> None:
        self.run, self._found = run, found
        self.batch = len(found)
        main, kind = found.main_of(found.relevance)
        self._main = next(i for i, t in enumerate(tensors(found.relevance)) if t is main)
        self._kind = kind
        self.image = main.shape[2:] if main.ndim == 4 else None
        for kept in run.kept.values():
            kept.reading.remove()  # batched gradients would be left in it

    def section(self, layer: Layer, basis: Basis) -> Section:
        """The pass as seen from a layer."""
        kept = layer.tensor_of(self.run.kept)
        rows = kept.rows if self.batch > 1 else len(kept.tensor)
        if not rows:
            raise ModelError(
                f"at: the samples of the batch have no rows of their own in `{layer}`, of shape "
                f"{tuple(kept.tensor.shape)}. Give one sample at a time."
            )
        axis = layer.channels(kept.tensor, self.image)
        return Section(self, layer, kept, axis, rows, basis, basis.count(kept.tensor.shape[axis]))

    @contextmanager
    def stopped_at(self, section: Section, sees: Callable[[Tensor], None]) -> Iterator[None]:
        """Within, gradients that come to a layer go no further: what goes on is what passes beside it.

        The hook has to run before those of the layer's own operation, which enter what its constants keep.
        """

        def stop(g: Tensor) -> Tensor:
            sees(g)
            return torch.zeros_like(g)

        with _first_hook(section.kept.tensor, stop):
            yield

    def arrived(self, gradients: list[Tensor | None]) -> Arrived:
        """The map of gradients at the input, and what else became of them; the ledger is begun anew."""
        several = tensors(self.run.relevance_of(gradients))
        kept = {kind: share for (_, kind), share in self.run.books.shares.items()}
        named = [*zip(self.run.input_names, several, strict=True)]
        others = {
            name: t.double().reshape(self.batch, -1).sum(1)
            for i, (name, t) in enumerate(named)
            if i != self._main and t.is_floating_point() and t.shape[:1] == (self.batch,)
        }
        self.run.books.clear()
        return Arrived(self._kind.map_of(several[self._main]), others, kept)

    def whole(self, sees: dict[Section, Callable[[Tensor], None]], stopped: Section | None) -> Arrived:
        """The backward pass from the score, with what comes to some layers; it stops at one of them, if any."""
        run = self.run
        run.books.clear()
        hooks = [each.kept.tensor.register_hook(see) for each, see in sees.items() if each is not stopped]
        try:
            seeds = torch.full_like(run.score, run.books.seed)
            if stopped is None:
                return self.arrived(run.gradients_from(None, seeds, retain=True))
            with self.stopped_at(stopped, sees[stopped]):
                return self.arrived(run.gradients_from(None, seeds, retain=True))
        finally:
            for hook in hooks:
                hook.remove()

    def close(self) -> None:
        """Lets go of the graph."""
        self.run.close()


@contextmanager
def _first_hook(t: Tensor, hook: Callable[[Tensor], Tensor]) -> Iterator[None]:
    before = [*(t._backward_hooks or {}).items()]
    handle = t.register_hook(hook)
    hooks = t._backward_hooks
    assert hooks is not None
    for key, each in before:  # torch runs them in the order in which they were entered
        del hooks[key]
        hooks[key] = each
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True, eq=False)
class Section:
    """A pass as seen from a layer.

    Attributes:
        cut: The pass.
        layer: The layer.
        kept: The layer's tensor.
        axis: Where its channels are.
        rows: How many of its rows are a sample's.
        basis: What concepts are.
        count: How many there are.
    """

    cut: Cut
    layer: Layer
    kept: Kept
    axis: int
    rows: int
    basis: Basis
    count: int

    @cached_property
    def written(self) -> Written:
        """The layer's values in the basis."""
        now = self.kept.tensor.detach()
        relative = self.cut.run.reference_score is not None
        return self.basis.write(self.laid(now), self.laid(now - self.kept.value) if relative else None)

    def relevance(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """What each concept holds of a gradient at the layer, ``[B,K]``, and what the basis does not, ``[B]``."""
        own, outside = self.written.relevance(self.laid(g))
        return self.by_sample(own), self.of_places(outside)

    def seeds(self, g: Tensor, concepts: Tensor) -> Tensor:
        """The part of a gradient that carries some concepts, given as a vector of ones and zeros."""
        return self.back(self.written.seeds(self.laid(g), concepts))

    @property
    def activations(self) -> Tensor:
        """The most that is found of each concept at a place of a sample, ``[B,K]``."""
        codes = self.written.codes
        return codes.reshape(self.cut.batch, -1, codes.shape[-1]).amax(1)

    def laid(self, t: Tensor) -> Tensor:
        """A tensor like the layer's with its channels last."""
        return t.movedim(self.axis, -1)

    def back(self, t: Tensor) -> Tensor:
        """The inverse of `laid`."""
        return t.movedim(-1, self.axis)

    def by_sample(self, t: Tensor) -> Tensor:
        """What each place of the layer has, ``[rows,...,K]``, summed over those of a sample, ``[B,K]``."""
        seed = self.cut.run.books.seed
        return t.double().reshape(self.cut.batch, -1, t.shape[-1]).sum(1) / seed

    def of_places(self, t: Tensor) -> Tensor:
        """The same without an axis of concepts, ``[B]``."""
        return self.by_sample(t.unsqueeze(-1))[:, 0]

    def down(self, g: Tensor, concepts: Tensor) -> Arrived:
        """Goes on from the layer with the part of a gradient that carries some concepts."""
        found = self.onward(self.seeds(g, concepts))
        own = {f"{kind} of the encoder": self.of_places(t) for kind, t in self.written.kept.items()}
        return replace(found, kept=found.kept | own)

    def onward(self, g: Tensor) -> Arrived:
        """Goes on from the layer with a gradient."""
        run = self.cut.run
        run.books.clear()
        return self.cut.arrived(run.gradients_from(self.kept.tensor, g, retain=True))


def many(
    one: Callable[[Tensor], Any], rows: Tensor, device: torch.device, at_once: int | None, tell: Progress | None
) -> tuple[list[Any], str | None]:
    """A function of each row, of as many rows at once as is asked for.

    All rows share what the graph has saved (`torch.vmap`). Where an operation has no batched form, or memory does not
    suffice, fewer rows run at once, down to one after the other.

    Args:
        one: From a row to a tree of tensors. A tree for each row is what comes out.
        rows: The rows.
        device: Where it runs.
        at_once: How many at once; ``None`` for what is usual on the device.
        tell: Told how many are done, and how many there are.

    Returns:
        The results, with a leading axis for each part of the rows, and why they did not run at once, if they didn't.
    """
    size, why = at_once or AT_ONCE.get(device.type, 1), None
    found: list[Any] = []
    done = 0
    while done < len(rows):
        part = rows[done : done + size]
        try:
            found.append(_together(one, part) if size > 1 else _stacked(one, part))
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size //= 2
            torch.cuda.empty_cache()
            continue
        except (RuntimeError, NotImplementedError) as error:
            if size == 1:
                raise
            size, why = 1, f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            continue
        done += len(part)
        if tell is not None:
            tell(done, len(rows))
    return found, why


def _together(one: Callable[[Tensor], Any], rows: Tensor) -> Any:
    with warnings.catch_warnings():
        # Of some kernels torch runs one row after the other, and says so.
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        return torch.vmap(one)(rows)


def _stacked(one: Callable[[Tensor], Any], rows: Tensor) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.unsqueeze(0), one(rows[0]))
