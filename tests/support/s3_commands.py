"""The command line on S3: the words that name a base, and a sink that died there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from s3_life import Stream
from s3_store_support import options_of, store_options

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import S3Server
    from s3_store_support import Place

A_SECOND_S = 1.1
"""Times of objects are in whole seconds."""


def at(place: Place, base: str, tmp_path: Path) -> tuple[Any, ...]:
    """The words that name a base and what opens it."""
    options = tmp_path / "options.json"
    options.write_text(json.dumps(store_options(place)))
    return base, "--storage-options-file", options


def crashed(server: S3Server, base: str, row_bytes: int) -> Stream:
    """A stream with two open parts that a checkpoint vouches for, whose process has gone."""
    stream = Stream(base, options_of(server), row_bytes=row_bytes)
    out = stream.sink().local().open()
    out.write(stream.batch(0, 4), position=4)
    out.checkpoint()
    out.close()
    return stream
