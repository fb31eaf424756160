"""How often the store and a sink ask the NameNode: each number is part of what docs/HDFS.md promises."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import partfile as pf
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import read_staging_file, write_part, write_staging_file
from support.repo.request_tables import promised_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.sink.local import LocalSink
    from partfile.stores.base import PartHandle, PartStream
    from support.hdfs.cluster import HdfsCluster


# How often the store asks the NameNode, verb by verb: each number is part of what docs/HDFS.md promises.

DATA, TAIL = b"valid", b"tail"
DATANODES = {"sendHeartbeat", "blockReceivedAndDeleted", "blockReport", "commitBlockSynchronization"}
OTHERS = DATANODES | {"renewLease", "getServerDefaults"}
"""What DataNodes ask, and what a client asks once or every 30 s."""
UNEVEN = {"complete"}
"""Asked again after 500 ms where the DataNode has not reported the block yet."""

# A call that fails is counted under its exception: here recoverLease where nothing has the pending name.
A_BATCH = {"append": 1, "getFileInfo": 2, "fsync": 1, "complete": 1}
CREATE_AND_COMMIT = {"create": 1, "addBlock": 1, "fsync": 1, "rename2": 1, "complete": 1}
PUBLISH_PENDING = {"getFileInfo": 1, "recoverLease": 1, "rename2": 1}
CUT_AND_PUBLISH = {"getFileInfo": 1 + 4, "recoverLease": 1, "rename2": 1}
PUBLISH_IN_PROGRESS = {"getFileInfo": 1, "fileNotFoundException": 1, "recoverLease": 1, "rename2": 2}
PUBLISH_AGAIN = {"getFileInfo": 3, "fileNotFoundException": 2}
DELETE_CHECKPOINT = {"getContentSummary": 1, "delete": 2}
CREATE_FILE = {"create": 1, "addBlock": 1, "fsync": 1, "complete": 1, "rename2": 1}


@pytest.fixture
def store(hdfs: HdfsCluster, hdfs_directory: str) -> Iterator[HdfsStore]:
    """A store that has asked what it asks once."""
    with HdfsStore(hdfs.url + hdfs_directory, HdfsOptions(http_address=hdfs.http_address)) as opened:
        write_part(opened, b"")
        yield opened


@pytest.fixture
def asked(hdfs: HdfsCluster) -> Callable[[Callable[[], object]], dict[str, int]]:
    """Runs something and says how often the NameNode was asked for what."""

    def count(work: Callable[[], object]) -> dict[str, int]:
        before = hdfs.operations()
        work()
        after: Counter[str] = hdfs.operations()
        after.subtract(before)
        return {name: many for name, many in after.items() if many and name[0].islower() and name not in OTHERS}

    return count


def is_as_promised(found: dict[str, int], promised: dict[str, int]) -> bool:
    """Whether the counts are those, give or take what is asked again."""
    return found.keys() == promised.keys() and all(
        found[name] == many or (name in UNEVEN and found[name] in range(many, many + 3))
        for name, many in promised.items()
    )


def test_a_part_over_its_life(store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]) -> None:
    """Created and rolled in a batch, gone on with in another, published: nothing probes and nothing lists."""
    handles: list[PartHandle] = []

    def one_batch() -> None:
        stream = store.resume(handle)
        stream.write(DATA)
        handles.append(_persisted(stream))
        stream.close()

    handle = write_part(store, DATA)
    found = asked(one_batch)
    assert is_as_promised(found, A_BATCH), found
    found = asked(lambda: write_part(store, b"", tail=DATA, state="pending"))
    assert is_as_promised(found, CREATE_AND_COMMIT), found
    found = asked(lambda: store.publish(handles[-1], "auto"))
    assert is_as_promised(found, PUBLISH_IN_PROGRESS), found
    found = asked(lambda: store.publish(handles[-1], "auto"))
    assert is_as_promised(found, PUBLISH_AGAIN), found


def test_a_pending_part_is_published_by_three(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """The usual case: lease, length, name."""
    handle = write_part(store, DATA, state="pending")
    found = asked(lambda: store.publish(handle, "auto"))
    assert is_as_promised(found, PUBLISH_PENDING), found


def test_a_part_that_is_too_long_is_cut_and_published_by_four_more(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """No final name, no sidecar, no copy, the length after the cut; the cut itself goes over HTTP."""
    handle = write_part(store, DATA, tail=TAIL, state="pending")
    found = asked(lambda: store.publish(handle, "truncate"))
    assert is_as_promised(found, CUT_AND_PUBLISH), found


def test_a_small_file_is_made_by_five_and_read_by_one(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """A checkpoint of the checkpoint log; its directory is made on the way."""
    found = asked(lambda: store.create_file("job/chk-1/_metadata", DATA))
    assert is_as_promised(found, CREATE_FILE), found
    assert asked(lambda: store.read_file("job/chk-1/_metadata", 99)) == {"getBlockLocations": 1}


def test_a_staging_file_that_is_closed_is_read_by_one(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """However long it is: its blocks come from DataNodes."""
    staging_file = write_staging_file(store, DATA, TAIL)
    assert asked(lambda: read_staging_file(store, staging_file)) == {"getBlockLocations": 1}


def test_an_old_checkpoint_goes_without_being_listed(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """Its checkpoint first; then its directory, which holds a file for each subtask and no directory."""

    def delete() -> None:
        store.delete_file("job/chk-1/_metadata")
        store.delete_directory("job/chk-1")

    for name in ("_metadata", "_published", "state"):
        store.create_file(f"job/chk-1/{name}", DATA)
    assert asked(delete) == DELETE_CHECKPOINT
    assert store.list_names("job") == []


def _persisted(stream: PartStream) -> PartHandle:
    handle = stream.persist()
    stream.verify()
    return handle


# What a sink on HDFS asks of the NameNode: exact numbers for each thing that it does; docs/HDFS.md has the same.
#
# No row and no finished part costs anything, and nothing but the directory of the checkpoints is ever listed.

NOT_OF_THE_SINK = {
    "sendHeartbeat",
    "blockReceivedAndDeleted",
    "blockReport",
    "commitBlockSynchronization",
    "renewLease",
    "getServerDefaults",
}
"""What DataNodes ask, and what a client asks once or every 30 s."""
AGAIN = "complete"
"""Asked again by hdfs-native after half a second where the DataNode has not reported a new block yet."""
WAITS = {"append", "alreadyBeingCreatedException", "recoveryInProgressException"}
"""Asked until HDFS has recovered a lease."""

METADATA = Counter(create=1, addBlock=1, fsync=1, complete=1, rename2=1, getBlockLocations=1)
SUBSUME = Counter(delete=2, getContentSummary=1)
MARK = Counter(create=1, complete=1, rename2=1)
CHECKPOINT = METADATA + SUBSUME
NEW_PART = Counter(create=1, addBlock=1)
OPEN_PART = Counter(fsync=1, getFileInfo=1)
IDLE_PART = Counter(getFileInfo=1)
ROLLED_PART = Counter(rename2=1, complete=1)
PUBLISHED_PART = Counter(recoverLease=1, getFileInfo=1, rename2=1)
# The first recoverLease is of a name that is not there, so it is counted by its exception.
FINALIZED_PART = Counter(fileNotFoundException=1, rename2=2, recoverLease=1, getFileInfo=1)
# Lists the directories of the log and of both retained checkpoints; looks for the mark; reads both checkpoints.
LOOK = Counter(getListing=3, getFileInfo=1, getBlockLocations=2)
# That no checkpoint is above the takeover (R7): the checkpoint log's directory and the one of the takeover.
IS_LAST = Counter(getListing=2)
RESTORE = LOOK + METADATA + IS_LAST + MARK + SUBSUME


def test_the_document_promises_these_numbers() -> None:
    """docs/HDFS.md says what is counted here; it needs no HDFS to see that they agree."""
    said = promised_requests("HDFS.md", "What the NameNode is asked")
    counted = {
        "open part that a batch writes to, Spark": f"{sum(A_BATCH.values())}",
        "the same, plain Python, which keeps it open": f"{OPEN_PART.total()}",
        "open part that it does not write to": f"0; plain Python {IDLE_PART.total()}",
        "new part": f"{NEW_PART.total()}",
        "roll": f"{(ROLLED_PART + Counter(fsync=1)).total()}",
        "publication of a rolled part": f"{PUBLISHED_PART.total()}",
        "checkpoint": f"{CHECKPOINT.total()}",
        "checkpoint that published a part": f"{MARK.total()}",
        "state beyond `inline_threshold_bytes`": f"{sum(CREATE_FILE.values())}",
        "restore": f"{RESTORE.total()}",
        "the same, longer than its valid length": f"{sum(CUT_AND_PUBLISH.values()) - sum(PUBLISH_PENDING.values())}",
    }
    assert {row: said.get(row) for row in counted} == counted
    # The document has the lease of a part apart from the part.
    assert int(said["open part at a restore"]) + int(said["its lease"]) == FINALIZED_PART.total()


class Job:
    """A sink in plain Python whose parts stay open until they are told to end.

    Args:
        cluster: Where it writes.
        directory: Below the root.
    """

    def __init__(self, cluster: HdfsCluster, directory: str) -> None:
        self._cluster = cluster
        self._sink = pf.FileSink(
            cluster.url + directory,
            uid="job",
            format="json",
            bucketer=pf.HiveBucketer("bucket"),
            rolling=pf.RollingPolicy(max_part_bytes=1_000_000, rollover_interval_s=1e6, inactivity_interval_s=1e6),
            storage_options={"http_address": cluster.http_address},
            # So that the state of all parts lies in the checkpoint, too.
            inline_threshold_bytes=1 << 20,
        )
        self.out = self._start()

    def write(self, parts: int, rows: int = 3) -> None:
        """Write rows into so many buckets."""
        buckets = [f"b{number}" for number in range(parts)] * rows
        self.out.write(pa.RecordBatch.from_pydict({"bucket": buckets, "value": range(len(buckets))}))

    def batch(self, parts: int, rows: int = 3) -> Counter[str]:
        """Write rows into so many buckets and take a checkpoint; what that asked."""

        def work() -> None:
            self.write(parts, rows)
            self.out.checkpoint(1)

        return self.asked(work)

    def finished(self, parts: int) -> int:
        """Write, roll and publish so many parts; how many were."""
        filler = "x" * 1_000_000
        buckets = [f"b{number}" for number in range(parts)]
        self.out.write(pa.RecordBatch.from_pydict({"bucket": buckets, "value": [filler] * parts}))
        # The next row finds a part that is too large, and rolls it.
        self.write(parts, 1)
        return self.out.checkpoint(1).parts_finished

    def crash(self) -> None:
        """Lose everything since the last checkpoint; leases are given back, as when a process closes its files."""
        self.out.close()

    def start(self) -> None:
        """Restore."""
        self.out = self._start()

    def asked(self, work: Callable[[], object]) -> Counter[str]:
        """How often the NameNode was asked for what."""
        before = self._cluster.operations()
        work()
        found = self._cluster.operations() - before
        return Counter(
            {name: many for name, many in found.items() if name[0].islower() and name not in NOT_OF_THE_SINK}
        )

    def _start(self) -> LocalSink:
        return self._sink.local().open()


@pytest.fixture
def job(hdfs: HdfsCluster, hdfs_directory: str) -> Iterator[Job]:
    """A sink of this test's own, started."""
    started = Job(hdfs, hdfs_directory)
    yield started
    started.crash()


def times(many: int, each: Counter[str]) -> Counter[str]:
    """What ``many`` of them ask."""
    return Counter({name: many * count for name, count in each.items()})


def sink_is_as_promised(found: Counter[str], promised: Counter[str]) -> bool:
    """Whether the counts are those, but for what is asked again because a DataNode is slow."""
    uneven = {AGAIN, *WAITS}
    return {name: many for name, many in found.items() if name not in uneven} == {
        name: many for name, many in promised.items() if name not in uneven
    } and promised[AGAIN] <= found[AGAIN] <= 3 * promised[AGAIN]


def test_a_batch_asks_for_its_open_parts_and_its_checkpoint_alone(job: Job) -> None:
    """Two a part that is written, one that is idle, nine a checkpoint: in batch 5 as in batch 20, for any rows."""
    for parts in (5, 20):
        job.batch(parts)
        for _ in range(3):
            job.batch(parts)
        promised = times(parts, OPEN_PART) + CHECKPOINT
        found = job.batch(parts)
        assert sink_is_as_promised(found, promised), found - promised
        assert "getListing" not in found
    promised = times(5, OPEN_PART) + times(15, IDLE_PART) + CHECKPOINT
    for _ in range(12):
        job.batch(5)
    for rows in (3, 1000):
        found = job.batch(5, rows)
        assert sink_is_as_promised(found, promised), (found - promised, promised - found)


def test_a_finished_part_is_asked_for_once_and_never_again(job: Job) -> None:
    """Made by two, rolled by three, published by three; after 100 of them a batch asks what it asked after 25."""
    job.batch(3)
    found = job.asked(lambda: job.finished(3))
    # Three parts are rolled and published, three others are made and stay open.
    ended = ROLLED_PART + Counter(fsync=1) + PUBLISHED_PART
    promised = times(3, ended) + times(3, NEW_PART + OPEN_PART) + CHECKPOINT + MARK
    assert sink_is_as_promised(found, promised), (found - promised, promised - found)
    job.batch(25)
    promised = times(25, OPEN_PART) + CHECKPOINT
    done = 3
    for enough in (25, 100):
        while done < enough:
            done += job.finished(25)
        # Until the checkpoints that published something are subsumed.
        job.batch(25)
        job.batch(25)
        found = job.batch(25)
        assert sink_is_as_promised(found, promised), (found - promised, promised - found)


@pytest.mark.parametrize("finished", [0, 50])
def test_a_restore_lists_the_checkpoints_alone(job: Job, finished: int) -> None:
    """Ten open parts: five each, whatever is finished.

    What is listed is the checkpoint log's, and retention bounds it.
    """
    done = 0
    while done < finished:
        done += job.finished(50)
    job.out.finish()
    job.start()
    for _ in range(3):
        job.batch(10)
    job.crash()
    found = job.asked(job.start)
    promised = RESTORE + times(10, FINALIZED_PART)
    assert sink_is_as_promised(found, promised), (found - promised, promised - found)
