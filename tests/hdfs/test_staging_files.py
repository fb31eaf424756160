"""Staging files on HDFS that a writer has open: read over WebHDFS, or after its lease was taken, or not at all."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from partfile.errors import LeaseUnavailable, NotReady, PartMissing, StoreError
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore
from partfile.stores.hdfs.webhdfs import Unreachable
from partfile.testing.faults import FailAt, Recorder
from partfile.testing.store import new_staging_file, read_staging_file, write_staging_file
from support.processes.deadline import PATIENCE_S
from support.programs.remote_writer import RemoteWriter

if TYPE_CHECKING:
    from partfile.stores.base import PartHandle, PartStream
    from support.hdfs.cluster import HdfsCluster
    from support.hdfs.life import Opener


BLOCK_BYTES = 1 << 20
NOWHERE = "127.0.0.1:1"
DATA, MORE = b"valid" * 2000, b"more" * 1000


def store_without_web(cluster: HdfsCluster, directory: str) -> HdfsStore:
    """A store that reaches no web server."""
    return HdfsStore(cluster.url + directory, HdfsOptions(http_address=NOWHERE))


def begun(store: HdfsStore) -> tuple[PartStream, PartHandle]:
    """A staging file that is open, with a persisted length."""
    stream = store.create(new_staging_file())
    stream.write(DATA)
    return stream, stream.persist()


def test_an_open_staging_file_of_several_blocks_is_read_from_any_position(
    hdfs: HdfsCluster, hdfs_directory: str
) -> None:
    """Closed blocks and the one that is being written are one file, in pieces smaller and larger than a request."""
    draw = random.Random(8)
    data = draw.randbytes(4 * BLOCK_BYTES + 12_345)
    store = HdfsStore(
        hdfs.url + hdfs_directory, HdfsOptions(http_address=hdfs.http_address, block_size_bytes=BLOCK_BYTES)
    )
    stream = store.create(new_staging_file())
    stream.write(data[: 2 * BLOCK_BYTES])
    first = stream.persist()
    stream.write(data[2 * BLOCK_BYTES :])
    staging_file = stream.persist()
    stream.write(b"not durable")
    assert read_staging_file(store, first) == data[: 2 * BLOCK_BYTES]
    with store.open_staging_file(staging_file) as file:
        assert file.read() == data
        for _ in range(10):
            start, count = file.seek(draw.randrange(len(data))), draw.choice((10, 100_000, 2 * BLOCK_BYTES))
            assert file.read(count) == data[start : start + count]
    stream.verify()
    stream.close()


def test_a_large_last_block_is_read_in_several_requests(opener: Opener) -> None:
    """No request asks for more than an answer may hold."""
    data = random.Random(8).randbytes((5 << 20) // 2)
    stream = opener().create(new_staging_file())
    stream.write(data)
    staging_file = stream.persist()
    recorder = Recorder({"read_open"})
    with opener(recorder).open_staging_file(staging_file) as file:
        assert file.read() == data
    assert recorder.count == 4, recorder.calls
    stream.close()


def test_a_closed_staging_file_needs_no_web_server(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """What a task has released is read as any file."""
    store = store_without_web(hdfs, hdfs_directory)
    assert read_staging_file(store, write_staging_file(store, DATA, MORE)) == DATA + MORE


def test_without_web_server_a_writer_is_left_alone_or_fenced(hdfs: HdfsCluster, hdfs_directory: str) -> None:
    """A task that may not fence it waits; one that may takes its lease and reads. What the writer adds never counts."""
    store = store_without_web(hdfs, hdfs_directory)
    stream, staging_file = begun(store)
    with pytest.raises(NotReady, match="WebHDFS"):
        store.open_staging_file(staging_file)
    stream.write(MORE)
    stream.verify()
    longer = stream.persist()
    for each, data in ((staging_file, DATA), (longer, DATA + MORE)):
        with store.open_staging_file(each, fences=True) as file:
            assert file.read() == data
    with pytest.raises(StoreError):
        _go_on(stream)
    stream.close()
    assert read_staging_file(store, longer) == DATA + MORE
    assert store.discard(longer)


@pytest.mark.parametrize("fences", [False, True])
def test_what_a_killed_writer_persisted_is_read_at_once(hdfs: HdfsCluster, hdfs_directory: str, fences: bool) -> None:
    """There is no wait until a dead writer's lease has ended: WebHDFS does without it, and a coordinator takes it."""
    staging_file = new_staging_file()
    with RemoteWriter(hdfs.url + hdfs_directory, {}) as writer:
        assert writer.create(staging_file) == writer.write(DATA) == writer.persist() == writer.write(MORE) == "done"
        writer.kill()
    address = NOWHERE if fences else hdfs.http_address
    store = HdfsStore(hdfs.url + hdfs_directory, HdfsOptions(http_address=address))
    with store.open_staging_file(staging_file.at(len(DATA)), fences=fences) as file:
        assert file.read() == DATA
    if not fences:
        with pytest.raises(LeaseUnavailable):
            store.discard(staging_file)


def test_a_staging_file_that_is_closed_while_it_is_read_is_read_on_without_web_server(opener: Opener) -> None:
    """What WebHDFS does not show any more, HDFS itself does by then."""
    stream, staging_file = begun(opener())
    fault = FailAt(2, Unreachable("no server listens"), persistent=True, only={"read_open"})
    with opener(fault).open_staging_file(staging_file) as file:
        stream.close()
        assert file.read() == DATA
    assert fault.count == 2


def test_a_stage_that_is_taken_away_while_it_is_read_is_missing(opener: Opener) -> None:
    """Neither an end of file nor an error that says nothing."""
    store = opener()
    stream, staging_file = begun(store)
    with store.open_staging_file(staging_file) as file:
        store.delete_file(staging_file.path_of(staging_file.in_progress))
        with pytest.raises(PartMissing):
            file.read()
    stream.close()


def test_readers_do_not_disturb_a_writer(opener: Opener) -> None:
    """While others read what was persisted, the writer goes on, and each of them sees exactly its length."""
    stream, staging_file = begun(opener())
    seen: list[bytes] = []
    readers = [
        threading.Thread(target=lambda: seen.append(read_staging_file(opener(), staging_file))) for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    for _ in range(5):
        staging_file = _go_on(stream)
    for reader in readers:
        reader.join(PATIENCE_S)
    # Each was given the handle that was the newest when it began.
    assert len(seen) == len(readers)
    assert all((DATA + 5 * MORE).startswith(data) and len(data) >= len(DATA) for data in seen)
    assert read_staging_file(opener(), staging_file) == DATA + 5 * MORE
    stream.close()


def _go_on(stream: PartStream) -> PartHandle:
    stream.write(MORE)
    return stream.persist()


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.fault("F18")
def test_a_bit_that_has_changed_on_disk_is_never_handed_out(
    hdfs: HdfsCluster, hdfs_directory: str, *, is_open: bool
) -> None:
    """The client compares HDFS's own checksums, and so does a DataNode for WebHDFS; ``checks_reads`` says so."""
    store = HdfsStore(hdfs.url + hdfs_directory, HdfsOptions(http_address=hdfs.http_address))
    data = random.Random(str(is_open)).randbytes(50_000)
    stream = store.create(new_staging_file())
    stream.write(data)
    staging_file = stream.persist()
    if not is_open:
        stream.close()
    with hdfs.block_file(data).open("r+b") as file:
        file.seek(30_000)
        file.write(bytes([data[30_000] ^ 1]))
    assert store.checks_reads
    # A DataNode ends its answer before the first byte of an open file: that is no end of the file.
    with pytest.raises(StoreError, match="no DataNode can serve byte" if is_open else None) as told:
        read_staging_file(store, staging_file)
    # `--accept-missing` gives up what is missing, and not what may be damaged.
    assert not isinstance(told.value, PartMissing)
    stream.close()
    store.discard(staging_file)
