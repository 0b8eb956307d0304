"""Data sets in shards: tar files as webdataset has them, and Parquet files.

A shard that is damaged or cut off gives the images that can be read, and an item with an error that says so.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hilrp.jobs.run.item import (
    BOXES,
    IMAGES,
    LABELS,
    MASKS,
    Item,
    arrow,
    broken,
    first_of,
    label_of,
    names_of,
    parquet_file,
    stamp,
)
from hilrp.models.images import ENDINGS
from hilrp.util.errors import InputError
from hilrp.util.regular_files import PASSING, not_a_file, printable

#: The largest row group of Parquet that is read, in bytes: it is held as a whole.
_GROUP = 2 * 2**30
#: The largest text beside an image that is read, in bytes.
_TEXT = 16 * 2**20
#: How many of the places that are damaged are named.
_NAMED = 3
#: A tar file ends with two blocks of zeros.
_END = 2 * tarfile.BLOCKSIZE

Members = dict[str, tarfile.TarInfo]


@dataclass
class _Read:
    """What was read of a tar file: how many files, and what is wrong with it."""

    files: int = 0
    damage: list[str] = field(default_factory=list)


def tars(paths: list[Path]) -> Iterator[Item]:
    """The images in tar files; those that are several in one, one after the other, are read whole."""
    for path, name in zip(paths, names_of(paths), strict=True):
        seen, read = 0, _Read()
        why = not_a_file(path)
        if why is not None:
            yield broken(path, name, why, len(paths) == 1)
            continue
        try:
            mark = stamp(path)
            with tarfile.open(path, "r:"):  # what doesn't begin as a tar file is not searched for one
                pass
            with tarfile.open(path, "r:", ignore_zeros=True) as tar:
                for key, sample in _samples(_members(tar, path.stat().st_size, read)):
                    for item in _item(path, mark, tar, (name, *key), sample):
                        seen += 1
                        yield item
        except (tarfile.TarError, OSError) as error:
            if isinstance(error, OSError) and error.errno in PASSING:
                raise
            said = f"not a readable tar file ({error}). Is it complete, and not compressed?"
            yield broken(path, name, said, len(paths) == 1 and not seen)
            continue
        if read.damage:
            more = [f"and {len(read.damage) - _NAMED} more such places"] if len(read.damage) > _NAMED else []
            said = (
                f"a damaged tar file: {'; '.join(read.damage[:_NAMED] + more)}. {read.files} files were read from it, "
                "and others may be missing. Fetch or write it again."
            )
            yield broken(path, name, said, len(paths) == 1 and not seen)


def _members(tar: tarfile.TarFile, size: int, read: _Read) -> Iterator[tarfile.TarInfo]:
    """What is in a tar file, also after a place that is damaged; notes such places."""
    end = 0
    while True:
        try:
            member = tar.next()
        except Exception as error:  # headers that are damaged may raise anything
            if isinstance(error, OSError) and error.errno in PASSING:
                raise
            read.damage.append(f"it can't be read after byte {end} ({error})")
            return
        start = size if member is None else member.offset
        if start < end or (member is not None and member.size < 0):
            read.damage.append(f"the file at byte {end} says an impossible size")
            return
        why = _gap(tar, end, start)
        if why is not None:
            read.damage.append(why)
        if member is None:
            if size - end < _END and why is None:
                read.damage.append(f"it is cut off at byte {size}, since the mark at its end is missing")
            return
        end = tar.offset
        read.files += 1
        yield member


def _gap(tar: tarfile.TarFile, start: int, stop: int) -> str | None:
    """What is wrong with a place that belongs to no file: between two tar files in one there are zeros."""
    if stop == start:
        return None
    file: Any = tar.fileobj
    file.seek(start)
    left, zeros = stop - start, True
    while left > 0 and zeros:
        part = file.read(min(left, 2**20))
        zeros, left = part.count(0) == len(part), left - len(part) if part else 0
    lone = stop - start < _END
    if zeros and not lone:
        return None
    return f"{stop - start} bytes from byte {start} on belong to no file"


def _samples(members: Iterator[tarfile.TarInfo]) -> Iterator[tuple[tuple[str, str], Members]]:
    """Files of one sample follow each other and have the same name up to the first dot."""
    sample: Members = {}
    key = ("", "")
    for member in members:
        if not member.isfile():
            continue
        place, _, file = member.name.rpartition("/")
        stem, _, ending = file.partition(".")
        if key != (place, stem) and sample:
            yield key, sample
            sample = {}
        key = (place, stem)
        sample[ending.lower()] = member
    if sample:
        yield key, sample


def _item(
    path: Path, mark: str, tar: tarfile.TarFile, key: tuple[str, ...], sample: Mapping[str, tarfile.TarInfo]
) -> Iterator[Item]:
    """The image of a sample, if there is one."""
    image = next((m for e, m in sample.items() if f".{e}" in ENDINGS), None)
    if image is None:
        return

    def at(member: tarfile.TarInfo) -> Item:
        return {"tar": str(path.resolve()), "stamp": mark, "offset": member.offset_data, "size": member.size}

    def content(ending: str) -> str | None:
        if ending in sample and sample[ending].size > _TEXT:
            raise ValueError(f"{sample[ending].size} bytes are too many")
        file = tar.extractfile(sample[ending]) if ending in sample else None
        return None if file is None else file.read().decode("utf-8", "replace").strip()

    item: Item = {"id": printable("/".join(filter(None, key)))} | at(image)
    try:
        facts = json.loads(content("json") or "{}")
        facts = facts if isinstance(facts, dict) else {}
        label = content("cls") if "cls" in sample else next((facts[n] for n in LABELS if n in facts), None)
    except (ValueError, RecursionError, tarfile.TarError) as error:
        yield item | {"error": f"its json or cls can't be read ({error})"}
        return
    boxes = first_of(facts, BOXES)
    item |= {} if boxes is None else {"boxes": facts[boxes]}
    item |= label_of(label)
    mask = next((sample[e] for e in ("mask.png", "seg.png") if e in sample), None)
    yield item if mask is None else item | {"mask": at(mask)}


def parquets(paths: list[Path]) -> Iterator[Item]:
    """A column with the images' bytes, alone or beside their path, as the Hugging Face hub stores them."""
    arrow("pyarrow.parquet")  # if it isn't installed, that is no file's fault
    for path, name in zip(paths, names_of(paths), strict=True):
        seen = 0
        try:
            why = not_a_file(path)
            if why is not None:
                raise InputError(why)
            with parquet_file(path) as file:
                for item in _rows(path, name, file):
                    seen += 1
                    yield item
        except InputError as error:
            yield broken(path, name, str(error), len(paths) == 1 and not seen)
        except Exception as error:  # pyarrow has many
            if isinstance(error, OSError) and error.errno in PASSING:
                raise
            said = f"not a readable Parquet file ({error}). {seen} rows were read from it. Fetch or write it again."
            yield broken(path, name, said, len(paths) == 1 and not seen)


def _rows(path: Path, name: str, file: Any) -> Iterator[Item]:
    mark, names = stamp(path), file.schema_arrow.names
    image, label, boxes, mask = (first_of(names, wanted) for wanted in (IMAGES, LABELS, BOXES, MASKS))
    if image is None:
        raise InputError(
            f"no column of images; it has {', '.join(names)}. Call it {' or '.join(IMAGES[:2])}, with the bytes of a "
            "file in each row."
        )
    plain = [name for name in ("id", label, boxes) if name in names]
    for group in range(file.num_row_groups):
        about = file.metadata.row_group(group)
        if about.total_byte_size > _GROUP:
            raise InputError(
                f"a row group of {about.total_byte_size / 2**30:.1f} GiB, which would have to be held at once. Write "
                "it again with row_group_size=1000 or less."
            )
        known = file.read_row_group(group, columns=plain).to_pylist()
        for row in range(about.num_rows):
            at = {"parquet": str(path.resolve()), "stamp": mark, "group": group, "row": row}
            facts = known[row] if known else {}
            own = facts.get("id")
            item: Item = {"id": printable(f"{name}/{group}/{row}" if own is None else own)} | at | {"column": image}
            item |= label_of(facts.get(label)) if label is not None else {}
            item |= {"boxes": facts[boxes]} if boxes is not None and facts.get(boxes) else {}
            yield item if mask is None else item | {"mask": at | {"column": mask}}
