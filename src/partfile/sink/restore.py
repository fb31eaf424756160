"""Finds the state that a start begins with, and checks whose checkpoints it reads.

Reads only. The takeover checkpoint that follows from it is created by the coordinator (R7).
"""

from __future__ import annotations

import logging
import re
import shlex
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from partfile.errors import (
    ConfigError,
    Fenced,
    NotApplied,
    NotFound,
    RecoveryRefused,
    SnapshotCorrupt,
    SnapshotError,
    StoreError,
    joined_hints,
)
from partfile.sink import plan
from partfile.sink.newest_state import is_retained
from partfile.sink.plan import SinkSnapshot
from partfile.sink.policies import DEFAULT_AFFIXES, is_part_path, number_in, unmarked
from partfile.sink.restore_rules import (
    Choice,
    FinishedPart,
    RestorePoint,
    adds_nothing,
    applied_before,
    choose,
    damage_of_keys,
    damage_to_go_back_to,
    doubled_parts,
    is_as_noted,
    is_job,
    is_of_sink,
    later_parts,
    names_of_shared,
    noted,
    onto_an_empty_log,
    open_since,
    over_later_parts,
    over_unreadable,
    paths_of,
    refusal,
    refusal_of_a_log,
    refusal_of_missing,
    refusal_of_used_base,
    refusal_over_damage,
    shown,
    unfinished,
    unknown_since,
    with_the_way_back,
)
from partfile.sink.settings import checkpoint_url_of, savepoint_list_command
from partfile.sink.states import OPERATOR
from partfile.snapshot.checkpoint_log import CheckpointLog, DamagedEnd, is_of_damage
from partfile.snapshot.documents import METADATA, SHARED, checkpoint_id_of
from partfile.snapshot.operator_state import restored_operators
from partfile.snapshot.savepoints import read_savepoint
from partfile.snapshot.storage import CheckpointStorage, pointer_to
from partfile.stores.base import STATE_DIRECTORY
from partfile.stores.paths import new_chain_id
from partfile.stores.registry import is_same_place, open_store, options_for, path_inside, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from partfile.sink.settings import RestoreSettings
    from partfile.sink.states import SeenKeys, StreamPosition
    from partfile.snapshot.checkpoint_log import LogEnd
    from partfile.snapshot.documents import CheckpointMetadata, CheckpointRef, StateHandle
    from partfile.snapshot.storage import Pointer
    from partfile.stores.base import MetadataStore, Store


logger = logging.getLogger("partfile")


@dataclass(frozen=True, slots=True)
class BaseTie:
    """The base path that a start names, beside the one that the checkpoint log records as its own."""

    base: str
    storage_options: Mapping[str, object]
    moved_from: str | None
    """Where the base was before it was moved, as the user says."""
    note: str | None
    """What a checkpoint says of its base, links resolved; None where the checkpoints lie below it and move with it."""
    command: str
    """``partfile recover`` with this place, for messages."""

    @classmethod
    def of(cls, settings: RestoreSettings, moved_from: str | None = None) -> Self:
        """The tie that the options of a sink make, and where its user says that the base was."""
        elsewhere = settings.checkpoint_dir is not None and (
            path_inside(settings.checkpoint_dir, settings.base, settings.storage_options) is None
        )
        return cls(
            base=settings.base,
            storage_options=settings.storage_options,
            moved_from=moved_from,
            note=resolved(settings.base) if elsewhere else None,
            command=settings.recover_command("--moved-from"),
        )

    def check(self, note: str | None, job: str) -> None:
        """Refuse a checkpoint log that is of another base.

        One that says nothing was begun below its base. Where it lies outside, it is of another one, and only its owner
        can say which.

        Args:
            note: What its newest checkpoint says; None if it says nothing.
            job: The name of the checkpoint log.

        Raises:
            RecoveryRefused: It is of another one; nothing was changed.
        """
        if note is None:
            is_ours = self.note is None or self.moved_from is not None
        else:
            is_ours = any(self._is(note, place) for place in (self.base, self.moved_from) if place is not None)
        if not is_ours:
            raise self._refusal(note, job)

    def _is(self, note: str, place: str) -> bool:
        return is_same_place(note, place, self.storage_options)

    def _refusal(self, note: str | None, job: str) -> RecoveryRefused:
        if note is None:
            return RecoveryRefused(
                f"the checkpoints of sink {job!r} are of a base that they lie below, not of {self.base!r}",
                hint="Nothing was changed. Check the base and checkpoint_dir: a base that has its checkpoints in "
                "_partfile needs no checkpoint_dir. If they were taken away from their base on purpose, type: "
                f"{self.command} OLD, where OLD is where that base was.",
            )
        return RecoveryRefused(
            f"the checkpoints of sink {job!r} are of the base {note!r}, not of {self.base!r}",
            hint="Nothing was changed. Check the base and checkpoint_dir. If the base was moved on purpose, type: "
            f"{self.command} {shlex.quote(note)}",
        )


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a start is about to do."""

    checkpoint: CheckpointRef | None
    """The checkpoint that it goes on from; None is an empty checkpoint log."""
    before: SinkSnapshot | None
    """What that checkpoint holds; None where it cannot be read, or there is none."""
    after: SinkSnapshot
    """What the takeover will hold. Its pending parts are finalized and published."""
    goes_back: bool
    """Whether an older state is restored, or one from elsewhere."""


@dataclass(frozen=True, slots=True)
class RestoreTerms:
    """What one start is told: what to restore, and what it may give up."""

    restore_from: str | None = None
    """A savepoint to begin with; or, where the start rolls back, an older checkpoint."""
    rolls_back: bool = False
    """Whether the newest checkpoint may be left for it: only ``partfile recover`` does, after its plan was read."""
    accept_newer: bool = False
    """Roll back although later parts stay, so that their rows come twice."""
    accept_missing: bool = False
    """Roll back to a checkpoint although parts are gone that it vouches for."""
    moved_from: str | None = None
    """The base that the checkpoints are of, if it has been moved."""
    succeeding: int | None = None
    """Begin only right after this epoch, if given."""
    own_takeovers: Collection[str] = ()
    """Nonces of later takeovers that are as good as that epoch: this process tried to create them, and
    was not told whether they were made."""
    keeps: bool = True
    """Whether parts that a clean stop kept stay open for this epoch; else they are published as all others."""
    gives_up: Collection[str] = ()
    """Final paths of parts whose rows are given up if they are gone."""
    sets_aside: Collection[str] = ()
    """Final paths of staging files that are not encoded: their rows are kept as Arrow files, and they are let go of."""
    holds: bool = False
    """Finalize and publish nothing: the takeover holds what the newest checkpoint does, for the start after it to go on
    from."""
    forgets_keys: bool = False
    """Hold it without the keys of the rows so far."""


_MUST_BE = (
    "It must be the id of a retained checkpoint of this sink, or the directory of one or of a savepoint, or the "
    "_metadata in it, and no symbolic link to one. See which there are: partfile checkpoints PATH"
)


_OWN_CHECKPOINT = re.compile(r"(?:chk-)?([1-9][0-9]{0,17})")
"""As ``partfile checkpoints`` prints it, or as its directory is called."""


class Restore:
    """Decides what one start begins with. Changes nothing; may be asked again when another coordinator was faster.

    Args:
        settings: The sink's options.
        store: Where the parts are.
        storage: The sink's own checkpoints.
        terms: How the start is to be done.
    """

    def __init__(
        self, settings: RestoreSettings, store: Store, storage: CheckpointStorage, terms: RestoreTerms
    ) -> None:
        self._settings = settings
        self._store = store
        self._storage = storage
        self._terms = terms
        self._tie = BaseTie.of(settings, terms.moved_from)

    def preview(self) -> RestorePlan:
        """What a start would do now, if it may go on from any position.

        Raises:
            SnapshotCorrupt: The newest checkpoint cannot be read, and no older one was chosen.
            RecoveryRefused: What was chosen cannot be restored.
        """
        # Whether the store can append is asked by trying, and does not matter: nothing is kept.
        end = CheckpointLog(self._storage, command=self._settings.command).see()
        return self.decide(end, lambda _position: None, may_append=False)

    def decide(
        self, end: LogEnd | DamagedEnd, check_replay: Callable[[StreamPosition], None], *, may_append: bool
    ) -> RestorePlan:
        """What a start does that finds this end of the checkpoint log.

        Args:
            end: What the log has shown.
            check_replay: Raises if this run must not go on from a position.
            may_append: Whether the store lets parts be appended to that were kept at a clean end.

        Raises:
            Fenced: Another epoch came after the one to succeed.
            SnapshotCorrupt: The newest state cannot be read, and no older one was chosen; always where an epoch is to
                be succeeded or held.
            RecoveryRefused: What was chosen cannot be restored.
        """
        if isinstance(end, DamagedEnd):
            return self._over_damage(end.error, end.ref, end, check_replay)
        checkpoint = end.restored
        self._check_succession(checkpoint)
        if checkpoint is None:
            chosen = self._on_demand(None)
            fresh = chosen or SinkSnapshot.fresh(new_chain_id())
            check_replay(fresh.position)
            if chosen is None and self._settings.on_used_base == "fail":
                self._check_unused()
            return self._planned(None, None, fresh, goes_back=True)
        try:
            current = plan.restored_state(checkpoint.operators, self._storage.read_state)
        except SnapshotCorrupt as error:
            return self._over_damage(error, checkpoint.ref, end, check_replay)
        self._tie.check(current.position.base, self._storage.job)
        published = self._storage.is_published(checkpoint.checkpoint_id)
        if self._terms.holds:
            held = replace(current, pending=() if published else current.pending)
            if self._terms.forgets_keys:
                held = replace(held, position=held.position.model_copy(update={"seen_keys": None}))
            return self._planned(checkpoint.ref, current, held, goes_back=False)
        restored = self._on_demand(current) or current
        check_replay(restored.position)
        begun = plan.begin_epoch(
            restored,
            published=published,
            epoch=end.next_epoch,
            checkpoint_id=end.next_id,
            may_keep=may_append and self._terms.keeps,
        )
        return self._planned(checkpoint.ref, current, begun, goes_back=not is_as_noted(current, restored))

    def with_own_runs(self, state: SinkSnapshot, checkpoint_id: int) -> SinkSnapshot:
        """A state whose run files are the log's own: those of the savepoint that it begins with are copied.

        Args:
            state: What the takeover is to hold.
            checkpoint_id: Of the takeover.

        Raises:
            SnapshotCorrupt: A run of the savepoint is missing or damaged; there is no takeover.
        """
        location = self._terms.restore_from
        if location is None or not _has_runs_of_savepoint(state):
            return state
        pointer = pointer_to(location)
        with self._opened(location, pointer.parent) as store:
            savepoint = CheckpointStorage(store, pointer.directory)

            def read(handle: StateHandle) -> bytes:
                with _named(location), self._savepoint_told(pointer.parent):
                    return savepoint.read_bytes(handle)

            streams = self._storage.stream_factory(checkpoint_id)
            return plan.with_copied_runs(state, read, streams, self._settings.now_ms())

    def damage_of_keys(self, planned: RestorePlan, checkpoints: Store) -> SnapshotCorrupt | NotApplied | None:
        """Why the sink would not start after the takeover: a run file that it needs is not there. Reads none of them.

        Args:
            planned: What the takeover is to do.
            checkpoints: The store of the sink's own checkpoints.

        Returns:
            The error, also where this user may not look; None if each file is there, or if the sink has gone on since.

        Raises:
            SnapshotCorrupt: The file is one of the savepoint that is to be restored, so there is no takeover.
        """
        settings, location, seen = self._settings, self._terms.restore_from, planned.after.position.seen_keys
        if location is not None and _has_runs_of_savepoint(planned.after):
            pointer = pointer_to(location)
            with (
                self._opened(location, pointer.parent) as store,
                _named(location),
                self._savepoint_told(pointer.parent),
            ):
                savepoint = CheckpointStorage(store, pointer.directory)
                check_runs_are_there(store, savepoint, seen, settings.now_ms())
            return None
        try:
            check_runs_are_there(checkpoints, self._storage, seen, settings.now_ms())
        except SnapshotCorrupt as error:
            if self._has_gone_on_since(planned.checkpoint):
                return None
            forget = settings.forget_command(self._storage.job)
            if planned.goes_back:
                list_command = settings.command("checkpoints", self._storage.job)
                return damage_to_go_back_to(settings.uid, error, list_command, forget)
            return damage_of_keys(settings.uid, error, forget)
        except NotApplied as error:
            # The takeover needs no key: what may not be looked at is no reason to leave parts.
            return error
        return None

    def _has_gone_on_since(self, checkpoint: CheckpointRef | None) -> bool:
        """Whether a checkpoint is not retained any more, so that files which it names may be gone as well."""
        try:
            return checkpoint is None or not is_retained(self._storage, checkpoint)
        except SnapshotCorrupt:
            return False

    @contextmanager
    def _savepoint_told(self, directory: str) -> Iterator[None]:
        """Let errors of damage in the block say what is to be done about a savepoint in a directory."""
        try:
            yield
        except SnapshotCorrupt as error:
            list_command = savepoint_list_command(directory, self._settings.storage_options)
            error.hint = (
                "Nothing was changed. Put the file back from a copy of the savepoint; or name another savepoint. See "
                f"which there are: {list_command}"
            )
            raise

    def _check_unused(self) -> None:
        """Refuse to begin afresh where a sink has written before: it may be this one, under another name (R12).

        Raises:
            RecoveryRefused: There is another checkpoint log below the base, or a part; nothing was changed.
        """
        found = self._use_of_base()
        # Looked at last: another start may have begun this very log since it was seen to be empty, and have written
        # what was found. Then the takeover of this one does not count, and it begins anew (R7).
        if found and not self._storage.newest_completed_id():
            raise refusal_of_used_base(self._settings, found)

    def _use_of_base(self) -> str:
        """A trace of another sink below the base, as a phrase; empty if there is none.

        A sink with several writers begins a log for each, one after the other: one does not count for another.
        """
        root = self._storage.store
        writers = (job for job in root.list_names("") if is_of_sink(job, self._settings.uid))
        if any(is_begun(root, job) for job in writers if job != self._storage.job):
            return ""
        other = next(self._logs_below_base(), None)
        if other is not None:
            return f"the checkpoints of sink {other!r} are in it"
        # The run before may have called its parts otherwise, most likely as by default.
        affixes = {(self._settings.part_prefix, self._settings.part_suffix), DEFAULT_AFFIXES}
        paths = (found.path for found in self._store.list())
        part = next((path for path in paths if any(is_part_path(path, *these) for these in affixes)), None)
        return "" if part is None else f"the part {part!r} is in it, whose checkpoints are elsewhere"

    def _logs_below_base(self) -> Iterator[str]:
        """Other checkpoint logs in ``_partfile`` below the base."""
        place = checkpoint_url_of(self._settings.base, None)
        is_here = is_same_place(self._settings.checkpoint_url, place, self._settings.storage_options)
        for job in self._store.list_names(STATE_DIRECTORY):
            is_own = is_here and job == self._storage.job
            if is_job(job) and not is_own and is_begun(self._store, f"{STATE_DIRECTORY}/{job}"):
                yield job

    def _check_succession(self, checkpoint: CheckpointMetadata | None) -> None:
        """Refuse to succeed an epoch that another process has ended already; raises Fenced."""
        succeeding = self._terms.succeeding
        is_own = checkpoint is not None and (
            checkpoint.epoch == succeeding or checkpoint.nonce in self._terms.own_takeovers
        )
        if succeeding is not None and not is_own:
            raise Fenced(
                f"epoch {succeeding} of {self._storage.job!r} is not the newest any more",
                hint=(
                    "Nothing was changed. Another process has taken the sink over; stop this one for good. See who "
                    f"runs: {self._settings.command('status', self._storage.job)}"
                ),
            )

    def _over_damage(
        self,
        damage: SnapshotCorrupt,
        checkpoint: CheckpointRef,
        end: LogEnd | DamagedEnd,
        check_replay: Callable[[StreamPosition], None],
    ) -> RestorePlan:
        """Begin with the older state that a user chose although the newest cannot be read; raises the damage else."""
        if self._terms.succeeding is not None or self._terms.holds:
            raise damage
        restored = self._chosen_over(damage)
        self._tie.check(restored.position.base, self._storage.job)
        check_replay(restored.position)
        begun = plan.begin_epoch(
            restored, published=False, epoch=end.next_epoch, checkpoint_id=end.next_id, may_keep=False
        )
        return self._planned(checkpoint, None, begun, goes_back=True)

    def _planned(
        self, checkpoint: CheckpointRef | None, before: SinkSnapshot | None, after: SinkSnapshot, *, goes_back: bool
    ) -> RestorePlan:
        tied = replace(after, position=after.position.model_copy(update={"base": self._tie.note}))
        return RestorePlan(checkpoint, before, tied, goes_back)

    def _on_demand(self, current: SinkSnapshot | None) -> SinkSnapshot | None:
        """The state to begin with; None if nothing is to be restored on demand.

        Args:
            current: What the newest checkpoint holds; None in an empty checkpoint log.

        Raises:
            NotFound: What is to be restored is not there.
            RecoveryRefused: The sink has checkpoints of its own, and this start does not roll back; or it has gone on
                since, or what is to be restored does not fit it.
            SnapshotCorrupt: It cannot be read.
        """
        location = self._terms.restore_from
        if location is None:
            return None
        try:
            point = self.read_point(location)
        except NotFound:
            if current is not None and self._is_same(current.position.restored_location, location):
                # It was restored long ago, and its user has deleted it or retention has.
                self._tell_applied(location)
                return None
            raise
        choice = choose(current, point)
        if current is not None and choice is Choice.GO_ON:
            if current.position.restored_from == point.token:
                self._tell_applied(location)
            return noted(current, point)
        if current is not None and not self._terms.rolls_back:
            raise refusal_of_a_log(self._settings, location)
        later = later_parts(self._finished(current, point, choice), current, point.state)
        if not self._terms.accept_newer and (choice is Choice.REFUSE or later):
            raise refusal(self._settings.uid, point, later, has_log=current is not None)
        if current is None:
            return onto_an_empty_log(point, new_chain_id())
        stuck = self._stuck(current, point)
        if stuck:
            logger.warning(
                "sink %r: open parts cannot be cut back to %r; rows written since will come twice: %s",
                self._settings.uid,
                point.location,
                shown(sorted(stuck)),
            )
        return over_later_parts(current, point, stuck)

    def doubled(self, current: SinkSnapshot | None) -> list[str]:
        """The files that hold rows which come twice if what is chosen on demand is restored, by their final paths.

        Args:
            current: What the newest checkpoint holds; None where it cannot be read.

        Raises:
            NotFound: What is to be restored is not there.
            SnapshotCorrupt: It cannot be read.
        """
        if self._terms.restore_from is None:
            return []
        point = self.read_point(self._terms.restore_from)
        choice = Choice.REFUSE if current is None else choose(current, point)
        if choice is Choice.GO_ON:
            return []
        stuck = set() if current is None else self._stuck(current, point)
        return doubled_parts(self._finished(current, point, choice), current, point.state, stuck)

    def _stuck(self, current: SinkSnapshot, point: RestorePoint) -> set[str]:
        """The names of the parts open at the point and still, that the store cannot cut back to what it holds."""
        return {part.name for part in open_since(current, point.state) if not self._store.goes_back(part)}

    def _finished(self, current: SinkSnapshot | None, point: RestorePoint, choice: Choice) -> Iterable[FinishedPart]:
        chains = {one.position.chain for one in (current, point.state) if one is not None}
        is_listed = choice is Choice.REFUSE or point.state.max_count >= 0
        return finished_parts(self._store, chains) if is_listed else ()

    def _chosen_over(self, damage: SnapshotCorrupt) -> SinkSnapshot:
        """The state of an older checkpoint of the own log to begin with, although the newest state cannot be read.

        Args:
            damage: Why it cannot be read.

        Raises:
            SnapshotCorrupt: The same, since no checkpoint of the own checkpoint log is named; or that one cannot be
                read either.
            RecoveryRefused: One is named, but long ago; or later parts are not accepted, or missing ones.
        """
        location = self._terms.restore_from if self._terms.rolls_back else None
        chosen = None if location is None else self._own_id(location)
        if location is None or chosen is None:
            raise with_the_way_back(self._settings, damage)
        try:
            point = self.read_point(location)
        except NotFound:
            raise damage from None
        if point.was_restored:
            raise applied_before(self._settings.uid, point, damage)
        later = later_parts(finished_parts(self._store, {point.state.position.chain}), None, point.state)
        if not self._terms.accept_newer:
            raise refusal_over_damage(self._settings.uid, point, damage, later)
        wanted, shared = paths_of(point.state), names_of_shared(point.state)
        listed = (file.path for file in self._store.list())
        there = {path for path in listed if path in wanted or unmarked(path.rpartition("/")[2]) in shared}
        if not self._store.capabilities.staged_files:
            there |= {
                part.path_of(part.in_progress) for part in unfinished(point.state, there) if self._store.goes_back(part)
            }
        begun = over_unreadable(point, there, new_chain_id(), published=self._storage.is_published(chosen))
        if begun.gone and not self._terms.accept_missing:
            raise refusal_of_missing(self._settings.uid, point, begun.gone)
        logger.warning(
            "%s. Going back to it, because of --accept-newer: later rows of finished parts come twice, parts staged "
            "since are left behind. Moved away or lost of what it vouches for: %s",
            unknown_since(self._settings.uid, point, damage, later),
            shown(begun.gone) or "nothing",
        )
        return begun.state

    def _tell_applied(self, location: str) -> None:
        """Say that the option does nothing any more: a warning if its user seems to expect that it does."""
        level = logging.WARNING if self._terms.rolls_back else logging.INFO
        logger.log(
            level,
            "sink %r: restore_from=%r has been applied already, so this start goes on from the newest checkpoint; "
            "leave it out",
            self._settings.uid,
            location,
        )

    def _is_same(self, one: str | None, other: str) -> bool:
        """Whether two locations mean the same snapshot, however they are written."""
        if one is None:
            return False
        first, second = pointer_to(one), pointer_to(other)
        options = options_for(second.parent, self._settings.base, self._settings.storage_options)
        return first.directory == second.directory and is_same_place(first.parent, second.parent, options)

    def read_point(self, location: str) -> RestorePoint:
        """Read what ``restore_from`` names.

        Raises:
            NotFound: It is not there.
            ConfigError: Something else is in its place.
            RecoveryRefused: It is of another sink or writer, or holds state that this job has no operator for.
            SnapshotCorrupt: It cannot be read.
        """
        checkpoint_id = self._own_id(location)
        if checkpoint_id is not None:
            with _named(location):
                return self._own_checkpoint(location, checkpoint_id)
        pointer = pointer_to(location)
        try:
            return self._savepoint(location, pointer)
        except SnapshotCorrupt as error:
            if pointer.checkpoint_id is None:
                raise
            raise RecoveryRefused(
                f"{location!r} is not a checkpoint of this sink, whose checkpoints are in {self._own_directory!r}",
                hint=(
                    "A checkpoint names staged parts of its own base path. Take a savepoint to go elsewhere: "
                    "sink.savepoint(DIRECTORY)"
                ),
            ) from error

    @property
    def _own_directory(self) -> str:
        return f"{self._settings.checkpoint_url}/{self._storage.job}"

    def _own_id(self, location: str) -> int | None:
        """The id of the checkpoint of the sink's own checkpoint log that is named; None if something else is."""
        named = _OWN_CHECKPOINT.fullmatch(location)
        if named is not None:
            return int(named[1])
        pointer = pointer_to(location)
        is_own = pointer.checkpoint_id is not None and is_same_place(
            pointer.parent, self._own_directory, self._settings.checkpoint_options
        )
        return pointer.checkpoint_id if is_own else None

    def _savepoint(self, location: str, pointer: Pointer) -> RestorePoint:
        with self._opened(location, pointer.parent) as store, _named(location):
            savepoint = read_savepoint(store, pointer.directory)
            if _writer(savepoint.job) != _writer(self._storage.job):
                raise RecoveryRefused(
                    f"{location!r} was taken of {savepoint.job!r}, not of the writer {self._storage.job!r}",
                    hint=(
                        "Each subtask_index has a position and savepoints of its own: name that of this writer. "
                        "See whose they are: partfile savepoint list DIR"
                    ),
                )
            operators = restored_operators(savepoint.operators, {OPERATOR})
            state = SinkSnapshot.fresh(new_chain_id())
            if OPERATOR in operators:
                with self._savepoint_told(pointer.parent):
                    state = plan.restored_state(operators, CheckpointStorage(store, pointer.directory).read_state)
            return RestorePoint(token=savepoint.savepoint_id, location=location, state=state)

    def _opened(self, location: str, parent: str) -> Store:
        """The store of the directory above.

        Raises:
            NotFound: There is none.
            ConfigError: It is a file, or no store serves its URL.
        """
        options = options_for(parent, self._settings.base, self._settings.storage_options)
        try:
            return open_store(parent, options, create_base=False)
        except NotFound as error:
            raise NotFound(
                f"restore_from={location!r} is not there: there is no directory {parent!r}",
                hint=_MUST_BE,
                path=error.path,
            ) from error
        except ConfigError as error:
            raise ConfigError(
                f"restore_from={location!r} cannot be read: {error.message}", hint=joined_hints(error.hint, _MUST_BE)
            ) from error

    def _own_checkpoint(self, location: str, checkpoint_id: int) -> RestorePoint:
        checkpoint = self._storage.read_checkpoint(checkpoint_id)
        if checkpoint is None or not checkpoint.holds_state:
            raise NotFound(
                f"checkpoint {checkpoint_id} of sink {self._storage.job!r} was deleted, or was aborted",
                hint=f"Retained are {self._storage.list_completed_ids()}.",
                checkpoint_id=checkpoint_id,
            )
        later = [number for number in self._storage.list_completed_ids() if number > checkpoint_id]
        if later:
            self._check_followed(checkpoint, location, later)
        state = plan.restored_state(checkpoint.operators, self._storage.read_state)
        held = [self._held(number, state) for number in later]
        return RestorePoint(
            token=checkpoint.nonce,
            location=location,
            state=state,
            is_newest=all(one is not None and adds_nothing(one, state) for one in held),
            was_restored=any(one is not None and one.position.restored_from == checkpoint.nonce for one in held),
        )

    def _check_followed(self, checkpoint: CheckpointMetadata, location: str, later: list[int]) -> None:
        """Refuse a checkpoint from which the checkpoint log has not gone on."""
        try:
            successor = self._storage.read_checkpoint(checkpoint.checkpoint_id + 1)
        except SnapshotError:
            return  # It cannot be asked; under the name after a stray checkpoint there is seldom one at all.
        before = successor.predecessor if successor is not None else None
        if before == checkpoint.ref:
            return
        why = "it never counted: the coordinator that made it had been fenced"
        if before is not None and is_of_damage(before):
            why = "its file could not be read when the checkpoint log went on after it, from an older checkpoint"
        raise RecoveryRefused(
            f"restore_from={location!r} cannot be gone back to: {why}",
            hint=f"Choose another one of {later}: {self._settings.recover_command('--restore-from', 'ID')}",
            checkpoint_id=checkpoint.checkpoint_id,
        )

    def _held(self, checkpoint_id: int, before: SinkSnapshot) -> SinkSnapshot | None:
        """What a checkpoint holds, a tombstone what the point before it does; None if that is unknown."""
        try:
            checkpoint = self._storage.read_checkpoint(checkpoint_id)
            if checkpoint is None:
                return None
            if not checkpoint.holds_state:
                return before
            return plan.restored_state(checkpoint.operators, self._storage.read_state)
        except SnapshotError:
            return None


@contextmanager
def _named(location: str) -> Iterator[None]:
    """Let errors of the block speak of the option."""
    try:
        yield
    except NotFound as error:
        raise NotFound(
            f"restore_from={location!r} is not there: {error.message}",
            # read_savepoint's error does not mention that a checkpoint would be accepted too; say so here.
            hint=_MUST_BE if error.checkpoint_id is None else error.hint,
            path=error.path,
        ) from error
    except (StoreError, SnapshotError) as error:
        raise type(error)(
            f"restore_from={location!r} cannot be read: {error.message}",
            hint=error.hint if isinstance(error, SnapshotError) else _MUST_BE,
            path=error.path,
            checkpoint_id=error.checkpoint_id,
        ) from error


def _has_runs_of_savepoint(state: SinkSnapshot) -> bool:
    """Whether a state names run files that lie in a savepoint, and not in ``shared/`` of the log."""
    seen = state.position.seen_keys
    handles = () if seen is None else (run.handle for run in seen.runs)
    return any(handle.kind == "file" and not handle.path.startswith(f"{SHARED}/") for handle in handles)


def check_runs_are_there(store: Store, storage: CheckpointStorage, seen: SeenKeys | None, now_ms: int) -> None:
    """Look whether the file of each run that is needed is there with its length; reads none of them.

    Args:
        store: The store of ``storage``.
        storage: The checkpoints, or the savepoint, whose runs they are.
        seen: The keys; None if there are none.
        now_ms: What the clock says, in milliseconds since 1970.

    Raises:
        SnapshotCorrupt: A file is missing, or has another length.
    """
    for run in plan.needed_runs(seen, None if seen is None else seen.ttl_ms, now_ms):
        if run.handle.kind != "file":
            continue
        found = store.look_at(storage.path(run.handle.path))
        if found is None:
            # It says what else is in its place.
            storage.read_bytes(run.handle)
        elif found.size != run.handle.size_bytes:
            shown_path = storage.shown(run.handle)
            raise SnapshotCorrupt(f"state file {shown_path} has another length than was written", path=shown_path)


def is_begun(store: MetadataStore, directory: str) -> bool:
    """Whether a directory is that of a checkpoint log with an entry. What cannot be listed is none."""
    try:
        checkpoints = [name for name in store.list_names(directory) if checkpoint_id_of(name) is not None]
        return any(METADATA in store.list_names(f"{directory}/{name}") for name in checkpoints)
    except (NotApplied, ConfigError):
        return False


def _writer(job: str) -> str:
    """Which of a uid's independent writers a checkpoint log is of; empty for the only one."""
    return job.partition("~")[2]


def finished_parts(store: Store, chains: Collection[str]) -> Iterator[FinishedPart]:
    """Every finished file below the base that is a part of one of the chains, by its name. Lists the whole base."""
    for file in store.list():
        number = number_in(file.path.rpartition("/")[2], chains)
        if number is not None:
            yield FinishedPart(file.path, number)
