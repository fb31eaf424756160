"""What ``partfile verify`` finds: each invariant that does not hold, and what is worth knowing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from partfile.cli.inspection.classification import FileKind
from partfile.cli.inspection.document import Json

if TYPE_CHECKING:
    from collections.abc import Iterable

Code = Literal[
    "of-another-base",
    "state-unreadable",
    "link-damaged",
    "link-of-another-chain",
    "chain-hole",
    "state-file",
    "name-beyond-counter",
    "name-twice",
    "published-early",
    "stage-published",
    "finished-length",
    "part-missing",
    "part-short",
    "checksum-differs",
    "part-unreadable",
    "sidecar-damaged",
    "sidecar-disagrees",
    "staged-name-of-finished",
    "stray-link",
    "leftover-checkpoint",
    "moved-away",
    "further-name",
    "lone-sidecar",
    "orphan",
    "temporary",
    "unknown-chain",
    "foreign",
    "unreadable",
    "in-the-way",
]

INVARIANTS: dict[Code, str] = {
    "of-another-base": "the checkpoints are of this base",
    "state-unreadable": "the state of the newest checkpoint can be read",
    "link-damaged": "every retained link can be read",
    "link-of-another-chain": "all links of a sink are of one chain",
    "chain-hole": "links follow each other without a hole",
    "state-file": "every state file that a link names is there, and its checksum holds",
    "name-beyond-counter": "no finished file has a number beyond the counter of its chain",
    "name-twice": "no two finished files have one number",
    "published-early": "no part that is still open, or still to be encoded, is finished",
    "stage-published": "no stage is a finished file",
    "finished-length": "a finished file has the length that its checkpoint vouches for",
    "part-missing": "every part or stage that the newest checkpoint names is under one of its names",
    "part-short": "every such part or stage has at least its valid length",
    "checksum-differs": "with `--checksums`: stages, and files that they were encoded into, hold what was written",
    "part-unreadable": "with `--checksums`: the store hands them out",
    "sidecar-damaged": "a sidecar holds a decimal number",
    "sidecar-disagrees": "a sidecar says what the checkpoint says, and no more than its file holds",
    "staged-name-of-finished": "no finished file has a staged name as well",
}
"""What a finding of severity ``error`` contradicts. The other codes are notes."""


class Finding(Json):
    """One thing that was found."""

    code: Code
    """Which invariant does not hold, or which kind of note it is."""
    severity: Literal["error", "note"]
    """A note is no damage: what crashes and people leave, and what a start mends by itself."""
    message: str
    """What was found."""
    hint: str = ""
    """What to do about it; may be empty."""
    job: str | None = None
    """Whose it is: a sink, or a writer ``uid~n``."""
    path: str | None = None
    """Relative to the base."""
    checkpoint_id: int | None = None
    """The checkpoint that it is about, or that vouches for the part."""

    @property
    def key(self) -> tuple[str, str | None, str | None, int | None]:
        """What makes it the same finding when it is found again."""
        return self.code, self.job, self.path, self.checkpoint_id


class CheckpointFiles(Json):
    """The finished files of one checkpoint, as far as retained checkpoints tell."""

    job: str
    """The sink, or the writer ``uid~n``."""
    checkpoint_id: int
    """The first checkpoint that promised them."""
    files: tuple[str, ...]
    """Their paths."""


class VerifyReport(Json):
    """What ``verify --json`` prints."""

    schema_name: Literal["partfile.verify"] = Field("partfile.verify", alias="schema")
    schema_version: Literal[1] = 1
    base: str
    """The base path as it was given."""
    checkpoints_at: str
    """Where its checkpoints are."""
    jobs: tuple[str, ...]
    """The sinks and writers that were checked."""
    files: dict[FileKind, int]
    """Number of files by kind."""
    checkpoints: tuple[CheckpointFiles, ...]
    """What retained checkpoints have finished and is there."""
    checksums_compared: int | None = None
    """With ``--checksums``: stages and encoded files that were read and compared; null without it."""
    findings: tuple[Finding, ...]
    """Errors first."""

    @property
    def errors(self) -> list[Finding]:
        """Those that contradict an invariant."""
        return [finding for finding in self.findings if finding.severity == "error"]


def error(code: Code, message: str, hint: str = "", **where: str | int | None) -> Finding:
    """An invariant that does not hold."""
    return Finding.model_validate({"code": code, "severity": "error", "message": message, "hint": hint, **where})


def note(code: Code, message: str, hint: str = "", **where: str | int | None) -> Finding:
    """Something worth knowing that is no damage."""
    return Finding.model_validate({"code": code, "severity": "note", "message": message, "hint": hint, **where})


def found_twice(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """The findings of a second look, without the errors that the first one did not have.

    While a sink runs, a part can be between two names at the instant when it is looked at; never twice the same part.
    """
    before = {finding.key for finding in first}
    return [finding for finding in second if finding.severity == "note" or finding.key in before]
