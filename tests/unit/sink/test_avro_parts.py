"""Avro parts through the sink: each its own sync marker, also where another process goes on with it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa

import partfile as pf

if TYPE_CHECKING:
    from pathlib import Path

_KEEP = pf.RollingPolicy(rollover_interval_s=1e6, inactivity_interval_s=1e6)


def test_parts_that_go_on_in_another_run_are_whole_files(tmp_path: Path) -> None:
    """Blocks of three runs stand in one file of each bucket, which reads back, and whose marker no other file has."""
    for run in range(3):
        on_stop: Any = "keep" if run < 2 else "publish"
        sink = pf.FileSink(
            str(tmp_path), format="avro", bucketer=pf.HiveBucketer("b"), uid="a", rolling=_KEEP, on_stop=on_stop
        )
        with sink.local() as out:
            for start in (run * 10, run * 10 + 5):
                numbers = list(range(start, start + 5))
                out.write(pa.record_batch({"b": [str(n % 2) for n in numbers], "n": numbers}))
                out.checkpoint()
    files = [path.read_bytes() for path in tmp_path.glob("*/part-*.avro")]
    assert len(files) == 2
    readers: list[Any] = [fastavro.reader(io.BytesIO(file)) for file in files]
    assert sorted(row["n"] for reader in readers for row in reader) == list(range(30))
    markers = [reader._header["sync"] for reader in readers]
    assert [file.count(marker) for file, marker in zip(files, markers, strict=True)] == [7, 7]
    assert markers[0] != markers[1]
