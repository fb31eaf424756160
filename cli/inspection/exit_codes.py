"""What a process ends with: 0 done, 1 findings, 2 usage, 3 storage; and which error means which. Pure."""

from __future__ import annotations

from partfile.filesystems.errors import (
    AlreadyExists,
    BucketValueError,
    ConfigError,
    LeaseUnavailable,
    NotFound,
    StoreError,
    UnsupportedTypeError,
)

DONE = 0
FINDINGS = 1
USAGE = 2
UNREACHABLE = 3
INTERRUPTED = 130
"""As shells have it: 128 and the number of SIGINT."""
PIPE_CLOSED = 141
"""Likewise for SIGPIPE: whoever read the output has gone, as ``head`` does."""

MEANINGS = {
    DONE: "nothing to do, or done",
    FINDINGS: "there are findings, or what was asked for is refused",
    USAGE: "the command cannot be used as given: an unknown option, a path, uid or part that is not there",
    UNREACHABLE: "the store cannot be reached, refuses, or does not answer in time",
    INTERRUPTED: "interrupted from the keyboard",
    PIPE_CLOSED: "the reader of the output has gone",
}
"""What each code says, for the documentation."""

_USAGE = (ConfigError, BucketValueError, UnsupportedTypeError, NotFound)
_REFUSED = (AlreadyExists, LeaseUnavailable)


def code_of(error: BaseException) -> int:
    """What a process ends with that was ended by an error."""
    if isinstance(error, _USAGE):
        return USAGE
    if isinstance(error, StoreError | OSError) and not isinstance(error, _REFUSED):
        return UNREACHABLE
    return FINDINGS
