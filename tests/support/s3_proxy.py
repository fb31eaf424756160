"""An HTTP proxy between a client and an S3 server: causes faults where it is told to, and records every request."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from s3_relay import RESET_AT_CLOSE, Relay
from s3_requests import RequestPattern, S3Request
from s3_server import S3Server, client_without_retries, storage_options

if TYPE_CHECKING:
    from types import TracebackType

    import s3fs
    from s3_faults import Fault

_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as the proxy saw it.

    Args:
        request: What was asked.
        request_bytes: Length of the request's body.
        status: What the server answered; None while it has not, or was not asked.
        reply_bytes: Length of the body of the server's reply.
        fault: What became of it, if not the usual.
    """

    request: S3Request
    request_bytes: int
    status: int | None = None
    reply_bytes: int = 0
    fault: Fault | None = None


@dataclass(slots=True)
class Injection:
    """A fault that waits for its requests; made by ``S3Proxy.inject``."""

    fault: Fault
    pattern: RequestPattern
    first: int
    times: int | None
    seen: int = 0
    """How many requests agreed with the pattern."""
    struck: threading.Event = field(default_factory=threading.Event)
    """Set when the fault has befallen a request."""

    def strikes(self) -> bool:
        """Whether the request that was counted last is one that the fault befalls."""
        return self.seen >= self.first and (self.times is None or self.seen < self.first + self.times)


class S3Proxy:
    """A proxy on a loopback port, in threads of this process; use it in a ``with`` block.

    It never repeats a request. A server that cannot be reached shows as a reset connection.

    Args:
        server: The server to forward to. A request keeps its Host, which its signature covers.
        port: Where it listens; 0 takes a free one.
    """

    def __init__(self, server: S3Server, port: int = 0) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._injections: list[Injection] = []
        self._exchanges: list[Exchange] = []
        self._listener = _Listener(self, port)
        self._thread = threading.Thread(target=self._listener.serve_forever, name="S3 proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        self._listener.close_connections()
        self._thread.join()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.server_address[1])

    @property
    def endpoint_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """What s3fs needs to get to the server through this proxy."""
        return storage_options(self.endpoint_url, self._server.access_key, self._server.secret_key)

    @property
    def server_address(self) -> tuple[str, int]:
        """Host and port of the server."""
        return "127.0.0.1", self._server.port

    @property
    def exchanges(self) -> list[Exchange]:
        """All requests since the start or ``forget``, in the order in which they came."""
        with self._lock:
            return list(self._exchanges)

    def filesystem(self) -> s3fs.S3FileSystem:
        """A client of its own that goes through this proxy and asks once."""
        return client_without_retries(self.storage_options)

    def inject(
        self,
        fault: Fault,
        *,
        operation: str = "*",
        key: str = "*",
        method: str = "*",
        first: int = 1,
        times: int | None = 1,
    ) -> Injection:
        """Let a fault befall requests; of two that strike at once the one injected first does.

        Args:
            fault: What shall become of them.
            operation: Which requests; see ``RequestPattern``.
            key: Likewise.
            method: Likewise.
            first: The first of those requests that is struck, counted from 1 and from now.
            times: How many in a row are struck; None for all that follow.
        """
        injection = Injection(fault, RequestPattern(operation, key, method), first, times)
        with self._lock:
            self._injections.append(injection)
        return injection

    def heal(self) -> None:
        """Cause no more faults."""
        with self._lock:
            self._injections.clear()

    def count(self, key: str = "*") -> Counter[str]:
        """How often each operation was asked for, for objects whose key agrees with a pattern."""
        pattern = RequestPattern(key=key)
        return Counter(each.request.operation for each in self.exchanges if pattern.matches(each.request))

    def forget(self) -> None:
        """Count from zero. No request may be under way."""
        with self._lock:
            self._exchanges.clear()

    def admit(self, request: S3Request, request_bytes: int) -> tuple[int, Fault | None]:
        """Record a request; return its number and what shall become of it."""
        with self._lock:
            fault = self._fault(request)
            self._exchanges.append(Exchange(request, request_bytes, fault=fault))
            return len(self._exchanges) - 1, fault

    def answered(self, number: int, status: int, reply_bytes: int) -> None:
        """Record what the server answered to a request."""
        with self._lock:
            self._exchanges[number] = replace(self._exchanges[number], status=status, reply_bytes=reply_bytes)

    def _fault(self, request: S3Request) -> Fault | None:
        striking: list[Injection] = []
        for injection in self._injections:
            if injection.pattern.matches(request):
                injection.seen += 1
                striking += [injection] if injection.strikes() else []
        if not striking:
            return None
        striking[0].struck.set()
        return striking[0].fault


class _Listener(ThreadingHTTPServer):
    """Takes connections for the relay, and knows those that are open."""

    daemon_threads = True
    request_queue_size = _BACKLOG

    def __init__(self, proxy: S3Proxy, port: int) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), partial(Relay, proxy))

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note a connection and serve it in a thread."""
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection without the farewell that would come before a reset."""
        self._open.discard(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that is gone."""

    def close_connections(self) -> None:
        """Reset what clients keep open."""
        for connection in list(self._open):
            with suppress(OSError):  # Its thread may have closed it by now.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
                connection.shutdown(socket.SHUT_RDWR)
