"""Files that were sent: counted before they arrive, a tab's own once it names them, and gone when nobody wants them."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from hilrp.app.pictures import discard
from hilrp.app.sessions import Session
from hilrp.util.errors import InputError

#: The most that may be there at once, in bytes, sent by all and by one client; and the largest file: checkpoints are
#: large.
TOTAL, OF_CLIENT, LARGEST = 8 * 2**30, 5 * 2**30, 4 * 2**30
#: For how many seconds a file may wait for a tab that names it.
UNOWNED = 300.0
#: Gradio leaves an empty file behind for each one that it hands on; after so many seconds it can go.
_EMPTY = 60.0


@dataclass(eq=False)
class Upload:
    """Files that are sent together.

    Attributes:
        client: Who sends them.
        folder: Where they are put.
        size: What they take, in bytes: what was announced, until they are there.
        files: They, once all of them are there.
        since: When they were.
    """

    client: str
    folder: Path
    size: int
    files: list[Path] | None = None
    since: float = 0.0


@dataclass
class Uploads:
    """All files that were sent and are still there.

    Attributes:
        folder: The folder that holds them.
        total, of_client: The most that may be there at once, in bytes.
    """

    folder: Path
    total: int = TOTAL
    of_client: int = OF_CLIENT
    _all: list[Upload] = field(default_factory=list)
    _unowned: set[Path] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.folder = self.folder.resolve()

    def reserve(self, client: str, size: int) -> Upload:
        """Makes room for what a client announces, before any of it is read."""
        with self._lock:
            self._count()
            held = sum(each.size for each in self._all)
            own = sum(each.size for each in self._all if each.client == client)
            if held + size > self.total or own + size > self.of_client:
                raise InputError("Too much is being sent at once. Try again in some minutes, or send a smaller file.")
            upload = Upload(client, self.folder / secrets.token_hex(16), size)
            self._all.append(upload)
        upload.folder.mkdir(parents=True)
        return upload

    def arrived(self, upload: Upload, files: Sequence[Path]) -> None:
        """Takes down what was sent, instead of what was announced."""
        with self._lock:
            upload.files, upload.since = list(files), time.monotonic()
            upload.size = sum(_size(file) for file in files)
            self._unowned.update(files)

    def cancel(self, upload: Upload) -> None:
        """Forgets files that did not arrive."""
        shutil.rmtree(upload.folder, ignore_errors=True)
        with self._lock:
            self._all.remove(upload)

    def claim(self, path: str, session: Session) -> Path:
        """The file of a path that a tab names; from now on it is this tab's alone.

        No file is looked for: the path must be one that was given to whoever sent the file.
        """
        file = Path(path)
        with self._lock:
            if file in self._unowned:
                self._unowned.remove(file)
                session.files.add(file)
        if file not in session.files:
            raise InputError(f"{file.name[:80]}: it was not sent from this page. Drop it on the page.")
        return file

    def sweep(self) -> None:
        """Deletes what no tab has named within minutes."""
        now = time.monotonic()
        with self._lock:
            late = {
                file
                for each in self._all
                if now - each.since > UNOWNED
                for file in each.files or ()
                if file in self._unowned
            }
            self._unowned -= late
            for file in late:
                discard(file)
            self._count()
        for path in self.folder.iterdir():
            with suppress(OSError):
                found = path.stat()
                if path.is_file() and not found.st_size and time.time() - found.st_mtime > _EMPTY:
                    path.unlink()

    @property
    def size(self) -> int:
        """What is there or announced, in bytes."""
        with self._lock:
            self._count()
            return sum(each.size for each in self._all)

    def _count(self) -> None:
        """Forgets files that were read and deleted since."""
        for each in self._all:
            if each.files is not None:
                each.files = [file for file in each.files if file.exists()]
                each.size = sum(_size(file) for file in each.files)
                if not each.files:
                    shutil.rmtree(each.folder, ignore_errors=True)
        self._all = [each for each in self._all if each.files is None or each.files]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0
