"""From what hdfs-native raises to the tree of errors, and the one table of the NameNode's Java classes.

hdfs-native tells apart by class only whether a file is missing, whether it is there already and whether the network
failed. The rest is a RuntimeError whose text names a Java class of the NameNode's or an error of its own.
"""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import NamedTuple

from partfile.errors import (
    AlreadyExists,
    ConfigError,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    NotReady,
    OutcomeUnknown,
    PartfileError,
    page_url,
)


class Verdict(Enum):
    """The outcome of a call, as its error tells it."""

    MISSING = auto()
    """Nothing is under the name."""
    TAKEN = auto()
    """Something is under the name already."""
    LEASED = auto()
    """Another writer holds the lease, or did a moment ago and HDFS is closing its file."""
    UNREADY = auto()
    """HDFS refuses for the time being and says so; nothing happened."""
    DENIED = auto()
    """This user may not."""
    FULL = auto()
    """A quota or the DataNodes have no room."""
    ERASURE_CODED = auto()
    """The directory is erasure coded, where nothing can be synced or appended to."""
    BELOW_A_FILE = auto()
    """A file is in the place of a directory."""
    REFUSED = auto()
    """It will never do this."""
    MISCONFIGURED = auto()
    """The client cannot even try."""
    LOST = auto()
    """The connection to the NameNode broke while it was at it."""
    UNKNOWN = auto()
    """Anything else: the network, a DataNode, an error that is not classified."""


_JAVA_CLASSES = {
    "FileNotFoundException": Verdict.MISSING,
    "FileAlreadyExistsException": Verdict.TAKEN,
    "AlreadyBeingCreatedException": Verdict.LEASED,
    "RecoveryInProgressException": Verdict.LEASED,
    "LeaseExpiredException": Verdict.LEASED,
    "SafeModeException": Verdict.UNREADY,
    "RetriableException": Verdict.UNREADY,
    "StandbyException": Verdict.UNREADY,
    "ObserverRetryOnActiveException": Verdict.UNREADY,
    "AccessControlException": Verdict.DENIED,
    "AuthorizationException": Verdict.DENIED,
    "AuthenticationException": Verdict.DENIED,
    "SecurityException": Verdict.DENIED,
    "InvalidToken": Verdict.DENIED,
    "SaslException": Verdict.DENIED,
    "NSQuotaExceededException": Verdict.FULL,
    "DSQuotaExceededException": Verdict.FULL,
    "QuotaByStorageTypeExceededException": Verdict.FULL,
    "InvalidPathException": Verdict.REFUSED,
    "ParentNotDirectoryException": Verdict.BELOW_A_FILE,
    "PathComponentTooLongException": Verdict.REFUSED,
    "MaxDirectoryItemsExceededException": Verdict.REFUSED,
    "PathIsNotEmptyDirectoryException": Verdict.REFUSED,
    "UnresolvedPathException": Verdict.REFUSED,
    "SnapshotAccessControlException": Verdict.REFUSED,
    "UnsupportedOperationException": Verdict.REFUSED,
    "IllegalArgumentException": Verdict.REFUSED,
    "HadoopIllegalArgumentException": Verdict.REFUSED,
}
"""The verdict on a call for the simple name of each class, over RPC and WebHDFS alike. Whether a call with any other
error happened is unknown."""

_PLAIN_IO_EXCEPTIONS = (
    ("minReplication nodes", Verdict.FULL),
    # It has fewer DataNodes than the policy needs.
    ("required nodes for", Verdict.ERASURE_CODED),
    ("must both be directories", Verdict.TAKEN),
    ("sufficiently replicated yet", Verdict.UNREADY),
)
"""Bare IOExceptions of the NameNode, told apart by their words alone."""

_OWN_ERRORS = {
    "UnsupportedFeature": Verdict.REFUSED,
    "UnsupportedErasureCodingPolicy": Verdict.REFUSED,
    "InvalidArgument": Verdict.MISCONFIGURED,
    "UrlParseError": Verdict.MISCONFIGURED,
    "SASLError": Verdict.DENIED,
    "GSSAPIError": Verdict.DENIED,
    "NoSASLMechanism": Verdict.DENIED,
}
"""Errors that hdfs-native makes itself."""

_UNREPORTED_BLOCK = 'OperationFailed("Failed to complete file in time")'
"""A close whose last block no DataNode has reported to the NameNode yet, as after a restart of the NameNode: all bytes
are where they belong."""
_BROKEN_CONNECTION = "RPC listener disconnected"
"""The text of hdfs-native for a failure that it does not retry; it retries calls that fail in other ways once."""
_NO_DIRECTORY = "(is not a directory)"
"""The text of the NameNode for a path that goes through a file, before it looks at permissions; a superuser gets
another exception."""
_NOT_WHERE_ERASURE_CODED = "not supported for erasure-coded files"

_JAVA_ERROR = re.compile(r'^(?:Fatal)?RPCError\("[\w.]*?(?:\w+\$)?(\w+)", "')
_OWN_ERROR = re.compile(r"^(\w+)")
_ESCAPED = re.compile(r"""\\([nrt"'\\])""")
_STACK_TRACE = re.compile(r"(\\n|\n)(\\t|\t)at ")


class Meaning(NamedTuple):
    """The error for each verdict."""

    kind: type[PartfileError]
    hint: str


MEANINGS = {
    Verdict.MISSING: Meaning(NotFound, ""),
    Verdict.TAKEN: Meaning(AlreadyExists, ""),
    Verdict.LEASED: Meaning(LeaseUnavailable, ""),
    Verdict.UNREADY: Meaning(
        NotReady,
        (
            "Wait until HDFS is out of safe mode and has an active NameNode, then do it again: hdfs dfsadmin -safemode "
            "get"
        ),
    ),
    Verdict.DENIED: Meaning(
        NotApplied,
        (
            "Give this user the permission: hdfs dfs -chmod u+rwx PATH; or log in: kinit -kt KEYTAB PRINCIPAL, or "
            "user=NAME or delegation_token=TOKEN in storage_options."
        ),
    ),
    Verdict.FULL: Meaning(
        NotApplied,
        (
            "Free space, raise the quota or add a DataNode, and start the job again. See what is free: hdfs dfs -count "
            "-q -h PATH; hdfs dfsadmin -report"
        ),
    ),
    Verdict.ERASURE_CODED: Meaning(
        NotApplied,
        "Erasure-coded files cannot be synced: hdfs ec -setPolicy -replicate -path BASE; the same for checkpoint_dir.",
    ),
    Verdict.BELOW_A_FILE: Meaning(
        NotApplied, "A file is where a directory must be. Move it, or take another path: hdfs dfs -mv FILE ELSEWHERE"
    ),
    Verdict.REFUSED: Meaning(
        NotApplied,
        f"HDFS never does this. What the base path must be: {page_url('HDFS', 'directories-of-other-kinds')}",
    ),
    Verdict.MISCONFIGURED: Meaning(
        ConfigError, "Check the URL, storage_options and what the client is told: export HADOOP_CONF_DIR=DIRECTORY"
    ),
    Verdict.LOST: Meaning(OutcomeUnknown, "Look at NameNode and network, then do it again: hdfs dfsadmin -report"),
    Verdict.UNKNOWN: Meaning(
        OutcomeUnknown, "Look at NameNode, DataNodes and network, then do it again: hdfs dfsadmin -report"
    ),
}


def verdict_of(error: Exception) -> Verdict:
    """The verdict on a call, from the exception of hdfs-native that ended it."""
    if isinstance(error, FileNotFoundError):
        return Verdict.MISSING
    if isinstance(error, FileExistsError):
        return Verdict.LEASED if "Failed to APPEND_FILE" in str(error) else Verdict.TAKEN
    if isinstance(error, OSError):
        return Verdict.LOST if str(error) == _BROKEN_CONNECTION else Verdict.UNKNOWN
    text = str(error)
    java = _JAVA_ERROR.match(text)
    if java is None:
        return _own_verdict(text)
    return verdict_of_java(java.group(1), text)


def verdict_of_java(simple_class_name: str, text: str) -> Verdict:
    """The verdict on a call, from the class of a NameNode's exception and, if need be, its words."""
    if simple_class_name == "IOException":
        return next((verdict for words, verdict in _PLAIN_IO_EXCEPTIONS if words in text), Verdict.UNKNOWN)
    if simple_class_name == "AccessControlException" and _NO_DIRECTORY in text:
        return Verdict.BELOW_A_FILE
    return _JAVA_CLASSES.get(simple_class_name, Verdict.UNKNOWN)


def _own_verdict(text: str) -> Verdict:
    if text == _UNREPORTED_BLOCK:
        return Verdict.UNREADY
    if _NOT_WHERE_ERASURE_CODED in text:
        return Verdict.ERASURE_CODED
    own = _OWN_ERROR.match(text)
    return _OWN_ERRORS.get(own.group(1), Verdict.UNKNOWN) if own else Verdict.UNKNOWN


def error_of(error: Exception, doing: str, path: str, *, reads: bool) -> PartfileError:
    """The error of ours for an exception of hdfs-native.

    Args:
        error: As it was raised.
        doing: What was tried, to follow "cannot".
        path: At fault.
        reads: Whether the call changes nothing, so that it did not happen whatever went wrong.

    Returns:
        NotApplied or one of its kinds where HDFS said that nothing happened, else OutcomeUnknown.
    """
    verdict = verdict_of(error)
    kind, hint = MEANINGS[verdict]
    if kind is OutcomeUnknown and reads:
        kind = NotApplied
    return kind(f"cannot {doing} {path!r}: {_first_line(error)}", hint=hint, path=path)


def timed_out(doing: str, path: str, timeout_s: float, *, reads: bool) -> PartfileError:
    """The error for a call that had not returned at its deadline; it may still be done."""
    kind = NotApplied if reads else OutcomeUnknown
    return kind(
        f"cannot {doing} {path!r}: HDFS has not answered within {timeout_s:g} s",
        hint=(
            "Look at NameNode, DataNodes and network: hdfs dfsadmin -report; or wait longer, with "
            "call_timeout_s=120 in storage_options."
        ),
        path=path,
    )


def _first_line(error: Exception) -> str:
    text = str(error)
    java = _JAVA_ERROR.match(text)
    if java is None:
        return _STACK_TRACE.split(text, maxsplit=1)[0].strip() or type(error).__name__
    # The rest is a quoted string, whose end goes with the stack trace.
    said = _STACK_TRACE.split(text[java.end() :], maxsplit=1)[0].removesuffix('")')
    return f"{java.group(1)}: {_ESCAPED.sub(_unescaped, said).strip()}"


def _unescaped(escaped: re.Match[str]) -> str:
    return " " if escaped.group(1) in "nrt" else escaped.group(1)
