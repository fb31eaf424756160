"""Parts on a real HDFS: writers, zombies, lost replies, and a NameNode that restarts while they close."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import hdfs_native
import pytest

from partfile.errors import LeaseUnavailable, NotApplied, NotFound, PartfileError, PartMissing
from partfile.stores.hdfs.client import CHANGING_CALLS, HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.faults import ActAt, Recorder, count_calls
from partfile.testing.store import files_in, finished_bytes, new_part, write_part
from support.processes.deadline import PATIENCE_S, wait_until
from support.programs.clean_forks import CleanForks
from support.programs.remote_writer import RemoteWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.stores.base import Cut, PartHandle
    from partfile.testing.faults import Interceptor
    from support.hdfs.cluster import HdfsCluster
    from support.hdfs.life import Opener


# What writers, zombies and lost replies do to a part on a real HDFS.

CUTS: tuple[Cut, ...] = ("truncate", "rewrite", "valid-length")
DATA, TAIL = b"valid" * 2000, b"tail" * 1250


@pytest.fixture
def zombie(hdfs: HdfsCluster, hdfs_directory: str) -> Iterator[RemoteWriter]:
    """A writer on the same directory in another process."""
    with RemoteWriter(hdfs.url + hdfs_directory, {"http_address": hdfs.http_address}) as writer:
        yield writer


@pytest.fixture(scope="module")
def forks() -> Iterator[CleanForks]:
    """Processes without a client of this one's."""
    with CleanForks("support.hdfs.life") as clean:
        yield clean


@pytest.fixture
def raw(hdfs: HdfsCluster) -> hdfs_native.Client:
    """The bare client, for what our store does not do."""
    return hdfs_native.Client(hdfs.url)


def written_by(writer: RemoteWriter) -> PartHandle:
    """A part with durable bytes and a tail that is not, held open by another process."""
    handle = new_part()
    assert [writer.create(handle), writer.write(DATA), writer.persist(), writer.write(TAIL)] == ["done"] * 4
    return handle.at(len(DATA))


@pytest.mark.parametrize("cut", CUTS)
def test_a_writer_killed_between_hsync_and_close_loses_nothing(opener: Opener, zombie: RemoteWriter, cut: Cut) -> None:
    """What was persisted is published whole; what was not is in no reader's view, by each way of cutting."""
    store = opener()
    handle = written_by(zombie)
    zombie.kill()
    store.publish(handle, cut)
    store.publish(handle, cut)
    assert finished_bytes(store, handle) == DATA


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.fault("D3")
def test_a_zombie_that_writes_after_the_publication_is_refused_by_the_datanode(
    opener: Opener, zombie: RemoteWriter, cut: Cut
) -> None:
    """Its write is taken by its own client, or refused already; persisting fails, and the file keeps its length."""
    store = opener()
    handle = written_by(zombie)
    store.publish(handle, cut)
    before = files_in(store)
    answers = [zombie.write(TAIL * 100), zombie.persist()]
    refused = next(answer for answer in answers if answer != "done")
    assert refused.startswith("LeaseUnavailable: ")
    assert zombie.close_for_commit() != "done"
    assert files_in(store) == before
    assert finished_bytes(store, handle) == DATA


def test_recovering_before_renaming_lets_a_zombie_in(
    opener: Opener, zombie: RemoteWriter, raw: hdfs_native.Client, hdfs_directory: str
) -> None:
    """The wrong order by hand: the zombie opens the part again by the name that it knows, and writes into it for ever.

    This is why R5 wants the pending name first.
    """
    store = opener()
    handle = new_part()
    assert [zombie.create(handle), zombie.write(DATA), zombie.persist()] == ["done"] * 3
    path = f"{hdfs_directory}/{handle.path_of(handle.in_progress)}"
    while not raw.recover_lease(path):
        time.sleep(0.2)
    assert zombie.resume(handle.at(len(DATA))) == "done"
    final = f"{hdfs_directory}/{handle.path_of(handle.name)}"
    raw.rename(path, final)
    assert [zombie.write(TAIL), zombie.persist()] == ["done", "done"]
    assert files_in(store) == {handle.path_of(handle.name): len(DATA + TAIL)}


@pytest.mark.fault("D3")
def test_no_zombie_gets_in_at_any_moment_of_a_publish(opener: Opener, zombie: RemoteWriter) -> None:
    """Ours: a zombie that opens and writes just before any call, or after all, changes nothing that is published."""

    def publish(interceptor: Interceptor, meddle: Callable[[PartHandle], object]) -> None:
        store = opener()
        handle = write_part(store, DATA, tail=TAIL)
        handles.append(handle)
        opener(interceptor).publish(handle, "rewrite")
        meddle(handle)
        assert finished_bytes(store, handle) == DATA
        store.delete_file(handle.path_of(handle.name))

    handles: list[PartHandle] = []
    calls = count_calls(lambda recorder: publish(recorder, lambda _: None))

    def meddle(_: object = None) -> None:
        # At its full length, as a task that persisted the tail would.
        zombie.resume(handles[-1].at(len(DATA + TAIL)))
        zombie.write(TAIL)
        zombie.persist()

    for number in range(1, calls + 1):
        publish(ActAt(number, meddle), meddle)


def test_no_zombie_gets_in_while_a_part_is_made_pending(opener: Opener, zombie: RemoteWriter) -> None:
    """Before the lease is given back, no process knows the part's name any more."""

    def close_for_commit(interceptor: Interceptor) -> None:
        stream = opener(interceptor).create(new_part(name=f"part-{len(handles)}"))
        handles.append(stream.handle.at(len(DATA)))
        stream.write(DATA)
        assert stream.close_for_commit() == handles[-1]

    handles: list[PartHandle] = []
    answers: list[str] = []
    calls = count_calls(close_for_commit)
    for number in range(1, calls + 1):
        close_for_commit(ActAt(number, lambda: answers.append(zombie.resume(handles[-1])), "after"))
    assert [answer.split(":")[0] for answer in answers] == ["LeaseUnavailable"] * calls


def test_an_open_file_that_is_renamed_is_still_its_writers(
    opener: Opener, zombie: RemoteWriter, raw: hdfs_native.Client, hdfs_directory: str
) -> None:
    """Leases follow a file through a rename: so nothing is published that has not been closed."""
    store = opener()
    handle = written_by(zombie)
    raw.rename(
        f"{hdfs_directory}/{handle.path_of(handle.in_progress)}",
        f"{hdfs_directory}/{handle.path_of(handle.pending)}",
    )
    assert zombie.persist() == "done"
    store.publish(handle, "rewrite")
    assert zombie.write(TAIL) == "done"
    assert zombie.persist().startswith("LeaseUnavailable: ")
    assert finished_bytes(store, handle) == DATA


WRITER_CALLS = ["create", "write", "sync", "write", "sync", "rename", "close"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_any_call_of_a_writer_is_survived(
    opener: Opener, hdfs: HdfsCluster, forks: CleanForks, when: str
) -> None:
    """SIGKILL at each call of create, write, persist and close_for_commit: what was acknowledged is published."""
    store = opener()
    fixed = {"url": store.base, "http_address": hdfs.http_address, "valid": DATA.decode(), "tail": TAIL.decode()}
    for number in range(1, len(WRITER_CALLS) + 1):
        handle = new_part(name=f"part-{number}")
        code = forks.run("write_part", handle=handle.model_dump_json(), number=number, when=when, **fixed)
        assert code == -signal.SIGKILL
        if number > 3 or (number == 3 and when == "after"):
            store.publish(handle.at(len(DATA)), "rewrite")
            assert finished_bytes(store, handle) == DATA


def test_the_calls_of_a_writer_are_those_that_are_killed(opener: Opener) -> None:
    """The enumeration leaves none out."""
    recorder = Recorder(CHANGING_CALLS)
    stream = opener(recorder).create(new_part())
    stream.write(DATA)
    stream.persist()
    stream.write(TAIL)
    stream.close_for_commit()
    assert recorder.names == WRITER_CALLS


@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", CUTS)
def test_a_kill_at_any_call_of_a_publish_is_survived(
    opener: Opener, hdfs: HdfsCluster, forks: CleanForks, cut: Cut
) -> None:
    """SIGKILL after each changing call of finalizing and publishing, among them a truncate that has begun."""
    store = opener()
    recorder = Recorder(CHANGING_CALLS)
    opener(recorder).publish(write_part(store, DATA, tail=TAIL), cut)
    assert ("truncate" in recorder.names) is (cut == "truncate")
    fixed = {"url": store.base, "http_address": hdfs.http_address, "cut": cut, "when": "after"}
    for number in range(1, recorder.count + 1):
        store.delete_directory("day=1")
        handle = write_part(store, DATA, tail=TAIL)
        code = forks.run("publish", handle=handle.model_dump_json(), number=number, **fixed)
        # A truncate is asked about until it is done, which may be sooner than it was the first time.
        fewest_calls = recorder.count - max(0, recorder.names.count("truncate") - 1)
        assert code == -signal.SIGKILL or (code == 0 and number > fewest_calls), recorder.names[number - 1]
        store.publish(handle, cut)
        assert finished_bytes(store, handle) == DATA


@pytest.mark.fault("F10")
def test_a_part_that_lost_bytes_is_missing(opener: Opener, raw: hdfs_native.Client, hdfs_directory: str) -> None:
    """A staged file that is shorter than vouched for is refused under each of its names."""
    store = opener()
    for name in ("in_progress", "pending"):
        handle = new_part(name=f"part-{name}")
        raw.create(f"{hdfs_directory}/{handle.path_of(getattr(handle, name))}").close()
        with pytest.raises(PartMissing):
            store.publish(handle.at(1), "truncate")


def test_a_directory_in_the_place_of_a_part_is_a_conflict(
    opener: Opener, raw: hdfs_native.Client, hdfs_directory: str
) -> None:
    """A rename onto a directory does not move the file into it."""
    store = opener()
    handle = write_part(store, DATA, state="pending")
    raw.mkdirs(f"{hdfs_directory}/{handle.path_of(handle.name)}", create_parent=True)
    with pytest.raises(PartfileError, match="is a directory"):
        store.publish(handle, "truncate")
    assert files_in(store) == {handle.path_of(handle.pending): len(DATA)}


def test_a_part_is_resumed_in_this_process_only_after_it_was_closed(opener: Opener) -> None:
    """The one client of a process holds all its leases, and still lets no second stream in."""
    store = opener()
    stream = store.create(new_part())
    handle = stream.persist()
    with pytest.raises(LeaseUnavailable):
        store.resume(handle)
    stream.close()
    store.resume(handle).close()


FORKING = """
import os, sys
from partfile.stores.registry import open_store
from partfile.testing.store import new_part
store = open_store(sys.argv[1])
stream = store.create(new_part())
stream.write(b"parent's")
store.create_file("first", b"x")
store.read_file("first", 9)
if os.fork() == 0:
    store.create_file("child", store.read_file("first", 9))
    sys.exit(0)
code = os.waitstatus_to_exitcode(os.wait()[1])
assert code == 0, code
store.publish(stream.close_for_commit(), "rewrite")
assert store.read_file("child", 9) == b"x"
"""


@pytest.mark.fault("N10")
def test_a_forked_child_has_a_client_of_its_own_and_ends_by_itself(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """It works through the store it inherited, reads through no connection of its parent's, and ends by itself."""
    subprocess.run([sys.executable, "-c", FORKING, hdfs.url + hdfs_directory], check=True, timeout=PATIENCE_S)


def test_reading_wants_a_base_that_is_there(hdfs: HdfsCluster) -> None:
    """A typing error in a URL is no empty store."""
    with pytest.raises(NotFound):
        HdfsStore(f"{hdfs.url}/nowhere", create_base=False)


# Closing parts, and taking their leases, on a NameNode that is restarted meanwhile.


class RestartAfterTheFirstTruncate(HdfsCalls):
    """Kills the NameNode when it has begun to cut, and brings it back a second later."""

    def __init__(self, cluster: HdfsCluster, options: HdfsOptions) -> None:
        super().__init__(cluster.url, options)
        self._cluster = cluster
        self.answers: list[bool] = []

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut, and kill after the first answer."""
        self.answers.append(super().truncate(path, length_bytes))
        if len(self.answers) == 1:
            self._cluster.kill_namenode()
            threading.Timer(1, self._cluster.start_namenode).start()
        return self.answers[-1]


DURABLE = b"durable" * 1000
CLIENT_GIVES_UP_AFTER_S = 13


def test_a_close_waits_until_the_datanode_has_reported(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """hdfs-native gives up after 12 s; the part is closed all the same, and its lease is free."""
    options = HdfsOptions(http_address=own_hdfs.http_address, call_timeout_s=120)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options)
    stream = store.create(new_part())
    stream.write(DURABLE)
    handle = stream.persist()
    whole = own_hdfs.finalized_blocks()
    own_hdfs.kill_namenode()
    closing = threading.Thread(target=stream.close)
    closing.start()
    # The DataNode has the end of the block; it sleeps before it can tell the new NameNode.
    wait_until(lambda: own_hdfs.finalized_blocks() - whole, "the DataNode does not get the end of the block")
    own_hdfs.pause_datanode()
    own_hdfs.start_namenode()
    time.sleep(CLIENT_GIVES_UP_AFTER_S + 5)
    own_hdfs.resume_datanode()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()
    store.resume(handle).close()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DURABLE


def publish_for(store: HdfsStore, handle: PartHandle, cut: Cut, timeout_s: float) -> None:
    """Publish as checkpoints do: what is owed is tried again."""
    ends_at_s = time.monotonic() + timeout_s
    while True:
        try:
            return store.publish(handle, cut)
        except NotApplied:
            assert time.monotonic() < ends_at_s


def test_a_recovery_whose_answer_is_lost_is_asked_for_again(own_hdfs: HdfsCluster, own_hdfs_directory: str) -> None:
    """It was sent to a NameNode that died before it answered; the one that comes back knows nothing of it.

    Where the DataNode is slow to report, the part stays owed, and the next publication finds it closed.
    """
    options = HdfsOptions(http_address=own_hdfs.http_address, lease_timeout_s=20)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options)
    stream = store.create(new_part())
    stream.write(DURABLE)
    handle = stream.persist()
    own_hdfs.pause_namenode()
    publishing = threading.Thread(target=publish_for, args=(store, handle, "truncate", PATIENCE_S))
    publishing.start()
    time.sleep(1)
    own_hdfs.kill_namenode()
    own_hdfs.start_namenode()
    publishing.join(1.5 * PATIENCE_S)
    assert not publishing.is_alive()
    assert finished_bytes(store, handle) == DURABLE


def test_a_part_whose_namenode_died_while_it_was_cut_is_never_given_up(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """It is waited for, or owed where the recovery was asked for before the DataNode reported; never missing."""
    options = HdfsOptions(http_address=own_hdfs.http_address, lease_timeout_s=10)
    calls = RestartAfterTheFirstTruncate(own_hdfs, options)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options, calls=calls)
    handle = write_part(store, DURABLE, tail=b"tail" * 1000)
    publish_for(store, handle, "auto", PATIENCE_S)
    assert calls.answers[0] is False
    assert files_in(store) == {handle.path_of(handle.name): len(DURABLE)}
    assert finished_bytes(store, handle) == DURABLE
