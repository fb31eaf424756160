"""An HTTP proxy between a client and an S3 server: causes faults where it is told to, and records every request."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from support.s3.requests import RequestPattern, S3Request, recognise
from support.s3.server import S3Server, client_without_retries, storage_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import s3fs


# The faults that a proxy in front of an S3 server can cause: plain values that say what becomes of one request.

_ERROR = """<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>{code}</Code><Message>caused by the proxy of a test</Message><RequestId>proxy</RequestId></Error>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A reply of the proxy's own."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What becomes of one request, in the order of the fields; the functions below name the usual ones.

    Args:
        delay_before_s: How long the request waits before the server is asked.
        outlasts_before: Whether it waits until the client has given it up, and a while longer.
        reaches_server: Whether the server is asked; it has answered before anything else happens.
        action: Called then.
        delay_after_s: How long the reply waits.
        outlasts_after: Whether it waits until the client has given it up, and a while longer.
        answer: Takes the place of the server's reply.
        loses_reply: The connection is reset instead of a reply.
        body_ends_at: How many bytes of the body are sent before the connection ends; the headers promise all.
    """

    delay_before_s: float = 0.0
    outlasts_before: bool = False
    reaches_server: bool = True
    action: Callable[[], object] | None = None
    delay_after_s: float = 0.0
    outlasts_after: bool = False
    answer: Answer | None = None
    loses_reply: bool = False
    body_ends_at: int | None = None


def reset() -> Fault:
    """The connection is reset, and the server hears nothing."""
    return Fault(reaches_server=False, loses_reply=True)


def lost_reply() -> Fault:
    """The server does what it is asked, and the connection is reset before its reply."""
    return Fault(loses_reply=True)


def late_request(delay_s: float) -> Fault:
    """The server is asked after a while: a client that does not wait that long has its request done behind its back."""
    return Fault(delay_before_s=delay_s)


def late_reply(delay_s: float) -> Fault:
    """The server is asked at once, and its reply takes a while."""
    return Fault(delay_after_s=delay_s)


def request_given_up() -> Fault:
    """The server is asked after the client has given the request up, and has had the time to ask again."""
    return Fault(outlasts_before=True)


def reply_given_up() -> Fault:
    """The server is asked at once, and its reply comes after the client has given it up."""
    return Fault(outlasts_after=True)


def error(status: int, code: str, *, reaches_server: bool = False) -> Fault:
    """An error of S3, from a server that does nothing or, with ``reaches_server``, has done it all the same."""
    return Fault(reaches_server=reaches_server, answer=Answer(status=status, body=_ERROR.format(code=code).encode()))


def slow_down() -> Fault:
    """503 SlowDown, by which S3 throttles; nothing happens."""
    return error(503, "SlowDown")


def internal_error(*, reaches_server: bool = False) -> Fault:
    """500 InternalError, which says nothing about whether it was done."""
    return error(500, "InternalError", reaches_server=reaches_server)


def error_in_success(*, reaches_server: bool = False) -> Fault:
    """Status 200 with an error in the body, as CompleteMultipartUpload and copies can answer."""
    return error(200, "InternalError", reaches_server=reaches_server)


def truncated_body(length_bytes: int) -> Fault:
    """The connection ends after so many bytes of the reply's body."""
    return Fault(body_ends_at=length_bytes)


def call(action: Callable[[], object], *, reaches_server: bool) -> Fault:
    """Something happens before the server is asked, which it then is not, or after it has answered; no reply comes."""
    return Fault(reaches_server=reaches_server, action=action, loses_reply=True)


def kill(process_id: int, *, reaches_server: bool) -> Fault:
    """SIGKILL a process, usually the one that asks, at this request."""
    return call(partial(os.kill, process_id, signal.SIGKILL), reaches_server=reaches_server)


# One connection of a proxy in front of an S3 server: takes requests, asks the server, gives or spoils its replies.

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close resets the connection at once."""

_OF_REQUEST_HOP = {"connection", "keep-alive", "expect"}
"""Headers between the two ends of a connection. The rest may be signed, and goes through as it is."""

_OF_REPLY_HOP = {"connection", "keep-alive", "transfer-encoding"}
_WITHOUT_BODY = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
_NO_FAULT = Fault()
_ASKED_AGAIN_BY_THEN_S = 0.4


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class Relay(BaseHTTPRequestHandler):
    """Serves the requests of one connection, one after the other.

    Args:
        proxy: Whose connection it is.
        arguments: As for any handler of ``socketserver``.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, proxy: S3Proxy, *arguments: Any) -> None:
        self._proxy = proxy
        super().__init__(*arguments)

    def log_message(self, format: str, *args: object) -> None:
        """Write nothing to the terminal."""

    def relay(self) -> None:
        """Serve one request; what shall become of it is decided once it has been read."""
        if "Transfer-Encoding" in self.headers:
            # None of the servers takes a body of unknown length.
            self.send_error(HTTPStatus.LENGTH_REQUIRED)
            return
        length_bytes = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length_bytes)
        if len(body) < length_bytes:
            # The client is gone, and half a request is none.
            self.close_connection = True
            return
        request = recognise(self.command, self.path, self.headers.keys())
        number, chosen = self._proxy.check_replay(request, len(body))
        fault = chosen or _NO_FAULT
        time.sleep(fault.delay_before_s)
        if fault.outlasts_before:
            self._outlast()
        reply = self._ask(body) if fault.reaches_server else None
        if reply is not None:
            self._proxy.answered(number, reply.status, len(reply.body))
        if fault.action is not None:
            fault.action()
        time.sleep(fault.delay_after_s)
        if fault.outlasts_after:
            self._outlast()
        # A server that was to be asked and is not there has no reply to put another in the place of.
        if fault.answer is not None and (reply is not None or not fault.reaches_server):
            reply = _Reply(fault.answer.status, "", [("Content-Type", "application/xml")], fault.answer.body)
        if reply is None or fault.loses_reply:
            self._reset()
        else:
            self._send(reply, fault.body_ends_at)

    # The names that http.server looks for.
    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = relay  # noqa: N815

    def _outlast(self) -> None:
        """Wait until the client has closed the connection, and for about as long as it pauses then."""
        # Clients send nothing before they have a reply, so that there is nothing to read but the end.
        with suppress(ConnectionError):
            self.connection.recv(1, socket.MSG_PEEK)
        time.sleep(_ASKED_AGAIN_BY_THEN_S)

    def _ask(self, body: bytes) -> _Reply | None:
        """What the server answers; None if it cannot be reached or ends the connection."""
        # A connection of its own: one that is used again may be closed by the server, and then nothing may be repeated.
        connection = HTTPConnection(*self._proxy.server_address)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _OF_REQUEST_HOP:
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            return _Reply(answer.status, answer.reason, answer.getheaders(), answer.read())
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def _send(self, reply: _Reply, body_ends_at: int | None) -> None:
        self.send_response_only(reply.status, reply.reason or None)
        headers = [(name, value) for name, value in reply.headers if name.lower() not in _OF_REPLY_HOP]
        for name, value in headers:
            self.send_header(name, value)
        has_body = self.command != "HEAD" and reply.status not in _WITHOUT_BODY
        if has_body and not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if has_body:
            self.wfile.write(reply.body[:body_ends_at])
        self.close_connection |= body_ends_at is not None

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_AT_CLOSE)
        self.close_connection = True


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

    def check_replay(self, request: S3Request, request_bytes: int) -> tuple[int, Fault | None]:
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
