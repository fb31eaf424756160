"""Every snapshot strategy, inline and on a pool, in every end that a snapshot can come to.

Whatever the end is: the view is released exactly once, what was opened is closed, and a file that no handle names is
deleted. What ends well gives the same bytes on both ways.

Runs of keys, the state of deduplication, are not among them: no strategy writes them. A task writes a run when its
batch ends, in its own thread, so that there is no view to release and nothing that goes on beside it to be cancelled.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import NotApplied, SnapshotCancelled
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.strategy import OperatorStateStrategy, SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import FileStreamFactory
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import FailAt, intercept
from support.state.keyed import filled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.snapshot.strategy import RunningSnapshot

WAIT_S = 30
OPERATOR_ROWS = ListStateDescriptor("rows", JsonCodec())
KINDS = ("operator", "heap", "rocksdb", "pieces", "incremental")


class Releases:
    """A strategy whose releases are counted, and whose asynchronous part says when it begins and ends.

    Args:
        strategy: The one that is tested.
        before: Called as the asynchronous part begins.
        after: Called as it has its result.
    """

    def __init__(
        self, strategy: Any, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None
    ) -> None:
        self._strategy = strategy
        self._before = before
        self._after = after
        self.releases = 0

    def sync_prepare_resources(self, options: SnapshotOptions) -> Any:
        """Take its view, whose release is counted."""
        resources = self._strategy.sync_prepare_resources(options)
        release = resources.release

        def counted() -> None:
            self.releases += 1
            release()

        resources.release = counted
        return resources

    def async_snapshot(self, *arguments: Any) -> Any:
        """Its asynchronous part."""
        supplier = self._strategy.async_snapshot(*arguments)

        def supply(registry: Any) -> Any:
            self._before()
            result = supplier(registry)
            self._after()
            return result

        return supply


class Subject:
    """One strategy over some state, a store for its files and one for local copies."""

    def __init__(self, kind: str, base: Path, pool: ThreadPoolExecutor | None) -> None:
        self.base = base
        self.pool = pool
        self.local = LocalStore(str(base / "local"))
        self.store = LocalStore(str(base / "primary"))
        copies = LocalStateStore(self.local, "subtask-0")
        self.copies = kind in {"heap", "rocksdb"}
        self.is_one_file = kind not in {"incremental", "pieces"}
        self.close: Callable[[], object] = lambda: None
        if kind == "operator":
            states = OperatorStateStore()
            states.list_state(OPERATOR_ROWS).update(["x" * 100] * 100)
            self.strategy: Any = OperatorStateStrategy(states)
        else:
            backend, change = filled(30, HeapBackend if kind in {"heap", "pieces"} else RocksDBBackend)
            change(1)
            if kind == "incremental":
                assert isinstance(backend, RocksDBBackend)
                self.strategy = IncrementalStrategy(backend)
            elif kind == "pieces":
                self.strategy = KeyedStateStrategy(backend, piece_bytes=400)
            else:
                self.strategy = KeyedStateStrategy(backend, copies)
            self.close = backend.close

    def start(self, counted: Releases, store: Any = None, kind: Any = "checkpoint") -> RunningSnapshot:
        """Begin a snapshot, whose state does not lie inline."""
        streams = FileStreamFactory(store or self.store, "job", 3, inline_threshold_bytes=0)
        return StrategyRunner(counted, self.pool).snapshot(3, 1000, streams, SnapshotOptions(kind=kind))

    def files(self) -> list[str]:
        """All files, of both stores."""
        return sorted(path.relative_to(self.base).as_posix() for path in self.base.rglob("*") if path.is_file())


@pytest.fixture(params=["inline", "pool"])
def pool(request: pytest.FixtureRequest) -> Iterator[ThreadPoolExecutor | None]:
    """None, or a pool of one thread."""
    if request.param == "inline":
        yield None
        return
    with ThreadPoolExecutor(1) as made:
        yield made


@pytest.fixture(params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path: Path, pool: ThreadPoolExecutor | None) -> Iterator[Subject]:
    """A strategy that runs inline or on the pool."""
    made = Subject(request.param, tmp_path, pool)
    yield made
    made.close()


def bytes_of(store: LocalStore, directory: str, handle: Any) -> bytes:
    """The state that a handle names."""
    assert isinstance(handle, FileHandle)
    return store.read_file(f"{directory}/{handle.path}", 1 << 30)


@pytest.mark.item("SS-05", "SS-06", "SS-08", "SS-14", "SS-18", "SS-34")
def test_a_snapshot_that_completes(subject: Subject) -> None:
    """It has a file, and one of keyed state a local copy unless it is a savepoint. All have the same bytes.

    An incremental one has a document and the files that it names; its savepoint is as the others. State in pieces has
    several files and the list of them.
    """
    found = []
    for kind, is_copied in (("checkpoint", subject.copies), ("savepoint", False)):
        counted = Releases(subject.strategy)
        result = subject.start(counted, kind=kind).result(WAIT_S)
        assert counted.releases == 1
        data = bytes_of(subject.store, "job", result.primary)
        found.append(data)
        if is_copied:
            assert bytes_of(subject.local, "subtask-0", result.local) == data
        else:
            assert result.local is None
    if subject.is_one_file:
        assert found[0] == found[1]
        assert len(subject.files()) == 2 + 2 * subject.copies
    else:
        assert len(subject.files()) > 8


@pytest.mark.item("SS-06", "LR-03")
def test_a_snapshot_whose_store_fails(subject: Subject) -> None:
    """At each call in turn: nothing is left but what the next one that completes writes."""
    failed = 0
    while True:
        counted = Releases(subject.strategy)
        store = intercept(subject.store, FailAt(failed + 1, NotApplied("no room")))
        running = subject.start(counted, store)
        try:
            result = running.result(WAIT_S)
        except NotApplied:
            assert counted.releases == 1
            assert subject.files() == []
            failed += 1
            continue
        break
    assert failed >= 1
    assert counted.releases == 1
    assert result.primary is not None
    if subject.is_one_file:
        assert len(subject.files()) == 1 + 2 * subject.copies


@pytest.mark.item("SS-06", "LR-02", "LR-16")
@pytest.mark.parametrize("at", [1, 2])
def test_a_snapshot_whose_local_copy_fails(subject: Subject, at: int) -> None:
    """It goes on without the copy, of which nothing is left: of the state, or the document that tells of it."""
    if not subject.copies:
        pytest.skip("this strategy makes no copies")
    counted = Releases(subject.strategy)
    store = intercept(subject.local, FailAt(at, NotApplied("no room"), persistent=True, only={"create_file"}))
    subject.strategy._local = LocalStateStore(store, "subtask-0")
    result = subject.start(counted).result(WAIT_S)
    assert (counted.releases, result.local) == (1, None)
    assert bytes_of(subject.store, "job", result.primary)
    assert len(subject.files()) == 1


@pytest.mark.item("SS-06", "SS-07")
def test_a_snapshot_that_is_cancelled_as_it_is_written(subject: Subject) -> None:
    """Its streams are closed under it. Inline, the only thread that can cancel is another one."""
    began, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        began.set()
        assert go_on.wait(WAIT_S)

    counted = Releases(subject.strategy, stop)
    running: list[RunningSnapshot] = []
    own = threading.Thread(target=lambda: running.append(subject.start(counted)))
    if subject.pool is None:
        # A snapshot that runs inline cannot be reached before it ends.
        own.start()
        assert began.wait(WAIT_S)
        go_on.set()
        own.join(WAIT_S)
        assert not running[0].cancel()
        assert running[0].result(WAIT_S).primary is not None
    else:
        running.append(subject.start(counted))
        assert began.wait(WAIT_S)
        assert running[0].cancel()
        go_on.set()
        with pytest.raises(SnapshotCancelled):
            running[0].result(WAIT_S)
        subject.pool.submit(int).result(WAIT_S)
        assert subject.files() == []
    assert counted.releases == 1


@pytest.mark.item("SS-06", "SS-07", "LR-16")
@pytest.mark.parametrize("fails", [False, True], ids=["deleted", "one stays"])
def test_a_snapshot_that_is_cancelled_as_its_result_is_given_out(
    subject: Subject, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """All is written by then, and deleted, its copies as well. What cannot be deleted is logged, and the rest goes.

    Files that later snapshots of an incremental strategy may name are its own to delete.
    """
    if subject.pool is None:
        pytest.skip("one that runs inline cannot be reached before it ends")
    written, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        written.set()
        assert go_on.wait(WAIT_S)

    counted = Releases(subject.strategy, after=stop)
    fault = FailAt(1, NotApplied("no route"), only={"delete_file"})
    running = subject.start(counted, intercept(subject.store, fault) if fails else None)
    assert written.wait(WAIT_S)
    assert subject.files()
    assert running.cancel()
    go_on.set()
    with pytest.raises(SnapshotCancelled):
        running.result(WAIT_S)
    assert counted.releases == 1
    assert len([path for path in subject.files() if "/shared/" not in path]) == fails
    assert ("could not be deleted: no route" in caplog.text) == fails


@pytest.mark.item("SS-06", "SS-07")
def test_a_snapshot_that_is_cancelled_before_it_is_written(tmp_path: Path) -> None:
    """It waits for the pool, and is taken from it: nothing was created, and the view is released."""
    for kind in KINDS:
        with ThreadPoolExecutor(1) as pool:
            subject = Subject(kind, tmp_path / kind, pool)
            go_on = threading.Event()
            pool.submit(go_on.wait, WAIT_S)
            counted = Releases(subject.strategy)
            running = subject.start(counted)
            assert running.cancel()
            assert counted.releases == 1
            go_on.set()
            with pytest.raises(SnapshotCancelled):
                running.result(WAIT_S)
            pool.submit(int).result(WAIT_S)
            assert counted.releases == 1
            assert subject.files() == []
            subject.close()


@pytest.mark.item("SS-06")
def test_a_pool_that_gives_up_its_queue_releases_the_view(tmp_path: Path) -> None:
    """Its owner shuts it down without a word to the snapshot."""
    for kind in KINDS:
        pool = ThreadPoolExecutor(1)
        subject = Subject(kind, tmp_path / kind, pool)
        go_on = threading.Event()
        pool.submit(go_on.wait, WAIT_S)
        counted = Releases(subject.strategy)
        running = subject.start(counted)
        pool.shutdown(wait=False, cancel_futures=True)
        go_on.set()
        with pytest.raises(SnapshotCancelled):
            running.result(WAIT_S)
        assert counted.releases == 1
        assert subject.files() == []
        subject.close()


@pytest.mark.item("SS-06")
def test_a_pool_that_is_closed_takes_no_snapshot(tmp_path: Path) -> None:
    """The error is that of the pool; the view is released."""
    for kind in KINDS:
        with ThreadPoolExecutor(1) as pool:
            subject = Subject(kind, tmp_path / kind, pool)
        counted = Releases(subject.strategy)
        with pytest.raises(RuntimeError, match="after shutdown"):
            subject.start(counted)
        assert counted.releases == 1
        assert subject.files() == []
        subject.close()
