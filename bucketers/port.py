"""What a bucketer is: a pure, vectorised function from a record batch to one bucket path a row."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, field_validator

from partfile.bucketers.escaping import is_safe_path

if TYPE_CHECKING:
    import pyarrow as pa


class BucketContext(BaseModel):
    """What a bucketer may know besides the rows; fixed by the coordinator for a whole batch (S8)."""

    model_config = ConfigDict(frozen=True)

    batch_time_ms: int
    """Time of the batch by the coordinator's clock, in milliseconds since the epoch, UTC."""
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
    """Which bucket a row belongs to.

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
