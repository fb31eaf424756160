"""An HTTP server that answers as a test says, and does what no S3 server does for tests: reads slowly, or nothing."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from partfile.stores.s3.options import S3Options
from support.s3.requests import recognise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.s3.requests import S3Request


_ERROR = "<Error><Code>{}</Code><Message>as the test says</Message></Error>"
_READ_BYTES = 1 << 14


class Heard(NamedTuple):
    """One request as it arrived."""

    request: S3Request
    headers: Mapping[str, str]
    """With names in lower case."""
    body: bytes


class Said(NamedTuple):
    """A reply."""

    status: int = 200
    body: str = ""
    headers: Mapping[str, str] = {}
    """Besides what every reply has."""


def refused(status: int, code: str) -> Said:
    """An error of S3."""
    return Said(status, _ERROR.format(code))


RESET = Said(status=0)
"""Instead of a reply the connection is reset."""


class S3Stub:
    """Listens on loopback between ``with`` and its end.

    Args:
        answer: What it says to a request; None ends the connection instead.
        bytes_a_s: How fast it reads bodies, all connections together; None is at once.
        sleep: Lets the time pass that it reads for.
    """

    def __init__(
        self,
        answer: Callable[[Heard], Said | None] = lambda _: Said(),
        bytes_a_s: float | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self.answer = answer
        self.bytes_a_s = bytes_a_s
        self.sleep = sleep
        self.is_deaf = False
        """Whether it takes connections and reads nothing of them."""
        self.heard: list[Heard] = []
        self.under_way = 0
        self.most_under_way = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self._server = _server_on_a_new_port()
        self._server.stub = self

    @property
    def endpoint_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def options(self, **more: object) -> S3Options:
        """How the S3 store connects to it."""
        place = {"endpoint_url": self.endpoint_url, "region": "us-east-1", "path_style": True}
        known = {**place, "key": "k", "secret": "s", "call_timeout_s": 20.0, "conditional_writes": True}
        return S3Options.of({**known, **more})

    def operations(self) -> list[str]:
        """What was asked, in its order."""
        return [heard.request.operation for heard in self.heard]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    stub: S3Stub

    def server_bind(self) -> None:
        # So that little of a body leaves its sender before it is read.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        super().server_bind()


_PORTS: set[int] = set()
"""Of all stubs of this process."""


def _server_on_a_new_port() -> _Server:
    """A server on a port that no earlier stub of this process had, as the system gives one of a hundred.

    By endpoint the process keeps connections, and knows what the server does with conditions.
    """
    while True:
        server = _Server(("127.0.0.1", 0), _Handler)
        port = server.server_address[1]
        if port not in _PORTS:
            _PORTS.add(port)
            return server
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to the terminal."""

    def handle(self) -> None:
        """Serve a connection, or leave it alone until the end."""
        if self.server.stub.is_deaf:
            self.server.stub.ended.wait()
        else:
            super().handle()

    def serve(self) -> None:
        """Serve one request."""
        stub = self.server.stub
        with stub.lock:
            stub.under_way += 1
            stub.most_under_way = max(stub.most_under_way, stub.under_way)
        body = self._body(int(self.headers.get("Content-Length", 0)))
        request = recognise(self.command, self.path, self.headers.keys())
        headers = {name.lower(): value for name, value in self.headers.items()}
        heard = Heard(request, headers, body)
        said = stub.answer(heard)
        with stub.lock:
            stub.heard.append(heard)
            stub.under_way -= 1
        if said is None:
            self.close_connection = True
        elif said is RESET:
            self.close_connection = True
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        else:
            self._say(said)

    # The names that http.server looks for.
    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = serve  # noqa: N815

    def _say(self, said: Said) -> None:
        self.send_response(said.status)
        known: dict[str, Any] = {"Last-Modified": formatdate(usegmt=True), "ETag": '"e"'}
        data = said.body.encode()
        for name, value in {**known, "Content-Length": str(len(data)), **said.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _body(self, length_bytes: int) -> bytes:
        stub, data = self.server.stub, bytearray()
        while len(data) < length_bytes:
            some = self.rfile.read1(min(_READ_BYTES, length_bytes - len(data)))
            if not some:
                break
            data += some
            if stub.bytes_a_s is not None:
                with stub.lock:
                    stub.sleep(len(some) / stub.bytes_a_s)
        return bytes(data)
