"""Tiny folders in the layouts of published data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from timm.data import ImageNetInfo


def voc(folder: Path) -> Path:
    """PASCAL VOC 2007 as its archives unpack: two test pictures, one of which is segmented."""
    root = folder / "VOCdevkit" / "VOC2007"
    for name in ("Annotations", "JPEGImages", "ImageSets/Main", "ImageSets/Segmentation", "SegmentationClass"):
        (root / name).mkdir(parents=True)
    for number, (cat, dog) in {"000001": ((5, 10, 15, 30), (40, 1, 50, 9)), "000002": ((20, 10, 30, 30), None)}.items():
        Image.new("RGB", (50, 40), (200, 90, 30)).save(root / f"JPEGImages/{number}.jpg")
        objects = "".join(
            f"<object><name>{name}</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult><bndbox>"
            + "".join(f"<{side}>{v}</{side}>" for side, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
            + "</bndbox></object>"
            for name, box in (("cat", cat), ("dog", dog))
            if box is not None
        )
        size = "<size><width>50</width><height>40</height><depth>3</depth></size>"
        written = f"<annotation><folder>VOC2007</folder><filename>{number}.jpg</filename>{size}{objects}</annotation>"
        (root / f"Annotations/{number}.xml").write_text(written)
    Image.new("P", (50, 40)).save(root / "SegmentationClass/000001.png")
    (root / "ImageSets/Segmentation/test.txt").write_text("000001\n")
    (root / "ImageSets/Main/test.txt").write_text("000001\n000002\n")
    (root / "ImageSets/Main/cat_test.txt").write_text("000001  1\n000002  1\n")
    return root


def imagenet_s(folder: Path) -> Path:
    """ImageNet-S 919 as its scripts make it: a folder for each synset, pictures in the first and the 300th.

    The last of ImageNet's synsets are left out here; a mask is ``red + 256 green``.
    """
    root = folder / "ImageNetS919"
    every = ImageNetInfo("imagenet-1k").label_names()
    synsets = every[:919]
    for synset in synsets:
        (root / "validation-segmentation" / synset).mkdir(parents=True)
        (root / "validation" / synset).mkdir(parents=True)
    for number in (1, 300):
        synset, name = synsets[number - 1], f"ILSVRC2012_val_{number:08d}"
        Image.new("RGB", (60, 40), (90, 160, 30)).save(root / "validation" / synset / f"{name}.JPEG")
        mask = np.zeros((40, 60, 3), np.uint8)
        mask[:, 25:30] = number % 256, number // 256, 0
        mask[:, 30:34] = 1000 % 256, 1000 // 256, 0  # what its annotators left out
        mask[:, 34:45] = (number + 1) % 256, (number + 1) // 256, 0  # another class
        Image.fromarray(mask).save(root / "validation-segmentation" / synset / f"{name}.png")
    return root
