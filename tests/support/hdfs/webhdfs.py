"""A web server that gives one answer to every request: for what a healthy NameNode does not say."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from partfile.stores.hdfs.options import WebAddress

if TYPE_CHECKING:
    from collections.abc import Iterator


TIMEOUT_S = 5.0
TOKEN = "kAAMcGFydGZpbGU+secret/8A"  # noqa: S105 - no user's.


def remote(java_class: str, message: str = "said the server") -> bytes:
    """An error as Hadoop writes it."""
    name = java_class.rpartition(".")[2]
    return json.dumps(
        {"RemoteException": {"exception": name, "javaClassName": java_class, "message": message}}
    ).encode()


STANDBY = (403, remote("org.apache.hadoop.ipc.StandbyException", "Operation category WRITE is not supported"))
DONE = (200, b'{"boolean":true}')


class Server(ThreadingHTTPServer):
    """Gives one answer to every request, and keeps what it was asked."""

    def __init__(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.status, self.body, self.headers = status, body, headers or {}
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def address(self) -> WebAddress:
        """Where it listens."""
        return WebAddress("127.0.0.1", self.server_address[1], is_tls=False)


class _Answer(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        self.send_response(self.server.status)
        for name, value in {"Content-Length": str(len(self.server.body)), **self.server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_line: object) -> None:
        """Say nothing."""


@contextmanager
def serving(status: int, body: bytes, headers: dict[str, str] | None = None) -> Iterator[Server]:
    """A server for a ``with`` block."""
    with Server(status, body, headers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def no_server() -> WebAddress:
    """An address where no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return WebAddress("127.0.0.1", taken.getsockname()[1], is_tls=False)
