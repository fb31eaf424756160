"""Reading what a sink has written: ``partfile.read``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from partfile.filesystems.errors import ConfigError, NotFound
from partfile.recovery.dataset import Partitioning, dataset_of
from partfile.recovery.layout import DEFAULT_SIDECARS, SidecarNaming
from partfile.recovery.opening import open_for_reading
from partfile.recovery.readable_files import finished, with_pending
from partfile.recovery.valid_length_filesystem import ValidLengthFileSystem
from partfile.sink.pending_parts import pending_parts
from partfile.sink.restore_settings import checkpoint_url_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    import pyarrow as pa
    import pyarrow.dataset as ds

    from partfile.filesystems.port import PartHandle

Include = Literal["finished", "pending"]


def read(
    path: str | os.PathLike[str],
    *,
    format: str | ds.FileFormat | None = None,
    include: Include = "finished",
    storage_options: Mapping[str, object] | None = None,
    partitioning: Partitioning | None = "hive",
    schema: pa.Schema | None = None,
    sidecars: SidecarNaming = DEFAULT_SIDECARS,
    checkpoint_dir: str | os.PathLike[str] | None = None,
) -> ds.Dataset:
    """Read what sinks have finished below a base path, as a lazy dataset: each row once, valid lengths honoured.

    The files are listed now and opened when the dataset is scanned, which may be done often. Later files are not in it.

    Args:
        path: The base path of the sink: a plain path, ``file:``, or any URL that fsspec opens.
        format: ``text`` (one string column ``value``), ``json``, ``csv``, ``avro``, ``parquet`` or ``orc``, read as a
            sink writes them by default; or a format of ``pyarrow.dataset`` with options of its own. None goes by the
            files' names. How a file is compressed is always told by its name, or within it.
        include: ``finished`` files; or ``pending`` parts as well: those that the newest checkpoint has promised, at the
            length that it vouches for. Parts that are still open are never included, nor the rows of a stage before
            they are encoded.
        storage_options: What the file system's client needs; none for local files.
        partitioning: ``"hive"`` makes columns of ``name=value`` directories; None does not.
        schema: The columns, partition columns included. None looks into every file and guesses the types of text.
        sidecars: How the sink names its sidecars, if not by default.
        checkpoint_dir: Where the sink keeps its checkpoints, if not below the base; for ``include="pending"``.

    Returns:
        A dataset of pyarrow.

    Raises:
        NotFound: The path is not there; or, with ``include="pending"``, no checkpoints.
        ConfigError: It is a file; it holds no row and no schema was given; its files are of several formats, or of one
            that cannot be told; an option is not known; or the files are of Avro and fastavro is not installed.
        SnapshotCorrupt: A sidecar is damaged, or the newest checkpoint is.
        PartMissing: A file is shorter than it was when it was committed.
        PartDamaged: Also in a scan: a file does not hold whole blocks of Avro or snappy.
        UnsupportedTypeError: A column of Avro is of a type that no sink writes, such as a union.
        NotReady: On HDFS, also in a scan: somebody holds a pending part open, so that its bytes cannot be read yet.
        NotApplied: The store refused a call or did not answer in time; also in a scan.
    """
    if include not in {"finished", "pending"}:
        raise ConfigError(f"include={include!r} is not known", hint='Use "finished" or "pending".')
    behind, base = open_for_reading(path, storage_options)
    file_system = ValidLengthFileSystem(behind, base, sidecars=sidecars)
    _check_directory(file_system, path)
    pending: list[PartHandle] = []
    if include == "pending":
        # Before the files are listed: what is published in between is then among them.
        checkpoints = checkpoint_url_of(str(path), None if checkpoint_dir is None else str(checkpoint_dir))
        pending = pending_parts(checkpoints, storage_options)
    files = with_pending(finished(file_system), pending)
    return dataset_of(behind, file_system.base, files, format=format, partitioning=partitioning, schema=schema)


def _check_directory(file_system: ValidLengthFileSystem, path: object) -> None:
    try:
        file_system.info(file_system.base)
    except FileNotFoundError as error:
        raise NotFound(f"{str(path)!r} is not there", hint="Check the path.", path=str(path)) from error
    except NotADirectoryError as error:
        raise ConfigError(f"{str(path)!r} is a file", hint="Pass the base path of the sink.", path=str(path)) from error
