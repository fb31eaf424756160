"""From what a WebHDFS server answers to the tree of errors: by the Java class it names, else by the HTTP status."""

from __future__ import annotations

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from partfile.filesystems.errors import ConfigError, NotReady, OutcomeUnknown
from partfile.filesystems.hdfs_errors import MEANINGS, Meaning, verdict_of_java

if TYPE_CHECKING:
    from pydantic import JsonValue

    from partfile.filesystems.errors import PartfileError

_MAX_MESSAGE_CHARACTERS = 500


_RECOVERING = Meaning(NotReady, "HDFS is cutting or closing the file; wait, then do it again.")
_BEING_CUT = "is being truncated."
"""What tells a cut that goes on from somebody who writes; the class of both is AlreadyBeingCreatedException."""

_UNKNOWN = Meaning(OutcomeUnknown, "Look at the file and at the NameNode's log before doing it again.")
_NOT_WEBHDFS = Meaning(ConfigError, "Check http_address and dfs.namenode.http-address; is dfs.webhdfs.enabled true?")

_STATUSES: dict[int, Meaning] = {
    HTTPStatus.UNAUTHORIZED: Meaning(ConfigError, "Set delegation_token; a user's name is not enough here."),
    HTTPStatus.FORBIDDEN: Meaning(ConfigError, "Let this user in at the web server, or set user or delegation_token."),
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


def error_of_reply(reply: Reply, doing: str, path: str, *, secret: str | None) -> PartfileError:
    """The error of ours for an answer that is no success, or none that anybody understands.

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
