"""Every snapshot strategy, inline and on a pool, in every end that a snapshot can come to.

Whatever the end is: the view is released exactly once, what was opened is closed, and a file that no handle names is
deleted. What ends well gives the same bytes on both ways.

Runs of keys, the state of deduplication, are written by no strategy. A sink, or a task of Spark, writes them with each
checkpoint, in its own thread, through the streams that strategies have. There is no view to release. They have tests of
their own at the end.
"""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import partfile as pf
from partfile.errors import NotApplied, SnapshotCancelled
from partfile.sink import deduplicate
from partfile.sink.newest_state import newest_state
from partfile.snapshot import run_file
from partfile.snapshot.documents import FileHandle
from partfile.snapshot.keyed.heap import HeapBackend
from partfile.snapshot.keyed.restore import read_keyed_files
from partfile.snapshot.keyed.rocksdb.backend import RocksDBBackend
from partfile.snapshot.keyed.rocksdb.database import RocksDBOptions
from partfile.snapshot.keyed.rocksdb.incremental import IncrementalStrategy
from partfile.snapshot.keyed.shared_files import decode_incremental
from partfile.snapshot.keyed.strategy import KeyedStateStrategy
from partfile.snapshot.local_state import LocalStateStore
from partfile.snapshot.operator_state import ListStateDescriptor, OperatorStateStore
from partfile.snapshot.state_file import JsonCodec
from partfile.snapshot.storage import CheckpointStorage, FileStreamSettings
from partfile.snapshot.strategy import OperatorStateStrategy, RunningSnapshot, SnapshotOptions, StrategyRunner
from partfile.snapshot.streams import FileStreamFactory, Scope
from partfile.stores.local.store import LocalStore
from partfile.stores.registry import open_store
from partfile.testing.faults import ActAt, FailAt, intercept
from support.sinks.recovery import clean_all, planned_cleaning
from support.state.keyed import backend_of, filled
from support.state.keyed import bytes_of as canonical_bytes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.strategy import SnapshotResult

WAIT_S = 30
OPERATOR_ROWS = ListStateDescriptor("rows", JsonCodec())
KINDS = ("operator", "heap", "rocksdb", "pieces", "incremental", "links")
"""``links``: incremental, with links on this machine."""
WRITES = {"create_file", "local_path"}
"""A store is asked for a local path before each link."""


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
        self.links = kind == "links"
        self.is_one_file = kind not in {"incremental", "links", "pieces"}
        self.close: Callable[[], object] = lambda: None
        if kind == "operator":
            states = OperatorStateStore()
            states.list_state(OPERATOR_ROWS).update(["x" * 100] * 100)
            self.strategy: Any = OperatorStateStrategy(states)
        else:
            # Links are made on the disk of the database alone.
            linked = partial(RocksDBBackend, options=RocksDBOptions(directory=str(base / "engine")))
            makes = {"heap": HeapBackend, "pieces": HeapBackend, "links": linked}
            backend, change = filled(30, makes.get(kind, RocksDBBackend))
            change(1)
            if kind in {"incremental", "links"}:
                assert isinstance(backend, RocksDBBackend)
                self.strategy = IncrementalStrategy(backend, copies if self.links else None)
            elif kind == "pieces":
                self.strategy = KeyedStateStrategy(backend, piece_bytes=400)
            else:
                self.strategy = KeyedStateStrategy(backend, copies)
            self.close = backend.close

    def start(self, counted: Releases, store: Any = None, kind: Any = "checkpoint") -> RunningSnapshot:
        """Begin a snapshot, whose state does not lie inline."""
        streams = FileStreamFactory(store or self.store, "job", 3, inline_threshold_bytes=0)
        return StrategyRunner(counted, self.pool).snapshot(3, 1000, streams, SnapshotOptions(kind=kind))

    def start_with(self, counted: Releases, interceptor: Any) -> RunningSnapshot:
        """Begin a snapshot whose calls of either store are led through an interceptor, which may cancel it.

        It is begun as a runner does it, but is there before it runs: also where that is inline.
        """
        if self.copies or self.links:
            self.strategy._local = LocalStateStore(intercept(self.local, interceptor), "subtask-0")
        streams = FileStreamFactory(intercept(self.store, interceptor), "job", 3, inline_threshold_bytes=0)
        view = counted.sync_prepare_resources(SnapshotOptions())
        supplier = counted.async_snapshot(view, 3, 1000, streams, SnapshotOptions())
        return RunningSnapshot(supplier, view, streams)

    def files(self) -> list[str]:
        """All files, of both stores."""
        stores = (self.base / "primary", self.base / "local")
        return sorted(
            path.relative_to(self.base).as_posix() for store in stores for path in store.rglob("*") if path.is_file()
        )

    def forget(self, files: list[str]) -> None:
        """Begin again with a strategy that has written nothing, as if files had never been."""
        for path in files:
            (self.base / path).unlink()
        self.strategy = IncrementalStrategy(self.strategy._backend, self.strategy._local)

    def named(self, result: SnapshotResult) -> list[str]:
        """All files that a snapshot names, with its copies, or links, and the documents that tell of copies."""
        assert result.primary is not None
        handles: list[StateHandle] = [result.primary, *result.pieces]
        linked: list[StateHandle] = []
        if isinstance(self.strategy, IncrementalStrategy):
            data = bytes_of(self.store, "job", result.primary)
            linked = [file.handle for file in decode_incremental(data, "a document").files]
        found = {f"primary/job/{one.path}" for one in (*handles, *linked) if isinstance(one, FileHandle)}
        links = [Path(one.path).stem for one in linked if isinstance(one, FileHandle) and self.links]
        found |= {f"local/subtask-0/chk-3/{stem}.link" for stem in links}
        if isinstance(result.local, FileHandle) and isinstance(result.primary, FileHandle):
            found |= {
                f"local/subtask-0/{result.local.path}",
                f"local/subtask-0/chk-3/{Path(result.primary.path).stem}.copy",
            }
        return sorted(found)


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
def test_a_snapshot_whose_local_copy_fails(subject: Subject) -> None:
    """It goes on without the copy, of which nothing is left: of the state, the document that tells of it, or a link.

    At each write on this machine in turn.
    """
    if not subject.copies and not subject.links:
        pytest.skip("this strategy makes no copies")
    failed, is_reached = 0, True
    while is_reached:
        counted = Releases(subject.strategy)
        fault = FailAt(failed + 1, NotApplied("no room"), only=WRITES)
        subject.strategy._local = LocalStateStore(intercept(subject.local, fault), "subtask-0")
        result = subject.start(counted).result(WAIT_S)
        assert counted.releases == 1
        assert bytes_of(subject.store, "job", result.primary)
        is_reached = fault.count > failed
        if is_reached:
            failed += 1
            assert result.local is None
            assert not [path for path in subject.files() if path.startswith("local/")]
    assert failed == (2 if subject.copies else len([path for path in subject.files() if path.endswith(".link")]))
    assert set(subject.named(result)) <= set(subject.files())


@pytest.mark.item("SS-06", "SS-07", "LR-16")
def test_a_snapshot_that_is_cancelled_after_any_write(subject: Subject) -> None:
    """To the storage or this machine: nothing is left but what the next one that completes names.

    Files of rows stay for later snapshots once all are written, and links are to follow: they are the strategy's to
    delete.
    """
    cancelled, is_reached = 0, True
    while is_reached:
        counted, running = Releases(subject.strategy), list[RunningSnapshot]()
        act = ActAt(cancelled + 1, lambda begun=running: begun[0].cancel(), "after", only=WRITES)  # type: ignore[misc]
        running.append(subject.start_with(counted, act))
        running[0].start(subject.pool)
        try:
            result = running[0].result(WAIT_S)
        except SnapshotCancelled:
            cancelled += 1
            left = subject.files()
            assert all(subject.links and "/shared/" in path for path in left), left
            if left:
                subject.forget(left)
        else:
            is_reached = False
        assert counted.releases == 1
    assert cancelled == len(subject.files())
    assert subject.files() == subject.named(result)


@pytest.mark.item("SS-06", "SS-14")
def test_a_backend_that_is_closed_at_any_write_is_written_whole(
    tmp_path: Path, pool: ThreadPoolExecutor | None
) -> None:
    """The view has what it needs until its release; then the database goes, with its directory.

    Operator state has nothing to close.
    """
    for kind in KINDS[1:]:
        closed, is_reached = 0, True
        while is_reached:
            subject = Subject(kind, tmp_path / f"{kind} {closed}", pool)
            backend = subject.strategy._backend
            expected = canonical_bytes_of(backend)
            directory = Path(backend.database.path) if isinstance(backend, RocksDBBackend) else tmp_path / "none"
            act, counted = ActAt(closed + 1, subject.close, "after", only=WRITES), Releases(subject.strategy)
            running = subject.start_with(counted, act)
            running.start(pool)
            result = running.result(WAIT_S)
            assert counted.releases == 1
            assert subject.files() == subject.named(result)
            is_reached = act.count > closed
            closed += is_reached
            assert directory.exists() == (not is_reached and isinstance(backend, RocksDBBackend))
            storage = CheckpointStorage(subject.store, "job", FileStreamSettings())
            assert result.primary is not None
            with read_keyed_files(storage, [result.primary]) as (found,):
                assert canonical_bytes_of(backend_of(HeapBackend, files=[found.file])) == expected
            subject.close()
            assert not directory.exists()
        assert closed > 0


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


# Runs of keys: ``KnownKeys.write_runs`` writes them, for a sink in plain Python as for a task of Spark.

ROWS = [{"id": number} for number in range(20)]
KEYS_A_RUN = 6


class SharedWrites:
    """Counts the files that are given to ``shared/``, and does something with one of them.

    Args:
        at: The file, counted from 1; 0 is none.
        fails: What to raise in its place.
        cancels: What to raise when it is written.
    """

    def __init__(self, at: int = 0, fails: BaseException | None = None, cancels: BaseException | None = None) -> None:
        self.count = 0
        self._at = at
        self._fails = fails
        self._cancels = cancels
        self._keep = FileStreamFactory.keep

    def __get__(self, streams: FileStreamFactory, _kind: type) -> Callable[[bytes, Scope], StateHandle]:
        """In the place of the method."""
        return partial(self.keep, streams)

    def keep(self, streams: FileStreamFactory, data: bytes, scope: Scope) -> StateHandle:
        """Keep the bytes, unless that is to fail."""
        self.count += scope is Scope.SHARED
        is_it = scope is Scope.SHARED and self.count == self._at
        if is_it and self._fails is not None:
            raise self._fails
        handle = self._keep(streams, data, scope)
        if is_it and self._cancels is not None:
            raise self._cancels
        return handle


def write_distinct(base: Path, rows: list[dict[str, int]]) -> None:
    """A whole run of a sink that deduplicates, each of whose runs of keys is a file; two checkpoints at least."""
    keys = pf.Deduplicate("id", ttl="1 day", refresh="read")
    sink = pf.FileSink(base, uid="d", format="json", deduplicate=keys, inline_threshold_bytes=0, retained_checkpoints=1)
    with sink.local(schema={"id": "int64"}) as out:
        out.write(rows[:10])
        out.checkpoint()
        out.write(rows)


def run_files(base: Path) -> tuple[set[str], set[str], set[str]]:
    """Those that are there, those that the newest checkpoint names, and those that it lets go of."""
    with open_store(f"{base}/_partfile", {}) as store:
        newest = newest_state(CheckpointStorage(store, "d"))
        assert newest is not None
        seen = newest.state.position.seen_keys
    found = {f"shared/{path.name}" for path in (base / "_partfile/d/shared").iterdir()}
    if seen is None:
        return found, set(), set()
    named = {run.handle.path for run in seen.runs if isinstance(run.handle, FileHandle)}
    return found, named, {run.path for run in seen.unneeded}


def mapped_below(base: Path) -> list[str]:
    """The files below a directory that this process has mapped."""
    gc.collect()
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(base) in line]


@pytest.mark.item("SS-06")
@pytest.mark.parametrize("end", ["fails", "cancels"])
def test_runs_of_keys_are_whole_whatever_becomes_of_their_writing(
    tmp_path: Path, pool: ThreadPoolExecutor | None, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file of keys in turn cannot be written, or is the last before the user ends the run (Ctrl-C).

    No strategy writes them: a checkpoint of the sink does, by ``KnownKeys.write_runs``, in the thread that uses
    the sink. All that was mapped is let go of with the sink. What lost runs have left is the cleaner's to delete: the
    next start knows no more than its checkpoint, and another run may be about to name such files (R6).
    """
    for module in (run_file, deduplicate):
        monkeypatch.setattr(module, "MAX_KEYS", KEYS_A_RUN)
    monkeypatch.setattr(deduplicate, "_MAPPED_BYTES", 0)

    def lived(base: Path, writes: SharedWrites) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(FileStreamFactory, "keep", writes)
            if pool is None:
                write_distinct(base, ROWS)
            else:
                pool.submit(write_distinct, base, ROWS).result(WAIT_S)

    counted = SharedWrites()
    lived(tmp_path / "0", counted)
    assert counted.count > 4
    assert mapped_below(tmp_path) == []
    for at in range(1, counted.count + 1):
        base = tmp_path / f"{at}"
        fault: BaseException = NotApplied("no room") if end == "fails" else KeyboardInterrupt()
        writes = SharedWrites(at, **{end: fault})
        with pytest.raises(type(fault)):
            lived(base, writes)
        del fault, writes
        assert mapped_below(base) == []
        write_distinct(base, ROWS)
        assert sorted(pf.read(base).to_table()["id"].to_pylist()) == list(range(len(ROWS)))
        found, named, let_go = run_files(base)
        assert named
        assert named <= found
        planned = {item.path for item in planned_cleaning(base).items if item.kind == "run file"}
        assert found - named - let_go <= {path.removeprefix("d/") for path in planned}
        clean_all(base)
        found, named, let_go = run_files(base)
        assert named <= found <= named | let_go
        assert mapped_below(base) == []
