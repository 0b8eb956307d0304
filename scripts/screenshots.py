"""Takes the pictures of ``hilrp serve`` that are in docs/serve.md.

    python scripts/screenshots.py

Writes docs/serve.png and docs/serve_compare.png. It needs hilrp[app], Playwright, and Chromium (scripts/chromium.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chromium import opened, served

DOCS = Path(__file__).resolve().parents[1] / "docs"


def look(browser: Any, address: str) -> None:
    """A scene in 16 passes, and a rectangle around an object."""
    page = browser.new_page(viewport={"width": 1380, "height": 1130})
    page.goto(address)
    frame = page.frame_locator("iframe.viewer")
    frame.locator("#region", has_text="Hover").wait_for()
    page.locator("#passes").get_by_label("16", exact=True).click()
    frame.get_by_text("16 passes, in").wait_for()
    frame.locator("#region", has_text="Hover").wait_for()
    box = frame.locator("#view").bounding_box()
    for step, part in (("move", (0.4, 0.63)), ("down", None), ("move", (0.75, 0.98)), ("up", None)):
        if part is None:
            getattr(page.mouse, step)()
        else:
            page.mouse.move(box["x"] + part[0] * box["width"], box["y"] + part[1] * box["height"])
    page.screenshot(path=DOCS / "serve.png")


def compare(browser: Any, address: str) -> None:
    """Methods beside each other."""
    page = browser.new_page(viewport={"width": 1380, "height": 1480})
    page.goto(address)
    page.frame_locator("iframe.viewer").locator("#region", has_text="Hover").wait_for()
    page.get_by_role("tab", name="Compare methods").click()
    for name in ("Attention-gradient", "SmoothGrad"):
        page.locator("#methods").get_by_label(name, exact=True).uncheck()
    for _ in range(2):  # the first time libraries are imported, which takes longer than some methods
        page.locator("#compare").click()
        page.wait_for_function("() => document.querySelector('#compared').innerText.includes('Now ')")
        page.wait_for_function(
            "() => document.querySelectorAll('#compared tr').length === 6 && "
            "!document.querySelector('#compared').innerText.includes('Now ')"
        )
    page.mouse.move(5, 5)
    page.screenshot(path=DOCS / "serve_compare.png")


if __name__ == "__main__":
    with served() as address, opened() as browser:
        look(browser, address)
        compare(browser, address)
