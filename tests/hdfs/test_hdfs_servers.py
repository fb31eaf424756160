"""The HDFS store while a server is paused, dead, in safe mode or full.

Every call ends in time, with an error that says what is known, and everything goes on when the server is back.
"""

from __future__ import annotations

import secrets
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from remote_writer import RemoteWriter

from partfile.errors import AlreadyExists, NotApplied, NotReady, OutcomeUnknown, StoreError
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import finished_bytes, new_part, write_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hdfs_cluster import HdfsCluster

DATA, TAIL = b"valid" * 2000, b"tail" * 100
DEADLINE_S = 2.0
SLACK_S = 2.0


@pytest.fixture
def reopen(own_hdfs: HdfsCluster) -> Callable[[], HdfsStore]:
    """Opens an impatient store on a directory of this test's own."""
    base = f"{own_hdfs.url}/{secrets.token_hex(4)}"
    options = HdfsOptions(
        http_address=own_hdfs.http_address,
        call_timeout_s=DEADLINE_S,
        lease_timeout_s=DEADLINE_S,
        truncate_timeout_s=DEADLINE_S,
    )
    return lambda: HdfsStore(base, options)


@contextmanager
def in_time(most_s: float = DEADLINE_S) -> Iterator[None]:
    """Check that the block takes no longer than its deadlines allow."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < most_s + SLACK_S


def test_a_paused_namenode_is_given_up_at_the_deadline(own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]) -> None:
    """Reading did not happen; what changes something has an unknown outcome; all is well when it answers again."""
    store = reopen()
    handle = write_part(store, DATA, state="pending")
    own_hdfs.pause_namenode()
    verbs: list[tuple[type[StoreError], Callable[[], object]]] = [
        (NotApplied, lambda: store.file_exists("x")),
        (NotApplied, lambda: store.list_names("")),
        (OutcomeUnknown, lambda: store.create(new_part())),
        (OutcomeUnknown, lambda: store.delete_file("x")),
    ]
    for kind, verb in verbs:
        with in_time(), pytest.raises(StoreError, match="has not answered within 2 s") as raised:
            verb()
        assert type(raised.value) is kind
    own_hdfs.resume_namenode()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


def test_a_call_that_was_given_up_keeps_no_lease(own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]) -> None:
    """An append that is done after its deadline gives back what it took."""
    store = reopen()
    handle = write_part(store, DATA)
    own_hdfs.pause_namenode()
    with pytest.raises(OutcomeUnknown):
        store.resume(handle)
    own_hdfs.resume_namenode()
    _until(lambda: store.resume(handle).close())


def test_a_dead_namenode_is_an_error_in_time_and_nothing_is_lost(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]
) -> None:
    """At a restore for instance: the error comes within the deadline, and once it is back the same call works."""
    store = reopen()
    handle = write_part(store, DATA, tail=TAIL)
    own_hdfs.kill_namenode()
    with in_time(2 * DEADLINE_S), pytest.raises(StoreError):
        store.publish(handle, "truncate")
    own_hdfs.mend()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


def test_an_open_part_outlives_its_namenode(own_hdfs: HdfsCluster) -> None:
    """Within the deadline a restart is waited out: the writer goes on as if nothing had happened."""
    store = HdfsStore(f"{own_hdfs.url}/patient", HdfsOptions(http_address=own_hdfs.http_address))
    stream = store.create(new_part())
    stream.write(DATA)
    stream.persist()
    own_hdfs.kill_namenode()
    back = threading.Timer(1.0, own_hdfs.start_namenode)
    back.start()
    stream.write(TAIL)
    handle = stream.close_for_commit()
    back.join()
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA + TAIL


def test_a_link_whose_namenode_dies_is_there_whole_or_not_at_all(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]
) -> None:
    """Whatever moment it dies at: creating again says whether the first attempt counted."""
    store = reopen()
    for delay_s in (0.0, 0.02):
        path = f"chk-{delay_s}/_metadata"
        killer = threading.Timer(delay_s, own_hdfs.kill_namenode)
        killer.start()
        try:
            store.create_file(path, DATA)
            outcome = "created"
        except OutcomeUnknown:
            outcome = "unknown"
        except NotApplied:
            outcome = "not applied"
        killer.join()
        own_hdfs.mend()
        try:
            _until(lambda path=path: store.create_file(path, DATA), but=AlreadyExists)  # type: ignore[misc]
            assert outcome != "created"
        except AlreadyExists:
            assert outcome != "not applied"
        assert store.read_file(path, len(DATA)) == DATA


def test_safe_mode_is_waited_for_and_then_named(own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]) -> None:
    """Nothing happens in safe mode; the error says so, and a store with patience goes on when it is over."""
    store = reopen()
    handle = write_part(store, DATA, tail=TAIL)
    with own_hdfs.safe_mode():
        verbs: list[Callable[[], None]] = [
            lambda: store.publish(handle, "truncate"),
            lambda: store.create_file("link", b""),
        ]
        for verb in verbs:
            with in_time(2 * DEADLINE_S), pytest.raises(NotReady, match=r"[Ss]afe mode"):
                verb()
        patient = HdfsStore(store.base, HdfsOptions(http_address=own_hdfs.http_address))
        thread = threading.Thread(target=patient.create_file, args=("patient", b""))
        thread.start()
        thread.join(1)
        assert thread.is_alive()
    thread.join(30)
    assert patient.file_exists("patient")
    assert not store.file_exists("link")
    store.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


@pytest.mark.parametrize("cut", ["truncate", "rewrite"])
@pytest.mark.fault("S9")
def test_a_lease_recovery_that_does_not_end_leaves_the_part_owed(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore], cut: Any
) -> None:
    """With its DataNode asleep a part is neither copied nor published; it is when the DataNode wakes up."""
    store = reopen()
    with RemoteWriter(reopen().base, {"http_address": own_hdfs.http_address}) as zombie:
        handle = new_part()
        assert [zombie.create(handle), zombie.write(DATA), zombie.persist(), zombie.write(TAIL)] == ["done"] * 4
        handle = handle.at(len(DATA))
        own_hdfs.pause_datanode()
        with in_time(2 * DEADLINE_S), pytest.raises(NotApplied, match="recovery of its lease has not ended"):
            store.publish(handle, cut)
        assert {file.path for file in store.list()} == {handle.path_of(handle.pending)}
        own_hdfs.resume_datanode()
        _until(lambda: store.publish(handle, cut))
        assert finished_bytes(store, handle) == DATA
        assert zombie.persist() != "done"


def test_a_datanode_that_is_killed_loses_nothing(own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]) -> None:
    """The open part is poisoned, for its one replica is gone for now; its durable bytes are published later."""
    store = reopen()
    stream = store.create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    own_hdfs.kill_datanode()
    with in_time(3 * DEADLINE_S), pytest.raises(StoreError):
        _write_on(stream)
    stream.close()
    own_hdfs.mend()
    _until(lambda: store.publish(handle, "truncate"))
    assert finished_bytes(store, handle) == DATA


def test_a_full_quota_is_named_and_nothing_is_left(own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]) -> None:
    """D: no space. A link is not created, a part is poisoned; both work when there is room."""
    store = reopen()
    handle = write_part(store, DATA, state="pending")
    path = "/" + store.base.rpartition("/")[2]
    own_hdfs.administer("-setSpaceQuota", "1m", path)
    with pytest.raises(NotApplied, match="quota"):
        store.create_file("chk-1/_metadata", DATA)
    assert store.list_names("chk-1") == []
    stream = store.create(new_part())
    with pytest.raises(NotApplied, match="quota"):
        _write_on(stream)
    stream.close()
    own_hdfs.administer("-clrSpaceQuota", path)
    store.create_file("chk-1/_metadata", DATA)
    store.publish(handle, "truncate")


def _write_on(stream: Any) -> None:
    """Until it shows that nobody takes the bytes."""
    for _ in range(20):
        stream.write(DATA)
        stream.persist()


def _until(work: Callable[[], object], but: type[Exception] | None = None) -> None:
    """Repeat what is refused for a while after a server is back."""
    ends_at_s = time.monotonic() + 40
    while True:
        try:
            work()
        except StoreError as error:
            if (but is not None and isinstance(error, but)) or time.monotonic() > ends_at_s:
                raise
            time.sleep(0.2)
        else:
            return
