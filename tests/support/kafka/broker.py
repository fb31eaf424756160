"""A real Kafka on loopback: one process, broker and controller in one (KRaft), that can be killed and started again."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Self

from support.processes.java import java, maven_jars
from support.processes.server import ServerProcess, free_port

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType


KAFKA_VERSION = "4.2.0"
# slf4j-simple is what makes the broker say why it does not start.
_BROKER = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)
SOURCE_VERSION = "4.2.0"
"""Of Spark's source; the newest that Maven Central has here."""
_SOURCE = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SOURCE_VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SOURCE_VERSION),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.13.1"),
)
PARTITIONS = 3
"""Of each topic."""
READY_TIMEOUT_S = 240.0
_COMMAND_TIMEOUT_S = 240.0
_POLL_INTERVAL_S = 0.1

_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_LOG_OPTIONS = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
_CLUSTER_ID = "4L6g3nShT-eMCtK--X86sw"


def source_jars() -> list[Path]:
    """The jars with which Spark reads Kafka; fetched by Maven if they are not in the cache.

    Raises:
        MissingProgram: The cache is empty and there is no Maven.
        RuntimeError: Maven could not fetch them.
    """
    name, what = f"spark-sql-kafka-{SOURCE_VERSION}", f"The jars of spark-sql-kafka {SOURCE_VERSION}"
    return sorted(maven_jars(name, _SOURCE, what=what, skip="kafka", alone=True).glob("*.jar"))


def broker_jars() -> Path:
    """The directory of the broker's jars; fetched by Maven if they are not in the cache.

    Raises:
        MissingProgram: The cache is empty and there is no Maven.
        RuntimeError: Maven could not fetch them.
    """
    return maven_jars(f"kafka-{KAFKA_VERSION}", _BROKER, what=f"The jars of Kafka {KAFKA_VERSION}", skip="kafka")


class KafkaBroker:
    """One broker below a directory; use it in a ``with`` block, which starts and stops it.

    It ends with this process, however that ends. A broker that is started again keeps its port and its data.

    Args:
        directory: Where data, configuration and logs go; made if need be.

    Raises:
        MissingProgram: There is no Java, or no Maven to fetch the jars with.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port, self._controller_port = free_port(), free_port()
        jars = broker_jars()
        self._java = (java(what="Kafka", skip="kafka"), *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", f"{jars}/*")
        self._properties = directory / "server.properties"
        command = (*self._java, "kafka.Kafka", str(self._properties))
        self._server = ServerProcess("kafka", command, log=directory / "kafka.log", environment=os.environ)

    @property
    def address(self) -> str:
        """Host and port, as ``kafka.bootstrap.servers`` takes them."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start it, formatting its storage the first time, and wait until it takes connections."""
        if not self._properties.exists():
            self._directory.mkdir(parents=True, exist_ok=True)
            self._properties.write_text(self._configuration())
            self._run("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties))
        self._server.start()
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._takes_connections():
            if not self._server.is_running or time.monotonic() > deadline:
                raise RuntimeError(f"Kafka does not answer\n{self._server.log_tail()}")
            time.sleep(_POLL_INTERVAL_S)

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone; its data stays."""
        self._server.kill()

    def produce(self, topic: str, values: Iterable[str]) -> None:
        """Append records, each with its own text as key, and wait until the broker has acknowledged them.

        A topic that is not there is made.
        """
        lines = "".join(f"{value}\t{value}\n" for value in values)
        to_topic = ("--bootstrap-server", self.address, "--topic", topic, "--reader-property", "parse.key=true")
        self._run("org.apache.kafka.tools.ConsoleProducer", *to_topic, typed=lines)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def _configuration(self) -> str:
        client, controller = f"127.0.0.1:{self._port}", f"127.0.0.1:{self._controller_port}"
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{client},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{client}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self._directory / "data"),
            "num.partitions": str(PARTITIONS),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        return "".join(f"{name}={value}\n" for name, value in properties.items())

    def _takes_connections(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _run(self, main_class: str, *arguments: str, typed: str = "") -> None:
        done = subprocess.run(
            [*self._java, main_class, *arguments],
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{main_class} {' '.join(arguments)} failed\n{done.stdout}\n{done.stderr}")
