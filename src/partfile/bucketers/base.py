"""The interface of a bucketer: a pure, vectorised function from a record batch to one bucket path a row.

Also the rules for a path that comes from data: how a segment is escaped, and which path is safe as it stands.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, field_validator

from partfile.errors import BucketValueError

if TYPE_CHECKING:
    import pyarrow as pa


MAX_SEGMENT_BYTES = 255
MAX_PATH_BYTES = 1024
# Spark's list for partition values, so that readers that unescape Hive paths read ours.
_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
HIDING = ("_", ".")
_SAFE_PATH = re.compile("(?![_.])[^/\x00-\x1f\x7f]+(?:/(?![_.])[^/\x00-\x1f\x7f]+)*")


def escape_segment(text: str) -> str:
    """Return ``text`` as one path segment.

    Characters that mean something to a file system, a glob or Hive become ``%XX``, as in Spark's partition paths; so
    does a leading ``_`` or ``.``, which would hide the file from readers or reach partfile's own
    state. Different texts give different segments.

    Raises:
        BucketValueError: It is empty, cannot be encoded as UTF-8, or is longer than 255 bytes once escaped.
    """
    if not text:
        raise BucketValueError("an empty text names no bucket")
    escaped = escape_value(text)
    if escaped.startswith(HIDING):
        escaped = f"%{ord(escaped[0]):02X}{escaped[1:]}"
    return check_segment(escaped)


def escape_value(text: str) -> str:
    """Return ``text`` with every character that means something as ``%XX``; for use behind a ``column=``."""
    return _ESCAPED.sub(lambda match: f"%{ord(match.group()):02X}", text)


def check_segment(escaped: str) -> str:
    """Return an escaped segment if a file system can hold it.

    Raises:
        BucketValueError: It cannot be encoded as UTF-8 or is longer than 255 bytes.
    """
    try:
        length = len(escaped.encode())
    except UnicodeEncodeError as error:
        raise BucketValueError(f"{escaped[:60]!r} cannot be encoded as UTF-8, so it names no bucket") from error
    if length > MAX_SEGMENT_BYTES:
        raise BucketValueError(
            f"{escaped[:60]!r}... has {length} bytes as a path segment; {MAX_SEGMENT_BYTES} are allowed"
        )
    return escaped


def escape_path(path: str) -> str:
    """Return ``path`` with each of its ``/``-separated segments escaped; the empty path is the base itself.

    Raises:
        BucketValueError: A segment cannot be encoded or is empty, or the whole is longer than 1024 bytes.
    """
    if not path:
        return path
    segments = path.split("/")
    if not all(segments):
        raise BucketValueError(f"{path[:60]!r} begins or ends with '/', or has two in a row, so it names no bucket")
    return check_length("/".join(map(escape_segment, segments)))


def check_length(path: str) -> str:
    """Return ``path`` if it is short enough for every store.

    Raises:
        BucketValueError: It is longer than 1024 bytes.
    """
    if len(path.encode()) > MAX_PATH_BYTES:
        raise BucketValueError(f"{path[:60]!r}... is longer than {MAX_PATH_BYTES} bytes, so it names no bucket")
    return path


@lru_cache(maxsize=10_000)
def is_safe_path(path: str) -> bool:
    """Whether ``path`` can stand as a bucket as it is; what users and their bucketers give is asked, not believed.

    Unlike escaping this allows ``=`` and the like: ``y=2013/bad`` is a fine bucket. The answers are kept, since the
    same buckets come with every batch.
    """
    if not path:
        return True
    if not _SAFE_PATH.fullmatch(path):
        return False
    try:
        sizes = [len(segment.encode()) for segment in path.split("/")]
    except UnicodeEncodeError:
        return False
    return max(sizes) <= MAX_SEGMENT_BYTES and sum(sizes) + len(sizes) - 1 <= MAX_PATH_BYTES


class BucketContext(BaseModel):
    """The facts that a bucketer gets besides the rows; fixed by the coordinator for a whole batch (R8)."""

    model_config = ConfigDict(frozen=True)

    batch_time_ms: int
    """Time of the batch by the coordinator's clock, in milliseconds since 1970, UTC."""
    on_bad_bucket: str = "fail"
    """``fail`` raises BucketValueError for a value that cannot name a bucket; else the bucket such rows go to.

    It is taken as it stands, so it must be safe as a path. Rows of a good value that names the same bucket lie there
    too: choose a name that no value has.
    """

    @field_validator("on_bad_bucket")
    @classmethod
    def _fallback_is_safe(cls, value: str) -> str:
        if not is_safe_path(value):
            raise ValueError(f"on_bad_bucket={value[:60]!r} cannot stand as a path below the base")
        return value


class HashKey(BaseModel):
    """A key that all rows of one bucket share, which an engine can compute itself before a shuffle; only a hint.

    With ``truncate_to`` it is the wall time in ``time_zone``, cut. As in DateTimeBucketer a timestamp without a zone is
    wall time already and must not be converted, nor must a date.
    """

    model_config = ConfigDict(frozen=True)

    columns: tuple[str, ...]
    truncate_to: str | None = None
    """``year``, ``month``, ``day``, ``hour``, ``minute`` or ``second`` for a single timestamp column, else None."""
    time_zone: str = "UTC"


class Bucketer(ABC):
    """Picks the bucket of each row.

    Implementations are frozen pydantic models or plain picklable objects without state: the same rows and context give
    the same buckets in every process and attempt.
    """

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """Columns that the path holds and the file leaves out."""
        return ()

    @property
    def hash_key(self) -> HashKey | None:
        """A key an engine can shuffle by, or None if only ``bucket_of`` knows."""
        return None

    @abstractmethod
    def check(self, schema: pa.Schema) -> None:
        """Refuse a schema this bucketer cannot work on.

        Raises:
            ConfigError: A column is missing or has the wrong type; the message names it and what there is.
        """

    @abstractmethod
    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """Return one bucket path a row.

        Args:
            batch: The rows.
            context: Batch time and what to do with bad values.

        Returns:
            A dictionary array of ``len(batch)`` rows, int32 indices without nulls, into distinct string values. Each
            value is a relative path below the base, safe as it stands: every segment is escaped so that it cannot
            leave the base, collide with another value's or be hidden (no leading ``_`` or ``.``). ``split`` refuses
            what is not.

        Raises:
            BucketValueError: A value cannot name a bucket and ``on_bad_bucket`` is ``fail``.
        """
