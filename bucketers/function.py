"""Buckets from any function of a record batch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.bucketers.escaping import escape_path
from partfile.bucketers.naming import named, with_fallback
from partfile.bucketers.port import Bucketer
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.bucketers.port import BucketContext


class FunctionBucketer(Bucketer):
    """Asks a function for one path a row; ``/`` separates directories, everything else is escaped.

    Args:
        function: ``f(batch)`` or ``f(batch, context)``, returning a string array, or a list of str, of one path a row.
            It must be picklable, and give the same rows the same paths in every process.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._takes_context = len(inspect.signature(function).parameters) > 1

    def __repr__(self) -> str:
        return f"FunctionBucketer({getattr(self._function, '__qualname__', type(self._function).__qualname__)})"

    def check(self, schema: pa.Schema) -> None:
        """The function itself says what it needs."""

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """Call the function and escape each distinct path once."""
        result = self._function(batch, context) if self._takes_context else self._function(batch)
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        try:
            paths = result if isinstance(result, pa.Array) else pa.array(result)
        except (pa.ArrowInvalid, TypeError) as error:
            raise ConfigError(
                f"{self!r} returned what is no array: {error}", hint="Return one string a row."
            ) from error
        if pa.types.is_null(paths.type):
            paths = paths.cast(pa.string())
        kind = paths.type.value_type if pa.types.is_dictionary(paths.type) else paths.type
        if len(paths) != len(batch) or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ConfigError(
                f"{self!r} returned {len(paths)} values of type {paths.type} for {len(batch)} rows",
                hint="Return one string a row.",
            )
        return with_fallback(named(paths, _path, context), context)


def _path(value: str | None) -> str:
    if value is None:
        raise BucketValueError("the bucketer's function returned null for a row")
    return escape_path(value)
