"""Where a case writes: a directory on this machine, on HDFS or on S3; empty before each run, counted after it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from support.s3.life import store_options

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping
    from pathlib import Path

    import s3fs
    from hdfs_native import Client

    from support.hdfs.cluster import HdfsCluster
    from support.s3.server import S3Server

_OF_DATANODES = frozenset(
    {"sendHeartbeat", "blockReceivedAndDeleted", "blockReport", "commitBlockSynchronization", "registerDatanode"}
)


class Place(Protocol):
    """What a run needs of its output's file system."""

    @property
    def storage_options(self) -> Mapping[str, object]:
        """What partfile's store needs."""

    def fresh(self, case: str) -> tuple[str, str]:
        """Empty directories for the output and for Spark's checkpoint of a case."""

    def sizes(self, output: str, suffix: str) -> list[int]:
        """The sizes of the finished files in the buckets of an output."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """This machine's disk."""

    work: Path

    @property
    def storage_options(self) -> Mapping[str, object]:
        """None."""
        return {}

    def fresh(self, case: str) -> tuple[str, str]:
        """Empty directories for the output and for Spark's checkpoint of a case."""
        directory = self.work / case.replace(" ", "-")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        # What the last case left in the page cache is not this one's to write back: Spark never syncs, partfile does.
        os.sync()
        return str(directory / "output"), str(directory / "checkpoint")

    def sizes(self, output: str, suffix: str) -> list[int]:
        """The sizes of the finished files in the buckets of an output."""
        files = (self.work / output).glob(f"*/*{suffix}")
        return [path.stat().st_size for path in files if not path.name.startswith(("_", "."))]


@dataclass(frozen=True, slots=True)
class HdfsPlace:
    """The HDFS of the tests: one NameNode, one DataNode, two processes on this machine."""

    cluster: HdfsCluster
    client: Client

    @property
    def storage_options(self) -> Mapping[str, object]:
        """Where WebHDFS is."""
        return {"http_address": self.cluster.http_address}

    def fresh(self, case: str) -> tuple[str, str]:
        """Empty directories for the output and for Spark's checkpoint of a case."""
        directory = f"/{case.replace(' ', '-')}"
        self.client.delete(directory, recursive=True)
        os.sync()
        return f"{self.cluster.url}{directory}/output", f"{self.cluster.url}{directory}/checkpoint"

    def sizes(self, output: str, suffix: str) -> list[int]:
        """The sizes of the finished files in the buckets of an output."""
        files = self.client.list_status(output.removeprefix(self.cluster.url), recursive=True)
        named = [(file.path.rpartition("/")[2], file) for file in files if "/_" not in file.path]
        return [file.length for name, file in named if name.endswith(suffix) and not name.startswith(".")]

    def operations(self) -> Counter[str]:
        """How often clients have asked the NameNode for what, over its RPC port."""
        counts = self.cluster.operations()
        for name in list(counts):
            if name in _OF_DATANODES or not name[0].islower():
                del counts[name]
        return counts


@dataclass(frozen=True, slots=True)
class S3Place:
    """The S3 server of the tests: a gateway and its storage in memory, on this machine."""

    server: S3Server
    client: s3fs.S3FileSystem
    bucket: str
    work: Path

    @property
    def storage_options(self) -> Mapping[str, object]:
        """Where the server is, and its keys."""
        return store_options(self.server)

    def fresh(self, case: str) -> tuple[str, str]:
        """An empty prefix for the output, and a directory on this machine for Spark's checkpoint."""
        name = case.replace(" ", "-")
        output, checkpoint = f"{self.bucket}/{name}", self.work / name
        if self.client.exists(output):
            self.client.rm(output, recursive=True)
        self.client.invalidate_cache()
        shutil.rmtree(checkpoint, ignore_errors=True)
        os.sync()
        return f"s3://{output}", str(checkpoint)

    def sizes(self, output: str, suffix: str) -> list[int]:
        """The sizes of the finished files in the buckets of an output."""
        found = self.client.find(output, detail=True, refresh=True)
        return [one["size"] for path, one in found.items() if path.endswith(suffix) and "/_" not in path]
