"""WebHDFS client: truncates files and reads open ones, which hdfs-native cannot."""

from __future__ import annotations

import getpass
import http.client
import json
import logging
import math
import os
import ssl
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, urlencode

from partfile.errors import ConfigError, NotApplied, NotReady, OutcomeUnknown
from partfile.stores.hadoop import read_configuration
from partfile.stores.hdfs.errors import MEANINGS, Meaning, verdict_of_java
from partfile.stores.hdfs.options import web_address, web_addresses
from partfile.stores.paths import check_relative_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic import JsonValue

    from partfile.errors import PartfileError
    from partfile.stores.hdfs.options import HdfsOptions, WebAddress


_MAX_MESSAGE_CHARACTERS = 500


_RECOVERING = Meaning(
    NotReady,
    "HDFS is cutting or closing the file. Wait, then do it again; see which are open: hdfs fsck PATH -openforwrite",
)
_BEING_CUT = "is being truncated."
"""What tells a cut under way from a file that is being written; the class of both is AlreadyBeingCreatedException."""

_UNKNOWN = Meaning(
    OutcomeUnknown, "Look at the NameNode's log and at the file before doing it again: hdfs dfs -ls PATH"
)
_NOT_WEBHDFS = Meaning(
    ConfigError,
    (
        "Check http_address=host:port in storage_options, and what Hadoop is told: hdfs getconf -confKey "
        "dfs.namenode.http-address; hdfs getconf -confKey dfs.webhdfs.enabled"
    ),
)

_STATUSES: dict[int, Meaning] = {
    HTTPStatus.UNAUTHORIZED: Meaning(
        ConfigError, "A user's name is not enough here: set delegation_token=TOKEN in storage_options."
    ),
    HTTPStatus.FORBIDDEN: Meaning(
        ConfigError,
        "Let this user in at the web server, or set user=NAME or delegation_token=TOKEN in storage_options.",
    ),
    **dict.fromkeys((301, 302, 303, 307, 308), _NOT_WEBHDFS),
    # Said without HDFS's own words it is not about the file: this is another web server, or WebHDFS is off.
    HTTPStatus.NOT_FOUND: _NOT_WEBHDFS,
    HTTPStatus.METHOD_NOT_ALLOWED: _NOT_WEBHDFS,
    HTTPStatus.NOT_IMPLEMENTED: _NOT_WEBHDFS,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of a server."""

    status: int
    reason: str
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the server says that it did what it was asked."""
        return self.status == HTTPStatus.OK

    def content(self) -> dict[str, JsonValue]:
        """The body, if it is a JSON object; else nothing."""
        try:
            content = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


def is_standby(reply: Reply) -> bool:
    """Whether another NameNode is to be asked."""
    return _remote_exception(reply)[0] in {"StandbyException", "ObserverRetryOnActiveException"}


def error_of_reply(reply: Reply, doing: str, path: str, *, secret: str | None) -> PartfileError:
    """The error of ours for an answer that is no success, or that cannot be understood.

    Args:
        reply: The answer.
        doing: What was tried and where, to follow "cannot".
        path: At fault.
        secret: What must not be shown, even where the server repeats it, as it is or as it was sent.
    """
    java_class, message = _remote_exception(reply)
    meaning = _meaning(reply.status, java_class, message)
    said = f"{java_class}: {message}" if java_class else f"HTTP {reply.status} {reply.reason}"
    if secret:
        said = said.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return meaning.kind(f"cannot {doing}: {said[:_MAX_MESSAGE_CHARACTERS]}", hint=meaning.hint, path=path)


def _meaning(status: int, java_class: str, message: str) -> Meaning:
    if not java_class:
        return _STATUSES.get(status, _UNKNOWN)
    if java_class == "RecoveryInProgressException" or (
        java_class == "AlreadyBeingCreatedException" and message.endswith(_BEING_CUT)
    ):
        return _RECOVERING
    return MEANINGS[verdict_of_java(java_class, message)]


def _remote_exception(reply: Reply) -> tuple[str, str]:
    """The simple name of the Java class and its message; empty where the answer has none."""
    remote = reply.content().get("RemoteException")
    if reply.is_success or not isinstance(remote, dict):
        return "", ""
    name = str(remote.get("javaClassName") or remote.get("exception") or "")
    return name.rpartition(".")[2].rpartition("$")[2], str(remote.get("message") or "")


_PREFIX = "/webhdfs/v1"
MAX_REPLY_BYTES = 1 << 20
CONNECT_TIMEOUT_S = 5.0
"""Longest wait for one server to take a connection, so that the next one is asked in time."""


class Unreachable(NotApplied):
    """No server took the connection, so nothing was asked; the next call will most likely fare no better."""


class _NoAnswer(Exception):
    """A server that did not answer.

    Args:
        reason: Why, as messages show it.
        was_sent: Whether it may have got the request all the same.
    """

    def __init__(self, reason: str, *, was_sent: bool) -> None:
        super().__init__(reason)
        self.was_sent = was_sent


class WebHdfs:
    """Client of the web servers of one name service; asks each in turn until one is active.

    Keeps no connection between two calls, so it may be shared between threads and used after a fork. A request that
    was sent and got no answer is never sent again. No HTTP redirection is followed.

    Args:
        addresses: The NameNodes' web servers, at least one.
        user: The user's name where HDFS asks for no proof.
        delegation_token: Proof of identity, sent instead of the user's name; shown nowhere.
        ca_file: Certificates to trust, for TLS; None takes the system's.

    Raises:
        ConfigError: There is no address, or ``ca_file`` cannot be used.
    """

    def __init__(
        self,
        addresses: Sequence[WebAddress],
        *,
        user: str | None = None,
        delegation_token: str | None = None,
        ca_file: str | None = None,
    ) -> None:
        if not addresses:
            raise ConfigError("WebHDFS needs at least one address")
        self._addresses = tuple(addresses)
        self._token = delegation_token
        self._identity = {"delegation": delegation_token} if delegation_token else {"user.name": user} if user else {}
        self._tls = tls_context(ca_file) if any(address.is_tls for address in addresses) else None
        self._active = 0

    def __repr__(self) -> str:
        return f"WebHdfs({', '.join(map(str, self._addresses))})"

    def truncate(self, path: str, length_bytes: int, timeout_s: float) -> bool:
        """Cut a closed file to its first ``length_bytes``.

        Atomicity: a reader sees the old length or the new one. Idempotence: the same call again, during the cut or
        after it, changes nothing: repeat it until it returns True. The length alone is no sign of the end: of a file
        that a snapshot holds too, it is the new one from the beginning. Durability: once it is answered, the cut
        survives a crash of the NameNode.

        Args:
            path: Absolute path in HDFS.
            length_bytes: At most what the file has.
            timeout_s: Longest wait for all servers together, in seconds.

        Returns:
            True when the file has that length and is closed; False when the cut has begun, and goes on at a heartbeat
            of a DataNode: until then no writer can append.

        Raises:
            NotFound: There is no file.
            LeaseUnavailable: A writer has it open; recover its lease.
            NotReady: Safe mode, no active NameNode, or a recovery or a cut of this file goes on (another one, or this
                one where a snapshot holds the file): this call changed nothing, try again.
            NotApplied: The file is shorter, a quota is reached, or the user may not.
            Unreachable: No server took the connection.
            OutcomeUnknown: The answer was lost; the call may be repeated.
            ConfigError: A certificate is not trusted, or the address is not WebHDFS or wants another proof of identity.

        Source: Hadoop's WebHDFS REST API (``TRUNCATE``) and ``FSDirTruncateOp``, as of 3.5.
        """
        query = {"op": "TRUNCATE", "newlength": str(length_bytes)}
        reply, where = self._ask(path, query, timeout_s)
        finished = reply.content().get("boolean")
        if reply.is_success and isinstance(finished, bool):
            return finished
        raise error_of_reply(reply, f"{query['op']} {path!r} at {where}", path, secret=self._token)

    def read(self, path: str, offset: int, count: int, timeout_s: float) -> bytes:
        """Read a range of a file, also of an open one: what its writer has made durable is seen.

        Args:
            path: Absolute path in HDFS.
            offset: Where to begin, in bytes; within the file.
            count: At most how many bytes; up to ``MAX_REPLY_BYTES``.
            timeout_s: Longest wait for all servers together, in seconds.

        Returns:
            Up to ``count`` bytes, fewer where the file ends.

        Raises:
            NotFound: There is no file.
            NotReady: Safe mode, or no active NameNode.
            NotApplied: The user may not, or the range begins beyond the end.
            Unreachable: No NameNode or not the DataNode took the connection.
            OutcomeUnknown: The answer was lost; the call may be repeated.
            ConfigError: A certificate is not trusted, or the address is not WebHDFS or wants another proof of identity.

        Source: Hadoop's WebHDFS REST API (``OPEN`` with ``noredirect``), as of 3.5.
        """
        ends_at_s = time.monotonic() + timeout_s
        query = {"op": "OPEN", "offset": str(offset), "length": str(count), "noredirect": "true"}
        reply, where = self._ask(path, query, timeout_s, method="GET")
        location = reply.content().get("Location")
        if not reply.is_success or not isinstance(location, str):
            raise error_of_reply(reply, f"{query['op']} {path!r} at {where}", path, secret=self._token)
        address, target = _parted(location, path)
        if where.is_tls and not address.is_tls:
            # The token is in what to ask it.
            raise ConfigError(
                f"{where} says to read {path!r} at {address}, without TLS",
                hint="Let the DataNodes serve https too: dfs.http.policy=HTTP_AND_HTTPS",
                path=path,
            )
        try:
            data = self._send(address, target, ends_at_s, method="GET")
        except _NoAnswer as problem:
            if problem.was_sent:
                raise _lost(query, path, [f"{address}: {problem}"]) from problem
            raise Unreachable(
                f"cannot {query['op']} {path!r} over WebHDFS: {address}: {problem}",
                hint=(
                    "Let this host reach the web servers of the DataNodes, which are at: hdfs getconf -confKey "
                    "dfs.datanode.http.address"
                ),
                path=path,
            ) from problem
        if data.is_success:
            return data.body
        raise error_of_reply(data, f"{query['op']} {path!r} at {address}", path, secret=self._token)

    def _ask(
        self, path: str, query: Mapping[str, str], timeout_s: float, *, method: str = "POST"
    ) -> tuple[Reply, WebAddress]:
        """The first answer of a server that is not on standby, and that server's address."""
        target = self._target(path, query)
        ends_at_s = time.monotonic() + timeout_s
        problems: list[str] = []
        kind: type[NotApplied] = Unreachable
        for turn in range(len(self._addresses)):
            number = (self._active + turn) % len(self._addresses)
            address = self._addresses[number]
            try:
                reply = self._send(address, target, ends_at_s, method=method)
            except _NoAnswer as problem:
                problems.append(f"{address}: {problem}")
                if problem.was_sent:
                    raise _lost(query, path, problems) from problem
                continue
            if not is_standby(reply):
                self._active = number
                return reply, address
            problems.append(f"{address} is on standby")
            kind = NotReady
        raise kind(
            f"cannot {query['op']} {path!r} over WebHDFS: {'; '.join(problems)}",
            hint="Start a NameNode, or say where it serves WebHDFS: http_address=host:port in storage_options.",
            path=path,
        )

    def _target(self, path: str, query: Mapping[str, str]) -> str:
        if not path.startswith("/"):
            raise ConfigError(f"{path!r} is not an absolute path in HDFS", path=path)
        # A server would take /a/../b for another file.
        check_relative_path(path[1:])
        return f"{_PREFIX}{quote(path)}?{urlencode({**query, **self._identity}, quote_via=quote)}"

    def _send(self, address: WebAddress, target: str, ends_at_s: float, *, method: str) -> Reply:
        """Ask one server on a connection of its own."""
        connection = self._connection(address)
        was_sent = False
        try:
            connection.timeout = min(CONNECT_TIMEOUT_S, _left_s(ends_at_s))
            connection.connect()
            connection.sock.settimeout(_left_s(ends_at_s))
            was_sent = True
            connection.request(method, target, headers={"Accept": "*/*", "Connection": "close"})
            return _reply(connection, ends_at_s)
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"the certificate of {address} is not trusted: {error.verify_message}",
                hint="Name the certificates to trust: ca_file=FILE in storage_options.",
            ) from error
        except TimeoutError as error:
            raise _NoAnswer("no answer in time", was_sent=was_sent) from error
        except (OSError, http.client.HTTPException) as error:
            raise _NoAnswer(str(error) or type(error).__name__, was_sent=was_sent) from error
        finally:
            connection.close()

    def _connection(self, address: WebAddress) -> http.client.HTTPConnection:
        if address.is_tls:
            return http.client.HTTPSConnection(address.host, address.port, context=self._tls)
        return http.client.HTTPConnection(address.host, address.port)


def _reply(connection: http.client.HTTPConnection, ends_at_s: float) -> Reply:
    # The connection lets go of its socket when the server closes it, but the answer is still to be read.
    sock = connection.sock
    response = connection.getresponse()
    body = bytearray()
    while len(body) <= MAX_REPLY_BYTES:
        sock.settimeout(_left_s(ends_at_s))
        piece = response.read1(MAX_REPLY_BYTES)
        if not piece:
            return Reply(response.status, response.reason, bytes(body))
        body += piece
    raise http.client.HTTPException(f"an answer of more than {MAX_REPLY_BYTES} bytes")


def _left_s(ends_at_s: float) -> float:
    left_s = ends_at_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s


def _parted(location: str, path: str) -> tuple[WebAddress, str]:
    """The server that a NameNode names, and what to ask it.

    Raises:
        ConfigError: It names none.
    """
    address = web_address(location.partition("/webhdfs/")[0])
    target = location.partition("/webhdfs/")[2]
    if not target:
        raise ConfigError(f"a NameNode says to read {path!r} at {address}, and not what to ask there", path=path)
    return address, f"/webhdfs/{target}"


def _lost(query: Mapping[str, str], path: str, problems: Sequence[str]) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"{query['op']} {path!r} over WebHDFS was sent and not answered: {'; '.join(problems)}",
        hint="Look at the NameNode and at the file's length, or do it again: hdfs dfs -ls PATH",
        path=path,
    )


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """The context for TLS; None trusts the system's certificates.

    Raises:
        ConfigError: ``ca_file`` cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"ca_file {ca_file!r} cannot be used: {error}",
            hint="It holds certificates in PEM: ca_file='/etc/ssl/certs/ca-certificates.crt'.",
            path=ca_file,
        ) from error


logger = logging.getLogger("partfile")

_FORGET_S = 60.0
"""The time for which an attempt in vain keeps others from trying."""


class _Refusal(NamedTuple):
    """Why it is not tried."""

    reason: PartfileError
    ends_at_s: float
    """Until when that is believed, by the monotonic clock."""


class HdfsTruncation:
    """Cuts files, as long as nothing has shown that it cannot. Looks at configuration and network when first used.

    What it keeps is set in one step and may be found out twice at once: a lock could stay held in a forked child.

    Args:
        url: The file system; None for ``fs.defaultFS``.
        options: How to connect.
    """

    def __init__(self, url: str | None, options: HdfsOptions) -> None:
        self._url = url or "hdfs:///"
        self._options = options
        self._client: WebHdfs | None = None
        self._refusal: _Refusal | None = None

    @property
    def is_possible(self) -> bool:
        """Whether files can be cut, as far as is known by now; tries nothing."""
        return self._refusal is None or time.monotonic() >= self._refusal.ends_at_s

    def truncate(self, path: str, length_bytes: int) -> bool:
        """Cut a closed file; True when it is done, False when it has begun.

        Raises:
            NotApplied: It cannot be cut; where WebHDFS cannot be used at all, it is not tried again for a while.
            OutcomeUnknown: It may have been cut.
        """
        refusal = self._refusal
        if refusal is not None and time.monotonic() < refusal.ends_at_s:
            raise NotApplied(
                f"{path!r} cannot be cut to {length_bytes} bytes: WebHDFS failed before: {refusal.reason.message}",
                hint="Set dfs.namenode.http-address or the option http_address, or take cut='rewrite'.",
                path=path,
            ) from refusal.reason
        try:
            return self._connected().truncate(path, length_bytes, self._options.call_timeout_s)
        except (Unreachable, ConfigError) as error:
            logger.warning("parts of %s are not cut in place: %s", self._url, error)
            # A refused connection may be a NameNode restart, so retry later. A configuration error is permanent.
            forget_s = math.inf if isinstance(error, ConfigError) else _FORGET_S
            self._refusal = _Refusal(error, time.monotonic() + forget_s)
            raise NotApplied(error.message, hint=error.hint, path=path) from error

    def _connected(self) -> WebHdfs:
        if self._client is None:
            self._client = connect_to_web(self._url, self._options)
        return self._client


def connect_to_web(url: str, options: HdfsOptions) -> WebHdfs:
    """A client of the web servers of a file system, from the options and Hadoop's files.

    Raises:
        ConfigError: They name none, or cannot be used.
    """
    token = options.delegation_token
    return WebHdfs(
        _addresses(url, options),
        user=options.user or os.environ.get("HADOOP_USER_NAME") or _system_user(),
        delegation_token=None if token is None else token.get_secret_value(),
        ca_file=options.ca_file,
    )


def _system_user() -> str | None:
    """The name of this process's user; None where it has none, as in a container without an entry for its uid."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def _addresses(url: str, options: HdfsOptions) -> tuple[WebAddress, ...]:
    if options.http_address is not None:
        return (web_address(options.http_address),)
    configuration = read_configuration(os.environ, directory=options.config_dir, overrides=options.config)
    return web_addresses(url, configuration)
