"""Reads the files of a request as they arrive, into a folder, and never more than was announced."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import IO, Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from hilrp.util.errors import InputError

#: So many files may be sent at once.
_FILES = 100
#: For how many seconds the sender may be silent.
_SILENCE = 60.0
#: What the name of a file may not have: it is shown, and becomes part of names of other files.
_ODD = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')


class _Files:
    """What is told by the parser; each file is put into a folder of its own, under its own name."""

    def __init__(self, folder: Path, largest: int, progress: Callable[[str, bytes], None]) -> None:
        self.found: list[Path] = []
        self.ended = False
        self._folder, self._largest, self._progress = folder, largest, progress
        self._file: IO[bytes] | None = None
        self._field, self._value = b"", b""
        self._disposition, self._left = b"", 0

    def callbacks(self) -> dict[str, Any]:
        """All of them, by the parser's names."""
        names = "part_begin part_data part_end header_field header_value header_end headers_finished end"
        return {f"on_{name}": getattr(self, f"_on_{name}") for name in names.split()}

    def close(self) -> None:
        """Closes a file that did not arrive whole."""
        if self._file is not None:
            self._file.close()

    def _on_part_begin(self) -> None:
        self._disposition = b""

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field, self._value = b"", b""

    def _on_headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        if options.get(b"name") != b"files" or b"filename" not in options:
            return
        if len(self.found) >= _FILES:
            raise InputError(f"More than {_FILES} files were sent at once. Send fewer.")
        folder = self._folder / str(len(self.found))
        folder.mkdir()
        path = folder / _name(options[b"filename"])
        self._file, self._left = path.open("wb"), self._largest
        self.found.append(path)

    def _on_part_data(self, data: bytes, start: int, end: int) -> None:
        if self._file is None:
            return
        self._left -= end - start
        if self._left < 0:
            raise InputError(f"{self.found[-1].name}: larger than {self._largest / 2**30:g} GiB. Send a smaller file.")
        self._file.write(data[start:end])
        self._progress(self.found[-1].name, data[start:end])

    def _on_part_end(self) -> None:
        self.close()
        self._file = None

    def _on_end(self) -> None:
        self.ended = True


async def receive(
    stream: AsyncIterator[bytes],
    content_type: str,
    folder: Path,
    announced: int,
    largest: int,
    progress: Callable[[str, bytes], None],
) -> list[Path]:
    """Writes the files of a form as they arrive.

    Args:
        stream: The request's body.
        content_type: Its header of that name.
        folder: Where they are put.
        announced: The size of the whole body: no more than that is read.
        largest: The size of the largest file that is taken.
        progress: Is told the name of a file and each part of it.

    Returns:
        The files, each in a folder of its own.
    """
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise InputError("Files are sent as a form (multipart/form-data). Drop them on the page.")
    files = _Files(folder, largest, progress)
    body = aiter(stream)
    try:
        parser = MultipartParser(options[b"boundary"], files.callbacks())  # type: ignore[arg-type]
        while True:
            try:
                part = await asyncio.wait_for(anext(body), _SILENCE)
            except StopAsyncIteration:
                break
            announced -= len(part)
            if announced < 0:
                raise InputError("More was sent than was announced. Send it again.")
            parser.write(part)
    except FormParserError as error:
        raise InputError(f"What was sent is no form with files ({error}). Drop them on the page.") from error
    except TimeoutError as error:
        raise InputError(f"Nothing arrived for {_SILENCE:g} seconds. Send it again.") from error
    finally:
        files.close()
    if not files.ended or not files.found:
        raise InputError("The files did not arrive whole. Drop them again.")
    return files.found


def _name(sent: bytes) -> str:
    """The name of a file, without folders and what could be read as something else."""
    name = _ODD.sub("_", re.split(r"[/\\]", sent.decode("utf-8", "replace"))[-1]).strip(". ")
    while len(name.encode()) > 200:  # a file system takes 255 bytes
        stem, dot, end = name.rpartition(".")
        name = f"{stem[:-1]}.{end}" if dot and len(stem) > 1 and len(end) < 20 else name[:-1]
    return name or "file"
