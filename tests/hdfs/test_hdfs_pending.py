"""Pending parts on HDFS are read at their valid length, by whatever name and with whatever tail each has by then."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, Literal

import hdfs_native
import pyarrow as pa
import pytest
from clean_forks import CleanForks
from life_cycle import continue_to, long_sink

import partfile as pf
from partfile.errors import NotApplied, NotReady
from partfile.stores.hdfs.client import recover_lease, rename_staged
from partfile.stores.hdfs.options import HdfsOptions
from partfile.stores.hdfs.store import HdfsStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.dataset as ds
    from hdfs_cluster import HdfsCluster

    from partfile.stores.base import Cut, PartHandle

Stage = Literal["open", "in-progress", "pending", "cut", "finished"]
TEXT = pa.schema({"value": pa.string()})
VALID_BYTES = 2 * len("row-0000\n")
"""Of each of the two parts of ``hdfs_life.seed``, which have a tail."""


class StoppedAt(HdfsStore):
    """A store that comes so far with a part and no further."""

    def __init__(self, url: str, options: HdfsOptions, stage: Stage) -> None:
        super().__init__(url, options)
        self._stage = stage

    def publish(self, handle: PartHandle, cut: Cut) -> None:
        """Publish up to the stage."""
        if self._stage == "finished":
            super().publish(handle, cut)
            return
        if self._stage == "in-progress":
            recover_lease(self._access, handle.path_of(handle.in_progress))
        if self._stage == "pending":
            rename_staged(self._access, handle.path_of(handle.in_progress), handle.path_of(handle.pending))
            recover_lease(self._access, handle.path_of(handle.pending))
        if self._stage == "cut":
            self.settle(handle, cut)
        raise NotApplied(f"stopped at {self._stage}: {handle.name}")


def sink_up_to(stage: Stage, cluster: HdfsCluster, base: str, cut: str) -> pf.FileSink:
    """The sink of ``hdfs_life``, which publishes up to a stage."""
    options = HdfsOptions(http_address=cluster.http_address)

    def opened(url: str, _options: Any) -> HdfsStore:
        return StoppedAt(url, options, stage)

    return long_sink(cluster.url + base, cut=cut, open_store=opened)  # type: ignore[arg-type]


def values(dataset: ds.Dataset) -> list[str]:
    return sorted(dataset.to_table()["value"].to_pylist())


def numbered(count: int) -> list[str]:
    return [f"row-{number:04d}" for number in range(count)]


def parts_below(cluster: HdfsCluster, base: str) -> dict[str, int]:
    """Every file of parts with its length; its path is absolute."""
    found = hdfs_native.Client(cluster.url).list_status(base, recursive=True)
    return {status.path: status.length for status in found if not status.isdir and "/bucket=" in status.path}


@pytest.fixture(scope="module")
def forks() -> Iterator[CleanForks]:
    """Processes without a client of this one's."""
    with CleanForks("hdfs_life") as clean:
        yield clean


@pytest.mark.drawn(1)
@pytest.mark.parametrize("cut", ["truncate", "rewrite", "valid-length"])
def test_pending_parts_are_read_at_every_stage(
    cut: str, hdfs: HdfsCluster, hdfs_directory: str, forks: CleanForks
) -> None:
    """In progress and pending with tails, cut, finished: a dataset of each stage gives its rows at all later ones.

    Of a part that a dead writer or a zombie holds open HDFS shows no byte; that is an error, and neither missing data
    nor fewer rows.
    """
    base, url = f"{hdfs_directory}/out", f"{hdfs.url}{hdfs_directory}/out"
    assert forks.run("seed", url=url, http_address=hdfs.http_address, cut=cut) == -signal.SIGKILL
    datasets = []
    stages: tuple[Stage, ...] = ("open", "in-progress", "pending", "cut", "finished")
    for stage in stages:
        sink_up_to(stage, hdfs, base, cut).local().open().close()
        lengths = parts_below(hdfs, base)
        if stage in {"in-progress", "pending"}:
            assert sorted(path.rpartition(".")[2] for path in lengths) == [stage, stage]
            assert min(lengths.values()) > VALID_BYTES, "there is no tail"
        assert values(pf.read(url, schema=TEXT)) == (numbered(4) if stage == "finished" else [])
        datasets.append(pf.read(url, include="pending", schema=TEXT))
        if stage == "open":
            with pytest.raises(NotReady, match=r"/_part-.*\.in-progress' was open .* saw 0 bytes"):
                datasets[0].to_table()
        else:
            assert [values(dataset) for dataset in datasets] == [numbered(4)] * len(datasets), stage
    continue_to(sink_up_to("finished", hdfs, base, cut), 12)
    assert values(pf.read(url, include="pending")) == values(pf.read(url)) == numbered(12)
    assert [values(dataset) for dataset in datasets] == [numbered(4)] * len(datasets)
