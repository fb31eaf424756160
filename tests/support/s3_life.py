"""One small stream of text rows through the plain sink to S3, and the oracle for what it left; see ``life_cycle``."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from crash_worlds import Process
from life_cycle import SteppingClock, rows_done

import partfile as pf
from partfile.stores.s3.client import S3Calls
from partfile.stores.s3.store import S3Store
from partfile.stores.urls import S3Url
from partfile.testing.faults import intercept

if TYPE_CHECKING:
    from partfile.sink.file_sink import FileSink
    from partfile.stores.s3.options import S3Options

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
        return pf.FileSink(self.base, **(fixed | more))

    def run_to_the_end(self, interceptor: Any = None, **more: Any) -> None:
        """Write rows from the restored position on, checkpoint by checkpoint, and end cleanly."""
        with self.sink(interceptor, **more).local() as out:
            done = rows_done(out)
            while done < self.rows:
                count = min(self.rows_a_checkpoint, self.rows - done)
                out.write(self.batch(done, count), position=done + count)
                done += count
                out.checkpoint()

    def finished(self) -> dict[str, int]:
        """The visible files and their sizes."""
        with S3Store(self.base, self.options) as store:
            return {file.path: file.size for file in store.list()}

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
