"""Draws docs/concepts.webp: examples of four channels of the zoo's ResNet, in 96 scenes, cropped to their maps.

    python scripts/concepts_figure.py [FOLDER]    # where what is found of the scenes is kept; it goes on there

The channels are those that `benchmarks/concepts_on_scenes.py` finds for a colour each, and for a shape.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tempfile import mkdtemp

import hilrp
from hilrp.concepts import Concepts
from hilrp.concepts.galleries import Gallery

DOCS = Path(__file__).resolve().parents[1] / "docs"
MODEL, AT = "resnet", "layer3"
PROPERTIES = ("red", "yellow", "blue", "ring")


def channels() -> list[int]:
    """The channel of each property, as it is in the figures that are kept."""
    rows = [json.loads(line) for line in (DOCS / "results" / "concepts.jsonl").read_text().splitlines()]
    rows = [row for row in rows if (row["model"], row["at"], row["kind"]) == (MODEL, AT, "property")]
    own = {row["property"]: row["channel"] for row in rows}
    return [own[name] for name in PROPERTIES]


def main() -> None:
    """Finds the examples, and draws them."""
    loaded = hilrp.load(f"zoo/{MODEL}")
    gallery = Gallery(loaded, Concepts(loaded.model, AT), Path(sys.argv[1] if sys.argv[1:] else mkdtemp()))
    for done in gallery.scan("scenes:5000:96"):
        print(done, flush=True)
    gallery.sheet(channels(), count=7, by="relevance").save(DOCS / "concepts.webp", lossless=True)


if __name__ == "__main__":
    main()
