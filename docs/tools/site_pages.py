"""A hook of mkdocs: the pages of the site that are no file in ``docs``, and links that lead out of it."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

import partfile as pf

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the README as the first page, and a page of what ``import partfile`` has."""
    readme = _LINK.sub(_below_docs, (ROOT / "README.md").read_text())
    for name, content in (("index.md", readme), ("PYTHON.md", _python_page())):
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, files: Any, **_: Any) -> str:
    """Make plain text of links to what the site does not have, such as tests."""

    def kept(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), found[2]))
        return found[0] if files.get_file_from_path(path) is not None else found[1]

    return _LINK.sub(kept, markdown)


def _below_docs(found: re.Match[str]) -> str:
    return f"[{found[1]}]({found[2].removeprefix('docs/')}{found[3] or ''})"


def _python_page() -> str:
    """Every public name, by the module that has it; mkdocstrings takes it from there."""
    modules: dict[str, list[str]] = defaultdict(list)
    for name in sorted(set(pf.__all__) - {"__version__"}):
        modules[str(pf._MODULES[name])].append(name)  # noqa: SLF001 - how a name is found.
    order = sorted(modules, key=lambda module: ("file_sink" not in module, "sink" not in module, module))
    lines = ["# The Python names", "", "All of them are imported from `partfile`."]
    for module in order:
        lines += ["", *(f"::: {module}.{name}" for name in modules[module])]
    return "\n\n".join(lines)
