"""One encoded file: whole and durable under a pending name of its own, or not there at all."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import Field

from partfile.errors import NotReady, PartDamaged, StoreError
from partfile.sink.states import Crc32
from partfile.stores.base import PartHandle, Persisted
from partfile.stores.parts import with_fresh_token
from partfile.writers.arrow_staging import DAMAGED_HINT, ChecksummedStream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.stores.base import PartStore, PartStream
    from partfile.writers.base import ByteStream


class EncodedFile(Persisted):
    """A file that rows of a staging file were encoded into."""

    part: PartHandle
    """Durable under its pending name; published only once a completed checkpoint holds it."""
    rows: Annotated[int, Field(ge=0)]
    crc32: Crc32
    """Of all its bytes, as they were handed to the store."""


class PartlyEncoded(NotReady):
    """Some files of a multi-bucket staging file could not be made. The others are there, and can be promised."""

    files: tuple[EncodedFile, ...] = ()
    """Those that are there."""

    @classmethod
    def of(cls, part: PartHandle, files: tuple[EncodedFile, ...], missing: int, first: StoreError) -> Self:
        """The error that says how many are missing, and why the first of them is.

        Args:
            part: The staging file.
            files: Those that are there.
            missing: How many could not be made, or were not tried any more.
            first: What one of them met.
        """
        path = part.path_of(part.in_progress)
        error = cls(
            f"{missing} buckets of staging file {path!r} have no file yet, {len(files)} have got theirs: "
            f"{first.message}",
            hint=first.hint,
            path=first.path,
        )
        error.files = files
        error.__cause__ = first
        return error


class NotItsOwn(NotReady):
    """The staging file may not be to blame: it was not tried, or not alone in its job.

    It is tried again without waiting.
    """


class JobFailed(NotReady):
    """The Spark job that was to encode a staging file, or the worker that was, has failed as a whole."""


class SharedJobFailed(JobFailed, NotItsOwn):
    """The job failed; another staging file in it may be the cause, or the worker does not see the base."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that has all of its bytes, and is neither durable nor pending yet.

    Args:
        stream: The file, leased.
        rows: How many it holds.
        crc32: Of its bytes.
    """

    stream: PartStream
    rows: int
    crc32: int

    def commit(self, store: PartStore) -> EncodedFile:
        """Make it durable under its pending name, and release it. Of a failure nothing is left, as of ``written_file``.

        Args:
            store: Where it is.
        """
        with _whole_or_gone(store, self.stream):
            file = EncodedFile(part=self.stream.close_for_commit(), rows=self.rows, crc32=self.crc32)
        self.stream.close()
        return file


def written_file(store: PartStore, target: PartHandle, write: Callable[[ByteStream], int]) -> WrittenFile:
    """Write all bytes of one file, to be committed by the caller.

    A failure leaves nothing but what cannot be deleted: no other process knows the name.

    Args:
        store: Where it goes.
        target: Its names.
        write: Writes all of it and returns the number of its rows, or raises.
    """
    stream = store.create(target)
    with _whole_or_gone(store, stream):
        counted = ChecksummedStream(stream)
        rows = write(counted)
    return WrittenFile(stream, rows, counted.crc32)


@contextmanager
def _whole_or_gone(store: PartStore, stream: PartStream) -> Iterator[None]:
    try:
        yield
    except Exception:
        stream.close()
        with suppress(StoreError):
            store.discard(stream.handle)
        raise
    except BaseException:
        # An interrupt makes no further call; the file becomes an orphan, as after a kill.
        stream.close()
        raise


def target_of(part: PartHandle, bucket: str | None = None, name: str | None = None) -> PartHandle:
    """The file that a staging file is encoded into, under staged names with a token of its own.

    Args:
        part: The staging file.
        bucket: Where the file goes; None is where the staging file is.
        name: Its final name; None is that of the staging file.
    """
    plain = {
        "valid_length": 0,
        "staging": {},
        "is_staging_file": False,
        "bucket": part.bucket if bucket is None else bucket,
    }
    if name is not None:
        plain |= {"name": name, "sidecar": part.sidecar.replace(part.name, name)}
    return with_fresh_token(part).model_copy(update=plain)


def check_rows(part: PartHandle, found: int, rows: int) -> None:
    """Refuse a staging file that does not hold what its checkpoint says.

    Raises:
        PartDamaged: It holds more or fewer rows.
    """
    if found != rows:
        raise damaged(part, f"holds {found} rows in its {part.valid_length} valid bytes; its checkpoint says {rows}")


def damaged(part: PartHandle, what: str) -> PartDamaged:
    """The error that a staging file is not what was written.

    Args:
        part: The staging file.
        what: What is wrong with it.
    """
    path = part.path_of(part.in_progress)
    return PartDamaged(
        f"staging file {path!r} {what}",
        hint=DAMAGED_HINT,
        path=path,
    )
