"""Data sets as items: where each image is, and what is known of it, one line of JSON each."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hilrp.errors import InputError, UnavailableError
from hilrp.images import ENDINGS

#: An image: its ``id``, where it is (``file``, ``tar``, ``parquet``, ``hub`` or ``scene``), perhaps its ``label``, ``boxes`` and ``mask``.
Item = dict[str, Any]

#: What columns and features of an image, its class and the place of its object are called.
_IMAGES, _LABELS, _BOXES, _MASKS = ("image", "img", "jpg", "png"), ("label", "labels", "class", "cls"), ("boxes", "bbox", "bboxes"), ("mask", "segmentation")  # fmt: skip


def find(spec: str, split: str | None = None) -> Iterator[Item]:
    """The items of a data set, in an order that is always the same.

    Args:
        spec: A folder (with ``index.json``, with a folder for each class, or with images), shards of tar files or Parquet files (a file, a folder of them, or a glob), ``hub:NAME``
            for a data set of the Hugging Face hub, ``scenes:SEED:COUNT``, or ``tagged:SEED:COUNT`` for scenes with the planted shortcut.
        split: Of a data set of the hub.
    """
    kind, _, rest = spec.partition(":")
    if kind in ("scenes", "tagged"):
        return _scenes(spec, rest, kind == "tagged")
    if kind == "hub":
        return _hub(rest, split or "validation")
    paths = _paths(spec)
    if len(paths) == 1 and paths[0].is_dir():
        return _folder(paths[0], spec)
    for ending, read in ((".tar", _tars), (".parquet", _parquets)):
        if all(path.suffix == ending for path in paths):
            return read(paths)
    if all(path.suffix.lower() in ENDINGS for path in paths):
        return ({"id": path.name, "file": str(path.resolve()), "size": path.stat().st_size} for path in paths)
    raise InputError(f"--data {spec}: files of several kinds. Give images, .tar files or .parquet files.")


def _paths(spec: str) -> list[Path]:
    import glob

    path = Path(spec)
    if path.exists():
        return [path]
    found = sorted(Path(p) for p in glob.glob(spec, recursive=True))
    if not found:
        raise InputError(
            f"--data {spec}: no such file or folder, and no file fits it as a pattern. Give a folder, .tar or .parquet files, hub:NAME, or scenes:SEED:COUNT."
        )
    return found


def _folder(folder: Path, spec: str) -> Iterator[Item]:
    if (folder / "index.json").is_file():
        return _index(folder)
    for ending, read in (("tar", _tars), ("parquet", _parquets)):
        found = sorted(folder.rglob(f"*.{ending}"))
        if found:
            return read(found)
    if (folder / "dataset_info.json").is_file():
        return _hub(str(folder.resolve()), None)
    return _images(folder, spec)


def _images(folder: Path, spec: str) -> Iterator[Item]:
    """Images in a folder; where all are in folders of their own, these are the classes."""

    def walk(place: Path) -> Iterator[Path]:
        entries = sorted(p for p in place.iterdir() if not p.name.startswith("."))
        for entry in entries:
            if entry.is_dir():
                yield from walk(entry)
            elif entry.suffix.lower() in ENDINGS:
                yield entry

    flat = any(p.suffix.lower() in ENDINGS for p in folder.iterdir() if p.is_file())
    count = 0
    for path in walk(folder):
        count += 1
        name = path.relative_to(folder)
        item: Item = {"id": name.as_posix(), "file": str(path.resolve()), "size": path.stat().st_size}
        yield item if flat else item | {"label": name.parts[0]}
    if not count:
        raise InputError(f"--data {spec}: there are no images, .tar files or .parquet files in it.")


def _index(folder: Path) -> Iterator[Item]:
    """As `hilrp scenes` writes it: a list of file, label, and boxes or mask; one object of each image, or several."""
    try:
        entries = json.loads((folder / "index.json").read_text())
        names = [entry["file"] for entry in entries]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / 'index.json'}: not a list of entries with a file ({error}).") from error
    often = {name: names.count(name) for name in set(names)} if len(names) < 100_000 else {}
    for entry in entries:
        path = folder / entry["file"]
        number = f"#{entry['label']}" if often.get(entry["file"], 1) > 1 else ""
        item: Item = {"id": entry["file"] + number, "file": str(path.resolve())}
        item |= {key: entry[key] for key in ("label", "boxes") if key in entry}
        if "mask" in entry:
            item["mask"] = {"file": str((folder / entry["mask"]).resolve())}
        yield item


def _tars(paths: list[Path]) -> Iterator[Item]:
    """Shards as webdataset has them: files of one sample follow each other and have the same name up to the first dot."""
    for path in paths:
        try:
            with tarfile.open(path) as tar:
                sample: dict[str, tarfile.TarInfo] = {}
                key = None
                for member in tar:
                    if not member.isfile():
                        continue
                    folder, _, name = member.name.rpartition("/")
                    stem, _, ending = name.partition(".")
                    if key != (folder, stem) and sample:
                        yield from _sample(path, tar, key, sample)
                        sample = {}
                    key = (folder, stem)
                    sample[ending.lower()] = member
                yield from _sample(path, tar, key, sample)
        except tarfile.TarError as error:
            raise InputError(f"{path}: not a readable tar file ({error}). Is it complete?") from error


def _sample(path: Path, tar: tarfile.TarFile, key: Any, sample: Mapping[str, tarfile.TarInfo]) -> Iterator[Item]:
    image = next((m for e, m in sample.items() if f".{e}" in ENDINGS), None)
    if image is None:
        return

    def at(member: tarfile.TarInfo) -> Item:
        return {"tar": str(path.resolve()), "offset": member.offset_data, "size": member.size}

    def content(ending: str) -> str | None:
        file = tar.extractfile(sample[ending]) if ending in sample else None
        return None if file is None else file.read().decode("utf-8", "replace").strip()

    item: Item = {"id": "/".join(filter(None, (path.name, *key)))} | at(image)
    facts = json.loads(content("json") or "{}")
    boxes = _first(list(facts), _BOXES)
    item |= {} if boxes is None else {"boxes": facts[boxes]}
    label = content("cls") if "cls" in sample else next((facts[n] for n in _LABELS if n in facts), None)
    if label is not None:
        item["label"] = int(label) if str(label).lstrip("-").isdecimal() else str(label)
    mask = next((sample[e] for e in ("mask.png", "seg.png") if e in sample), None)
    yield item if mask is None else item | {"mask": at(mask)}


def _parquets(paths: list[Path]) -> Iterator[Item]:
    """A column with the images' bytes, alone or beside their path, as the Hugging Face hub stores them."""
    parquet = arrow("pyarrow.parquet")
    for path in paths:
        try:
            file = parquet.ParquetFile(path)
        except Exception as error:  # pyarrow has many
            raise InputError(f"{path}: not a readable Parquet file ({error}).") from error
        names = file.schema_arrow.names
        image, label, boxes, mask = (_first(names, wanted) for wanted in (_IMAGES, _LABELS, _BOXES, _MASKS))
        if image is None:
            raise InputError(
                f"{path}: no column of images; it has {', '.join(names)}. Call it {' or '.join(_IMAGES[:2])}, with the bytes of a file in each row."
            )
        plain = [name for name in ("id", label, boxes) if name in names]
        for group in range(file.num_row_groups):
            known = file.read_row_group(group, columns=plain).to_pylist()
            for row in range(file.metadata.row_group(group).num_rows):
                at = {"parquet": str(path.resolve()), "group": group, "row": row}
                facts = known[row] if known else {}
                item: Item = {"id": str(facts.get("id", f"{path.name}/{group}/{row}"))} | at | {"column": image}
                item |= {"label": facts[label]} if label is not None and facts.get(label) is not None else {}
                item |= {"boxes": facts[boxes]} if boxes is not None and facts.get(boxes) else {}
                yield item if mask is None else item | {"mask": at | {"column": mask}}


def _first(names: list[str], wanted: tuple[str, ...]) -> str | None:
    return next((name for name in wanted if name in names), None)


def _hub(name: str, split: str | None) -> Iterator[Item]:
    found = hub(name, split)
    image, label, boxes = (_first(list(found.features), wanted) for wanted in (_IMAGES, _LABELS, _BOXES))
    if image is None:
        raise InputError(f"hub:{name}: no feature of images; it has {', '.join(found.features)}.")
    names = getattr(found.features[label], "names", None) if label is not None else None
    plain = found.select_columns([each for each in (label, boxes) if each is not None])
    for i in range(len(found)):
        facts = plain[i] if plain.features else {}
        item: Item = {"id": f"{split or name}/{i}", "hub": name, "split": split, "row": i, "column": image}
        if label is not None and facts.get(label) is not None:
            item["label"] = names[facts[label]] if names else facts[label]
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
            return found[split] if split and hasattr(found, "keys") else found
        return datasets.load_dataset(name, split=split)
    except Exception as error:  # of connections, names, splits
        raise InputError(
            f"hub:{name}: split {split!r} can't be loaded ({type(error).__name__}: {error}). Give --split, or check the connection."
        ) from error


def arrow(module: str) -> Any:
    """A module of pyarrow."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UnavailableError("pyarrow is not installed. Install it with: pip install 'hilrp[data]'") from error


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
        self._group: tuple[Any, Any] = (None, None)
        self._hubs: dict[Any, Any] = {}

    def image(self, item: Item) -> io.BytesIO:
        """The image, as a file."""
        return io.BytesIO(self._bytes(item))

    def mask(self, item: Item) -> io.BytesIO | None:
        """The mask of its object, as a file."""
        return io.BytesIO(self._bytes(item["mask"])) if item.get("mask") else None

    def _bytes(self, at: Item) -> bytes:
        if "file" in at:
            return Path(at["file"]).read_bytes()
        if "tar" in at:
            with open(at["tar"], "rb") as file:
                file.seek(at["offset"])
                return file.read(at["size"])
        if "scene" in at:
            return _drawn(at)
        with self._lock:
            return self._cell(at) if "parquet" in at else self._example(at)

    def _cell(self, at: Item) -> bytes:
        key, column = (at["parquet"], at["group"], at["column"]), self._group
        if column[0] != key:
            file = arrow("pyarrow.parquet").ParquetFile(at["parquet"])
            column = self._group = (key, file.read_row_group(at["group"], columns=[at["column"]]).column(0))
        value = column[1][at["row"]].as_py()
        value = value.get("bytes") if isinstance(value, dict) else value
        if not isinstance(value, bytes):
            raise InputError("its row holds no bytes of an image.")
        return value

    def _example(self, at: Item) -> bytes:
        key = at["hub"], at["split"]
        if key not in self._hubs:
            import datasets

            self._hubs[key] = hub(*key).cast_column(at["column"], datasets.Image(decode=False))
        value = self._hubs[key][at["row"]][at["column"]]
        found: bytes = value["bytes"] if value["bytes"] is not None else Path(value["path"]).read_bytes()
        return found


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
