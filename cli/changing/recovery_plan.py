"""What a recovery may be told, what it is about to do, and what it did: documents."""

from __future__ import annotations

from typing import Any, Literal

from partfile.cli.changing.failed_jobs import FailedJob
from partfile.cli.changing.plans import Plan
from partfile.cli.inspection.document import Json
from partfile.filesystems.port import Cut

Found = Literal["staged", "short", "finished", "missing"]


class RecoveryOptions(Json):
    """What a recovery may be told."""

    cut: Cut = "auto"
    """How a part that is longer than its valid length is cut."""
    accept_missing: bool = False
    """Give parts up that a checkpoint vouches for and that are gone."""
    restore_from: str | None = None
    """An older checkpoint, or a savepoint, to go back to."""
    accept_newer: bool = False
    """Go back although later parts stay, so that their rows come twice."""
    moved_from: str | None = None
    """The base that the checkpoints are of, if it has been moved."""


class PlannedPart(Json):
    """One part that becomes a finished file."""

    path: str
    """Its final path, relative to the base; of a stage that buckets share, the name of its file in each of them."""
    is_staged: bool = False
    """Its rows are in a stage, which is encoded into it first."""
    valid_length: int
    """Bytes that a checkpoint vouches for; what is longer is cut, or not read if it is a stage."""
    rows: int
    """Rows in its valid bytes."""
    buckets: int | None = None
    """So many buckets at least share its stage, which becomes a file in each; null of any other part."""
    finished_buckets: int | None = None
    """So many of them have their file already: their rows are no part of this any more; null of any other part."""
    was_open: bool
    """It was still open, or left alone by a task; else it was closed and only waits for its name."""
    found: Found
    """staged; short: staged, and shorter than its valid length as far as can be seen; finished: has its final name
    already, which a stage never has; missing: under none of its names."""
    problem: str = ""
    """Why a stage cannot be encoded by this command, but only by its sink; empty if it can. The other parts are
    published all the same."""


class PlannedPosition(Json):
    """Where a stream stands."""

    query_id: str | None
    """Id of Spark's query; null of a sink in plain Python."""
    batch_id: int | None
    """The last batch that counts."""


class PlannedJob(Json):
    """What becomes of one job."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The newest checkpoint, which it goes on from."""
    nonce: str
    """What tells that checkpoint from any other of its id."""
    parts: tuple[PlannedPart, ...]
    """The parts that become finished files."""
    position: PlannedPosition
    """Where the stream stands afterwards."""
    goes_back_from: PlannedPosition | None = None
    """Where it stood, if an older checkpoint or a savepoint is restored and that is known."""
    doubled: tuple[str, ...] = ()
    """Files whose rows come twice, if it goes back."""
    changes_state: bool
    """Whether more than the parts changes: an older state is restored."""
    moves_from: str | None = None
    """The base that its checkpoints were of until now; null if that stays as it is."""

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.parts) or self.changes_state or self.moves_from is not None

    @property
    def to_encode(self) -> int:
        """How many of them are encoded first."""
        return sum(part.is_staged for part in self.parts)

    @property
    def lost(self) -> tuple[PlannedPart, ...]:
        """The parts that cannot be published as they were found."""
        return tuple(part for part in self.parts if part.found in {"short", "missing"})

    @property
    def finished_of_lost(self) -> int:
        """How many buckets have their rows although the stages that hold them are among those."""
        return sum(part.finished_buckets or 0 for part in self.lost)


class RecoveryPlan(Plan):
    """What ``recover`` does."""

    base: str = ""
    """The base that was meant, with links resolved: a copy of it has plans of its own."""
    options: RecoveryOptions
    """What was told."""
    jobs: tuple[PlannedJob, ...]
    """Only those with something to do."""
    failed: tuple[FailedJob, ...] = ()
    """Those that cannot be recovered as they are; nothing is done about them."""

    def decisions(self) -> dict[str, Any]:
        """Without what was found of the parts, which may be on their way; but with those that are given up."""
        parts = {"__all__": {"parts": {"__all__": {"found", "buckets", "finished_buckets"}}}}
        decided = self.model_dump(mode="json", exclude={"failed": True, "jobs": parts})
        return decided | {"given_up": {job.job: sorted(self.given_up(job)) for job in self.jobs}}

    def given_up(self, job: PlannedJob) -> frozenset[str]:
        """The final paths of the parts of a job that are given up if they are still gone."""
        return frozenset(part.path for part in job.lost) if self.options.accept_missing else frozenset()


class RecoveredJob(Json):
    """What was done to one job."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    checkpoint_id: int
    """The checkpoint that its next start goes on from."""
    published: int
    """Parts that have their final names by now."""
    owed: int
    """Parts that could not be published now; recover again."""
    rolled: int = 0
    """Stages that could not be encoded now; recover again."""
    given_up: int
    """Parts that were gone, whose rows are lost."""
