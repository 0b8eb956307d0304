"""Whether the borders of a chain's steps show in its map.

A border lies between two neighbouring pixels where a mask of the chain begins, ends, or passes one half. If the map
changes more across borders than elsewhere, they can be seen: seams.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hilrp.attribution.chains import Chains

#: Where the masks of a chain begin, pass one half, and end.
_LEVELS = (0.001, 0.5, 0.999)


@dataclass(frozen=True)
class Borders:
    """How many masks of some chains have a border between each pixel and the next.

    Attributes:
        down: Between rows, ``[B,H-1,W]``.
        across: Between columns, ``[B,H,W-1]``.
        masks: How many masks there are.
    """

    down: Tensor
    across: Tensor
    masks: int


def borders(chains: Chains, x: Tensor, draws: int | None = None) -> Borders:
    """The borders of the chains of pictures ``[B,C,H,W]``; of the first ``draws`` of them alone, if that is given."""
    x = x.double()
    down, across = torch.zeros_like(x[:, 0, 1:]), torch.zeros_like(x[:, 0, :, 1:])
    count = 0
    for draw in range(chains.draws if draws is None else draws):
        # Between pictures and the same, one brighter: what is missing of the difference is the mask.
        _, *states, _ = chains.chain(x, x + 1, x + 1, len(x), draw)
        for state in states:
            mask = 1 - (state - x)[:, 0]
            above = torch.stack([mask > level for level in _LEVELS])
            down += (above[:, :, 1:] != above[:, :, :-1]).any(0)
            across += (above[..., 1:] != above[..., :-1]).any(0)
            count += 1
    return Borders(down, across, count)


def seam_ratio(maps: Tensor, found: Borders) -> Tensor:
    """How much maps ``[B,H,W]`` change across borders, relative to elsewhere: about 1 where no borders show.

    Each mask counts alike: a place where many have a border counts as many times.

    Borders may lie where a map changes anyway, as those of superpixels do. The same ratio of a map that has no chains,
    on the same borders, says how much that is.
    """
    maps = maps.double()
    change = torch.cat([maps.diff(dim=1).flatten(1), maps.diff(dim=2).flatten(1)], 1).abs()
    weight = torch.cat([found.down.flatten(1), found.across.flatten(1)], 1)
    rest = found.masks - weight
    return (change * weight).sum(1) / weight.sum(1) / ((change * rest).sum(1) / rest.sum(1))
