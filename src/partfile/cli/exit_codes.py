"""The exit codes of the command, and which of them an error ends it with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile import errors

if TYPE_CHECKING:
    from partfile.recovery.inspect.status import Problem

DONE = 0
FINDINGS = 1
USAGE = 2
UNREACHABLE = 3

_USAGE = (errors.ConfigError, errors.BucketValueError, errors.UnsupportedTypeError, errors.NotFound)
_REFUSED = (errors.AlreadyExists, errors.LeaseUnavailable)


def code_of(error: BaseException) -> int:
    """The exit code of a process that was ended by an error."""
    return _code_of_kind(type(error))


def code_of_problem(problem: Problem) -> int:
    """The same of an error as a report tells it."""
    return _code_of_kind(getattr(errors, problem.error, Exception))


def _code_of_kind(kind: type[BaseException]) -> int:
    if issubclass(kind, _USAGE):
        return USAGE
    if issubclass(kind, (errors.StoreError, errors.SourceError, OSError)) and not issubclass(kind, _REFUSED):
        return UNREACHABLE
    return FINDINGS
