"""The data of the benchmark.

Images with a class and the place of its object, from scenes, ImageNet-S, PASCAL VOC, or any folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from hilrp.jobs.labels import label_index, synsets
from hilrp.models.images import ENDINGS, read
from hilrp.models.libraries.loaded import Loaded
from hilrp.models.picture_files import opened
from hilrp.scenes import CLASSES, Mask, Scene, Scenes
from hilrp.targets import logits_of
from hilrp.util.errors import InputError
from hilrp.util.folders import Unreadable, walk
from hilrp.util.regular_files import not_a_file, printable

#: The scenes of the benchmark: neither the zoo's nor the demonstration's.
SCENES = 500_000


@dataclass(frozen=True, eq=False)
class Sample:
    """One image, one class, one place.

    Attributes:
        name: What it is called in reports.
        label: The class that is explained, by its number or its name; ``None`` for the one that the model predicts.
        open: Reads the picture.
        place: Reads where the object is, ``[H,W]`` in the picture; ``None`` where nobody says.
        scene: The scene, where it is one.
        files: The files that picture and place are read from.
        boxes: Where the object is, where no file says it.
    """

    name: str
    label: int | str | None
    open: Callable[[], Image.Image]
    place: Callable[[], Mask] | None
    scene: Scene | None = None
    files: tuple[Path, ...] = ()
    boxes: Any = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """Samples as one model takes them.

    Attributes:
        samples: The samples.
        x: ``[B,3,H,W]``.
        masks: ``[B,H,W]``: what is left of the objects after scaling and cropping; ``None`` where nobody says where
            they are.
        labels: The classes that are explained, ``[B]``.
        predicted: The classes that the model says, ``[B]``.
        things: Of scenes, the places of all objects by class, as the model sees them.
    """

    samples: list[Sample]
    x: Tensor
    masks: Tensor | None
    labels: Tensor
    predicted: Tensor
    things: list[dict[int, Tensor]]


def inputs_for(loaded: Loaded, samples: list[Sample], batch: int = 32) -> Inputs:
    """Preprocesses pictures and masks alike, and leaves out samples whose object is cropped away."""
    if any(sample.scene is not None for sample in samples) and loaded.classes != list(CLASSES):
        raise InputError(
            f"{loaded.name} doesn't know the classes of scenes. Give --data with images of its own classes."
        )
    device = next((p.device for p in loaded.model.parameters()), torch.device("cpu"))
    places = [loaded.seen_mask(sample.place()) for sample in samples if sample.place is not None]
    chosen, masks = samples, None
    if places:
        kept = [i for i, mask in enumerate(places) if bool(mask.any()) and not bool(mask.all())]
        if not kept:
            raise InputError(
                f"{loaded.name}: no object is left in any of the {len(samples)} images after its preprocessing."
            )
        chosen, masks = [samples[i] for i in kept], torch.stack([places[i] for i in kept]).to(device)
    known = [_class_of(loaded, sample) for sample in chosen]
    x = torch.stack([loaded.preprocess(sample.open()) for sample in chosen]).to(device)
    with torch.no_grad():
        logits = torch.cat([logits_of(loaded.model(part)).cpu() for part in x.split(batch)])
    predicted = logits.argmax(1)
    labels = [int(p) if label is None else label for label, p in zip(known, predicted, strict=True)]
    if max(labels) >= logits.shape[1]:
        raise InputError(f"{loaded.name} has {logits.shape[1]} classes, but the data has a class {max(labels)}.")
    things = [
        {} if s.scene is None else {t.label: loaded.seen_mask(t.mask).to(device) for t in s.scene.things}
        for s in chosen
    ]
    return Inputs(chosen, x, masks, torch.tensor(labels, device=device), predicted.to(device), things)


def _class_of(loaded: Loaded, sample: Sample) -> int | None:
    """The number of a sample's class."""
    if not isinstance(sample.label, str):
        return sample.label
    found = label_index(loaded, sample.label)
    if found is None:
        raise InputError(
            f"{loaded.name} knows no class {sample.label!r}, which is the name of a folder. Folders are called as its "
            "classes are (`hilrp models`), by their numbers, or as ImageNet's (n01440764)."
        )
    return found


def contents(samples: list[Sample]) -> dict[str, str]:
    """The checksum of each sample's picture, place and class, by name; scenes have none, since their seed says all.

    Figures of pictures that were replaced since must not stand beside those of others.
    """
    return {f"{i}: {printable(s.name)}": _content(s) for i, s in enumerate(samples) if s.scene is None}


def _content(sample: Sample) -> str:
    digest = sha256(json.dumps([sample.label, sample.boxes]).encode())
    for path in sample.files:
        why = not_a_file(path)
        if why is not None:
            raise InputError(f"{path}: {why}")
        with path.open("rb") as file:
            digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def find(spec: str, count: int | None = None) -> list[Sample]:
    """Samples of ``scenes`` (or ``scenes:SEED``), or of a folder.

    One with an ``index.json``, ImageNet-S, or a VOC devkit.

    Args:
        spec: What, or where.
        count: At most this many, evenly chosen from all; of scenes, the first.
    """
    if spec == "scenes" or spec.startswith("scenes:"):
        seed = spec.partition(":")[2] or str(SCENES)
        if not seed.isdecimal():
            raise InputError(f"{spec}: write scenes, or scenes:SEED with a number.")
        return _scenes(int(seed), count or 100)
    folder = Path(spec)
    # What the archives unpack to: VOCdevkit/VOC2007, and one folder for each size of ImageNet-S.
    inside = (folder / name for name in ("VOCdevkit/VOC2007", "VOC2007", "ImageNetS919"))
    folder = next((path for path in inside if path.is_dir()), folder)
    readers = {"index.json": _index, "Annotations": _voc, "validation-segmentation": _imagenet_s}
    for sign, reader in readers.items():
        if (folder / sign).exists():
            return _some(reader(folder), count)
    if samples := _class_folders(folder):
        return _some(samples, count)
    raise InputError(
        f"{spec}: no data that the benchmark knows. Give scenes, or a folder with index.json (a list of file, label, "
        "and boxes or mask), with a folder of pictures for each class, with Annotations, JPEGImages and ImageSets "
        "(VOC), or with validation and validation-segmentation (ImageNet-S)."
    )


def _some(samples: list[Sample], count: int | None) -> list[Sample]:
    return samples if count is None else [samples[i] for i in _evenly(len(samples), count)]


def _evenly(total: int, count: int) -> list[int]:
    return sorted({round(i) for i in np.linspace(0, total - 1, min(count, total))})


def _scenes(seed: int, count: int) -> list[Sample]:
    samples = []
    for i, scene in enumerate(Scenes(seed, count)):
        # One object of each scene, each of its places in the order from back to front equally often.
        thing = scene.things[i % len(scene.things)]
        samples.append(
            Sample(
                f"scene {i}, {thing.name}",
                thing.label,
                lambda scene=scene: Image.fromarray(scene.image),  # type: ignore[misc]
                lambda mask=thing.mask: mask,  # type: ignore[misc]
                scene,
            )
        )
    return samples


def _picture(path: Path) -> Callable[[], Image.Image]:
    return lambda: read(path)[0]


def _index(folder: Path) -> list[Sample]:
    try:
        entries: list[dict[str, Any]] = json.loads((folder / "index.json").read_bytes())
        known = [(str(entry["file"]), int(entry["label"])) for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        said = f"not a list of entries with file and label ({type(error).__name__}: {error})."
        raise InputError(f"{folder / 'index.json'}: {said}") from error
    samples = []
    for entry, (name, label) in zip(entries, known, strict=True):
        if not {"mask", "boxes"} & set(entry):
            raise InputError(f"{folder / 'index.json'}: {entry.get('file')} has neither mask nor boxes.")
        path = folder / name
        files = (path, folder / entry["mask"]) if "mask" in entry else (path,)

        def place(entry: dict[str, Any] = entry, path: Path = path) -> Mask:
            if "mask" in entry:
                with opened(folder / entry["mask"]) as mask:
                    return marked(mask)
            return box_mask(read(path, reduce=False)[0].size, entry["boxes"])

        samples.append(Sample(name, label, _picture(path), place, files=files, boxes=entry.get("boxes")))
    return samples


def marked(mask: Image.Image) -> Mask:
    """Where a mask has the object: its ones, or, of 255 levels, those above 200.

    The border that annotators were unsure of (128 of 255 in Oxford-IIIT Pet) is no part of the object.
    """
    values = np.asarray(mask.convert("L"))
    found: Mask = values > (0 if values.max(initial=0) <= 1 else 200)
    return found


def box_mask(size: tuple[int, int], boxes: list[list[float]]) -> Mask:
    """Where boxes are (left, top, right, bottom) in a picture of that width and height."""
    picture = Image.new("1", size)
    draw = ImageDraw.Draw(picture)
    for x0, y0, x1, y1 in boxes:
        draw.rectangle((round(x0), round(y0), round(x1) - 1, round(y1) - 1), fill=1)
    return np.asarray(picture).astype(bool)


def _class_folders(folder: Path) -> list[Sample]:
    """Pictures in folders that are called as their classes are; nobody says where in them the objects are."""
    found = list(walk(folder, ENDINGS)) if folder.is_dir() else []
    for each in found:
        if isinstance(each, Unreadable):
            raise InputError(f"{each.path}: {each.why}")
    paths = [path for path in found if isinstance(path, Path) and path.parent != folder]
    names = [path.relative_to(folder) for path in paths]
    return [
        Sample(name.as_posix(), name.parts[0], _picture(path), None, files=(path,))
        for path, name in zip(paths, names, strict=True)
    ]


def _voc(folder: Path) -> list[Sample]:
    """PASCAL VOC: the test images, or those of validation.

    The prediction is explained, and the place is that of all boxes.
    """
    lists = [folder / "ImageSets" / "Main" / f"{name}.txt" for name in ("test", "val", "trainval")]
    found = next((path for path in lists if path.is_file()), None)
    if found is None:
        raise InputError(f"{folder}: ImageSets/Main holds none of {', '.join(p.name for p in lists)}.")
    samples = []
    for name in found.read_text(errors="surrogateescape").split():
        path = folder / "JPEGImages" / f"{name}.jpg"

        def place(name: str = name, path: Path = path) -> Mask:
            tree = ElementTree.parse(folder / "Annotations" / f"{name}.xml")
            sides = ("xmin", "ymin", "xmax", "ymax")
            # Counted from one, the last pixel included.
            corners = [[float(box.findtext(side) or 0) for side in sides] for box in tree.iter("bndbox")]
            boxes = [[x0 - 1, y0 - 1, x1, y1] for x0, y0, x1, y1 in corners]
            return box_mask(read(path, reduce=False)[0].size, boxes)

        files = (path, folder / "Annotations" / f"{name}.xml")
        samples.append(Sample(name, None, _picture(path), place, files=files))
    return samples


#: How many classes ImageNet-S has, in its three sizes.
IMAGENET_S = (50, 300, 919)


def _imagenet_s(folder: Path) -> list[Sample]:
    """ImageNet-S: ``validation/SYNSET/NAME.JPEG`` and ``validation-segmentation/SYNSET/NAME.png``.

    A mask's red and green say the number of the class, ``red + 256 * green``, from one on in the order of the synsets;
    0 is anything else, 1000 is left out by its annotators. ImageNet-S has merged five of ImageNet's classes into
    others; their pictures have the label of the class that they are in there.
    """
    known = synsets()
    names = sorted(path.name for path in (folder / "validation-segmentation").iterdir() if path.is_dir())
    if len(names) not in IMAGENET_S or not set(names) <= set(known):
        raise InputError(
            f"{folder / 'validation-segmentation'}: {len(names)} folders, and not one for each of ImageNet-S's "
            f"{', '.join(map(str, IMAGENET_S))} synsets. Masks number the classes in the order of all of them: keep "
            "the empty ones."
        )
    samples = []
    for number, synset in enumerate(names, 1):
        for mask in sorted((folder / "validation-segmentation" / synset).glob("*.png")):
            path = next((folder / "validation" / synset).glob(f"{mask.stem}.*"), None)
            if path is None:
                raise InputError(
                    f"{mask}: its picture is not in {folder / 'validation' / synset}. ImageNet-S's scripts copy it "
                    "there from ImageNet (datapreparation_val.py)."
                )

            def place(mask: Path = mask, number: int = number) -> Mask:
                with opened(mask) as picture:
                    channels = np.asarray(picture.convert("RGB")).astype(int)
                return channels[..., 0] + 256 * channels[..., 1] == number

            samples.append(Sample(path.name, known[synset], _picture(path), place, files=(path, mask)))
    return samples
