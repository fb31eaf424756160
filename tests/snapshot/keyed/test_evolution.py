"""Keyed states that change from one program to the next: renamed, dropped, or with values in another codec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel

from partfile.errors import (
    ConfigError,
    RecoveryRefused,
    SnapshotCorrupt,
    SnapshotVersionError,
    UnencodableState,
)
from partfile.snapshot.keyed.codecs import BytesCodec, Float64Codec, Int64Codec, MsgpackCodec, PairCodec, TextCodec
from partfile.snapshot.keyed.descriptors import (
    Earlier,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from partfile.snapshot.keyed.keys import KeyCodec
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.state_file import CodecInfo, ModelCodec
from support.state.keyed import BACKENDS, backend_of, bytes_of, file_of, filled, list_of, map_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.snapshot.keyed.backend import KeyedStateBackend
    from partfile.snapshot.keyed.keyed_file import KeyedFile

KEYS = [f"key {number}" for number in range(40)]


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def make(request: pytest.FixtureRequest) -> Any:
    """The class of a backend."""
    return request.param


def before(ttl: Ttl | None = None) -> KeyedFile:
    """What the program of before left: a value, a list and a map for each key."""
    backend = backend_of()
    backend.advance_time(1000)
    value, rows = backend.value_state(value_of(ttl)), backend.list_state(list_of(ttl))
    pairs = backend.map_state(map_of(ttl))
    for number, key in enumerate(KEYS):
        backend.set_current_key(key)
        value.update(number)
        rows.add_all([f"{number}", "7"])
        pairs.put(1, number)
    return file_of(backend)


def restored(make: Any, *files: KeyedFile) -> KeyedStateBackend:
    backend = backend_of(make, files=files)
    backend.advance_time(1000)
    return backend


@pytest.mark.parametrize("ttl", [None, Ttl(60)])
def test_a_state_is_renamed(make: Any, ttl: Ttl | None) -> None:
    """It goes on with its values, and later snapshots have the new name alone; the next start may still say both."""
    named = ValueStateDescriptor("count", Int64Codec(), ttl=ttl, formerly="value")
    file = before(ttl)
    for _ in range(2):
        backend = restored(make, file)
        state = backend.value_state(named)
        for number, key in enumerate(KEYS):
            backend.set_current_key(key)
            assert state.value() == number
        file = file_of(backend)
        assert [info.name for info in file.infos] == ["count", "list", "map"]
        backend.close()


def test_a_name_that_is_both_old_and_new_is_refused(make: Any) -> None:
    """Nothing says which of the two is meant. One that is dropped is the former name of none."""
    backend = restored(make, before())
    named = ListStateDescriptor("list", TextCodec(), formerly="value")
    with pytest.raises(ConfigError, match="the snapshot has both the state 'list' and 'value', its former name"):
        backend.list_state(named)
    backend.drop_state("value")
    with pytest.raises(ConfigError, match="'value' has been dropped, and is the former name of 'list'"):
        backend.list_state(named)
    assert backend.list_state(list_of()) is not None
    assert [info.name for info in file_of(backend).infos] == ["list", "map"]
    backend.close()


def test_a_former_name_is_not_dropped_and_is_that_of_one_state(make: Any) -> None:
    """Else an older snapshot would lose the state, or the state that is asked for first would have it."""
    backend = restored(make, before())
    backend.value_state(ValueStateDescriptor("count", Int64Codec(), formerly="value"))
    with pytest.raises(ConfigError, match="'value' is the former name of a state, and cannot be dropped"):
        backend.drop_state("value")
    with pytest.raises(ConfigError, match="'value' is the former name of a state, and cannot be that of another"):
        backend.value_state(ValueStateDescriptor("other", Int64Codec(), formerly="value"))
    for name in (b"value", 5, None, value_of()):
        with pytest.raises(ConfigError, match="is no name of a state"):
            backend.drop_state(name)  # type: ignore[arg-type]
    backend.close()


@pytest.mark.item("SP-15")
def test_state_that_nobody_registers_is_carried_on_and_not_refused(make: Any) -> None:
    """Through any number of snapshots, with any parallelism, until a program asks for it or drops it."""
    backend, change = filled(30, make)
    change(1)
    expected = bytes_of(backend)
    files = [file_of(backend)]
    for parallelism in (1, 3, 2):
        parts = [backend_of(make, subtask, parallelism, files) for subtask in range(parallelism)]
        files = [file_of(part) for part in parts]
        for part in parts:
            part.close()
    whole = backend_of(make, files=files)
    assert bytes_of(whole) == expected
    whole.drop_state("list")
    assert [info.name for info in whole.infos] == ["map", "mean", "value"]
    assert [info.name for info in file_of(whole).infos] == ["map", "mean", "value"]
    whole.close()
    backend.close()


def test_a_state_that_is_not_wanted_is_dropped(make: Any) -> None:
    """It is in no further snapshot. One that is registered is not dropped, one that is absent is so already."""
    backend = restored(make, before())
    backend.value_state(value_of())
    backend.drop_state("list")
    backend.drop_state("list")
    backend.drop_state("never there")
    with pytest.raises(ConfigError, match="state 'value' is registered, and cannot be dropped"):
        backend.drop_state("value")
    assert [info.name for info in file_of(backend).infos] == ["map", "value"]
    backend.close()


def test_a_program_that_drops_a_state_at_each_start_drops_no_other(make: Any) -> None:
    """The name of one that it has dropped is free for none: the next start would drop that one."""
    backend = restored(make, before())
    backend.drop_state("list")
    with pytest.raises(
        ConfigError, match="state 'list' has been dropped: the next start would drop the new one"
    ) as told:
        backend.list_state(list_of())
    assert told.value.hint == "Take another name: name='list-2'"
    backend.close()


def test_a_former_name_is_that_of_no_other_state(make: Any) -> None:
    """In either order of asking: the next start could not tell the two apart."""
    renamed, other = ValueStateDescriptor("count", Int64Codec(), formerly="value"), value_of()
    for first, second in ((renamed, other), (other, renamed)):
        backend = restored(make, before())
        backend.value_state(first)
        with pytest.raises(ConfigError, match="'value' is the former name of a state") as told:
            backend.value_state(second)
        assert told.value.hint.endswith("name='value-2'")
        backend.close()


def check_way_out(make: Any, files: list[KeyedFile], asked: ValueStateDescriptor[Any]) -> None:
    """All subtasks ask for the state with the parallelism of the snapshot; then it may change, and no value is lost."""
    parts = [backend_of(make, subtask, len(files), files) for subtask in range(len(files))]
    for part in parts:
        part.value_state(asked)
    whole = restored(make, *map(file_of, parts))
    state = whole.value_state(asked)
    for number, key in enumerate(KEYS):
        whole.set_current_key(key)
        assert state.value() == number
    for backend in (whole, *parts):
        backend.close()


def test_subtasks_that_renamed_one_after_the_other_lose_nothing(make: Any) -> None:
    """Each restores its own; a restore with another parallelism, which would need both names, says what to do."""
    file = before()
    parts = [backend_of(make, subtask, 2, [file]) for subtask in range(2)]
    named = ValueStateDescriptor("count", Int64Codec(), formerly="value")
    parts[0].value_state(named)
    files = [file_of(part) for part in parts]
    with pytest.raises(ConfigError, match="has both the state 'count' and 'value'") as told:
        restored(make, *files).value_state(named)
    assert "restore with the parallelism of the snapshot" in told.value.hint
    check_way_out(make, files, named)


def test_subtasks_that_changed_a_codec_one_after_the_other_lose_nothing(make: Any) -> None:
    """Each restores its own, and a restore with another parallelism is refused until all have the new codec."""
    file = before()
    parts = [backend_of(make, subtask, 2, [file]) for subtask in range(2)]
    floats = ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), float),))
    parts[1].value_state(floats)
    files = [file_of(part) for part in parts]
    with pytest.raises(RecoveryRefused, match="subtasks had it in two kinds or codecs") as told:
        restored(make, *files)
    assert told.value.hint.startswith("Restore with the parallelism of the snapshot, ask for the state in all subtasks")
    check_way_out(make, files, floats)


def test_a_snapshot_without_the_file_of_a_subtask_is_refused(make: Any) -> None:
    """Its keys would have no state."""
    parts = [backend_of(make, subtask, 2, [before()]) for subtask in range(2)]
    with pytest.raises(ConfigError, match="none of the 1 files of the snapshot has key group") as told:
        restored(make, file_of(parts[0]))
    assert "files of all subtasks" in told.value.hint


@pytest.mark.parametrize("ttl", [None, Ttl(60)])
def test_values_are_turned_into_those_of_another_codec(make: Any, ttl: Ttl | None) -> None:
    """Of each kind, with the times that they were written at; a key that is not touched too."""
    backend = restored(make, before(ttl))
    value = backend.value_state(
        ValueStateDescriptor("value", Float64Codec(), ttl=ttl, earlier=(Earlier(Int64Codec(), lambda old: old / 2),))
    )
    rows = backend.list_state(ListStateDescriptor("list", Int64Codec(), ttl=ttl, earlier=(Earlier(TextCodec(), int),)))
    pairs = backend.map_state(
        MapStateDescriptor("map", KeyCodec("integer"), TextCodec(), ttl=ttl, earlier=(Earlier(MsgpackCodec(), str),))
    )
    for number, key in enumerate(KEYS[:20]):
        backend.set_current_key(key)
        assert (value.value(), rows.get(), pairs.entries()) == (number / 2, (number, 7), ((1, f"{number}"),))
    again = restored(make, file_of(backend))
    state = again.value_state(ValueStateDescriptor("value", Float64Codec(), ttl=ttl))
    again.advance_time(60_999)
    again.set_current_key(KEYS[30])
    assert state.value() == 15.0
    again.advance_time(61_000)
    assert state.value() == (15.0 if ttl is None else None)
    backend.close()
    again.close()


def test_values_of_one_class_become_those_of_another(make: Any) -> None:
    """Two models of one module, of which the former has its name of then; and a class that was only renamed."""
    first = backend_of()
    state = first.value_state(ValueStateDescriptor("visit", ModelCodec(FormerVisit, name="Visit")))
    first.set_current_key("a")
    state.update(FormerVisit(count=2))
    file = file_of(first)
    assert file.infos[0].codecs["element"].name == "model/Visit"
    renamed = restored(make, file)
    kept = renamed.value_state(ValueStateDescriptor("visit", ModelCodec(FormerVisit, name="Visit")))
    renamed.set_current_key("a")
    assert kept.value() == FormerVisit(count=2)
    renamed.close()
    backend = restored(make, file)
    earlier = Earlier(ModelCodec(FormerVisit, name="Visit"), lambda old: Visit(seconds=old.count * 60))
    today = ModelCodec(Visit, version=2)
    with pytest.raises(SnapshotVersionError, match="version 1 of the codec"):
        backend.value_state(ValueStateDescriptor("visit", today))
    state_of_today = backend.value_state(ValueStateDescriptor("visit", today, earlier=(earlier,)))
    backend.set_current_key("a")
    assert state_of_today.value() == Visit(seconds=120)
    assert file_of(backend).infos[0].codecs["element"] == CodecInfo(name="model/Visit", version=2)
    backend.close()


class FormerVisit(BaseModel):
    """What was counted once."""

    count: int = 0


class Visit(BaseModel):
    """What is counted today."""

    seconds: int = 0


def test_one_of_several_earlier_codecs_is_that_of_the_snapshot(make: Any) -> None:
    """By name and version. A version whose bytes are read as they are needs no function."""

    def pair(version: int) -> PairCodec[int]:
        return PairCodec("count", lambda value: b"%d" % value, int, version=version)

    first = backend_of()
    state = first.reducing_state(ReducingStateDescriptor("sum", pair(1), max))
    first.set_current_key("a")
    state.add(5)
    with pytest.raises(SnapshotVersionError, match="state 'sum' is in the snapshot with version 1 of the codec"):
        restored(make, file_of(first)).reducing_state(ReducingStateDescriptor("sum", pair(3), max))
    earlier = (Earlier(pair(2), lambda _value: 0), Earlier(TextCodec(), int), Earlier(pair(1)))
    backend = restored(make, file_of(first))
    renewed = backend.reducing_state(ReducingStateDescriptor("sum", pair(3), max, earlier=earlier))
    backend.set_current_key("a")
    assert renewed.get() == 5
    assert file_of(backend).infos[0].codecs["element"].version == 3
    backend.close()


@pytest.mark.parametrize(
    ("convert", "error", "problem"),
    [
        (str, UnencodableState, "'0' is a str, not a float"),
        (lambda _value: None, UnencodableState, "the function convert returned None for 0"),
        (
            lambda value: 1 / value,
            UnencodableState,
            "the function convert raised ZeroDivisionError",
        ),
    ],
)
def test_a_value_that_cannot_be_turned_is_told_and_nothing_is_lost(
    make: Any, convert: Callable[[int], Any], error: type[Exception], problem: str
) -> None:
    """With state, key group and codecs. The state is carried on, and can be asked for otherwise."""
    file = before()
    backend = restored(make, file)
    expected = bytes_of(backend)
    place = r"state 'value', key group [0-9]+, codec 'int64' of version 1 to 'float64': "
    with pytest.raises(error, match=place + problem):
        backend.value_state(ValueStateDescriptor("value", Float64Codec(), earlier=(Earlier(Int64Codec(), convert),)))
    assert bytes_of(backend) == expected
    state = backend.value_state(value_of())
    backend.set_current_key(KEYS[3])
    assert state.value() == 3
    assert bytes_of(backend) == expected
    backend.close()


def test_bytes_that_are_none_of_the_earlier_codec_are_damage(make: Any) -> None:
    """They would be another value otherwise."""
    first = backend_of()
    state = first.value_state(ValueStateDescriptor("value", BytesCodec()))
    first.set_current_key("a")
    state.update(b"\xff")
    wrong: Any = PairCodec("x", bytes, bytes.decode)
    wrong.info = BytesCodec.info
    asked = ValueStateDescriptor("value", TextCodec(), earlier=(Earlier(wrong),))
    with pytest.raises(SnapshotCorrupt, match=r"state 'value', key group [0-9]+, codec 'bytes' of version 1 to 'text'"):
        restored(make, file_of(first)).value_state(asked)


def test_keys_and_namespaces_keep_their_kinds(make: Any) -> None:
    """They say in which row a value is looked for, and in which subtask."""
    backend = restored(make, before())
    with pytest.raises(ConfigError, match="with the key codec key/integer, not key/string"):
        backend.map_state(
            MapStateDescriptor("map", KeyCodec("string"), TextCodec(), earlier=(Earlier(MsgpackCodec(), str),))
        )
    backend.close()
