"""Races of the local store: another process works, or a name is replaced, between two system calls."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.errors import CommitConflict, LeaseUnavailable, NotApplied, NotFound, PartMissing, StoreError
from partfile.stores.local.posix import CHANGING_CALLS, PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, CrashAt, Recorder, SimulatedCrash, TrackedCalls, both_sides, intercept
from partfile.testing.store import files_in, finished_bytes, new_part, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.stores.base import Cut, PartHandle
    from partfile.stores.local.stream import LocalPartStream
    from partfile.testing.faults import When


# Two processes on one part, the second running to its end before and after every system call of the first.

DATA, TAIL = b"valid bytes", b"a tail"
MAX_CALLS = 200


class Turn:
    """One run: a store whose n-th system call gives way to another process.

    Args:
        base: A base of its own.
        n: The call.
        is_before: Whether the other runs before that call.
    """

    def __init__(self, base: Path, n: int, *, is_before: bool) -> None:
        self.other = LocalStore(str(base))
        self._base = base
        self._n = n
        self._is_before = is_before
        self.was_reached = False

    def store(self, second: Callable[[], object]) -> LocalStore:
        """The first process, in the middle of whose work ``second`` runs."""

        def run() -> None:
            self.was_reached = True
            second()

        action = ActAt(self._n, run, "before" if self._is_before else "after")
        return LocalStore(str(self._base), calls=intercept(PosixCalls(), action))


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turn]:
    """Turns for every call until the first process makes no more; fails if that was never."""
    return _turns(tmp_path)


def _turns(tmp_path: Path) -> Iterator[Turn]:
    for n in range(1, MAX_CALLS):
        for is_before in (True, False):
            turn = Turn(tmp_path / f"{n}-{is_before}", n, is_before=is_before)
            with turn.other:
                yield turn
            if not turn.was_reached:
                assert n > 5, "the first process made hardly any call"
                return
    raise AssertionError(f"more than {MAX_CALLS} calls")


def publish_or_owe(store: LocalStore, handle: PartHandle, cut: Cut) -> None:
    """Publish as a coordinator does: what was not done is owed, and tried again later."""
    with suppress(StoreError):
        store.publish(handle, cut)


@pytest.mark.drawn
@pytest.mark.parametrize("cut", ["auto", "rewrite", "valid-length"])
@pytest.mark.parametrize("state", ["in-progress", "pending"])
@pytest.mark.fault("F5", "D10")
def test_two_coordinators_publish_one_part(turns: Iterator[Turn], state: str, cut: Cut) -> None:
    """Whichever comes first, the one finished file is whole, and then both find it published."""
    for turn in turns:
        handle = write_part(turn.other, DATA, tail=TAIL, state="pending" if state == "pending" else "in-progress")
        with turn.store(partial(publish_or_owe, turn.other, handle, cut)) as store:
            publish_or_owe(store, handle, cut)
            for each in (store, turn.other):
                each.publish(handle, cut)
        assert finished_bytes(turn.other, handle) == DATA


class Consumer(PosixCalls):
    """Calls of a process in whose directories a consumer takes each finished file the instant it is visible.

    Args:
        final: The name of the file.
        taken: Where the consumer puts it, under a number.
    """

    def __init__(self, final: str, taken: Path) -> None:
        self._final = final
        self._taken = taken

    def rename_noreplace(self, directory: int, name: str, new_name: str) -> None:
        """Rename, and have the new name taken away."""
        super().rename_noreplace(directory, name, new_name)
        if new_name == self._final:
            os.rename(new_name, self._taken / str(len(list(self._taken.iterdir()))), src_dir_fd=directory)


@pytest.mark.parametrize("cut", ["auto", "rewrite", "truncate"])
@pytest.mark.parametrize("state", ["in-progress", "pending"])
@pytest.mark.parametrize("is_locked", [False, True], ids=["free", "locked by a zombie"])
@pytest.mark.fault("F5", "D10")
def test_what_a_consumer_took_comes_back_by_no_coordinator(
    tmp_path: Path, state: str, cut: Cut, *, is_locked: bool
) -> None:
    """R5: of two coordinators and a consumer, whichever comes between, one file is ever seen, and never again."""
    for n, when in both_sides(MAX_CALLS):
        base, taken = tmp_path / f"{n}-{when}", tmp_path / f"{n}-{when}-taken"
        taken.mkdir()
        with LocalStore(str(base)) as other:
            handle = write_part(other, DATA, tail=TAIL, state="pending" if state == "pending" else "in-progress")
            staged = base / handle.path_of(handle.pending if state == "pending" else handle.in_progress)
            zombie = staged.open("rb")
            if is_locked:
                fcntl.flock(zombie, fcntl.LOCK_EX)
            consumed = Consumer(handle.name, taken)
            rival = LocalStore(str(base), calls=consumed)
            reached: list[None] = []

            def meet(rival: LocalStore = rival, handle: PartHandle = handle, reached: list[None] = reached) -> None:
                reached.append(None)
                publish_or_owe_or_miss(rival, handle, cut)

            calls = intercept(consumed, ActAt(n, meet, when, only=CHANGING_CALLS))
            with LocalStore(str(base), calls=calls) as store, rival:
                for each in (store, rival, store):
                    publish_or_owe_or_miss(each, handle, cut)
                assert [path.read_bytes() for path in taken.iterdir()] == [DATA]
                assert not store.is_staged(handle)
            zombie.close()
        if not reached:
            assert n > 5
            return
    raise AssertionError(f"more than {MAX_CALLS} calls")


def publish_or_owe_or_miss(store: LocalStore, handle: PartHandle, cut: Cut) -> None:
    """The same beside a consumer, who leaves nothing to be found."""
    with suppress(PartMissing):
        publish_or_owe(store, handle, cut)


@pytest.mark.fault("D3")
def test_a_zombie_appends_while_a_coordinator_publishes(turns: Iterator[Turn]) -> None:
    """A task that resumes the part at any moment of its publication gets its own file or none."""
    for turn in turns:
        handle = write_part(turn.other, DATA)
        streams: list[LocalPartStream] = []

        def resume(turn: Turn = turn, handle: PartHandle = handle, streams: list[LocalPartStream] = streams) -> None:
            try:
                stream = turn.other.resume(handle)
            except LeaseUnavailable:
                return
            stream.write(TAIL)
            streams.append(stream)

        with turn.store(resume) as store:
            store.publish(handle, "auto")
        assert finished_bytes(turn.other, handle) == DATA
        for stream in streams:
            stream.write(TAIL)
            stream.close()
        assert finished_bytes(turn.other, handle) == DATA


def test_a_task_commits_while_a_coordinator_publishes(turns: Iterator[Turn]) -> None:
    """A task that makes its part pending between two looks of the coordinator is still found."""
    for turn in turns:
        stream = turn.other.create(new_part())
        stream.write(DATA)
        handle = stream.persist()

        def commit(stream: LocalPartStream = stream) -> None:
            # Refused where the coordinator has copied the part: then the attempt does not count.
            with suppress(StoreError):
                stream.close_for_commit()

        with turn.store(commit) as store:
            publish_or_owe(store, handle, "auto")
            stream.close()
            store.publish(handle, "auto")
        assert finished_bytes(turn.other, handle) == DATA


def test_a_coordinator_publishes_while_a_task_resumes(turns: Iterator[Turn]) -> None:
    """Whatever moment of resuming the publication falls into, the finished file never grows."""
    for turn in turns:
        handle = write_part(turn.other, DATA)
        with turn.store(partial(turn.other.publish, handle, "auto")) as store:
            try:
                stream = store.resume(handle)
            except LeaseUnavailable:
                continue
            stream.write(TAIL)
            stream.close()
        turn.other.publish(handle, "auto")
        assert finished_bytes(turn.other, handle) == DATA


def test_a_cleaner_discards_what_a_task_creates(turns: Iterator[Turn]) -> None:
    """A task that believes in its new part has it, although a cleaner came by at any moment."""
    for turn in turns:
        new = new_part()

        def clean(turn: Turn = turn, new: PartHandle = new) -> None:
            try:
                turn.other.discard(new)
            except LeaseUnavailable:
                return

        with turn.store(clean) as store:
            try:
                stream = store.create(new)
            except (LeaseUnavailable, NotFound):
                continue
            stream.verify()
            stream.close()


def test_a_publication_while_the_part_is_discarded_is_whole_or_missing(turns: Iterator[Turn]) -> None:
    """Even a cleaner that discards what it must not leaves a whole finished file or a loud error."""
    for turn in turns:
        handle = write_part(turn.other, DATA, tail=TAIL)

        def clean(turn: Turn = turn, handle: PartHandle = handle) -> None:
            try:
                turn.other.discard(handle)
            except LeaseUnavailable:
                return

        with turn.store(clean) as store:
            try:
                store.publish(handle, "auto")
            except (PartMissing, CommitConflict):
                assert not turn.other.file_exists(handle.path_of(handle.name))
            else:
                assert finished_bytes(turn.other, handle) == DATA


def test_two_stores_take_a_marker(turns: Iterator[Turn]) -> None:
    """Exactly one of two that take a marker at the same time holds it, unless only the first asked."""
    for turn in turns:
        second: list[bool] = []
        with turn.store(partial(_hold, turn, second)) as store:
            first = store.hold_marker("marker")
            assert first + sum(second) == 1


@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_process_that_only_looks_is_waited_out(n: int, tmp_path: Path) -> None:
    """A task that looks whether the marker is held never makes the coordinator believe that another holds it."""
    looker, let_go = _looker(tmp_path)
    assert not looker.marker_is_held("marker"), "another one who looks is not taken for a holder"
    calls = intercept(PosixCalls(), ActAt(n, let_go, "after", only={"lock"}))
    with LocalStore(str(tmp_path), calls=calls) as store:
        assert store.hold_marker("marker")
        assert looker.marker_is_held("marker")
    looker.close()


def test_a_process_that_looks_for_ever_is_reported(tmp_path: Path) -> None:
    """A lock that is shared all the time is neither ours nor a coordinator's, which the error says."""
    looker, let_go = _looker(tmp_path)
    with LocalStore(str(tmp_path)) as store:
        with pytest.raises(NotApplied, match="looked at"):
            store.hold_marker("marker")
        let_go()
        assert store.hold_marker("marker")
    looker.close()


def _looker(base: Path) -> tuple[LocalStore, Callable[[], None]]:
    """A store on a base with a marker, whose shared lock it holds until the returned function is called."""
    store, calls = LocalStore(str(base)), PosixCalls()
    store.create_file("marker", b"")
    directory = calls.open_base(str(base))
    descriptor = calls.open_existing(directory, "marker", "read")
    calls.close(directory)
    assert calls.lock_shared(descriptor)
    return store, lambda: calls.close(descriptor)


def _hold(turn: Turn, held: list[bool]) -> None:
    held.append(turn.other.hold_marker("marker"))


# A name that comes to stand for something else between two system calls.


def test_a_part_that_goes_back_between_two_looks_is_found(tmp_path: Path) -> None:
    """A rival that takes a pending part back to cut it, after its in-progress name was looked at, hides nothing."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA, tail=TAIL, state="pending")
        bucket = tmp_path / handle.bucket
        back = partial((bucket / handle.pending).rename, bucket / handle.in_progress)
        with _interrupted(tmp_path, 1, back, "stat_name", "after") as store:
            store.publish(handle, "auto")
        assert finished_bytes(other, handle) == DATA


def test_what_a_dead_rival_published_meanwhile_is_not_touched(tmp_path: Path) -> None:
    """A part found pending, but published when its lock is got, is accepted without a cut and without a copy."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA, tail=TAIL, state="pending")
        recorder = Recorder({"create", "truncate", "rename"})
        rival = ActAt(1, partial(_publish_and_die, tmp_path, handle), only={"lock"})
        with LocalStore(str(tmp_path), calls=intercept(intercept(PosixCalls(), rival), recorder)) as store:
            store.publish(handle, "truncate")
        assert not recorder.names
        assert other.read_file(handle.path_of(handle.name), 99) == DATA + TAIL
        assert finished_bytes(other, handle) == DATA


def test_the_file_under_the_name_is_the_part(tmp_path: Path) -> None:
    """Where another file takes the name between opening and locking, that one is published."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA)
        path = tmp_path / handle.path_of(handle.in_progress)

        def swap() -> None:
            path.rename(tmp_path / "elsewhere")
            path.write_bytes(DATA[::-1])

        with _interrupted(tmp_path, 1, swap, "lock") as store:
            store.publish(handle, "auto")
        assert finished_bytes(other, handle) == DATA[::-1]


@pytest.mark.timeout(240)
def test_a_pipe_that_takes_the_name_between_look_and_opening_is_refused(tmp_path: Path) -> None:
    """What was opened is looked at as well, and opening it does not wait."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA)
        path = tmp_path / handle.path_of(handle.in_progress)

        def swap() -> None:
            path.unlink()
            os.mkfifo(path)

        for verb in (
            partial(LocalStore.publish, handle=handle, cut="auto"),
            partial(LocalStore.discard, handle=handle),
        ):
            with _interrupted(tmp_path, 1, swap, "open_existing") as store, pytest.raises(NotApplied, match="regular"):
                verb(store)
            path.unlink()
            path.write_bytes(DATA)


def test_what_is_not_a_file_is_not_even_opened(tmp_path: Path) -> None:
    """Opening a device can have effects of its own."""
    recorder = Recorder({"open_existing"})
    with LocalStore(str(tmp_path), calls=intercept(PosixCalls(), recorder)) as store:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(NotApplied, match="regular"):
            store.read_file("pipe", 1)
    assert not recorder.names


def test_a_task_notices_bytes_that_are_not_its_own(tmp_path: Path) -> None:
    """A part that is longer than what this stream wrote must not be acknowledged."""
    with LocalStore(str(tmp_path)) as store:
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.persist()
        with (tmp_path / handle.path_of(handle.in_progress)).open("ab") as file:
            file.write(TAIL)
        for use in (stream.verify, stream.close_for_commit):
            with pytest.raises(LeaseUnavailable):
                use()
        stream.close()


def test_a_marker_that_is_replaced_while_it_is_taken_is_taken_again(tmp_path: Path) -> None:
    """What is held is what others find under the marker's name."""
    with LocalStore(str(tmp_path)) as other:
        other.create_file("marker", b"")

        def replace() -> None:
            other.delete_file("marker")
            other.create_file("marker", b"")

        with _interrupted(tmp_path, 1, replace, "lock") as store:
            assert store.hold_marker("marker")
            assert other.marker_is_held("marker")


@pytest.mark.fault("F10")
def test_a_part_that_shrinks_while_it_is_copied_is_missing(tmp_path: Path) -> None:
    """A copy that ends before the valid length is not published, and not left behind."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA, tail=TAIL)
        path = tmp_path / handle.path_of(handle.in_progress)
        shrink = partial(os.truncate, path, 3)
        with _interrupted(tmp_path, 1, shrink, "read") as store, pytest.raises(PartMissing):
            store.publish(handle, "rewrite")
        assert files_in(other) == {handle.path_of(handle.in_progress): 3}


def test_a_pending_name_that_is_swapped_before_the_rename_is_a_conflict(tmp_path: Path) -> None:
    """The result of the rename is looked at: a foreign file is never reported as the part."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA, state="pending")
        path = tmp_path / handle.path_of(handle.pending)

        def swap() -> None:
            path.unlink()
            path.write_bytes(TAIL)

        with _interrupted(tmp_path, 1, swap, "rename_noreplace") as store, pytest.raises(CommitConflict):
            store.publish(handle, "auto")


def test_a_copy_is_leased_while_it_is_written(tmp_path: Path) -> None:
    """A cleaner that finds a copy under way does not get its lease, so that it cannot delete it."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA, tail=TAIL)
        refused: list[str] = []

        def clean() -> None:
            for name in set(other.list_names(handle.bucket)) - {handle.in_progress}:
                with pytest.raises(LeaseUnavailable):
                    other.discard(handle.model_copy(update={"in_progress": name, "pending": name}))
                refused.append(name)

        with _interrupted(tmp_path, 1, clean, "read") as store:
            store.publish(handle, "rewrite")
        assert len(refused) == 1
        assert finished_bytes(other, handle) == DATA


def test_a_file_that_appears_while_its_directory_is_deleted_goes_with_it(tmp_path: Path) -> None:
    """A rival's late file in a checkpoint's directory does not make its deletion fail."""
    with LocalStore(str(tmp_path)) as other:
        other.create_file("chk-1/_metadata", b"")
        late = partial(other.create_file, "chk-1/late", b"")
        with _interrupted(tmp_path, 1, late, "remove_directory") as store:
            store.delete_directory("chk-1")
        assert other.list_names("") == []


@pytest.mark.parametrize("call", ["stat_name", "open_directory"])
def test_what_vanishes_while_it_is_listed_is_left_out(tmp_path: Path, call: str) -> None:
    """Listing tolerates files and directories that go between the calls that it takes."""
    with LocalStore(str(tmp_path)) as other:
        for path in ("gone", "directory/gone", "stays"):
            other.create_file(path, b"")

        def vanish() -> None:
            other.delete_file("gone")
            other.delete_directory("directory")

        with _interrupted(tmp_path, 1, vanish, call) as store:
            assert {file.path for file in store.list()} - {"gone"} == {"stays"}


@pytest.mark.timeout(240)
def test_a_pipe_that_takes_the_name_blocks_neither_readers_nor_tasks(tmp_path: Path) -> None:
    """Opening a FIFO for reading or appending alone would wait for its other end for ever."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA)
        path = tmp_path / handle.path_of(handle.in_progress)

        def swap() -> None:
            path.unlink()
            os.mkfifo(path)

        with _interrupted(tmp_path, 1, swap, "open_existing") as store, pytest.raises(NotApplied):
            store.resume(handle)
        path.unlink()
        path.write_bytes(DATA)
        with _interrupted(tmp_path, 1, swap, "open_existing") as store, pytest.raises(NotApplied):
            store.read_file(handle.path_of(handle.in_progress), 99)


def test_a_cleaner_deletes_nothing_that_took_the_name_meanwhile(tmp_path: Path) -> None:
    """What is deleted is what was leased, not what has come to stand under its name."""
    with LocalStore(str(tmp_path)) as other:
        handle = write_part(other, DATA)
        path = tmp_path / handle.path_of(handle.in_progress)

        def swap() -> None:
            path.rename(tmp_path / "elsewhere")
            path.write_bytes(TAIL)

        with _interrupted(tmp_path, 1, swap, "lock") as store:
            assert not store.discard(handle)
        assert path.read_bytes() == TAIL


def _publish_and_die(base: Path, handle: PartHandle) -> None:
    calls = TrackedCalls()
    store = LocalStore(str(base), calls=intercept(calls, CrashAt(1, "after", only={"rename_noreplace"})))
    with pytest.raises(SimulatedCrash):
        store.publish(handle, "valid-length")
    calls.die()


def _interrupted(base: Path, n: int, action: Callable[[], object], call: str, when: When = "before") -> LocalStore:
    return LocalStore(str(base), calls=intercept(PosixCalls(), ActAt(n, action, when, only={call})))
