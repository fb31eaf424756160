"""One small stream of text rows through the plain sink, in a process of its own, and the oracle for what it left."""

from __future__ import annotations

import csv
import gc
import gzip
import io
import json
import os
import secrets
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
import zstandard

import partfile as pf
from partfile.errors import Fenced
from partfile.sink.file_sink import FileSink
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import intercept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from partfile.stores.base import Capabilities
    from partfile.testing.faults import Call, Interceptor


# A local store for tests that repeat a schedule, or kill at each call in turn: its calls come in one order.


class SingleThreadedStore(LocalStore):
    """A store that asks for no threads: a process that takes turns with others makes one call at a time."""

    @property
    def capabilities(self) -> Capabilities:
        """Those of a local store."""
        return super().capabilities.model_copy(update={"publish_threads": 1})


# The column ``row`` of a file of any format and compression, read by what is none of ours.


def rows_in_file(name: str, data: bytes) -> list[str]:
    """Each row, in order.

    Args:
        name: Of the file; its ending says what it is, and text is a row a line.
        data: All of it.
    """
    for ending, decompress in _COMPRESSED.items():
        if name.endswith(ending):
            return rows_in_file(name.removesuffix(ending), decompress(data))
    for ending, read in _FORMATS.items():
        if name.endswith(ending):
            return [str(row) for row in read(data)]
    assert data.endswith(b"\n"), f"{name} ends inside a row: {data!r}"
    return data.decode().splitlines()


def _unzstd(data: bytes) -> bytes:
    with zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True) as reader:
        found: bytes = reader.read()
    return found


def _avro(data: bytes) -> list[Any]:
    return [record["row"] for record in fastavro.reader(io.BytesIO(data))]  # type: ignore[index, call-overload]


def _json(data: bytes) -> list[Any]:
    assert data.endswith(b"\n"), f"a line is not whole: {data!r}"
    return [json.loads(line)["row"] for line in data.splitlines()]


def _csv(data: bytes) -> list[Any]:
    assert data.endswith(b"\n"), f"a line is not whole: {data!r}"
    return [record["row"] for record in csv.DictReader(io.StringIO(data.decode()))]


_COMPRESSED: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".zst": _unzstd}
_FORMATS: dict[str, Callable[[bytes], list[Any]]] = {
    ".parquet": lambda data: pyarrow.parquet.ParquetFile(pa.BufferReader(data)).read()["row"].to_pylist(),
    ".orc": lambda data: pyarrow.orc.ORCFile(pa.BufferReader(data)).read()["row"].to_pylist(),
    ".avro": _avro,
    ".json": _json,
    ".csv": _csv,
}


# One small stream of text rows through the plain sink, in a process of its own, and the oracle for what it left.
#
# The rows are ``0``, ``1``, ... in order; the position of the input is the number of rows written. So a run that begins
# at the position it restored continues the stream, and in the end every row must be in exactly one finished file.

ROWS = 12
ROWS_A_CHECKPOINT = 3
LONG = pf.RollingPolicy(max_part_bytes=10**6, rollover_interval_s=1e6, inactivity_interval_s=1e6)
"""Parts that stay open until the clean end."""
DISTINCT: dict[str, Any] = {"deduplicate": pf.Deduplicate("row"), "inline_threshold_bytes": 0}
"""Options of a sink to which rows come again: each run of keys is a file, and some are merged."""
STAGED_ENDS = (".in-progress", ".pending")
_HIDDEN = ("_", ".")
_SIDECAR_END = ".valid-length"
FENCED = 17
FAILED = 18


class SteppingClock:
    """One second a reading."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        """The next second."""
        self.now_ms += 1000
        return self.now_ms


def batch(first: int, count: int) -> pa.RecordBatch:
    rows = [f"row-{number:04d}" for number in range(first, first + count)]
    return pa.RecordBatch.from_pydict(
        {"bucket": [f"b{number % 2}" for number in range(first, first + count)], "row": rows}
    )


class Taking:
    """An interceptor beside a consumer that takes each finished file the instant it is visible.

    The consumer looks before the call returns that has shown a file. It takes what the sidecar vouches for that is
    there by then, and leaves the sidecar. What it has taken lies beside the base; see ``taken_by``.

    Args:
        base: The base, of one level of buckets.
        inner: Another interceptor; whatever it does before or after a call finds no finished file.
    """

    def __init__(self, base: Path, inner: Interceptor | None = None) -> None:
        self._base = base
        self._inner = inner
        self._turn = threading.Lock()

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, then let the consumer look."""

        def done() -> object:
            try:
                return proceed()
            finally:
                if call.name in _SHOWING_CALLS:
                    self._take()

        return done() if self._inner is None else self._inner.around(call, done)

    def _take(self) -> None:
        with self._turn:
            for path in self._base.glob("*=*/[!._]*"):
                sidecar = path.with_name(f"_{path.name}.valid-length")
                files = {each.name: each.read_bytes() for each in (path, sidecar) if each.exists()}
                taken_by(self._base).mkdir(exist_ok=True)
                # Under a name that no other file has, so that what comes again is seen to be there twice.
                taken = taken_by(self._base) / f"{secrets.token_hex(4)}-{path.name}"
                taken.write_bytes(visible(files)[path.name])
                path.unlink()


_SHOWING_CALLS = {"link", "rename", "rename_noreplace"}


def taken_by(base: Path) -> Path:
    """The directory to which a consumer takes the files of a base."""
    return base.with_name(f"{base.name}-taken")


def make_sink(base: Path | str, *, interceptor: Any = None, has_consumer: bool = False, **options: Any) -> FileSink:
    """A sink of rows of text.

    Args:
        base: Its base.
        interceptor: Sees each of its system calls.
        has_consumer: Whether a consumer takes each finished file the instant it is visible; the sink is told so.
        options: Of the sink.
    """
    if has_consumer:
        interceptor = Taking(Path(base), interceptor)
        options.setdefault("consumers_take_files", True)

    def opener(url: str, _options: Any) -> Any:
        return SingleThreadedStore(url, calls=intercept(PosixCalls(), interceptor) if interceptor is not None else None)

    options.setdefault(
        "rolling", pf.RollingPolicy(max_part_bytes=25, rollover_interval_s=1e6, inactivity_interval_s=1e6)
    )
    fixed: dict[str, Any] = {
        "uid": "life",
        "format": "text",
        "bucketer": pf.HiveBucketer("bucket"),
        "clock": SteppingClock(),
        "publish_threads": 1,
        "open_store": opener,
    }
    if "uid" in options:
        # A second sink on one base says that it means it.
        fixed["on_used_base"] = "accept"
    return FileSink(base, **(fixed | options))


def long_sink(base: Path, **options: Any) -> FileSink:
    """A sink whose parts stay open until something closes them all."""
    return make_sink(base, rolling=LONG, **options)


def continue_to(sink: FileSink, rows: int) -> int:
    """Write from the restored position to ``rows`` and end; returns where it began."""
    with sink.local() as out:
        begun = rows_done(out)
        if begun < rows:
            out.write(batch(begun, rows - begun), position=rows)
    return begun


def everything(base: Path) -> dict[Path, bytes]:
    """Every file below a directory with its content."""
    return {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}


def rows_done(out: pf.LocalSink) -> int:
    """The position as this stream keeps it: how many rows have been written."""
    assert out.position is None or isinstance(out.position, int)
    return out.position or 0


def stopped_with_savepoint(tmp_path: Path, rows: int = 4) -> str:
    """A sink below ``out`` that wrote some rows and was stopped with a savepoint; returns where that is."""
    out = long_sink(tmp_path / "out").local().open()
    out.write(batch(0, rows), position=rows)
    return out.stop_with_savepoint(tmp_path / "savepoints")


def run_to_the_end(sink: FileSink, rows: int = ROWS, *, again: int = 0) -> None:
    """Write rows from the restored position on, leaving a tail beyond each checkpoint, and end cleanly.

    Args:
        sink: To it; for ``again`` one with the options ``DISTINCT``.
        rows: So many there are in the end.
        again: So many rows before those of each checkpoint come once more.
    """
    with sink.local() as out:
        done = rows_done(out)
        while done < rows:
            count = min(ROWS_A_CHECKPOINT, rows - done)
            for row in range(max(0, done - again), done):
                out.write(batch(row, 1))
            for _ in range(count):
                out.write(batch(done, 1), position=done + 1)
                done += 1
            out.checkpoint()


def seed_with_a_tail(base: Path, **options: Any) -> None:
    """Leave what a crash leaves: open parts that a checkpoint vouches for, each with bytes beyond its valid length."""

    def begin() -> None:
        out = make_sink(base, rolling=LONG, **options).local().open()
        out.write(batch(0, 4), position=4)
        out.checkpoint()
        out.write(batch(4, 3), position=7)
        os._exit(0)

    assert in_child(begin) == 0


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked process and return its exit code, negative for a signal; FENCED if it was fenced."""
    pid = start_child(work)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def start_child(work: Callable[[], object]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    # Clients that other tests left behind must not be collected here: some wait for threads that a child has not got.
    gc.freeze()
    code = FAILED
    try:
        work()
        code = 0
    except Fenced:
        code = FENCED
    except BaseException:  # noqa: BLE001 - the child must never return into pytest
        traceback.print_exc()
    finally:
        os._exit(code)


def finished_files(base: Path) -> dict[str, bytes]:
    """What any reader sees: the visible files below the base, cut to their sidecar where there is one."""
    return visible(dict(sorted(_files_not_hidden(str(base), "")))) if base.is_dir() else {}


def _files_not_hidden(base: str, below: str) -> Iterator[tuple[str, bytes]]:
    """Files that are visible, and sidecars, by their paths; schedules look after each call, so others are not read."""
    with os.scandir(f"{base}/{below}") as entries:
        for entry in entries:
            is_hidden = entry.name.startswith(_HIDDEN)
            if not is_hidden and entry.is_dir(follow_symlinks=False):
                yield from _files_not_hidden(base, f"{below}{entry.name}/")
            elif (not is_hidden or entry.name.endswith(_SIDECAR_END)) and entry.is_file():
                yield f"{below}{entry.name}", Path(entry.path).read_bytes()


def files_seen(base: Path) -> dict[str, bytes]:
    """What readers have seen by now: the finished files that lie there, and those that a consumer has taken."""
    return finished_files(base) | finished_files(taken_by(base))


def visible(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The finished ones of the files below a base, cut to their sidecar where there is one."""
    seen = {}
    for path, data in files.items():
        if any(step.startswith(_HIDDEN) for step in path.split("/")):
            continue
        parent, slash, name = path.rpartition("/")
        sidecar = files.get(f"{parent}{slash}_{name}{_SIDECAR_END}")
        seen[path] = data if sidecar is None else data[: int(sidecar)]
    return seen


def rows_of(files: dict[str, bytes]) -> Counter[str]:
    """How often each row is in some files; each is read as its name says, and to its end."""
    rows: Counter[str] = Counter()
    for name, data in files.items():
        rows.update(rows_in_file(name, data))
    return rows


def assert_exactly_once(base: Path, rows: int = ROWS) -> dict[str, bytes]:
    """Each row is in one of the files that readers have seen; returns the files."""
    files = files_seen(base)
    assert rows_of(files) == Counter(f"row-{number:04d}" for number in range(rows))
    return files


def assert_only_grew(before: dict[str, bytes], after: dict[str, bytes]) -> None:
    """No finished file vanished or changed."""
    for name, data in before.items():
        assert after.get(name) == data, f"{name} changed or vanished"


def staged_files(base: Path) -> list[str]:
    return sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.name.endswith(STAGED_ENDS))
