"""The one tree of errors.

PartfileError
├── ConfigError                 an option that cannot be used (also a ValueError)
├── BucketValueError            a value that cannot name a bucket (also a ValueError)
├── UnsupportedTypeError        a column whose type the format refuses (also a TypeError)
├── StoreError                  a storage call failed
│   ├── NotApplied              determinate: it did not happen
│   │   ├── AlreadyExists       the name is taken; nothing was written
│   │   ├── NotFound            the name is not there
│   │   ├── LeaseUnavailable    another process holds the lease of the part
│   │   ├── NotReady            the store refuses for now (safe mode, recovery, failover); later it may not
│   │   ├── DirectoriesUnreadable  all was listed but directories that may not be read
│   │   ├── FileTooLarge        a file is longer than its reader would take
│   │   ├── StateTooLarge       state is larger than the checkpoint storage takes
│   │   └── SnapshotCancelled   the snapshot was given up while it was being written
│   └── OutcomeUnknown          indeterminate: it may have happened; look before acting on it
├── CommitError
│   ├── CommitConflict          foreign bytes are where ours should be
│   ├── PartMissing             a part that a completed checkpoint vouches for is gone or too short
│   ├── PartDamaged             a part holds something else than what was written to it
│   ├── Fenced                  a newer epoch exists; stop, never retry
│   └── CheckpointMismatch      the query or batch does not continue what the checkpoint holds
├── SnapshotError
│   ├── SnapshotCorrupt         unreadable: wrong checksum, length, schema or shape
│   ├── SnapshotVersionError    written in a format version that this partfile does not read
│   └── UnencodableState        a value that the codec of its state has no form for (also a ValueError)
└── RecoveryRefused             going on would lose or overwrite committed data

Every error carries a ``hint`` (what to do), and the ``path`` and ``checkpoint_id`` at fault where there are any.
The split of StoreError follows Materialize's persist: an unclassified error counts as OutcomeUnknown.
"""

from __future__ import annotations


class PartfileError(Exception):
    """Base of every error that partfile raises on purpose.

    Args:
        message: One sentence that names the file, field or option at fault.
        hint: What to do about it; empty when the message says it already.
        path: The path at fault, if there is one.
        checkpoint_id: The checkpoint at fault, if there is one.
    """

    def __init__(
        self, message: str, *, hint: str = "", path: str | None = None, checkpoint_id: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.path = path
        self.checkpoint_id = checkpoint_id

    @property
    def sentence(self) -> str:
        """What happened and where, without the hint."""
        where = [f"path {self.path!r}"] if self.path is not None and self.path not in self.message else []
        where += [f"checkpoint {self.checkpoint_id}"] if self.checkpoint_id is not None else []
        return f"{self.message} ({', '.join(where)})" if where else self.message

    def __str__(self) -> str:
        return f"{self.sentence}\nHint: {self.hint}" if self.hint else self.sentence

    def __reduce__(self) -> tuple[object, ...]:
        # Spark carries errors from worker to driver; keyword-only fields would be lost on the way.
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[PartfileError], args: tuple[str, ...], fields: dict[str, object]) -> PartfileError:
    error = kind(*args)
    error.__dict__.update(fields)
    return error


class ConfigError(PartfileError, ValueError):
    """An option that cannot be used as given."""


class BucketValueError(PartfileError, ValueError):
    """A value from the data that cannot name a bucket."""


class UnsupportedTypeError(PartfileError, TypeError):
    """A column whose type has no documented form in the chosen format."""


class StoreError(PartfileError):
    """A storage call failed; the subclasses say whether it may have happened all the same."""


class NotApplied(StoreError):
    """The call did not happen: storage is as it was."""


class AlreadyExists(NotApplied):
    """The name is taken; nothing was written or replaced."""


class NotFound(NotApplied):
    """The name is not there."""


class LeaseUnavailable(NotApplied):
    """Another process holds the lease of the part."""


class NotReady(NotApplied):
    """The store refuses for now, as in safe mode, during a recovery or a failover; the same call may succeed later."""


class DirectoriesUnreadable(NotApplied):
    """Raised at the end of a listing: some directories may not be read, and everything else was listed."""

    directories: tuple[str, ...] = ()
    """Their paths, relative to the base of the store."""


class FileTooLarge(NotApplied):
    """A file is longer than its reader would take; what it begins with was not looked at."""


class StateTooLarge(NotApplied):
    """State is larger than the checkpoint storage takes; the checkpoint fails, the job goes on."""


class SnapshotCancelled(NotApplied):
    """The snapshot was given up while it was being written; nothing of it counts, and nothing of it is left."""


class OutcomeUnknown(StoreError):
    """The call may have happened; look at the store before acting on it, never delete."""


class CommitError(PartfileError):
    """Base of what can go wrong between a checkpoint and its published files."""


class CommitConflict(CommitError):
    """Bytes that are not ours stand where a part should be published; nothing was replaced."""


class PartMissing(CommitError):
    """A part that a completed checkpoint vouches for is under none of its names, or too short."""

    nothing_left: bool = False
    """Whether nothing of it was found: it was deleted, or a consumer took its file before the sink could note that."""


class PartDamaged(CommitError):
    """A part holds, within its valid length, something else than what was written to it."""


class Fenced(CommitError):
    """Another coordinator has taken over; this one stops and deletes nothing."""


class CheckpointMismatch(CommitError):
    """The query or batch does not continue what the newest checkpoint holds."""


class SnapshotError(PartfileError):
    """Base of what can be wrong with persisted state."""


class SnapshotCorrupt(SnapshotError):
    """Persisted state that cannot be read: checksum, length, schema or shape is wrong."""


class SnapshotVersionError(SnapshotError):
    """Persisted state in a format version that this partfile does not read: a newer one, or one from before release."""


class UnencodableState(SnapshotError, ValueError):
    """A value that the codec of its state has no form for, or that would not come back as it is."""


class RecoveryRefused(PartfileError):
    """Going on would lose or overwrite committed data; nothing was changed."""
