"""The valid bytes and the rows of one part, in any state of its life."""

from __future__ import annotations

import json
import os
from base64 import b64encode
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

from partfile.errors import ConfigError, NotFound, RecoveryRefused
from partfile.readers.filesystem import ValidLengthFileSystem, open_for_reading
from partfile.readers.streams import ReadableFile, open_readable
from partfile.recovery.inspect.files import classify
from partfile.stores.paths import is_relative_path
from partfile.stores.registry import path_inside, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from fsspec import AbstractFileSystem

    from partfile.recovery.inspect.files import KnownPart, PartIndex, SeenBase
    from partfile.recovery.inspect.places import Place


def path_below(place: Place, seen: SeenBase, part: str) -> str:
    """The path of a part below the base, as it was named: relative to the base or the working directory, or in full.

    What is there relative to the base is meant; then what a shell completes, from the working directory.

    Args:
        place: Where the base is.
        seen: What the checkpoints say.
        part: The name.

    Raises:
        ConfigError: It is elsewhere.
    """
    is_full = part.startswith("/") or "://" in part
    # As find prints them.
    path = part.removeprefix("./")
    if is_full or not _is_there(place, seen, path):
        # So that no beginning of a relative one is taken for a scheme.
        inside = path_inside(part if is_full else f"./{part}", place.base, place.storage_options)
        path = "/".join(inside) if inside and (is_full or _is_there(place, seen, "/".join(inside))) else path
    if not is_relative_path(path):
        raise ConfigError(
            f"PART {part!r} is no path below {place.base!r}",
            hint="Name it relative to PATH or to the working directory, or in full. See what there is: partfile list "
            "PATH",
            path=part,
        )
    return path


def _is_there(place: Place, seen: SeenBase, path: str) -> bool:
    """Whether a part has this name, or a file of a local base."""
    if not is_relative_path(path):
        return False
    return seen.known.named(path) is not None or os.path.lexists(f"{resolved(place.base)}/{path}")


@dataclass(frozen=True, slots=True)
class ValidBytes:
    """An open part that ends where its valid bytes do."""

    file: Any
    path: str
    """The final path of the part, which tells its format and compression; of a staging file its own."""
    staging_length: int | None = None
    """Valid length in bytes if it is not in that format yet, but a staging file."""
    staging_crc32: int | None = None
    """Of a staging file, where it is known."""
    staging_format: str | None = None
    """Of a staging file, the format it is encoded in, where a retained checkpoint says it."""


@contextmanager
def open_valid(place: Place, seen: SeenBase, path: str) -> Iterator[ValidBytes]:
    """Open the valid bytes of a part, under whichever name it has now, for as long as a block lasts.

    Args:
        place: Where its base is.
        seen: What the checkpoints say.
        path: Any name of it, relative to the base: final, in-progress or pending.

    Raises:
        NotFound: There is no such file.
        RecoveryRefused: No checkpoint vouches for a byte of it, or its bytes are in no file yet, as on S3; a staging
            file can be read there too.
        PartMissing: It is under none of its names, or shorter than its valid length.
        SnapshotCorrupt: Its sidecar is damaged.
        StoreError: It cannot be read, for instance because a writer holds it open on HDFS.
    """
    known = seen.known.named(path)
    if known is not None and not (known.is_current or path != known.path):
        known = None
    if known is not None and known.is_staging_file:
        with place.open_base() as store, store.open_staging_file(known.handle) as file:
            staging_file = known.handle.path_of(known.handle.in_progress)
            yield ValidBytes(
                file, staging_file, known.handle.valid_length, known.crc32, _format_of(seen.known, staging_file, known)
            )
        return
    valid = _opened(place, seen, path, known)
    with valid.file:
        yield valid


def _format_of(known: PartIndex, path: str, staging_file: KnownPart) -> str | None:
    """The format a staging file is encoded in. An encoded one says it no more; older checkpoints that need it do."""
    named = known.parts.get(path, staging_file) if staging_file.staging_file is None else staging_file
    return None if named.staging_file is None else str(named.staging_file.spec.get("format"))


def _opened(place: Place, seen: SeenBase, path: str, known: KnownPart | None) -> ValidBytes:
    """The valid bytes of a file that is not a staging file, by any name, or by that of a known part."""
    behind, base = open_for_reading(place.base, place.storage_options)
    if known is not None and path == known.path and known.is_file and _has_taken_its_name(behind, base, known):
        known = None
    if known is not None:
        return ValidBytes(open_known(behind, base, known), known.path)
    if classify(path, seen.known).kind in {"orphan", "temporary"}:
        raise RecoveryRefused(
            f"no retained checkpoint vouches for a byte of {path!r}",
            hint=(
                "It is an orphan: a task died before its bytes counted, and wrote them again elsewhere. See which "
                "files count: partfile list PATH --state finished"
            ),
            path=path,
        )
    file_system = ValidLengthFileSystem(behind, base, sidecars=seen.known.sidecars[0])
    try:
        return ValidBytes(file_system.open(f"{base}/{path}", "rb"), path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotFound(
            f"{path!r} is not a finished file below the base, nor a part that a retained checkpoint names",
            hint="See what there is: partfile list PATH",
            path=path,
        ) from error


def _has_taken_its_name(behind: AbstractFileSystem, base: str, part: KnownPart) -> bool:
    """Whether both names are there, the final and a staged one: readers see the former, whichever program made it."""
    return behind.exists(f"{base}/{part.path}") and any(behind.exists(f"{base}/{path}") for path in part.staged_paths)


def open_known(behind: AbstractFileSystem, base: str, part: KnownPart) -> Any:
    """Open the valid bytes of a part that a checkpoint names, under the name that it has now; no staging file.

    Args:
        behind: The file system that shows every file.
        base: The base path in it.
        part: The part.

    Raises:
        RecoveryRefused: They are in no file yet, as on S3.
        PartMissing: It is under none of its names, or shorter than its valid length.
        StoreError: It cannot be read.
    """
    names = (*part.staged_paths, part.path)
    if not part.is_file and not behind.exists(f"{base}/{part.path}"):
        raise RecoveryRefused(
            f"the bytes of {part.path!r} are in no file before it is published",
            hint=(
                "On S3 they are in an upload, which cannot be read. The next start of the sink publishes it; or "
                "type: partfile recover PATH"
            ),
            path=part.path,
        )
    return open_readable(behind, base, ReadableFile(part.path, part.handle.valid_length, names))


def rows_of(valid: ValidBytes) -> Iterator[bytes] | None:
    """The rows in what counts of a part, as JSON lines; None of text, JSON and CSV, whose bytes are their rows.

    Values have the forms that a sink of JSON writes, so that the lines can be loaded. Values of Avro files, and of
    types that JSON lacks, have the text that Python gives them, and bytes are base64.

    Args:
        valid: The open part.

    Raises:
        ConfigError: What reads this format, or its compression, is not installed.
        PartDamaged: Also while the rows are taken: a staging file is not what was written.
        OSError, ValueError: Likewise: the bytes are not of the format that the part's name says.
    """
    if valid.staging_length is not None:
        return _of_staging_file(valid, valid.staging_length)
    for ending, read in ((".parquet", _of_parquet), (".orc", _of_orc), (".avro", _of_avro)):
        if valid.path.endswith(ending):
            return read(valid)
    return None


def _of_staging_file(valid: ValidBytes, length: int) -> Iterator[bytes]:
    from partfile.sink.multi_bucket import schema_of_lines  # noqa: PLC0415 - only a staging file needs it.
    from partfile.writers.arrow_staging import read_staging_file  # noqa: PLC0415 - likewise.

    path = valid.path
    # The affixes of parts are the user's: a name tells the format only where nothing else does.
    is_avro = ".avro." in path if valid.staging_format is None else valid.staging_format == "avro"
    schema, batches = read_staging_file(valid.file, length, path, valid.staging_crc32)
    described = schema_of_lines(schema)
    for batch in batches:
        yield _json_lines(batch) if described is None else _of_lines(batch, described if is_avro else None)


def _json_lines(batch: Any) -> bytes:
    from partfile.writers.json import JsonLinesFormat  # noqa: PLC0415 - loads pyarrow, as the readers of files do.

    form = JsonLinesFormat()
    try:
        form.check(batch.schema)
        return bytes(form.encode(batch).data)
    except ConfigError:
        return _dumped(batch.to_pylist())


def _dumped(rows: Iterable[object]) -> bytes:
    dump = partial(json.dumps, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return "".join(f"{dump(row)}\n" for row in rows).encode()


def _plain(value: object) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _of_lines(batch: Any, avro: Any) -> bytes:
    """The rows of a multi-bucket staging file of a row format: what each has become there, and its bucket.

    The schema of Avro's.
    """
    decode = _text_of if avro is None else _avro_decoder(avro)
    lines = zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return _dumped({"line": decode(line), "bucket": bucket} for line, bucket in lines)


def _text_of(line: bytes) -> str:
    return line.decode(errors="backslashreplace").removesuffix("\n")


def _avro_decoder(described: Any) -> Callable[[bytes], Any]:
    from partfile.readers.avro import load_fastavro  # noqa: PLC0415 - likewise.
    from partfile.writers.avro import avro_schema  # noqa: PLC0415 - likewise.
    from partfile.writers.columns import plain_schema  # noqa: PLC0415 - likewise.

    fastavro = load_fastavro()
    parsed = fastavro.parse_schema(avro_schema(plain_schema(described)))
    return lambda line: fastavro.schemaless_reader(BytesIO(line), parsed, None)


def _of_parquet(valid: ValidBytes) -> Iterator[bytes]:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only Parquet needs it.

    for batch in pq.ParquetFile(valid.file).iter_batches():
        yield _json_lines(batch)


def _of_orc(valid: ValidBytes) -> Iterator[bytes]:
    from pyarrow import orc  # noqa: PLC0415 - likewise.

    opened = orc.ORCFile(valid.file)
    for stripe in range(opened.nstripes):
        yield _json_lines(opened.read_stripe(stripe))


def _of_avro(valid: ValidBytes) -> Iterator[bytes]:
    from partfile.readers.avro import load_fastavro, missing_codec  # noqa: PLC0415 - likewise.

    try:
        for row in load_fastavro().reader(valid.file):
            # A file may hold other values than records.
            yield _dumped([row if isinstance(row, dict) else {"value": row}])
    except ValueError as error:
        if (uninstalled := missing_codec(error, valid.path)) is not None:
            raise uninstalled from error
        raise


_AT_ONCE_BYTES = 1 << 20


def begin_alike(
    base: str, storage_options: Mapping[str, object] | None, paths: tuple[str, str], length_bytes: int
) -> bool:
    """Whether two files below a base hold the same bytes, as far as both go and up to a length.

    Args:
        base: The base.
        storage_options: Of its store.
        paths: Both files, relative to the base. One that is gone by now differs in nothing.
        length_bytes: How far they are compared.

    Raises:
        ConfigError: Nothing can read from there, for want of a package.
        StoreError: The store cannot be read.
    """
    behind, root = open_for_reading(base, storage_options)
    one, other = paths
    try:
        with behind.open(f"{root}/{one}", "rb") as first, behind.open(f"{root}/{other}", "rb") as second:
            while length_bytes > 0:
                count = min(length_bytes, _AT_ONCE_BYTES)
                ours, theirs = first.read(count), second.read(count)
                both = min(len(ours), len(theirs))
                if ours[:both] != theirs[:both]:
                    return False
                if both < count:
                    return True
                length_bytes -= count
    except FileNotFoundError:
        # One of them has moved meanwhile, as when the sink publishes it.
        pass
    return True
