"""The Python blocks of the documents, for the tests that run them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
_BLOCK = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)


def python_blocks(document: str) -> list[str]:
    """The Python blocks of a document, in their order.

    Args:
        document: Its path, relative to the repository.
    """
    return _BLOCK.findall((ROOT / document).read_text())
