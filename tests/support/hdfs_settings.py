"""How the HDFS of the tests is set up: its ports, and the files that servers and clients read."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Mapping

METRICS_PERIOD_MS = 50


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of one cluster on 127.0.0.1; kept over restarts."""

    namenode: int
    namenode_http: int
    datanode: int
    datanode_http: int
    datanode_ipc: int

    @classmethod
    def free(cls) -> Self:
        """Ports that nobody listens on."""
        return cls(*(free_port() for _ in fields(cls)))


def free_port() -> int:
    """A port that nobody listens on, outside the range that the kernel gives to outgoing connections.

    Inside it a client that retries while the server is down can be given that very port, and keep it.
    """
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    # Seeded by the system: pytest-randomly would give the same ports to two runs with one seed.
    numbers = random.SystemRandom()
    while True:
        port = numbers.randrange(10_000, low) if low > 11_000 else 0
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])


def write_configuration(directory: Path, data: Path, ports: Ports, properties: Mapping[str, str]) -> None:
    """Write what servers and clients read; ``properties`` are added to ``hdfs-site.xml`` and win over ours."""
    directory.mkdir()
    core = {"fs.defaultFS": f"hdfs://127.0.0.1:{ports.namenode}", "hadoop.tmp.dir": str(data)}
    site = {
        "dfs.replication": "1",
        "dfs.namenode.http-address": f"127.0.0.1:{ports.namenode_http}",
        "dfs.datanode.address": f"127.0.0.1:{ports.datanode}",
        "dfs.datanode.http.address": f"127.0.0.1:{ports.datanode_http}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{ports.datanode_ipc}",
        "dfs.datanode.hostname": "127.0.0.1",
        # Leases are recovered and files truncated at a heartbeat.
        "dfs.heartbeat.interval": "1",
        # Otherwise a restarted NameNode stays in safe mode for 30 seconds more.
        "dfs.namenode.safemode.extension": "0",
        # The default rounds one block down to none: a NameNode would leave safe mode knowing no place of it.
        "dfs.namenode.safemode.threshold-pct": "1",
        # Tests of what happens at the border of a block need small ones.
        "dfs.namenode.fs-limits.min-block-size": "512",
        **properties,
    }
    (directory / "core-site.xml").write_text(_xml(core))
    (directory / "hdfs-site.xml").write_text(_xml(site))
    # JMX shows counters as they were at the last period, which is ten seconds long by default.
    (directory / "hadoop-metrics2.properties").write_text(f"*.periodMillis={METRICS_PERIOD_MS}\n")


def _xml(properties: Mapping[str, str]) -> str:
    rows = [
        f"  <property><name>{escape(name)}</name><value>{escape(value)}</value></property>"
        for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *rows, "</configuration>", ""])
