"""State of an operator that no key divides: lists that are split or united at a restore, and broadcast maps."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from partfile.errors import ConfigError, RecoveryRefused, SnapshotCorrupt, SnapshotVersionError, UnencodableState
from partfile.snapshot.state_file import (
    NamedState,
    StateMetaInfo,
    check_codec,
    decode_json,
    encode_json,
    encode_states,
)
from partfile.snapshot.streams import Scope

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from partfile.snapshot.documents import OperatorState, StateHandle
    from partfile.snapshot.state_file import Codec, Mode, States
    from partfile.snapshot.streams import CheckpointStreamFactory


Element = TypeVar("Element")
Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class ListStateDescriptor(Generic[Element]):
    """Names a list state and the codec of its elements."""

    name: str
    codec: Codec[Element]

    def __post_init__(self) -> None:
        check_codec(self.codec, f"list state {self.name!r}")

    def info(self, mode: Mode) -> StateMetaInfo:
        """Its description in a snapshot."""
        return StateMetaInfo(name=self.name, type="OPERATOR", mode=mode, codecs={"element": self.codec.info})


@dataclass(frozen=True, slots=True)
class BroadcastStateDescriptor(Generic[Key, Value]):
    """Names a broadcast map and the codecs of its keys, which are hashable, and of its values."""

    name: str
    key_codec: Codec[Key]
    value_codec: Codec[Value]

    def __post_init__(self) -> None:
        check_codec(self.key_codec, f"broadcast state {self.name!r}", "key_codec")
        check_codec(self.value_codec, f"broadcast state {self.name!r}", "value_codec")

    @property
    def info(self) -> StateMetaInfo:
        """Its description in a snapshot."""
        codecs = {"key": self.key_codec.info, "value": self.value_codec.info}
        return StateMetaInfo(name=self.name, type="BROADCAST", mode="broadcast", codecs=codecs)


class ListState(Generic[Element]):
    """Elements in order. ``None`` is no element."""

    def __init__(self, info: StateMetaInfo, codec: Codec[Element], elements: Iterable[Element] = ()) -> None:
        self.info = info
        self.codec = codec
        self._elements = list(elements)

    def get(self) -> tuple[Element, ...]:
        """The elements; they are the state's own, so changing one changes the state."""
        return tuple(self._elements)

    def add(self, element: Element) -> None:
        """Append an element.

        Raises:
            ConfigError: It is None.
        """
        self.add_all((element,))

    def add_all(self, elements: Iterable[Element]) -> None:
        """Append elements in order, or none of them.

        Raises:
            ConfigError: One of them is None.
        """
        self._elements += self._checked(elements)

    def update(self, elements: Iterable[Element]) -> None:
        """Replace all elements.

        Raises:
            ConfigError: One of them is None; nothing was replaced.
        """
        self._elements = self._checked(elements)

    def clear(self) -> None:
        """Remove all elements."""
        self._elements = []

    def _checked(self, elements: Iterable[Element]) -> list[Element]:
        checked = list(elements)
        if any(element is None for element in checked):
            raise ConfigError(f"an element of the list state {self.info.name!r} is None")
        return checked


class BroadcastState(Generic[Key, Value]):
    """A map that every subtask holds alike."""

    def __init__(self, descriptor: BroadcastStateDescriptor[Key, Value], pairs: Mapping[Key, Value]) -> None:
        self.info = descriptor.info
        self.descriptor = descriptor
        self._pairs = dict(pairs)

    def get(self, key: Key) -> Value | None:
        """The value of a key, None if there is none."""
        return self._pairs.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Set the value of a key."""
        self._pairs[key] = value

    def put_all(self, pairs: Mapping[Key, Value]) -> None:
        """Set the values of several keys."""
        self._pairs.update(pairs)

    def remove(self, key: Key) -> None:
        """Remove a key; one that is absent counts as removed."""
        self._pairs.pop(key, None)

    def contains(self, key: Key) -> bool:
        """Whether a key has a value."""
        return key in self._pairs

    def entries(self) -> tuple[tuple[Key, Value], ...]:
        """Keys with their values, in the order in which they were first put."""
        return tuple(self._pairs.items())

    def keys(self) -> tuple[Key, ...]:
        """The keys."""
        return tuple(self._pairs)

    def values(self) -> tuple[Value, ...]:
        """The values."""
        return tuple(self._pairs.values())

    def clear(self) -> None:
        """Remove everything."""
        self._pairs = {}


class OperatorStateStore:
    """The states of one subtask of an operator, by name. Source: Flink's ``OperatorStateBackend``, as of 1.20.

    Only lists and maps are offered, because nothing else can be distributed anew without a key. What was restored is
    decoded when its state is registered; a state that is not registered is carried on into the next snapshot.

    Args:
        restored: This subtask's share of the states of a snapshot.
    """

    def __init__(self, restored: States | None = None) -> None:
        self._restored = dict(restored or {})
        self._registered: dict[str, ListState[Any] | BroadcastState[Any, Any]] = {}

    def list_state(self, descriptor: ListStateDescriptor[Element]) -> ListState[Element]:
        """The list of this name, whose elements are split over the subtasks when their number changes.

        Raises:
            ConfigError: The name is registered, or was snapshotted, with another mode or codec.
            SnapshotVersionError: The snapshot was written with another version of the codec.
            SnapshotCorrupt: What was restored cannot be decoded.
        """
        return self._list(descriptor, "split")

    def union_list_state(self, descriptor: ListStateDescriptor[Element]) -> ListState[Element]:
        """The list of this name, of which every subtask gets all elements at a restore; raises as ``list_state``."""
        return self._list(descriptor, "union")

    def broadcast_state(self, descriptor: BroadcastStateDescriptor[Key, Value]) -> BroadcastState[Key, Value]:
        """The map of this name, of which every subtask gets a copy at a restore; raises as ``list_state``."""
        registered = self._known(descriptor.info)
        if isinstance(registered, BroadcastState):
            return registered
        restored = self._restored_as(descriptor.info)
        state = BroadcastState(descriptor, _decode_map(descriptor, restored.elements) if restored else {})
        self._register(state)
        return state

    @property
    def registered(self) -> tuple[ListState[Any] | BroadcastState[Any, Any], ...]:
        """The registered states, in the order of their registration."""
        return tuple(self._registered.values())

    @property
    def carried(self) -> tuple[NamedState, ...]:
        """The restored states that are not registered."""
        return tuple(self._restored.values())

    def _list(self, descriptor: ListStateDescriptor[Element], mode: Mode) -> ListState[Element]:
        info = descriptor.info(mode)
        registered = self._known(info)
        if isinstance(registered, ListState):
            return registered
        restored = self._restored_as(info)
        elements = [descriptor.codec.decode(element) for element in restored.elements] if restored else ()
        state = ListState(info, descriptor.codec, elements)
        self._register(state)
        return state

    def _known(self, info: StateMetaInfo) -> ListState[Any] | BroadcastState[Any, Any] | None:
        registered = self._registered.get(info.name)
        if registered is not None:
            check_same_state(registered.info, info, "registered")
        return registered

    def _restored_as(self, info: StateMetaInfo) -> NamedState | None:
        restored = self._restored.get(info.name)
        if restored is not None:
            check_same_state(restored.info, info, "in the snapshot")
        return restored

    def _register(self, state: ListState[Any] | BroadcastState[Any, Any]) -> None:
        self._registered[state.info.name] = state
        self._restored.pop(state.info.name, None)


def write_operator_state(states: OperatorStateStore, streams: CheckpointStreamFactory) -> StateHandle | None:
    """Encode and write the states in the caller's thread; return what the checkpoint names, None if there is no state.

    Durability: a file is durable before its handle exists. Idempotence: none; each call writes a new file, and one that
    no checkpoint comes to name is deleted together with the directory.

    Args:
        states: The live states.
        streams: Where it goes.

    Raises:
        UnencodableState: A codec has no form for a value; nothing was written.
        StateTooLarge: The storage does not take that much; nothing was written.
    """
    encoded = [*map(_encoded, states.registered), *((state.info, state.elements) for state in states.carried)]
    return streams.keep(encode_states(encoded), Scope.EXCLUSIVE) if encoded else None


def _encoded(state: ListState[Any] | BroadcastState[Any, Any]) -> tuple[StateMetaInfo, Sequence[bytes]]:
    if isinstance(state, ListState):
        return state.info, [encode_element(state.info.name, state.codec, element) for element in state.get()]
    return state.info, [encode_map(state.descriptor, state.entries())]


def check_same_state(known: StateMetaInfo, asked: StateMetaInfo, where: str) -> None:
    """Refuse a name that stands for another kind of state already.

    Raises:
        ConfigError: Mode or codec is another one.
        SnapshotVersionError: The codec is the same, in another version.
    """
    if known.mode != asked.mode:
        raise ConfigError(
            f"state {asked.name!r} is {where} as {known.mode} and asked for as {asked.mode}",
            hint="A name keeps its mode; use another one: name=NAME",
        )
    for part, codec in asked.codecs.items():
        found = known.codecs.get(part)
        if found is None or found.name != codec.name:
            raise ConfigError(
                f"state {asked.name!r} is {where} with the {part} codec {found and found.name}, not {codec.name}",
                hint="A name keeps its codecs; use another one: name=NAME",
            )
        if found.version != codec.version:
            raise SnapshotVersionError(
                f"state {asked.name!r} is {where} with version {found.version} of the codec {codec.name}; "
                f"this program has version {codec.version}",
                hint="Restore it with the program that wrote it, or give the state another name: name=NAME",
            )


def encode_element(state: str, codec: Codec[Element], element: Element) -> bytes:
    """An element of a state, encoded.

    Raises:
        UnencodableState: The codec has no form for it; the error names both.
    """
    try:
        return codec.encode(element)
    except UnencodableState as error:
        message = f"state {state!r}, codec {codec.info.name!r}: {error.message}"
        raise UnencodableState(message, hint=error.hint) from error


def encode_map(descriptor: BroadcastStateDescriptor[Key, Value], pairs: Iterable[tuple[Key, Value]]) -> bytes:
    """A broadcast map as its one element: a JSON list of ``[key, value]`` pairs.

    Raises:
        UnencodableState: A codec has no form for a key or a value.
    """
    keys = partial(encode_element, descriptor.name, descriptor.key_codec)
    values = partial(encode_element, descriptor.name, descriptor.value_codec)
    return b"[%b]" % b",".join(b"[%b,%b]" % (keys(key), values(value)) for key, value in pairs)


def _decode_map(descriptor: BroadcastStateDescriptor[Key, Value], elements: tuple[bytes, ...]) -> dict[Key, Value]:
    pairs: dict[Key, Value] = {}
    try:
        for element in elements:
            for key, value in _pairs(element):
                decoded = descriptor.key_codec.decode(encode_json(key))
                pairs[decoded] = descriptor.value_codec.decode(encode_json(value))
    except (TypeError, ValueError) as error:
        raise SnapshotCorrupt(f"the broadcast state {descriptor.name!r} is not a list of pairs: {error}") from error
    return pairs


def _pairs(element: bytes) -> list[tuple[Any, Any]]:
    decoded = decode_json(element)
    if not isinstance(decoded, list):
        raise TypeError("it is not a list")
    found = []
    for pair in decoded:
        if not isinstance(pair, list) or len(pair) != 2:  # noqa: PLR2004 - a key and a value.
            raise TypeError("one of its elements is not a pair")
        found.append((pair[0], pair[1]))
    return found


def redistribute(old: Sequence[States], parallelism: int) -> list[States]:
    """Redistribute states over ``parallelism`` subtasks.

    Split: unchanged if the number is, else contiguous runs, in the order of the old subtasks, whose lengths differ by
    one at most; the longer runs of the next state begin where those of the last one ended. Union: every subtask gets
    all. Broadcast: new subtask i gets the copy of i modulo the number of old subtasks that have one.

    Args:
        old: The states of the old subtasks, by index.
        parallelism: The number of new subtasks, at least 1.

    Returns:
        The states of the new subtasks, by index. A state without elements is left out. Elements are moved as bytes.

    Raises:
        ValueError: A state is of one kind in one subtask and of another in another, or is keyed.
    """
    new: list[States] = [{} for _ in range(parallelism)]
    start = 0
    for name, info in _infos(old).items():
        elements = _elements(old, name)
        if info.mode == "union":
            shares = [elements] * parallelism
        elif info.mode == "broadcast":
            copies = [states[name].elements for states in old if name in states]
            shares = [copies[subtask % len(copies)] for subtask in range(parallelism)]
        elif parallelism == len(old):
            shares = [states[name].elements if name in states else () for states in old]
        else:
            shares, start = assign(elements, parallelism, start)
        for states, share in zip(new, shares, strict=True):
            if share:
                states[name] = NamedState(info, share)
    return new


def _infos(old: Sequence[States]) -> dict[str, StateMetaInfo]:
    infos: dict[str, StateMetaInfo] = {}
    for states in old:
        for name, state in states.items():
            known = infos.setdefault(name, state.info)
            if known.mode != state.mode:
                raise ValueError(f"state {name!r} is {known.mode} in one subtask and {state.mode} in another")
            if known != state.info:
                raise ValueError(f"state {name!r} has the codecs {known.codecs} here and {state.info.codecs} there")
            if state.mode == "key-groups":
                raise ValueError(f"state {name!r} is keyed; it is distributed by key groups")
    return infos


def _elements(old: Sequence[States], name: str) -> tuple[bytes, ...]:
    return tuple(element for states in old if name in states for element in states[name].elements)


def assign(elements: Sequence[Element], parallelism: int, start: int = 0) -> tuple[list[tuple[Element, ...]], int]:
    """Cut ``elements`` into contiguous runs, one a subtask, whose lengths differ by one at most.

    Args:
        elements: In order.
        parallelism: The number of subtasks, at least 1.
        start: The subtask that gets the first run; the longer runs come first.

    Returns:
        The shares by subtask, and where the next state should start so that the longer runs spread.
    """
    base, odd = divmod(len(elements), parallelism)
    shares: list[tuple[Element, ...]] = [()] * parallelism
    begin = 0
    for turn in range(parallelism):
        end = begin + base + (turn < odd)
        shares[(start + turn) % parallelism] = tuple(elements[begin:end])
        begin = end
    return shares, (start + odd) % parallelism


def restored_operators(snapshot: Mapping[str, OperatorState], registered: Collection[str]) -> dict[str, OperatorState]:
    """The states that the operators of a job begin with; one that the snapshot does not know begins with none.

    Args:
        snapshot: The states by operator id.
        registered: The ids of the job's operators.

    Raises:
        RecoveryRefused: The snapshot holds state of operators that the job does not have.
    """
    left = sorted(name for name, state in snapshot.items() if name not in registered and not is_empty(state))
    if left:
        raise RecoveryRefused(
            f"the snapshot holds state of {', '.join(map(repr, left))}, which this job does not have",
            hint="It is of another job, which can restore it. Name a savepoint of this sink: restore_from=SAVEPOINT",
        )
    return {name: state for name, state in snapshot.items() if name in registered}


def is_empty(state: OperatorState) -> bool:
    """Whether an operator has no state at all."""
    return state.coordinator is None and not state.subtasks
