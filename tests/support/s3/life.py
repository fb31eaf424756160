"""The S3 store in front of a test server: one small stream, its parts from the inside, and the command line on it."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import pyarrow as pa

import partfile as pf
from partfile.errors import NotApplied
from partfile.stores.s3.client import S3Calls
from partfile.stores.s3.handle import S3Staging
from partfile.stores.s3.options import S3Options
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.faults import intercept
from partfile.testing.store import new_part
from support.crash.worlds import Process
from support.sinks.life_cycle import DISTINCT, SteppingClock, rows_done

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from partfile.sink.file_sink import FileSink
    from partfile.stores.base import PartHandle
    from partfile.testing.faults import Interceptor
    from support.s3.server import S3Server


# The S3 store in front of a test server or proxy.


class Place(Protocol):
    """A server, or a proxy in front of one."""

    @property
    def storage_options(self) -> Mapping[str, Any]:
        """What s3fs needs to get there."""


def store_options(place: Place, **more: object) -> dict[str, object]:
    """``storage_options`` of a sink, from what s3fs itself needs."""
    given = place.storage_options
    return {
        "endpoint_url": given["endpoint_url"],
        "key": given["key"],
        "secret": given["secret"],
        "region": given["client_kwargs"]["region_name"],
        "path_style": True,
        **more,
    }


def options_of(place: Place, **more: object) -> S3Options:
    """The same, checked."""
    return S3Options.of(store_options(place, **more))


def warm_up(store: S3Store) -> None:
    """Make the client, which takes longer than a short call may where others work."""
    while True:
        try:
            store.file_exists("anything")
        except NotApplied:
            continue
        return


# One small stream of text rows through the plain sink to S3, and the oracle for what it left; see ``life_cycle``.

MIB = 1 << 20
LONG = pf.RollingPolicy(max_part_bytes=1 << 40, rollover_interval_s=1e6, inactivity_interval_s=1e6)
"""Parts that stay open until the clean end."""

SMALL = pf.RollingPolicy(max_part_bytes=25, rollover_interval_s=1e6, inactivity_interval_s=1e6)
"""Parts of two short rows."""


class Stream(NamedTuple):
    """Which rows are written, and where to."""

    base: str
    options: S3Options
    rows: int = 12
    row_bytes: int = 10
    rows_a_checkpoint: int = 3
    rolling: pf.RollingPolicy = LONG
    again: int = 0
    """So many rows before those of each checkpoint come once more, and the sink deduplicates."""

    def batch(self, first: int, count: int) -> pa.RecordBatch:
        """Rows of two buckets in turn, each with its number first and padded to its length."""
        numbers = range(first, first + count)
        rows = [f"row-{number:04d}".ljust(self.row_bytes - 1, "x") for number in numbers]
        return pa.RecordBatch.from_pydict({"bucket": [f"b{number % 2}" for number in numbers], "row": rows})

    def process(self, interceptor: Any = None) -> Process:
        """A process that works there; an interceptor sees each request."""

        def opener(url: str, _options: Any) -> S3Store:
            calls = S3Calls(S3Url.of(url).bucket, self.options)
            return S3Store(url, self.options, calls=intercept(calls, interceptor) if interceptor else calls)

        return Process(self.base, opener)

    def sink(self, interceptor: Any = None, **more: Any) -> FileSink:
        """The sink; an interceptor sees each request."""
        fixed: dict[str, Any] = {
            "uid": "life",
            "format": "text",
            "bucketer": pf.HiveBucketer("bucket"),
            "clock": SteppingClock(),
            "rolling": self.rolling,
            "open_store": self.process(interceptor).open_store,
        }
        return pf.FileSink(self.base, **(fixed | (DISTINCT if self.again else {}) | more))

    def run_to_the_end(self, interceptor: Any = None, **more: Any) -> None:
        """Write rows from the restored position on, checkpoint by checkpoint, and end cleanly."""
        with self.sink(interceptor, **more).local() as out:
            done = rows_done(out)
            while done < self.rows:
                count = min(self.rows_a_checkpoint, self.rows - done)
                if self.again and done:
                    first = max(0, done - self.again)
                    out.write(self.batch(first, done - first))
                out.write(self.batch(done, count), position=done + count)
                done += count
                out.checkpoint()

    def finished(self) -> dict[str, int]:
        """The visible files and their sizes."""
        with S3Store(self.base, self.options) as store:
            return {file.path: file.size for file in store.list()}

    def take(self) -> Counter[int]:
        """Delete the visible files, as a consumer does that has read them; the numbers of their rows."""
        rows = self.rows_seen()
        with S3Store(self.base, self.options) as store:
            for path in self.finished():
                store.delete_file(path)
        return rows

    def rows_seen(self) -> Counter[int]:
        """The numbers of the rows that readers find, each row of the right length."""
        seen: Counter[int] = Counter()
        with S3Store(self.base, self.options) as store:
            for path, size in self.finished().items():
                data = store.read_file(path, size)
                assert len(data) % self.row_bytes == 0, f"{path} ends inside a row"
                rows = [data[start : start + self.row_bytes] for start in range(0, len(data), self.row_bytes)]
                assert all(row.endswith(b"\n") for row in rows)
                seen.update(int(row[4:8]) for row in rows)
        return seen

    def assert_exactly_once(self) -> None:
        """Each row is in one finished file."""
        assert self.rows_seen() == Counter(range(self.rows))


# Parts on S3 brought to a state, and looked at from the inside.


def watched(base: str, options: S3Options, interceptor: Interceptor, rules: type[S3Calls] = S3Calls) -> S3Store:
    """A store whose requests an interceptor sees."""
    return S3Store(base, options, calls=intercept(rules(S3Url.of(base).bucket, options), interceptor))


def ruled(base: str, options: S3Options, rules: type[S3Calls]) -> S3Store:
    """A store whose server has rules of its own."""
    return S3Store(base, options, calls=rules(S3Url.of(base).bucket, options))


def staging_of(handle: PartHandle) -> S3Staging:
    """What a handle is made of."""
    staging = S3Staging.of(handle)
    assert staging is not None
    return staging


def finished_size(store: S3Store, handle: PartHandle) -> int:
    """The size of the finished file."""
    (found,) = [file.size for file in store.list() if file.path == handle.path_of(handle.name)]
    return found


def written_in_batches(store: S3Store, batches: list[bytes], *, resumes: bool) -> PartHandle:
    """A part that gets one batch a checkpoint, in one stream or each in a stream of its own, and is closed."""
    stream = store.create(new_part())
    for data in batches[:-1]:
        stream.write(data)
        handle = stream.persist()
        if resumes:
            stream.close()
            stream = store.resume(handle)
    stream.write(batches[-1])
    return stream.close_for_commit()


def written_open(store: S3Store, batches: list[bytes], name: str = "part-0") -> PartHandle:
    """A part that gets one batch a checkpoint and stays open, prepared for publishing as a checkpoint holds it."""
    stream = store.create(new_part(name=name))
    for data in batches:
        stream.write(data)
        stream.persist()
    stream.close()
    return store.prepare(stream.handle)


# The command line on S3: the words that name a base, and a sink that died there.

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
