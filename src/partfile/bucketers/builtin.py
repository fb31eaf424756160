"""The bucketers without columns of their own: the base path itself, a function of the user's, several in a row.

``resolve_bucketer`` makes a bucketer of whatever a user passes as ``bucketer=``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from partfile.bucketers.base import Bucketer, HashKey, escape_path
from partfile.bucketers.paths import BAD, FAIL, all_rows_in, joined, named, value_type, with_fallback
from partfile.errors import BucketValueError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.bucketers.base import BucketContext


_HINT = "Return one string a row, for instance pa.array(['bucket'] * len(batch))."


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
        """Call the function and escape each distinct path once.

        Raises:
            ConfigError: It looks up what is not there, or returns something else than a path a row.
        """
        by_position = (context,) if self._context_goes == "second" else ()
        by_name = {"context": context} if self._context_goes == "by name" else {}
        try:
            result = self._function(batch, *by_position, **by_name)
        except KeyError as error:
            names = batch.schema.names
            raise ConfigError(
                f"{self!r} raised KeyError: {error}; the columns are {', '.join(names)}",
                hint=f"Look up a column that is there, as batch[{next(iter(names), 'NAME')!r}]; give keys a default.",
            ) from error
        paths = self._as_array(result)
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
                raise ConfigError(f"{self!r} did not return an array: {error}", hint=_HINT) from error
        return result.cast(pa.string()) if pa.types.is_null(result.type) else result


def _from_texts(texts: Any) -> Any:
    try:
        return pa.array(texts)
    except UnicodeEncodeError:
        # A lone surrogate. As bytes that are not UTF-8 it comes to the one place that handles bad values.
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
            f"the bucketer {function!r} can be called neither as f(batch) nor as f(batch, context): {error}",
            hint="Write def bucket_of(batch): ..., which returns a string for each row.",
        ) from error
    return goes


def _path(value: str | None) -> str:
    if value is None:
        raise BucketValueError("the bucketer's function returned null for a row")
    return escape_path(value)


def resolve_bucketer(bucketer: Any) -> Bucketer:
    """Return a bucketer, or a callable as one.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(bucketer, Bucketer):
        return bucketer
    if callable(bucketer) and not isinstance(bucketer, type):
        return FunctionBucketer(bucketer)
    raise ConfigError(
        f"{bucketer!r} is neither a bucketer nor a function of a pyarrow.RecordBatch",
        hint="Pass for instance bucketer=partfile.HiveBucketer('country').",
    )


class BasePathBucketer(Bucketer):
    """Puts all part files directly below the base path."""

    def __repr__(self) -> str:
        return "BasePathBucketer()"

    def check(self, schema: pa.Schema) -> None:
        """Works on any columns."""

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """The base path for every row."""
        del context
        return all_rows_in("", len(batch))


class CompositeBucketer(Bucketer):
    """Joins the buckets of several bucketers, outermost first; an empty one adds no level.

    Args:
        *bucketers: Bucketers or callables.

    Raises:
        ConfigError: There is none, one is no bucketer, or two of them leave out the same column.
    """

    def __init__(self, *bucketers: Any) -> None:
        if not bucketers:
            raise ConfigError(
                "CompositeBucketer needs at least one bucketer",
                hint="Write CompositeBucketer(HiveBucketer('country'), DateTimeBucketer('time')).",
            )
        self._bucketers = tuple(resolve_bucketer(bucketer) for bucketer in bucketers)
        dropped = [name for one in self._bucketers for name in one.dropped_columns]
        twice = [name for name in dropped if dropped.count(name) > 1]
        if twice:
            raise ConfigError(
                f"{self!r} puts column {twice[0]!r} into the path twice, which readers refuse",
                hint=f"Leave {twice[0]!r} out of all but one HiveBucketer(...).",
            )

    def __repr__(self) -> str:
        return f"CompositeBucketer({', '.join(map(repr, self._bucketers))})"

    @property
    def dropped_columns(self) -> tuple[str, ...]:
        """The columns that any of them drops."""
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
            raise ConfigError(
                f"{self!r} leaves no column for the file: {', '.join(schema.names)} are all in the path",
                hint="Write HiveBucketer(..., keep_columns=True), or add a column.",
            )

    def bucket_of(self, batch: pa.RecordBatch, context: BucketContext) -> pa.DictionaryArray[Any, Any]:
        """The joined paths; a row that one of them cannot name goes to the fallback as a whole."""
        marking = context if context.on_bad_bucket == FAIL else context.model_copy(update={"on_bad_bucket": BAD})
        return with_fallback(joined([one.bucket_of(batch, marking) for one in self._bucketers], context), context)
