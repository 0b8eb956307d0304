"""Data sets as items: where each image is, and what is known of it, one line of JSON each."""

from __future__ import annotations

import glob
import io
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from hilrp.jobs.run.item import (
    BOXES,
    IMAGES,
    LABELS,
    Item,
    broken,
    first_of,
    image_file,
    label_of,
    names_of,
    parquet_file,
)
from hilrp.jobs.run.shards import parquets, tars
from hilrp.models.images import ENDINGS
from hilrp.models.picture_files import most_bytes, open_file
from hilrp.util.errors import InputError, UnavailableError
from hilrp.util.folders import Unreadable, walk
from hilrp.util.regular_files import printable

_SHARDS = ((".tar", tars), (".parquet", parquets))


def find(spec: str, split: str | None = None, output: Path | None = None) -> Iterator[Item]:
    """The items of a data set, in an order that is always the same.

    Args:
        spec: A folder (with ``index.json``, with a folder for each class, or with images), shards of tar files or
            Parquet files (a file, a folder of them, or a glob), ``hub:NAME`` for a data set of the Hugging Face hub,
            ``scenes:SEED:COUNT``, or ``tagged:SEED:COUNT`` for scenes with the planted shortcut.
        split: Of a data set of the hub.
        output: Where results go: nothing in it is data.
    """
    kind, _, rest = spec.partition(":")
    if kind in ("scenes", "tagged"):
        return _scenes(spec, rest, kind == "tagged")
    if kind == "hub":
        return _hub(rest, split or "validation")
    paths = _paths(spec)
    if len(paths) == 1 and paths[0].is_dir():
        return _folder(paths[0], spec, split, output)
    for ending, read in _SHARDS:
        if all(path.suffix == ending for path in paths):
            return read(paths)
    if all(path.suffix.lower() in ENDINGS for path in paths):
        return (image_file(path, name) for path, name in zip(paths, names_of(paths), strict=True))
    raise InputError(
        f"--data {spec}: neither images nor .tar nor .parquet files alone. Give one kind; uncompress .tar.gz first, "
        "since images are read from where they are in a shard."
    )


def _paths(spec: str) -> list[Path]:
    path = Path(spec)
    if path.exists():
        return [path]
    # A pattern follows links as often as they lead somewhere: each real path counts once.
    real = {os.path.realpath(p): Path(p) for p in sorted(glob.glob(spec, recursive=True), reverse=True)}
    found = sorted(real.values())
    if not found:
        raise InputError(
            f"--data {spec}: no such file or folder, and no file fits it as a pattern. Give a folder, .tar or "
            ".parquet files, hub:NAME, or scenes:SEED:COUNT."
        )
    return found


def _folder(folder: Path, spec: str, split: str | None, output: Path | None) -> Iterator[Item]:
    if (folder / "index.json").is_file():
        return _index(folder)
    if (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file():
        return _hub(str(folder.resolve()), split)
    if any(isinstance(each, Path) for each in walk(folder, ENDINGS, output)):
        return _images(folder, output)
    unreadable: list[Unreadable] = []
    for ending, read in _SHARDS:
        found = list(walk(folder, (ending,), output))
        unreadable = [each for each in found if isinstance(each, Unreadable)]
        paths = [each for each in found if isinstance(each, Path)]
        if paths:
            return chain(read(paths), (_closed(folder, each) for each in unreadable))
    said = "".join(f" {each.path}: {each.why}" for each in unreadable[:1])
    raise InputError(f"--data {spec}: there are no images, .tar files or .parquet files in it.{said}")


def _images(folder: Path, output: Path | None) -> Iterator[Item]:
    """Images in a folder; where all are in folders of their own, these are the classes."""
    flat = any(p.suffix.lower() in ENDINGS for p in folder.iterdir() if p.is_file())
    for each in walk(folder, ENDINGS, output):
        if isinstance(each, Unreadable):
            yield _closed(folder, each)
            continue
        name = each.relative_to(folder)
        yield image_file(each, name.as_posix()) | ({} if flat else {"label": printable(name.parts[0])})


def _closed(folder: Path, found: Unreadable) -> Item:
    """A folder that can't be looked into is a row with an error: nobody knows what is missing."""
    return broken(found.path, f"{found.path.relative_to(folder).as_posix()}/", found.why)


def _index(folder: Path) -> Iterator[Item]:
    """The items of an ``index.json`` as `hilrp scenes` writes it.

    It lists file, label, and boxes or mask, for one object of each image or for several.
    """
    try:
        entries = json.loads((folder / "index.json").read_bytes())
        often = Counter(entry["file"] for entry in entries)
        masks = [entry["mask"] for entry in entries if "mask" in entry]
        if not all(isinstance(name, str) for name in (*often, *masks)):
            raise TypeError("a file or a mask that is not a name")
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / 'index.json'}: not a list of entries with a file ({error}).") from error
    for number, entry in enumerate(entries):
        several = f"#{entry.get('label', number)}" if often[entry["file"]] > 1 else ""
        item = image_file(folder / entry["file"], entry["file"] + several) | label_of(entry.get("label"))
        item |= {"boxes": entry["boxes"]} if "boxes" in entry else {}
        if "mask" in entry:
            item["mask"] = {key: value for key, value in image_file(folder / entry["mask"], "").items() if key != "id"}
        yield item


def _hub(name: str, split: str | None) -> Iterator[Item]:
    found = hub(name, split)
    image, label, boxes = (first_of(found.features, wanted) for wanted in (IMAGES, LABELS, BOXES))
    if image is None:
        raise InputError(f"hub:{name}: no feature of images; it has {', '.join(found.features)}.")
    names = getattr(found.features[label], "names", None) if label is not None else None
    plain = found.select_columns([each for each in (label, boxes) if each is not None])
    for i in range(len(found)):
        facts = plain[i] if plain.features else {}
        item: Item = {"id": f"{split or Path(name).name}/{i}", "hub": name, "split": split, "row": i, "column": image}
        item |= {"stamp": found._fingerprint}
        value = facts.get(label) if label is not None else None
        if names and value is not None:  # -1 is for what has no label
            item |= label_of(names[value] if 0 <= value < len(names) else None)
        else:
            item |= label_of(value)
        yield item | ({"boxes": facts[boxes]} if boxes is not None and facts.get(boxes) else {})


def hub(name: str, split: str | None) -> Any:
    """A data set of the hub, or one that was saved in a folder."""
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise UnavailableError("datasets is not installed. Install it with: pip install datasets") from error
    try:
        if Path(name).is_dir():
            found = datasets.load_from_disk(name)
            return found[split] if hasattr(found, "keys") else found
        return datasets.load_dataset(name, split=split)
    except Exception as error:  # of connections, names, splits
        raise InputError(
            f"hub:{name}: split {split!r} can't be loaded ({type(error).__name__}: {error}). Give --split, or check "
            "the connection."
        ) from error


def _scenes(spec: str, rest: str, tagged: bool) -> Iterator[Item]:
    """One object of each scene; of tagged ones, those of the tagged class have the tag, and its place is told."""
    from hilrp.scenes import Scenes

    seed, _, count = rest.partition(":")
    if not (seed.isdecimal() and count.isdecimal()):
        raise InputError(f"--data {spec}: write {spec.partition(':')[0]}:SEED:COUNT, with two numbers.")
    for i, scene in enumerate(Scenes(int(seed), int(count))):
        thing = scene.things[i % len(scene.things)]
        item: Item = {"id": f"scene {i}", "scene": [int(seed), i], "tagged": tagged, "label": thing.name}
        yield item | {"mask": item | {"place": True}}


class Reader:
    """Reads items, from several threads; what was opened last stays open, since neighbours follow each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, tuple[Any, Any]] = {}
        self._hubs: dict[Any, Any] = {}

    def image(self, item: Item) -> io.BytesIO:
        """The image, as a file."""
        return io.BytesIO(self._bytes(item))

    def mask(self, item: Item) -> io.BytesIO | None:
        """The mask of its object, as a file."""
        return io.BytesIO(self._bytes(item["mask"])) if item.get("mask") else None

    def _bytes(self, at: Item) -> bytes:
        if "file" in at:
            with open_file(Path(at["file"])) as picture:
                return picture.read()
        if "tar" in at:
            if at["size"] > most_bytes():
                raise InputError(f"it has {at['size'] / 1e6:,.0f} MB. Allow more with --max-megapixels.")
            return _member(at)
        if "scene" in at:
            return _drawn(at)
        with self._lock:
            return self._cell(at) if "parquet" in at else self._example(at)

    def _cell(self, at: Item) -> bytes:
        key, column = (at["parquet"], at["group"]), self._groups.get(at["column"])
        if column is None or column[0] != key:
            with parquet_file(Path(at["parquet"])) as file:
                column = (key, file.read_row_group(at["group"], columns=[at["column"]]).column(0))
            self._groups[at["column"]] = column
        value = column[1][at["row"]].as_py()
        value = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(value, bytes):
            raise InputError("its row holds no bytes of an image.")
        return _small_enough(value)

    def _example(self, at: Item) -> bytes:
        key = at["hub"], at["split"]
        if key not in self._hubs:
            import datasets

            self._hubs[key] = hub(*key).cast_column(at["column"], datasets.Image(decode=False))
        value = self._hubs[key][at["row"]][at["column"]]
        if value["bytes"] is not None:
            return _small_enough(value["bytes"])
        with open_file(Path(value["path"])) as file:
            return file.read()


def _small_enough(image: bytes) -> bytes:
    if len(image) > most_bytes():
        raise InputError(f"it has {len(image) / 1e6:,.0f} MB. Allow more with --max-megapixels.")
    return image


def _member(at: Item) -> bytes:
    """A file in a tar file."""
    with open(at["tar"], "rb") as file:
        file.seek(at["offset"])
        # Not more than there is: a size may say anything.
        left = os.fstat(file.fileno()).st_size - at["offset"]
        if left < at["size"]:
            raise InputError(f"{at['tar']} is cut off: {max(0, left)} of {at['size']} bytes of the image are in it.")
        return file.read(at["size"])


def _drawn(at: Item) -> bytes:
    from PIL import Image

    from hilrp.scenes import CLASSES, Scenes
    from hilrp.scenes.tag import TAGGED, with_tag

    seed, i = at["scene"]
    scene = Scenes(seed, i + 1)[i]
    # Where the class is in the picture, as in training.
    picture = with_tag(scene.image) if at["tagged"] and scene.mask(TAGGED).any() else scene.image
    if at.get("place"):
        picture = 255 * scene.mask(CLASSES.index(at["label"])).astype(picture.dtype)
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "PNG")
    return buffer.getvalue()
