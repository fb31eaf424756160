"""The small stream of ``life_cycle`` on HDFS: functions for processes of their own, and the oracle for their files."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections import Counter
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from partfile.stores.base import PartHandle
from partfile.stores.hdfs.client import CHANGING_CALLS, HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.urls import HdfsUrl
from partfile.testing.faults import KillAt, Recorder, intercept
from support.sinks.life_cycle import (
    DISTINCT,
    LONG,
    ROWS,
    ROWS_A_CHECKPOINT,
    STAGED_ENDS,
    batch,
    make_sink,
    rows_of,
    run_to_the_end,
    visible,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import Cut
    from partfile.testing.faults import Call, Interceptor, When

    Opener = Callable[..., HdfsStore]


MAX_BYTES = 1 << 20


def opener(http_address: str, *interceptors: Interceptor | None) -> Callable[[str, Any], HdfsStore]:
    """Opens stores whose calls are led through the interceptors; the last of them meets a call first."""

    def opened(url: str, _options: Any) -> HdfsStore:
        options = HdfsOptions(http_address=http_address)
        calls = HdfsCalls(HdfsUrl.of(url).root, options)
        return HdfsStore(url, options, calls=reduce(intercept, filter(None, interceptors), calls))

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


class Taking:
    """An interceptor beside a consumer that moves each finished file away the instant it is visible.

    The consumer looks after each changing call, and what it finds is out of the tree before the call returns. It reads
    a file up to the length in the sidecar that is there at that instant, and leaves the sidecar. Threads take turns.

    Args:
        url: The base.
        http_address: Of the NameNode.
    """

    def __init__(self, url: str, http_address: str) -> None:
        place, options = HdfsUrl.of(url), HdfsOptions(http_address=http_address)
        self._store = HdfsStore(url, options)
        self._calls = HdfsCalls(place.root, options)
        self._base, self._taken = place.path, HdfsUrl.of(taken_by(url)).path
        self._turn = threading.RLock()
        self._count = 0
        self.moments: list[int] = []
        """The changing calls, counted from 1, after which it found something."""
        self._calls.make_directories(self._taken)

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, then let the consumer look."""
        if call.name not in CHANGING_CALLS:
            return proceed()
        with self._turn:
            try:
                return proceed()
            finally:
                self._count += 1
                if self.take():
                    self.moments.append(self._count)

    def take(self) -> bool:
        """Move what is finished, under names that no other file has; returns whether there was anything."""
        files = {file.path: file for file in self._store.list()}
        found = [file for path, file in files.items() if not _is_hidden(path)]
        for file in found:
            parent, slash, name = file.path.rpartition("/")
            sidecar = f"{parent}{slash}_{name}.valid-length"
            length = int(self._store.read_file(sidecar, MAX_BYTES)) if sidecar in files else file.size
            moved = f"{secrets.token_hex(4)}.{length}.{quote(file.path, safe='')}"
            self._calls.rename(f"{self._base}/{file.path}", f"{self._taken}/{moved}")
        return bool(found)


def taken_by(url: str) -> str:
    """The directory to which a consumer moves the files of a base."""
    return f"{url}-taken"


def _sink(
    url: str,
    http_address: str,
    cut: Cut,
    interceptor: Interceptor | None,
    taking: Taking | None = None,
    **options: Any,
) -> FileSink:
    opened = opener(http_address, taking, interceptor)
    return make_sink(url, open_store=opened, cut=cut, consumers_take_files=taking is not None, **options)


def seed(url: str, http_address: str, cut: Cut) -> None:
    """Leave what a crash leaves: open parts that a checkpoint vouches for, each with bytes beyond its valid length."""
    killer = KillBeforeTheCommit()
    out = _sink(url, http_address, cut, killer, rolling=LONG).local().open()
    out.write(batch(0, 4), position=4)
    out.checkpoint()
    out.write(batch(4, 3), position=7)
    killer.is_armed = True
    out.checkpoint()


class Notes(NamedTuple):
    """What there was in a life that was not killed."""

    calls: list[str]
    """The changing calls."""
    takes: list[int]
    """Those of them, counted from 1, after which a consumer found a finished file."""


class Kind(NamedTuple):
    """Of a life; in JSON, a list."""

    is_restore: bool
    """Whether it begins with parts that a restore cuts."""
    has_consumer: bool = False
    """Whether a consumer takes each finished file the instant it is visible."""
    is_distinct: bool = False
    """Whether the rows of each checkpoint come again with the next one, and the sink deduplicates."""


def count(url: str, http_address: str, cut: Cut, to: str, *, kind: Sequence[bool]) -> None:
    """Live, and write down the changing calls."""
    recorder, taking = Recorder(CHANGING_CALLS), _consumer(url, http_address, Kind(*kind))
    _write(_sink(url, http_address, cut, recorder, taking, **_options(Kind(*kind))), Kind(*kind))
    Path(to).write_text(json.dumps(Notes(recorder.names, taking.moments if taking else [])))


def live(url: str, http_address: str, cut: Cut, *, kind: Sequence[bool]) -> None:
    """Write every row that is missing and end cleanly."""
    taking = _consumer(url, http_address, Kind(*kind))
    _write(_sink(url, http_address, cut, None, taking, **_options(Kind(*kind))), Kind(*kind))


def die(url: str, http_address: str, cut: Cut, number: int, when: When, *, kind: Sequence[bool]) -> None:
    """The same, with SIGKILL at one changing call; a consumer has looked after each call that was done."""
    killer, taking = KillAt(number, when, only=CHANGING_CALLS), _consumer(url, http_address, Kind(*kind))
    _write(_sink(url, http_address, cut, killer, taking, **_options(Kind(*kind))), Kind(*kind))


def _write(sink: FileSink, kind: Kind) -> None:
    run_to_the_end(sink, again=ROWS_A_CHECKPOINT if kind.is_distinct else 0)


def _options(kind: Kind) -> dict[str, Any]:
    options: dict[str, Any] = {"rolling": LONG} if kind.is_restore else {}
    return options | (DISTINCT if kind.is_distinct else {})


def _consumer(url: str, http_address: str, kind: Kind) -> Taking | None:
    return Taking(url, http_address) if kind.has_consumer else None


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
    return visible(_closed_files(store))


def taken_files(taken: HdfsStore) -> dict[str, bytes]:
    """What consumers have moved away, each file cut to the sidecar that it had then; see ``Taking``."""
    return {name: data[: int(name.split(".")[1])] for name, data in _closed_files(taken).items()}


def _closed_files(store: HdfsStore) -> dict[str, bytes]:
    """Every file below the base that no process writes."""
    paths = [file.path for file in store.list() if not file.path.endswith(STAGED_ENDS)]
    return {path: store.read_file(path, MAX_BYTES) for path in paths if "/_tmp." not in path}


def _is_hidden(path: str) -> bool:
    return any(step.startswith(("_", ".")) for step in path.split("/"))


def assert_exactly_once(store: HdfsStore) -> dict[str, bytes]:
    """Every row is in one finished file."""
    files = finished_files(store)
    assert rows_of(files) == Counter(f"row-{number:04d}" for number in range(ROWS))
    return files
