"""The rows of a part whose bytes are no lines of text: a stage, Parquet, ORC or Avro."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.cli.inspection.content import ValidBytes


def rows_of(valid: ValidBytes) -> Iterator[dict[str, Any]] | None:
    """The rows in what counts of a part, one by one; None of text, JSON and CSV, whose bytes are their rows.

    Args:
        valid: The open part.

    Raises:
        ConfigError: What reads this format is not installed.
        PartDamaged: Also while the rows are taken: a stage is not what was written.
        OSError, ValueError: Likewise: the bytes are not of the format that the part's name says.
    """
    if valid.stage_length is not None:
        return _of_stage(valid, valid.stage_length)
    for ending, read in ((".parquet", _of_parquet), (".orc", _of_orc), (".avro", _of_avro)):
        if valid.path.endswith(ending):
            return read(valid.file)
    return None


def _of_stage(valid: ValidBytes, length: int) -> Iterator[dict[str, Any]]:
    from partfile.sink.shared_stages import schema_of_lines  # noqa: PLC0415 - only who prints a stage waits for it.
    from partfile.writers.stage_reading import read_stage  # noqa: PLC0415 - likewise.

    path = valid.path
    # The affixes of parts are the user's: a name tells the format only where nothing else does.
    is_avro = ".avro." in path if valid.stage_format is None else valid.stage_format == "avro"
    schema, batches = read_stage(valid.file, length, path, valid.stage_crc32)
    described = schema_of_lines(schema)
    for batch in batches:
        yield from batch.to_pylist() if described is None else _of_lines(batch, described if is_avro else None)


def _of_lines(batch: Any, avro: Any) -> Iterator[dict[str, Any]]:
    """The rows of a shared stage of a row format: what each has become there, and its bucket; the schema of Avro's."""
    decode = _text_of if avro is None else _avro_decoder(avro)
    for line, bucket in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        yield {"line": decode(line), "bucket": bucket}


def _text_of(line: bytes) -> str:
    return line.decode(errors="backslashreplace").removesuffix("\n")


def _avro_decoder(described: Any) -> Callable[[bytes], Any]:
    from partfile.writers.avro_schema import avro_schema  # noqa: PLC0415 - likewise.
    from partfile.writers.plain_columns import plain_schema  # noqa: PLC0415 - likewise.

    fastavro = _fastavro()
    parsed = fastavro.parse_schema(avro_schema(plain_schema(described)))
    return lambda line: fastavro.schemaless_reader(BytesIO(line), parsed, None)


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
    for row in _fastavro().reader(file):
        # A file may hold other values than records.
        yield row if isinstance(row, dict) else {"value": row}


def _fastavro() -> Any:
    try:
        import fastavro  # noqa: PLC0415 - it need not be there.
    except ImportError as error:
        raise ConfigError(
            "what reads Avro is not installed",
            hint="Install fastavro here; or take the bytes with --raw, and print them with avro-tools tojson.",
        ) from error
    return fastavro
