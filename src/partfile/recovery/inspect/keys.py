"""The keys of sinks that deduplicate: how many, how old, in which runs, and when each run falls."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.errors import ConfigError, NotFound
from partfile.recovery.documents import Json
from partfile.sink.newest_state import made_of_newest, newest_state
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from partfile.recovery.inspect.places import Job
    from partfile.sink.newest_state import NewestState
    from partfile.sink.states import RunFile, SeenKeys
    from partfile.stores.base import MetadataStore


class RunReport(Json):
    """One run of keys."""

    path: str | None
    """Its file, relative to the directory of checkpoints; null where the run lies in the checkpoint itself."""
    keys: int
    """Keys in it; one that has expired counts until the run falls."""
    bytes: int
    """Size of the run."""
    first_ms: int
    """Time of its oldest key, in milliseconds since 1970."""
    last_ms: int
    """Time of its youngest key."""
    expires_ms: int | None
    """When the whole run falls, with the next checkpoint after it; null for never."""


class KeysReport(Json):
    """The keys of one sink or writer."""

    uid: str
    """The sink."""
    writer: int
    """0 for the sink itself."""
    columns: tuple[str, ...]
    """The columns that are the key."""
    kinds: tuple[str, ...]
    """The kind of values of each."""
    hash_version: int
    """How they are hashed."""
    ttl_ms: int | None
    """How long a key is remembered, in milliseconds; null is for ever."""
    keys: int
    """In all runs."""
    bytes: int
    """Of all runs."""
    oldest_ms: int | None
    """Time of the oldest key, in milliseconds since 1970; null without keys."""
    runs: tuple[RunReport, ...]
    """Oldest first."""


class StateReport(Json):
    """The output of ``state --json``."""

    schema_name: Literal["partfile.state"] = Field("partfile.state", alias="schema")
    schema_version: Literal[1] = 1
    checkpoints_at: str
    """The directory of its checkpoints."""
    sinks: tuple[KeysReport, ...]
    """Each sink and writer that deduplicates, by name."""
    exported: int | None = None
    """With ``--export``: keys that were written to the file; null without it."""


def keys_reports(store: MetadataStore, jobs: Iterable[Job]) -> list[KeysReport]:
    """What the newest checkpoints say of the keys of some jobs; those that do not deduplicate are left out.

    Raises:
        SnapshotError: A newest checkpoint cannot be read.
        StoreError: The store cannot be read.
    """
    return [
        _report(job, storage, seen)
        for job in jobs
        if (seen := _seen(storage := CheckpointStorage(store, job.name))) is not None
    ]


def _seen(storage: CheckpointStorage) -> SeenKeys | None:
    newest = newest_state(storage)
    return None if newest is None else newest.state.position.seen_keys


def _report(job: Job, storage: CheckpointStorage, seen: SeenKeys) -> KeysReport:
    return KeysReport(
        uid=job.uid,
        writer=job.writer,
        columns=seen.columns,
        kinds=seen.kinds,
        hash_version=seen.hash_version,
        ttl_ms=seen.ttl_ms,
        keys=sum(run.keys for run in seen.runs),
        bytes=sum(run.handle.size_bytes for run in seen.runs),
        oldest_ms=min((run.first_ms for run in seen.runs), default=None),
        runs=tuple(_run_report(storage, run, seen.ttl_ms) for run in seen.runs),
    )


def _run_report(storage: CheckpointStorage, run: RunFile, ttl_ms: int | None) -> RunReport:
    return RunReport(
        path=storage.path(run.handle.path) if isinstance(run.handle, FileHandle) else None,
        keys=run.keys,
        bytes=run.handle.size_bytes,
        first_ms=run.first_ms,
        last_ms=run.last_ms,
        expires_ms=None if ttl_ms is None else run.last_ms + ttl_ms,
    )


def export_keys(store: MetadataStore, job: Job, file: str) -> int:
    """Write the keys of one job to a new Parquet file: ``hash``, 16 bytes, and ``time``; returns how many.

    Atomicity: none; what fails on the way leaves no file behind. A key that was entered again may be in two runs.

    Raises:
        NotFound: The sink does not deduplicate.
        SnapshotCorrupt: A run is missing or damaged.
        ConfigError: The file is there already, or cannot be written.
    """
    storage = CheckpointStorage(store, job.name)

    def export(newest: NewestState) -> int | None:
        seen = newest.state.position.seen_keys
        return None if seen is None else _exported(seen, storage, file)

    count = made_of_newest(storage, export)
    if count is None:
        raise NotFound(
            f"sink {job.name!r} does not deduplicate, so it has no keys",
            hint="See which sinks do: partfile state PATH",
        )
    return count


def _exported(seen: SeenKeys, storage: CheckpointStorage, file: str) -> int:
    import pyarrow as pa  # noqa: PLC0415 - only this reads runs.
    import pyarrow.parquet as pq  # noqa: PLC0415

    from partfile.sink.deduplicate import opened_run  # noqa: PLC0415

    schema = pa.schema([("hash", pa.binary(16)), ("time", pa.timestamp("ms", "UTC"))])
    count = 0
    try:
        with Path(file).open("xb") as opened, pq.ParquetWriter(opened, schema, compression="zstd") as writer:
            for run_file in seen.runs:
                run = opened_run(storage, run_file)
                hashes = pa.Array.from_buffers(pa.binary(16), run.keys, [None, pa.py_buffer(run.hashes())])
                times = pa.array(run.times(slice(None))).cast(pa.timestamp("ms", "UTC"))
                writer.write_table(pa.table([hashes, times], schema=schema))
                count += run.keys
    except FileExistsError as error:
        raise ConfigError(
            f"--export {file!r} is there already", hint="Name a new file, as --export keys.parquet."
        ) from error
    except BaseException as error:
        with suppress(OSError):
            Path(file).unlink()
        if isinstance(error, OSError):
            raise ConfigError(
                f"--export {file!r} cannot be written: {error.strerror or error}",
                hint="Name a file in a directory that you can write to, as --export /tmp/keys.parquet.",
            ) from error
        raise
    return count
