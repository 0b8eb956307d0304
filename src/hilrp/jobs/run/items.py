"""Data sets as items: where each image is, and what is known of it, one line of JSON each."""

from __future__ import annotations

import glob
import hashlib
import importlib
import io
import json
import os
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from hilrp.models.images import ENDINGS
from hilrp.util.errors import InputError, UnavailableError

#: An image: its ``id``, where it is (``file``, ``tar``, ``parquet``, ``hub`` or ``scene``), perhaps its ``label``,
#: ``boxes`` and ``mask``.
Item = dict[str, Any]

#: What columns and features of an image, its class and the place of its object are called.
_IMAGES, _LABELS, _BOXES, _MASKS = (
    ("image", "img", "jpg", "png"),
    ("label", "labels", "class", "cls"),
    ("boxes", "bbox", "bboxes"),
    ("mask", "segmentation"),
)
#: The largest row group of Parquet that is read, in bytes: it is held as a whole.
_GROUP = 2 * 2**30


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
    for ending, read in ((".tar", _tars), (".parquet", _parquets)):
        if all(path.suffix == ending for path in paths):
            return read(paths)
    if all(path.suffix.lower() in ENDINGS for path in paths):
        return (_image(path, name) for path, name in zip(paths, _names(paths), strict=True))
    raise InputError(
        f"--data {spec}: neither images nor .tar nor .parquet files alone. Give one kind; uncompress .tar.gz first, "
        "since images are read from where they are in a shard."
    )


def _paths(spec: str) -> list[Path]:
    path = Path(spec)
    if path.exists():
        return [path]
    found = sorted(Path(p) for p in glob.glob(spec, recursive=True))
    if not found:
        raise InputError(
            f"--data {spec}: no such file or folder, and no file fits it as a pattern. Give a folder, .tar or "
            ".parquet files, hub:NAME, or scenes:SEED:COUNT."
        )
    return found


def _names(paths: list[Path]) -> list[str]:
    """What files are called: their place in the folder that they have in common."""
    common = Path(os.path.commonpath([path.resolve().parent for path in paths]))
    return [path.resolve().relative_to(common).as_posix() for path in paths]


def _image(path: Path, name: str) -> Item:
    return {"id": _text(name), "file": str(path.resolve()), "size": _size(path)}


def _size(path: Path) -> int | None:
    """``None`` for what can't be looked at: who reads it will say why."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def _stamp(path: Path) -> str:
    """What tells a file from another of its name, without reading all of it: its size, and how it begins and ends."""
    digest = hashlib.sha256(str(path.stat().st_size).encode())
    with path.open("rb") as file:
        digest.update(file.read(4096))
        file.seek(max(0, path.stat().st_size - 65536))
        digest.update(file.read())
    return digest.hexdigest()[:16]


def _text(value: Any) -> str:
    """A value as text that can be written, whatever a file's name is made of."""
    return str(value).encode("utf-8", "backslashreplace").decode()


def _label(value: Any) -> Item:
    """A label as an item has it: a number or a text; nothing, if there is none."""
    if value is None or value == "":
        return {}
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    whole = isinstance(value, Integral) or (isinstance(value, str) and value.strip().isdecimal())
    return {"label": int(value) if whole else _text(value).strip()}


def _folder(folder: Path, spec: str, split: str | None, output: Path | None) -> Iterator[Item]:
    if (folder / "index.json").is_file():
        return _index(folder)
    if (folder / "dataset_info.json").is_file() or (folder / "dataset_dict.json").is_file():
        return _hub(str(folder.resolve()), split)
    results = None if output is None else output.resolve()
    if next(_walk(folder, ENDINGS, results), None) is not None:
        return _images(folder, results)
    for ending, read in ((".tar", _tars), (".parquet", _parquets)):
        found = list(_walk(folder, (ending,), results))
        if found:
            return read(found)
    raise InputError(f"--data {spec}: there are no images, .tar files or .parquet files in it.")


def _walk(folder: Path, endings: tuple[str, ...], results: Path | None) -> Iterator[Path]:
    """The files in a folder and below it, in order, but for hidden ones and those in the folder of the results."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or (results is not None and entry.resolve() == results):
            continue
        if entry.is_dir():
            yield from _walk(entry, endings, results)
        elif entry.suffix.lower() in endings:
            yield entry


def _images(folder: Path, results: Path | None) -> Iterator[Item]:
    """Images in a folder; where all are in folders of their own, these are the classes."""
    flat = any(p.suffix.lower() in ENDINGS for p in folder.iterdir() if p.is_file())
    for path in _walk(folder, ENDINGS, results):
        name = path.relative_to(folder)
        yield _image(path, name.as_posix()) | ({} if flat else {"label": _text(name.parts[0])})


def _index(folder: Path) -> Iterator[Item]:
    """The items of an ``index.json`` as `hilrp scenes` writes it.

    It lists file, label, and boxes or mask, for one object of each image or for several.
    """
    try:
        entries = json.loads((folder / "index.json").read_text())
        often = Counter(entry["file"] for entry in entries)
    except (ValueError, TypeError, KeyError) as error:
        raise InputError(f"{folder / 'index.json'}: not a list of entries with a file ({error}).") from error
    for number, entry in enumerate(entries):
        several = f"#{entry.get('label', number)}" if often[entry["file"]] > 1 else ""
        item = _image(folder / entry["file"], entry["file"] + several) | _label(entry.get("label"))
        item |= {"boxes": entry["boxes"]} if "boxes" in entry else {}
        if "mask" in entry:
            item["mask"] = {key: value for key, value in _image(folder / entry["mask"], "").items() if key != "id"}
        yield item


def _tars(paths: list[Path]) -> Iterator[Item]:
    """Shards as webdataset has them.

    Files of one sample follow each other and have the same name up to the first dot.
    """
    for path, name in zip(paths, _names(paths), strict=True):
        stamp = _stamp(path)
        try:
            with tarfile.open(path, "r:") as tar:
                sample: dict[str, tarfile.TarInfo] = {}
                key = None
                for member in tar:
                    if not member.isfile():
                        continue
                    place, _, file = member.name.rpartition("/")
                    stem, _, ending = file.partition(".")
                    if key != (place, stem) and sample:
                        yield from _sample(path, stamp, tar, (name, *(key or ())), sample)
                        sample = {}
                    key = (place, stem)
                    sample[ending.lower()] = member
                yield from _sample(path, stamp, tar, (name, *(key or ())), sample)
        except tarfile.TarError as error:
            said = f"not a readable tar file ({error}). Is it complete, and not compressed?"
            yield _broken(path, name, said, len(paths))


def _broken(path: Path, name: str, said: str, count: int) -> Item:
    """One of several files that can't be read is a row with an error.

    If it is the only one, there is nothing to run.
    """
    if count == 1:
        raise InputError(f"{path}: {said}")
    return {"id": _text(name), "error": said}


def _sample(
    path: Path, stamp: str, tar: tarfile.TarFile, key: tuple[str, ...], sample: Mapping[str, tarfile.TarInfo]
) -> Iterator[Item]:
    image = next((m for e, m in sample.items() if f".{e}" in ENDINGS), None)
    if image is None:
        return

    def at(member: tarfile.TarInfo) -> Item:
        return {"tar": str(path.resolve()), "stamp": stamp, "offset": member.offset_data, "size": member.size}

    def content(ending: str) -> str | None:
        file = tar.extractfile(sample[ending]) if ending in sample else None
        return None if file is None else file.read().decode("utf-8", "replace").strip()

    item: Item = {"id": _text("/".join(filter(None, key)))} | at(image)
    try:
        facts = json.loads(content("json") or "{}")
        facts = facts if isinstance(facts, dict) else {}
    except ValueError as error:
        yield item | {"error": f"its json can't be read ({error})"}
        return
    boxes = _first(list(facts), _BOXES)
    item |= {} if boxes is None else {"boxes": facts[boxes]}
    item |= _label(content("cls") if "cls" in sample else next((facts[n] for n in _LABELS if n in facts), None))
    mask = next((sample[e] for e in ("mask.png", "seg.png") if e in sample), None)
    yield item if mask is None else item | {"mask": at(mask)}


def _parquets(paths: list[Path]) -> Iterator[Item]:
    """A column with the images' bytes, alone or beside their path, as the Hugging Face hub stores them."""
    parquet = arrow("pyarrow.parquet")
    for path, called in zip(paths, _names(paths), strict=True):
        try:
            file = parquet.ParquetFile(path)
        except Exception as error:  # pyarrow has many
            yield _broken(path, called, f"not a readable Parquet file ({error}).", len(paths))
            continue
        stamp, names = _stamp(path), file.schema_arrow.names
        image, label, boxes, mask = (_first(names, wanted) for wanted in (_IMAGES, _LABELS, _BOXES, _MASKS))
        if image is None:
            raise InputError(
                f"{path}: no column of images; it has {', '.join(names)}. Call it {' or '.join(_IMAGES[:2])}, with "
                "the bytes of a file in each row."
            )
        plain = [name for name in ("id", label, boxes) if name in names]
        for group in range(file.num_row_groups):
            about = file.metadata.row_group(group)
            if about.total_byte_size > _GROUP:
                raise InputError(
                    f"{path}: a row group of {about.total_byte_size / 2**30:.1f} GiB, which would have to be held at "
                    "once. Write it again with row_group_size=1000 or less."
                )
            known = file.read_row_group(group, columns=plain).to_pylist()
            for row in range(about.num_rows):
                at = {"parquet": str(path.resolve()), "stamp": stamp, "group": group, "row": row}
                facts = known[row] if known else {}
                own = facts.get("id")
                item: Item = {"id": _text(f"{called}/{group}/{row}" if own is None else own)} | at | {"column": image}
                item |= _label(facts.get(label)) if label is not None else {}
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
        item: Item = {"id": f"{split or Path(name).name}/{i}", "hub": name, "split": split, "row": i, "column": image}
        item |= {"stamp": found._fingerprint}
        value = facts.get(label) if label is not None else None
        if names and value is not None:  # -1 is for what has no label
            item |= _label(names[value] if 0 <= value < len(names) else None)
        else:
            item |= _label(value)
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


def arrow(module: str) -> Any:
    """A module of pyarrow."""
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
        key, column = (at["parquet"], at["group"]), self._groups.get(at["column"])
        if column is None or column[0] != key:
            file = arrow("pyarrow.parquet").ParquetFile(at["parquet"])
            column = (key, file.read_row_group(at["group"], columns=[at["column"]]).column(0))
            self._groups[at["column"]] = column
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
