"""From what s3fs raises to the tree of errors: the one table of the S3 store.

s3fs makes an OSError of what the server answered and keeps the answer as its cause; the code in it decides. Errors of
the network arrive as they are and are told apart by their class. A 200 whose body is an error arrives as a 500.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from partfile.errors import AlreadyExists, ConfigError, NotApplied, NotFound, OutcomeUnknown, PartfileError, page_url


class Verdict(Enum):
    """The outcome of a request, as its error tells it."""

    MISSING = auto()
    """There is no such object, or no such upload."""
    TAKEN = auto()
    """The precondition failed: something is under the key."""
    CONFLICT = auto()
    """Another request for the key is under way; this one was not done."""
    BUSY = auto()
    """The server turned the request away for the time being."""
    UNREACHABLE = auto()
    """The connection failed or ended early. s3fs retries a PUT silently and reports a late reset as a refused
    connection, so the request may have been done."""
    BROKEN = auto()
    """The server failed, before or after doing it."""
    UNANSWERED = auto()
    """The reply was lost, or is late."""
    DENIED = auto()
    """These credentials may not."""
    NO_BUCKET = auto()
    """There is no such S3 bucket, at this moment or at all."""
    INVALID_PARTS = auto()
    """The upload parts that a completion names are not what the server has, or make no file."""
    REFUSED = auto()
    """The server will never do this."""
    UNSUPPORTED = auto()
    """The server does not know how to do this, or not under that condition."""
    MISCONFIGURED = auto()
    """The client cannot even try."""
    UNKNOWN = auto()
    """Anything else."""


UNCERTAIN = frozenset({Verdict.UNREACHABLE, Verdict.BROKEN, Verdict.UNANSWERED, Verdict.UNKNOWN})
"""Verdicts on a request that may have been done, or may yet be."""

RETRIED = frozenset({Verdict.CONFLICT, Verdict.BUSY, Verdict.UNREACHABLE, Verdict.BROKEN, Verdict.UNANSWERED})
"""Verdicts on which the same request is sent again."""

_CODES = {
    "NoSuchKey": Verdict.MISSING,
    "NoSuchUpload": Verdict.MISSING,
    "NoSuchLifecycleConfiguration": Verdict.MISSING,
    "InvalidPart": Verdict.INVALID_PARTS,
    "InvalidPartOrder": Verdict.INVALID_PARTS,
    "EntityTooSmall": Verdict.INVALID_PARTS,
    "PreconditionFailed": Verdict.TAKEN,
    "ConditionalRequestConflict": Verdict.CONFLICT,
    "OperationAborted": Verdict.CONFLICT,
    "SlowDown": Verdict.BUSY,
    "ServiceUnavailable": Verdict.BUSY,
    "Throttling": Verdict.BUSY,
    "ThrottlingException": Verdict.BUSY,
    "RequestLimitExceeded": Verdict.BUSY,
    "TooManyRequests": Verdict.BUSY,
    "InternalError": Verdict.BROKEN,
    "NotImplemented": Verdict.UNSUPPORTED,
    "RequestTimeout": Verdict.UNANSWERED,
    "AccessDenied": Verdict.DENIED,
    "ExpiredToken": Verdict.DENIED,
    "InvalidToken": Verdict.DENIED,
    "InvalidAccessKeyId": Verdict.DENIED,
    "SignatureDoesNotMatch": Verdict.DENIED,
    "RequestTimeTooSkewed": Verdict.DENIED,
    "NoSuchBucket": Verdict.NO_BUCKET,
    "InvalidBucketName": Verdict.MISCONFIGURED,
    "PermanentRedirect": Verdict.MISCONFIGURED,
    "AuthorizationHeaderMalformed": Verdict.MISCONFIGURED,
}

_STATUSES = {
    403: Verdict.DENIED,
    404: Verdict.MISSING,
    409: Verdict.CONFLICT,
    412: Verdict.TAKEN,
    429: Verdict.BUSY,
    501: Verdict.UNSUPPORTED,
    503: Verdict.BUSY,
}
"""For codes that are not in the table; HEAD has no body, and so no other code than the status."""

_CLASSES = {
    "EndpointConnectionError": Verdict.UNREACHABLE,
    "ConnectTimeoutError": Verdict.UNREACHABLE,
    "ProxyConnectionError": Verdict.UNREACHABLE,
    "ReadTimeoutError": Verdict.UNANSWERED,
    "ConnectionClosedError": Verdict.UNANSWERED,
    "ResponseStreamingError": Verdict.UNANSWERED,
    "IncompleteReadError": Verdict.UNANSWERED,
    "IncompleteRead": Verdict.UNANSWERED,
    "HTTPClientError": Verdict.UNANSWERED,
    "ResponseParserError": Verdict.UNANSWERED,
    "ClientPayloadError": Verdict.UNANSWERED,
    "ServerDisconnectedError": Verdict.UNANSWERED,
    "ClientOSError": Verdict.UNANSWERED,
    "ClientConnectionError": Verdict.UNANSWERED,
    "FlexibleChecksumError": Verdict.UNANSWERED,
    "AioConnectionClosedError": Verdict.UNANSWERED,
    "NoCredentialsError": Verdict.DENIED,
    "PartialCredentialsError": Verdict.DENIED,
    "CredentialRetrievalError": Verdict.DENIED,
    "TokenRetrievalError": Verdict.DENIED,
    "ProfileNotFound": Verdict.MISCONFIGURED,
    "ParamValidationError": Verdict.MISCONFIGURED,
    "InvalidRegionError": Verdict.MISCONFIGURED,
    "SSLError": Verdict.MISCONFIGURED,
}
_SERVER_FAILED, _CLIENT_FAILED = 500, 400


class _Meaning(NamedTuple):
    kind: type[PartfileError]
    hint: str


_MEANINGS = {
    Verdict.MISSING: _Meaning(NotFound, ""),
    Verdict.TAKEN: _Meaning(AlreadyExists, ""),
    Verdict.CONFLICT: _Meaning(
        NotApplied, "Another program writes to the same key. See who may: aws s3api get-bucket-policy --bucket BUCKET"
    ),
    Verdict.BUSY: _Meaning(
        NotApplied,
        (
            "The server throttles: ask less of it at once, with max_parallel_requests=8 in storage_options; or spread "
            "the prefix."
        ),
    ),
    Verdict.UNREACHABLE: _Meaning(
        OutcomeUnknown,
        (
            "Look at endpoint_url, region, network and proxy: aws s3 ls s3://BUCKET; or wait longer, with "
            "call_timeout_s=120 in storage_options."
        ),
    ),
    Verdict.BROKEN: _Meaning(OutcomeUnknown, "Look at the server, then do it again: aws s3 ls s3://BUCKET"),
    Verdict.UNANSWERED: _Meaning(
        OutcomeUnknown,
        (
            "Look at endpoint_url, server and network: aws s3 ls s3://BUCKET; or wait longer, with call_timeout_s=120 "
            "in storage_options."
        ),
    ),
    Verdict.DENIED: _Meaning(
        NotApplied,
        "Check credentials, policy and this host's clock; storage_options of a base go to its own S3 bucket alone. "
        f"What the policy must allow: {page_url('S3', 'permissions')}",
    ),
    Verdict.NO_BUCKET: _Meaning(
        NotApplied, "Check URL, region and endpoint_url, or create the S3 bucket: aws s3 mb s3://BUCKET"
    ),
    Verdict.INVALID_PARTS: _Meaning(
        NotApplied,
        (
            "Another program writes to the same upload. See which there are: aws s3api list-multipart-uploads --bucket "
            "BUCKET"
        ),
    ),
    Verdict.REFUSED: _Meaning(
        NotApplied,
        f"Check acl, storage_class, encryption and checksum in storage_options: {page_url('S3', 'set-up')}",
    ),
    Verdict.UNSUPPORTED: _Meaning(
        NotApplied, f"What a server has to offer: {page_url('S3', 'what-each-server-guarantees')}"
    ),
    Verdict.MISCONFIGURED: _Meaning(
        ConfigError, "Check the URL, and region=NAME and endpoint_url=URL in storage_options."
    ),
    Verdict.UNKNOWN: _Meaning(OutcomeUnknown, "Look at server and network, then do it again: aws s3 ls s3://BUCKET"),
}


class S3Failure(Exception):
    """One attempt at a request has failed. Never leaves the S3 store: it becomes an error of the tree."""

    def __init__(self, verdict: Verdict, text: str) -> None:
        super().__init__(text)
        self.verdict = verdict
        self.text = text

    def as_error(self, doing: str, path: str, *, reads: bool) -> PartfileError:
        """The error of the tree.

        Args:
            doing: What was tried, to follow "cannot".
            path: At fault.
            reads: Whether the request changes nothing, so that it did not happen whatever went wrong.
        """
        kind, hint = _MEANINGS[self.verdict]
        if kind is OutcomeUnknown and reads:
            kind = NotApplied
        return kind(f"cannot {doing} {path!r}: {self.text}", hint=hint, path=path)


def failure_of(error: Exception) -> S3Failure:
    """The verdict on a request, from the exception of s3fs that ended it."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict) and isinstance(response.get("Error"), dict):
            return _answered(response)
    for kind in type(error).__mro__:
        if kind.__name__ in _CLASSES:
            return S3Failure(_CLASSES[kind.__name__], _text(error))
    verdict = Verdict.UNANSWERED if isinstance(error, TimeoutError | ConnectionError) else Verdict.UNKNOWN
    return S3Failure(verdict, _text(error))


def _answered(response: dict[str, dict[str, object]]) -> S3Failure:
    code = str(response["Error"].get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    verdict = _CODES.get(code) or _STATUSES.get(status if isinstance(status, int) else 0)
    if verdict is None and isinstance(status, int):
        # An error in the body of a 200 has a code of its own, and nothing else that would tell.
        is_broken = status >= _SERVER_FAILED or status < _CLIENT_FAILED
        verdict = Verdict.BROKEN if is_broken else Verdict.REFUSED
    message = str(response["Error"].get("Message") or "no message")
    return S3Failure(verdict or Verdict.UNKNOWN, f"{code} ({status}): {message}")


def _text(error: Exception) -> str:
    return str(error).splitlines()[0].strip() if str(error).strip() else type(error).__name__
