"""A stream on HDFS whose buckets share a staging file: functions for processes of their own; see ``hdfs.life``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from partfile.stores.hdfs.client import CHANGING_CALLS
from partfile.testing.faults import KillAt, Recorder
from support.hdfs.life import opener
from support.sinks.shared_streams import BUCKETS, continue_sharing, die_sharing, sharing_sink

if TYPE_CHECKING:
    from partfile.sink.file_sink import FileSink
    from partfile.testing.faults import Interceptor, When


ROWS = 3 * BUCKETS


def sink_of(url: str, http_address: str, format: str, interceptor: Interceptor | None = None) -> FileSink:
    """A sink of twelve buckets that share a staging file; consumers may take its files."""
    return sharing_sink(url, format=format, open_store=opener(http_address, interceptor), consumers_take_files=True)


def live(url: str, http_address: str, format: str) -> None:
    """Write what is missing and end."""
    continue_sharing(sink_of(url, http_address, format), ROWS)


def seed(url: str, http_address: str, format: str) -> None:
    """Leave a staging file that a checkpoint vouches for, with a tail."""
    die_sharing(sink_of(url, http_address, format))


def count(url: str, http_address: str, format: str, to: str, *, is_restore: bool) -> None:
    """Live or restore, and write down the changing calls."""
    recorder = Recorder(CHANGING_CALLS)
    _go_on(url, http_address, format, recorder, is_restore=is_restore)
    Path(to).write_text(json.dumps(recorder.names))


def die(url: str, http_address: str, format: str, number: int, when: When, *, is_restore: bool) -> None:
    """The same, with SIGKILL at one changing call."""
    killer = KillAt(number, when, only=CHANGING_CALLS)
    _go_on(url, http_address, format, killer, is_restore=is_restore)


def _go_on(url: str, http_address: str, format: str, interceptor: Interceptor, *, is_restore: bool) -> None:
    sink = sink_of(url, http_address, format, interceptor)
    if is_restore:
        sink.local().open().close()
    else:
        continue_sharing(sink, ROWS)
