"""Which test checks which row of the fault matrix of S3: every row is named by the docstring of a test."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = {
    "N1": "a request times out before it has reached the server",
    "N2": "the reply is lost after success: PUT, create, upload, complete, abort, delete, conditional PUT",
    "N3": "bursts of 500, 502, 503 SlowDown and 429",
    "N4": "200 with an error in the body; a body that makes no sense",
    "N5": "412 and 409 where nothing may be replaced",
    "N6": "403 or an expired token in the middle",
    "N7": "the upload is gone at the commit, and no object is there",
    "N8": "upload parts under 5 MiB, or more than 10 000",
    "N9": "a slow or hanging connection",
    "N10": "clients and event loops after fork and spawn",
    "N11": "endpoint, name or bucket disappear",
    "D1": "a task fails and is run again",
    "D2": "speculative twins both finish",
    "D3": "the loser goes on writing after the winner was committed",
    "D4": "a task's report is lost and it is run again",
    "D5": "a batch is run again after a crash",
    "D6": "with other rows",
    "D9": "two drivers",
    "D10": "the older one sleeps between its last look and its request",
    "D11": "two sinks on one base",
    "D12": "which start at the same instant",
    "D14": "SIGKILL, with nobody to clean up",
    "D18": "no secret and no open connection travels",
}


def test_every_row_has_a_test() -> None:
    """Named in a docstring of tests/s3."""
    named: set[str] = set()
    for path in (TESTS / "s3").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                named |= set(re.findall(r"\b[ND]\d+\b", ast.get_docstring(node) or ""))
    assert ROWS.keys() - named == set()
    assert named - ROWS.keys() == set()
