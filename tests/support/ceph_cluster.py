"""What a RADOS gateway stands on: a monitor and one storage daemon that keeps everything in memory, on loopback."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from typing import TYPE_CHECKING

from free_ports import free_port
from server_process import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

MEMORY_BYTES = 8 * 2**30
"""How much can be stored; taken from the machine only as it is stored."""
COMMAND_TIMEOUT_S = 60.0

# No one but loopback gets here, so no daemon proves who it is (cephx); a gateway then has to give up encryption too.
# A map of the cluster is proposed at once instead of once a second: a start takes two seconds, not seventeen.
# A gateway tells the others of each new bucket, and one that was killed counts among them until its watch has ended.
_CONFIGURATION = """[global]
fsid = {identity}
mon host = v2:127.0.0.1:{monitor_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
paxos propose interval = 0.05

run dir = {directory}
keyring = {directory}/keyring
admin socket =
log file =
log to stderr = true
err to stderr = true

mon data = {directory}/monitor
mon data avail crit = 0
mon allow pool size one = true
osd data = {directory}/storage
osd objectstore = memstore
memstore device bytes = {memory_bytes}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
osd client watch timeout = 2
objecter tick interval = 0.5

rgw data = {directory}/gateway
rgw frontends = beast endpoint=127.0.0.1:{gateway_port}
rgw rados pool pg num min = 4
rgw dynamic resharding = false
rgw gc obj min wait = 5
rgw gc processor period = 5
rgw gc processor max time = 5
"""


class CephCluster:
    """A monitor and a storage daemon; what is stored is gone when ``stop`` is called.

    Args:
        directory: For configuration, keys, the monitor's data and logs.
        gateway_port: Where a gateway that reads ``configuration`` shall listen.
    """

    def __init__(self, directory: Path, gateway_port: int) -> None:
        self.directory = directory
        self.configuration = directory / "ceph.conf"
        self._identity = str(uuid.uuid4())
        self._monitor_port = free_port()
        self._gateway_port = gateway_port
        self._monitor = self._server("ceph-mon", "a")
        self._storage = self._server("ceph-osd", "0")

    @property
    def environment(self) -> dict[str, str]:
        """Ours, less what would have a say in Ceph's configuration."""
        return {name: value for name, value in os.environ.items() if not name.startswith("CEPH_")}

    @property
    def process_ids(self) -> tuple[int, int]:
        """The process ids of monitor and storage daemon."""
        return self._monitor.process_id, self._storage.process_id

    @property
    def is_running(self) -> bool:
        """Whether both daemons run."""
        return self._monitor.is_running and self._storage.is_running

    def start(self) -> None:
        """Make an empty cluster and start its daemons; returns before they have found each other.

        Raises:
            RuntimeError: A command failed; the message says how.
        """
        self.stop()
        self._write()
        monitors = str(self.directory / "monitors")
        address = f"[v2:127.0.0.1:{self._monitor_port}]"
        self.run("monmaptool", "--create", "--addv", "a", address, "--fsid", self._identity, monitors)
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors)
        self._monitor.start()
        self.run("ceph-osd", "--mkfs", "-i", "0", "--osd-uuid", self._identity)
        self.run("ceph", "osd", "new", self._identity, "0")
        self._storage.start()

    def stop(self) -> None:
        """End both daemons."""
        self._storage.kill()
        self._monitor.kill()

    def run(self, program: str, *arguments: str) -> str:
        """Run one of Ceph's programs with the cluster's configuration; return what it prints.

        Raises:
            RuntimeError: It failed; the message has what it and the daemons said.
        """
        try:
            done = subprocess.run(
                [program, "-c", str(self.configuration), *arguments],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=COMMAND_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"{program} {' '.join(arguments)} does not end\n{self.log_tail()}") from error
        if done.returncode != 0:
            said = done.stdout[-3000:] + done.stderr[-3000:]
            raise RuntimeError(f"{program} {' '.join(arguments)} failed\n{said}\n{self.log_tail()}")
        return done.stdout

    def log_tail(self) -> str:
        """The end of both logs, for messages."""
        return f"{self._monitor.log_tail()}\n{self._storage.log_tail()}"

    def _server(self, program: str, identity: str) -> ServerProcess:
        command = (program, "-c", str(self.configuration), "-f", "-i", identity)
        return ServerProcess(
            program, command, log=self.directory.parent / f"{program}.log", environment=self.environment
        )

    def _write(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        for name in ("monitor", "storage", "gateway"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "keyring").touch()
        self.configuration.write_text(
            _CONFIGURATION.format(
                identity=self._identity,
                monitor_port=self._monitor_port,
                gateway_port=self._gateway_port,
                directory=self.directory,
                memory_bytes=MEMORY_BYTES,
            )
        )
