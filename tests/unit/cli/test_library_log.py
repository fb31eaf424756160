"""What the library warns of is told by a command: once, escaped, in its own words, and as JSON if asked for."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from partfile.cli.output import Output, warnings_told

if TYPE_CHECKING:
    import pytest

logger = logging.getLogger("partfile")


def test_a_warning_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    """A second one of the same text is not, nor what is no warning; another one is; control characters are escaped."""
    with warnings_told(Output()):
        for _ in range(2):
            logger.warning("left %s: set %s", "a\x1bb", "accept_newer=True")
        logger.info("nothing to see")
        logger.warning("another")
    assert capsys.readouterr().err.splitlines() == ["warning: left a\\x1bb: set --accept-newer", "warning: another"]


def test_a_warning_is_a_document_beside_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error holds nothing but documents, a line each; standard output has none of it."""
    with warnings_told(Output(as_json=True)):
        logger.warning("it is so")
    told = capsys.readouterr()
    assert told.out == ""
    assert json.loads(told.err) == {"schema": "partfile.warning", "schema_version": 1, "message": "it is so"}
