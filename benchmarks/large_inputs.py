"""What an explanation by tiles costs as inputs grow: pictures to 4,096 x 4,096, volumes to 256 x 256 x 256.

    python benchmarks/large_inputs.py [--device cuda] [--pictures 512 1024] [--volumes 64 96] [--json FILE]
        [--figures FOLDER] [--whole] [--keep]

A picture is a mosaic of drawn scenes, of which the zoo's segmenter is asked for stars in the whole; a volume holds
bright balls, of which a 3-D U-Net with random weights is asked for its second class in the whole. A row has seconds,
the most bytes that were held at once beside the input (on a processor as torch's calls allocate them), how many of
these are not the output's and the map's, and the residual. The first explanation of a model has more checks; what is
timed is the second. ``--whole`` also explains each input in one go, until memory ends. With ``--figures`` the largest
of each kind is drawn. ``--keep`` writes docs/results/figures/large-inputs.csv.gz.
"""

from __future__ import annotations

import argparse
import math
import runpy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from measuring import add_options, attempt, environment, header, heading, line, peak, precision, release, save, timed
from torch import Tensor, nn

import hilrp
from hilrp.attribution.tiles import Stitched
from hilrp.scenes import Scenes
from hilrp.targets import Region

PICTURES, VOLUMES = (512, 1024, 2048, 4096), (64, 96, 128, 192, 256)
#: The sides of a tile, and how many run at once.
PICTURE, VOLUME = hilrp.Tiles(128, 0.25, "gaussian", batch=16), hilrp.Tiles(64, 0.25, "gaussian", batch=4)
COLUMNS = ("input", "tiles", "s", "peak, MB", "input, MB", "peak beside output and map, MB", "residual")


class UNet3d(nn.Module):
    """Three levels of pairs of convolutions, pooling, transposed convolutions and skips."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32), classes: int = 2) -> None:
        super().__init__()
        pairs = zip((1, *widths), widths, strict=False)
        self.down = nn.ModuleList(self._pair(a, b) for a, b in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.join = nn.ModuleList(self._pair(2 * a, a) for a in widths[-2::-1])
        self.head = nn.Conv3d(widths[0], classes, 1)

    @staticmethod
    def _pair(before: int, after: int) -> nn.Sequential:
        def one(channels: int) -> list[nn.Module]:
            return [nn.Conv3d(channels, after, 3, padding=1), nn.BatchNorm3d(after), nn.ReLU()]

        return nn.Sequential(*one(before), *one(after))

    def forward(self, x: Tensor) -> Tensor:
        """``[B,classes,D,H,W]``."""
        skips = []
        for i, pair in enumerate(self.down):
            x = pair(nn.functional.max_pool3d(x, 2) if i else x)
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(torch.cat([up(x), skip], 1))
        return self.head(x)


def mosaic(side: int, device: str) -> tuple[nn.Module, Tensor, Region]:
    """The segmenter, a picture of many scenes, and what is asked."""
    loaded = hilrp.load("zoo/segmenter", device=device)
    from PIL import Image

    across = math.ceil(side / 128)
    pictures = [Image.fromarray(scene.image) for scene in Scenes(seed=7, count=across * across)]
    x = torch.cat([loaded.batch(pictures[i : i + across]).cpu() for i in range(0, len(pictures), across)])
    rows = x.unflatten(0, (across, across)).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)
    return loaded.model, rows[None, :, :side, :side].contiguous().to(device), Region(loaded.index("red star"))


def balls(side: int, device: str) -> tuple[nn.Module, Tensor, Region]:
    """A U-Net, a volume of noise with bright balls, and what is asked."""
    torch.manual_seed(0)
    model = UNet3d().eval().requires_grad_(False).to(device)
    generator = torch.Generator().manual_seed(1)
    x = 0.1 * torch.randn(1, 1, side, side, side, generator=generator)
    for _ in range(12):
        centre = torch.rand(3, generator=generator) * side
        radius = side * (0.03 + 0.05 * float(torch.rand(1, generator=generator)))
        away = [(torch.arange(side) - c).square() for c in centre]
        far = away[0][:, None, None] + away[1][:, None] + away[2]
        x[0, 0][far < radius**2] += 1
    return model, x.to(device), Region(1)


def measured(kind: str, side: int, tiles: hilrp.Tiles | None, options: argparse.Namespace) -> dict[str, Any]:
    """A row; without tiles, of the whole in one go."""
    cut = PICTURE if kind == "picture" else VOLUME
    model, x, target = (mosaic if kind == "picture" else balls)(side, options.device)
    if tiles is None:  # all tiles and their graphs at once
        model = Stitched(model, replace(cut, batch=2**30))
    run = partial(hilrp.explain, model, x, target, tiles=tiles, stages=None)
    run()
    seconds = min(timed(run, options.device) for _ in range(options.repeats))
    bytes_held = peak(run, options.device)
    found = run()
    if options.figures is not None and tiles is not None and side == max(_sides(options, kind)):
        options.figures.mkdir(parents=True, exist_ok=True)
        found.save(options.figures / f"{kind}-{side}")
    own = sum(t.nbytes for t in (found.output, found.relevance))
    return {
        "kind": kind, "side": side, "tiles": Stitched(model, cut).main(x)[1].count if tiles else 0, "seconds": seconds,
        "bytes": bytes_held, "input": x.nbytes, "output and map": own, "residual": float(found.ledger.residual),
        "score": float(found.score), "reference score": float(found.ledger.entries["reference"]),
    }  # fmt: skip


def _sides(options: argparse.Namespace, kind: str) -> tuple[int, ...]:
    return tuple(options.pictures if kind == "picture" else options.volumes)


def cells(row: dict[str, Any]) -> list[str]:
    """A row of the table."""
    name = " x ".join([str(row["side"])] * (2 if row["kind"] == "picture" else 3))
    if "failure" in row:
        return [name, row["failure"]]
    megabytes = [row["bytes"], row["input"], row["bytes"] - row["output and map"]]
    held = [f"{each / 2**20:.0f}" for each in megabytes]
    return [name, str(row["tiles"] or "one go"), f"{row['seconds']:.1f}", *held, f"{row['residual']:.1e}"]


def kept(row: dict[str, Any]) -> list[tuple[str, str, str, int, str]]:
    """A row as the documents' figures are kept, memory in gigabytes."""
    method = "tiles" if row["tiles"] else "one go"
    figures = {name: row[name] / 2**30 for name in ("bytes", "input", "output and map")}
    figures |= {name: row[name] for name in ("tiles", "seconds", "residual")}
    return [(f"{row['kind']} {row['side']}", method, name, 0, f"{value:.6g}") for name, value in figures.items()]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, nargs="*", default=PICTURES)
    parser.add_argument("--volumes", type=int, nargs="*", default=VOLUMES)
    parser.add_argument("--figures", type=Path, metavar="FOLDER")
    parser.add_argument("--keep", action="store_true", help="as the figures of the documents")
    parser.add_argument("--whole", action="store_true", help="also in one go")
    add_options(parser, repeats=1)
    options = parser.parse_args()
    about, rows = environment(options, hilrp), list[dict[str, Any]]()
    print(f"{header(about)}\n\n{heading(COLUMNS)}", flush=True)
    for kind, own in (("picture", PICTURE), ("volume", VOLUME)):
        for tiles in (own, None) if options.whole else (own,):
            for side in _sides(options, kind):
                with precision(options.precision, options.device):
                    row, reason = attempt(partial(measured, kind, side, tiles, options))
                rows.append(row or {"kind": kind, "side": side, "tiles": 0 if tiles is None else 1, "failure": reason})
                release()
                print(line(cells(rows[-1])), flush=True)
                save(options.json, about, rows)
                if row is None:
                    break
    if options.keep:
        write = runpy.run_path(str(Path(__file__).resolve().parents[1] / "scripts" / "keep_figures.py"))["write"]
        print(write("large-inputs", [each for row in rows if "failure" not in row for each in kept(row)]))


if __name__ == "__main__":
    main()
