"""Where HDFS has no room or cannot keep its promises: refused with a reason, nothing lost, gone on with when mended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hdfs_native
import pyarrow as pa
import pytest

import partfile as pf
from partfile.errors import NotApplied
from partfile.stores.hdfs.errors import Verdict, verdict_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdfs_cluster import HdfsCluster

    MakeSink = Callable[..., pf.FileSink]

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
    """The fence link is the first thing that cannot be made durable; no part has been made yet."""
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
@pytest.mark.fault("S3")
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
