"""Spark's own file sink as a program: ``spark_file_sink.py SOURCE OUTPUT CHECKPOINT BLOCKED ROW``.

Writes every source file, two a batch. The task that meets ROW makes the file BLOCKED once the other tasks of its batch
have had the time to write theirs, and then waits to be killed; a file that is there already blocks no process.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from support.spark.streams import SCHEMA, build_session, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa


_OTHERS_S = 5


def blocking(flag: str, row: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rows as they are, from which one never comes back the first time."""

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if pc.any(pc.equal(batch["id"], row)).as_py() and not Path(flag).exists():
                time.sleep(_OTHERS_S)
                Path(flag).touch()
                time.sleep(600)

    return rows


def main() -> None:
    """Stream until the source is used up."""
    source, output, checkpoint, flag, row = sys.argv[1:]
    spark = build_session(**{"spark.sql.streaming.fileSink.log.compactInterval": "3"})
    df = stream(spark, Path(source), files=2).mapInArrow(blocking(flag, int(row)), SCHEMA)
    writer = df.writeStream.format("json").partitionBy("bucket").option("path", output)
    writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
