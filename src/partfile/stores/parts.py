"""What every store does with a handle: names, checks, errors, the base of open streams."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated, Self, cast

from pydantic import Field, JsonValue, ValidationError

from partfile.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    PartDamaged,
    PartfileError,
    PartMissing,
    SnapshotCorrupt,
)
from partfile.stores.base import Persisted
from partfile.stores.paths import TOKEN_HEX_DIGITS, check_relative_path, new_token

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import PartHandle


_TOKEN = re.compile(rf"[0-9a-f]{{{TOKEN_HEX_DIGITS}}}")
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")

RECOVER = "partfile recover PATH --uid UID"
"""What hints of a store say, which knows no sink; the sink puts its own command there."""


def split_path(path: str) -> tuple[str, str]:
    """Split a relative path into its directory and its name."""
    parent, _, name = check_relative_path(path).rpartition("/")
    if not name:
        raise ConfigError(f"{path!r} names no file below the base", path=path)
    return parent, name


def check_handle(handle: PartHandle) -> PartHandle:
    """Return the handle if none of its names leaves its bucket; it may have been made around its validation.

    Raises:
        ConfigError: One of them does.
    """
    check_relative_path(handle.bucket)
    for name in (handle.name, handle.in_progress, handle.pending, handle.sidecar):
        if not name or "/" in check_relative_path(name):
            raise ConfigError(f"{name!r} is not a file name", path=name)
    return handle


def with_fresh_token(handle: PartHandle) -> PartHandle:
    """The same part under staged names with a token of its own; their affixes stay, so that they stay hidden."""
    token = new_token()
    return _with_token(handle, lambda _: token)


def rewritten(handle: PartHandle) -> PartHandle:
    """The same part under the staged names of its cut copy, for stores where that takes over from the original.

    Its token follows from the original's, so that a later process finds it; it belongs to this part alone just as much.
    """
    return _with_token(handle, lambda seed: hashlib.sha256(seed.encode()).hexdigest()[:TOKEN_HEX_DIGITS])


def _with_token(handle: PartHandle, token_for: Callable[[str], str]) -> PartHandle:
    def renamed(name: str) -> str:
        found = [match.span() for match in _TOKEN.finditer(name)]
        if not found:
            return f"{name}.{token_for(name)}"
        start, end = found[-1]
        return name[:start] + token_for(name[start:end]) + name[end:]

    return handle.model_copy(update={"in_progress": renamed(handle.in_progress), "pending": renamed(handle.pending)})


class FsspecStaging(Persisted):
    """The staged file of one part. It is written once and never changed."""

    file: str
    """Its name, in the directory of the part."""
    crc32: Annotated[int, Field(ge=0)]
    """Of the valid bytes, which are the whole file."""
    spent: tuple[str, ...] = ()
    """Names of staged files whose bytes are in this one too."""

    @classmethod
    def of(cls, handle: PartHandle) -> Self | None:
        """The content of a handle; None if the part was never written.

        Raises:
            SnapshotCorrupt: It cannot be read, or leaves the directory of the part.
        """
        if not handle.staging:
            return None
        try:
            staging = cls.model_validate_json(json.dumps(handle.staging))
        except ValidationError as error:
            raise SnapshotCorrupt(f"part {handle.path_of(handle.name)!r} has another store's staging") from error
        for name in (staging.file, *staging.spent):
            if not _is_file_name(name):
                raise SnapshotCorrupt(f"part {handle.path_of(handle.name)!r} names {name!r}, which is not a file name")
        return staging

    def added_to(self, handle: PartHandle, valid_length: int) -> PartHandle:
        """The handle with this staged file, at a length in bytes."""
        staging = cast("dict[str, JsonValue]", self.model_dump(mode="json"))
        return handle.model_copy(update={"valid_length": valid_length, "staging": staging})


def _is_file_name(name: str) -> bool:
    try:
        return bool(name) and "/" not in check_relative_path(name)
    except ConfigError:
        return False


_FILE = "file"


def is_staged_file(handle: PartHandle) -> bool:
    """Whether a part that is not finished is a file; on S3 it is known by its handle alone."""
    return not handle.staging or _FILE in handle.staging


def staged_names(handle: PartHandle) -> tuple[str, ...]:
    """The names that the part can have before it is finished, in the order in which it moves from one to the next.

    A part that was cut by a copy that takes over from it is that copy, which has a name of its own. A staging file
    keeps its only name until it is deleted.

    Raises:
        SnapshotCorrupt: The handle is of no store that there is.
    """
    if not is_staged_file(handle):
        return ()
    if handle.is_staging_file:
        return (handle.in_progress,)
    staging = FsspecStaging.of(handle)
    sent = () if staging is None else (*staging.spent, staging.file)
    return tuple(dict.fromkeys((handle.in_progress, handle.pending, rewritten(handle).pending, *sent)))


def part_conflict(
    handle: PartHandle,
    reason: str,
    *,
    hint: str = "Nothing was replaced. If a part is missing once that file is away, that error says what to do. Move "
    "it away and start again: mv FILE ELSEWHERE",
) -> CommitConflict:
    """Bytes that are not ours stand where a part should be published."""
    path = handle.path_of(handle.name)
    return CommitConflict(f"part {path!r} cannot be published: {reason}", hint=hint, path=path)


def part_missing(handle: PartHandle, reason: str) -> PartMissing:
    """A part that a completed checkpoint vouches for is gone."""
    return PartMissing(
        f"part {handle.path_of(handle.name)!r} of {handle.valid_length} valid bytes is missing: {reason}",
        hint=(
            "Committed rows are gone: put the file back, or give them up: partfile recover PATH --uid UID "
            "--accept-missing"
        ),
        path=handle.path_of(handle.name),
    )


def part_gone(handle: PartHandle, reason: str) -> PartMissing:
    """Nothing of a part is left, as after a consumer has taken its file."""
    error = part_missing(
        handle,
        f"{reason}. It was deleted (on S3 a lifecycle rule may have aborted its upload), or a consumer took its file "
        "before the sink could note that it is finished",
    )
    error.hint = (
        "If consumers take files, say so with consumers_take_files=True and start again. Else put the file "
        "back, or give its rows up: partfile recover PATH --uid UID --accept-missing"
    )
    error.nothing_left = True
    return error


def part_too_short(handle: PartHandle, size: int) -> PartMissing:
    """A part has lost bytes that a completed checkpoint vouches for."""
    return part_missing(handle, f"only {size} bytes are left, {handle.valid_length - size} are gone")


def is_length(content: bytes) -> bool:
    """Whether these are the bytes of a sidecar, of whatever length."""
    return _LENGTH.fullmatch(content) is not None


def part_damaged(handle: PartHandle, reason: str) -> PartDamaged:
    """The error for a part that exists and is not what a completed checkpoint vouches for."""
    return PartDamaged(
        f"part {handle.path_of(handle.name)!r} of {handle.valid_length} valid bytes is damaged: {reason}",
        hint=(
            "Bring back what was written from a backup; it was not published. Without one delete what is there, "
            "and give its rows up: partfile recover PATH --uid UID --accept-missing"
        ),
        path=handle.path_of(handle.name),
    )


def part_refused(handle: PartHandle, reason: str) -> LeaseUnavailable:
    """A part that this process may not append to."""
    return LeaseUnavailable(
        f"part {handle.path_of(handle.name)!r} cannot be appended to: {reason}",
        hint=(
            "Another process has it, or it was moved by hand: then put it back. A new start finalizes it. See "
            "where it is: partfile verify PATH"
        ),
        path=handle.path_of(handle.in_progress),
    )


def part_lost(path: str, failure: str) -> NotApplied:
    """An open part whose stream has failed before."""
    return NotApplied(
        f"part {path!r} is lost to this process: {failure}",
        hint="Close it and start another part; never persist this one.",
        path=path,
    )


def part_of_another_process(path: str, owner: int, user: int) -> PartfileError:
    """An open part that was carried over a fork."""
    return PartfileError(
        f"part {path!r} was opened by process {owner} and is used by process {user}",
        hint=(
            "A part belongs to the process that opened it. Open parts after the fork, in the child; or start "
            "children with multiprocessing.get_context('spawn')."
        ),
        path=path,
    )


def check_new(handle: PartHandle) -> None:
    """Refuse to create a part that has been created already. Asks nothing of storage.

    Raises:
        AlreadyExists, NotApplied: Its handle says so.
    """
    path = handle.path_of(handle.in_progress)
    if handle.staging:
        raise AlreadyExists(f"part {path!r} has been created already", path=path)
    if handle.valid_length:
        raise NotApplied(f"a new part cannot have {handle.valid_length} valid bytes", path=path)


class OpenStream:
    """Base of the open parts of every store. Holds no resource.

    Args:
        path: Of the part, for messages.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._process = os.getpid()
        self._is_closed = False
        self._failure = ""
        """Why the part is lost to this process; empty while it is not."""

    @property
    def _is_ours_to_close(self) -> bool:
        """Whether there is something to release: a forked child leaves that to its parent."""
        return not self._is_closed and os.getpid() == self._process

    def _check_usable(self) -> None:
        """Refuse use by another process, after a failure, and after the end.

        Raises:
            PartfileError: The part was carried over a fork.
            NotApplied: It has failed before, or is closed.
        """
        if os.getpid() != self._process:
            raise part_of_another_process(self._path, self._process, os.getpid())
        if self._failure:
            raise part_lost(self._path, self._failure)
        if self._is_closed:
            raise NotApplied(f"part {self._path!r} is closed", path=self._path)


def checked_for_publishing(handle: PartHandle) -> PartHandle:
    """Return the handle of a part that may become pending and finished.

    Raises:
        ConfigError: One of its names leaves its bucket.
        PartfileError: It is a staging file.
    """
    handle = check_handle(handle)
    if handle.is_staging_file:
        raise PartfileError(
            f"staging file {handle.path_of(handle.in_progress)!r} cannot be finalized or published: no reader of "
            f"{handle.path_of(handle.name)!r} could read it",
            hint="Encode it into a part of its own, and publish that one.",
            path=handle.path_of(handle.in_progress),
        )
    return handle


def checked_staging_file(handle: PartHandle) -> PartHandle:
    """Return the handle of a staging file.

    Raises:
        ConfigError: One of its names leaves its bucket.
        PartfileError: It is no staging file.
    """
    handle = check_handle(handle)
    if not handle.is_staging_file:
        raise PartfileError(
            f"part {handle.path_of(handle.name)!r} is not a staging file, so it is not read before it is finished",
            path=handle.path_of(handle.in_progress),
        )
    return handle


def staging_file_gone(handle: PartHandle) -> PartMissing:
    """A staging file that is not under its only name."""
    return part_missing(handle, f"its staging file {handle.in_progress!r} is not there")


def staging_file_too_short(handle: PartHandle, size: int) -> PartMissing:
    """A staging file that has lost bytes which a completed checkpoint vouches for."""
    return part_missing(handle, f"its staging file {handle.in_progress!r} has only {size} bytes")


def staging_files_refused(handle: PartHandle, base: str) -> NotApplied:
    """A store whose staging files cannot be read back."""
    return NotApplied(
        f"staging file {handle.path_of(handle.in_progress)!r} cannot be read back from {base!r}",
        hint="Let columnar parts roll at every checkpoint there: columnar='per_checkpoint'",
        path=handle.path_of(handle.in_progress),
    )


_AT_ONCE_BYTES = 1 << 20


class SeekableFile(io.RawIOBase):
    """A file to read, at a position of its own; a subclass says where it ends, and reads by ``readinto``.

    Args:
        path: Of the file, for messages.
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self._position = 0

    @property
    @abstractmethod
    def _end(self) -> int:
        """Bytes up to where it can be read."""

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes from the start."""
        return self._position

    def readall(self) -> bytes:
        """Read all that is left; Python itself would ask for a few KiB at a time."""
        pieces = []
        while piece := self.read(_AT_ONCE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move; beyond the end nothing is read."""
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._end}
        position = starts[whence] + offset
        if position < 0:
            raise ValueError(f"position {position} is before the start of {self._path!r}")
        self._position = position
        return position
