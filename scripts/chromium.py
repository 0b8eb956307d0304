"""The browser that tests and screenshots of the page drive.

Where there is none, Debian's Chromium is installed, if that can be had.

    python scripts/chromium.py

Prints where it is. Never fails: without a browser the tests of the page are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

#: So many seconds are waited for what always comes; on a machine that does much else it takes its time.
PATIENCE = 180
NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


def find() -> str | None:
    """The path of a browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    """Debian's package, where packages can be installed without asking."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        try:
            subprocess.run(command, check=True, timeout=300, env=env, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"no browser could be installed ({error})", file=sys.stderr)
            return


@contextmanager
def opened() -> Iterator[Any]:
    """The browser, without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find(), args=FLAGS, timeout=PATIENCE * 1000)
        yield browser
        browser.close()


@contextmanager
def served(env: Mapping[str, str] | None = None) -> Iterator[str]:
    """``hilrp serve``, run as a user does; its address."""
    command = [sys.executable, "-m", "hilrp", "serve", "--model", "zoo/swin", "--port", "0"]
    own = os.environ | {"PYTHONUNBUFFERED": "1"} | dict(env or {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=own) as process:
        said = []
        for line in process.stdout or ():
            said.append(line)
            if "Look at http" in line:
                break
        else:
            raise RuntimeError("".join(said))
        try:
            yield said[-1].split()[2]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


if __name__ == "__main__":
    if find() is None:
        install()
    print(find() or "no browser: the tests of the page will be skipped")
