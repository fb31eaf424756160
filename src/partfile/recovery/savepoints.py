"""Take a savepoint of a sink that does not run, and dispose of one."""

from __future__ import annotations

from itertools import filterfalse
from typing import TYPE_CHECKING, Literal

from partfile.errors import ConfigError, NotFound, RecoveryRefused, SnapshotError, SnapshotVersionError, joined_hints
from partfile.recovery.documents import Json, Plan
from partfile.recovery.recover import (
    PlannedJob,
    RecoveryOptions,
    RecoveryPlan,
    plan_job,
    planned_takeover,
    recovery_settings,
)
from partfile.sink.savepoints import directory_for_savepoints, reserved_savepoint
from partfile.snapshot import documents
from partfile.snapshot.savepoints import dispose_savepoint, is_file_of_savepoint, is_savepoint_name, read_savepoint
from partfile.snapshot.storage import pointer_to
from partfile.stores.registry import is_local, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from partfile.recovery.inspect.places import Job, Place
    from partfile.recovery.ownership import Stores
    from partfile.sink.settings import StoreOpener
    from partfile.stores.base import Store


_Left = Literal["rest of one", "unreadable savepoint"]


class CreationPlan(Plan):
    """The plan of ``savepoint create``: recover the sink, then write the savepoint."""

    base: str = ""
    """The base that was meant, with links resolved: a copy of it has plans of its own."""
    directory: str
    """The directory of the savepoint."""
    options: RecoveryOptions
    """The options that were given."""
    job: PlannedJob
    """The recovery of the sink before."""

    @property
    def recovery(self) -> RecoveryPlan:
        """The part of it that comes first."""
        return RecoveryPlan(base=self.base, options=self.options, jobs=(self.job,))


class CreatedSavepoint(Json):
    """A savepoint that was taken, and what became of the sink's parts before."""

    location: str
    """The location that ``restore_from`` takes."""
    published: int
    """Parts that have their final names by now."""
    given_up: int
    """Parts that were gone, whose rows are lost: the savepoint goes on after them."""


class DisposalPlan(Plan):
    """The plan of ``savepoint dispose``."""

    location: str
    """The savepoint as it was named."""
    savepoint_id: str | None
    """Null if it cannot be read, or was never finished."""
    job: str | None
    """The sink, or the writer ``uid~n``, it was taken of."""
    checkpoint_id: int | None
    """The checkpoint it was taken by."""
    files: tuple[str, ...]
    """Names in its directory, which are deleted with it."""
    foreign: tuple[str, ...] = ()
    """Names in there that are none of a savepoint's: they stay, and so does the directory."""
    kind: Literal["savepoint", "unreadable savepoint", "rest of one", "nothing"]
    """Its state. An unreadable savepoint was finished, and its ``_metadata`` is damaged; a rest never was."""


def plan_creation(place: Place, job: Job, directory: str, options: RecoveryOptions, stores: Stores) -> CreationPlan:
    """Plan a savepoint. Changes nothing.

    Raises:
        NotFound: The sink has no checkpoint.
        ConfigError: No savepoint can be made there.
        RecoveryRefused: A file is in the place of the directory.
        SnapshotCorrupt: Its newest one cannot be read.
    """
    _check_no_file(place, directory_for_savepoints(recovery_settings(place, job, options), job.name, directory))
    planned = plan_job(place, job, options, stores)
    if planned is None:
        raise NotFound(
            f"sink {job.name!r} has no checkpoint, so there is nothing to save",
            hint="It begins with its first checkpoint; check --uid and --checkpoint-dir.",
        )
    return CreationPlan(base=stores.base.base, directory=directory, options=options, job=planned)


def _check_no_file(place: Place, directory: str) -> None:
    """Refuse a local directory for savepoints that cannot be one, because it or what is above it is a file.

    Raises:
        RecoveryRefused: It is.
    """
    if not is_local(directory):
        return
    try:
        open_store(directory, create_base=False).close()
    except NotFound:
        # It is made with the savepoint.
        return
    except ConfigError as error:
        raise RecoveryRefused(
            f"no savepoint can be made in {directory!r}: {error.message}",
            hint="Nothing was changed. Name a directory, which is made if it is missing: partfile savepoint create "
            f"{place.base} --to DIR",
            path=directory,
        ) from error


def create_savepoint(
    plan: CreationPlan,
    place: Place,
    job: Job,
    now_ms: int,
    opener: StoreOpener | None = None,
    *,
    step: Callable[[int], None] = lambda _parts: None,
) -> CreatedSavepoint:
    """Take the sink over, publish everything, and write the savepoint.

    Args:
        plan: What was printed.
        place: Where the sink is.
        job: The sink, or one writer of it.
        now_ms: This host's time, in milliseconds since 1970.
        opener: Opens the stores; None is the usual one.
        step: Told how many staging files or parts more were encoded or published, or could not be; from any thread.

    Raises:
        RecoveryRefused: The sink has moved on since the plan was made; nothing was changed.
        SnapshotCorrupt: A run of keys is missing or damaged; nothing was changed.
        PartfileError: A part could not be published; there is no savepoint.
        StoreError: The directory cannot be written; there is no savepoint.
    """
    if plan.job.keys_problem is not None:
        # Before anything is made: not even the directory.
        raise plan.job.keys_problem.to_error()
    settings = recovery_settings(place, job, plan.options, opener)
    with (
        settings.open_store(settings.base, settings.storage_options) as base,
        reserved_savepoint(settings, job.name, plan.directory) as reserved,
        planned_takeover(plan.recovery, job, base, settings, now_ms, step=step, reads_keys=True) as (runtime, done),
    ):
        location = reserved.complete(runtime.coordinator, now_ms, ends_the_job=False)
    return CreatedSavepoint(location=location, published=done.published, given_up=done.given_up)


def plan_disposal(
    location: str, storage_options: Mapping[str, object], now_ms: int, older_than_s: float
) -> DisposalPlan:
    """Plan the disposal of a savepoint. Changes nothing.

    Args:
        location: Its directory, or the ``_metadata`` in it.
        storage_options: What the store's client needs.
        now_ms: This host's time, in milliseconds since 1970.
        older_than_s: One that was never finished, or cannot be read, is refused if it is younger, in seconds.

    Raises:
        ConfigError: It is neither a savepoint nor called like one.
        RecoveryRefused: Another process may be writing it, or the savepoint can still be mended.
        SnapshotVersionError: A newer partfile wrote it, so it may be whole.
        StoreError: The store cannot be read.
    """
    pointer = pointer_to(location)
    try:
        store = open_store(pointer.parent, storage_options, create_base=False)
    except NotFound:
        return _rest(location, pointer.directory, (), "rest of one", is_there=False)
    with store:
        names = tuple(sorted(store.list_names(pointer.directory)))
        try:
            held = read_savepoint(store, pointer.directory)
        except SnapshotVersionError as error:
            command = f"pip install partfile==VERSION; partfile savepoint dispose {location}"
            error.hint = joined_hints(
                error.hint, f"Nothing was deleted. It is for the partfile that wrote it: {command}"
            )
            raise
        except (NotFound, SnapshotError) as error:
            kind: _Left = "rest of one" if isinstance(error, NotFound) else "unreadable savepoint"
            left = _rest(location, pointer.directory, names, kind, is_there=pointer.directory in store.list_names(""))
            _check_left(store, pointer.directory, names, now_ms - round(older_than_s * 1000), kind)
            return left
        return DisposalPlan(
            location=location,
            savepoint_id=held.savepoint_id,
            job=held.job,
            checkpoint_id=held.taken_by.checkpoint_id,
            files=tuple(filter(is_file_of_savepoint, names)),
            foreign=tuple(filterfalse(is_file_of_savepoint, names)),
            kind="savepoint",
        )


def _check_left(store: Store, directory: str, names: Sequence[str], before_ms: int, kind: _Left) -> None:
    """Refuse to dispose of what a sink may be writing, having no ``_metadata`` yet, or of what may still be mended."""
    found = (store.look_at(documents.below(directory, name)) for name in names if is_file_of_savepoint(name))
    if any(file.modified_at_ms >= before_ms for file in found if file is not None):
        why = {
            "rest of one": "is not a complete savepoint yet, and is young: a sink may be writing it",
            "unreadable savepoint": "is a savepoint that cannot be read, and is young: a copy of its _metadata may "
            "still be put back",
        }
        raise RecoveryRefused(
            f"{directory!r} {why[kind]}",
            hint="Nothing was changed. Wait; or say with --older-than how long ago it must have been written to.",
            path=directory,
        )


def _rest(location: str, directory: str, names: tuple[str, ...], kind: _Left, *, is_there: bool) -> DisposalPlan:
    if not is_savepoint_name(directory):
        raise ConfigError(
            f"{location!r} is not a savepoint; nothing was deleted",
            hint=(
                "Savepoints are directories with a _metadata of theirs, or called savepoint-JOB-RANDOM. See which "
                "there are: partfile savepoint list DIR"
            ),
            path=location,
        )
    files = tuple(filter(is_file_of_savepoint, names))
    return DisposalPlan(
        location=location,
        savepoint_id=None,
        job=None,
        checkpoint_id=None,
        files=files,
        foreign=tuple(filterfalse(is_file_of_savepoint, names)),
        # A directory of its name that is empty is one as well; one with nothing but files of others is theirs.
        kind=kind if files or (is_there and not names) else "nothing",
    )


def dispose(plan: DisposalPlan, storage_options: Mapping[str, object]) -> None:
    """Delete what the plan names. Idempotent."""
    dispose_savepoint(plan.location, storage_options)
