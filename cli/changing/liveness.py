"""Whether somebody is at work on a sink, as far as its chain, its marker and its open parts tell (H4)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from partfile.cli.inspection.chains import is_marker_held
from partfile.filesystems.errors import Fenced, PartfileError
from partfile.filesystems.staged_names import is_staged_file
from partfile.filesystems.tokens import new_token
from partfile.sink.newest_state import newest_state
from partfile.snapshot import layout
from partfile.snapshot.storage import CheckpointStorage

if TYPE_CHECKING:
    from partfile.cli.changing.stores import Stores
    from partfile.cli.inspection.places import Job
    from partfile.filesystems.port import Store


@dataclass(frozen=True, slots=True)
class Liveness:
    """What is known of who owns a chain."""

    job: Job
    is_marker_held: bool | None
    """Whether a driver holds the marker; None where nobody can tell, as of a sink in plain Python."""
    moved_at_ms: int | None
    """When its newest link was created, by the store's clock; None if there is none."""
    is_released: bool
    """Whether the creator of that link has said that it has let go of the chain, as this command does at its end."""

    def why_live(self, now_ms: int, idle_for_s: float) -> str:
        """Why somebody is probably at work; empty if nobody is.

        Args:
            now_ms: Now, by the store's clock, in milliseconds since the epoch.
            idle_for_s: After so long without a new link nobody is, in seconds.
        """
        if self.is_marker_held:
            return "a driver holds its marker, so it is running"
        if self.is_released or self.moved_at_ms is None:
            return ""
        quiet_s = (now_ms - self.moved_at_ms) / 1000
        if quiet_s >= idle_for_s:
            return ""
        return f"its newest checkpoint is {max(0, round(quiet_s))} s old, less than {idle_for_s:g} s"


def liveness_of(checkpoints: Store, job: Job) -> Liveness:
    """Look at a job. Changes nothing."""
    storage = CheckpointStorage(checkpoints, job.name)
    newest = storage.newest_linked_id()
    seen = checkpoints.look_at(storage.path(layout.metadata_path(newest))) if newest else None
    return Liveness(
        job=job,
        is_marker_held=is_marker_held(storage),
        moved_at_ms=seen.modified_at_ms if seen else None,
        is_released=bool(newest) and storage.is_released(newest),
    )


def check_idle(stores: Stores, job: Job, now_ms: int, idle_for_s: float) -> None:
    """Refuse to fence somebody who is at work.

    Args:
        stores: The sink's.
        job: Whose chain.
        now_ms: Now, by the store's clock, in milliseconds since the epoch.
        idle_for_s: After so long without a new link nobody is, in seconds, unless he is seen to be.

    Raises:
        Fenced: Somebody probably is.
    """
    life = liveness_of(stores.checkpoints, job)
    why = life.why_live(now_ms, idle_for_s)
    if not why and not life.is_released and life.is_marker_held is None:
        # Asked last, of who seems to be gone: it disturbs who is about to open that part again.
        path = _part_being_written(stores, job)
        why = f"somebody is writing its part {path!r}, so it is running" if path else ""
    if why:
        raise Fenced(
            f"sink {job.name!r} is not taken over: {why}",
            hint="Nothing was changed. Stop it first; or pass --fence, which stops it for good at its next checkpoint; "
            "or wait, if it has been killed. --idle-for says how long a sink must have been silent.",
        )


def _part_being_written(stores: Stores, job: Job) -> str:
    """The path of an open part of the newest checkpoint that somebody has open now; empty if none is seen to be."""
    try:
        newest = newest_state(CheckpointStorage(stores.checkpoints, job.name))
        opened = chain.from_iterable(newest.state.open.values()) if newest is not None else ()
        paths = (part.part.path_of(part.part.in_progress) for part in opened if is_staged_file(part.part))
        return next((path for path in paths if stores.base.is_being_written(path)), "")
    except PartfileError:
        return ""  # Nobody can know; what is wrong there is told by who takes the sink over.


def store_now_ms(store: Store, directory: str) -> int:
    """The store's clock, in milliseconds since the epoch: the time of a file that is created for it and deleted.

    Args:
        store: Whose clock.
        directory: Where the file is made; empty is the base itself. A kill leaves it there, where ``clean`` finds it.

    Raises:
        StoreError: The directory cannot be written.
    """
    path = layout.below(directory, f"_tmp.{new_token()}")
    store.create_file(path, b"")
    try:
        seen = store.look_at(path)
    finally:
        store.delete_file(path)
    if seen is None:
        raise Fenced(
            f"{path!r} was deleted by somebody else at the same time",
            hint="Nothing was changed. Run the command again when no other one cleans this base.",
            path=path,
        )
    return seen.modified_at_ms
