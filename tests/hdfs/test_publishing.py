"""Publishing on HDFS: cuts, lost replies, repeats, and nothing is published twice or given up."""

from __future__ import annotations

import itertools
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import (
    LeaseUnavailable,
    NotApplied,
    NotReady,
    OutcomeUnknown,
    PartfileError,
    PartMissing,
    StoreError,
)
from partfile.stores.hdfs.client import CHANGING_CALLS, HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.faults import ActAt, CrashAt, FailAt, SimulatedCrash, count_calls
from partfile.testing.store import files_in, finished_bytes, new_part, write_part
from support.hdfs.life import opener as opener_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.stores.base import Cut, PartHandle
    from partfile.testing.faults import Call, Interceptor
    from support.hdfs.cluster import HdfsCluster
    from support.hdfs.life import Opener


# Parts of HDFS that are cut: nothing is published twice or given up, whatever happens in the middle of it.

CUTS: tuple[Cut, ...] = ("truncate", "rewrite", "valid-length")
DATA, TAIL = b"valid" * 2000, b"tail" * 1250


class WebServerGone(HdfsCalls):
    """WebHDFS that can be reached for so many calls, and then no more.

    Args:
        answers: How many calls it answers.
        cluster: The HDFS.
    """

    def __init__(self, answers: int, cluster: HdfsCluster) -> None:
        super().__init__(cluster.url, HdfsOptions(http_address=cluster.http_address))
        self._answers = answers
        self.answered: list[bool] = []

    @property
    def truncates(self) -> bool:
        """As after a connection that was refused."""
        return len(self.answered) < self._answers

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut, or fail as a client does whose connection is refused."""
        if not self.truncates:
            raise NotApplied("connection refused", path=path)
        self.answered.append(super().truncate(path, length_bytes))
        return self.answered[-1]


def move_away(opener: Opener, handle: PartHandle) -> None:
    """What a consumer does with a finished file."""
    store = opener()
    assert finished_bytes(store, handle) == DATA
    store.delete_file(handle.path_of(handle.name))


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.fault("F7")
def test_a_finished_file_that_was_moved_is_missing(opener: Opener, cut: Cut) -> None:
    """By each way of cutting; nothing that is left over is published in its place."""
    handle = write_part(opener(), DATA, tail=TAIL)
    opener().publish(handle, cut)
    move_away(opener, handle)
    with pytest.raises(PartMissing):
        opener().publish(handle, cut)
    assert handle.path_of(handle.name) not in files_in(opener())


def test_a_rewrite_that_crashed_at_any_call_is_gone_on_with_and_published_once(opener: Opener) -> None:
    """By another way of cutting too; and when the file was moved away at once, nothing is left to publish."""

    def publish(interceptor: Interceptor) -> None:
        handle = write_part(opener(), DATA, tail=TAIL)
        handles.append(handle)
        opener(interceptor).publish(handle, "rewrite")
        move_away(opener, handle)

    handles: list[PartHandle] = []
    for number in range(1, count_calls(publish, only=CHANGING_CALLS) + 1):
        with pytest.raises(SimulatedCrash):
            publish(CrashAt(number, "after", only=CHANGING_CALLS))
        handle = handles[-1]
        if not opener().file_exists(handle.path_of(handle.name)):
            opener().publish(handle, CUTS[number % len(CUTS)])
        move_away(opener, handle)
        for cut in CUTS:
            with pytest.raises(PartMissing):
                opener().publish(handle, cut)


def test_a_rewrite_for_another_length_does_not_count(opener: Opener) -> None:
    """As after a rollback to a checkpoint that vouches for less: the copy is cut again, or made again."""
    for crashed_after in ("copy", "original"):
        handle = write_part(opener(), DATA, tail=TAIL)
        longer = handle.at(len(DATA + TAIL) - 1)
        crash = CrashAt({"copy": 2, "original": 3}[crashed_after], "after", only={"rename"})
        with pytest.raises(SimulatedCrash):
            opener(crash).publish(longer, "rewrite")
        opener().publish(handle, "rewrite")
        move_away(opener, handle)


@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", CUTS)
def test_a_coordinator_that_slept_at_any_call_publishes_nothing_that_was_moved(opener: Opener, cut: Cut) -> None:
    """Another one has published the part meanwhile, and a consumer has taken the file away."""

    def publish(interceptor: Interceptor) -> None:
        handle = write_part(opener(), DATA, tail=TAIL)
        handles.append(handle)
        opener(interceptor).publish(handle, cut)

    def meanwhile() -> None:
        opener().publish(handles[-1], cut)
        move_away(opener, handles[-1])

    handles: list[PartHandle] = []
    calls = count_calls(publish, only=CHANGING_CALLS)
    opener().delete_file(handles[-1].path_of(handles[-1].name))
    for number in range(1, calls + 1):
        sleep = ActAt(number, meanwhile, only=CHANGING_CALLS)
        try:
            publish(sleep)
        except PartfileError:
            assert handles[-1].path_of(handles[-1].name) not in files_in(opener())
        else:
            # A truncate that took fewer polls than the first time.
            assert sleep.count < number
            move_away(opener, handles[-1])


@pytest.mark.parametrize("answers", [0, 1])
def test_a_web_server_that_goes_away_is_no_reason_to_give_rows_up(
    hdfs: HdfsCluster, hdfs_directory: str, opener: Opener, answers: int
) -> None:
    """Before the truncate the part is rewritten; in the middle of it HDFS goes on alone, and is waited for."""
    handle = write_part(opener(), DATA, tail=TAIL)
    calls = WebServerGone(answers, hdfs)
    HdfsStore(hdfs.url + hdfs_directory, HdfsOptions(), calls=calls).publish(handle, "auto")
    assert calls.answered == [False] * answers
    assert finished_bytes(opener(), handle) == DATA


def test_a_truncate_whose_answer_was_lost_leaves_the_part_owed(opener: Opener) -> None:
    """It may be under way, so nothing is copied; the next attempt finds it done."""
    handle = write_part(opener(), DATA, tail=TAIL)
    lost = FailAt(1, OutcomeUnknown("lost", path="x"), applied=True, only={"truncate"})
    with pytest.raises(OutcomeUnknown):
        opener(lost).publish(handle, "auto")
    opener().publish(handle, "rewrite")
    assert files_in(opener()) == {handle.path_of(handle.name): len(DATA)}


def test_a_part_that_a_rival_is_cutting_is_not_taken_for_one_that_lost_bytes(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """hdfs-native shows nothing of its last block meanwhile."""

    def opened(*interceptors: Interceptor) -> HdfsStore:
        return opener_of(own_hdfs.http_address, *interceptors)(own_hdfs.url + own_hdfs_directory, None)

    handle = write_part(opened(), DATA, tail=TAIL)
    rival = HdfsCalls(own_hdfs.url, HdfsOptions(http_address=own_hdfs.http_address))

    def begin_to_cut() -> None:
        # The DataNode cuts: while it is paused, the cut cannot end before the part is opened.
        own_hdfs.pause_datanode()
        assert rival.truncate(f"{own_hdfs_directory}/{handle.path_of(handle.pending)}", len(DATA)) is False

    store = opened(ActAt(1, begin_to_cut, only={"open"}))
    with pytest.raises(NotReady, match=f"shows 0 of {len(DATA)} bytes"):
        store.publish(handle, "rewrite")
    own_hdfs.resume_datanode()
    store.publish(handle, "rewrite")
    assert finished_bytes(opened(), handle) == DATA


def test_a_sidecar_that_cannot_be_read_for_a_moment_is_no_conflict(opener: Opener) -> None:
    """No operator needs to look at the files: the part is tried again."""
    handle = write_part(opener(), DATA, tail=TAIL, state="pending")
    opener().create_file(handle.path_of(handle.sidecar), str(len(DATA)).encode())
    store = opener(FailAt(1, OSError("Connection refused"), only={"open"}))
    with pytest.raises(NotApplied, match="Connection refused"):
        store.publish(handle, "valid-length")
    store.publish(handle, "valid-length")
    assert finished_bytes(opener(), handle) == DATA


# A publish that cuts, each of whose calls in turn is done and loses its reply.


class LostReply:
    """Lets one of the calls that succeed fail for its caller.

    A file that it opened stays open; dropped, it would close itself.
    """

    def __init__(self, n: int, error: Exception, call: str) -> None:
        self._n = n
        self._error = error
        self._call = call
        self._results: list[object] = []

    @property
    def count(self) -> int:
        """How many calls have succeeded."""
        return len(self._results)

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, and fail if it is its turn."""
        result = proceed()
        if call.name == self._call:
            self._results.append(result)
            if self.count == self._n:
                raise self._error
        return result


@pytest.fixture
def hold(hdfs: HdfsCluster, hdfs_directory: str) -> Callable[[str], object]:
    """Opens a file for appending, and keeps its lease for as long as this process lives."""
    calls = HdfsCalls(hdfs.url, HdfsOptions())
    return lambda path: calls.append(f"{hdfs_directory}/{path}")


RESET = OSError("connection reset")
SECOND_ATTEMPT = FileNotFoundError("rename source is not found, said the second attempt")
BROKEN = OSError("RPC listener disconnected")
"""What hdfs-native says of a call that was under way when the NameNode died."""
REPLIES: dict[str, list[Exception]] = {
    "rename": [RESET, SECOND_ATTEMPT],
    "recover_lease": [RESET, BROKEN],
    "append": [BROKEN],
    "truncate": [OutcomeUnknown("the answer was lost", path="x")],
    "create": [RESET],
    "write": [RESET],
    "sync": [RESET],
    "close": [RESET],
}
FEWEST_CALLS: dict[Cut, dict[str, int]] = {
    "truncate": {"recover_lease": 1, "append": 1, "close": 1, "truncate": 1, "rename": 1},
    "rewrite": {"recover_lease": 1, "append": 1, "create": 1, "write": 1, "sync": 1, "close": 2, "rename": 3},
    "valid-length": {"recover_lease": 1, "append": 1, "create": 1, "write": 1, "sync": 1, "close": 2, "rename": 2},
}
"""Of one publish of a pending part whose lease another process has and whose tail does not count."""
PATIENCE_S = 55.0
"""Less than a lease lasts, and than a call or a recovery is waited for: it never comes to that."""


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("cut", "call"), [(cut, call) for cut, calls in FEWEST_CALLS.items() for call in calls])
def test_a_lost_reply_of_a_publish_that_cuts_is_decided_by_looking(
    opener: Opener, hold: Callable[[str], object], cut: Cut, call: str
) -> None:
    """Each call of it was done, its reply lost, and maybe hdfs-native repeated it: it succeeds, at once or repeated."""
    for error in REPLIES[call]:
        for number in itertools.count(1):
            store = opener()
            handle = write_part(store, DATA, tail=TAIL, state="pending")
            if call in {"append", "recover_lease", "close"}:
                hold(handle.path_of(handle.pending))
            fault = LostReply(number, error, call)
            faulty = opener(fault)
            began_s = time.monotonic()
            try:
                faulty.publish(handle, cut)
            except StoreError:
                faulty.publish(handle, cut)
            assert time.monotonic() - began_s < PATIENCE_S
            assert finished_bytes(store, handle) == DATA
            store.delete_directory("day=1")
            if fault.count < number:
                assert number > FEWEST_CALLS[cut][call]
                break


# Calls of the HDFS store that were done although they failed, and streams that failed.


def test_a_part_whose_creation_was_not_answered_is_created_anew(opener: Opener) -> None:
    """Its name carries a token that no other attempt has, so what is there can go; no batch fails for it."""
    for error in (RESET, BROKEN):
        store = opener(FailAt(1, error, applied=True, only={"create"}))
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.close_for_commit()
        store.publish(handle, "rewrite")
        assert files_in(opener()) == {handle.path_of(handle.name): len(DATA)}
        opener().delete_file(handle.path_of(handle.name))


@pytest.mark.parametrize("error", [OSError("connection reset"), FileNotFoundError("the second attempt")])
def test_a_lost_reply_of_close_for_commit_is_decided_by_looking(opener: Opener, error: Exception) -> None:
    """The part is pending if it is there under that name alone."""
    stream = opener(FailAt(1, error, applied=True, only={"rename"})).create(new_part())
    stream.write(DATA)
    handle = stream.close_for_commit()
    assert files_in(opener()) == {handle.path_of(handle.pending): len(DATA)}


REPEATED = {"append", "status", "sync", "rename", "recover_lease"}


@pytest.mark.parametrize("applied", [False, True])
def test_a_part_goes_through_its_life_over_a_connection_that_breaks_at_any_call(opener: Opener, applied: bool) -> None:
    """What is harmless to do twice is repeated; only a part that was opened in vain is refused, and ends as it is."""
    for number in itertools.count(1):
        handle = write_part(opener(), DATA)
        fault = FailAt(number, BROKEN, applied=applied, only=REPEATED)
        store = opener(fault)
        try:
            stream = store.resume(handle)
        except LeaseUnavailable:
            assert (number, applied) == (1, True)
        else:
            stream.write(TAIL)
            stream.persist()
            stream.verify()
            handle = stream.close_for_commit()
        store.publish(handle, "rewrite")
        assert finished_bytes(opener(), handle) == (DATA + TAIL)[: handle.valid_length]
        opener().delete_file(handle.path_of(handle.name))
        if fault.count < number:
            assert number > len(REPEATED)
            return


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_stream_that_failed_is_poisoned(opener: Opener, call: str) -> None:
    """Which bytes are durable is unknown, so it can only be closed; the lease is free afterwards."""
    stream = opener(FailAt(2, RuntimeError('DataTransferError("x")'), only={call})).create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    with pytest.raises(StoreError):
        _write_and_persist(stream)
    for verb in (stream.persist, stream.verify, stream.close_for_commit):
        with pytest.raises(StoreError, match="lost to this process"):
            verb()
    stream.close()
    opener().publish(handle, "rewrite")
    assert finished_bytes(opener(), handle) == DATA


def _write_and_persist(stream: Any) -> None:
    stream.write(TAIL)
    stream.persist()


# What is not done again after the NameNode refused for a while: hdfs-native does only the rest of it, or too much.

BLOCK_BYTES = 1 << 20
HALF_A_BLOCK = bytes(range(256)) * (BLOCK_BYTES // 512)
LEAVES_AFTER_S = 2.0


class SafeModeBefore(HdfsCalls):
    """Puts the NameNode into safe mode before a call is made, and lets it leave some seconds later."""

    def __init__(self, cluster: HdfsCluster, name: str, url: str, options: HdfsOptions) -> None:
        super().__init__(url, options)
        self._cluster = cluster
        self.is_armed = False
        self.leaving: threading.Thread | None = None
        original: Callable[..., Any] = getattr(self, name)

        def then_call(*arguments: Any) -> Any:
            if self.is_armed:
                self.is_armed = False
                cluster.administer("-safemode", "enter")
                self.leaving = threading.Thread(target=self._leave)
                self.leaving.start()
            return original(*arguments)

        setattr(self, name, then_call)

    def _leave(self) -> None:
        time.sleep(LEAVES_AFTER_S)
        self._cluster.administer("-safemode", "leave")


def open_with(cluster: HdfsCluster, directory: str, call: str) -> tuple[HdfsStore, SafeModeBefore]:
    options = HdfsOptions(http_address=cluster.http_address, block_size_bytes=BLOCK_BYTES)
    calls = SafeModeBefore(cluster, call, cluster.url, options)
    return HdfsStore(cluster.url + directory, options, calls=calls), calls


def test_a_write_that_needs_a_block_in_safe_mode_is_never_repeated(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """A part of it may have gone to the block before: done again, those rows would be there twice."""
    store, calls = open_with(own_hdfs, own_hdfs_directory, "write")
    stream = store.create(new_part())
    stream.write(HALF_A_BLOCK)
    handle = stream.persist()
    calls.is_armed = True
    with pytest.raises(NotReady, match=r"[Ss]afe mode"):
        stream.write(HALF_A_BLOCK * 2)
    assert calls.leaving is not None
    calls.leaving.join()
    stream.close()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == HALF_A_BLOCK


def test_a_part_that_is_closed_in_safe_mode_can_be_resumed(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """hdfs-native tells the NameNode of the last block once; closing again would never end."""
    store, calls = open_with(own_hdfs, own_hdfs_directory, "close")
    stream = store.create(new_part())
    stream.write(HALF_A_BLOCK)
    handle = stream.persist()
    calls.is_armed = True
    stream.close()
    store.resume(handle).close()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == HALF_A_BLOCK


def test_a_checkpoint_whose_close_falls_into_safe_mode_is_created(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """The coordinator goes on as if nothing had been."""
    store, calls = open_with(own_hdfs, own_hdfs_directory, "close")
    calls.is_armed = True
    store.create_file("chk-1/_metadata", HALF_A_BLOCK)
    assert store.read_file("chk-1/_metadata", len(HALF_A_BLOCK)) == HALF_A_BLOCK
    assert store.list_names("chk-1") == ["_metadata"]
