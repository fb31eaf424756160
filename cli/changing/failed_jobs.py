"""The jobs that a verb leaves as they are, each with what is wrong with it: no reason to leave the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from partfile.cli.inspection.document import Json
from partfile.cli.inspection.exit_codes import code_of
from partfile.cli.inspection.status import Problem

if TYPE_CHECKING:
    from partfile.cli.inspection.places import Job
    from partfile.filesystems.errors import PartfileError


class FailedJob(Json):
    """A job that was left, wholly or in part."""

    job: str
    """The uid, or ``uid~n`` for writer n."""
    problem: Problem
    """Why."""
    exit_code: int
    """What the process ends with because of it, unless that of another job is higher."""

    @classmethod
    def of(cls, job: Job, error: PartfileError) -> Self:
        """What there is to say of a job that an error ended."""
        return cls(job=job.name, problem=Problem.of(error), exit_code=code_of(error))
