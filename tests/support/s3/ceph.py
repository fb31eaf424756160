"""The S3 server of record: Ceph's ``radosgw`` on a cluster of its own, from Debian's packages."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from support.processes.server import MissingProgram, ServerProcess, free_port
from support.s3.server import READY_TIMEOUT_S, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable


# Ceph's servers from Debian's packages: found, installed where that is allowed, or asked for.

PACKAGES = ("ceph-mon", "ceph-osd", "ceph-common", "radosgw")
PROGRAMS = ("ceph-mon", "ceph-osd", "ceph", "monmaptool", "radosgw", "radosgw-admin")
INSTALL_TIMEOUT_S = 600


def ensure_ceph(say: Callable[[str], object]) -> None:
    """Install Ceph's servers unless they are there; 60 MB are fetched in about half a minute, and nothing is started.

    Args:
        say: Is told before anything is installed.

    Raises:
        MissingProgram: They are missing, and we are not root or there is no apt.
        RuntimeError: apt could not install them.
    """
    if not missing_programs():
        return
    install = f"apt-get install --no-install-recommends {' '.join(PACKAGES)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingProgram(
            f"The S3 server of Ceph needs {', '.join(missing_programs())}, and installing takes root and apt. "
            f"Install them (Debian: {install}), or leave it out: make test-all ARGS='-m \"not radosgw\"'."
        )
    with Path(tempfile.gettempdir(), "partfile-ceph.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if missing_programs():
            say(f"Installing Ceph's S3 server, once: {install}")
            _run("update", "-q")
            _run(*install.split()[1:], "-q", "-y")


def missing_programs() -> list[str]:
    """The programs that are not on the ``PATH``."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def _run(*arguments: str) -> None:
    done = subprocess.run(
        ["apt-get", "-o", f"DPkg::Lock::Timeout={INSTALL_TIMEOUT_S}", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_TIMEOUT_S,
    )
    if done.returncode != 0:
        raise RuntimeError(f"apt-get {' '.join(arguments)} failed\n{done.stdout[-3000:]}{done.stderr[-3000:]}")


# What a RADOS gateway stands on: a monitor and one storage daemon that keeps everything in memory, on loopback.

MEMORY_BYTES = 8 * 2**30
"""How much can be stored; taken from the machine only as it is stored."""
COMMAND_TIMEOUT_S = 240.0

# Only loopback gets here, so no daemon proves who it is (cephx); a gateway then has to give up encryption too.
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
