"""Adopt a tree that another sink has written: look at it, plan, and do the plan as it was printed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from partfile.errors import Fenced, FileTooLarge, NotApplied, NotFound, PartfileError, RecoveryRefused, SnapshotCorrupt
from partfile.readers.files import MAX_FLINK_SIDECAR_BYTES
from partfile.recovery.adopt.flink import flink_parts, plan_flink
from partfile.recovery.adopt.plan import NOT_COMMITTED, StoreAbilities
from partfile.recovery.adopt.spark import LOG_DIRECTORY, MAX_LOG_BYTES, log_files, plan_spark, read_log
from partfile.recovery.clean import QUARANTINE, new_run, place_of
from partfile.recovery.documents import Json, check_same
from partfile.stores.base import STATE_DIRECTORY, PartHandle
from partfile.stores.parts import split_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.recovery.adopt.flink_names import FlinkNames
    from partfile.recovery.adopt.plan import AdoptedItem, AdoptionOptions, AdoptionPlan
    from partfile.stores.base import Store, StoredFile


def plan_adoption(store: Store, url: str, options: AdoptionOptions, step: Callable[[int], None]) -> AdoptionPlan:
    """Plan the adoption of a tree. Lists the whole of it; changes nothing.

    Args:
        store: Of the base.
        url: The base as it was given.
        options: Whose tree it is, and what may be done.
        step: Told how many files more have been looked at.

    Raises:
        SnapshotCorrupt: Spark's log is damaged, so what is committed is unknown.
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
    """The length in a sidecar; None if it is damaged, gone, or not a file."""
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
            hint="Name the directory that was the sink's path, not one inside it: "
            "partfile recover PATH --adopt-layout spark",
            path=LOG_DIRECTORY,
        )
    return names


def _log_file(store: Store, name: str) -> bytes:
    path = f"{LOG_DIRECTORY}/{name}"
    try:
        return store.read_file(path, MAX_LOG_BYTES)
    except (FileTooLarge, NotFound) as error:
        hint = (
            "If the query runs, it has just rewritten its log. Stop it, and run this again: "
            "partfile recover PATH --adopt-layout spark"
        )
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


_MARKER = f"{STATE_DIRECTORY}/_adoption.marker"


class FailedItem(Json):
    """An item that could not be done."""

    path: str
    """Relative to the base."""
    error: str
    """Why."""


class AdoptedReport(Json):
    """The result of adopting a tree of another sink."""

    quarantine: str | None
    """The directory that files are in now, relative to the state directory; null if none was moved."""
    published: int
    """Parts that are finished."""
    cut: int
    """Finished parts that end where their sidecars said."""
    quarantined: int
    """Files that were moved, sidecars and checksums among them."""
    failed: tuple[FailedItem, ...]
    """Items that could not be done; running it again tries them again."""


@dataclass(slots=True)
class _Progress:
    """The result so far."""

    run: str
    published: int = 0
    cut: int = 0
    quarantined: int = 0


def check_idle(plan: AdoptionPlan, now_ms: int, idle_for_s: float) -> None:
    """Refuse a tree that its sink seems to write still. It knows nothing of partfile, so nothing can fence it.

    Args:
        plan: What was found.
        now_ms: Now by the store's clock, in milliseconds since 1970.
        idle_for_s: After so long without a change it counts as stopped, in seconds.

    Raises:
        Fenced: It changed something since.
    """
    quiet_s = (now_ms - plan.newest_ms) / 1000
    if plan.newest_ms and quiet_s < idle_for_s:
        raise Fenced(
            f"the newest file is {max(0, round(quiet_s))} s old, less than {idle_for_s:g} s: the job may be running",
            hint="Nothing was changed. Stop that job for good first: partfile cannot fence it. --fence says that you "
            "have; --idle-for says how long it must have been silent.",
        )


def adopt(
    plan: AdoptionPlan, store: Store, url: str, now_ms: int, step: Callable[[int], None] = lambda _items: None
) -> AdoptedReport:
    """Do a plan, if it is still what would be done.

    Idempotence: each step is; after a crash the same command goes on with what is left. Nothing is replaced or deleted.

    Args:
        plan: What was printed.
        store: Of the base.
        url: The base as it was given.
        now_ms: Now by the store's clock, in milliseconds since 1970.
        step: Told how many items more were done, or could not be.

    Raises:
        Fenced: Another such command is at work.
        RecoveryRefused: The plan is another one by now; nothing was done.
    """
    if not store.hold_marker(_MARKER):
        raise Fenced(
            "another command is adopting this tree",
            hint="Nothing was changed. Look again when it has ended: partfile recover PATH --adopt-layout spark",
        )
    check_same(plan.digest, plan_adoption(store, url, plan.options, lambda _files: None).digest)
    done = _Progress(new_run(now_ms))
    failed = []
    for item in plan.to_do:
        try:
            _adopt_one(item, plan.options.names, store, done)
        except PartfileError as error:
            failed.append(FailedItem(path=item.path, error=error.message))
        step(1)
    return AdoptedReport(
        quarantine=f"{QUARANTINE}/{done.run}" if done.quarantined else None,
        published=done.published,
        cut=done.cut,
        quarantined=done.quarantined,
        failed=tuple(failed),
    )


def _adopt_one(item: AdoptedItem, names: FlinkNames, store: Store, done: _Progress) -> None:
    _check_unchanged(item, store)
    for path in item.first:
        done.quarantined += _remove(path, store, done)
    match item.action:
        case "publish":
            store.publish(_staged_part(item, names), "auto")
            done.published += 1
        case "cut":
            part = _staged_part(item, names)
            # After a crash its sidecar is beside a pending part, which the next run publishes at that length.
            _hidden(item, part.pending, store)
            store.publish(part, "auto")
            done.cut += 1
        case "quarantine":
            done.quarantined += _remove(_name_to_move(item, store), store, done)
        case "leave":
            return
    for path in item.then:
        done.quarantined += _remove(path, store, done)


def _check_unchanged(item: AdoptedItem, store: Store) -> None:
    seen = store.look_at(item.path)
    if seen is None or seen.size != item.size:
        raise RecoveryRefused(f"{item.path!r} is not what it was when the plan was made", path=item.path)


def _remove(path: str, store: Store, done: _Progress) -> bool:
    return store.remove(path, place_of(path, done.run))


def _name_to_move(item: AdoptedItem, store: Store) -> str:
    """The path by which a file goes to the quarantine. A glob such as ``**/*.json`` looks in there too."""
    name = split_path(item.path)[1]
    if item.kind != "not committed" or name.endswith(NOT_COMMITTED):
        return item.path
    return _hidden(item, f"_{name}{NOT_COMMITTED}", store)


def _hidden(item: AdoptedItem, hidden_name: str, store: Store) -> str:
    """Rename a file whose name readers look for to one that they pass over, whole, and return its path.

    A process that has it open is fenced, or the file is left.
    """
    bucket, _ = split_path(item.path)
    store.hide(item.path, hidden_name)
    return f"{bucket}/{hidden_name}" if bucket else hidden_name


def _staged_part(item: AdoptedItem, names: FlinkNames) -> PartHandle:
    bucket, name = split_path(item.final_path or item.path)
    part = names.part(bucket, name, item.size if item.valid_length is None else item.valid_length)
    return part.model_copy(update={"pending": split_path(item.path)[1]}) if item.kind == "copied" else part
