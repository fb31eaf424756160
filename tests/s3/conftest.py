"""Real S3 servers for tests; each test keeps to a prefix of its own."""

from __future__ import annotations

import os
import secrets
import socket
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest
from server_process import ServerProcess

from partfile.filesystems.s3_options import S3Options
from partfile.filesystems.s3_process import this_process

if TYPE_CHECKING:
    from collections.abc import Iterator

BUCKET = "landing"


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running server."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    log = tmp_path_factory.mktemp("moto") / "log"
    server = ServerProcess("moto", command, log=log, environment=dict(os.environ))
    server.start()
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_for(url, server)
        yield url
    finally:
        server.kill()


@pytest.fixture(scope="session")
def s3_options(s3_endpoint: str) -> S3Options:
    """How to connect; the S3 bucket is there."""
    options = S3Options.of(
        {"endpoint_url": s3_endpoint, "key": "test", "secret": "test", "region": "us-east-1", "path_style": True}
    )
    this_process().client(options).files.call_s3("create_bucket", Bucket=BUCKET)
    return options


@pytest.fixture
def s3_base(s3_options: S3Options) -> str:
    """The URL of an empty prefix of this test's own."""
    del s3_options
    return f"s3://{BUCKET}/{secrets.token_hex(6)}"


def _wait_for(url: str, server: ServerProcess) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{url}/moto-api/", timeout=2).close()  # noqa: S310 - our own server.
        except OSError:
            assert server.is_running, server.log_tail()
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"moto does not answer\n{server.log_tail()}")
