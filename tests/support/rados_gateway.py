"""The S3 server of record: Ceph's ``radosgw`` on a cluster of its own, from Debian's packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ceph_cluster import CephCluster
from ceph_packages import ensure_ceph
from free_ports import free_port
from s3_server import READY_TIMEOUT_S, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class RadosGateway(S3Server):
    """``radosgw``, ready in about two seconds. ``kill`` and ``pause`` are about the gateway; ``stop`` forgets the data.

    Args:
        directory: For configuration and logs; the data are in memory.
        say: Is told before Ceph is installed.

    Raises:
        MissingProgram: Ceph is not on this machine, and we may not put it there.
    """

    name: ClassVar[str] = "radosgw"
    keeps_data: ClassVar[bool] = True

    def __init__(self, directory: Path, say: Callable[[str], object] = print) -> None:
        ensure_ceph(say)
        port = free_port()
        self._cluster = CephCluster(directory / "cluster", port)
        command = ("radosgw", "-c", str(self._cluster.configuration), "-f", "-n", "client.rgw")
        super().__init__(directory, port, command, self._cluster.environment)

    @property
    def process_ids(self) -> tuple[int, ...]:
        """The ids of gateway, monitor and storage daemon."""
        return (self._process.process_id, *self._cluster.process_ids)

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start the gateway and, unless it runs, an empty cluster below it; raises as any S3 server."""
        if not self._cluster.is_running:
            self._cluster.start()
            self._make_user()
        super().start(timeout_s)

    def stop(self) -> None:
        """End gateway and cluster; what was stored is gone."""
        super().stop()
        self._cluster.stop()

    def _make_user(self) -> None:
        keys = ("--access-key", self.access_key, "--secret-key", self.secret_key)
        self._cluster.run("radosgw-admin", "user", "create", "--uid", "partfile", "--display-name", "partfile", *keys)
