"""Relevance at layers as maps of the picture: laid out by hilrp, or by a function of the user's."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.attribution.explanation import Explanation
from hilrp.attribution.stages import channels_last, stream_name, to_features
from hilrp.compat.asking import at_layer, layer_paths
from hilrp.compat.functions import outputs_of
from hilrp.util.errors import InputError
from hilrp.util.nested import map_tensors, tensors

#: Where the backbone of a detector is in what is explained in its place.
_BACKBONE = "model.detector.backbone"


class LayerMaps:
    """Layers of a model, and how their relevance becomes a map.

    Args:
        model: The user's model.
        explained: What is explained in its place.
        layers: Modules of both.
        reshape: From what a layer has to ``[B,C,h,w]``; feature maps and token grids need none.

    Attributes:
        paths: Where the layers are in what is explained.
    """

    def __init__(
        self,
        model: nn.Module,
        explained: nn.Module,
        layers: Sequence[nn.Module],
        reshape: Callable[[Any], Tensor] | None,
    ) -> None:
        self.paths = layer_paths(explained, layers, "target_layers")
        self._shown = dict(zip(self.paths, layer_paths(model, layers, "target_layers"), strict=True))
        self._held = getattr(explained, "holds_fixed", "nothing is held fixed")
        self._reshape = reshape
        self._numbers = {id(layer): path for layer, path in zip(layers, self.paths, strict=True)}
        self._forms: dict[str, Any] = {}

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Notes, for the user's function, what layers return while the context lasts: without the numbers."""

        def note(layer: int, given: Any, output: Any) -> None:
            empty = {id(t): t.detach().new_empty(0) for t in tensors(output) if t.is_floating_point()}
            self._forms[self._numbers[layer]] = map_tensors(lambda t: empty.get(id(t)), output)

        with outputs_of(self._numbers if self._reshape is not None else (), note):
            yield

    def read(self, found: Explanation, x: Tensor) -> Tensor:
        """The mean over layers of what speaks for the target, each from 0 to 1, ``[B,H,W]``."""
        return torch.stack([from_0_to_1(self._of_layer(path, found, x)) for path in self.paths]).mean(0)

    def _of_layer(self, path: str, found: Explanation, x: Tensor) -> Tensor:
        """A layer's relevance, summed over channels, at the size of the input."""
        at_it = at_layer(path, found, self._shown[path], self._held)
        several = at_it if isinstance(at_it, tuple) else (at_it,)
        if self._reshape is not None:
            parts = [self._reshape(self._as_returned(path, several))]
        else:
            # Maps of several sizes (a pyramid's) are one layer's; what comes with tokens (weights of attention) is not.
            several = several if all(t.ndim == x.ndim for t in several) else several[:1]
            parts = [self._features(stream_name(path, i), t, found, x) for i, t in enumerate(several)]
        whole = torch.zeros_like(x[:, 0])
        for features in parts:
            if not isinstance(features, Tensor) or features.ndim != x.ndim or len(features) != len(x):
                raise self._no_map(path, several[0])
            mode = "bilinear" if x.ndim == 4 else "trilinear"
            large = F.interpolate(features.sum(1, keepdim=True), x.shape[2:], mode=mode, align_corners=False)[:, 0]
            whole = whole + large * (features.shape[2:].numel() / x.shape[2:].numel())  # each has its sum
        if bool(((whole == 0).flatten(1).all(1) & (found.ledger.explained != 0)).any()):
            warnings.warn(
                f"target_layers: `{self._shown[path]}` has no relevance at its places, and the map is zero. (After a "
                "transformer's last block the class token holds all of it.) Name an earlier module, blocks[-1].norm1, "
                "or no layers" + (", or another reshape_transform." if self._reshape is not None else "."),
                stacklevel=4,
            )
        return whole

    def _features(self, name: str, relevance: Tensor, found: Explanation, x: Tensor) -> Tensor:
        """Relevance at a layer as ``[B,C,h,w]``."""
        path = name.partition("[")[0]
        if path.startswith(_BACKBONE) and relevance.ndim == 4 and len(relevance) == len(x):
            return relevance  # known to have a row for each picture, and its channels first
        if x.ndim == relevance.ndim == 4 and channels_last(relevance.shape, x.shape[2:]) is None:
            raise InputError(
                f"target_layers: `{self._shown[path]}` has {tuple(relevance.shape)}, and whether its channels come "
                "first or last can't be told from that. Give reshape_transform=: lambda t: t if they come first, "
                "lambda t: t.permute(0, 3, 1, 2) if last."
            )
        features: Tensor | None = None
        if found.layer_rows.get(name) != 1:
            pass  # its first axis is that of other things
        elif x.ndim == 4 and relevance.ndim in (3, 4) and len(relevance) == len(x):
            features = to_features(relevance, x.shape[2:])
        elif relevance.ndim == x.ndim:
            features = relevance
        if features is None:
            raise self._no_map(path, relevance)
        return features

    def _no_map(self, path: str, relevance: Tensor) -> InputError:
        return InputError(
            f"target_layers: `{self._shown[path]}` has {tuple(relevance.shape)}, which is no map of places. Give "
            "another layer, reshape_transform= from that to [B,C,h,w], or no layers at all."
        )

    def _as_returned(self, path: str, several: tuple[Tensor, ...]) -> Any:
        """The relevance at a layer in the form of what the layer returns: a mapping of several maps, a tuple."""
        form = self._forms[path]
        places = list({id(t): t for t in tensors(form)})
        if len(places) != len(several):
            raise InputError(
                f"reshape_transform: of the {len(places)} tensors that `{self._shown[path]}` returns, {len(several)} "
                "depend on the picture. Give another layer, or leave reshape_transform out."
            )
        relevance = dict(zip(places, several, strict=True))
        return map_tensors(lambda t: relevance[id(t)], form)


def from_0_to_1(maps: Tensor) -> Tensor:
    """What speaks for the target, over its maximum in each picture; zeros where nothing does."""
    positive = maps.detach().float().clamp(min=0)
    most = positive.flatten(1).amax(1).reshape(-1, *[1] * (maps.ndim - 1))
    return torch.where(most > 0, positive / most.clamp(min=torch.finfo(torch.float32).tiny), 0)
