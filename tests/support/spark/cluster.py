"""A standalone Spark cluster of two workers on two loopback addresses, so that Spark takes them for two hosts.

Spark starts a speculative twin only on another host than the first attempt's, so a local cluster never shows one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from support.processes.server import free_port
from support.spark.classes import java_options

if TYPE_CHECKING:
    from collections.abc import Iterator


SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
HOSTS = ("127.0.0.2", "127.0.0.3")


@contextmanager
def standalone_cluster(root: Path) -> Iterator[str]:
    """Run a master and two workers of one core each; yields the master's URL."""
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    daemons = [start(root, "master.Master", "127.0.0.1", "--port", str(port))]
    try:
        wait_for_port(port)
        for host in HOSTS:
            work = root / f"work-{host}"
            daemons.append(start(root, "worker.Worker", host, "-c", "1", "-m", "1g", "-d", str(work), url))
        yield url
    finally:
        for daemon in daemons:
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()


def start(root: Path, daemon: str, host: str, *arguments: str) -> subprocess.Popen[bytes]:
    """One daemon in a process group of its own, logging into ``root``."""
    command = [str(SPARK_CLASS), f"org.apache.spark.deploy.{daemon}", "--host", host, "--webui-port", "0", *arguments]
    environment = {**os.environ, "SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
    environment["SPARK_DAEMON_JAVA_OPTS"] = java_options()
    with (root / f"{daemon}-{host}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def wait_for_port(port: int, timeout_s: float = 240) -> None:
    """Wait until a server listens."""
    deadline = time.monotonic() + timeout_s
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, "the master did not start"
        time.sleep(0.1)
