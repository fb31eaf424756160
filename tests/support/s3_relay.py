"""One connection of a proxy in front of an S3 server: takes requests, asks the server, gives or spoils its replies."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from s3_faults import Fault
from s3_requests import recognise

if TYPE_CHECKING:
    from s3_proxy import S3Proxy

RESET_AT_CLOSE = struct.pack("ii", 1, 0)
"""For SO_LINGER: a close resets the connection at once."""

_OF_REQUEST_HOP = {"connection", "keep-alive", "expect"}
"""Headers between the two ends of a connection. The rest may be signed, and goes through as it is."""

_OF_REPLY_HOP = {"connection", "keep-alive", "transfer-encoding"}
_WITHOUT_BODY = {HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED}
_NO_FAULT = Fault()


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
        number, chosen = self._proxy.admit(request, len(body))
        fault = chosen or _NO_FAULT
        time.sleep(fault.delay_before_s)
        reply = self._ask(body) if fault.reaches_server else None
        if reply is not None:
            self._proxy.answered(number, reply.status, len(reply.body))
        if fault.action is not None:
            fault.action()
        time.sleep(fault.delay_after_s)
        # A server that was to be asked and is not there has no reply to put another in the place of.
        if fault.answer is not None and (reply is not None or not fault.reaches_server):
            reply = _Reply(fault.answer.status, "", [("Content-Type", "application/xml")], fault.answer.body)
        if reply is None or fault.loses_reply:
            self._reset()
        else:
            self._send(reply, fault.body_ends_at)

    # The names that http.server looks for.
    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = relay  # noqa: N815

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
