"""What a program hands to keyed state by mistake: each is refused by name, with what to write."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pydantic import BaseModel, Field, PrivateAttr, SecretStr, field_validator

from partfile.errors import ConfigError, UnencodableState
from partfile.snapshot.documents import InlineHandle
from partfile.snapshot.keyed.codecs import ArrowCodec, Int64Codec, PairCodec, TextCodec
from partfile.snapshot.keyed.descriptors import (
    AggregatingStateDescriptor,
    Earlier,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.keys import KeyCodec, KeyGroupRange, group_range
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBMemory, RocksDBOptions
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.shared_files import SharedFiles
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.keyed.ttl import Ttl
from partfile.snapshot.operator_state import BroadcastStateDescriptor, OperatorStateStore, write_operator_state
from partfile.snapshot.operator_state import ListStateDescriptor as OperatorList
from partfile.snapshot.state_file import JsonCodec, ModelCodec
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import OperatorStateStrategy, SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import MemoryStreamFactory
from partfile.stores.local.store import LocalStore
from partfile.stores.memory import MemoryMetadataStore
from support.sinks.life_cycle import in_child
from support.state.keyed import BACKENDS, backend_of, bytes_of, file_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.backend import KeyedStateBackend

GROUPS: Any = KeyGroupRange(0, 127)
ONE = file_of(backend_of(HeapBackend))
OFFSETS = pa.py_buffer(b"\0\0\0\0\1\0\0\0")


class Unfinished(BaseModel):
    """Names a class that no one has written."""

    other: NotThere  # type: ignore[name-defined] # noqa: F821 - that is what is tested.


def keyed(descriptor: Any) -> Any:
    """A state of a key."""
    backend = backend_of()
    backend.set_current_key("a")
    return backend._state(descriptor, type(descriptor))


def opened(handles: list[StateHandle]) -> None:
    """Read nothing of what is no handle."""
    storage = CheckpointStorage(MemoryMetadataStore(), "job", FileStreamSettings())
    with read_keyed_files(storage, handles):
        raise AssertionError("it was read")


WRONG: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a text as keys, heap": (lambda: HeapBackend("string", GROUPS, 128), "no codec of keys", "KeyCodec('string')"),  # type: ignore[arg-type]
    "a text as keys, RocksDB": (
        lambda: RocksDBBackend("string", GROUPS, 128),  # type: ignore[arg-type]
        "no codec of keys",
        "KeyCodec('string')",
    ),
    "a class as a codec": (
        lambda: ValueStateDescriptor("count", Int64Codec),  # type: ignore[arg-type]
        "state 'count': codec=",
        "codec=JsonCodec()",
    ),
    "a class as an earlier codec": (lambda: Earlier(Int64Codec, float), "Earlier: codec=", "codec=JsonCodec()"),  # type: ignore[arg-type]
    "a class as the codec of operator state": (
        lambda: OperatorList("words", JsonCodec),  # type: ignore[arg-type]
        "list state 'words': codec=",
        "JsonCodec()",
    ),
    "a class as the codec of broadcast keys": (
        lambda: BroadcastStateDescriptor("words", JsonCodec, JsonCodec()),  # type: ignore[arg-type]
        "broadcast state 'words': key_codec=",
        "JsonCodec()",
    ),
    "a class as the codec of broadcast values": (
        lambda: BroadcastStateDescriptor("words", JsonCodec(), JsonCodec),  # type: ignore[arg-type]
        "broadcast state 'words': value_codec=",
        "JsonCodec()",
    ),
    "a codec of values as that of a map's keys": (
        lambda: MapStateDescriptor("words", TextCodec(), Int64Codec()),  # type: ignore[arg-type]
        "state 'words': key_codec=",
        "Write key_codec=KeyCodec('string')",
    ),
    "no codec of a map's keys": (
        lambda: MapStateDescriptor("words", None, Int64Codec()),  # type: ignore[arg-type]
        "state 'words': key_codec=None is no kind of keys",
        "Write key_codec=KeyCodec('string')",
    ),
    "a number as what converts": (
        lambda: Earlier(Int64Codec(), 5),  # type: ignore[arg-type]
        "Earlier: convert=5 is no function",
        "convert=float",
    ),
    "bytes as a name": (
        lambda: ValueStateDescriptor(b"count", Int64Codec()),  # type: ignore[arg-type]
        "name=b'count' is no name of a state",
        "name='count'",
    ),
    "a number as a former name": (
        lambda: ValueStateDescriptor("count", Int64Codec(), formerly=5),  # type: ignore[arg-type]
        "state 'count': formerly=5 is no name of a state",
        "formerly='count'",
    ),
    "no function that reduces": (
        lambda: ReducingStateDescriptor("sum", Int64Codec(), None),  # type: ignore[arg-type]
        "state 'sum': reduce=None is no function",
        "reduce=FUNCTION",
    ),
    "no function that adds": (
        lambda: AggregatingStateDescriptor("mean", Int64Codec(), int, 5, int),  # type: ignore[arg-type]
        "state 'mean': add=5 is no function",
        "add=FUNCTION",
    ),
    "a class as options of RocksDB": (
        lambda: RocksDBBackend(KeyCodec("string"), GROUPS, 128, options=RocksDBOptions),  # type: ignore[arg-type]
        "is no RocksDBOptions",
        "options=RocksDBOptions()",
    ),
    "a number as the memory of RocksDB": (
        lambda: RocksDBBackend(KeyCodec("string"), GROUPS, 128, memory=1 << 20),  # type: ignore[arg-type]
        "memory=1048576 is no RocksDBMemory",
        "memory=RocksDBMemory()",
    ),
    "a file twice": (lambda: backend_of(HeapBackend, files=[ONE, ONE]), "is in restored twice", "Give each once"),
    "a handle as handles": (
        lambda: opened(InlineHandle(data=b"x")),  # type: ignore[arg-type]
        "is no list",
        "handles=[result.primary]",
    ),
    "no handle": (lambda: opened([None]), "None is no handle of state", "if one.primary]"),  # type: ignore[list-item]
    "a codec of keys as one of values": (
        lambda: ValueStateDescriptor("count", KeyCodec("integer")),  # type: ignore[arg-type]
        "state 'count': codec=KeyCodec('integer') is no codec",
        "codec=JsonCodec()",
    ),
    "a text as the number of key groups": (
        lambda: HeapBackend(KeyCodec("string"), GROUPS, "128"),  # type: ignore[arg-type]
        "max_parallelism='128' is no whole number",
        "max_parallelism=1",
    ),
    "half a subtask": (lambda: group_range(0.5, 2, 128), "subtask=0.5 is no whole number", "subtask=1"),  # type: ignore[arg-type]
    "a text as options": (
        lambda: StrategyRunner(KeyedStateStrategy(backend_of())).snapshot(1, 0, MemoryStreamFactory(), "savepoint"),  # type: ignore[arg-type]
        "options='savepoint' are none",
        "SnapshotOptions('savepoint')",
    ),
    "a text as the place of copies": (
        lambda: KeyedStateStrategy(backend_of(), "copies"),  # type: ignore[arg-type]
        "local='copies' is no place for copies",
        "local=LocalStateStore(",
    ),
    "a text as the storage of claims": (
        lambda: IncrementalStrategy(backend_of(RocksDBBackend), claims="job"),  # type: ignore[arg-type]
        "claims='job' is no storage",
        "claims=CheckpointStorage(",
    ),
    "a handle for the registry": (
        lambda: SharedFiles(CheckpointStorage(MemoryMetadataStore(), "job")).register(1, InlineHandle(data=b"x")),  # type: ignore[arg-type]
        "is no list",
        "handles=[result.primary]",
    ),
    "no schema": (lambda: ArrowCodec({"id": "int64"}), "is no schema of Arrow", "ArrowCodec(batch.schema)"),
    "no functions of a codec": (
        lambda: PairCodec("point", None, None),  # type: ignore[arg-type]
        "the codec 'point': encode=None is no function",
        "PairCodec('point', encode, decode)",
    ),
    "a model without a class that it names": (
        lambda: ModelCodec(Unfinished),
        "Unfinished names a class that is not there yet",
        "Unfinished.model_rebuild()",
    ),
    "a text for yes or no": (
        lambda: Ttl(1, returns_expired="no"),  # type: ignore[arg-type]
        "Ttl: returns_expired='no'",
        "returns_expired=False",
    ),
    "a list as refresh": (lambda: Ttl(1, refresh=["read"]), "Ttl: refresh=['read']", "refresh='write'"),  # type: ignore[arg-type]
    "a function customize that raises": (
        lambda: RocksDBBackend(
            KeyCodec("string"), GROUPS, 128, options=RocksDBOptions(customize=lambda options: options.no_such())
        ),
        "the function customize raised AttributeError",
        "customize=None",
    ),
    "a text as a ratio": (
        lambda: RocksDBMemory(write_buffer_ratio="half"),  # type: ignore[arg-type]
        "write_buffer_ratio='half'",
        "write_buffer_ratio=0.5",
    ),
    "no list of elements": (
        lambda: keyed(ListStateDescriptor("list", Int64Codec())).add_all(None),
        "elements=None of the state 'list' are no list",
        "elements=[...]",
    ),
    "no mapping of pairs": (
        lambda: keyed(MapStateDescriptor("map", KeyCodec("string"), Int64Codec())).put_all([("a", 1)]),
        "pairs=[('a', 1)] of the state 'map' are no mapping",
        "pairs={KEY: VALUE}",
    ),
    "text that is none": (
        lambda: backend_of().key_batch(pa.Array.from_buffers(pa.string(), 1, [None, OFFSETS, pa.py_buffer(b"\xff")])),
        "a key cannot be of the kind string",
        "KeyCodec(",
    ),
    "a pair as the groups": (
        lambda: HeapBackend(KeyCodec("string"), (0, 127), 128),  # type: ignore[arg-type]
        "groups=(0, 127) is no range",
        "group_range(subtask, parallelism, max_parallelism)",
    ),
    "a number as restored files": (
        lambda: HeapBackend(KeyCodec("string"), GROUPS, 128, 5),  # type: ignore[arg-type]
        "restored=5 is no list",
        "restored=[one.file for one in files]",
    ),
    "no codec": (lambda: ListStateDescriptor("count", "int"), "state 'count': codec='int'", "codec=JsonCodec()"),  # type: ignore[arg-type]
    "a class as a backend": (
        lambda: KeyedStateStrategy(HeapBackend),  # type: ignore[arg-type]
        "no backend of keyed state",
        "KeyedStateStrategy(HeapBackend(",
    ),
    "increments of the heap": (
        lambda: IncrementalStrategy(backend_of(HeapBackend)),  # type: ignore[arg-type]
        "no backend on RocksDB",
        "KeyedStateStrategy(backend)",
    ),
    "a list as a column": (
        lambda: backend_of().key_batch(["a"]),
        "of the type list is no column of Arrow",
        "KeyCodec(",
    ),
    "a kind of snapshot": (
        lambda: SnapshotOptions("Savepoint"),  # type: ignore[arg-type]
        "kind='Savepoint' is no kind of snapshot",
        "SnapshotOptions('savepoint')",
    ),
}


def snapshot_of(backend: KeyedStateBackend, strategy: Any, storage: CheckpointStorage) -> StateHandle:
    """A snapshot of one value."""
    backend.set_current_key("a")
    backend.value_state(value_of()).update(1)
    running = StrategyRunner(strategy).snapshot(1, 0, storage.stream_factory(1), SnapshotOptions())
    handle: StateHandle | None = running.result().primary
    assert handle is not None
    return handle


@pytest.mark.parametrize("name", WRONG)
def test_what_is_none_of_its_kind_is_refused(name: str) -> None:
    """Where it is given, and not where it is used."""
    call, problem, to_write = WRONG[name]
    with pytest.raises(ConfigError) as refused:
        call()
    assert problem in str(refused.value)
    assert to_write in str(refused.value.hint)


@pytest.mark.parametrize("make", BACKENDS, ids=lambda make: make.__name__)
def test_what_says_where_a_file_came_from_is_no_file(tmp_path: Path, make: Any) -> None:
    """A backend takes the file within it."""
    storage = CheckpointStorage(LocalStore(str(tmp_path)), "job", FileStreamSettings())
    backend = backend_of(make)
    handle = snapshot_of(backend, KeyedStateStrategy(backend), storage)
    with read_keyed_files(storage, [handle]) as files:
        with pytest.raises(ConfigError, match="no file of keyed state") as refused:
            backend_of(make, files=files)  # type: ignore[arg-type]
        assert "restored=[one.file for one in files]" in str(refused.value.hint)
        assert bytes_of(backend_of(make, files=[one.file for one in files])) == bytes_of(backend)


@pytest.mark.parametrize("make", BACKENDS, ids=lambda make: make.__name__)
def test_files_of_rocksdb_are_gone_behind_the_block_that_read_them(tmp_path: Path, make: Any) -> None:
    """A backend that is made too late is told where it has to be made."""
    storage = CheckpointStorage(LocalStore(str(tmp_path)), "job", FileStreamSettings())
    backend = backend_of(RocksDBBackend)
    handle = snapshot_of(backend, IncrementalStrategy(backend), storage)  # type: ignore[arg-type]
    with read_keyed_files(storage, [handle]) as files:
        pass
    with pytest.raises(ConfigError, match="removed at the end of the block") as refused:
        backend_of(make, files=[one.file for one in files])
    assert "with read_keyed_files(...) as files:" in str(refused.value.hint)
    backend.close()


class Payment(BaseModel):
    """What is paid."""

    amount: int = 0


class Card(Payment):
    """A kind of it."""

    last4: str = ""


class Order(BaseModel):
    """Fields that may hold what their type does not say."""

    payment: Payment = Payment()
    anything: Any = None
    hidden: int = Field(0, exclude=True)
    secret: SecretStr = SecretStr("")
    plus: int = 0
    _cached: int = PrivateAttr(0)

    @field_validator("plus")
    @classmethod
    def _more(cls, value: int) -> int:
        return value + 1 if value else 0


def private() -> Order:
    """With a value that is in no file."""
    made = Order()
    made._cached = 1
    return made


@pytest.mark.parametrize("make", BACKENDS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "value",
    [
        Order(payment=Card(amount=1, last4="1234")),
        Order(anything=(1, 2)),
        Order(anything=Payment()),
        Order(hidden=1),
        Order(secret=SecretStr("s3cret")),
        Order(plus=5),
        private(),
        Order(anything=b"\xff"),
        Order(anything=object()),
    ],
    ids=["cut to its base", "tuple", "model", "left out", "secret", "validator", "private", "no text", "no form"],
)
def test_a_model_that_would_come_back_as_another_one_is_refused(make: Any, value: Order) -> None:
    """When it is given, by the name of its state: a restore would change it without a word."""
    backend = backend_of(make)
    state = backend.value_state(ValueStateDescriptor("order", ModelCodec(Order)))
    backend.set_current_key("a")
    kept = Order(payment=Payment(amount=2), anything=[1, {"a": None}])
    state.update(kept)
    with pytest.raises(UnencodableState, match=r"state 'order', key group \d+, codec 'model/Order': a"):
        state.update(value)
    assert state.value() == kept
    backend.close()


@pytest.mark.parametrize("make", BACKENDS, ids=lambda make: make.__name__)
def test_a_backend_is_closed_at_the_end_of_its_block(make: Any) -> None:
    """Also where the block fails."""
    with pytest.raises(ZeroDivisionError), backend_of(make) as backend:
        raise ZeroDivisionError
    with pytest.raises(ConfigError, match="the keyed state is closed"):
        backend.key_batch(pa.array(["a"]))


def test_an_element_that_cannot_be_written_names_its_state(tmp_path: Path) -> None:
    """In the caller's thread, in a snapshot in two parts, and of either kind of state."""
    for descriptor in (OperatorList("words", JsonCodec()), BroadcastStateDescriptor("words", JsonCodec(), JsonCodec())):
        states = OperatorStateStore({})
        if isinstance(descriptor, OperatorList):
            states.list_state(descriptor).update([float("nan")])
        else:
            states.broadcast_state(descriptor).put("a", float("nan"))
        streams = CheckpointStorage(LocalStore(str(tmp_path)), "job", FileStreamSettings()).stream_factory(1)
        with pytest.raises(UnencodableState, match="state 'words', codec 'json'"):
            write_operator_state(states, streams)
        running = StrategyRunner(OperatorStateStrategy(states)).snapshot(1, 0, streams, SnapshotOptions())
        with pytest.raises(UnencodableState, match="state 'words', codec 'json'"):
            running.result()
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_a_fork_waits_for_no_thread_that_told_a_strategy() -> None:
    """One of the parent had its lock at the fork, and the child lacks that thread."""
    strategy = IncrementalStrategy(backend_of(RocksDBBackend))  # type: ignore[arg-type]

    def confirm() -> None:
        signal.alarm(60)
        strategy.confirm(1)

    with strategy._lock, strategy._is_writing:
        assert in_child(confirm) == 0
