"""A restore of keyed state in RocksDB: from links on this machine, and from S3; both open the files.

The time until a value of the restored state can be read. The server keeps its objects in this machine's memory, so the
time of a network is missing, which is in its favour.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING

from figures import Report, figure_of_rounds
from partfile.snapshot.keyed.codecs import BytesCodec
from partfile.snapshot.keyed.descriptors import ValueStateDescriptor
from partfile.snapshot.keyed.keys import KeyCodec, group_range
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.storage import CheckpointStorage
from partfile.snapshot.strategy import SnapshotOptions, StrategyRunner
from partfile.stores.local.store import LocalStore
from partfile.stores.registry import open_store
from support.s3.ceph import RadosGateway
from support.s3.life import store_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.restore import RestoredFile
    from scale import Scale

KEYS = 1 << 20
VALUE_BYTES = 1 << 10
GROUPS = 128
GOAL = 0.2
_VALUES = ValueStateDescriptor("value", BytesCodec())


def run(data: Path, work: Path, scale: Scale) -> Report:
    """One state of a gibibyte, restored again and again: from S3, then from links; the first of each is dropped."""
    del data  # made on the fly
    report, keys = Report(), scale.of(KEYS)
    options = RocksDBOptions(directory=str(work / "engine"), compression="none")
    make = partial(RocksDBBackend, KeyCodec("integer"), group_range(0, 1, GROUPS), GROUPS, options=options)
    with (
        RadosGateway(work / "server") as server,
        open_store(f"s3://{server.bucket()}/state", store_options(server)) as store,
        LocalStore(str(work / "local")) as disk,
    ):
        storage, local = CheckpointStorage(store, "job"), LocalStateStore(disk, "0")
        handle, size_bytes = _written(make(), keys, storage, local)
        rounds = list[tuple[float, float]]()
        for number in range(scale.rounds + 1):
            read = partial(read_keyed_files, storage, [handle], directory=str(work / "read"))
            remote_s, local_s = (_restored_s(make, partial(read, local=one), keys) for one in (None, local))
            print(f"  from S3 {remote_s:.2f} s, from links {local_s:.2f} s", flush=True)
            if number:
                rounds.append((remote_s, local_s))
    remote_s, local_s = rounds[-1]
    note = f"{local_s:.2f} and {remote_s:.2f} s of {size_bytes >> 20} MiB"
    ratios = [mine / theirs for theirs, mine in rounds]
    report.figures.append(
        figure_of_rounds("restore: from links on this machine / from S3", ratios, GOAL, "at most", note)
    )
    return report


def _written(
    backend: RocksDBBackend, keys: int, storage: CheckpointStorage, local: LocalStateStore
) -> tuple[StateHandle, int]:
    """Fill a state, take a snapshot of it, and return its handle and the bytes of its values."""
    state = backend.value_state(_VALUES)
    values = os.urandom(VALUE_BYTES * 2)
    for key in range(keys):
        backend.set_current_key(key)
        begin = key % VALUE_BYTES
        state.update(values[begin : begin + VALUE_BYTES])
    strategy = IncrementalStrategy(backend, local)
    taken = StrategyRunner(strategy).snapshot(1, 0, storage.stream_factory(1), SnapshotOptions()).result(600).primary
    if taken is None:
        raise SystemExit("the snapshot is empty: the figures mean nothing")
    with read_keyed_files(storage, [taken], local) as (found,):
        if found.source != "local":
            raise SystemExit("there are no links to the files: the figures mean nothing")
    backend.close()
    return taken, keys * VALUE_BYTES


def _restored_s(
    make: Callable[..., RocksDBBackend], read: Callable[[], AbstractContextManager[list[RestoredFile]]], keys: int
) -> float:
    """Seconds until the last value that was written can be read."""
    os.sync()
    began = time.perf_counter()
    with read() as (found,):
        backend = make([found.file])
        state = backend.value_state(_VALUES)
        backend.set_current_key(keys - 1)
        value = state.value()
        took_s = time.perf_counter() - began
    if value is None or len(value) != VALUE_BYTES:
        raise SystemExit("a value is missing after a restore: the figures mean nothing")
    backend.close()
    return took_s
