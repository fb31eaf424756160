"""Files of a directory that grows, each row once.

Source: Spark's file stream source, as of 4.0: names that were read are remembered for a time, and older files are left.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import KW_ONLY, dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.core import url_to_fs

from partfile.errors import CheckpointMismatch, ConfigError, RecordError, SourceError
from partfile.pipeline.records import JsonRows
from partfile.quantities import duration_s

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime, timedelta

    from fsspec import AbstractFileSystem
    from pydantic import JsonValue

    from partfile.pipeline.dead_letters import DeadLetters


logger = logging.getLogger("partfile")
_ROWS_AT_ONCE = 10_000
_BYTES_AT_ONCE = 64 << 20
_HIDDEN = ("_", ".")
_BEHIND_ALL = 1 << 62
_MOST_BYTES_OF_NAMES = 900_000
"""Of a position, which has at most 1 MiB."""
_BYTES_BESIDE_NAME = 18
"""Of a file in a position: quotes, a colon, its time and a comma."""


@dataclass(frozen=True, slots=True)
class FilesSource:
    """The rows of the files below a directory, those that come later too.

    A file has to be whole when it appears, as by a rename, and is read once: one that is replaced is not read again.
    Names that begin with ``_`` or ``.`` are hidden, and so is what lies below such directories.

    Raises:
        ConfigError: An option cannot be used.
    """

    path: str | os.PathLike[str]
    """A directory, or a URL that fsspec opens."""
    _: KW_ONLY
    format: Literal["json", "parquet"] = "json"
    """JSON lines, of which those whose name says so are compressed; or Parquet."""
    schema: pa.Schema | Mapping[str, object] | None = None
    """The columns of JSON lines, as of ``JsonRows``."""
    pattern: str = "*"
    """Which files, by their path below the directory: ``*.json.gz``."""
    follow: bool = True
    """Whether to wait for more files; otherwise the source ends with those that are there."""
    poll_s: float | str | timedelta = 1.0
    """How often the directory is listed while nothing is left to read."""
    max_age_s: float | str | timedelta = "7 days"
    """For so long names are remembered. A file that is older than the newest one by more is not read."""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Of fsspec's file system."""

    def __post_init__(self) -> None:
        if self.format not in ("json", "parquet"):
            raise ConfigError(f"FilesSource: format={self.format!r}", hint="Write format='json' or format='parquet'.")
        if (self.schema is None) != (self.format == "parquet"):
            raise ConfigError(
                f"FilesSource: format={self.format!r} {'needs a' if self.schema is None else 'has its own'} schema",
                hint="Write schema={'id': 'int64'} with format='json', and none with format='parquet'.",
            )
        for name in ("poll_s", "max_age_s"):
            if not duration_s(getattr(self, name)):
                raise ConfigError(f"FilesSource: {name}={getattr(self, name)!r} is no time", hint=f"Write {name}=60.")
        if self.schema is not None:
            JsonRows(self.schema)

    def open(self, position: JsonValue, job: str, dead_letters: DeadLetters | None) -> FilesReader:
        """Begin behind a position; raises as ``Source.open``."""
        return FilesReader(self, position, job, dead_letters)


class FilesReader:
    """A directory that is read.

    Args:
        source: Which, and how.
        position: Where it begins.
        job: The name of the pipeline.
        dead_letters: Takes lines that are no rows; None raises at the first one.
    """

    def __init__(
        self, source: FilesSource, position: JsonValue, job: str, dead_letters: DeadLetters | None = None
    ) -> None:
        self._source = source
        self._job = job
        self._dead_letters = dead_letters
        self._values = None if source.schema is None else JsonRows(source.schema)
        try:
            found: tuple[AbstractFileSystem, str] = url_to_fs(os.fspath(source.path), **source.storage_options)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"FilesSource: {os.fspath(source.path)!r} cannot be opened: {error}",
                hint="Write a directory or a URL that fsspec opens: pf.FilesSource('s3://bucket/landing')",
            ) from error
        self._files, self._base = found[0], found[1].rstrip("/")
        self._done: dict[str, int] = {}
        """Files that were read, with their times in seconds since 1970."""
        self._name: str | None = None
        self._at = 0
        """Lines or rows of that file that were read."""
        self._time_s = 0
        if position is not None:
            self._restore(position)
        self._chunks: Iterator[Any] | None = None
        self._listed_s = float("-inf")
        self._queue: list[tuple[str, int]] = []
        self.is_ended = False
        self.lag: dict[str, int] = {}

    @property
    def position(self) -> JsonValue:
        """The files that were read, and how far the one is that is being read."""
        return {
            "files": self._base,
            "done": dict(sorted(self._done.items())),
            "file": self._name,
            "at": self._at,
            "time": self._time_s,
        }

    def _restore(self, position: JsonValue) -> None:
        if not isinstance(position, dict) or not isinstance(done := position.get("done"), dict):
            raise CheckpointMismatch(
                f"{self._job}: the newest checkpoint stands at {position!r:.200}, which is no position of files",
                hint="It is that of another source. Take another uid=NAME, or the source that it was taken with.",
            )
        if position.get("files") != self._base:
            raise CheckpointMismatch(
                f"{self._job}: the newest checkpoint is of files below {position.get('files')!r}, and those below "
                f"{self._base!r} are to be read",
                hint="Take another uid=NAME for another directory, or the one that it was taken with.",
            )
        self._done = cast("dict[str, int]", dict(done))
        self._name = cast("str | None", position.get("file"))
        self._at, self._time_s = cast("int", position.get("at")), cast("int", position.get("time"))
        if self._dead_letters is not None:
            for name in self._done:
                self._dead_letters.forget_before(name, _BEHIND_ALL)
            if self._name is not None:
                self._dead_letters.forget_before(self._name, self._at)

    def read(self, timeout_s: float) -> pa.RecordBatch | None:
        """The next rows of the file that is being read, or of the next one; raises as ``SourceReader.read``."""
        try:
            if self._name is None and not self._begin_next():
                if not self.is_ended:
                    time.sleep(timeout_s)
                return None
            if self._chunks is None:
                self._chunks = self._lines() if self._values is not None else self._batches()
            chunk = next(self._chunks, None)
        except (OSError, pa.ArrowException) as error:
            raise self._failed(error) from error
        if chunk is None:
            self._end()
            return None
        if isinstance(chunk, list):
            return self._rows(chunk)
        self._at += chunk.num_rows
        return chunk

    def _begin_next(self) -> bool:
        """Choose the next file, by its name; the directory is listed when none is left."""
        if not self._queue:
            if self._source.follow and time.monotonic() - self._listed_s < (duration_s(self._source.poll_s) or 0.0):
                return False
            self._queue = sorted(self._new_files(), reverse=True)
            self._listed_s = time.monotonic()
            self.is_ended = not self._queue and not self._source.follow
        self.lag = {"files": len(self._queue)}
        if not self._queue:
            return False
        (self._name, self._time_s), self._at = self._queue.pop(), 0
        return True

    def _new_files(self) -> list[tuple[str, int]]:
        self._files.invalidate_cache()
        found = {
            path[len(self._base) + 1 :]: _time_s(self._files, path, facts)
            for path, facts in self._files.find(self._base, detail=True).items()
        }
        newest_s = max([*found.values(), *self._done.values()], default=0)
        oldest_s = newest_s - (duration_s(self._source.max_age_s) or 0.0)
        # A name that a listing lacks is kept all the same: a directory that is not mounted has none.
        self._done = {name: time_s for name, time_s in self._done.items() if time_s >= oldest_s}
        if sum(len(name) + _BYTES_BESIDE_NAME for name in self._done) > _MOST_BYTES_OF_NAMES:
            raise ConfigError(
                f"{self._job}: {len(self._done)} files below {self._base} are remembered, too many for a checkpoint",
                hint="Remember them for less long, max_age_s='1 day', or read a directory a job: "
                "pf.FilesSource(DIRECTORY, schema=SCHEMA)",
            )
        return [
            (name, time_s)
            for name, time_s in found.items()
            if name not in self._done
            and time_s >= oldest_s
            and not any(part.startswith(_HIDDEN) for part in name.split("/"))
            and fnmatchcase(name, self._source.pattern)
        ]

    def _lines(self) -> Iterator[list[bytes]]:
        with self._opened(compression="infer") as file:
            if sum(1 for _ in islice(file, self._at)) < self._at:
                raise self._shorter()
            lines, size = list[bytes](), 0
            for line in file:
                lines.append(line)
                size += len(line)
                if len(lines) >= _ROWS_AT_ONCE or size >= _BYTES_AT_ONCE:
                    yield lines
                    lines, size = [], 0
            if lines:
                yield lines

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with self._opened() as file, pq.ParquetFile(file) as parquet:
            before, left = 0, self._at
            if parquet.metadata.num_rows < left:
                raise self._shorter()
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                if before + count <= left:
                    before += count
                    continue
                for batch in parquet.iter_batches(_ROWS_AT_ONCE, [number]):
                    passed = min(batch.num_rows, max(0, left - before))
                    before += batch.num_rows
                    if passed < batch.num_rows:
                        yield batch.slice(passed)

    def _opened(self, **options: str) -> IO[bytes]:
        path = f"{self._base}/{self._name}"
        try:
            return cast("IO[bytes]", self._files.open(path, "rb", **options))
        except FileNotFoundError as error:
            raise CheckpointMismatch(
                f"{self._job}: {path!r} was deleted before it was read to its end",
                hint="Put it back, or begin anew elsewhere: pf.FileSink(ANOTHER_PATH, uid=ANOTHER)",
            ) from error

    def _shorter(self) -> CheckpointMismatch:
        return CheckpointMismatch(
            f"{self._job}: {self._base}/{self._name} is shorter than what was read of it",
            hint="Put the file back as it was, or begin anew elsewhere: pf.FileSink(ANOTHER_PATH, uid=ANOTHER)",
        )

    def _rows(self, lines: list[bytes]) -> pa.RecordBatch:
        """The rows of lines; empty ones are none, and no mistake."""
        name, first = cast("str", self._name), self._at
        numbers = [
            number
            for number, line in enumerate(lines, first)
            if line.strip() and not (self._dead_letters is not None and self._dead_letters.pass_over(name, number))
        ]
        parsed = cast("JsonRows", self._values).rows([lines[number - first].rstrip(b"\r\n") for number in numbers])
        bad = [(numbers[at], problem) for at, problem in sorted(parsed.problems.items())]
        if bad and self._dead_letters is None:
            number, problem = bad[0]
            raise RecordError(
                f"{self._job}: line {number + 1} of {self._base}/{name} is no row: {problem}",
                hint="Write such lines to files of their own: job.source(SOURCE, "
                "dead_letters=pf.FileSink(PATH, uid=NAME))",
            )
        if bad and self._dead_letters is not None:
            letters = {
                "value": pa.array([lines[number - first].rstrip(b"\r\n") for number, _ in bad], pa.binary()),
                "file": pa.array([f"{self._base}/{name}"] * len(bad), pa.string()),
                "line": pa.array([number + 1 for number, _ in bad], pa.int64()),
                "problem": pa.array([problem for _, problem in bad], pa.string()),
            }
            self._dead_letters.write(pa.record_batch(letters), ((name, number) for number, _ in bad))
        self._at += len(lines)
        return parsed.rows

    def _end(self) -> None:
        self._done[cast("str", self._name)] = self._time_s
        self._name, self._at, self._time_s, self._chunks = None, 0, 0, None

    def confirm(self, position: JsonValue) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """Let go of the file that is being read."""
        if self._chunks is not None:
            cast("Any", self._chunks).close()
            self._chunks = None

    def _failed(self, error: Exception) -> SourceError:
        what = self._base if self._name is None else f"{self._base}/{self._name}"
        return SourceError(
            f"{self._job}: {what} cannot be read: {error}",
            hint="See that it is there, whole and readable: ls -l PATH. A job begins again by itself: "
            "restart=pf.Restart(attempts=3, delay_s=10)",
        )


def _time_s(files: AbstractFileSystem, path: str, facts: Mapping[str, Any]) -> int:
    """When a file was written, in seconds since 1970."""
    found = facts.get("mtime") or facts.get("LastModified") or files.modified(path)
    return int(found if isinstance(found, int | float) else cast("datetime", found).timestamp())
