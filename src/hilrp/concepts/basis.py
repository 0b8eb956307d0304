"""What the concepts of a layer are: its channels, groups of them (heads), or directions among them.

A basis writes a layer's values ``h`` as ``sum_k a_k d_k`` and a remainder that it does not hold. With the gradient
``g`` at the layer, and ``D`` for the difference to the reference (without one, for the value itself), concept ``k``
holds the relevance ``D a_k (g . d_k)``, and the remainder ``g . D h`` less all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hilrp.attribution.forward_backward import Pass
from hilrp.method.ledger import Books
from hilrp.method.rules import Rules
from hilrp.util.errors import AuditError, HilrpError, InputError


class Written(Protocol):
    """The values of a layer, written in a basis; the channels are the last axis of all it is given and returns.

    Attributes:
        codes: How much of each concept is at each place, ``[...,K]``.
    """

    codes: Tensor

    @property
    def kept(self) -> dict[str, Tensor]:
        """What constants of an encoder kept of the relevance that `seeds` was last asked for, at each place."""
        ...

    def relevance(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """The relevance of each concept at each place, ``[...,K]``, and what the basis does not hold, ``[...]``."""
        ...

    def seeds(self, g: Tensor, concept: Tensor) -> Tensor:
        """The part of a gradient that carries one concept's relevance and no other's; the concept is one-hot."""
        ...

    def without(self, concepts: Sequence[int]) -> Tensor:
        """The values with some concepts as they are on the reference, or at zero where there is none."""
        ...


class Basis(Protocol):
    """A way to write a layer's values."""

    def count(self, channels: int) -> int:
        """How many concepts it has, in a layer of so many channels; raises if it does not fit."""
        ...

    def write(self, now: Tensor, before: Tensor | None) -> Written:
        """Values, and what they are on the reference."""
        ...


@dataclass(frozen=True)
class Groups:
    """Channels, or groups of them.

    Attributes:
        groups: The channels of each group; ``None`` for every channel by itself, a number for so many groups of
            neighbours (heads).
    """

    groups: int | tuple[tuple[int, ...], ...] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.groups, tuple):
            named = [channel for group in self.groups for channel in group]
            if not self.groups or not all(self.groups):
                raise InputError("basis: a group of channels is empty. Give at least one channel for each.")
            if len(set(named)) < len(named):
                twice = next(channel for channel in named if named.count(channel) > 1)
                raise InputError(
                    f"basis: channel {twice} is in a group twice, or in two groups: its relevance would count twice."
                )
        elif isinstance(self.groups, int) and self.groups < 1:
            raise InputError(f"basis={self.groups}: give one group or more.")

    def count(self, channels: int) -> int:
        """How many groups there are."""
        if isinstance(self.groups, tuple):
            beyond = [c for group in self.groups for c in group if not 0 <= c < channels]
            if beyond:
                raise InputError(f"basis: there is no channel {beyond[0]} in a layer of {channels}.")
            return len(self.groups)
        if self.groups is not None and channels % self.groups:
            raise InputError(
                f"basis={self.groups}: {channels} channels can't be cut into so many groups of one size. Give a "
                "divisor, or a list of lists of channels."
            )
        return self.groups or channels

    def write(self, now: Tensor, before: Tensor | None) -> _InGroups:
        """Sums over the channels of each group."""
        return _InGroups(self._members(now), now, before)

    def _members(self, like: Tensor) -> Tensor | None:
        """Group by channel, ones and zeros; ``None`` where every channel is one."""
        channels = like.shape[-1]
        if self.groups is None:
            return None
        if isinstance(self.groups, int):
            own = torch.arange(channels, device=like.device) // (channels // self.groups)
            return (own == torch.arange(self.groups, device=like.device)[:, None]).to(like.dtype)
        found = like.new_zeros(len(self.groups), channels)
        for number, group in enumerate(self.groups):
            found[number, list(group)] = 1
        return found


class _InGroups:
    def __init__(self, members: Tensor | None, now: Tensor, before: Tensor | None) -> None:
        self._members, self._now, self._before = members, now, before
        # Of a group of several channels, their length as a vector.
        self.codes = now if members is None else (now.square() @ members.mT).sqrt()
        self.kept: dict[str, Tensor] = {}

    def relevance(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Gradient times value, or its difference."""
        own = g * (self._now if self._before is None else self._now - self._before)
        if self._members is None:
            return own, own[..., :0].sum(-1)
        return own @ self._members.mT, (own * (1 - self._members.sum(0))).sum(-1)

    def _channels(self, concept: Tensor) -> Tensor:
        return concept if self._members is None else concept @ self._members

    def seeds(self, g: Tensor, concept: Tensor) -> Tensor:
        """The gradient of a group's own channels."""
        return g * self._channels(concept)

    def without(self, concepts: Sequence[int]) -> Tensor:
        """The values with those of some channels from the reference, or zero."""
        chosen = self.codes.new_zeros(self.codes.shape[-1])
        chosen[list(concepts)] = 1
        other = torch.zeros_like(self._now) if self._before is None else self._before
        return torch.where(self._channels(chosen) > 0, other, self._now)


@dataclass(frozen=True)
class Directions:
    """Directions among the channels: of a sparse autoencoder, NMF, PCA, or of your own.

    Attributes:
        decoder: The directions, ``[K,C]``.
        encoder: How much of each is in values ``[N,C]``: a matrix ``[K,C]``, or a module or function that returns codes
            ``[N,K]``. It runs under the rules, so that relevance goes through it as through the model. By default the
            pseudo-inverse of the decoder: the coefficients that leave the least remainder.

    Example:
        >>> basis = Directions(torch.eye(3)[:2])
        >>> basis.write(torch.tensor([[1.0, 2.0, 4.0]]), None).relevance(torch.ones(1, 3))
        (tensor([[1., 2.]]), tensor([4.]))
    """

    decoder: Tensor
    encoder: Tensor | nn.Module | Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        for name, t in (("decoder", self.decoder), ("encoder", self.encoder)):
            if not isinstance(t, Tensor):
                continue
            if t.ndim != 2 or not t.is_floating_point() or 0 in t.shape:
                raise InputError(
                    f"basis: the {name} has the shape {tuple(t.shape)} and the type {t.dtype}; give numbers [K,C], a "
                    "row for each concept."
                )
            if not bool(t.isfinite().all()):
                raise InputError(f"basis: the {name} holds values that aren't finite (NaN or infinite).")
        if not isinstance(self.decoder, Tensor):
            raise InputError(f"basis: the decoder is a {type(self.decoder).__name__}; give a tensor [K,C].")
        if isinstance(self.encoder, Tensor) and self.encoder.shape != self.decoder.shape:
            raise InputError(
                f"basis: the encoder has the shape {tuple(self.encoder.shape)}, the decoder "
                f"{tuple(self.decoder.shape)}. Give both as [K,C]."
            )

    def count(self, channels: int) -> int:
        """How many directions there are."""
        if self.decoder.shape[1] != channels:
            raise InputError(
                f"basis: the decoder has the shape {tuple(self.decoder.shape)}, and the layer {channels} channels. "
                f"Give [K,{channels}]."
            )
        return len(self.decoder)

    def write(self, now: Tensor, before: Tensor | None) -> _InDirections:
        """Codes along the directions."""
        decoder = self.decoder.detach().to(now)
        if self.encoder is None or isinstance(self.encoder, Tensor):
            matrix = _inverse(decoder) if self.encoder is None else self.encoder.detach().to(now)
            return _InDirections(decoder, _Linear(matrix, now, before), now, before)
        return _InDirections(decoder, _Encoder(self.encoder, len(decoder), now, before), now, before)


def _inverse(decoder: Tensor) -> Tensor:
    """The pseudo-inverse of directions; torch has none for numbers of 16 bits."""
    wide = decoder if decoder.dtype in (torch.float32, torch.float64) else decoder.float()
    return torch.linalg.pinv(wide.mT).to(decoder)


class _InDirections:
    def __init__(self, decoder: Tensor, encoded: _Linear | _Encoder, now: Tensor, before: Tensor | None) -> None:
        self._decoder, self._encoded, self._now = decoder, encoded, now
        self.codes = encoded.now
        self._held = encoded.now if encoded.before is None else encoded.now - encoded.before
        self._left = (now if before is None else now - before) - self._held @ decoder

    @property
    def kept(self) -> dict[str, Tensor]:
        """What the encoder's constants kept."""
        return self._encoded.kept

    def relevance(self, g: Tensor) -> tuple[Tensor, Tensor]:
        """Codes times the gradient along their directions."""
        return self._held * (g @ self._decoder.mT), (g * self._left).sum(-1)

    def seeds(self, g: Tensor, concept: Tensor) -> Tensor:
        """The gradient along a direction, through the encoder."""
        return self._encoded.back((g @ self._decoder.mT) * concept)

    def without(self, concepts: Sequence[int]) -> Tensor:
        """The values less what some directions add to them."""
        chosen = torch.zeros_like(self._decoder[:, 0])
        chosen[list(concepts)] = 1
        return self._now - (self._held * chosen) @ self._decoder


class _Linear:
    """Codes by a matrix."""

    def __init__(self, matrix: Tensor, now: Tensor, before: Tensor | None) -> None:
        self._matrix = matrix
        self.kept: dict[str, Tensor] = {}
        self.now, self.before = now @ matrix.mT, None if before is None else before @ matrix.mT

    def back(self, g: Tensor) -> Tensor:
        """Gradients of the values, of gradients of the codes."""
        return g @ self._matrix


class _Called(nn.Module):
    """A function of values ``[N,C]`` as a module."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.training = False

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


class _Encoder:
    """Codes by a module or function, which relevance goes through as through a part of the model."""

    def __init__(self, encoder: Callable[[Tensor], Tensor], count: int, now: Tensor, before: Tensor | None) -> None:
        self._shape, flat = now.shape, now.reshape(-1, now.shape[-1])
        relative = before is not None
        rules = Rules(linear="epsilon", constants="reference") if relative else Rules(linear="epsilon")
        reference = None if before is None else before.reshape(flat.shape)
        model = encoder if isinstance(encoder, nn.Module) else _Called(encoder)
        if model.training:
            raise InputError("basis: the encoder is in training mode. Call encoder.eval() first.")
        self._books = Books(len(flat))

        def refuse(error: AuditError) -> None:
            raise error

        def total(codes: Any) -> Tensor:
            if not isinstance(codes, Tensor) or codes.shape != (len(flat), count):
                found = tuple(codes.shape) if isinstance(codes, Tensor) else type(codes).__name__
                raise InputError(
                    f"basis: of values {tuple(flat.shape)} the encoder returned {found}; codes are "
                    f"{(len(flat), count)}, a column for each row of the decoder."
                )
            return codes.sum(1)

        try:
            self._run = Pass(model, flat, total, rules, self._books, refuse, len(flat), reference=reference, keep=[""])
        except HilrpError as error:
            if str(error).startswith("basis:"):
                raise
            raise InputError(f"basis: the encoder can't be run under the rules. {error}") from error
        kept = self._run.kept.get("")
        if kept is None:
            raise InputError("basis: the encoder's codes do not depend on the layer's values.")
        self._codes = kept.tensor
        kept.reading.remove()
        codes = kept.tensor.detach()
        self.now = codes.reshape(*self._shape[:-1], count)
        self.before = None if before is None else (codes - kept.value).reshape(self.now.shape)

    @property
    def kept(self) -> dict[str, Tensor]:
        """What constants kept of what went back last, at each place."""
        # Of gradients as they came, which may have been begun with another seed than the encoder's own.
        seed = self._books.seed
        return {kind: t.reshape(self._shape[:-1]) * seed for (_, kind), t in self._books.shares.items()}

    def back(self, g: Tensor) -> Tensor:
        """Gradients of the values, of gradients of the codes."""
        self._books.clear()
        (found,) = self._run.gradients_from(self._codes, g.reshape(-1, g.shape[-1]), retain=True)
        return torch.zeros(self._shape).to(g) if found is None else found.reshape(self._shape)


def named(basis: Any) -> Basis:
    """A basis as a user gives it.

    ``None`` for channels, a number of groups, lists of channels, a tensor of directions, or an object of this module.

    Example:
        >>> named(3), named([[0, 1], [5]])
        (Groups(groups=3), Groups(groups=((0, 1), (5,))))
    """
    if isinstance(basis, (Groups, Directions)):
        return basis
    if basis is None or (isinstance(basis, int) and not isinstance(basis, bool)):
        return Groups(basis)
    if isinstance(basis, Tensor):
        return Directions(basis)
    if isinstance(basis, (list, tuple)) and all(
        isinstance(group, (list, tuple, range)) and all(isinstance(c, int) for c in group) for group in basis
    ):
        return Groups(tuple(tuple(group) for group in basis))
    raise InputError(
        f"basis is a {type(basis).__name__}: give None for channels, a number of groups (heads), a list of lists of "
        "channels, a tensor [K,C] of directions, or hilrp.concepts.Directions(decoder, encoder)."
    )
