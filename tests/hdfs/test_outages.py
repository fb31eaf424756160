"""HDFS while a server is paused, dead, in safe mode or full: nothing is lost, and when mended the sink goes on."""

from __future__ import annotations

import resource
import secrets
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import hdfs_native
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import AlreadyExists, NotApplied, NotReady, OutcomeUnknown, StoreError
from partfile.stores.hdfs.errors import Verdict, verdict_of
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import finished_bytes, new_part, write_part
from support.hdfs.cluster import HdfsCluster
from support.hdfs.life import finished_files
from support.processes.deadline import PATIENCE_S
from support.programs.remote_writer import RemoteWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from partfile.stores.base import PartHandle

    MakeSink = Callable[..., pf.FileSink]


# The HDFS store while a server is paused, dead, in safe mode or full.
#
# Every call ends in time, with an error that says what is known, and everything goes on when the server is back.

DATA, TAIL = b"valid" * 2000, b"tail" * 100
DEADLINE_S = 2.0
SLACK_S = 30.0
"""Beyond the deadlines, on a busy machine. Without deadlines nothing would end while the server is away."""


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


@pytest.fixture
def patient(own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore]) -> HdfsStore:
    """A store on the same directory for what is to succeed, which may take long on a busy machine."""
    return HdfsStore(reopen().base, HdfsOptions(http_address=own_hdfs.http_address, call_timeout_s=PATIENCE_S))


@contextmanager
def in_time(most_s: float = DEADLINE_S) -> Iterator[None]:
    """Check that the block takes no longer than its deadlines allow."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < most_s + SLACK_S


def test_a_paused_namenode_is_given_up_at_the_deadline(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore], patient: HdfsStore
) -> None:
    """Reading did not happen; what changes something has an unknown outcome; all is well when it answers again."""
    store = reopen()
    handle = write_part(patient, DATA, state="pending")
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
    _until(lambda: store.publish(handle, "truncate"))
    assert finished_bytes(store, handle) == DATA


def test_a_call_that_was_given_up_keeps_no_lease(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore], patient: HdfsStore
) -> None:
    """An append that is done after its deadline gives back what it took."""
    store = reopen()
    handle = write_part(patient, DATA)
    own_hdfs.pause_namenode()
    with pytest.raises(OutcomeUnknown):
        store.resume(handle)
    own_hdfs.resume_namenode()
    _until(lambda: store.resume(handle).close())


def test_a_dead_namenode_is_an_error_in_time_and_nothing_is_lost(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore], patient: HdfsStore
) -> None:
    """At a restore for instance: the error comes within the deadline, and once it is back the same call works."""
    store = reopen()
    handle = write_part(patient, DATA, tail=TAIL)
    own_hdfs.kill_namenode()
    with in_time(2 * DEADLINE_S), pytest.raises(StoreError):
        store.publish(handle, "truncate")
    own_hdfs.mend()
    _until(lambda: store.publish(handle, "truncate"))
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


def test_a_checkpoint_whose_namenode_dies_is_there_whole_or_not_at_all(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore], patient: HdfsStore
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
            _until(lambda path=path: patient.create_file(path, DATA), but=AlreadyExists)  # type: ignore[misc]
            assert outcome != "created"
        except AlreadyExists:
            assert outcome != "not applied"
        assert patient.read_file(path, len(DATA)) == DATA


def test_safe_mode_is_waited_for_and_then_named(
    own_hdfs: HdfsCluster, reopen: Callable[[], HdfsStore], patient: HdfsStore
) -> None:
    """Nothing happens in safe mode; the error says so, and a store with patience goes on when it is over."""
    store = reopen()
    handle = write_part(patient, DATA, tail=TAIL)
    with own_hdfs.safe_mode():
        verbs: list[Callable[[], None]] = [
            lambda: store.publish(handle, "truncate"),
            lambda: store.create_file("link", b""),
        ]
        for verb in verbs:
            with in_time(2 * DEADLINE_S), pytest.raises(NotReady, match=r"[Ss]afe mode"):
                verb()
        thread = threading.Thread(target=patient.create_file, args=("patient", b""))
        thread.start()
        thread.join(1)
        assert thread.is_alive()
    thread.join(PATIENCE_S)
    assert patient.file_exists("patient")
    assert not patient.file_exists("link")
    # Cutting takes as long as the DataNodes need, which says nothing of safe mode.
    patient.publish(handle, "truncate")
    assert finished_bytes(store, handle) == DATA


@pytest.mark.parametrize("cut", ["truncate", "rewrite"])
@pytest.mark.fault("F9")
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


def test_a_full_quota_is_named_and_nothing_is_left(own_hdfs: HdfsCluster, patient: HdfsStore) -> None:
    """D: no space. A checkpoint is not created, a part is poisoned; both work when there is room."""
    store = patient
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
    """Until it shows that no DataNode takes the bytes."""
    for _ in range(20):
        stream.write(DATA)
        stream.persist()


def _until(work: Callable[[], object], but: type[Exception] | None = None) -> None:
    """Repeat what is refused for a while after a server is back."""
    ends_at_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            work()
        except StoreError as error:
            if (but is not None and isinstance(error, but)) or time.monotonic() > ends_at_s:
                raise
            time.sleep(0.2)
        else:
            return


# Where HDFS has no room or cannot keep its promises: refused with a reason, nothing lost, gone on with when mended.

SMALL_BLOCK_BYTES = 1 << 20


@pytest.fixture
def make_sink(hdfs: HdfsCluster, hdfs_directory: str) -> MakeSink:
    """Makes a sink in the directory ``base`` of this test."""

    def make(**options: Any) -> pf.FileSink:
        storage_options = {"http_address": hdfs.http_address, "block_size_bytes": SMALL_BLOCK_BYTES}
        base = f"{hdfs.url}{hdfs_directory}/base"
        return pf.FileSink(base, uid="job", format="text", storage_options=storage_options, **options)

    return make


def write(sink: pf.FileSink, *lines: str) -> None:
    """Write the lines after those that count already, and end."""
    with sink.local() as out:
        done = out.position
        assert done is None or isinstance(done, int)
        out.write(pa.RecordBatch.from_pydict({"line": lines[done or 0 :]}), position=len(lines))
        out.checkpoint()


def lines_in(hdfs: HdfsCluster, directory: str) -> list[str]:
    """Every line of every finished file."""
    client = hdfs_native.Client(hdfs.url)
    paths = [file.path for file in client.list_status(directory, recursive=False) if not file.isdir]
    finished = [path for path in paths if not path.rpartition("/")[2].startswith("_")]
    return sorted(line for path in finished for line in client.read(path).read().decode().splitlines())


def test_an_erasure_coded_base_is_refused_at_the_start(
    hdfs: HdfsCluster, hdfs_directory: str, make_sink: MakeSink
) -> None:
    """The takeover is the first thing that cannot be made durable; no part has been made yet."""
    hdfs.erasure_code(hdfs_directory)
    with pytest.raises(NotApplied, match="hdfs ec -setPolicy -replicate"):
        write(make_sink(), "a")
    assert lines_in(hdfs, f"{hdfs_directory}/base") == []


def test_an_erasure_coded_bucket_stops_the_batch(hdfs: HdfsCluster, hdfs_directory: str, make_sink: MakeSink) -> None:
    """With its checkpoints elsewhere the sink starts; the rows that cannot be made durable do not count."""
    hdfs_native.Client(hdfs.url).mkdirs(f"{hdfs_directory}/base", create_parent=True)
    hdfs.erasure_code(f"{hdfs_directory}/base")
    sink = make_sink(checkpoint_dir=f"{hdfs.url}{hdfs_directory}/checkpoints")
    with pytest.raises(NotApplied, match="Erasure-coded files cannot be synced"):
        write(sink, "a")
    with sink.local() as out:
        assert out.position is None


def test_what_hdfs_native_says_of_erasure_coding_is_sorted() -> None:
    """By its words as recorded on three DataNodes; with the one of these tests a write fails first."""
    error = RuntimeError('OperationFailed("hsync is not supported for erasure-coded files")')
    assert verdict_of(error) is Verdict.ERASURE_CODED


@pytest.mark.parametrize(
    ("quota", "lift"),
    [(("-setQuota", "6"), "-clrQuota"), (("-setSpaceQuota", str(SMALL_BLOCK_BYTES // 2)), "-clrSpaceQuota")],
)
@pytest.mark.fault("F3")
def test_a_quota_stops_the_stream_and_loses_nothing(
    hdfs: HdfsCluster, hdfs_directory: str, make_sink: MakeSink, quota: tuple[str, str], lift: str
) -> None:
    """Exceeded it is no unknown outcome; once it is raised the next run goes on, with every row once."""
    write(make_sink(), "a")
    base = f"{hdfs_directory}/base"
    hdfs.administer(*quota, base)
    with pytest.raises(NotApplied, match="quota"):
        write(make_sink(), "a", "b")
    hdfs.administer(lift, base)
    write(make_sink(), "a", "b")
    assert lines_in(hdfs, base) == ["a", "b"]


# A DataNode whose disk is full: nothing of the batch counts, the error says so, and with room the sink goes on.

ROOM_BYTES = 200_000
DURABLE, TOO_MUCH = b"durable" * 1000, b"too much" * 50_000
RESERVED = "dfs.datanode.du.reserved"
ALL_THERE_IS = str(1 << 60)


@contextmanager
def no_file_beyond(cluster: HdfsCluster, size_bytes: int) -> Iterator[None]:
    """Let the kernel refuse what the DataNode writes into a file beyond a size: EFBIG, in the place of ENOSPC."""
    _, datanode = cluster.process_ids
    before = resource.prlimit(datanode, resource.RLIMIT_FSIZE)
    resource.prlimit(datanode, resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.prlimit(datanode, resource.RLIMIT_FSIZE, before)


def reserve(cluster: HdfsCluster, size_bytes: str) -> None:
    """Start the DataNode again with so much of its disk reserved for others."""
    site = cluster.configuration_directory / "hdfs-site.xml"
    head, name, tail = site.read_text().partition(f"<name>{RESERVED}</name><value>")
    site.write_text(head + name + size_bytes + tail[tail.index("</value>") :])
    cluster.kill_datanode()
    cluster.start_datanode()
    cluster.wait_until_ready()


def lines_at(url: str) -> list[str]:
    """Every line of every finished file."""
    with HdfsStore(url) as store:
        return sorted(line for data in finished_files(store).values() for line in data.decode().splitlines())


def sink_at(url: str, http_address: str) -> pf.FileSink:
    """A sink that does not wait long."""
    return pf.FileSink(
        url, uid="job", format="text", storage_options={"http_address": http_address, "call_timeout_s": 10}
    )


@pytest.mark.hdfs
def test_a_part_whose_disk_filled_up_in_the_middle_of_a_block_is_owed_until_its_datanode_is_started_again(
    own_hdfs: HdfsCluster, own_hdfs_directory: str
) -> None:
    """What was durable stays so, though HDFS cannot close the block before: file and memory disagree on its length."""
    options = HdfsOptions(http_address=own_hdfs.http_address, call_timeout_s=10, lease_timeout_s=10)
    store = HdfsStore(own_hdfs.url + own_hdfs_directory, options)
    stream = store.create(new_part())
    stream.write(DURABLE)
    handle = stream.persist()
    with no_file_beyond(own_hdfs, ROOM_BYTES):
        with pytest.raises(OutcomeUnknown, match=r"sync|write to"):
            fill(stream)
        with pytest.raises(NotApplied, match="lost to this process"):
            stream.persist()
        stream.close()
    with pytest.raises(NotApplied, match="recovery of its lease has not ended"):
        store.publish(handle, "truncate")
    own_hdfs.kill_datanode()
    own_hdfs.mend()
    publish_in_time(store, handle)
    assert finished_bytes(store, handle) == DURABLE


def publish_in_time(store: HdfsStore, handle: PartHandle) -> None:
    """Try as a sink does with each checkpoint: HDFS begins a recovery anew when the one that failed has timed out."""
    ends_at_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            store.publish(handle, "truncate")
        except NotApplied:
            assert time.monotonic() < ends_at_s
        else:
            return


def fill(stream: Any) -> None:
    """Write more than there is room for."""
    stream.write(TOO_MUCH)
    stream.persist()


@pytest.mark.hdfs
@pytest.mark.parametrize("room_bytes", [0, ROOM_BYTES])
def test_a_batch_for_which_there_is_no_room_counts_for_nothing(
    own_hdfs: HdfsCluster, own_hdfs_directory: str, room_bytes: int
) -> None:
    """Neither with the first byte of a block nor in the middle of it; the next run has every row once."""
    url = f"{own_hdfs.url}{own_hdfs_directory}/base"
    lines = ["a", *(f"{number:0100d}" for number in range(5000))]
    write(sink_at(url, own_hdfs.http_address), *lines[:1])
    with no_file_beyond(own_hdfs, room_bytes), pytest.raises(StoreError) as raised:
        write(sink_at(url, own_hdfs.http_address), *lines)
    assert raised.value.hint
    assert lines_at(url) == lines[:1]
    write(sink_at(url, own_hdfs.http_address), *lines)
    assert lines_at(url) == sorted(lines)


@pytest.mark.hdfs
def test_a_disk_without_room_for_a_block_is_named(tmp_path: Path) -> None:
    """The NameNode finds no DataNode for the block, so certainly nothing happened."""
    with HdfsCluster(tmp_path / "cluster", {RESERVED: "0"}) as cluster:
        url = f"{cluster.url}/base"
        write(sink_at(url, cluster.http_address), "a")
        reserve(cluster, ALL_THERE_IS)
        with pytest.raises(NotApplied, match="minReplication") as raised:
            write(sink_at(url, cluster.http_address), "a", "b")
        assert "Free space" in raised.value.hint
        reserve(cluster, "0")
        write(sink_at(url, cluster.http_address), "a", "b")
        assert lines_at(url) == ["a", "b"]
