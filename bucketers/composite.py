"""Several bucketers, one directory level after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.bucketers.naming import joined
from partfile.bucketers.port import Bucketer, HashKey
from partfile.bucketers.resolve import resolve_bucketer
from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.bucketers.port import BucketContext


class CompositeBucketer(Bucketer):
    """Joins the buckets of several bucketers, outermost first.

    Args:
        *bucketers: Bucketers or callables.
    """

    def __init__(self, *bucketers: Any) -> None:
        if not bucketers:
            raise ConfigError("CompositeBucketer needs at least one bucketer")
        self._bucketers = tuple(resolve_bucketer(bucketer) for bucketer in bucketers)

    def __repr__(self) -> str:
        return f"CompositeBucketer({', '.join(map(repr, self._bucketers))})"

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """What any of them drops."""
        return tuple(dict.fromkeys(name for one in self._bucketers for name in one.dropped_columns))

    @property
    def hash_key(self) -> HashKey | None:
        """All key columns, if every bucketer has a plain one."""
        keys = [one.hash_key for one in self._bucketers]
        columns = [name for key in keys if key is not None and key.truncate_to is None for name in key.columns]
        plain = all(key is not None and key.truncate_to is None for key in keys)
        return HashKey(columns=tuple(dict.fromkeys(columns))) if plain else None

    def check(self, schema: pa.Schema) -> None:
        """Each of them checks the whole schema."""
        for one in self._bucketers:
            one.check(schema)

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """The joined paths."""
        return joined([one.bucket_of(batch, context) for one in self._bucketers])
