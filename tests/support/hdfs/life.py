"""The small stream of ``life_cycle`` on HDFS: functions for processes of their own, and the oracle for their files."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partfile.stores.base import PartHandle
from partfile.stores.hdfs.client import CHANGING_CALLS, HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.urls import HdfsUrl
from partfile.testing.faults import KillAt, Recorder, intercept
from support.sinks.life_cycle import LONG, ROWS, STAGED_ENDS, batch, make_sink, rows_of, run_to_the_end, visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import Cut
    from partfile.testing.faults import Call, Interceptor, When

    Opener = Callable[..., HdfsStore]


MAX_BYTES = 1 << 20


def opener(http_address: str, interceptor: Interceptor | None = None) -> Callable[[str, Any], HdfsStore]:
    """Opens stores whose calls are led through the interceptor."""

    def opened(url: str, _options: Any) -> HdfsStore:
        options = HdfsOptions(http_address=http_address)
        calls = HdfsCalls(HdfsUrl.of(url).root, options)
        return HdfsStore(url, options, calls=calls if interceptor is None else intercept(calls, interceptor))

    return opened


class KillBeforeTheCommit:
    """Kills its own process when a checkpoint has made its parts durable and is about to be complete."""

    def __init__(self) -> None:
        self.is_armed = False

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """SIGKILL instead of a rename."""
        if self.is_armed and call.name == "rename":
            os.kill(os.getpid(), signal.SIGKILL)
        return proceed()


def _sink(url: str, http_address: str, cut: Cut, interceptor: Interceptor | None, **options: Any) -> FileSink:
    return make_sink(url, open_store=opener(http_address, interceptor), cut=cut, **options)


def seed(url: str, http_address: str, cut: Cut) -> None:
    """Leave what a crash leaves: open parts that a checkpoint vouches for, each with bytes beyond its valid length."""
    killer = KillBeforeTheCommit()
    out = _sink(url, http_address, cut, killer, rolling=LONG).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    killer.is_armed = True
    out.checkpoint()


def count(url: str, http_address: str, cut: Cut, to: str, *, is_restore: bool) -> None:
    """Live, and write down the changing calls."""
    recorder = Recorder(CHANGING_CALLS)
    run_to_the_end(_sink(url, http_address, cut, recorder, **_rolling(is_restore=is_restore)))
    Path(to).write_text(json.dumps(recorder.names))


def live(url: str, http_address: str, cut: Cut, *, is_restore: bool) -> None:
    """Write every row that is missing and end cleanly."""
    run_to_the_end(_sink(url, http_address, cut, None, **_rolling(is_restore=is_restore)))


def die(url: str, http_address: str, cut: Cut, number: int, when: When, *, is_restore: bool) -> None:
    """The same, with SIGKILL at one changing call."""
    killer = KillAt(number, when, only=CHANGING_CALLS)
    run_to_the_end(_sink(url, http_address, cut, killer, **_rolling(is_restore=is_restore)))


def _rolling(*, is_restore: bool) -> dict[str, Any]:
    return {"rolling": LONG} if is_restore else {}


def write_part(url: str, http_address: str, *, handle: str, valid: str, tail: str, number: int, when: When) -> None:
    """Create a part, persist ``valid`` of it and make it pending with ``tail``; SIGKILL at one changing call."""
    killer = KillAt(number, when, only=CHANGING_CALLS)
    stream = opener(http_address, killer)(url, None).create(PartHandle.model_validate_json(handle))
    stream.write(valid.encode())
    stream.persist()
    stream.write(tail.encode())
    stream.close_for_commit()


def publish(url: str, http_address: str, cut: Cut, *, handle: str, number: int, when: When) -> None:
    """Publish a part, with SIGKILL at one changing call."""
    killer = KillAt(number, when, only=CHANGING_CALLS)
    opener(http_address, killer)(url, None).publish(PartHandle.model_validate_json(handle), cut)


def finished_files(store: HdfsStore) -> dict[str, bytes]:
    """What any reader sees: the visible files below the base, cut to their sidecar where there is one."""
    paths = [file.path for file in store.list() if not file.path.endswith(STAGED_ENDS)]
    return visible({path: store.read_file(path, MAX_BYTES) for path in paths if "/_tmp." not in path})


def assert_exactly_once(store: HdfsStore) -> dict[str, bytes]:
    """Every row is in one finished file."""
    files = finished_files(store)
    assert rows_of(files) == Counter(f"row-{number:04d}" for number in range(ROWS))
    return files
