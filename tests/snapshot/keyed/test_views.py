"""Views of keyed state and the snapshots made of them, which are the same on each backend."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pydantic import BaseModel

from partfile.errors import ConfigError
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.keyed.codecs import BytesCodec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.states import ENTRIES_AT_ONCE
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.state_file import ModelCodec
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import FileStreamFactory
from partfile.stores.local.store import LocalStore
from support.state.keyed import (
    BACKENDS,
    backend_of,
    bytes_of,
    encode_keyed_state,
    filled,
    list_of,
    map_of,
    mean_of,
    states_of,
    value_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.keyed.backend import KeyedStateBackend

CHECKPOINT, SAVEPOINT = SnapshotOptions(), SnapshotOptions(kind="savepoint")


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.__name__)
def make(request: pytest.FixtureRequest) -> Any:
    """The class of a backend."""
    return request.param


@pytest.mark.item("SB-04", "SS-03", "SS-15", "SS-26")
def test_what_comes_after_the_synchronous_part_is_not_in_the_snapshot(make: Any) -> None:
    """Of values, lists, maps, accumulators; whatever was added, changed or removed."""
    backend, change = filled(make=make)
    change(1)
    expected = bytes_of(backend)
    taken = backend.freeze()
    change(2)
    change(3)
    backend.set_current_key("another")
    backend.value_state(value_of()).update(1)
    for key in range(100):
        backend.set_current_key(f"key {key}")
        backend.value_state(value_of()).clear()
        backend.list_state(list_of()).update(["other"])
        backend.map_state(map_of()).clear()
    assert encode_keyed_state(taken) == expected
    taken.release()
    assert bytes_of(backend) != expected


_RELEASED_IN_A_CHILD = """
import os, sys, threading
from support.state.keyed import BACKENDS, backend_of, value_of
backend = backend_of(BACKENDS[int(sys.argv[1])])
backend.value_state(value_of())
view = backend.freeze()
held, forked = threading.Event(), threading.Event()
def hold():
    with backend._lock:
        held.set()
        forked.wait()
holder = threading.Thread(target=hold)
holder.start()
held.wait()
child = os.fork()
if child == 0:
    view.release()
    os._exit(7)
forked.set()
holder.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
view.release()
backend.close()
"""


@pytest.mark.parametrize("number", range(len(BACKENDS)))
def test_a_child_of_a_fork_releases_a_view_though_a_thread_of_its_parent_did(number: int) -> None:
    """The thread that had the lock is missing there, and would never give it back."""
    # A group of its own, so that a child that waits ends with it.
    process = subprocess.Popen(
        [sys.executable, "-c", _RELEASED_IN_A_CHILD, str(number)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    try:
        assert process.communicate(timeout=60)[0] == "7\n"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Listed(BaseModel, frozen=True):
    """Frozen, though its list can change."""

    numbers: list[int]


@pytest.mark.item("SB-04", "SS-03")
def test_a_list_in_a_frozen_model_changes_neither_state_nor_a_snapshot(make: Any) -> None:
    """Neither that of a value which was given, nor of one that was given out."""
    backend = backend_of(make)
    state = backend.value_state(ValueStateDescriptor("models", ModelCodec(Listed)))
    backend.set_current_key("a")
    given = Listed(numbers=[1])
    state.update(given)
    expected = bytes_of(backend)
    taken = backend.freeze()
    given.numbers.append(2)
    found = state.value()
    assert found is not None
    found.numbers.append(2)
    assert state.value() == Listed(numbers=[1])
    assert encode_keyed_state(taken) == expected
    taken.release()


def test_any_number_of_snapshots_may_be_open(make: Any) -> None:
    """Each shows its own instant, in whatever order they are written and released."""
    backend, change = filled(20, make)
    expected, taken = [], []
    for number in range(6):
        change(number)
        expected.append(bytes_of(backend))
        taken.append(backend.freeze())
        if number == 3:
            taken[1].release()
            taken[3].release()
    change(7)
    for number in (5, 0, 4, 2):
        assert encode_keyed_state(taken[number]) == expected[number]
        taken[number].release()
        change(8 + number)


def test_a_snapshot_keeps_its_view_when_another_is_released(make: Any) -> None:
    """Also where both have the same dictionaries, because nothing changed between them."""
    backend, change = filled(20, make)
    change(1)
    expected = bytes_of(backend)
    for kept, released in ((0, 1), (1, 0)):
        taken = [backend.freeze(), backend.freeze()]
        taken[released].release()
        change(2)
        assert encode_keyed_state(taken[kept]) == expected
        taken[kept].release()
        backend, change = filled(20, make)
        change(1)


@pytest.mark.item("SS-17")
def test_a_snapshot_is_written_while_the_state_changes(make: Any) -> None:
    """Another thread encodes the view again and again, and sees the same each time."""
    backend, change = filled(300, make)
    change(1)
    expected = bytes_of(backend)
    taken, is_over = backend.freeze(), threading.Event()

    def encode() -> set[bytes]:
        found = set()
        while not is_over.is_set():
            found.add(encode_keyed_state(taken))
        return found | {encode_keyed_state(taken)}

    with ThreadPoolExecutor(1) as pool:
        encoded = pool.submit(encode)
        try:
            for number in range(2, 12):
                change(number)
        finally:
            is_over.set()
        assert encoded.result() == {expected}
    taken.release()


@pytest.mark.item("SS-02", "SS-04", "SS-06", "SS-08", "SS-14", "SS-25", "SS-34")
@pytest.mark.parametrize("options", [CHECKPOINT, SAVEPOINT], ids=["checkpoint", "savepoint"])
@pytest.mark.parametrize("is_pooled", [False, True])
def test_the_strategy_writes_the_canonical_file(
    make: Any, tmp_path: Path, options: SnapshotOptions, is_pooled: bool
) -> None:
    """Inline or on a pool, for a checkpoint or a savepoint; a backend without states writes nothing."""
    backend, change = filled(make=make)
    change(1)
    expected = bytes_of(backend)
    with LocalStore(str(tmp_path)) as store, ThreadPoolExecutor(1) as pool:
        streams = FileStreamFactory(store, "job", 1)
        runner = StrategyRunner(KeyedStateStrategy(backend), pool if is_pooled else None)
        handle = runner.snapshot(1, 0, streams, options).result().primary
        assert isinstance(handle, FileHandle)
        assert store.read_file(f"job/{handle.path}", 1 << 30) == expected
        assert backend.context.frozen == 0
        nothing = StrategyRunner(KeyedStateStrategy(backend_of(make))).snapshot(2, 0, streams, options).result()
        assert nothing.primary is None


@pytest.mark.item("SS-18", "LR-12")
def test_a_local_copy_is_the_same_file(make: Any, tmp_path: Path) -> None:
    """Where it is wanted, and never of a savepoint."""
    backend, change = filled(make=make)
    change(1)
    with LocalStore(str(tmp_path)) as store, LocalStore(str(tmp_path / "local")) as local:
        strategy = KeyedStateStrategy(backend, LocalStateStore(local, "subtask-0"))
        streams = FileStreamFactory(store, "job", 1)
        result = StrategyRunner(strategy).snapshot(1, 0, streams, CHECKPOINT).result()
        assert isinstance(result.local, FileHandle)
        assert local.read_file(f"subtask-0/{result.local.path}", 1 << 30) == bytes_of(backend)
        assert StrategyRunner(strategy).snapshot(2, 0, streams, SAVEPOINT).result().local is None


def test_what_was_restored_and_is_not_registered_is_carried_on(make: Any) -> None:
    """Byte for byte, also when it is restored once more, and beside what is registered."""
    backend, change = filled(make=make)
    change(1)
    expected = bytes_of(backend)
    carried = backend_of(make, files=[KeyedFile(expected, "file")])
    assert bytes_of(carried) == expected
    carried.value_state(value_of())
    assert bytes_of(carried) == expected
    again = backend_of(make, files=[KeyedFile(bytes_of(carried), "file")])
    for register in (
        lambda: again.list_state(list_of()),
        lambda: again.map_state(map_of()),
        lambda: again.aggregating_state(mean_of()),
    ):
        register()
        assert bytes_of(again) == expected


def test_a_large_batch_is_as_its_rows(make: Any, rng: Any) -> None:
    """Groups are found by columns, rows by their bytes: the same state comes of both."""
    keys = [f"key {rng.randrange(1000)}" for _ in range(3000)]
    alone, batched = backend_of(make), backend_of(make)
    state = alone.value_state(value_of())
    for number, key in enumerate(keys):
        alone.set_current_key(key)
        state.update(number)
    batched.value_state(value_of()).update_batch(batched.key_batch(pa.array(keys)), list(range(len(keys))))
    assert bytes_of(alone) == bytes_of(batched)


PAYS_EACH_TIME = Ttl(60, cleanup_entries=ENTRIES_AT_ONCE)


def calls_of(backend: KeyedStateBackend, ttl: Ttl = PAYS_EACH_TIME) -> dict[str, Callable[[], Any]]:
    """Every way to read or change a backend, by name. Each of its five states expires."""
    value, rows, pairs, largest, mean = states_of(backend, ttl)
    keys = backend.key_batch(pa.array(["a", "b"]))
    backend.set_current_key("a")
    return {
        "ValueState.value": value.value,
        "ValueState.update": lambda: value.update(2),
        "ValueState.update to None": lambda: value.update(None),
        "ValueState.clear": value.clear,
        "ValueState.value_batch": lambda: value.value_batch(keys),
        "ValueState.update_batch": lambda: value.update_batch(keys, [2, 3]),
        "ListState.get": rows.get,
        "ListState.add": lambda: rows.add("x"),
        "ListState.update": lambda: rows.update("x"),
        "ListState.update to nothing": lambda: rows.update(()),
        "MapState.get": lambda: pairs.get(1),
        "MapState.put": lambda: pairs.put(1, 2),
        "MapState.remove": lambda: pairs.remove(1),
        "MapState.entries": pairs.entries,
        "MapState.is_empty": pairs.is_empty,
        "MapState.clear": pairs.clear,
        "ReducingState.get": largest.get,
        "ReducingState.add": lambda: largest.add(1),
        "AggregatingState.get": mean.get,
        "AggregatingState.add": lambda: mean.add(1),
        "set_current_key": lambda: backend.set_current_key("a"),
        "current_key": lambda: backend.current_key,
        "key_batch": lambda: backend.key_batch(pa.array(["a"])),
        "advance_time": lambda: backend.advance_time(1 << 40),
        "value_state": lambda: backend.value_state(value_of(ttl)),
        "value_state of another": lambda: backend.value_state(ValueStateDescriptor("another", BytesCodec())),
        "drop_state": lambda: backend.drop_state("old"),
        "freeze": backend.freeze,
    }


@pytest.mark.item("SS-04")
@pytest.mark.parametrize("is_seen", [False, True], ids=["without a view", "with a view"])
def test_a_closed_backend_refuses_every_call_but_its_views(make: Any, is_seen: bool) -> None:
    """Each with the same error, before anything is looked through. A view shows what it was taken of."""
    backend = backend_of(make)
    calls = calls_of(backend)
    for change in ("ValueState.update", "ListState.add", "MapState.put", "ReducingState.add", "AggregatingState.add"):
        calls[change]()
    expected = bytes_of(backend)
    views = [backend.freeze() for _ in range(2 * is_seen)]
    looks: list[int] = []
    for table in backend.tables().values():
        table.pay = looks.append  # type: ignore[attr-defined]
    backend.close()
    backend.close()
    for name, call in calls.items():
        with pytest.raises(ConfigError, match="the keyed state is closed") as refused:
            call()
        assert refused.value.hint, name
    assert looks == []
    for view in views:
        assert encode_keyed_state(view) == expected
        view.release()


@pytest.mark.item("TT-19")
def test_a_state_that_expires_is_refused_until_the_time_is_told(make: Any) -> None:
    """A snapshot does not hold it: what a restored subtask wrote as of 1970 would expire with the first time told."""
    before = backend_of(make)
    state = before.value_state(value_of(Ttl(60)))
    before.advance_time(1_000_000)
    before.set_current_key("a")
    state.update(7)
    backend = backend_of(make, files=[KeyedFile(bytes_of(before), "file")], is_told_time=False)
    calls = calls_of(backend, Ttl(60))
    held = bytes_of(backend)
    removes = {
        "ValueState.update to None",
        "ValueState.clear",
        "ListState.update to nothing",
        "MapState.remove",
        "MapState.clear",
    }
    accesses = {name for name in calls if "State." in name} - removes
    for name in sorted(accesses) * 2:
        with pytest.raises(ConfigError, match="expires, and the backend does not know the time") as refused:
            calls[name]()
        assert "advance_time(now_ms)" in str(refused.value.hint), name
        backend.set_current_key("a")
    assert bytes_of(backend) == held
    backend.advance_time(1_000_001)
    assert calls["ValueState.value"]() == 7
    for name in sorted(accesses - {"ValueState.value"}):
        calls[name]()
        backend.set_current_key("a")


def test_a_state_that_does_not_expire_needs_no_time(make: Any) -> None:
    """Though another one does, for which the choice of a key pays."""
    backend = backend_of(make, is_told_time=False)
    ttl = Ttl(60, cleanup_entries=ENTRIES_AT_ONCE, cleanup_on="key")
    expiring = backend.list_state(list_of(ttl))
    state = backend.value_state(value_of())
    backend.set_current_key("a")
    state.update(1)
    assert state.value_batch(backend.key_batch(pa.array(["a"]))) == [1]
    backend.set_current_key("a")
    with pytest.raises(ConfigError, match="does not know the time"):
        expiring.add("x")


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_view_that_was_released_is_refused(make: Any, is_closed: bool) -> None:
    """Also one of a backend that is closed, and one whose rows are those of states that are not registered."""
    backend, change = filled(3, make)
    change(1)
    carried = backend_of(make, files=[KeyedFile(bytes_of(backend), "file")])
    for one in (backend, carried):
        view = one.freeze()
        if is_closed:
            one.close()
        view.release()
        view.release()
        with pytest.raises(ConfigError, match="the view of keyed state was released") as refused:
            encode_keyed_state(view)
        assert refused.value.hint
        one.close()
