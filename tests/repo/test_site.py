"""The site of the documentation: it builds without a warning, and the addresses of hints lead somewhere in it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import partfile as pf

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; ``strict`` in mkdocs.yml makes each warning an error."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


def addresses() -> set[tuple[str, ...]]:
    """The pages and headings that the texts of the program name."""
    texts = [path.read_text() for path in (ROOT / "src" / "partfile").rglob("*.py")]
    trees = (ast.parse(text) for text in texts if "page_url" in text)
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func) == "page_url"]
    return {tuple(ast.literal_eval(argument) for argument in call.args) for call in named}


def test_every_address_in_a_hint_is_a_place_of_the_site(site: Path) -> None:
    """The page is there, and its heading has the anchor."""
    named = addresses()
    assert len(named) > 5
    for page, *section in named:
        text = (site / page / "index.html").read_text()
        assert [anchor for anchor in section if f'id="{anchor}"' not in text] == [], page


def test_the_first_page_is_the_readme(site: Path) -> None:
    """With links to the pages of the site."""
    text = (site / "index.html").read_text()
    assert "Twelve lines with Spark" in text
    assert 'href="RUNBOOK/"' in text


def test_every_public_name_is_on_the_page_of_the_names(site: Path) -> None:
    """With its docstring."""
    text = (site / "PYTHON" / "index.html").read_text()
    assert [name for name in pf.__all__ if name != "__version__" and f'.{name}"' not in text] == []
    assert "every row of the stream ends up in exactly one finished part file" in text
