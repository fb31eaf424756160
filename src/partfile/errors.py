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

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

DOCUMENTATION_URL = "https://partfile.readthedocs.io/en/latest"
"""Where the pages of ``docs/`` are read. An installed package has none of them, so hints name places below it."""


def page_url(page: str, section: str = "") -> str:
    """The address of a page of the documentation, for a hint.

    Args:
        page: The name of its file in ``docs/``, without ``.md``.
        section: The anchor of a heading in it; empty for the whole page.
    """
    return f"{DOCUMENTATION_URL}/{page}/{section and f'#{section}'}"


def joined_hints(*hints: str) -> str:
    """Several hints as one text; one that ends in a command gets its full stop, unless it is the last."""
    first, *others = [hint.strip() for hint in hints if hint.strip()] or [""]
    for hint in others:
        first = f"{first} {hint}" if first.endswith((".", "?", "!")) else f"{first}. {hint}"
    return first


_PLAIN_WORDS = {
    "missing": "it is required",
    "int_type": "it must be a whole number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "finite_number": "it must be a finite number",
    "bool_type": "it must be True or False",
    "bool_parsing": "it must be True or False",
    "string_type": "it must be text",
    "greater_than": "it must be more than {gt}",
    "greater_than_equal": "it must be at least {ge}",
    "less_than": "it must be less than {lt}",
    "less_than_equal": "it must be at most {le}",
    "literal_error": "it must be {expected}",
    "callable_type": "it must be a function",
    "is_instance_of": "it must be a {class}",
    "mapping_type": "it must be a mapping, for instance a dict",
    "dict_type": "it must be a mapping, for instance a dict",
    "model_type": "it must be a {class_name}",
    "dataclass_type": "it must be a {class_name}",
    "dataclass_exact_type": "it must be a {class_name}",
    "tuple_type": "it must be a tuple, for instance ('a', 'b')",
}
"""What an option must be, by the type of pydantic's problem: its own sentences speak of inputs and parsing."""


def plain_words(problem: Mapping[str, Any]) -> str:
    """What is wrong with the value of an option.

    Args:
        problem: One of the ``errors()`` of pydantic's ValidationError. Its own sentence stands where there is no
            plainer one.
    """
    words = _PLAIN_WORDS.get(problem["type"])
    message: str = problem["msg"]
    return message.removeprefix("Value error, ") if words is None else words.format(**problem.get("ctx", {}))


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


class SourceError(PartfileError):
    """A source that cannot be read at the moment; nothing was lost."""


class RecordError(PartfileError):
    """A record of a source that is no row, of a job that has no place for such; nothing of it counts."""


class RecoveryRefused(PartfileError):
    """Going on would lose or overwrite committed data; nothing was changed."""
