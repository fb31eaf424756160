"""Two processes on one part, the second running to its end before and after every system call of the first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from partfile.errors import CommitConflict, LeaseUnavailable, NotApplied, NotFound, PartMissing
from partfile.stores.local.posix import PosixCalls
from partfile.stores.local.store import LocalStore
from partfile.testing.faults import ActAt, intercept
from partfile.testing.store import finished_bytes, new_part, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.stores.base import Cut, PartHandle
    from partfile.stores.local.stream import LocalPartStream

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


@pytest.mark.parametrize("cut", ["auto", "rewrite", "valid-length"])
@pytest.mark.parametrize("state", ["in-progress", "pending"])
@pytest.mark.fault("S5", "D10")
def test_two_coordinators_publish_one_part(turns: Iterator[Turn], state: str, cut: Cut) -> None:
    """Both publish without an error, and the one finished file is whole."""
    for turn in turns:
        handle = write_part(turn.other, DATA, tail=TAIL, state="pending" if state == "pending" else "in-progress")
        with turn.store(partial(turn.other.publish, handle, cut)) as store:
            store.publish(handle, cut)
        assert finished_bytes(turn.other, handle) == DATA


def test_a_coordinator_settles_what_another_publishes(turns: Iterator[Turn]) -> None:
    """Settling while another publishes ends with the finished file and nothing changed in it."""
    for turn in turns:
        handle = write_part(turn.other, DATA, tail=TAIL)
        with turn.store(partial(turn.other.publish, handle, "auto")) as store:
            settled = store.settle(handle, "auto")
            store.publish(settled, "auto")
        assert finished_bytes(turn.other, handle) == DATA


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
        with turn.store(stream.close_for_commit) as store:
            store.publish(handle, "auto")
        stream.close()
        assert finished_bytes(turn.other, handle) == DATA


def test_a_coordinator_publishes_while_a_task_resumes(turns: Iterator[Turn]) -> None:
    """Whatever moment of resuming the publication falls into, the finished file never grows."""
    for turn in turns:
        handle = write_part(turn.other, DATA, tail=TAIL)
        turn.other.settle(handle.at(len(DATA + TAIL)), "auto")
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
    """Exactly one of two that take a marker at the same time holds it, unless nobody but the first asked."""
    for turn in turns:
        second: list[bool] = []
        with turn.store(partial(_hold, turn, second)) as store:
            first = store.hold_marker("marker")
            assert first + sum(second) == 1


@pytest.mark.parametrize("n", [1, 2, 50])
def test_somebody_who_only_looks_is_waited_out(n: int, tmp_path: Path) -> None:
    """A task that looks whether the marker is held never makes the coordinator believe that another holds it."""
    looker, let_go = _looker(tmp_path)
    assert not looker.marker_is_held("marker"), "another one who looks is not taken for a holder"
    calls = intercept(PosixCalls(), ActAt(n, let_go, "after", only={"lock"}))
    with LocalStore(str(tmp_path), calls=calls) as store:
        assert store.hold_marker("marker")
        assert looker.marker_is_held("marker")
    looker.close()


def test_somebody_who_looks_for_ever_is_reported(tmp_path: Path) -> None:
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
