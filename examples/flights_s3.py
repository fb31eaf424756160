"""Exactly once on S3, shown: the flights of 2013 streamed to a server that is restarted, by a driver that is killed.

Run it with ``make demo-s3``. It needs Java 17+ and Ceph's S3 server, which root with apt gets installed; where that
cannot be had, moto takes its place. The driver is that of ``make demo``: all it knows of S3 is its URL and what every
AWS client finds in the environment.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from flights import KILLS, begin, print_table
from flights_reader import compare, files_below
from flights_supervisor import Job, Supervisor, TheDriver
from support.processes.server import MissingProgram
from support.s3.ceph import RadosGateway
from support.s3.proxy import S3Proxy
from support.s3.server import REGION, MotoServer

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from flights_supervisor import Victim
    from support.s3.server import S3Server

AWAY_S = 5.0


class Endpoint(Protocol):
    """What the driver takes for the S3 server."""

    @property
    def endpoint_url(self) -> str:
        """Where it is."""

    def kill(self) -> None:
        """End it; its data stay."""

    def start(self) -> None:
        """Start it again, where it was."""


class ProxiedMoto:
    """A proxy in front of moto, which would lose its data: it is the proxy that goes and comes back."""

    def __init__(self, moto: MotoServer) -> None:
        self._moto = moto
        self._proxy = S3Proxy(moto).__enter__()

    @property
    def endpoint_url(self) -> str:
        """That of the proxy."""
        return self._proxy.endpoint_url

    def kill(self) -> None:
        """End the proxy and every connection through it."""
        self._proxy.__exit__(None, None, None)

    def start(self) -> None:
        """Let another take its port."""
        self._proxy = S3Proxy(self._moto, self._proxy.port).__enter__()


@dataclass(frozen=True, slots=True)
class TheServer:
    """The S3 server, which is back some seconds after it was killed."""

    endpoint: Endpoint
    name: str = "S3 server"

    def kill(self, driver: subprocess.Popen[bytes]) -> None:
        """Kill it, let the driver feel that for a while, and start it again."""
        self.endpoint.kill()
        os.killpg(driver.pid, signal.SIGCONT)
        time.sleep(AWAY_S)
        self.endpoint.start()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; returns 0 if nothing was lost, duplicated or left pending and every kill was inside a batch."""
    directory, source, rng, options = begin(arguments, __doc__.splitlines()[0], Path("artifacts/demo-s3"))
    format = options.format
    with choose_server(directory) as server:
        endpoint: Endpoint = ProxiedMoto(server) if isinstance(server, MotoServer) else server
        bucket = server.bucket()
        os.environ.update(
            AWS_ACCESS_KEY_ID=server.access_key,
            AWS_SECRET_ACCESS_KEY=server.secret_key,
            AWS_DEFAULT_REGION=REGION,
            AWS_ENDPOINT_URL_S3=endpoint.endpoint_url,
        )
        checkpoint = str(directory / "spark-checkpoint")  # Spark itself needs jars for S3; partfile needs none.
        job = Job(
            "partfile",
            source,
            f"s3://{bucket}/flights",
            checkpoint,
            directory / "partfile.log",
            format,
            options.mode,
            options.deduplicate,
        )
        victims: list[Victim] = [TheDriver(), TheServer(endpoint), TheDriver()]
        outcome = Supervisor(job, victims, rng).run()
        copy = directory / "copy"
        server.filesystem().get(f"{bucket}/flights/", str(copy), recursive=True)
        pending = len(server.pending_uploads(bucket))
    print("\nDuckDB reads a copy of the directory and compares it with the source", flush=True)
    ours, files = compare(source.csv, copy, format), files_below(copy, format)
    print_table(("partfile",), [outcome], [ours], [files])
    print(
        f"demo-s3: rows={ours.rows} lost={ours.lost} duplicated={ours.duplicated} files={files.count} "
        f"kills={len(outcome.kills)} pending_uploads={pending}"
    )
    return 0 if ours.lost == ours.duplicated == pending == 0 and len(outcome.kills) == KILLS else 1


def choose_server(directory: Path) -> S3Server:
    """Ceph's gateway; moto where there is no Ceph and none can be installed."""
    try:
        server: S3Server = RadosGateway(directory / "server")
    except (MissingProgram, RuntimeError) as missing:
        print(f"{missing}\nmoto takes its place, and a proxy in front of it is what is killed", flush=True)
        server = MotoServer(directory / "server")
    print(f"starting {server.name}", flush=True)
    return server


if __name__ == "__main__":
    sys.exit(main())
