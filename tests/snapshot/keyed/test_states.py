"""The five kinds of keyed state, namespaces, batches of keys, and values that expire, on each backend."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from partfile.errors import ConfigError, SnapshotVersionError, UnencodableState
from partfile.snapshot.keyed.codecs import Int64Codec, PairCodec, TextCodec
from partfile.snapshot.keyed.descriptors import (
    AggregatingStateDescriptor,
    Earlier,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange, group_of_hash, subtask_of_group
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.operator_state import ListStateDescriptor as OperatorListDescriptor
from partfile.snapshot.state_file import JsonCodec
from support.state.keyed import (
    BACKENDS,
    MAX_PARALLELISM,
    TEXT_KEYS,
    backend_of,
    bytes_of,
    file_of,
    largest_of,
    list_of,
    map_of,
    mean_of,
    states_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from support.state.keyed import States

MINUTE_MS = 60_000
MINUTE = Ttl(60)
READ = Ttl(60, refresh="read")
LENIENT = Ttl(60, returns_expired=True)


class Name(str):
    """A kind of text."""

    __slots__ = ()


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def backend(request: pytest.FixtureRequest) -> Iterator[KeyedStateBackend]:
    made = backend_of(request.param)
    yield made
    made.close()


@pytest.mark.item("KS-03", "TT-05")
def test_a_value(backend: KeyedStateBackend) -> None:
    """Absent at first, then what it was set to, of its own key alone."""
    state = backend.value_state(value_of())
    backend.set_current_key("a")
    assert state.value() is None
    state.update(1)
    backend.set_current_key("b")
    assert state.value() is None
    state.update(2)
    backend.set_current_key("a")
    assert state.value() == 1
    state.update(None)
    assert state.value() is None
    state.clear()
    backend.set_current_key("b")
    state.clear()
    assert state.value() is None


@pytest.mark.item("KS-04")
def test_a_list(backend: KeyedStateBackend) -> None:
    """In the order of adding; None is no element, and nothing of a bad call is added."""
    state = backend.list_state(list_of())
    backend.set_current_key("a")
    assert state.get() == ()
    state.add("x")
    state.add_all(["y", "x"])
    assert state.get() == ("x", "y", "x")
    with pytest.raises(ConfigError, match="an element of the state 'list' is None"):
        state.add_all(["z", None])  # type: ignore[list-item]
    with pytest.raises(UnencodableState, match=r"state 'list', key group [0-9]+, codec 'text'"):
        state.update(["z", 1])  # type: ignore[list-item]
    assert state.get() == ("x", "y", "x")
    state.update(["z"])
    assert state.get() == ("z",)
    state.update([])
    assert state.get() == ()
    state.add_all([])
    state.add("w")
    state.clear()
    assert state.get() == ()


@pytest.mark.item("KS-05")
def test_a_map(backend: KeyedStateBackend) -> None:
    """By second keys of one kind, in the order of their bytes; the last one takes the map along."""
    state = backend.map_state(map_of())
    backend.set_current_key("a")
    assert state.is_empty()
    assert state.entries() == ()
    state.put_all({2: "two", 1: "one"})
    state.put(2, {"more": [2]})
    assert state.get(2) == {"more": [2]}
    assert state.get(3) is None
    assert (state.contains(1), state.contains(3)) == (True, False)
    assert state.entries() == ((1, "one"), (2, {"more": [2]}))
    assert state.keys() == (1, 2)
    assert state.values() == ("one", {"more": [2]})
    state.remove(3)
    state.remove(1)
    state.remove(2)
    state.remove(2)
    assert state.is_empty()
    with pytest.raises(ConfigError, match="the key 'a' is a str"):
        state.get("a")
    with pytest.raises(ConfigError, match="a value of the state 'map' is None"):
        state.put(1, None)
    state.put(1, 1)
    state.clear()
    assert state.is_empty()


@pytest.mark.item("KS-06", "KS-07")
def test_a_reduced_and_an_aggregated_value(backend: KeyedStateBackend) -> None:
    """Each from what was added to its key."""
    largest, mean = backend.reducing_state(largest_of()), backend.aggregating_state(mean_of())
    for key, value in (("a", 3), ("b", 10), ("a", 5), ("a", 1)):
        backend.set_current_key(key)
        largest.add(value)
        mean.add(value)
    backend.set_current_key("a")
    assert (largest.get(), mean.get()) == (5, 3.0)
    backend.set_current_key("c")
    assert (largest.get(), mean.get()) == (None, None)
    with pytest.raises(ConfigError, match="a value of the state 'largest' is None"):
        largest.add(None)  # type: ignore[arg-type]
    with pytest.raises(UnencodableState, match=r"state 'largest', key group [0-9]+, codec 'int64': 'x' is a str"):
        largest.add("x")  # type: ignore[arg-type]
    assert largest.get() is None
    backend.set_current_key("a")
    largest.clear()
    mean.clear()
    assert (largest.get(), mean.get()) == (None, None)


def test_functions_that_return_none_are_refused(backend: KeyedStateBackend) -> None:
    """None stands for what is absent, so nothing was added."""
    state = backend.reducing_state(ReducingStateDescriptor("odd", Int64Codec(), lambda _one, _other: None))  # type: ignore[arg-type,return-value]
    backend.set_current_key("a")
    state.add(1)
    with pytest.raises(ConfigError, match="a value of the state 'odd' is None"):
        state.add(2)
    assert state.get() == 1


@pytest.mark.item("SB-02")
def test_what_a_user_does_with_a_value_reaches_no_state(backend: KeyedStateBackend) -> None:
    """Values that can change are copied on both ways."""
    states = ValueStateDescriptor("json", JsonCodec()), map_of(), mean_of()
    value, pairs, mean = (
        backend.value_state(states[0]),
        backend.map_state(states[1]),
        backend.aggregating_state(states[2]),
    )
    backend.set_current_key("a")
    given: Any = {"list": [1]}
    value.update(given)
    pairs.put(1, given)
    mean.add(4)
    given["list"].append(2)
    for got in (value.value(), pairs.get(1), pairs.values()[0]):
        assert got == {"list": [1]}
        changed: Any = got
        changed["list"].append(3)
    assert value.value() == pairs.get(1) == {"list": [1]}
    assert mean.get() == mean.get() == 4.0


@pytest.mark.item("KS-08")
def test_namespaces_part_the_values_of_one_key(backend: KeyedStateBackend) -> None:
    """As windows do; a state without them has none, and one with them is asked about one."""
    hours = KeyCodec("integer")
    value, rows = backend.value_state(value_of(namespace=hours)), backend.list_state(list_of(namespace=hours))
    plain = backend.map_state(map_of())
    backend.set_current_key("a")
    with pytest.raises(ConfigError, match="state 'value' was asked for without a namespace"):
        value.value()
    with pytest.raises(ConfigError, match="state 'list' was asked for without a namespace"):
        rows.add("x")
    with pytest.raises(ConfigError, match="state 'map' has no namespaces"):
        plain.set_namespace(1)
    for hour in (1, 2):
        value.set_namespace(hour)
        rows.set_namespace(hour)
        value.update(hour * 10)
        rows.add(f"hour {hour}")
    value.set_namespace(1)
    assert value.value() == 10
    assert rows.get() == ("hour 2",)
    value.clear()
    value.set_namespace(2)
    assert value.value() == 20
    with pytest.raises(ConfigError, match="the key 'b' is a str"):
        value.set_namespace("b")


@pytest.mark.item("KS-01", "KS-02")
def test_without_a_key_or_with_another_subtask_s_there_is_no_state(backend: KeyedStateBackend) -> None:
    """Said before anything is shown or changed."""
    states: Any = states_of(backend)
    accesses = [
        states[0].value,
        lambda: states[0].update(1),
        states[1].get,
        lambda: states[1].add("x"),
        lambda: states[1].update(["x"]),
        lambda: states[2].get(1),
        lambda: states[2].put(1, 1),
        lambda: states[2].remove(1),
        states[2].entries,
        states[3].get,
        lambda: states[4].add(1),
        *(state.clear for state in states),
        lambda: backend.current_key,
    ]
    with pytest.raises(ConfigError, match="without a key"):
        states[0].update("no integer")
    for access in accesses:
        with pytest.raises(ConfigError, match="keyed state was asked for without a key"):
            access()
    backend.set_current_key("a")
    assert backend.current_key == "a"
    with pytest.raises(ConfigError, match="the key 1 is a int"):
        backend.set_current_key(1)
    with pytest.raises(ConfigError, match="without a key"):
        states[0].value()


def test_a_key_of_another_subtask_is_refused() -> None:
    """With its key group, alone and in a batch; the key before it is not the current one any more."""
    halves = [backend_of(subtask=subtask, parallelism=2) for subtask in range(2)]
    states = [half.value_state(value_of()) for half in halves]
    keys = [f"key {number}" for number in range(50)]
    owner = {key: subtask_of_group(group_of_hash(TEXT_KEYS.locate(key)[1], 16), 2, 16) for key in keys}
    assert set(owner.values()) == {0, 1}
    for key, subtask in owner.items():
        halves[subtask].set_current_key(key)
        with pytest.raises(ConfigError, match=f"the key {key!r} is of key group"):
            halves[1 - subtask].set_current_key(key)
        with pytest.raises(ConfigError, match="without a key"):
            states[1 - subtask].value()
    others = pa.array([key for key, subtask in owner.items() if subtask == 1])
    with pytest.raises(ConfigError, match=r"is of key group [0-9]+; this subtask has 0 to 7"):
        halves[0].key_batch(others)
    assert len(halves[1].key_batch(others)) == len(others)


def test_many_keys_at_once(backend: KeyedStateBackend) -> None:
    """What a batch does is what its rows do one after the other; a key may come twice."""
    value, rows, pairs, largest, mean = states_of(backend)
    keys = backend.key_batch(pa.array(["a", "b", "a"]))
    assert value.value_batch(keys) == [None] * 3
    value.update_batch(keys, [1, 2, 3])
    rows.add_batch(keys, iter("xyz"))
    pairs.put_batch(keys, [1, 1, 2], ["one", "one", "two"])
    largest.add_batch(keys, [5, 6, 4])
    mean.add_batch(keys, [5, 6, 4])
    assert value.value_batch(keys) == [3, 2, 3]
    assert rows.get_batch(keys) == [("x", "z"), ("y",), ("x", "z")]
    assert pairs.get_batch(keys, [1, 2, 2]) == ["one", None, "two"]
    assert largest.get_batch(keys) == [5, 6, 5]
    assert mean.get_batch(keys) == [4.5, 6.0, 4.5]
    value.update_batch(keys, [None, 7, None])
    assert value.value_batch(keys) == [None, 7, None]
    with pytest.raises(ConfigError, match="without a key"):
        value.value()
    with pytest.raises(ConfigError, match="there are 3 keys and 2 values"):
        value.update_batch(keys, [1, 2])
    with pytest.raises(UnencodableState, match=r"state 'value', key group \d+, codec 'int64': 'x' is a str"):
        value.update_batch(keys, [1, "x", 3])  # type: ignore[list-item]
    assert value.value_batch(keys) == [None, 7, None]
    for act in (lambda: value.value_batch(keys), lambda: value.update_batch(keys, [1, "x", 3])):  # type: ignore[list-item]
        backend.set_current_key("b")
        with suppress(UnencodableState):
            act()
        for after in (value.value, lambda: value.update(1)):
            with pytest.raises(ConfigError, match="without a key"):
                after()
    value.update_batch(keys, pa.array([4, 7, 5]))
    assert value.value_batch(keys) == [5, 7, 5]
    value.update_batch(keys, [None, 8, 4])
    assert value.value_batch(keys) == [4, 8, 4]
    value.update_batch(keys, [4, 8, None])
    assert value.value_batch(keys) == [None, 8, None]
    with pytest.raises(ConfigError, match="without a key"):
        value.value()


@pytest.mark.parametrize("ttl", [None, Ttl(60)], ids=["for ever", "with a time to live"])
@pytest.mark.parametrize("make", BACKENDS, ids=lambda make: make.__name__)
def test_many_values_at_once_are_those_of_their_namespace_and_of_no_view(make: Any, ttl: Ttl | None) -> None:
    """A view that was taken before shows what was set before; a batch sets all of its values or none."""
    backend = backend_of(make, is_told_time=False)
    value = backend.value_state(value_of(ttl, KeyCodec("integer")))
    keys = backend.key_batch(pa.array(["a", "b"]))
    for act in (lambda: value.value_batch(keys), lambda: value.update_batch(keys, [1, 2])):
        with pytest.raises(ConfigError, match="without a namespace" if ttl is None else "does not know the time"):
            act()
    backend.advance_time(1000)
    value.set_namespace(1)
    value.update_batch(keys, [1, 2])
    view = backend.freeze()
    value.update_batch(keys, [3, None])
    assert value.value_batch(keys) == [3, None]
    with pytest.raises(UnencodableState):
        value.update_batch(keys, [4, "x"])  # type: ignore[list-item]
    assert value.value_batch(keys) == [3, None]
    value.set_namespace(2)
    assert value.value_batch(keys) == [None, None]
    assert sum(len(rows) for group in view.groups for _, (rows, _) in view.rows(group)) == 2
    view.release()
    backend.advance_time(61_000)
    value.set_namespace(1)
    assert value.value_batch(keys) == [3 if ttl is None else None, None]
    backend.close()


@pytest.mark.item("KS-03")
@pytest.mark.parametrize(
    ("kind", "key", "says"),
    [
        ("integer", True, "the key True is a bool, not of the kind integer"),
        ("integer", 1 << 63, f"the key {1 << 63} is not of the kind integer"),
        ("date", datetime(2026, 1, 1), "is a datetime, not of the kind date"),  # noqa: DTZ001 - a date has none.
        ("string", "\ud800", "is not of the kind string"),
        ("string", Name("a"), "is a Name, not of the kind string"),
        ("string", None, "the key None is a NoneType, not of the kind string"),
    ],
)
def test_a_key_of_another_kind_is_not_made_current(kind: str, key: Any, says: str) -> None:
    """Nor does the one before it stay."""
    backend = HeapBackend(KeyCodec(kind), KeyGroupRange(0, MAX_PARALLELISM - 1), MAX_PARALLELISM)
    state = backend.value_state(value_of())
    with pytest.raises(ConfigError, match=says):
        backend.set_current_key(key)
    with pytest.raises(ConfigError, match="without a key"):
        state.value()


def test_what_is_no_batch_of_keys_or_of_values_is_refused(backend: KeyedStateBackend) -> None:
    """A column has to be found first."""
    value = backend.value_state(value_of())
    for act in (lambda: value.value_batch(pa.array(["a"])), lambda: value.update_batch(["a"], [1])):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="is no batch of keys") as raised:
            act()
        assert raised.value.hint.endswith("keys = backend.key_batch(COLUMN)")
    for values in ({1}, {1: 1}, "1", b"1"):
        with pytest.raises(ConfigError, match="and not one value for each key, in their order"):
            value.update_batch(backend.key_batch(pa.array(["a"])), values)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="values=None is no list of values"):
        value.update_batch(backend.key_batch(pa.array(["a"])), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("ttl", [None, Ttl(60)], ids=["for ever", "with a time to live"])
def test_a_function_that_chooses_another_key_is_refused(backend: KeyedStateBackend, ttl: Ttl | None) -> None:
    """Its result would be that key's."""

    def choose(held: int, value: int) -> int:
        backend.set_current_key("other")
        return held + value

    total = backend.reducing_state(ReducingStateDescriptor("sum", Int64Codec(), choose, ttl=ttl))
    mean = backend.aggregating_state(AggregatingStateDescriptor("mean", Int64Codec(), int, choose, int, ttl=ttl))
    backend.set_current_key("a")
    total.add(1)
    for state in (total, mean):
        backend.set_current_key("a")
        with pytest.raises(ConfigError, match=f"the function of the state '{state.name}' has chosen another key"):
            state.add(2)
        backend.set_current_key("other")
        assert state.get() is None
    backend.set_current_key("a")
    assert (total.get(), mean.get()) == (1, None)


@pytest.mark.item("TT-15")
def test_a_batch_of_writes_pays_for_what_has_expired() -> None:
    """As so many single writes do."""
    backend = backend_of(HeapBackend)
    state = backend.value_state(ValueStateDescriptor("paid", Int64Codec(), ttl=Ttl(60)))
    state.update_batch(backend.key_batch(pa.array([f"key {at}" for at in range(100)])), range(100))
    backend.advance_time(MINUTE_MS)
    state.update_batch(backend.key_batch(pa.array(["new"] * 5000)), range(5000))
    assert sum(map(len, backend.tables()["paid"].frozen())) == 1


def test_batches_that_do_not_fit_are_refused(backend: KeyedStateBackend) -> None:
    """Nothing is set: places that another backend has found are those of other keys here."""
    value, pairs = backend.value_state(value_of()), backend.map_state(map_of())
    other = backend_of().key_batch(pa.array(["a"]))
    for act in (lambda: value.update_batch(other, [1]), lambda: value.value_batch(other)):
        with pytest.raises(ConfigError, match="those of another backend"):
            act()
    keys = backend.key_batch(pa.array(["a", "b"]))
    with pytest.raises(ConfigError, match="there are 2 second keys and 1 values"):
        pairs.put_batch(keys, [1, 2], ["one"])
    assert value.value_batch(keys) == pairs.get_batch(keys, [1, 2]) == [None, None]


@pytest.mark.item("TT-15")
def test_the_choice_of_a_key_in_a_batch_pays_as_well() -> None:
    """For states that are to be looked through then, whichever state the keys are for."""
    backend = backend_of(HeapBackend)
    paid = backend.value_state(ValueStateDescriptor("paid", Int64Codec(), ttl=Ttl(60, cleanup_on="key")))
    other = backend.value_state(value_of())
    for key in range(100):
        backend.set_current_key(f"key {key}")
        paid.update(key)
    backend.advance_time(MINUTE_MS)
    rows = backend.tables()["paid"].frozen()
    assert sum(map(len, rows)) == 100
    other.value_batch(backend.key_batch(pa.array(["key 1"] * 5000)))
    assert not any(backend.tables()["paid"].frozen())


def test_a_state_may_be_asked_for_with_the_same_time_to_live_in_other_words(backend: KeyedStateBackend) -> None:
    """A time is what it is. The hint for another one can be typed."""
    state = backend.value_state(value_of(Ttl("1 minute")))
    assert backend.value_state(value_of(Ttl(60))) is state
    with pytest.raises(ConfigError, match="registered with another time to live") as raised:
        backend.value_state(value_of(Ttl(61)))
    assert raised.value.hint.startswith("Write ttl=Ttl(duration='1 minute', refresh='write', ")
    assert "duration_ms" not in raised.value.hint


@pytest.mark.parametrize(
    ("options", "says", "hint"),
    [
        ({"ttl": "7 days"}, "ttl='7 days' is no time to live", "Write ttl=Ttl('7 days')."),
        ({"namespace": "integer"}, "namespace='integer' is no kind of keys", "Write namespace=KeyCodec('integer')."),
        ({"earlier": Earlier(Int64Codec())}, "is no tuple of codecs", "Write earlier=(Earlier(CODEC, convert),),"),
        ({"earlier": (TextCodec(),)}, "which is no earlier codec", "Write earlier=(Earlier(CODEC, convert),)."),
        ({"earlier": (Earlier(Int64Codec()),)}, "'int64' of version 1 is in it twice", "Leave one out."),
        (
            {"earlier": (Earlier(TextCodec(), int), Earlier(TextCodec(), len))},
            "'text' of version 1 is in it twice",
            "Leave one out.",
        ),
        ({"formerly": "v"}, "has its own name as its former one", "Leave it out: formerly=None"),
    ],
)
def test_options_of_a_state_that_cannot_be_used(options: Any, says: str, hint: str) -> None:
    """They are refused when it is described, and not by a later access."""
    with pytest.raises(ConfigError, match=says) as raised:
        ValueStateDescriptor("v", Int64Codec(), **options)
    assert raised.value.hint.startswith(hint)


def test_a_namespace_that_is_refused_leaves_none(backend: KeyedStateBackend) -> None:
    """What goes on all the same does not go on in the one before."""
    state = backend.value_state(value_of(namespace=KeyCodec("integer")))
    backend.set_current_key("a")
    state.set_namespace(1)
    state.update(1)
    with pytest.raises(ConfigError):
        state.set_namespace("x")
    with pytest.raises(ConfigError, match="asked for without a namespace"):
        state.value()


def test_the_hint_for_another_codec_keeps_the_values(backend: KeyedStateBackend) -> None:
    """Under another name they would be carried on, and the state would begin empty."""
    state = backend.value_state(value_of())
    backend.set_current_key("a")
    state.update(1)
    again = backend_of(type(backend), files=[file_of(backend)])
    with pytest.raises(ConfigError) as raised:
        again.value_state(ValueStateDescriptor("value", TextCodec()))
    assert raised.value.hint.endswith("earlier=(Earlier(CODEC, convert),)")
    again.close()


def test_keys_of_several_columns() -> None:
    """A tuple alone, and the columns in a batch."""
    from partfile.snapshot.keyed.heap import HeapBackend  # noqa: PLC0415 - this backend alone.
    from partfile.snapshot.keyed.keys import KeyGroupRange  # noqa: PLC0415

    backend = HeapBackend(KeyCodec("string", "integer"), KeyGroupRange(0, 15), 16)
    state = backend.value_state(value_of())
    backend.set_current_key(("a", 1))
    state.update(11)
    assert backend.current_key == ("a", 1)
    keys = backend.key_batch(pa.array(["a", "a"]), pa.array([1, 2], pa.int8()))
    assert state.value_batch(keys) == [11, None]


@pytest.mark.parametrize("now_ms", [1.5, -1, 1 << 62, True, None])
def test_a_time_that_no_snapshot_could_hold_is_refused(backend: KeyedStateBackend, now_ms: Any) -> None:
    """When it is told, not when the next snapshot is written."""
    with pytest.raises(ConfigError, match="it must be whole milliseconds since 1970"):
        backend.advance_time(now_ms)


@pytest.mark.parametrize("value", [{"x": float("nan")}, {"x": {1, 2}}, {1: 2}, [object()]])
def test_json_is_checked_when_it_is_given(backend: KeyedStateBackend, value: Any) -> None:
    """By state, key group and codec, in the call that gives it."""
    state = backend.value_state(ValueStateDescriptor("json", JsonCodec()))
    backend.set_current_key("a")
    with pytest.raises(UnencodableState, match=r"state 'json', key group [0-9]+, codec 'json'"):
        state.update(value)
    assert state.value() is None
    state.update((1, 2))  # type: ignore[arg-type]
    assert state.value() == [1, 2]


# Registration.


@pytest.mark.item("KS-09", "KS-10", "KS-12")
def test_a_name_stands_for_one_state(backend: KeyedStateBackend) -> None:
    """The same object each time, and in a snapshot from its registration on."""
    state = backend.value_state(value_of())
    assert backend.value_state(value_of()) is state
    assert [info.name for info in file_of(backend).infos] == ["value"]
    with pytest.raises(ConfigError, match="is registered as value state and asked for as reducing state"):
        backend.reducing_state(ReducingStateDescriptor("value", Int64Codec(), max))
    with pytest.raises(ConfigError, match="is described as list state, and asked for as another kind") as raised:
        backend.value_state(list_of())  # type: ignore[arg-type]
    assert raised.value.hint.endswith("backend.list_state(DESCRIPTOR)")
    backend.list_state(list_of(MINUTE))
    with pytest.raises(ConfigError, match="state 'list' is registered with another time to live"):
        backend.list_state(list_of(READ))


def test_a_state_that_no_snapshot_could_name_is_refused(backend: KeyedStateBackend) -> None:
    """Without a name or with one that is too long, without a codec, or one too many."""
    for name, problem in (("", "is no name of a state"), ("n" * 300, "has no name or codec that a snapshot can hold")):
        with pytest.raises(ConfigError, match=problem):
            backend.value_state(ValueStateDescriptor(name, Int64Codec()))
    with pytest.raises(ConfigError, match="codec=None is no codec"):
        backend.value_state(ValueStateDescriptor("value", None))  # type: ignore[arg-type]
    assert backend.infos == ()


@pytest.mark.item("KS-11")
def test_a_descriptor_of_another_sort_is_refused(backend: KeyedStateBackend) -> None:
    """Of operator state, for instance, by the name of the backend."""
    with pytest.raises(ConfigError, match=f"describes no keyed state of {type(backend).__name__}"):
        backend.list_state(OperatorListDescriptor("list", JsonCodec()))  # type: ignore[arg-type]


@pytest.mark.item("KS-13", "TT-20")
@pytest.mark.parametrize("is_restored", [False, True])
def test_a_name_keeps_kind_codec_namespaces_and_expiry(backend: KeyedStateBackend, is_restored: bool) -> None:
    """Another one is refused, registered before or restored; nothing is changed by that."""
    state = backend.list_state(list_of())
    backend.set_current_key("a")
    state.add("x")
    before = bytes_of(backend)
    known = backend_of(type(backend), files=[file_of(backend)]) if is_restored else backend
    where = "in the snapshot" if is_restored else "registered"
    integers = KeyCodec("integer")
    refused: list[tuple[ListStateDescriptor[Any], str]] = [
        (list_of(MINUTE), f"is {where} with no time to live and asked for with a"),
        (list_of(namespace=integers), f"is {where} with the namespace codec None, not key/integer"),
        (ListStateDescriptor("list", Int64Codec()), f"is {where} with the element codec text, not int64"),
    ]
    for asked, message in refused:
        with pytest.raises(ConfigError, match=message):
            known.list_state(asked)
    with pytest.raises(ConfigError, match=f"is {where} as list state and asked for as value state"):
        known.value_state(ValueStateDescriptor("list", TextCodec()))
    assert bytes_of(known) == before
    assert known.list_state(list_of()) is not None
    assert bytes_of(known) == before


def test_a_name_keeps_the_version_of_its_codec_and_its_namespaces(backend: KeyedStateBackend) -> None:
    """Both are refused with what to do."""

    def described(version: int, namespace: KeyCodec | None = None) -> ValueStateDescriptor[str]:
        return ValueStateDescriptor(
            "text", PairCodec("text", str.encode, bytes.decode, version=version), namespace=namespace
        )

    backend.value_state(described(1, KeyCodec("integer")))
    known = backend_of(type(backend), files=[file_of(backend)])
    with pytest.raises(SnapshotVersionError, match="with version 1 of the codec pair/text"):
        known.value_state(described(2, KeyCodec("integer")))
    with pytest.raises(ConfigError, match="with namespaces and asked for without"):
        known.value_state(described(1))


# Values that expire.


def written(backend: KeyedStateBackend, ttl: Ttl) -> States:
    """A state of each kind, in which the current key has something from now on."""
    states = states_of(backend, ttl)
    backend.set_current_key("a")
    states.value.update(1)
    states.rows.add("x")
    states.pairs.put(1, "one")
    states.largest.add(9)
    states.mean.add(9)
    return states


@pytest.mark.item("TT-02", "TT-03", "TT-06", "TT-08", "TT-09", "TT-10")
def test_what_is_written_lives_so_long(backend: KeyedStateBackend) -> None:
    """Reading prolongs nothing; at the end of its time a value is absent, and reading it removes it."""
    value, rows, pairs, largest, mean = written(backend, MINUTE)
    backend.advance_time(MINUTE_MS // 2)
    rows.add("y")
    pairs.put(2, "two")
    backend.advance_time(MINUTE_MS - 1)
    assert (value.value(), rows.get(), pairs.entries()) == (1, ("x", "y"), ((1, "one"), (2, "two")))
    assert (largest.get(), mean.get()) == (9, 9.0)
    backend.advance_time(MINUTE_MS)
    assert (value.value(), rows.get(), pairs.entries()) == (None, ("y",), ((2, "two"),))
    assert (pairs.contains(1), pairs.get(1), pairs.is_empty()) == (False, None, False)
    assert (largest.get(), mean.get()) == (None, None)
    backend.advance_time(MINUTE_MS * 2)
    assert pairs.is_empty()
    assert (rows.get(), pairs.keys()) == ((), ())
    assert [name for group in backend.groups for name, _ in file_of(backend).rows(group)] == []


@pytest.mark.item("TT-04")
def test_what_is_read_lives_anew(backend: KeyedStateBackend) -> None:
    """If reading counts. What has expired is not prolonged by it."""
    value, rows, pairs, largest, mean = written(backend, READ)

    def read() -> tuple[Any, ...]:
        return value.value(), rows.get(), pairs.entries(), largest.get(), mean.get()

    for step in range(1, 4):
        backend.advance_time(step * (MINUTE_MS - 1))
        assert read() == (1, ("x",), ((1, "one"),), 9, 9.0)
    backend.advance_time(4 * MINUTE_MS)
    assert read() == (None, (), (), None, None)
    backend.advance_time(4 * MINUTE_MS + 1)
    assert read() == (None, (), (), None, None)


@pytest.mark.item("TT-07")
def test_what_has_expired_is_returned_once(backend: KeyedStateBackend) -> None:
    """If that is asked for: the read that finds it removes it."""
    value, rows, pairs, largest, mean = written(backend, LENIENT)
    pairs.put(2, "two")
    backend.advance_time(MINUTE_MS)
    rows.add("y")
    assert (value.value(), rows.get(), pairs.get(1)) == (1, ("x", "y"), "one")
    assert (pairs.entries(), largest.get(), mean.get()) == (((2, "two"),), 9, 9.0)
    assert (value.value(), rows.get(), pairs.get(1)) == (None, ("y",), None)
    assert (pairs.entries(), largest.get(), mean.get()) == ((), None, None)


@pytest.mark.item("TT-10", "TT-11")
def test_what_is_added_lives_anew_and_leaves_out_what_has_expired(backend: KeyedStateBackend) -> None:
    """The result is stamped with each value that is added to it."""
    largest, mean = backend.reducing_state(largest_of(MINUTE)), backend.aggregating_state(mean_of(MINUTE))
    backend.set_current_key("a")
    for step in range(3):
        backend.advance_time(step * (MINUTE_MS - 1))
        largest.add(9 - step)
        mean.add(9 - step)
        assert (largest.get(), mean.get()) == (9, (9 + 9 - step) / 2)
    backend.advance_time(4 * MINUTE_MS)
    largest.add(2)
    mean.add(2)
    assert (largest.get(), mean.get()) == (2, 2.0)


def test_the_present_never_goes_back(backend: KeyedStateBackend) -> None:
    """A clock that is set back resurrects nothing and kills nothing."""
    value = backend.value_state(value_of(MINUTE))
    backend.advance_time(5 * MINUTE_MS)
    backend.set_current_key("a")
    value.update(1)
    backend.advance_time(0)
    value.update(2)
    backend.advance_time(6 * MINUTE_MS - 1)
    assert value.value() == 2
    backend.advance_time(6 * MINUTE_MS)
    assert value.value() is None


@pytest.mark.item("TT-22")
def test_clearing_removes_what_lives(backend: KeyedStateBackend) -> None:
    """And what has expired."""
    value, rows, *_ = written(backend, MINUTE)
    backend.advance_time(MINUTE_MS)
    value.clear()
    rows.update([])
    value.update(None)
    assert (value.value(), rows.get()) == (None, ())


@pytest.mark.item("TT-21")
def test_how_long_values_live_may_change(backend: KeyedStateBackend) -> None:
    """It is not in the snapshot; the times are."""
    value = backend.value_state(value_of(MINUTE))
    backend.set_current_key("a")
    value.update(1)
    backend.advance_time(MINUTE_MS // 2)
    for ttl, left in ((Ttl(120), 1), (Ttl(30), None)):
        restored = backend_of(type(backend), files=[file_of(backend)])
        restored.advance_time(MINUTE_MS // 2)
        state = restored.value_state(value_of(ttl))
        restored.set_current_key("a")
        assert state.value() == left


@pytest.mark.item("SS-28", "TT-18")
def test_a_snapshot_leaves_out_what_has_expired(backend: KeyedStateBackend) -> None:
    """The live state keeps it until it is read or looked through."""
    value, rows, pairs, *_ = written(backend, LENIENT)
    backend.advance_time(MINUTE_MS)
    rows.add("y")
    pairs.put(2, "two")
    file = file_of(backend)
    assert {name: len(values) for group in file.groups for name, (_, values) in file.rows(group)} == {
        "list": 1,
        "map": 1,
    }
    assert (value.value(), rows.get(), pairs.entries()) == (1, ("x", "y"), ((1, "one"), (2, "two")))


# Without the extra.


@pytest.mark.parametrize("package", ["msgpack", "xxhash"])
def test_a_package_that_is_missing_is_named(package: str) -> None:
    """With the command that installs it."""
    program = f"import sys; sys.modules[{package!r}] = None; import partfile.snapshot.keyed"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"keyed state needs the package {package}, which is not installed" in done.stderr
    assert "Hint: pip install 'partfile[state]'" in done.stderr
