"""Buckets from any function of a record batch."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.bucketers.escaping import escape_path
from partfile.bucketers.naming import named, value_type, with_fallback
from partfile.bucketers.port import Bucketer
from partfile.filesystems.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.bucketers.port import BucketContext

_HINT = "Return one string a row."


class FunctionBucketer(Bucketer):
    """Asks a function for one path a row; ``/`` separates directories, everything else is escaped.

    Args:
        function: ``f(batch)`` or ``f(batch, context)``, returning a string array, or a list of str, of one path a row;
            ``""`` is the base path. A second parameter with a default of its own is left alone, unless it is called
            ``context``. It must be picklable, and give the same rows the same paths in every process.

    Raises:
        ConfigError: The function cannot be called so.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._context_goes = _where_the_context_goes(function)

    def __repr__(self) -> str:
        return f"FunctionBucketer({getattr(self._function, '__qualname__', type(self._function).__qualname__)})"

    def check(self, schema: pa.Schema) -> None:
        """The function itself says what it needs."""

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """Call the function and escape each distinct path once."""
        by_position = (context,) if self._context_goes == "second" else ()
        by_name = {"context": context} if self._context_goes == "by name" else {}
        paths = self._as_array(self._function(batch, *by_position, **by_name))
        kind = value_type(paths.type)
        if len(paths) != len(batch) or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise ConfigError(
                f"{self!r} returned {len(paths)} values of type {paths.type} for {len(batch)} rows", hint=_HINT
            )
        return with_fallback(named(paths, _path, context), context)

    def _as_array(self, result: Any) -> Any:
        if isinstance(result, pa.ChunkedArray):
            result = result.combine_chunks()
        if not isinstance(result, pa.Array):
            if isinstance(result, str | bytes):
                # It has a length and items too: a text of as many letters as there are rows would pass for paths.
                raise ConfigError(f"{self!r} returned one {type(result).__name__} for the whole batch", hint=_HINT)
            try:
                result = _from_texts(result if hasattr(result, "__len__") else list(result))
            except (pa.ArrowException, TypeError, OverflowError) as error:
                raise ConfigError(f"{self!r} returned what is no array: {error}", hint=_HINT) from error
        return result.cast(pa.string()) if pa.types.is_null(result.type) else result


def _from_texts(texts: Any) -> Any:
    try:
        return pa.array(texts)
    except UnicodeEncodeError:
        # A lone surrogate. As bytes that are no UTF-8 it comes to the one place where bad values are dealt with.
        raw = [text.encode(errors="surrogatepass") if isinstance(text, str) else text for text in texts]
        return pa.array(raw, pa.binary()).view(pa.string())


def _where_the_context_goes(function: Callable[..., Any]) -> str:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""  # Some builtins have no signature; they are called with the batch alone.
    named_so = signature.parameters.get("context")
    if named_so is not None and named_so.kind is inspect.Parameter.KEYWORD_ONLY:
        goes = "by name"
    else:
        by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [parameter for parameter in signature.parameters.values() if parameter.kind in by_position]
        second = positional[1] if len(positional) > 1 else None
        # lambda batch, n=n: ... only captures n.
        goes = "second" if second and (second.default is second.empty or second.name == "context") else ""
    try:
        signature.bind(
            *["batch", *(["context"] if goes == "second" else [])], **{"context": 0} if goes == "by name" else {}
        )
    except TypeError as error:
        raise ConfigError(
            f"the bucketer {function!r} can be called neither as f(batch) nor as f(batch, context): {error}"
        ) from error
    return goes


def _path(value: str | None) -> str:
    if value is None:
        raise BucketValueError("the bucketer's function returned null for a row")
    return escape_path(value)
