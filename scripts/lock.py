"""Writes requirements/dev.lock: every package of the development environment, its version and its files' hashes.

And requirements/libraries.lock: of the model libraries that requirements/libraries.in names, without their own needs.

    make lock                              # what pyproject.toml newly asks for; all other versions stay
    make lock LOCK_OPTIONS=--upgrade       # the newest of all; or --upgrade-package NAME

No address of an index is written, and none but the default one (or its mirror, UV_DEFAULT_INDEX) is asked: the hashes
are those of the files that everybody gets. uv resolves; it is installed for that alone, as the lock pins it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Sequence
from pathlib import Path

from dependencies import LIBRARIES, LIBRARIES_LOCK, LOCK, ROOT, locked
from environment import PLATFORM, PYTHON

#: Places beside the one index, which may hold other files of the same name.
OTHERS = ("UV_FIND_LINKS", "UV_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL", "UV_CONFIG_FILE")


def uv(folder: Path) -> Path:
    """Installs uv into an environment in a folder; its path."""
    venv.create(folder, with_pip=True)
    pinned = locked().get("uv") if LOCK.exists() else None
    (folder / "uv.txt").write_text(pinned.text if pinned else "uv\n")
    hashed = ["--require-hashes"] if pinned else []
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *hashed, "-r", folder / "uv.txt"]
    subprocess.run(install, check=True)
    return folder / "bin" / "uv"


def commands(program: Path, options: Sequence[str]) -> list[list[str]]:
    """What resolves pyproject.toml with its extra `dev`, then the model libraries; each writes its lock."""
    where = ["--python-version", PYTHON, "--python-platform", PLATFORM]
    form = ["--generate-hashes", "--strip-extras", "--custom-compile-command", "make lock", "--no-config", "--quiet"]
    wanted = {
        LOCK: ["pyproject.toml", "--extra", "dev"],
        LIBRARIES_LOCK: [str(LIBRARIES.relative_to(ROOT)), "--no-deps", "--no-annotate"],
    }
    start = [str(program), "pip", "compile"]
    return [[*start, *what, *where, "-o", str(lock), *form, *options] for lock, what in wanted.items()]


def main(options: Sequence[str]) -> None:
    """Writes the locks."""
    LOCK.parent.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in OTHERS}
    with tempfile.TemporaryDirectory() as folder:
        for command in commands(uv(Path(folder)), options):
            subprocess.run(command, check=True, cwd=ROOT, env=environment)
    for lock in (LOCK, LIBRARIES_LOCK):
        print(f"{lock.relative_to(ROOT)}: {len(locked(lock.read_text()))} packages")


if __name__ == "__main__":
    main(sys.argv[1:])
