"""The keys of sinks that deduplicate: how many, how old, in which runs, and when each run falls."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from partfile.errors import ConfigError, NotApplied, NotFound, PartfileError, SnapshotCorrupt, SnapshotError
from partfile.recovery.documents import Json
from partfile.sink.clock import system_clock_ms
from partfile.sink.newest_state import is_retained, made_of_newest, newest_state
from partfile.sink.plan import needed_runs
from partfile.sink.restore import check_runs_are_there
from partfile.sink.restore_rules import damage_of_keys, damage_told
from partfile.sink.settings import forget_command
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from partfile.recovery.inspect.places import Job, Place
    from partfile.sink.newest_state import NewestState
    from partfile.sink.states import RunFile, SeenKeys
    from partfile.stores.base import MetadataStore, Store


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
    problem: str
    """Why no start can use it; empty if it is whole, or if its keys are all forgotten."""
    hint: str
    """Advice for the operator; empty without a problem."""


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
    left_out: int | None = None
    """With ``--export``: keys that are all forgotten, and whose files are damaged; null without it."""

    @property
    def damaged(self) -> list[RunReport]:
        """The runs that no start can use."""
        return [run for one in self.sinks for run in one.runs if run.problem]


def jobs_with_keys(store: MetadataStore, jobs: Iterable[Job]) -> list[Job]:
    """Those of some jobs that deduplicate, by their newest checkpoints. Reads no run.

    Raises:
        SnapshotError: A newest checkpoint cannot be read.
        StoreError: The store cannot be read.
    """
    return [job for job in jobs if _seen(newest_state(CheckpointStorage(store, job.name))) is not None]


def keys_reports(
    store: MetadataStore, place: Place, jobs: Iterable[Job], step: Callable[[int], None] = lambda _runs: None
) -> list[KeysReport]:
    """The keys of some jobs by their newest checkpoints, each run checked; without the jobs that do not deduplicate.

    Memory: as much as the largest run has.

    Args:
        store: The store of the checkpoints.
        place: Where the base is, for hints.
        jobs: Whose keys.
        step: Told how many runs more have been read.

    Raises:
        SnapshotError: A newest checkpoint cannot be read.
        StoreError: The store cannot be read.
    """
    reports = [_report(CheckpointStorage(store, job.name), place, job, step) for job in jobs]
    return [one for one in reports if one is not None]


def _seen(newest: NewestState | None) -> SeenKeys | None:
    return None if newest is None else newest.state.position.seen_keys


def _report(storage: CheckpointStorage, place: Place, job: Job, step: Callable[[int], None]) -> KeysReport | None:
    def report(newest: NewestState) -> KeysReport | None:
        seen = _seen(newest)
        if seen is None:
            return None
        runs = []
        needed = needed_runs(seen, seen.ttl_ms, system_clock_ms())
        for run in seen.runs:
            damage = _damage(run, storage, newest, _forget(place, job)) if run in needed else None
            runs.append(_run_report(run, storage, seen.ttl_ms, damage))
            step(1)
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
            runs=tuple(runs),
        )

    return made_of_newest(storage, report)


def _forget(place: Place, job: Job) -> str:
    return forget_command(place.base, job.name, place.checkpoint_dir, place.storage_options)


def _damage(run: RunFile, storage: CheckpointStorage, newest: NewestState, command: str) -> SnapshotError | None:
    """What is wrong with a run; raises it where the sink has gone on, so that it proves nothing."""
    from partfile.sink.deduplicate import check_run  # noqa: PLC0415 - only this reads runs.

    try:
        with damage_told(storage.job, command):
            check_run(storage, run)
    except SnapshotError as error:
        if not is_retained(storage, newest.checkpoint):
            raise
        return error
    return None


def _run_report(
    run: RunFile, storage: CheckpointStorage, ttl_ms: int | None, damage: SnapshotError | None
) -> RunReport:
    return RunReport(
        path=storage.path(run.handle.path) if isinstance(run.handle, FileHandle) else None,
        keys=run.keys,
        bytes=run.handle.size_bytes,
        first_ms=run.first_ms,
        last_ms=run.last_ms,
        expires_ms=None if ttl_ms is None else run.last_ms + ttl_ms,
        problem="" if damage is None else damage.message,
        hint="" if damage is None else damage.hint,
    )


def missing_keys(store: Store, place: Place, job: Job, newest: NewestState | None) -> PartfileError | None:
    """Why a sink does not start: a file with its keys is missing, or has another length. Reads none of them.

    Args:
        store: The store of the checkpoints.
        place: Where the base is, for the hint.
        job: Whose keys.
        newest: Its state in force; None if that is not known.

    Returns:
        The error, also where this user may not look; None if each file is there, or if the sink has gone on since.
    """
    seen = _seen(newest)
    storage = CheckpointStorage(store, job.name)
    try:
        check_runs_are_there(store, storage, seen, system_clock_ms())
    except SnapshotCorrupt as error:
        if newest is not None and is_retained(storage, newest.checkpoint):
            return damage_of_keys(job.name, error, _forget(place, job))
    except NotApplied as error:
        # What may not be looked at is no reason to hide the rest.
        return error
    return None


class Exported(NamedTuple):
    """Keys in a file of an export, and beside it."""

    written: int
    left_out: int
    """In damaged files, and all forgotten."""


def export_keys(store: MetadataStore, place: Place, job: Job, file: str) -> Exported:
    """Write the keys of one job to a new Parquet file: ``hash``, 16 bytes, and ``time``; returns how many.

    Its metadata have ``partfile.hash_version``, and ``partfile.columns`` and ``partfile.kinds`` as JSON. A damaged run
    whose keys are all forgotten is left out.

    Atomicity: none; what fails on the way leaves no file behind. A key that was entered again may be in two runs.

    Args:
        store: The store of the checkpoints.
        place: Where the base is, for hints.
        job: Whose keys.
        file: The path of the new file.

    Raises:
        NotFound: The sink does not deduplicate.
        SnapshotCorrupt: A run is missing or damaged.
        ConfigError: The file is there already, or cannot be written.
    """
    storage = CheckpointStorage(store, job.name)

    def export(newest: NewestState) -> Exported | None:
        seen = _seen(newest)
        return None if seen is None else _exported(seen, storage, _forget(place, job), file)

    exported = made_of_newest(storage, export)
    if exported is None:
        raise NotFound(
            f"sink {job.name!r} does not deduplicate, so it has no keys",
            hint="See which sinks do: partfile state PATH",
        )
    return exported


def _exported(seen: SeenKeys, storage: CheckpointStorage, command: str, file: str) -> Exported:
    import pyarrow as pa  # noqa: PLC0415 - only this writes Parquet.
    import pyarrow.parquet as pq  # noqa: PLC0415

    from partfile.sink.deduplicate import opened_run  # noqa: PLC0415

    told = {"hash_version": seen.hash_version, "columns": seen.columns, "kinds": seen.kinds}
    schema = pa.schema(
        [("hash", pa.binary(16)), ("time", pa.timestamp("ms", "UTC"))],
        {f"partfile.{name}": json.dumps(value) for name, value in told.items()},
    )
    needed, count, left_out = needed_runs(seen, seen.ttl_ms, system_clock_ms()), 0, 0
    try:
        with Path(file).open("xb") as opened, pq.ParquetWriter(opened, schema, compression="zstd") as writer:
            for run_file in seen.runs:
                try:
                    with damage_told(storage.job, command):
                        run = opened_run(storage, run_file)
                except SnapshotError:
                    if run_file in needed:
                        raise
                    left_out += run_file.keys
                    continue
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
    return Exported(count, left_out)
