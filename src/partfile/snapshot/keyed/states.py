"""The five kinds of keyed state, each of the current key and namespace, whatever the backend that holds its rows.

Source: Flink's ``ValueState``, ``ListState``, ``MapState``, ``ReducingState`` and ``AggregatingState``, and the classes
around them that make values expire (``TtlValueState`` and the others), as of 1.20.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from partfile.errors import ConfigError, PartfileError, UnencodableState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from partfile.snapshot.keyed.descriptors import AggregatingStateDescriptor
    from partfile.snapshot.keyed.keys import Key, KeyCodec
    from partfile.snapshot.keyed.ttl import Ttl
    from partfile.snapshot.state_file import CodecInfo


Value = TypeVar("Value")
Element = TypeVar("Element")
Added = TypeVar("Added")
Accumulator = TypeVar("Accumulator")
Result = TypeVar("Result")
ENTRIES_AT_ONCE = 256
"""Accesses are paid for together once they are worth so many entries."""
Cell = Any
"""What a row holds: a value, or a value with its time in front where the state has a time to live."""


class KeyBatch:
    """Many keys whose places in the tables are found once, for every state that is asked about them.

    Args:
        context: Of the backend that has found them.
        slots: The key group of each, counted from the backend's first.
        rows: The row of each.
    """

    __slots__ = ("context", "rows", "slots")

    def __init__(self, context: KeyContext, slots: list[int], rows: list[bytes]) -> None:
        self.context = context
        self.slots = slots
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)


class KeyContext:
    """What the states of one backend share: the current key, and the time that values are stamped with."""

    __slots__ = ("charged", "first_group", "frozen", "is_closed", "knows_time", "now_ms", "row", "slot", "version")

    NO_KEY = 1 << 40
    """A slot that no table has, so that an access without a key fails where it looks for its table."""

    def __init__(self, first_group: int) -> None:
        self.first_group = first_group
        self.slot = self.NO_KEY
        """The current key group, counted from the first."""
        self.row = b""
        """The current key with its head, and the head of an empty namespace."""
        self.now_ms = 0
        """The present, in milliseconds since 1970."""
        self.knows_time = False
        """Whether it was told the present."""
        self.version = 0
        """The number of snapshots that were taken."""
        self.frozen = 0
        """The newest of those that are still being written: what is older than it must not be changed."""
        self.charged: list[Expiry] = []
        """Of the states for which the choice of a key counts as an access."""
        self.is_closed = False

    def close(self) -> None:
        """Have every access to a state refused from now on: no key is current, and none may become it."""
        self.is_closed = True
        self.slot = self.NO_KEY

    def check_open(self) -> None:
        """Refuse a call to a backend that is closed.

        Raises:
            ConfigError: It is.
        """
        if self.is_closed:
            raise closed()

    def no_key(self) -> ConfigError:
        """The error of an access without a key: none was chosen, or the backend is closed."""
        if self.is_closed:
            return closed()
        return ConfigError("keyed state was asked for without a key", hint="Call set_current_key(KEY) first.")

    def begin(self, keys: KeyBatch) -> None:
        """Refuse what are no places of this backend, have no key current any more, and count the choice of each.

        Raises:
            ConfigError: They are not those of this backend, or it is closed.
        """
        self.check_open()
        given: object = keys
        if not isinstance(given, KeyBatch):
            raise ConfigError(
                f"what is of the type {type(given).__name__} is no batch of keys",
                hint="Find their places first: keys = backend.key_batch(COLUMN)",
            )
        if keys.context is not self:
            raise ConfigError(
                "the places of these keys are those of another backend",
                hint="Find them with the backend of the state: backend.key_batch(KEYS)",
            )
        self.slot = self.NO_KEY
        if self.knows_time:
            for expiry in self.charged:
                for _ in keys.rows:
                    expiry.count()

    def read_each(self, keys: KeyBatch, read: Callable[[], Result]) -> list[Result]:
        """What is read of each of many keys, which is made the current one for it. None is current afterwards."""
        self.begin(keys)
        try:
            return [read() for self.slot, self.row in zip(keys.slots, keys.rows, strict=True)]
        finally:
            self.slot = self.NO_KEY

    def with_each(self, keys: KeyBatch, values: Iterable[Added], act: Callable[[Added], Result]) -> list[Result]:
        """What comes of an act with each of many keys and one value for it; likewise.

        Raises:
            ConfigError: There are more keys than values, or fewer, or the backend is closed; nothing was done.
        """
        self.begin(keys)
        given = self.one_for_each(keys, values)
        try:
            return [act(one) for self.slot, self.row, one in zip(keys.slots, keys.rows, given, strict=True)]
        finally:
            self.slot = self.NO_KEY

    @staticmethod
    def one_for_each(keys: KeyBatch, values: Iterable[Added]) -> Sequence[Added]:
        """The values of many keys, one for each; those of an Arrow column as Python has them.

        Raises:
            ConfigError: There are more or fewer, or none can be taken from it.
        """
        if isinstance(values, str | bytes | set | frozenset | dict):
            raise ConfigError(
                f"values={values!r:.50} is a {type(values).__name__}, and not one value for each key, in their order",
                hint="Give a list, or a column of Arrow: values=[...]",
            )
        as_python = getattr(values, "to_pylist", None)
        try:
            given = values if isinstance(values, list | tuple) else list(values if as_python is None else as_python())
        except TypeError as error:
            raise ConfigError(
                f"values={values!r:.50} is no list of values", hint="Give one value for each key of key_batch()."
            ) from error
        if len(given) != len(keys):
            raise ConfigError(
                f"there are {len(keys)} keys and {len(given)} values",
                hint="Give one value for each key of key_batch().",
            )
        return given


def closed() -> ConfigError:
    """The error of a call to a backend that is closed."""
    return ConfigError(
        "the keyed state is closed", hint="Make another one of a checkpoint: restored=[one.file for one in files]"
    )


class Rows(Protocol):
    """The rows of one state, of which the current key and namespace have at most one."""

    name: str
    context: KeyContext
    codec: CodecInfo
    """Of the values."""
    own: Callable[[Any], Any]
    """Makes a value of what a user gives that no later change reaches, and that a snapshot can hold.

    Raises:
        UnencodableState: The codec has no form for it.
    """
    copy: Callable[[Any], Any]
    """Makes a value for the user of what the rows hold."""
    shares: bool
    """Whether a user may have the values that rows give out, because they cannot change or are new."""

    def set_namespace(self, namespace: Key) -> None:
        """Make a namespace the current one.

        Raises:
            ConfigError: The state has none, or the namespace is of another kind.
        """

    def clear(self) -> None:
        """Remove what the current key has."""

    def pay(self, entries: int) -> None:
        """Pay for so many entries to be looked through for values that have expired."""


class CellRows(Rows, Protocol):
    """Rows that hold one value."""

    def get(self) -> Cell | None:
        """The value; None if there is none."""

    def put(self, cell: Cell) -> None:
        """Set the value, which ``own`` has made."""

    def get_each(self, keys: KeyBatch) -> list[Cell | None]:
        """The values of many keys, in their order; whatever the current key is."""

    def put_each(self, keys: KeyBatch, cells: Sequence[Cell]) -> None:
        """Set the values of many keys, one after the other; None removes one."""


class ListRows(Rows, Protocol):
    """Rows that hold elements in order."""

    def elements(self) -> list[Cell]:
        """The elements, in a list of the caller's own."""

    def append(self, cells: list[Cell]) -> None:
        """Append elements, which ``own`` has made."""

    def replace(self, cells: list[Cell]) -> None:
        """Replace all elements by others, at least one, which ``own`` has made."""


class MapRows(Rows, Protocol):
    """Rows that hold values by a second key, which is given as bytes."""

    def get(self, key: bytes) -> Cell | None:
        """The value of a key; None if there is none."""

    def put(self, key: bytes, cell: Cell) -> None:
        """Set the value of a key, which ``own`` has made."""

    def remove(self, key: bytes) -> None:
        """Remove a key; one that is absent counts as removed."""

    def items(self) -> list[tuple[bytes, Cell]]:
        """All keys with their values, in no order."""


class KeyedState:
    """What all kinds have in common.

    Args:
        rows: The rows of the state.
    """

    def __init__(self, rows: Rows) -> None:
        self._all_rows = rows
        self._context = rows.context
        self._own = rows.own
        self._copy = rows.copy
        self._shares = rows.shares
        self.name = rows.name
        """The name of the state."""

    def set_namespace(self, namespace: Key) -> None:
        """Make a namespace the current one of this state.

        Raises:
            ConfigError: The state has no namespaces, or this one is of another kind.
        """
        self._all_rows.set_namespace(namespace)

    def clear(self) -> None:
        """Remove what the current key has in the current namespace."""
        self._all_rows.clear()

    def _owned(self, value: Any, what: str) -> Any:
        """A value as the rows may keep it; ``what`` it is, for the message."""
        if value is None:
            raise ConfigError(
                f"{what} of the state {self.name!r} is None",
                hint="None stands for what is absent. Leave it out; an entry of a map is removed by remove(KEY)",
            )
        try:
            return self._own(value)
        except UnencodableState as error:
            raise self._refused(error) from error

    def _applied(self, function: Callable[..., Result], *values: Any) -> Result:
        """What a function of the program makes of values, of the current key.

        Raises:
            ConfigError: It has chosen another key, which would be given the result.
        """
        context = self._context
        place = context.slot, context.row
        result = function(*values)
        if (context.slot, context.row) != place:
            raise ConfigError(
                f"the function of the state {self.name!r} has chosen another key; nothing was set",
                hint="Choose it before the value is added: backend.set_current_key(KEY)",
            )
        return result

    def _given(self, value: Any) -> Any:
        """A held value as the user may have it."""
        return value if self._shares or value is None else self._copy(value)

    def _refused(self, error: UnencodableState) -> PartfileError:
        context, codec = self._context, self._all_rows.codec
        if context.slot == context.NO_KEY:
            return context.no_key()
        place = f"state {self.name!r}, key group {context.first_group + context.slot}, codec {codec.name!r}"
        return UnencodableState(f"{place}: {error.message}", hint=error.hint)


class ValueState(KeyedState, Generic[Value]):
    """One value a key."""

    def __init__(self, rows: CellRows) -> None:
        super().__init__(rows)
        self._rows = rows

    def value(self) -> Value | None:
        """The value of the current key; None if it has none."""
        value: Value | None = self._rows.get()
        return value if self._shares or value is None else self._copy(value)

    def update(self, value: Value | None) -> None:
        """Set the value of the current key; None removes it.

        Raises:
            UnencodableState: The codec has no form for it.
        """
        if value is None:
            self._rows.clear()
            return
        # Written out here and in the state with a time to live: these are the calls of which there are millions.
        try:
            held = self._own(value)
        except UnencodableState as error:
            raise self._refused(error) from error
        self._rows.put(held)

    def value_batch(self, keys: KeyBatch) -> list[Value | None]:
        """The values of many keys, in their order. None of them is the current key afterwards."""
        context = self._context
        context.begin(keys)
        cells: list[Value | None] = self._rows.get_each(keys)
        if self._shares:
            return cells
        try:
            return [self._given(cell) for context.slot, cell in zip(keys.slots, cells, strict=True)]
        finally:
            context.slot = context.NO_KEY

    def update_batch(self, keys: KeyBatch, values: Iterable[Value | None]) -> None:
        """Set the values of many keys; of a key that comes twice the last one counts. None removes one.

        Raises:
            ConfigError: There are more values than keys, or fewer, or no namespace is current; nothing was set.
            UnencodableState: The codec has no form for one; nothing was set.
            StoreError: RocksDB failed; some may be set.
        """
        context = self._context
        context.begin(keys)
        given = context.one_for_each(keys, values)
        own = self._own
        try:
            held = [
                None if value is None else own(value) for context.slot, value in zip(keys.slots, given, strict=True)
            ]
        except UnencodableState as error:
            raise self._refused(error) from error
        finally:
            context.slot = context.NO_KEY
        self._put_each(keys, held)

    def _put_each(self, keys: KeyBatch, held: Sequence[Value | None]) -> None:
        self._rows.put_each(keys, held)


class ListState(KeyedState, Generic[Element]):
    """Elements in order. ``None`` is no element."""

    def __init__(self, rows: ListRows) -> None:
        super().__init__(rows)
        self._rows = rows

    def get(self) -> tuple[Element, ...]:
        """The elements of the current key."""
        return tuple(map(self._given, self._rows.elements()))

    def add(self, element: Element) -> None:
        """Append an element.

        Raises:
            ConfigError: It is None.
            UnencodableState: The codec has no form for it.
        """
        self.add_all((element,))

    def add_all(self, elements: Iterable[Element]) -> None:
        """Append elements in order, or none of them; raises as ``add``."""
        if cells := self._cells(elements):
            self._rows.append(cells)

    def update(self, elements: Iterable[Element]) -> None:
        """Replace all elements; none of them removes the list. Raises as ``add``; nothing was replaced then."""
        if cells := self._cells(elements):
            self._rows.replace(cells)
        else:
            self._rows.clear()

    def get_batch(self, keys: KeyBatch) -> list[tuple[Element, ...]]:
        """The elements of many keys, in their order. None of them is the current key afterwards."""
        return self._context.read_each(keys, self.get)

    def add_batch(self, keys: KeyBatch, elements: Iterable[Element]) -> None:
        """Append one element to the list of each of many keys; raises as ``add``, and those before it are added."""
        self._context.with_each(keys, elements, self.add)

    def _cells(self, elements: Iterable[Element]) -> list[Cell]:
        if not isinstance(elements, Iterable):
            raise ConfigError(
                f"elements={elements!r:.50} of the state {self.name!r} are no list", hint="Write elements=[...]."
            )
        return [self._owned(one, "an element") for one in elements]


class MapState(KeyedState, Generic[Value]):
    """Values by a second key. ``None`` is no value.

    Args:
        rows: The rows of the state.
        key_codec: Of the second keys.
    """

    def __init__(self, rows: MapRows, key_codec: KeyCodec) -> None:
        super().__init__(rows)
        self._rows = rows
        self._keys = key_codec

    def get(self, key: Key) -> Value | None:
        """The value of a key; None if there is none.

        Raises:
            ConfigError: The key is of another kind.
        """
        return self._get(self._keys.encode(key))

    def put(self, key: Key, value: Value) -> None:
        """Set the value of a key.

        Raises:
            ConfigError: The key is of another kind, or the value is None.
            UnencodableState: The codec has no form for the value.
        """
        self._put(self._keys.encode(key), self._owned(value, "a value"))

    def put_all(self, pairs: Mapping[Key, Value]) -> None:
        """Set the values of several keys, one after the other; raises as ``put``, and if they are no mapping."""
        if not isinstance(pairs, Mapping):
            raise ConfigError(
                f"pairs={pairs!r:.50} of the state {self.name!r} are no mapping", hint="Write pairs={KEY: VALUE}."
            )
        for key, value in pairs.items():
            self.put(key, value)

    def remove(self, key: Key) -> None:
        """Remove a key; one that is absent counts as removed.

        Raises:
            ConfigError: The key is of another kind.
        """
        self._rows.remove(self._keys.encode(key))

    def contains(self, key: Key) -> bool:
        """Whether a key has a value.

        Raises:
            ConfigError: The key is of another kind.
        """
        return self.get(key) is not None

    def entries(self) -> tuple[tuple[Key, Value], ...]:
        """All keys with their values, in the order of the keys' bytes."""
        return tuple((self._keys.decode(key), value) for key, value in sorted(self._live(), key=lambda pair: pair[0]))

    def keys(self) -> tuple[Key, ...]:
        """All keys, in the order of their bytes."""
        return tuple(key for key, _ in self.entries())

    def values(self) -> tuple[Value, ...]:
        """All values, in the order of the keys' bytes."""
        return tuple(value for _, value in self.entries())

    def is_empty(self) -> bool:
        """Whether no key has a value."""
        return not self._live()

    def get_batch(self, keys: KeyBatch, map_keys: Iterable[Key]) -> list[Value | None]:
        """The value of one second key of each of many keys, in their order; none is the current key afterwards."""
        return self._context.with_each(keys, map_keys, self.get)

    def put_batch(self, keys: KeyBatch, map_keys: Iterable[Key], values: Iterable[Value]) -> None:
        """Set the value of one second key of each of many keys; raises as ``put``, and those before it are set.

        Raises:
            ConfigError: There are more second keys than values, or fewer; nothing was done.
        """
        seconds, given = list(map_keys), list(values)
        if len(seconds) != len(given):
            raise ConfigError(
                f"there are {len(seconds)} second keys and {len(given)} values",
                hint="Give one second key and one value for each key of key_batch().",
            )
        pairs = list(zip(seconds, given, strict=True))
        self._context.with_each(keys, pairs, lambda pair: self.put(*pair))

    def _get(self, key: bytes) -> Value | None:
        value: Value | None = self._given(self._rows.get(key))
        return value

    def _put(self, key: bytes, held: Value) -> None:
        self._rows.put(key, held)

    def _live(self) -> list[tuple[bytes, Value]]:
        return [(key, self._given(value)) for key, value in self._rows.items()]


class ReducingState(KeyedState, Generic[Value]):
    """One value a key, which a function makes of all that were added.

    Args:
        rows: The rows of the state.
        reduce: Makes one value of two.
    """

    def __init__(self, rows: CellRows, reduce: Callable[[Value, Value], Value]) -> None:
        super().__init__(rows)
        self._rows = rows
        self._reduce = reduce

    def get(self) -> Value | None:
        """What was made of all values; None if none was added."""
        value: Value | None = self._given(self._rows.get())
        return value

    def add(self, value: Value) -> None:
        """Add a value.

        Raises:
            ConfigError: It is None.
            UnencodableState: The codec has no form for the result; nothing was added.
        """
        held = self._given(self._rows.get())
        # What the function returns may be what it was given, so that it is checked and copied as a given value is.
        self._rows.put(
            self._owned(value if held is None or value is None else self._applied(self._reduce, held, value), "a value")
        )

    def get_batch(self, keys: KeyBatch) -> list[Value | None]:
        """What was made of the values of many keys, in their order. None is the current key afterwards."""
        return self._context.read_each(keys, self.get)

    def add_batch(self, keys: KeyBatch, values: Iterable[Value]) -> None:
        """Add one value to each of many keys; raises as ``add``, and those before it are added."""
        self._context.with_each(keys, values, self.add)


class AggregatingState(KeyedState, Generic[Added, Accumulator, Result]):
    """A result a key, of an accumulator to which values are added.

    Args:
        rows: The rows of the state, which hold the accumulators.
        functions: Has the functions that make an accumulator, add to it, and find the result.
    """

    def __init__(self, rows: CellRows, functions: AggregatingStateDescriptor[Added, Accumulator, Result]) -> None:
        super().__init__(rows)
        self._rows = rows
        self._functions = functions

    def get(self) -> Result | None:
        """The result; None if nothing was added."""
        held = self._accumulated()
        return None if held is None else self._functions.result(held)

    def add(self, value: Added) -> None:
        """Add a value.

        Raises:
            ConfigError: The function that adds it returns None.
            UnencodableState: The codec has no form for the accumulator; nothing was added.
        """
        held = self._current()
        held = self._functions.create() if held is None else held
        self._put(self._owned(self._applied(self._functions.add, held, value), "an accumulator"))

    def get_batch(self, keys: KeyBatch) -> list[Result | None]:
        """The results of many keys, in their order. None is the current key afterwards."""
        return self._context.read_each(keys, self.get)

    def add_batch(self, keys: KeyBatch, values: Iterable[Added]) -> None:
        """Add one value to each of many keys; raises as ``add``, and those before it are added."""
        self._context.with_each(keys, values, self.add)

    def _accumulated(self) -> Accumulator | None:
        """The accumulator to show."""
        held: Accumulator | None = self._given(self._rows.get())
        return held

    def _current(self) -> Accumulator | None:
        """The accumulator to add to."""
        return self._accumulated()

    def _put(self, held: Accumulator) -> None:
        self._rows.put(held)


class Expiry:
    """The rules by which the cells of one state expire; a cell is a pair of time and value.

    Args:
        rows: The rows of the state.
        ttl: How long its values live.
    """

    __slots__ = ("_accesses", "_entries", "_rows", "context", "duration_ms", "last_ms", "left", "prolongs", "returns")

    def __init__(self, rows: Rows, ttl: Ttl) -> None:
        self.context = rows.context
        self.duration_ms = ttl.duration_ms
        self.prolongs = ttl.refresh == "read"
        self.returns = ttl.returns_expired
        self._rows = rows
        self._entries = ttl.cleanup_entries
        self._accesses = max(1, ENTRIES_AT_ONCE // ttl.cleanup_entries) if ttl.cleanup_entries else 1 << 62
        self.left = self._accesses if self.context.knows_time else 1
        """So many accesses more, and they are paid for together; until the time is known, the next one is refused."""
        self.last_ms = self.context.now_ms - ttl.duration_ms
        """What was written at this instant or before has expired."""

    def advance(self) -> None:
        """Take over the present, which the backend was told."""
        self.last_ms = self.context.now_ms - self.duration_ms
        if not self.context.knows_time:
            self.left = self._accesses

    def pay(self) -> None:
        """Pay for the accesses since the last payment.

        Raises:
            ConfigError: The backend was not told the time, or is closed.
        """
        self.context.check_open()
        if not self.context.knows_time:
            self.left = 1
            raise ConfigError(
                f"state {self._rows.name!r} expires, and the backend does not know the time",
                hint="A snapshot does not hold it. Before the first access, after a restore as well: "
                "backend.advance_time(now_ms)",
            )
        self.left = self._accesses
        self._rows.pay(self._entries * self._accesses)

    def count(self) -> None:
        """Count an access, which is paid for together with others."""
        self.left -= 1
        if not self.left:
            self.pay()

    def live(self, rows: CellRows) -> Any:
        """The value of the current key; None if there is none, or it has expired. Nothing is removed or prolonged."""
        self.count()
        cell = rows.get()
        return None if cell is None or cell[0] <= self.last_ms else cell[1]

    def shown(self, rows: CellRows) -> Any:
        """The value of the current key, which is prolonged, or removed if it has expired; None if there is none."""
        self.count()
        cell = rows.get()
        return None if cell is None else self.seen(rows, cell)

    def seen(self, rows: CellRows, cell: Cell) -> Any:
        """The value of a cell of the current key that is read."""
        if cell[0] <= self.last_ms:
            rows.clear()
            return cell[1] if self.returns else None
        if self.prolongs:
            rows.put((self.context.now_ms, cell[1]))
        return cell[1]


class TtlValueState(ValueState[Value]):
    """One value a key, which expires."""

    def __init__(self, rows: CellRows, expiry: Expiry) -> None:
        super().__init__(rows)
        self._expiry = expiry

    def value(self) -> Value | None:
        """The value of the current key; None if it has none, or it has expired."""
        expiry = self._expiry
        expiry.left -= 1
        if not expiry.left:
            expiry.pay()
        cell = self._rows.get()
        if cell is None:
            return None
        value = cell[1] if cell[0] > expiry.last_ms and not expiry.prolongs else expiry.seen(self._rows, cell)
        return value if self._shares or value is None else self._copy(value)  # type: ignore[no-any-return]

    def update(self, value: Value | None) -> None:
        """Set the value of the current key, which lives from now on; None removes it.

        Raises:
            UnencodableState: The codec has no form for it.
        """
        expiry = self._expiry
        expiry.left -= 1
        if not expiry.left:
            expiry.pay()
        if value is None:
            self._rows.clear()
            return
        try:
            held = self._own(value)
        except UnencodableState as error:
            raise self._refused(error) from error
        self._rows.put((self._context.now_ms, held))

    def value_batch(self, keys: KeyBatch) -> list[Value | None]:
        """The values of many keys, in their order, each as ``value`` has it. None is the current key afterwards."""
        return self._context.read_each(keys, self.value)

    def _put_each(self, keys: KeyBatch, held: Sequence[Value | None]) -> None:
        for _ in held:
            self._expiry.count()
        now_ms = self._context.now_ms
        self._rows.put_each(keys, [None if value is None else (now_ms, value) for value in held])


class TtlListState(ListState[Element]):
    """Elements in order, each of which expires by itself."""

    def __init__(self, rows: ListRows, expiry: Expiry) -> None:
        super().__init__(rows)
        self._expiry = expiry

    def get(self) -> tuple[Element, ...]:
        """The elements of the current key that have not expired."""
        expiry = self._expiry
        expiry.count()
        cells = self._rows.elements()
        live = [cell for cell in cells if cell[0] > expiry.last_ms]
        if cells and not live:
            self._rows.clear()
        elif expiry.prolongs and live:
            self._rows.replace([(self._context.now_ms, value) for _, value in live])
        elif len(live) < len(cells):
            self._rows.replace(live)
        return tuple(self._given(value) for _, value in (cells if expiry.returns else live))

    def _cells(self, elements: Iterable[Element]) -> list[Cell]:
        self._expiry.count()
        return [(self._context.now_ms, held) for held in super()._cells(elements)]


class TtlMapState(MapState[Value]):
    """Values by a second key, each of which expires by itself."""

    def __init__(self, rows: MapRows, key_codec: KeyCodec, expiry: Expiry) -> None:
        super().__init__(rows, key_codec)
        self._expiry = expiry

    def is_empty(self) -> bool:
        """Whether no key has a value that has not expired; nothing is removed or prolonged."""
        self._expiry.count()
        return all(cell[0] <= self._expiry.last_ms for _, cell in self._rows.items())

    def _get(self, key: bytes) -> Value | None:
        self._expiry.count()
        cell = self._rows.get(key)
        return None if cell is None else self._seen(key, cell)

    def _put(self, key: bytes, held: Value) -> None:
        self._expiry.count()
        self._rows.put(key, (self._context.now_ms, held))

    def _live(self) -> list[tuple[bytes, Value]]:
        self._expiry.count()
        seen = [(key, self._seen(key, cell)) for key, cell in self._rows.items()]
        return [(key, value) for key, value in seen if value is not None]

    def _seen(self, key: bytes, cell: Cell) -> Value | None:
        expiry = self._expiry
        value: Value = self._given(cell[1])
        if cell[0] <= expiry.last_ms:
            self._rows.remove(key)
            return value if expiry.returns else None
        if expiry.prolongs:
            self._rows.put(key, (self._context.now_ms, cell[1]))
        return value


class TtlReducingState(ReducingState[Value]):
    """One value a key, made of all that were added, which expires as a whole."""

    def __init__(self, rows: CellRows, reduce: Callable[[Value, Value], Value], expiry: Expiry) -> None:
        super().__init__(rows, reduce)
        self._expiry = expiry

    def get(self) -> Value | None:
        """What was made of the values since the last ones that expired; None if there are none."""
        value: Value | None = self._given(self._expiry.shown(self._rows))
        return value

    def add(self, value: Value) -> None:
        """Add a value, from which the result lives anew; what has expired is left out. Raises as without expiry."""
        held = self._given(self._expiry.live(self._rows))
        owned = self._owned(
            value if held is None or value is None else self._applied(self._reduce, held, value), "a value"
        )
        self._rows.put((self._context.now_ms, owned))


class TtlAggregatingState(AggregatingState[Added, Accumulator, Result]):
    """A result a key, of an accumulator that expires as a whole."""

    def __init__(
        self, rows: CellRows, functions: AggregatingStateDescriptor[Added, Accumulator, Result], expiry: Expiry
    ) -> None:
        super().__init__(rows, functions)
        self._expiry = expiry

    def _accumulated(self) -> Accumulator | None:
        held: Accumulator | None = self._given(self._expiry.shown(self._rows))
        return held

    def _current(self) -> Accumulator | None:
        held: Accumulator | None = self._given(self._expiry.live(self._rows))
        return held

    def _put(self, held: Accumulator) -> None:
        self._rows.put((self._context.now_ms, held))
