"""Encoding a shared stage: one file for each bucket that has rows in it.

The stage is read once, and memory is bounded whatever its size: see ``sink/bucket_runs.py``.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from partfile.bucketers.escaping import is_safe_path
from partfile.sink.bucket_runs import BucketRuns
from partfile.sink.encoded_files import EncodedFile, check_rows, damaged
from partfile.sink.shared_files import SharedFiles
from partfile.sink.shared_stages import file_schema

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from partfile.filesystems.port import PartHandle, PartStore
    from partfile.writers.port import Format
    from partfile.writers.stage_reading import StageContent

MOST_HELD_BYTES = 32 << 20
"""Arrow bytes that are held, whatever the size of the stage; as much again while they are sorted."""


@dataclass(frozen=True, slots=True)
class SharedStage:
    """A shared stage that is to be encoded."""

    part: PartHandle
    """The stage."""
    form: Format
    """What its files are encoded in."""
    content: StageContent

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Every row, from the beginning, with its bucket in the last column.

        Raises:
            PartDamaged: The stage is not what was written, or a bucket in it is not safe as a path.
        """
        safe: set[str] = set()
        for batch in self.content.read()[1]:
            # What is read back is asked again, not believed: it becomes a path.
            fresh = set(_paths(batch).unique().to_pylist()) - safe
            unsafe = [path for path in fresh if path is None or not is_safe_path(path)]
            if unsafe:
                raise damaged(self.part, f"names the bucket {str(unsafe[0])[:60]!r}, which is not safe as a path")
            safe |= fresh
            yield batch

    def schema(self) -> pa.Schema:
        """The columns of its files.

        Raises:
            PartDamaged: It is no shared stage of this format.
        """
        try:
            return file_schema(self.form, self.content.read()[0])
        except (ValueError, pa.ArrowException) as error:
            raise damaged(self.part, f"is not shared by buckets: {error}") from error


def encode_shared(
    store: PartStore,
    stage: SharedStage,
    rows: int,
    *,
    finished: Collection[str] = (),
    most_held_bytes: int = MOST_HELD_BYTES,
) -> tuple[EncodedFile, ...]:
    """Encode a shared stage into one file a bucket, each durable under its pending name.

    A bucket in which no file can be made keeps no other from having its own. Atomicity: of any other failure nothing is
    left but what cannot be deleted, for nobody else knows the names.

    Args:
        store: Where the files go.
        stage: What is encoded.
        rows: How many the checkpoint vouches for.
        finished: Buckets whose file is there already.
        most_held_bytes: Of Arrow, that are held at the same time.

    Raises:
        PartDamaged: The stage does not hold these rows, or is not what was written.
        PartlyEncoded: Some files could not be made. It has the others.
        StoreError: It could not be read, or no file be made.
    """
    schema = stage.schema()
    with closing(BucketRuns(most_held_bytes)) as runs:
        found = 0
        for batch in stage.batches():
            found += batch.num_rows
            runs.add(_without(batch, finished))
        check_rows(stage.part, found, rows)
        files = SharedFiles(store, stage, schema, runs.rows, finished=finished, most_held_bytes=most_held_bytes)
        try:
            files.write(runs.buckets())
        except Exception:
            files.discard()
            raise
        finally:
            files.close()
        return files.result()


def _without(batch: pa.RecordBatch, finished: Collection[str]) -> pa.RecordBatch:
    if not finished:
        return batch
    return batch.filter(pc.invert(pc.is_in(_paths(batch), value_set=pa.array(sorted(finished), pa.large_string()))))


def _paths(batch: pa.RecordBatch) -> Any:
    return batch.column(batch.num_columns - 1)
