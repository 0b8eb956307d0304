"""Prints the browser that the tests of the page drive; where there is none, installs Debian's Chromium, if that can be had.

    python scripts/browser.py

Never fails: without a browser those tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The path of a browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


def install() -> None:
    """Debian's package, where packages can be installed without asking."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return
    quiet = {
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
    }
    for command in (["apt-get", "update"], ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]):
        try:
            subprocess.run(command, check=True, timeout=300, **quiet)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"no browser could be installed ({error})", file=sys.stderr)
            return


if __name__ == "__main__":
    if find() is None:
        install()
    print(find() or "no browser: the tests of the page will be skipped")
