"""How often the store asks the NameNode, verb by verb: each number is part of what docs/HDFS.md promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.testing.store import read_stage, write_part, write_stage

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator

    from hdfs_cluster import HdfsCluster

    from partfile.stores.base import PartHandle, PartStream

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
    """A link of the chain; its directory is made on the way."""
    found = asked(lambda: store.create_file("job/chk-1/_metadata", DATA))
    assert is_as_promised(found, CREATE_FILE), found
    assert asked(lambda: store.read_file("job/chk-1/_metadata", 99)) == {"getBlockLocations": 1}


def test_a_stage_that_is_closed_is_read_by_one(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """However long it is: its blocks come from DataNodes."""
    stage = write_stage(store, DATA, TAIL)
    assert asked(lambda: read_stage(store, stage)) == {"getBlockLocations": 1}


def test_an_old_checkpoint_goes_without_being_listed(
    store: HdfsStore, asked: Callable[[Callable[[], object]], dict[str, int]]
) -> None:
    """Its link first; then its directory, which holds a file for each subtask and no directory."""

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
