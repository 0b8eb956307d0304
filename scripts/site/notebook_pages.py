"""Shows the notebooks in docs/notebooks as pages of the site: their words, code, and what the code put out."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

#: The section of the navigation that lists them, after what mkdocs.yml has there.
SECTION = "Notebooks"
_LINK = re.compile(r"\]\((\w+)\.ipynb")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def on_config(config: Any) -> Any:
    """Lists the notebooks in the navigation."""
    listed = next((item[SECTION] for item in config.nav or () if isinstance(item, dict) and SECTION in item), None)
    if listed is not None:
        listed += [
            f"notebooks/{path.stem}.md" for path in _notebooks(config) if f"notebooks/{path.stem}.md" not in listed
        ]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """Adds a page for each notebook, and its pictures."""
    for path in _notebooks(config):
        text, pictures = page(json.loads(path.read_text()), path.stem)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Lets the list of notebooks, which links to the files, link to their pages."""
    return _LINK.sub(r"](\1.md", markdown) if page.file.src_path == "notebooks/index.md" else markdown


def _notebooks(config: Any) -> list[Path]:
    return sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb"))


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, and the pictures that it shows by their names."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = _joined(cell["source"]).strip()
        if not source:
            continue
        if cell["cell_type"] != "code":
            parts.append(_LINK.sub(r"](\1.md", source))  # of another notebook, its page
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                picture = f"{name}_{len(pictures)}.png"
                pictures[picture] = base64.b64decode(_joined(data["image/png"]))
                parts.append(f"![What the cell shows]({picture})")
            elif text := _joined(output.get("text") or data.get("text/plain") or output.get("traceback") or ""):
                parts.append(f"```text\n{_ANSI.sub('', text).rstrip()}\n```")
    parts.insert(1, f"[This page as a notebook]({name}.ipynb), to run and to change.")
    return "\n\n".join(parts) + "\n", pictures


def _joined(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
