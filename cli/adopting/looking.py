"""Looking at a tree that another sink has written: listing it, reading its sidecars or its log, and the plan."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from partfile.cli.adopting.adoption import StoreAbilities
from partfile.cli.adopting.flink_plan import flink_parts, plan_flink
from partfile.cli.adopting.spark_log import LOG_DIRECTORY, MAX_LOG_BYTES, log_files, read_log
from partfile.cli.adopting.spark_plan import plan_spark
from partfile.filesystems.errors import FileTooLarge, NotApplied, NotFound, SnapshotCorrupt
from partfile.recovery.flink_sidecars import MAX_FLINK_SIDECAR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.cli.adopting.adoption import AdoptionOptions, AdoptionPlan
    from partfile.filesystems.port import Store, StoredFile


def plan_adoption(store: Store, url: str, options: AdoptionOptions, step: Callable[[int], None]) -> AdoptionPlan:
    """What would become of a tree now. Lists the whole of it; changes nothing.

    Args:
        store: Of the base.
        url: The base as it was given.
        options: Whose tree it is, and what may be done.
        step: Told how many files more have been looked at.

    Raises:
        SnapshotCorrupt: Spark's log is damaged, so nobody knows what is committed.
        RecoveryRefused: Spark's log is about another directory.
        NotFound: There is no log of Spark's.
        StoreError: The store cannot be read.
    """
    can = store.capabilities
    abilities = StoreAbilities(cuts=can.append and can.lease and can.staged_files, moves=store.moves_files)
    if options.layout == "flink":
        parts, ignored = flink_parts(_counted(store, step), options.names)
        sidecars = [part.files["sidecar"].path for part in parts if "sidecar" in part.files]
        lengths = {path: _length_in(store, path, options) for path in sidecars}
        return plan_flink(parts, ignored, lengths, options, abilities)
    names = log_files(_log_names(store))
    # The log first: what is committed after it was read is younger than the newest file in it, and seems to run.
    log = read_log({name: _log_file(store, name) for name in names})
    return plan_spark(_counted(store, step), log, _paths_of(store, url), options, abilities)


def _counted(store: Store, step: Callable[[int], None]) -> Iterator[StoredFile]:
    for file in store.list():
        step(1)
        yield file


def _length_in(store: Store, path: str, options: AdoptionOptions) -> int | None:
    """What a sidecar says; None if it is damaged, gone, or no file."""
    try:
        content = store.read_file(path, MAX_FLINK_SIDECAR_BYTES)
        return options.names.sidecars.length_in(content, path)
    except (SnapshotCorrupt, NotApplied):
        return None


def _log_names(store: Store) -> list[str]:
    names = store.list_names(LOG_DIRECTORY)
    if not names:
        raise NotFound(
            f"{store.base!r} has no {LOG_DIRECTORY}, so no file sink of Spark's wrote it",
            hint="Name the directory that was the sink's path, not one inside it.",
            path=LOG_DIRECTORY,
        )
    return names


def _log_file(store: Store, name: str) -> bytes:
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        return store.read_file(path, MAX_LOG_BYTES)
    except (FileTooLarge, NotFound) as error:
        hint = "If the query runs it has just rewritten its log; run this again when it is stopped."
        raise SnapshotCorrupt(f"{path} cannot be read: {error.message}", hint=hint, path=path) from error


def _paths_of(store: Store, url: str) -> tuple[str, ...]:
    """The paths by which Spark may have called the base: as it was given, and with links resolved."""
    return tuple(dict.fromkeys(_path_of(one) for one in (store.base, url)))


def _path_of(url: str) -> str:
    parts = urlsplit(url)
    if "://" in url:
        return parts.path
    # As Spark makes a path absolute: links stay.
    return os.path.abspath(parts.path if parts.scheme == "file" else url)  # noqa: PTH100 - resolve() follows links.
