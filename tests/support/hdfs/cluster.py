"""A real HDFS on loopback: a NameNode and a DataNode, two processes that can be killed, paused and restarted."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener
from xml.sax.saxutils import escape

from support.hdfs import classes
from support.hdfs.jars import hadoop_jars
from support.processes.java import java
from support.processes.server import ServerProcess, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType


# How the HDFS of the tests is set up: its ports, and the files that servers and clients read.

METRICS_PERIOD_MS = 50
_HEARTBEAT = "partfile.heartbeat"
"""A property of the servers' Javas."""


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
        """Ports that no process listens on."""
        return cls(*(free_port() for _ in fields(cls)))


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
        # Leases are recovered and files truncated at a heartbeat of the DataNode. The NameNode counts in whole seconds,
        # so each of the two servers is told its own.
        "dfs.heartbeat.interval": f"${{{_HEARTBEAT}}}",
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


READY_TIMEOUT_S = 240.0
_COMMAND_TIMEOUT_S = 240.0
_POLL_INTERVAL_S = 0.1
_REQUEST_TIMEOUT_S = 30.0
_HEARTBEAT_IS_FRESH_S = 3

_NAMENODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
_DATANODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"
_ERASURE_CODING = "org.apache.hadoop.hdfs.tools.ECAdmin"
_POLICY = "XOR-2-1-1024k"
_SHELL = "org.apache.hadoop.fs.FsShell"
_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class HdfsCluster:
    """One NameNode and one DataNode below a directory; use it in a ``with`` block, which starts and stops both.

    Both processes end with this one, however it ends. A restarted server keeps its port and its data.

    Args:
        directory: Where data, configuration and logs go; made if need be.
        properties: Properties for ``hdfs-site.xml``, which win over ours.
        java_options: For both servers; None takes those that they start fastest with.

    Raises:
        MissingProgram: There is no Java, or no Maven to fetch the jars with.
    """

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        *,
        java_options: tuple[str, ...] | None = None,
    ) -> None:
        self.directory = directory
        self.configuration_directory = directory / "conf"
        """Usable as ``HADOOP_CONF_DIR``."""
        self._ports = Ports.free()
        self._java = (
            java(what="HDFS", skip="hdfs"),
            *_JVM_OPTIONS,
            *_LOG_OPTIONS,
            f"-D{_HEARTBEAT}=1s",
            *(classes.options() if java_options is None else java_options),
            "-cp",
            # An archive of classes is for these jars in this order, and for no directory before them.
            ":".join([*map(str, sorted(hadoop_jars().glob("*.jar"))), str(self.configuration_directory)]),
        )
        # A Hadoop that is installed on the machine must not have a say here.
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("HADOOP_")}
        self._namenode = self._server("namenode", _NAMENODE)
        self._datanode = self._server("datanode", f"-D{_HEARTBEAT}=100ms", _DATANODE)
        directory.mkdir(parents=True, exist_ok=True)
        write_configuration(self.configuration_directory, directory / "data", self._ports, properties or {})

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """``hdfs://127.0.0.1:PORT``."""
        return f"hdfs://127.0.0.1:{self._ports.namenode}"

    @property
    def http_address(self) -> str:
        """Host and port of the NameNode's web server, which serves WebHDFS."""
        return f"127.0.0.1:{self._ports.namenode_http}"

    @property
    def datanode_http_address(self) -> str:
        """Host and port of the DataNode's web server."""
        return f"127.0.0.1:{self._ports.datanode_http}"

    @property
    def process_ids(self) -> tuple[int, int]:
        """The process ids of NameNode and DataNode."""
        return self._namenode.process_id, self._datanode.process_id

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Start both servers, formatting the NameNode the first time, and wait until they are ready."""
        if not (self.directory / "data").exists():
            self._run(_NAMENODE, "-format", "-nonInteractive")
        self.start_namenode()
        self.start_datanode()
        self.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """End both servers; their data stays, and ``start`` works again."""
        # SIGKILL, since no farewell is needed: what was acknowledged is in the edit log and the block files.
        self.kill_datanode()
        self.kill_namenode()

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until the NameNode is out of safe mode and in touch with a DataNode that serves.

        Raises:
            RuntimeError: A server has ended by itself; the message has the end of its log.
            TimeoutError: They are not ready in time; the message has the end of both logs.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._namenode_is_ready() and self._datanode_is_ready()):
            for server in (self._namenode, self._datanode):
                if not server.is_running:
                    raise RuntimeError(f"{server.name} does not run\n{server.log_tail()}")
            if time.monotonic() > deadline:
                logs = f"{self._namenode.log_tail()}\n{self._datanode.log_tail()}"
                raise TimeoutError(f"HDFS is not ready after {timeout_s} s\n{logs}")
            time.sleep(_POLL_INTERVAL_S)

    def start_namenode(self) -> None:
        """Start the NameNode (again); returns before it is ready."""
        self._namenode.start()

    def start_datanode(self) -> None:
        """Start the DataNode (again); returns before it is ready."""
        self._datanode.start()

    def kill_namenode(self) -> None:
        """SIGKILL the NameNode, and wait until it is gone."""
        self._namenode.kill()

    def kill_datanode(self) -> None:
        """SIGKILL the DataNode, and wait until it is gone."""
        self._datanode.kill()

    def pause_namenode(self) -> None:
        """SIGSTOP the NameNode: connections stay open, nothing answers."""
        self._namenode.pause()

    def pause_datanode(self) -> None:
        """SIGSTOP the DataNode: connections stay open, nothing answers."""
        self._datanode.pause()

    def resume_namenode(self) -> None:
        """Let a paused NameNode go on."""
        self._namenode.resume()

    def resume_datanode(self) -> None:
        """Let a paused DataNode go on."""
        self._datanode.resume()

    def mend(self) -> None:
        """Bring both servers back, whatever a test has done to them, and wait until they are ready."""
        for server in (self._namenode, self._datanode):
            if server.is_running:
                server.resume()
            else:
                server.start()
        self.wait_until_ready()

    @contextmanager
    def safe_mode(self) -> Iterator[None]:
        """Keep the namespace read-only for a ``with`` block, as it is after a start; takes a second each way."""
        self.administer("-safemode", "enter")
        try:
            yield
        finally:
            self.administer("-safemode", "leave")

    def administer(self, *arguments: str) -> str:
        """Run ``hdfs dfsadmin`` with ``arguments`` (quotas, snapshots, safe mode); return what it prints.

        Raises:
            RuntimeError: It failed; the message says how.
        """
        return self._run(_ADMIN, *arguments)

    def erasure_code(self, directory: str) -> None:
        """Make what is created below a directory from now on erasure coded, over more DataNodes than there are."""
        self._run(_ERASURE_CODING, "-enablePolicy", "-policy", _POLICY)
        self._run(_ERASURE_CODING, "-setPolicy", "-path", directory, "-policy", _POLICY)

    def create_snapshot(self, directory: str, name: str) -> None:
        """Take a snapshot of a directory, which becomes one that allows snapshots."""
        self.administer("-allowSnapshot", directory)
        self._run(_SHELL, "-fs", self.url, "-createSnapshot", directory, name)

    def finalized_blocks(self) -> set[str]:
        """The names of the blocks that the DataNode has to their end; those that are being written are not among them.

        As Hadoop lays out ``dfs.datanode.data.dir``, which is below ``hadoop.tmp.dir`` unless it is set.
        """
        found = (self.directory / "data" / "dfs" / "data").glob("current/BP-*/current/finalized/**/blk_*")
        return {path.name for path in found if path.suffix != ".meta"}

    def block_file(self, content: bytes) -> Path:
        """The file of the one block that holds exactly ``content``, as the DataNode keeps it on its disk.

        Raises:
            FileNotFoundError: No block holds it.
        """
        # The DataNode deletes and moves the blocks of other tests meanwhile: Path.rglob, unlike os.walk, may then fail.
        for folder, _, names in os.walk(self.directory / "data"):
            for name in names:
                if name.startswith("blk_") and not name.endswith(".meta"):
                    path = Path(folder, name)
                    with suppress(FileNotFoundError):
                        if path.read_bytes() == content:
                            return path
        raise FileNotFoundError(f"no block below {self.directory} holds these {len(content)} bytes")

    def operations(self) -> Counter[str]:
        """How often the NameNode has been asked for what, since it was started; subtract two to count between them.

        Calls over its RPC port are named as in Hadoop's protocols (``create``, ``addBlock``); those of the
        DataNode are among them (``sendHeartbeat``, ``blockReceivedAndDeleted``). Names that begin with a capital are
        what the namespace did, over RPC and WebHDFS alike (``CreateFileOps``, ``FilesRenamed``).
        """
        time.sleep(2 * METRICS_PERIOD_MS / 1000)
        calls = self._bean(self.http_address, f"NameNode,name=RpcDetailedActivityForPort{self._ports.namenode}")
        done = self._bean(self.http_address, "NameNode,name=NameNodeActivity")
        assert calls, "the NameNode does not say what it was asked"
        assert done, "the NameNode does not say what it did"
        counts = {
            name[0].lower() + name.removesuffix("NumOps")[1:]: count
            for name, count in calls.items()
            if name.endswith("NumOps") and not name.startswith(("Deferred", "Overall"))
        }
        counts |= {
            name: count
            for name, count in done.items()
            if name.startswith("Files") or (name.endswith("Ops") and not name.endswith("NumOps"))
        }
        return Counter({name: count for name, count in counts.items() if count})

    def _server(self, name: str, *main: str) -> ServerProcess:
        command = (*self._java, *main)
        return ServerProcess(name, command, log=self.directory / f"{name}.log", environment=self._environment)

    def _run(self, main_class: str, *arguments: str) -> str:
        done = subprocess.run(
            [*self._java, main_class, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main_class} {' '.join(arguments)} failed\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def _namenode_is_ready(self) -> bool:
        state = self._bean(self.http_address, "NameNode,name=FSNamesystemState")
        return state.get("FSState") == "Operational" and state.get("NumLiveDataNodes", 0) >= 1

    def _datanode_is_ready(self) -> bool:
        # The NameNode goes on counting a DataNode for ten minutes after it died, so this one is asked itself.
        state = self._bean(self.datanode_http_address, "DataNode,name=DataNodeInfo")
        actors = json.loads(state.get("BPServiceActorInfo") or "[]")
        return any(
            actor["ActorState"] == "RUNNING" and int(actor["LastHeartbeatResponseTime"]) <= _HEARTBEAT_IS_FRESH_S
            for actor in actors
        )

    def _bean(self, address: str, query: str) -> dict[str, Any]:
        """One bean over JMX; empty while the server cannot say."""
        # No proxy of the user's is asked for what is on loopback.
        opener = build_opener(ProxyHandler({}))
        try:
            with opener.open(f"http://{address}/jmx?qry=Hadoop:service={query}", timeout=_REQUEST_TIMEOUT_S) as reply:
                beans = json.load(reply)["beans"]
        except (URLError, OSError, ValueError):
            return {}
        return dict(beans[0]) if beans else {}
