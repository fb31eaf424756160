"""What a pipeline reads: rows in order, and where the input stands behind them."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from partfile.errors import CheckpointMismatch, ConfigError
from partfile.sink.rows import batches_of, count_in, counted, kept_position
from partfile.sink.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    import pyarrow as pa
    from pydantic import JsonValue

    from partfile.pipeline.dead_letters import DeadLetters


class SourceReader(Protocol):
    """An input that is open. One thread uses it."""

    @property
    def position(self) -> JsonValue:
        """Where the input stands behind the rows that were read; what ``open`` takes.

        One that writes dead letters has a position before its first rows.
        """

    @property
    def is_ended(self) -> bool:
        """Whether no more rows will come."""

    @property
    def lag(self) -> Mapping[str, int]:
        """How many rows are known to wait, by partition, file or the like; empty where that is not known."""

    def read(self, timeout_s: float) -> Any | None:
        """The next rows: a record batch, a table or a frame; None if none came in time.

        Raises:
            CheckpointMismatch: The input has lost rows that were not read.
            RecordError: A record is no row, and there are no dead letters.
            SourceError: It cannot be read at the moment.
        """

    def confirm(self, position: JsonValue) -> None:
        """Take note that a checkpoint with this position is complete. Nothing depends on it."""

    def close(self) -> None:
        """Let go of the input; may be called twice."""


class Source(Protocol):
    """An input that can be read from any position again."""

    def open(self, position: JsonValue, job: str, dead_letters: DeadLetters | None) -> SourceReader:
        """Begin behind a position.

        Args:
            position: That of the newest checkpoint; None before the first.
            job: The name of the pipeline.
            dead_letters: Takes records that are no rows; None ends the job at the first one. A reader asks
                ``pass_over`` of each record, by its partition and a number that grows within it, leaves out those that
                were written before a crash, and hands others that are no rows to ``write``.

        Raises:
            CheckpointMismatch: The input does not continue what was read.
            SourceError: It cannot be reached.
        """


class IterableSource:
    """Rows of an iterable that yields the same items each time, or that begins where it is told.

    Args:
        items: Yields dictionaries, a row each, or record batches, tables or frames; or a function that is given the
            position of the newest checkpoint, None before the first, and returns such an iterable behind it.
        schema: The columns of dictionaries: a pyarrow schema, or names with types, such as ``{"id": "int64"}``.
        position: Where the input stands behind an item of a function's iterable: any JSON value. Other iterables are
            counted, and a run after a crash passes over the items that count; each run has to yield the same ones.
        rows_at_once: So many dictionaries are handed on together, as one record batch.

    Raises:
        ConfigError: An argument cannot be used.
    """

    def __init__(
        self,
        items: Iterable[Any] | Callable[[JsonValue], Iterable[Any]],
        *,
        schema: pa.Schema | Mapping[str, object] | None = None,
        position: Callable[[Any], JsonValue] | None = None,
        rows_at_once: int = 10_000,
    ) -> None:
        if position is not None and not callable(position):
            raise ConfigError(
                f"IterableSource: position={position!r} is no function",
                hint="Write position=lambda item: item['offset'].",
            )
        if callable(items) and position is None:
            raise ConfigError(
                "IterableSource: items is a function, and nothing says where the input stands behind an item",
                hint="Write position=lambda item: item['offset'].",
            )
        if type(rows_at_once) is not int or rows_at_once < 1:
            raise ConfigError(
                f"IterableSource: rows_at_once={rows_at_once!r} is no number from 1 on",
                hint="Write rows_at_once=10_000.",
            )
        if not callable(items) and (not hasattr(items, "__iter__") or isinstance(items, str | bytes | dict)):
            raise ConfigError(
                f"IterableSource: items={items!r:.200} is no iterable of rows, and no function that returns one",
                hint="Write pf.IterableSource([{'id': 1}], schema={'id': 'int64'}).",
            )
        if position is not None and not callable(items):
            raise ConfigError(
                "IterableSource: there is a position=, and items is no function that begins behind one",
                hint="Leave position= out, so that items are counted; or pass a function: "
                "pf.IterableSource(lambda position: ITEMS, position=FUNCTION)",
            )
        self._items = items
        self._schema = schema_of(schema)
        self._position = position
        self._rows_at_once = rows_at_once
        self._is_used_up = False

    def open(self, position: JsonValue, job: str, dead_letters: DeadLetters | None) -> IterableReader:
        """Begin behind a position; raises CheckpointMismatch if the iterable yields fewer items, or others."""
        if dead_letters is not None:
            raise ConfigError(
                f"{job}: an IterableSource has no dead letters",
                hint="Leave dead_letters= out: job.source(SOURCE)",
            )
        if callable(self._items):
            return self._reader(iter(self._items(position)), position)
        items = iter(self._items)
        if self._is_used_up:
            raise CheckpointMismatch(
                f"{job}: items is a {type(self._items).__name__}, which can be gone through once",
                hint="Pass a list, or a function: pf.IterableSource(lambda position: ITEMS, position=FUNCTION)",
            )
        self._is_used_up = items is self._items
        done = count_in(position)
        if done is None:
            raise CheckpointMismatch(
                f"{job}: the newest checkpoint stands at {position!r:.200}, which is no number of items",
                hint="It is that of another source. Take another uid=NAME, or the source that it was taken with.",
            )
        passed, last = 0, None
        for item in islice(items, done):
            passed, last = passed + 1, item
        if passed < done or (done and counted(done, last) != position):
            what = f"has {passed} items, and {done} were read before"
            raise CheckpointMismatch(
                f"{job}: the iterable "
                + (what if passed < done else f"yields another item {done} than the one that was read before"),
                hint="Let it yield the same items as before, from the first on, or take another uid=NAME.",
            )
        return self._reader(items, position)

    def _reader(self, items: Iterator[Any], position: JsonValue) -> IterableReader:
        return IterableReader(items, position, self._position, self._schema, rows_at_once=self._rows_at_once)


_END = object()


class IterableReader:
    """An iterable that is read.

    Args:
        items: Behind the position.
        position: Where it stands.
        position_of: Where the input stands behind an item; None counts.
        schema: Of dictionaries.
        rows_at_once: So many dictionaries are handed on together.
    """

    def __init__(
        self,
        items: Iterator[Any],
        position: JsonValue,
        position_of: Callable[[Any], JsonValue] | None,
        schema: pa.Schema | None,
        *,
        rows_at_once: int,
    ) -> None:
        self._items = items
        self._position_of = position_of
        self._schema = schema
        self._rows_at_once = rows_at_once
        self._waits: list[Any] = []
        self._count = count_in(position) or 0
        self._last: Any = _END
        self._position = position
        self.is_ended = False
        self.lag: dict[str, int] = {}

    @property
    def position(self) -> JsonValue:
        """Behind the last item that was handed on."""
        if self._last is not _END:
            self._position, self._last = counted(self._count, self._last), _END
        return self._position

    def read(self, timeout_s: float) -> Any | None:
        """The next dictionaries together, or the next item of another kind; one item may take longer than asked for."""
        rows: list[dict[str, object]] = []
        ends_s = time.monotonic() + timeout_s
        while len(rows) < self._rows_at_once and not (rows and time.monotonic() > ends_s):
            item = self._waits.pop() if self._waits else next(self._items, _END)
            if item is _END:
                self.is_ended = True
                break
            if item is None:
                raise ConfigError(
                    "IterableSource: an item is None", hint="Leave such items out, for instance by filter(None, ITEMS)."
                )
            if not isinstance(item, dict):
                if rows:
                    self._waits.append(item)
                    break
                self._pass(item)
                return item
            # The program may use one dictionary again and again.
            rows.append(dict(item))
            self._pass(item)
        return self._batch(rows) if rows else None

    def _pass(self, item: Any) -> None:
        if self._position_of is not None:
            # The program may change it with its next item.
            self._position = kept_position(self._position_of(item))
        else:
            self._count += 1
            self._last = dict(item) if isinstance(item, dict) else item

    def _batch(self, rows: list[dict[str, object]]) -> pa.RecordBatch:
        try:
            return next(batches_of(rows, self._schema))
        except ConfigError as error:
            error.message = f"IterableSource: {error.message}"
            error.hint = error.hint.replace("local(schema", "IterableSource(ROWS, schema")
            raise

    def confirm(self, position: JsonValue) -> None:
        """Nothing depends on it."""

    def close(self) -> None:
        """End a generator."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
