"""The faults that a proxy in front of an S3 server can cause: plain values that say what becomes of one request."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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
        reaches_server: Whether the server is asked; it has answered before anything else happens.
        action: Called then.
        delay_after_s: How long the reply waits.
        answer: Takes the place of the server's reply.
        loses_reply: The connection is reset instead of a reply.
        body_ends_at: How many bytes of the body are sent before the connection ends; the headers promise all.
    """

    delay_before_s: float = 0.0
    reaches_server: bool = True
    action: Callable[[], object] | None = None
    delay_after_s: float = 0.0
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
