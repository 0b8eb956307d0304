"""The documents as a site: it is built strictly, holds the whole API, and loads nothing from another host."""

from __future__ import annotations

import fcntl
import importlib
import os
import re
import subprocess
import sys
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import hilrp
from helpers.paths import ROOT

#: What a page loads by itself; a link that somebody has to click isn't among it.
_LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
_FOREIGN = re.compile(r"^(?:[a-z]+:)?//", re.I)


def build(folder: Path, config: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    """Builds the site strictly."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(folder)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site; workers share one."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    folder = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site.built").exists():
            built = build(folder)
            assert built.returncode == 0, built.stderr
            (shared / "site.built").touch()
    return folder


def loads(page: str) -> list[str]:
    """The addresses that a page loads when it is opened."""
    found: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            given = dict(attributes)
            # Other links are addresses to go to (the next page), and not loaded.
            if tag == "link" and not {"stylesheet", "icon", "preload", "manifest"}.isdisjoint(given["rel"].split()):
                found.append(given["href"])
            if tag in _LOADS and given.get(_LOADS[tag]):
                found.append(given[_LOADS[tag]])

    Reader().feed(page)
    return found


def test_no_page_loads_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text()
        addresses = loads(text)
        assert addresses
        assert not [each for each in addresses if _FOREIGN.match(each)], page
        # Material's script fetches a library of diagrams and others, if a page has any.
        assert 'class="mermaid"' not in text
    for sheet in site.rglob("*.css"):
        urls = re.findall(r"(?:url\(|@import)\s*[\"']?([^\"')\s;]+)", sheet.read_text())
        assert not [each for each in urls if _FOREIGN.match(each)], sheet


def test_what_counts_as_loaded():
    page = (
        '<link rel="stylesheet" href="//a.b/c.css"><link rel="next" href="https://a.b/"><script>1</script>'
        '<script src="https://d.e/f.js"></script><a href="https://g.h">i</a><img src="j.png">'
    )
    assert loads(page) == ["//a.b/c.css", "https://d.e/f.js", "j.png"]
    assert [bool(_FOREIGN.match(each)) for each in loads(page)] == [True, True, False]


@pytest.mark.parametrize(
    "name", ["hilrp", "hilrp.concepts", "hilrp.references", "hilrp.scenes", "hilrp.targets", "hilrp.texts"]
)
def test_the_reference_has_every_public_name(site, name):
    pages = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    found = set(re.findall(r'id="(hilrp[^"]*)"', pages))
    assert {f"{name}.{each}" for each in importlib.import_module(name).__all__} <= found
    assert "&gt;&gt;&gt; " in pages  # examples are code


def test_every_module_that_is_named_in_the_interface_is_checked():
    modules = {path.stem for path in (ROOT / "docs" / "api").glob("*.md")} - {"index"}
    assert modules == {"compat", "concepts", "export", "references", "scenes", "targets", "texts"}
    assert "targets" in hilrp.__all__


def test_a_broken_site_is_not_built(tmp_path):
    """Links, anchors, names of the API, files of the repository, pages without a place: each is named."""
    docs = tmp_path / "docs"
    docs.mkdir()
    lines = [
        "# Start",
        "[a](missing.md)",
        "[b](other.md#missing-anchor)",
        "[c][hilrp.missing]",
        "[d](../missing.py)",
        "[e](/absolute.md)",
        "[f](../mkdocs.yml)",
    ]
    (docs / "index.md").write_text("\n\n".join(lines))
    (docs / "other.md").write_text("# Other")
    (docs / "forgotten.md").write_text("# Forgotten")
    config = tmp_path / "mkdocs.yml"
    hook = ROOT / "scripts" / "site" / "links.py"
    config.write_text(
        f"INHERIT: {ROOT / 'mkdocs.yml'}\ndocs_dir: docs\nextra_css: []\nhooks: ['{hook}']\nnav: [index.md, other.md]\n"
    )
    built = build(tmp_path / "site", config)
    assert built.returncode != 0
    for part in ("missing.md", "missing-anchor", "hilrp.missing", "missing.py", "/absolute.md", "forgotten.md"):
        assert part in built.stderr, part
    assert built.stderr.count("WARNING") == 6  # and none for the file that is there


def test_the_site_in_a_browser(site, browser):
    """A page's words are found, and no other host is asked for anything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    own = f"http://127.0.0.1:{server.server_port}/"
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{own}index.html")
    page.keyboard.press("/")
    page.keyboard.type("Explanation sentence")
    page.locator(".md-search-result__item").first.wait_for()
    page.goto(f"{own}api/index.html")
    page.goto(f"{own}coverage/models.html")
    count, first = page.locator("#models-count"), page.locator("#models tbody tr:not([hidden]) td").first
    assert re.fullmatch(r"(\d+) of \1 rows", count.inner_text())
    page.locator("#models-filter").fill("zoo_of_nothing")
    assert count.inner_text().startswith("0 of ")
    page.locator("#models-filter").fill("Swin_Tiny secant float64")
    assert count.inner_text().startswith("1 of ") or count.inner_text().startswith("2 of ")
    assert "swin_tiny" in first.inner_text()
    page.locator("#models-filter").fill("")
    page.get_by_role("button", name="parameters").click()
    smallest = first.inner_text()
    page.get_by_role("button", name="parameters").click()
    assert first.inner_text() != smallest
    page.close()
    server.shutdown()
    assert len(asked) > 5
    assert [url for url in asked if not url.startswith((own, "data:", f"blob:{own}"))] == []


def test_notebooks_become_pages(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts" / "site")
    from notebook_pages import page

    shown = [
        {"output_type": "stream", "text": ["one\n", "\x1b[31mtwo\x1b[0m\n"]},
        {"output_type": "display_data", "data": {"image/png": "AAEC", "text/plain": "<Figure>"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# A title\n", "\n", "[Words](other.ipynb)."]},
        {"cell_type": "code", "source": "print(1)", "outputs": shown},
        {"cell_type": "code", "source": "", "outputs": []},
    ]
    text, pictures = page({"cells": cells}, "mine")
    assert text.startswith("# A title")
    assert "[Words](other.md)." in text
    assert "(mine.ipynb)" in text
    assert "```python\nprint(1)\n```\n\n```text\none\ntwo\n```\n\n![What the cell shows](mine_0.png)" in text
    assert pictures == {"mine_0.png": bytes([0, 1, 2])}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass
