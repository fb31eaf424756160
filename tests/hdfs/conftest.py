"""Real HDFS for tests: one for all that leave its servers alone, and one for those that kill them."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

import hdfs_native
import pytest

from support.hdfs import life as hdfs_life
from support.hdfs.cluster import HdfsCluster
from support.processes.server import MissingProgram
from support.spark.streams import build_session

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from partfile.stores.hdfs.store import HdfsStore
    from partfile.testing.faults import Interceptor
    from support.hdfs.life import Opener


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    """A running HDFS that all tests share; no test kills it, and each test keeps to a directory of its own."""
    with _cluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def _mortal_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with _cluster(tmp_path_factory.mktemp("mortal-hdfs")) as cluster:
        yield cluster


@pytest.fixture
def own_hdfs(_mortal_hdfs: HdfsCluster) -> Iterator[HdfsCluster]:
    """A running HDFS whose servers may be killed and paused; it is made whole again for the next test."""
    yield _mortal_hdfs
    _mortal_hdfs.mend()


@pytest.fixture
def hdfs_directory(request: pytest.FixtureRequest, hdfs: HdfsCluster) -> str:
    """The absolute path of an empty directory of this test's own on the shared HDFS."""
    return _new_directory(hdfs, request.node.name)


@pytest.fixture
def opener(hdfs: HdfsCluster, hdfs_directory: str) -> Opener:
    """Opens a store on this test's directory, with its calls led through an interceptor if there is one."""

    def opened(interceptor: Interceptor | None = None) -> HdfsStore:
        return hdfs_life.opener(hdfs.http_address, interceptor)(hdfs.url + hdfs_directory, None)

    return opened


@pytest.fixture
def own_hdfs_directory(request: pytest.FixtureRequest, own_hdfs: HdfsCluster) -> str:
    """The absolute path of an empty directory of this test's own on the HDFS whose servers may be killed."""
    return _new_directory(own_hdfs, request.node.name)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests of this folder; without any configuration of Hadoop's, URLs say it all."""
    session = build_session()
    yield session
    session.stop()


def _new_directory(cluster: HdfsCluster, test: str) -> str:
    name = re.sub(r"\W+", "-", test).strip("-")
    path = f"/{name[:80]}-{secrets.token_hex(4)}"
    hdfs_native.Client(cluster.url).mkdirs(path)
    return path


def _cluster(directory: Path) -> HdfsCluster:
    try:
        return HdfsCluster(directory / "cluster")
    except MissingProgram as missing:
        pytest.fail(str(missing), pytrace=False)
