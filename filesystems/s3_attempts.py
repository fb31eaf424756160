"""One call of S3: its attempts, each in its turn and with its deadline, and what becomes of it when they fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import PartfileError
from partfile.filesystems.s3_client import GivenUp, NoTurn
from partfile.filesystems.s3_errors import RETRIED, UNCERTAIN, S3Failure, Verdict, failure_of
from partfile.filesystems.s3_process import this_process

if TYPE_CHECKING:
    from collections.abc import Callable

    from partfile.filesystems.s3_options import S3Options

Result = TypeVar("Result")
_SHORTEST_ATTEMPT_S = 0.2
_TELLING = {Verdict.MISSING, Verdict.TAKEN}
"""What is true whatever an earlier attempt may have done."""


def patiently(options: S3Options, work: Callable[[], Result], as_error: Callable[[S3Failure], PartfileError]) -> Result:
    """Do a call, again and again after growing pauses while that may help, up to its deadline.

    Args:
        options: The deadlines.
        work: One request.
        as_error: What to raise for the failure that counts.

    Raises:
        PartfileError: It failed for good, or the deadline has passed.
    """
    backoff = Backoff(options.call_timeout_s)
    unanswered: S3Failure | None = None
    while True:
        try:
            return _attempt(options, work, backoff, options.attempt_timeout_s)
        except S3Failure as failure:
            if failure.verdict in UNCERTAIN:
                unanswered = failure
            # An attempt without time would only put "no answer" in the place of what the server says.
            if failure.verdict in RETRIED and backoff.pause() and backoff.left_s > _SHORTEST_ATTEMPT_S:
                continue
            # What an earlier attempt may have done is not undone by a later one that was turned away.
            told = unanswered if unanswered and failure.verdict not in _TELLING else failure
            raise as_error(told) from failure


def once(options: S3Options, work: Callable[[], Result], timeout_s: float) -> Result:
    """Do a call by a single attempt, whose failure the caller judges.

    Args:
        options: How many requests may be under way.
        work: The request.
        timeout_s: Longest time without anything moving, in seconds.

    Raises:
        S3Failure: It failed.
    """
    return _attempt(options, work, Backoff(timeout_s), timeout_s)


def verdict_of(error: PartfileError) -> Verdict | None:
    """What the last attempt of a call came to; None if it failed before any."""
    return error.__cause__.verdict if isinstance(error.__cause__, S3Failure) else None


def _attempt(options: S3Options, work: Callable[[], Result], backoff: Backoff, timeout_s: float) -> Result:
    try:
        with this_process().client(options).turn(backoff, timeout_s):
            return work()
    except NoTurn:
        text = f"{options.max_parallel_requests} other requests are under way, and none gets on"
        raise S3Failure(Verdict.BUSY, text) from None
    except GivenUp:
        text = f"nothing moved for {timeout_s:.3g} s, or until the deadline"
        raise S3Failure(Verdict.UNANSWERED, text) from None
    except PartfileError:
        raise
    except Exception as error:
        raise failure_of(error) from error
