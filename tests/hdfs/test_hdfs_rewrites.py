"""Parts of HDFS that are cut: nothing is published twice or given up, whatever happens in the middle of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.errors import NotApplied, NotReady, OutcomeUnknown, PartfileError, PartMissing
from partfile.stores.hdfs.client import CHANGING_CALLS, HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.faults import ActAt, CrashAt, FailAt, SimulatedCrash, count_calls
from partfile.testing.store import files_in, finished_bytes, write_part

if TYPE_CHECKING:
    from hdfs_cluster import HdfsCluster
    from hdfs_life import Opener

    from partfile.stores.base import Cut, PartHandle
    from partfile.testing.faults import Interceptor


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
        """Cut, or fail as somebody does whose connection is refused."""
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
@pytest.mark.fault("S7")
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
    """It may be under way, so nobody copies; the next attempt finds it done."""
    handle = write_part(opener(), DATA, tail=TAIL)
    lost = FailAt(1, OutcomeUnknown("lost", path="x"), applied=True, only={"truncate"})
    with pytest.raises(OutcomeUnknown):
        opener(lost).publish(handle, "auto")
    opener().publish(handle, "rewrite")
    assert files_in(opener()) == {handle.path_of(handle.name): len(DATA)}


def test_a_part_that_a_rival_is_cutting_is_not_taken_for_one_that_lost_bytes(
    hdfs: HdfsCluster, hdfs_directory: str, opener: Opener
) -> None:
    """hdfs-native shows nothing of its last block meanwhile."""
    handle = write_part(opener(), DATA, tail=TAIL)
    rival = HdfsCalls(hdfs.url, HdfsOptions(http_address=hdfs.http_address))
    path = f"{hdfs_directory}/{handle.path_of(handle.pending)}"
    store = opener(ActAt(1, lambda: rival.truncate(path, len(DATA)), only={"open"}))
    with pytest.raises(NotReady, match=f"shows 0 of {len(DATA)} bytes"):
        store.publish(handle, "rewrite")
    store.publish(handle, "rewrite")
    assert finished_bytes(opener(), handle) == DATA


def test_a_sidecar_that_cannot_be_read_for_a_moment_is_no_conflict(opener: Opener) -> None:
    """Nobody needs to look at the files: the part is tried again."""
    handle = opener().settle(write_part(opener(), DATA, tail=TAIL), "valid-length")
    store = opener(FailAt(1, OSError("Connection refused"), only={"open"}))
    with pytest.raises(NotApplied, match="Connection refused"):
        store.publish(handle, "valid-length")
    store.publish(handle, "valid-length")
    assert finished_bytes(opener(), handle) == DATA
