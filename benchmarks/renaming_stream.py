"""What people do on S3 without jars: foreachBatch, objects under temporary keys, then a copy and a delete of each."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import s3fs
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from streams import run_query

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import DataFrame

    from places import S3Place
    from runs import Run


def hourly_writer(
    temporary: str, options: Mapping[str, Any]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function that writes the lines of a task to one object an hour and returns their keys.

    Args:
        temporary: Prefix of the keys.
        options: What s3fs needs.
    """

    # Made in here, it travels to the workers by value: they cannot import this module.
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = s3fs.S3FileSystem(**options)
        name, files = secrets.token_hex(8), dict[int, Any]()
        for batch in batches:
            for hour in pc.unique(batch["hour"]).to_pylist():
                if hour not in files:
                    files[hour] = client.open(f"{temporary}/hour={hour}/{name}.json", "wb")
                lines = batch["line"].filter(pc.equal(batch["hour"], hour))
                files[hour].write(("\n".join(lines.to_pylist()) + "\n").encode())
        for file in files.values():
            file.close()
        yield pa.RecordBatch.from_pydict({"key": [file.path for file in files.values()]})

    return write


@dataclass(frozen=True, slots=True)
class RenamingSink:
    """A function for foreachBatch that writes JSON lines into hourly prefixes and commits by renaming.

    Args:
        output: ``bucket/prefix`` of the output.
        options: What s3fs needs.
        one_by_one: Rename by a loop of ``mv``; else copy all at once, then delete all at once.
    """

    output: str
    options: Mapping[str, Any]
    one_by_one: bool

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Write under temporary keys; once all tasks are done, rename what they wrote."""
        temporary = f"{self.output}/_temporary/{batch_id}"
        # Spark makes the JSON: nothing that Python does with single rows would be faster.
        lines = df.select(F.hour("event_time").alias("hour"), F.to_json(F.struct("*")).alias("line"))
        written = lines.mapInArrow(hourly_writer(temporary, self.options), "key string").collect()
        keys = [row.key for row in written]
        client = s3fs.S3FileSystem(**self.options)
        finals = [f"{self.output}/{key.removeprefix(temporary + '/')}" for key in keys]
        if self.one_by_one:
            for key, final in zip(keys, finals, strict=True):
                client.mv(key, final)
        else:
            client.copy(keys, finals)
            client.rm(keys)


def run_renaming(case: str, stream: DataFrame, place: S3Place, *, one_by_one: bool) -> Run:
    """Write JSON lines into hourly prefixes by renaming."""
    output, checkpoint = place.fresh(case)
    sink = RenamingSink(output.removeprefix("s3://"), place.server.storage_options, one_by_one)
    return run_query(case, stream.writeStream.foreachBatch(sink), checkpoint, lambda: place.sizes(output, ".json"))
