"""Builds the virtual environment that `make` uses, once for each state of its requirements.

    python scripts/environment.py              # prints the path of its Python
    python scripts/environment.py libraries    # of another one, which has requirements/libraries.lock besides

On the platform that requirements/dev.lock was written for, exactly its files are installed, each compared with its
hash. Elsewhere the newest versions within the bounds of pyproject.toml are, and a line says so.

They lie in the user's cache directory, keyed by a hash of what is wanted and the Python version, so that fresh clones
share them. Only the dependencies are installed: the package itself is used from `src`. The second environment sees the
packages of the first: it adds model libraries to them, without what these would install in turn.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from dependencies import LIBRARIES_LOCK, LOCK, locked, requirements

#: What the lock is for.
PYTHON, PLATFORM, GLIBC = "3.11", "x86_64-manylinux_2_28", (2, 28)
#: There is no wheel of it. It is built with the locked setuptools; nothing else may run code while it is installed.
SOURCES, BUILDERS = "grad-cam", ("setuptools",)


def fits() -> bool:
    """Whether the lock's files are for this Python on this machine."""
    here = sys.implementation.name, *platform.python_version_tuple()[:2], sys.platform, platform.machine()
    library, version = platform.libc_ver()
    new_enough = library == "glibc" and tuple(map(int, version.split(".")[:2])) >= GLIBC
    return here == ("cpython", *PYTHON.split("."), "linux", "x86_64") and new_enough


def install(python: Path, wanted: Sequence[str]) -> None:
    """Installs the lock's files into an environment, or the newest versions that are wanted."""
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    if not fits():
        print(
            f"requirements/dev.lock is for Python {PYTHON} on Linux (x86_64, glibc): here the newest versions within "
            "the bounds of pyproject.toml are installed, without hashes",
            file=sys.stderr,
        )
        subprocess.run([*pip, *wanted], check=True, stdout=sys.stderr)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as builders:
        builders.writelines(locked()[name].text for name in BUILDERS)
        builders.flush()
        hashed = [*pip, "--require-hashes", "--only-binary=:all:"]
        subprocess.run([*hashed, "-r", builders.name], check=True, stdout=sys.stderr)
        hashed += [f"--no-binary={SOURCES}", "--no-build-isolation"]
        subprocess.run([*hashed, "-r", str(LOCK)], check=True, stdout=sys.stderr)


def install_libraries(python: Path, base: Path) -> None:
    """Installs model libraries into an environment that sees the packages of another one.

    Each file is compared with its hash, on every platform: none of them is bound to one.
    """
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    subprocess.run([*pip, "-r", str(LIBRARIES_LOCK)], check=True, stdout=sys.stderr)
    (site_packages(python) / "hilrp-development.pth").write_text(f"{site_packages(base)}\n")


def site_packages(python: Path) -> Path:
    """Where the packages of an environment are."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout.strip())


def key(wanted: Sequence[str]) -> str:
    """Names an environment: other requirements, another lock or another Python make another one."""
    parts = [*wanted, sys.version, LOCK.read_text() if fits() else ""]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def built(name: str, fill: Callable[[Path], None], said: str) -> Path:
    """The Python of an environment in the cache, which is made if it isn't there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hilrp"
    home = cache / name
    python, complete = home / "bin" / "python", home / "complete"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete.exists():
            print(f"building the environment in {home} (once; {said})", file=sys.stderr, flush=True)
            venv.create(home, clear=True, with_pip=True)
            fill(python)
            complete.touch()
    return python


def main(which: str | None = None) -> None:
    """Builds an environment if it isn't there, and prints the path of its Python."""
    if which not in (None, "libraries"):
        sys.exit(f"environment.py {which}: there is `libraries`, or nothing for the environment of `make`")
    wanted = requirements()
    python = built(f"venv-{key(wanted)}", lambda own: install(own, wanted), "it downloads several GB")
    if which:
        base, name = python, f"libraries-{key([*wanted, LIBRARIES_LOCK.read_text()])}"
        python = built(name, lambda own: install_libraries(own, base), "a few MB")
    print(python)


if __name__ == "__main__":
    main(*sys.argv[1:])
