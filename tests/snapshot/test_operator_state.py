"""Operator state: its snapshot, its redistribution, and what a restore gives back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partfile.errors import (
    ConfigError,
    RecoveryRefused,
    SnapshotCancelled,
    SnapshotCorrupt,
    SnapshotVersionError,
    StateTooLarge,
)
from partfile.snapshot.documents import FileHandle, OperatorState
from partfile.snapshot.operator_state import (
    BroadcastStateDescriptor,
    ListStateDescriptor,
    OperatorStateStore,
    redistribute,
    restored_operators,
    write_operator_state,
)
from partfile.snapshot.state_file import (
    CodecInfo,
    JsonCodec,
    Mode,
    ModelCodec,
    NamedState,
    StateMetaInfo,
    decode_states,
)
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import (
    EMPTY,
    CloseableRegistry,
    OperatorStateStrategy,
    SnapshotOptions,
    encode_resources,
)
from partfile.snapshot.streams import MemoryStreamFactory, Scope
from partfile.stores.base import Persisted
from partfile.stores.local.store import LocalStore

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import JsonValue

    from partfile.snapshot.state_file import States


# Operator state: lists and broadcast maps, their snapshot, and what a restore gives back.

ITEMS: ListStateDescriptor[JsonValue] = ListStateDescriptor("items", JsonCodec())
SEEN: ListStateDescriptor[JsonValue] = ListStateDescriptor("seen", JsonCodec())
RULES: BroadcastStateDescriptor[Any, JsonValue] = BroadcastStateDescriptor("rules", JsonCodec(), JsonCodec())


class Point(Persisted):
    """A frozen element."""

    number: int
    text: str = "some text of a usual length"


def snapshotted(states: OperatorStateStore) -> States:
    """What a snapshot of ``states`` gives back."""
    return decode_states(
        encode_resources(OperatorStateStrategy(states).sync_prepare_resources(SnapshotOptions())), "state"
    )


def restored(states: OperatorStateStore) -> OperatorStateStore:
    return OperatorStateStore(snapshotted(states))


def test_a_list() -> None:
    """Elements are added, replaced, read and cleared in order."""
    items = OperatorStateStore().list_state(ITEMS)
    items.add(1)
    items.add_all([2, "x"])
    assert items.get() == (1, 2, "x")
    items.update([3])
    assert items.get() == (3,)
    items.update([])
    assert items.get() == ()
    items.add(4)
    items.clear()
    assert items.get() == ()


def test_none_is_no_element() -> None:
    """None is refused by every way in, and nothing of the same call is kept."""
    items = OperatorStateStore().list_state(ITEMS)
    items.add(0)
    with pytest.raises(ConfigError, match="'items' is None"):
        items.add(None)
    with pytest.raises(ConfigError, match="'items' is None"):
        items.add_all([1, None])
    with pytest.raises(ConfigError, match="'items' is None"):
        items.update([None])
    assert items.get() == (0,)


def test_a_broadcast_map() -> None:
    """Pairs are put, replaced, looked up, removed and cleared."""
    rules = OperatorStateStore().broadcast_state(RULES)
    rules.put("a", 1)
    rules.put_all({"b": 2, "a": 3})
    assert rules.get("a") == 3
    assert rules.get("other") is None
    assert rules.contains("b")
    assert rules.entries() == (("a", 3), ("b", 2))
    assert (rules.keys(), rules.values()) == (("a", "b"), (3, 2))
    rules.remove("a")
    rules.remove("a")
    assert not rules.contains("a")
    rules.clear()
    assert rules.entries() == ()


@pytest.mark.item("OS-04")
def test_one_name_is_one_state() -> None:
    """Registering again gives the same object; another mode, kind or codec is refused."""
    states = OperatorStateStore()
    items, rules = states.list_state(ITEMS), states.broadcast_state(RULES)
    assert states.list_state(ListStateDescriptor("items", JsonCodec())) is items
    assert states.broadcast_state(RULES) is rules
    with pytest.raises(ConfigError, match=r"(?s)'items' is registered as split .* union"):
        states.union_list_state(ITEMS)
    with pytest.raises(ConfigError, match="'rules'"):
        states.list_state(ListStateDescriptor("rules", JsonCodec()))
    with pytest.raises(ConfigError, match="model/Point"):
        states.list_state(ListStateDescriptor("items", ModelCodec(Point)))


@pytest.mark.item("OS-04")
def test_a_restored_name_keeps_mode_and_codec() -> None:
    """A snapshot's state is not taken for one of another mode, codec or version of the codec."""
    written = OperatorStateStore()
    written.list_state(ListStateDescriptor("points", ModelCodec(Point))).add(Point(number=1))
    states = restored(written)
    with pytest.raises(ConfigError, match="in the snapshot as split"):
        states.union_list_state(ListStateDescriptor("points", ModelCodec(Point)))
    with pytest.raises(ConfigError, match="codec model/Point, not json"):
        states.list_state(ListStateDescriptor("points", JsonCodec()))
    with pytest.raises(SnapshotVersionError, match="version 1 of the codec model/Point"):
        states.list_state(ListStateDescriptor("points", ModelCodec(Point, version=2)))
    assert states.list_state(ListStateDescriptor("points", ModelCodec(Point))).get() == (Point(number=1),)


@pytest.mark.item("OS-05")
def test_only_lists_and_maps_are_offered() -> None:
    """Nothing that would have to be merged by key can be registered."""
    offered = {name for name in vars(OperatorStateStore) if name.endswith("_state")}
    assert offered == {"list_state", "union_list_state", "broadcast_state"}


@pytest.mark.item("OS-01", "OS-02", "OS-03")
@given(st.lists(st.integers()), st.lists(st.text()), st.dictionaries(st.text() | st.integers(2), st.text()))
def test_a_snapshot_gives_back_what_was_there(items: list[int], seen: list[str], rules: dict[Any, str]) -> None:
    """Every element and every pair survives, with the types of its keys."""
    states = OperatorStateStore()
    states.list_state(ITEMS).update(items)
    states.union_list_state(SEEN).update(seen)
    states.broadcast_state(RULES).put_all(rules)
    back = restored(states)
    assert back.list_state(ITEMS).get() == tuple(items)
    assert back.union_list_state(SEEN).get() == tuple(seen)
    assert back.broadcast_state(RULES).entries() == tuple(rules.items())


@pytest.mark.item("OS-01", "OS-02", "OS-03")
def test_rescaling_moves_elements_without_decoding_them() -> None:
    """From 2 subtasks to 3: the list is split, the union is everywhere, each gets the copy of i modulo 2."""
    old = []
    for subtask in range(2):
        states = OperatorStateStore()
        states.list_state(ITEMS).update([subtask * 10 + n for n in range(3)])
        states.union_list_state(SEEN).add(subtask)
        states.broadcast_state(RULES).put("from", subtask)
        old.append(snapshotted(states))
    new = [OperatorStateStore(share) for share in redistribute(old, 3)]
    assert [states.list_state(ITEMS).get() for states in new] == [(0, 1), (2, 10), (11, 12)]
    assert [states.union_list_state(SEEN).get() for states in new] == [(0, 1)] * 3
    assert [states.broadcast_state(RULES).get("from") for states in new] == [0, 1, 0]


def test_a_state_that_is_not_registered_is_carried_on() -> None:
    """It goes into the next snapshot with the same bytes, even if no codec here could read it."""
    written = OperatorStateStore()
    written.list_state(ITEMS).add(1)
    foreign = NamedState(ITEMS.info("split").model_copy(update={"name": "foreign"}), (b"not json",))
    once = OperatorStateStore({**snapshotted(written), "foreign": foreign})
    once.list_state(ITEMS).add(2)
    again = snapshotted(once)
    assert again["foreign"] == foreign
    assert again["items"].elements == (b"1", b"2")


@pytest.mark.parametrize("element", [b"{", b"1", b"[1]", b"[[1]]", b"[[1,2,3]]", b"[[[1],2]]", b'[{"a":1,"b":2}]'])
def test_a_damaged_map_is_corrupt(element: bytes) -> None:
    """What is no list of pairs, or has a key that no map can hold, is SnapshotCorrupt."""
    states = OperatorStateStore({"rules": NamedState(RULES.info, (element,))})
    with pytest.raises(SnapshotCorrupt):
        states.broadcast_state(RULES)


def test_a_damaged_element_is_corrupt() -> None:
    """An element that the codec does not know is SnapshotCorrupt when its state is registered, not before."""
    states = OperatorStateStore({"items": NamedState(ITEMS.info("split"), (b"{",))})
    with pytest.raises(SnapshotCorrupt):
        states.list_state(ITEMS)


@pytest.mark.item("SS-03", "SS-31", "OS-06")
def test_later_changes_are_not_in_the_snapshot() -> None:
    """After the synchronous part, elements may be added, replaced and changed in place: the snapshot stays."""
    states = OperatorStateStore()
    items, rules = states.list_state(ITEMS), states.broadcast_state(RULES)
    inner: list[JsonValue] = [1]
    items.add(inner)
    rules.put("r", {"deep": inner})
    taken = OperatorStateStrategy(states).sync_prepare_resources(SnapshotOptions())
    inner.append(2)
    items.add(3)
    rules.put("s", 4)
    back = OperatorStateStore(decode_states(encode_resources(taken), "state"))
    assert back.list_state(ITEMS).get() == ([1],)
    assert back.broadcast_state(RULES).entries() == (("r", {"deep": [1]}),)


@pytest.mark.item("SS-04", "SS-33")
def test_nothing_is_written_before_the_supplier_is_called(tmp_path: Path) -> None:
    """The asynchronous part returns at once; its file appears in chk-N with the call, with the same bytes as inline."""
    states = OperatorStateStore()
    states.list_state(ITEMS).add("x" * 30_000)
    with LocalStore(str(tmp_path)) as store:
        storage = CheckpointStorage(store, "job")
        strategy = OperatorStateStrategy(states)
        taken = strategy.sync_prepare_resources(SnapshotOptions())
        write = strategy.async_snapshot(taken, 7, 0, storage.stream_factory(7), SnapshotOptions())
        assert store.list_names("job") == []
        handle = write(CloseableRegistry()).primary
        assert handle is not None
        assert handle.kind == "file"
        assert store.list_names("job") == ["chk-7"]
        assert handle.path.startswith("chk-7/")
        assert storage.read_bytes(handle) == encode_resources(taken)
        assert storage.read_state(handle) == snapshotted(states)


@pytest.mark.item("SS-07")
def test_a_failed_write_closes_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """State that the storage does not take leaves no stream open behind the error."""
    states = OperatorStateStore()
    states.list_state(ITEMS).add("x")
    streams = MemoryStreamFactory(max_state_bytes=3)
    stream = streams.create(Scope.EXCLUSIVE)
    monkeypatch.setattr(streams, "create", lambda _scope: stream)
    strategy = OperatorStateStrategy(states)
    write = strategy.async_snapshot(
        strategy.sync_prepare_resources(SnapshotOptions()), 1, 0, streams, SnapshotOptions()
    )
    with pytest.raises(StateTooLarge):
        write(CloseableRegistry())
    with pytest.raises(SnapshotCancelled):
        stream.write(b"y")


@pytest.mark.item("SS-23")
def test_an_operator_without_state_has_no_handle(tmp_path: Path) -> None:
    """No registered state: no bytes, no file, no handle; and None restores to nothing."""
    with LocalStore(str(tmp_path)) as store:
        storage = CheckpointStorage(store, "job")
        assert write_operator_state(OperatorStateStore(), storage.stream_factory(1)) is None
        assert storage.read_state(None) == {}
        strategy = OperatorStateStrategy(OperatorStateStore())
        taken = strategy.sync_prepare_resources(SnapshotOptions())
        write = strategy.async_snapshot(taken, 1, 0, storage.stream_factory(1), SnapshotOptions())
        assert write(CloseableRegistry()) is EMPTY


# Operator state is dealt out as Flink's round-robin repartitioner does; the vectors are from its rules.


def state(mode: Mode, *elements: str, name: str = "s", version: int = 1) -> NamedState:
    codecs = {"element": CodecInfo(name="json", version=version)}
    kinds = {"broadcast": "BROADCAST", "key-groups": "KEY_VALUE"}
    info = StateMetaInfo.model_validate(
        {"name": name, "type": kinds.get(mode, "OPERATOR"), "mode": mode, "codecs": codecs}
    )
    return NamedState(info, tuple(element.encode() for element in elements))


def split(*elements: str) -> NamedState:
    return state("split", *elements)


def texts(one: NamedState) -> list[str]:
    return [element.decode() for element in one.elements]


OLD = [
    {"A": split("a0", "a1", "a2"), "B": split("b0")},
    {"A": split("a3", "a4"), "B": split("b1")},
    {"A": split("a5", "a6"), "B": split("b2")},
]

VECTORS = {
    2: [{"A": "a0 a1 a2 a3", "B": "b2"}, {"A": "a4 a5 a6", "B": "b0 b1"}],
    4: [{"A": "a0 a1", "B": "b1"}, {"A": "a2 a3", "B": "b2"}, {"A": "a4 a5"}, {"A": "a6", "B": "b0"}],
    5: [{"A": "a0 a1"}, {"A": "a2 a3"}, {"A": "a4", "B": "b0"}, {"A": "a5", "B": "b1"}, {"A": "a6", "B": "b2"}],
}


@pytest.mark.item("OS-01")
@pytest.mark.parametrize("parallelism", VECTORS)
def test_split_state_follows_the_vectors(parallelism: int) -> None:
    """3 subtasks with states A and B rescale to 2, 4 and 5 exactly as in the reference."""
    new = redistribute(OLD, parallelism)
    assert [{name: " ".join(texts(one)) for name, one in states.items()} for states in new] == VECTORS[parallelism]


@pytest.mark.item("OS-01")
def test_split_state_stays_where_it_is_when_the_parallelism_is_unchanged() -> None:
    """With as many subtasks as before everyone keeps their own elements."""
    assert redistribute(OLD, 3) == OLD


@pytest.mark.item("OS-02")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_union_state_goes_to_everyone(parallelism: int) -> None:
    """Each subtask gets all elements of a union state, also when their number is unchanged."""
    old = [{"m": state("union", number)} for number in "39"]
    assert [texts(states["m"]) for states in redistribute(old, parallelism)] == [["3", "9"]] * parallelism


@pytest.mark.item("OS-03")
@pytest.mark.parametrize(("parallelism", "copies"), [(1, "a"), (2, "ab"), (3, "abc"), (5, "abcab")])
def test_broadcast_state_goes_to_everyone_once(parallelism: int, copies: str) -> None:
    """Subtask i gets copy i modulo the old number, its own if that is unchanged."""
    old = [{"m": state("broadcast", copy)} for copy in "abc"]
    new = redistribute(old, parallelism)
    assert [texts(states["m"]) for states in new] == [[copy] for copy in copies]
    some = redistribute([old[0], {}, old[2]], 3)
    assert [texts(states["m"]) for states in some] == [["a"], ["c"], ["a"]]


@pytest.mark.item("OS-04")
def test_a_state_cannot_be_split_here_and_union_there() -> None:
    """One name with two modes is an error that names it."""
    with pytest.raises(ValueError, match="'m' is"):
        redistribute([{"m": split("x")}, {"m": state("union", "y")}], 3)


@pytest.mark.item("OS-04")
def test_a_state_cannot_have_two_codecs() -> None:
    """Elements of different codecs cannot be dealt into one list."""
    with pytest.raises(ValueError, match="codecs"):
        redistribute([{"m": split("x")}, {"m": state("split", "y", version=2)}], 3)


def test_keyed_state_is_not_dealt_out_here() -> None:
    """Key groups have rules of their own."""
    with pytest.raises(ValueError, match="keyed"):
        redistribute([{"m": state("key-groups", "x")}], 3)


@given(st.lists(st.lists(st.binary(max_size=3)), min_size=1, max_size=6), st.integers(1, 9))
def test_no_element_is_lost_or_doubled_and_shares_are_even(old: list[list[bytes]], parallelism: int) -> None:
    """Whatever the parallelism, the multiset of elements stays and shares differ by one at most."""
    states = [{"s": NamedState(split().info, tuple(elements))} for elements in old]
    new = redistribute(states, parallelism)
    shares = [list(share["s"].elements) if "s" in share else [] for share in new]
    assert [x for share in shares for x in share] == [x for elements in old for x in elements]
    if parallelism != len(old):
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


# State is never left behind in silence.

FULL = OperatorState(parallelism=1, coordinator=FileHandle(path="a", size_bytes=1, crc32=1))
NO_STATE = OperatorState(parallelism=1)


@pytest.mark.item("SP-15", "SP-20")
def test_state_of_a_removed_operator_is_refused() -> None:
    """Its id is named; operators without state may go."""
    with pytest.raises(RecoveryRefused, match=r"(?s)'gone'.*restore_from=SAVEPOINT"):
        restored_operators({"gone": FULL, "empty": NO_STATE, "kept": FULL}, {"kept"})
    assert restored_operators({"empty": NO_STATE, "kept": FULL}, {"kept"}) == {"kept": FULL}


@pytest.mark.item("SP-19", "SP-21", "SP-22")
def test_operators_are_found_by_their_ids() -> None:
    """A new operator begins with no state; order and operators without state mean nothing."""
    snapshot = {"a": FULL, "b": NO_STATE}
    assert restored_operators(snapshot, ["new", "b", "a"]) == snapshot
    assert restored_operators({}, ["new"]) == {}
