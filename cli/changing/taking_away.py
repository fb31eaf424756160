"""Taking away what a cleaning found: one literal name a time, and whatever fails is told and stops nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from partfile.cli.changing.quarantine import QUARANTINE, new_run, place_of
from partfile.cli.inspection.document import Json
from partfile.filesystems.cleaning_port import Leftover
from partfile.filesystems.errors import LeaseUnavailable, StoreError
from partfile.sink.concurrently import Patience, for_each
from partfile.sink.restore_settings import checkpoint_url_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from partfile.cli.changing.cleaning_items import CleaningItem, ItemKind
    from partfile.cli.changing.stores import Stores
    from partfile.cli.inspection.places import Place
    from partfile.filesystems.cleaning_port import LeftoverKind
    from partfile.filesystems.port import Store

_LEFTOVERS: dict[ItemKind, LeftoverKind] = {"upload": "upload", "side object": "side object", "claim": "claim"}
_CHECKPOINTS: set[ItemKind] = {"stray checkpoint", "old checkpoint"}


class FailedItem(Json):
    """One that could not be taken away, and why."""

    path: str
    """As in the plan."""
    problem: str
    """What the store says."""
    hint: str
    """What to do about it; may be empty."""


class CleanedReport(Json):
    """What a cleaning did."""

    quarantines: tuple[str, ...]
    """The directories that the files are in by now, as paths or URLs: below the base, and below a checkpoint directory
    of its own; none if no file was moved."""
    done: int
    """Those that were taken away."""
    gone: int
    """Those that were not there any more."""
    busy: tuple[str, ...]
    """Paths of those that somebody is writing; they are left."""
    failed: tuple[FailedItem, ...] = ()
    """Those that are left, or may be, because a call failed."""
    taken_over: tuple[str, ...] = ()
    """The sinks that were taken over for it, and let go again."""


class Outcome(Enum):
    """What became of one item."""

    DONE = "done"
    GONE = "gone"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class _Ended:
    """One item and what became of it."""

    item: CleaningItem
    outcome: Outcome
    failure: FailedItem | None = None


@dataclass(slots=True)
class CleaningRecord:
    """What one cleaning has done so far, to be told however it ends."""

    place: Place
    """Where it is."""
    taken_over: list[str] = field(default_factory=list)
    """The jobs that were taken over."""
    step: Callable[[int], None] = lambda _items: None
    """Told how many items more have ended; from any thread."""
    run: str = ""
    """Name of its directories in the quarantine."""
    ended: list[_Ended] = field(default_factory=list)
    kept: list[FailedItem] = field(default_factory=list)
    """Directories that could not be deleted."""

    def note(self, ended: _Ended) -> None:
        """An item has ended."""
        self.ended.append(ended)
        self.step(1)

    def report(self) -> CleanedReport:
        """All of it as a document."""
        ended = sorted(self.ended, key=lambda one: one.item.path)
        outcomes = [one.outcome for one in ended]
        moved = {one.item.side for one in ended if one.item.action == "quarantine" and one.outcome is Outcome.DONE}
        tops = {"base": checkpoint_url_of(self.place.base, None), "checkpoints": self.place.checkpoint_url}
        return CleanedReport(
            quarantines=tuple(dict.fromkeys(f"{tops[side]}/{QUARANTINE}/{self.run}" for side in sorted(moved))),
            done=outcomes.count(Outcome.DONE),
            gone=outcomes.count(Outcome.GONE),
            busy=tuple(one.item.path for one in ended if one.outcome is Outcome.BUSY),
            failed=(*(one.failure for one in ended if one.failure is not None), *self.kept),
            taken_over=tuple(self.taken_over),
        )


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of the cleaner."""

    stores: Stores
    name: str
    patience: Patience
    record: CleaningRecord


def take_away(items: Sequence[CleaningItem], stores: Stores, now_ms: int, record: CleaningRecord) -> None:
    """Move or delete each item; whoever calls owns the jobs.

    Args:
        items: In the order of the plan.
        stores: The stores of the place.
        now_ms: Now by the store's clock, in milliseconds since the epoch.
        record: Notes each item when it has ended.
    """
    record.run = new_run(now_ms)
    run = _Run(stores, record.run, Patience(stores.base.persist_threads), record)
    parts, state = ([item for item in items if item.side == side] for side in ("base", "checkpoints"))
    for_each(partial(_take, run), parts, stores.base.persist_threads, "partfile-clean")
    _take_state(run, state)
    record.kept += _drop_empty(dict.fromkeys(item.path.rpartition("/")[0] for item in state), stores.checkpoints)


def _take_state(run: _Run, items: Sequence[CleaningItem]) -> None:
    """Of a checkpoint the link goes first, and the oldest checkpoint before the others (S7): so one by one."""
    stuck: set[str | None] = set()
    for item in items:
        if item.kind in _CHECKPOINTS and item.job in stuck:
            run.record.note(_failed(item, "what has to go before it could not be taken away", ""))
            continue
        if _take(run, item) in {Outcome.BUSY, Outcome.FAILED}:
            stuck.add(item.job)


def _take(run: _Run, item: CleaningItem) -> Outcome:
    ended = _tried(run, item)
    run.record.note(ended)
    return ended.outcome


def _tried(run: _Run, item: CleaningItem) -> _Ended:
    if run.patience.is_over:
        return _failed(item, "not tried, since the store does not answer", "")
    try:
        return _Ended(item, Outcome.DONE if _take_one(item, run) else Outcome.GONE)
    except LeaseUnavailable:
        return _Ended(item, Outcome.BUSY)
    except StoreError as error:
        run.patience.note(error)
        return _failed(item, error.message, error.hint)


def _failed(item: CleaningItem, problem: str, hint: str) -> _Ended:
    return _Ended(item, Outcome.FAILED, FailedItem(path=item.path, problem=problem, hint=hint))


def _drop_empty(directories: Iterable[str], store: Store) -> Iterator[FailedItem]:
    """Delete the directories that are empty by now: of checkpoints whose ids are never used again."""
    for directory in directories:
        try:
            if not store.list_names(directory):
                store.delete_directory(directory)
        except StoreError as error:
            yield FailedItem(path=directory, problem=error.message, hint=error.hint)


def _take_one(item: CleaningItem, run: _Run) -> bool:
    stores = run.stores
    kind = _LEFTOVERS.get(item.kind)
    if kind is not None:
        leftover = Leftover(kind, item.path, "", item.size, item.modified_at_ms, item.upload)
        return stores.base.drop_leftover(leftover)
    store = stores.base if item.side == "base" else stores.checkpoints
    if item.action == "delete":
        return store.take_away(item.path, None)
    return store.take_away(item.path, place_of(item.path, run.name, below_base=item.side == "base"))
