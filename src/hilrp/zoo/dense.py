"""A small segmentation model and a small detector with deformable attention, for scenes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Segmenter(nn.Module):
    """The features of a pyramid brought to one width and one size, joined, and told apart: the head of SegFormer.

    Args:
        backbone: From pictures to feature maps, from fine to coarse.
        widths: Of these maps.
        classes: How many; each is there or not, at every place.
    """

    def __init__(self, backbone: nn.Module, widths: list[int], classes: int, width: int = 64) -> None:
        super().__init__()
        self.backbone = backbone
        self.levels = nn.ModuleList(nn.Conv2d(w, width, 1) for w in widths)
        self.join = nn.Sequential(
            nn.Conv2d(width * len(widths), width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``[B,classes,h,w]`` at the size of the finest map."""
        maps = self.backbone(x)
        size = maps[0].shape[-2:]
        levels = [
            F.interpolate(level(m), size=size, mode="bilinear", align_corners=False)
            for level, m in zip(self.levels, maps, strict=True)
        ]
        return self.head(self.join(torch.cat(levels, 1)))


class Detector(nn.Module):
    """Queries that read feature maps at places of their own choice (deformable attention), as in Deformable DETR.

    Args:
        backbone: From pictures to feature maps, from fine to coarse.
        widths: Of these maps.
        classes: How many; each query finds one of them, or none.
    """

    def __init__(
        self, backbone: nn.Module, widths: list[int], classes: int, queries: int = 12, width: int = 64, layers: int = 3
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.levels = nn.ModuleList(nn.Sequential(nn.Conv2d(w, width, 1), nn.GroupNorm(8, width)) for w in widths)
        self.queries, self.places = nn.Parameter(torch.randn(queries, width)), nn.Parameter(torch.randn(queries, 2))
        self.layers = nn.ModuleList(_Layer(width, len(widths)) for _ in range(layers))
        self.labels = nn.ModuleList(nn.Linear(width, classes) for _ in range(layers))
        self.boxes = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)) for _ in range(layers)
        )
        for layer in [*self.labels, *(box[-1] for box in self.boxes)]:  # type: ignore[index]
            assert isinstance(layer, nn.Linear)
            classifies = layer.out_features == classes
            # At first nothing is likely to be there, and boxes are a quarter of the picture wide.
            nn.init.constant_(layer.bias, -math.log(99) if classifies else 0.0)
            if not classifies:
                nn.init.zeros_(layer.weight)
                nn.init.constant_(layer.bias[2:], -1.0)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """``logits`` ``[B,queries,classes]`` and ``pred_boxes`` ``[B,queries,4]``.

        Middle, width and height as parts of the picture.
        """
        return self.steps(x)[-1]

    def steps(self, x: Tensor) -> list[dict[str, Tensor]]:
        """What each layer says."""
        maps = [level(m) for level, m in zip(self.levels, self.backbone(x), strict=True)]
        queries, places = self.queries.expand(len(x), -1, -1), self.places.expand(len(x), -1, -1)
        found = []
        for layer, label, box in zip(self.layers, self.labels, self.boxes, strict=True):
            queries = layer(queries, places.sigmoid(), maps)
            moved = box(queries)
            raw = torch.cat([moved[..., :2] + places, moved[..., 2:]], -1)
            found.append({"logits": label(queries), "pred_boxes": raw.sigmoid()})
            places = raw[..., :2].detach()
        return found


class _Layer(nn.Module):
    """Queries see each other, read the maps, and are thought over."""

    def __init__(self, width: int, levels: int, heads: int = 4, points: int = 4) -> None:
        super().__init__()
        self.heads, self.points, self.count = heads, points, levels
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.value, self.read = nn.Conv2d(width, width, 1), nn.Linear(width, width)
        self.offsets = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.think = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        nn.init.zeros_(self.offsets.weight)
        nn.init.zeros_(self.weights.weight)
        # At first each head looks in a direction of its own, each point a step further.
        angles = 2 * math.pi * torch.arange(heads) / heads
        steps = torch.arange(1, points + 1).float()
        start = torch.stack([angles.cos(), angles.sin()], -1)[:, None, None] * steps[:, None]
        with torch.no_grad():
            self.offsets.bias.copy_(start.expand(heads, levels, points, 2).flatten())

    def forward(self, queries: Tensor, places: Tensor, maps: list[Tensor]) -> Tensor:
        """Queries ``[B,Q,D]`` at places ``[B,Q,2]`` (column and row, from 0 to 1)."""
        q, k, v = self.qkv(self.norms[0](queries)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v)
        queries = queries + self.out(seen.transpose(1, 2).flatten(2))
        queries = queries + self.read(self._deformable(self.norms[1](queries), places, maps))
        return queries + self.think(self.norms[2](queries))

    def _deformable(self, queries: Tensor, places: Tensor, maps: list[Tensor]) -> Tensor:
        batch, count, width = queries.shape
        offsets = self.offsets(queries).view(batch, count, self.heads, self.count, self.points, 2)
        weights = self.weights(queries).view(batch, count, self.heads, -1).softmax(-1)
        weights = weights.view(batch, count, self.heads, self.count, self.points)
        found = []
        for i, features in enumerate(maps):
            height, breadth = features.shape[-2:]
            scale = offsets.new_tensor([breadth, height])
            at = places[:, :, None, None] + offsets[:, :, :, i] / scale
            grid = (2 * at - 1).transpose(1, 2).flatten(0, 1)
            values = self.value(features).view(batch * self.heads, width // self.heads, height, breadth)
            read = F.grid_sample(values, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
            own = weights[:, :, :, i].transpose(1, 2).flatten(0, 1).unsqueeze(1)
            found.append((read * own).sum(-1))
        total = torch.stack(found).sum(0)
        return total.view(batch, self.heads, width // self.heads, count).permute(0, 3, 1, 2).flatten(2)
