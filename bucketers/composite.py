"""Several bucketers, one directory level after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from partfile.bucketers.naming import BAD, FAIL, joined, with_fallback
from partfile.bucketers.port import Bucketer, HashKey
from partfile.bucketers.resolve import resolve_bucketer
from partfile.filesystems.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

    from partfile.bucketers.port import BucketContext


class CompositeBucketer(Bucketer):
    """Joins the buckets of several bucketers, outermost first; an empty one adds no level.

    Args:
        *bucketers: Bucketers or callables.

    Raises:
        ConfigError: There is none, one is no bucketer, or two of them leave out the same column.
    """

    def __init__(self, *bucketers: Any) -> None:
        if not bucketers:
            raise ConfigError("CompositeBucketer needs at least one bucketer")
        self._bucketers = tuple(resolve_bucketer(bucketer) for bucketer in bucketers)
        dropped = [name for one in self._bucketers for name in one.dropped_columns]
        twice = [name for name in dropped if dropped.count(name) > 1]
        if twice:
            raise ConfigError(f"{self!r} puts column {twice[0]!r} into the path twice, which readers refuse")

    def __repr__(self) -> str:
        return f"CompositeBucketer({', '.join(map(repr, self._bucketers))})"

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """What any of them drops."""
        return tuple(name for one in self._bucketers for name in one.dropped_columns)

    @property
    def hash_key(self) -> HashKey | None:
        """All key columns, if every bucketer has a plain one."""
        keys = [one.hash_key for one in self._bucketers]
        columns = [name for key in keys if key is not None and key.truncate_to is None for name in key.columns]
        plain = all(key is not None and key.truncate_to is None for key in keys)
        return HashKey(columns=tuple(dict.fromkeys(columns))) if plain else None

    def check(self, schema: pa.Schema) -> None:
        """Each of them checks the whole schema, and together they must leave a column for the file."""
        for one in self._bucketers:
            one.check(schema)
        if self.dropped_columns and set(schema.names) <= set(self.dropped_columns):
            raise ConfigError(f"{self!r} leaves no column for the file: {', '.join(schema.names)} are all in the path")

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """The joined paths; a row that one of them cannot name goes to the fallback as a whole."""
        marking = context if context.on_bad_bucket == FAIL else context.model_copy(update={"on_bad_bucket": BAD})
        return with_fallback(joined([one.bucket_of(batch, marking) for one in self._bucketers], context), context)
