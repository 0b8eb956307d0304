"""Makes docs/summary.png: what `hilrp summary` says of a model that was taught a shortcut.

    python scripts/summary_figure.py

Explains 600 scenes with tags with zoo/shortcut and zoo/resnet, and takes a picture of the page. It needs hilrp[data],
Playwright and Chromium (scripts/chromium.py).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from chromium import opened

DOCS = Path(__file__).resolve().parents[1] / "docs"

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        data = ["--data", "tagged:7:600", "--target", "label", "--maps", "files"]
        models = ["--model", "zoo/shortcut", "--model", "zoo/resnet"]
        subprocess.run([sys.executable, "-m", "hilrp", "run", *data, *models, "-o", folder], check=True)
        found = subprocess.run([sys.executable, "-m", "hilrp", "summary", folder])
        assert found.returncode == 1  # it suspects
        with opened() as browser:
            page = browser.new_page(viewport={"width": 1280, "height": 1150})
            page.goto((Path(folder) / "summary.html").as_uri())
            page.screenshot(path=DOCS / "summary.png")
