"""Real S3 servers for tests: each is started when a test first asks for it, and serves them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.processes.server import MissingProgram
from support.s3 import models
from support.s3.ceph import RadosGateway
from support.s3.life import options_of
from support.s3.probes import Place
from support.s3.proxy import S3Proxy
from support.s3.server import MotoServer, RcloneServer
from support.spark.streams import build_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import s3fs
    from pyspark.sql import SparkSession

    from partfile.stores.s3.options import S3Options
    from support.s3.server import S3Server


@pytest.fixture(scope="session", autouse=True)
def _models() -> Iterator[None]:
    with models.read_once():
        yield


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running moto."""
    yield from running(lambda: MotoServer(tmp_path_factory.mktemp("moto")))


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running ``rclone serve s3``."""
    yield from running(lambda: RcloneServer(tmp_path_factory.mktemp("rclone")))


@pytest.fixture(scope="session")
def radosgw(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A running ``radosgw``; Ceph is installed if need be, where that is allowed."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(text, flush=True)  # noqa: T201 - shown at once, for it takes a while.

    yield from running(lambda: RadosGateway(tmp_path_factory.mktemp("radosgw"), say))


@pytest.fixture(params=["moto", "rclone", "radosgw"])
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """Each running S3 server in turn; no test kills it, and each test keeps to a bucket of its own."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def own_s3_server(s3_server: S3Server) -> Iterator[S3Server]:
    """Each S3 server in turn, to be killed and paused; it is made whole again for the next test.

    What moto held is gone then, so a bucket is never shared between tests.
    """
    yield s3_server
    s3_server.mend()


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    """An empty bucket of this test's own."""
    return s3_server.bucket()


@pytest.fixture
def s3_options(s3_server: S3Server) -> S3Options:
    """How the S3 store connects to the server."""
    return options_of(s3_server)


@pytest.fixture
def s3_base(bucket: str) -> str:
    """The URL of an empty base in the bucket."""
    return f"s3://{bucket}/base"


@pytest.fixture
def s3(s3_server: S3Server) -> s3fs.S3FileSystem:
    """A client of the server that asks once and shows what the server said."""
    return s3_server.filesystem()


@pytest.fixture
def s3_proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    """A proxy in front of the server, which causes faults and counts requests."""
    with S3Proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def proxied(s3_proxy: S3Proxy, bucket: str) -> Place:
    """A key of an empty bucket, reached through the proxy."""
    return Place(s3_proxy.filesystem(), bucket, "key")


@pytest.fixture
def direct(s3: s3fs.S3FileSystem, bucket: str) -> Place:
    """The same key, reached directly."""
    return Place(s3, bucket, "key")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests of this folder, without a client for S3. No test stops it."""
    session = build_session()
    yield session
    session.stop()


def running(make: Callable[[], S3Server]) -> Iterator[S3Server]:
    """The server that ``make`` makes, started and stopped; a test fails with one sentence where it cannot be had."""
    try:
        server = make()
    except MissingProgram as missing:
        pytest.fail(str(missing), pytrace=False)
    with server:
        yield server
