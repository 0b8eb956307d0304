"""What kind of thing an input is: a picture, a volume, a video, a sound, a table; and what a map of it looks like."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from torch import Tensor, nn

from hilrp.util.errors import InputError
from hilrp.util.nested import tensors

#: Pictures have at most so many channels; what has more are bands, each of its own.
_COLOURS = 4
#: Where models that watch films are defined, and models of scans.
_FILMS, _SCANS = ("torchvision.models.video", "pytorchvideo"), ("monai",)
#: Models of transformers take videos with their frames first; what the inputs of those are called that listen.
_FRAMES_FIRST, _HEARD = ("transformers",), ("input_values", "input_features")
#: The first of these in a model says what it makes of its input.
_FIRST = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear, nn.RNNBase, nn.MultiheadAttention, nn.LayerNorm, nn.Embedding)


class Kind(StrEnum):
    """A kind of input, and of its map. See `Kind.of` for how it is told."""

    PICTURE = "picture"
    BANDS = "bands"
    VOLUME = "volume"
    VIDEO = "video"
    FRAMES = "frames"
    SOUND = "sound"
    TABLE = "table"
    TOKENS = "tokens"

    @property
    def place(self) -> str:
        """What one value of the map belongs to."""
        return _PLACES[self]

    @property
    def places(self) -> str:
        """The same, of several."""
        return f"{_PLACES[self]}s"

    @property
    def thing(self) -> str:
        """What a sample is called: "the picture"."""
        return _THINGS[self]

    @staticmethod
    def named(kind: Any) -> Kind | None:
        """A kind by its name; ``None`` where it is to be found."""
        if kind is None:
            return None
        try:
            return Kind(kind)
        except ValueError:
            raise InputError(f"kind={kind!r}: use one of {', '.join(map(repr, map(str, Kind)))}.") from None

    @staticmethod
    def of(t: Tensor, model: nn.Module | None = None) -> Kind | None:
        """What an input is taken for, by its axes and by its model; ``None`` where it has no map.

        | axes | taken for |
        |---|---|
        | ``[B,C,H,W]`` | a picture; with more than four channels, bands |
        | ``[B,T,C,H,W]`` | a video, frames first: by the model's first convolution, or where C is 1 or 3, and T not |
        | ``[B,3,T,H,W]``, or a model of films | a video |
        | ``[B,C,D,H,W]`` otherwise, or a model of scans | a volume |
        | ``[B,C,T]`` for a model that first convolves C channels in time | a sound |
        | ``[B,L,E]`` otherwise | tokens |
        | ``[B,F]`` | a table |
        | up to four axes, and a model that listens | a sound |

        Example:
            >>> import torch
            >>> [str(Kind.of(torch.zeros(2, *shape))) for shape in [(3, 8, 8), (1, 9, 8, 8), (5, 3, 8, 8), (7,)]]
            ['picture', 'volume', 'frames', 'table']
        """
        if not t.is_floating_point() or t.ndim < 2 or t.ndim > 5:
            return None
        if t.ndim < 5 and _listens(model):
            return Kind.SOUND
        if t.ndim == 4:
            return Kind.PICTURE if t.shape[1] <= _COLOURS else Kind.BANDS
        if t.ndim == 5:
            if _is_of(model, _SCANS):
                return Kind.VOLUME
            if _frames_first(tuple(t.shape), model):
                return Kind.FRAMES
            return Kind.VIDEO if t.shape[1] == 3 or _is_of(model, _FILMS) else Kind.VOLUME
        if t.ndim == 3:
            return Kind.SOUND if _takes_waves(model, t.shape[1]) else Kind.TOKENS
        return Kind.TABLE

    def summed(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes of an input that its map sums over: those of channels, bands, or the numbers of a token."""
        ndim, axes = len(shape), ()  # type: int, tuple[int, ...]
        if self in (Kind.PICTURE, Kind.BANDS) and ndim == 4:
            axes = (1,)
        elif self is Kind.TOKENS and ndim == 3:
            axes = (2,)
        elif self in (Kind.VOLUME, Kind.VIDEO, Kind.FRAMES) and ndim == 5:
            axes = (2,) if self is Kind.FRAMES else (1,)
        elif self is Kind.SOUND and (ndim == 4 or (ndim == 3 and shape[1] == 1)):
            axes = (1,)
        elif ndim not in _WITHOUT_CHANNELS[self]:
            raise InputError(
                f"kind={str(self)!r}: an input of shape [{','.join(['B', *map(str, shape[1:])])}] is none. "
                f"{_FORMS[self]}"
            )
        return axes

    def axes(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The axes along which an input has places that lie beside each other; a table and tokens have none.

        Example:
            >>> Kind.FRAMES.axes((2, 16, 3, 8, 8)), Kind.SOUND.axes((2, 80, 300)), Kind.TABLE.axes((2, 7))
            ((1, 3, 4), (1, 2), ())
        """
        if self in (Kind.TABLE, Kind.TOKENS):
            return ()
        summed = self.summed(shape)
        return tuple(axis for axis in range(1, len(shape)) if axis not in summed)

    def map_of(self, relevance: Tensor) -> Tensor:
        """The relevance of each place: summed over what places have in common, with the input's own axes."""
        axes = self.summed(tuple(relevance.shape))
        return relevance.sum(axes) if axes else relevance


_PLACES = {
    Kind.PICTURE: "pixel", Kind.BANDS: "pixel", Kind.VOLUME: "voxel", Kind.VIDEO: "pixel", Kind.FRAMES: "pixel",
    Kind.SOUND: "value", Kind.TABLE: "feature", Kind.TOKENS: "token",
}  # fmt: skip
_THINGS = {
    Kind.PICTURE: "the picture", Kind.BANDS: "the picture", Kind.VOLUME: "the volume", Kind.VIDEO: "the video",
    Kind.FRAMES: "the video", Kind.SOUND: "the sound", Kind.TABLE: "the row", Kind.TOKENS: "the tokens",
}  # fmt: skip
#: With so many axes an input of a kind has no channels.
_WITHOUT_CHANNELS = {
    Kind.PICTURE: (), Kind.BANDS: (), Kind.VOLUME: (4,), Kind.VIDEO: (4,), Kind.FRAMES: (), Kind.SOUND: (2, 3),
    Kind.TABLE: (2,), Kind.TOKENS: (2,),
}  # fmt: skip
_FORMS = {
    Kind.PICTURE: "Pictures are [B,C,H,W].",
    Kind.BANDS: "Bands are [B,C,H,W].",
    Kind.VOLUME: "Volumes are [B,C,D,H,W] or [B,D,H,W].",
    Kind.VIDEO: "Videos are [B,C,T,H,W], [B,T,C,H,W] or [B,T,H,W].",
    Kind.FRAMES: "Videos with their frames first are [B,T,C,H,W].",
    Kind.SOUND: "Sounds are [B,T], [B,1,T], [B,C,T], [B,F,T] or [B,1,F,T].",
    Kind.TABLE: "Tables are [B,F].",
    Kind.TOKENS: "Tokens are [B,L,E] or [B,L].",
}


def places(t: Tensor) -> tuple[int, ...]:
    """The axes along which an input has places, by its number of axes; others hold samples and channels."""
    kind = Kind.of(t) if t.ndim in (4, 5) else None
    return () if kind is None else kind.axes(tuple(t.shape))


def main_input(tree: Any, kind: Kind | None, batch: int, model: nn.Module | None = None) -> tuple[Tensor, Kind] | None:
    """The input that a map is of, and its kind: the picture among several inputs, else the first that has a map.

    Args:
        tree: Something of the form of the input.
        kind: Its kind, where that is known.
        batch: How many samples there are; what has no row for each of them has no map.
        model: The model that it is given to. Where there is one, a video that somebody named is looked at: its frames
            may be first.
    """
    candidates = [(t, Kind.of(t, model)) for t in tensors(tree) if t.shape[:1] == (batch,)]
    chosen = [(t, kind or found) for t, found in candidates if found is not None and (kind is None or _fits(kind, t))]
    if kind is Kind.VIDEO and model is not None:
        chosen = [(t, Kind.FRAMES if t.ndim == 5 and _frames_first(tuple(t.shape), model) else kind) for t, _ in chosen]
    return next((each for each in chosen if each[0].ndim == 4), chosen[0] if chosen else None)


def check_kind(tree: Any, kind: Kind | None, batch: int) -> None:
    """Raises if no input is of a kind that was given."""
    if kind is None or main_input(tree, kind, batch) is not None:
        return
    first = next((t for t in tensors(tree) if t.is_floating_point()), None)
    if first is None:
        raise InputError(f"kind={str(kind)!r}: the input holds no numbers with a fraction.")
    kind.summed(tuple(first.shape))


def _frames_first(shape: tuple[int, ...], model: nn.Module | None) -> bool:
    """Whether an input of five axes holds frames of channels, and not channels of frames.

    A model's first convolution says how many channels it takes. Where that fits both axes or none, they are one or
    three.
    """
    if _is_of(model, _FRAMES_FIRST):
        return True
    first = _first(model)
    fits = [isinstance(first, (nn.Conv2d, nn.Conv3d)) and first.in_channels == side for side in shape[1:3]]
    return fits[1] if fits[0] != fits[1] else shape[2] in (1, 3) and shape[1] not in (1, 3)


def _fits(kind: Kind, t: Tensor) -> bool:
    try:
        kind.summed(tuple(t.shape))
    except InputError:
        return False
    return True


def _is_of(model: nn.Module | None, packages: tuple[str, ...]) -> bool:
    """Whether a model's class, or one of its children's, is defined in one of some packages."""
    if model is None:
        return False
    return any(type(m).__module__.startswith(packages) for m in (model, *model.children()))


def _listens(model: nn.Module | None) -> bool:
    if model is None:
        return False
    return any(
        getattr(m, "main_input_name", None) in _HEARD or type(m).__module__.startswith("torchaudio")
        for m in (model, *model.children())
    )


def _takes_waves(model: nn.Module | None, channels: int) -> bool:
    """Whether a model begins with a convolution of so many channels along time; of one channel, it may come later."""
    if model is None:
        return False
    first = _first(model)
    heard = isinstance(first, nn.Conv1d) and first.in_channels == channels
    return heard or (channels == 1 and any(isinstance(m, nn.Conv1d) and m.in_channels == 1 for m in model.modules()))


def _first(model: nn.Module | None) -> nn.Module | None:
    """The first layer of a model, in the order in which it was built, that says what its input is like."""
    return None if model is None else next((m for m in model.modules() if isinstance(m, _FIRST)), None)
