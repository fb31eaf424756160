"""From what a WebHDFS server answers to the tree of errors: one table of Java classes, one of HTTP statuses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from partfile.filesystems.errors import (
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    PartfileError,
)

if TYPE_CHECKING:
    from pydantic import JsonValue

_MAX_MESSAGE_CHARACTERS = 500


class _Meaning(NamedTuple):
    kind: type[PartfileError]
    hint: str


_LEASED = _Meaning(LeaseUnavailable, "Recover the lease of the file first.")
_NOT_READY = _Meaning(NotReady, "Wait until HDFS has an active NameNode out of safe mode, then do it again.")
_RECOVERING = _Meaning(NotReady, "HDFS is cutting or closing the file; wait, then do it again.")
_DENIED = _Meaning(ConfigError, "Give this user the permission on the path, or set user or delegation_token.")
_REFUSED = _Meaning(NotApplied, "")
_FULL = _Meaning(NotApplied, "Raise the quota; the job can then be restarted.")

_JAVA_CLASSES = {
    "FileNotFoundException": _Meaning(NotFound, ""),
    "AlreadyBeingCreatedException": _LEASED,
    "LeaseExpiredException": _LEASED,
    "RecoveryInProgressException": _RECOVERING,
    "SafeModeException": _NOT_READY,
    "RetriableException": _NOT_READY,
    "StandbyException": _NOT_READY,
    "ObserverRetryOnActiveException": _NOT_READY,
    "AccessControlException": _DENIED,
    "AuthorizationException": _DENIED,
    "AuthenticationException": _DENIED,
    "InvalidToken": _DENIED,
    "SecurityException": _DENIED,
    "HadoopIllegalArgumentException": _REFUSED,
    "IllegalArgumentException": _REFUSED,
    "UnsupportedOperationException": _REFUSED,
    "InvalidPathException": _REFUSED,
    "ParentNotDirectoryException": _REFUSED,
    "UnresolvedPathException": _REFUSED,
    "SnapshotAccessControlException": _REFUSED,
    "NSQuotaExceededException": _FULL,
    "DSQuotaExceededException": _FULL,
    "QuotaByStorageTypeExceededException": _FULL,
}
"""What each Java class says of a call that it ended; of all others nobody knows whether the call happened."""

_BEING_CUT = "is being truncated."
"""What tells a cut that goes on from somebody who writes; the class of both is AlreadyBeingCreatedException."""

_UNKNOWN = _Meaning(OutcomeUnknown, "Look at the file and at the NameNode's log before doing it again.")
_NOT_WEBHDFS = _Meaning(ConfigError, "Check http_address and dfs.namenode.http-address; is dfs.webhdfs.enabled true?")

_STATUSES: dict[int, _Meaning] = {
    HTTPStatus.UNAUTHORIZED: _Meaning(ConfigError, "Set delegation_token; a user's name is not enough here."),
    HTTPStatus.FORBIDDEN: _DENIED,
    **dict.fromkeys((301, 302, 303, 307, 308), _NOT_WEBHDFS),
    # Said without HDFS's own words it is not about the file: this is another web server, or WebHDFS is off.
    HTTPStatus.NOT_FOUND: _NOT_WEBHDFS,
    HTTPStatus.METHOD_NOT_ALLOWED: _NOT_WEBHDFS,
    HTTPStatus.NOT_IMPLEMENTED: _NOT_WEBHDFS,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a server answered."""

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


def error_of_reply(reply: Reply, doing: str, path: str, *, reads: bool, secret: str | None) -> PartfileError:
    """The error of ours for an answer that is no success, or none that anybody understands.

    Args:
        reply: The answer.
        doing: What was tried and where, to follow "cannot".
        path: At fault.
        reads: Whether the call changes nothing, so that it did not happen whatever went wrong.
        secret: What must not be shown, even where the server repeats it, as it is or as it was sent.
    """
    java_class, message = _remote_exception(reply)
    meaning = _meaning(reply.status, java_class, message)
    kind = NotApplied if reads and meaning.kind is OutcomeUnknown else meaning.kind
    said = f"{java_class}: {message}" if java_class else f"HTTP {reply.status} {reply.reason}"
    if secret:
        said = said.replace(secret, "***").replace(quote(secret, safe=""), "***")
    return kind(f"cannot {doing}: {said[:_MAX_MESSAGE_CHARACTERS]}", hint=meaning.hint, path=path)


def _meaning(status: int, java_class: str, message: str) -> _Meaning:
    if not java_class:
        return _STATUSES.get(status, _UNKNOWN)
    if java_class == "AlreadyBeingCreatedException" and message.endswith(_BEING_CUT):
        return _RECOVERING
    return _JAVA_CLASSES.get(java_class, _UNKNOWN)


def _remote_exception(reply: Reply) -> tuple[str, str]:
    """The simple name of the Java class and its message; empty where the answer has none."""
    remote = reply.content().get("RemoteException")
    if reply.is_success or not isinstance(remote, dict):
        return "", ""
    name = str(remote.get("javaClassName") or remote.get("exception") or "")
    return name.rpartition(".")[2].rpartition("$")[2], str(remote.get("message") or "")
