"""What hdfs-native lacks, over HDFS's web servers: truncate, and reading what somebody has open (WebHDFS)."""

from __future__ import annotations

import http.client
import ssl
import time
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from partfile.filesystems.errors import ConfigError, NotApplied, NotReady, OutcomeUnknown
from partfile.filesystems.relative_paths import check_relative_path
from partfile.filesystems.webhdfs_addresses import web_address
from partfile.filesystems.webhdfs_errors import Reply, error_of_reply, is_standby

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from partfile.filesystems.webhdfs_addresses import WebAddress

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
        user: Who to be where HDFS asks for no proof.
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
            of a DataNode: until then nobody can append.

        Raises:
            NotFound: There is no file.
            LeaseUnavailable: Somebody has it open; recover its lease.
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
        """Read a range of a file, whoever has it open: what its writer has made durable is seen.

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
                hint="Let the DataNodes serve https too (dfs.http.policy).",
                path=path,
            )
        try:
            data = self._send(address, target, ends_at_s, method="GET")
        except _NoAnswer as problem:
            if problem.was_sent:
                raise _lost(query, path, [f"{address}: {problem}"]) from problem
            raise Unreachable(
                f"cannot {query['op']} {path!r} over WebHDFS: {address}: {problem}",
                hint="Let this host reach the web servers of the DataNodes (dfs.datanode.http.address).",
                path=path,
            ) from problem
        if data.is_success:
            return data.body
        raise error_of_reply(data, f"{query['op']} {path!r} at {address}", path, secret=self._token)

    def _ask(
        self, path: str, query: Mapping[str, str], timeout_s: float, *, method: str = "POST"
    ) -> tuple[Reply, WebAddress]:
        """The first answer of a server that is not on standby, and who gave it."""
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
            hint="Start a NameNode, or set http_address to where it serves WebHDFS.",
            path=path,
        )

    def _target(self, path: str, query: Mapping[str, str]) -> str:
        if not path.startswith("/"):
            raise ConfigError(f"{path!r} is no absolute path in HDFS", path=path)
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
                hint="Let ca_file name the certificates to trust.",
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
        hint="Do it again, or look at the file's length and at the NameNode.",
        path=path,
    )


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """What to speak TLS with; None trusts what the system does.

    Raises:
        ConfigError: ``ca_file`` cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"ca_file {ca_file!r} cannot be used: {error}", path=ca_file) from error
