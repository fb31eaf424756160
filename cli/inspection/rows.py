"""The rows of a part whose bytes are no lines of text: a stage, Parquet, ORC or Avro."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.inspection.content import ValidBytes


def rows_of(valid: ValidBytes) -> Iterator[dict[str, Any]] | None:
    """The rows in what counts of a part, one by one; None of text, JSON and CSV, whose bytes are their rows.

    Args:
        valid: The open part.

    Raises:
        ConfigError: What reads this format is not installed.
        PartDamaged: Also while the rows are taken: a stage does not hold whole messages.
        OSError, ValueError: Likewise: the bytes are not of the format that the part's name says.
    """
    if valid.stage_length is not None:
        return _of_stage(valid.file, valid.stage_length, valid.path)
    for ending, read in ((".parquet", _of_parquet), (".orc", _of_orc), (".avro", _of_avro)):
        if valid.path.endswith(ending):
            return read(valid.file)
    return None


def _of_stage(file: Any, length: int, path: str) -> Iterator[dict[str, Any]]:
    from partfile.writers.arrow_stage import read_stage  # noqa: PLC0415 - only who prints a stage waits for it.

    _, batches = read_stage(file, length, path)
    for batch in batches:
        yield from batch.to_pylist()


def _of_parquet(file: Any) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only who prints Parquet waits for it.

    for batch in pq.ParquetFile(file).iter_batches():
        yield from batch.to_pylist()


def _of_orc(file: Any) -> Iterator[dict[str, Any]]:
    from pyarrow import orc  # noqa: PLC0415 - likewise.

    opened = orc.ORCFile(file)
    for stripe in range(opened.nstripes):
        yield from opened.read_stripe(stripe).to_pylist()


def _of_avro(file: Any) -> Iterator[dict[str, Any]]:
    try:
        import fastavro  # noqa: PLC0415 - it need not be there.
    except ImportError as error:
        raise ConfigError(
            "what reads Avro is not installed",
            hint="Install fastavro here; or take the bytes with --raw, and print them with avro-tools tojson.",
        ) from error
    for row in fastavro.reader(file):
        # A file may hold other values than records.
        yield row if isinstance(row, dict) else {"value": row}
