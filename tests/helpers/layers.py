"""Linear layers of every kind, each with the shape of its input."""

from __future__ import annotations

from torch import nn

LAYERS = {
    "linear": (lambda: nn.Linear(7, 5), (7,)),
    "linear, no bias": (lambda: nn.Linear(7, 5, bias=False), (7,)),
    "linear on tokens": (lambda: nn.Linear(6, 4), (3, 6)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (4, 9)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, padding=1), (3, 5, 5)),
    "conv2d, stride and dilation": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=2, dilation=2), (3, 7, 7)),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), (4, 5, 5)),
    "conv2d, same": (lambda: nn.Conv2d(2, 3, 4, padding="same"), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 4, 2, stride=2, padding=1, groups=2), (2, 3, 4, 4)),
    "conv_transpose2d": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        (4, 4, 4),
    ),
    "conv_transpose2d, dilation": (lambda: nn.ConvTranspose2d(2, 3, 2, dilation=2), (2, 4, 4)),
}
