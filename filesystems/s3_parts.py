"""Settle and publish on S3 (S3, S5).

A handle lists the upload parts and side objects that make up the valid length, so there is nothing to cut: what anybody
added since is not listed. Publishing is one request, a PUT or the completion of the upload, which shows the whole file
or none. Whatever that request answers short of success, a HEAD decides: the file is there with our id and length, or it
is somebody else's, or it is not there. Any number of coordinators may do this at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import NotFound, PartDamaged, PartMissing, SnapshotCorrupt
from partfile.filesystems.part_errors import part_conflict, part_missing
from partfile.filesystems.s3_claims import win_claim
from partfile.filesystems.s3_completion import complete_part
from partfile.filesystems.s3_errors import RETRIED, UNCERTAIN, S3Failure, Verdict
from partfile.filesystems.s3_probe import learn_leaving_out
from partfile.filesystems.s3_sides import committed_bytes
from partfile.filesystems.s3_staging import PART_METADATA, S3Staging, part_id, side_path, staged_paths

if TYPE_CHECKING:
    from partfile.filesystems.port import PartHandle
    from partfile.filesystems.s3_access import S3Access
    from partfile.filesystems.s3_garbage import Garbage

_GONE = "its upload is gone, and no finished file is there"
_BROKEN_FOR_S = 10.0
"""How long a server that has answered 500 is believed to be busy with what is gone."""
_LIFECYCLE = "Perhaps a lifecycle rule of the S3 bucket aborted the upload; see docs/S3.md."


def settle_part(access: S3Access, handle: PartHandle) -> PartHandle:
    """See to it that nobody goes on from this handle, and that the part can be published; see ``PartStore.settle``."""
    staging = _staging_of(handle)
    if _is_finished(access, handle):
        return handle
    for side in staging.sides:
        if access.head(side_path(side.name)) is None and not _is_finished(access, handle):
            raise part_missing(handle, f"side object {access.shown(side_path(side.name))!r} is gone")
    if staging.upload and not access.upload_is_open(_path(handle), staging.upload) and not _is_finished(access, handle):
        raise part_missing(handle, f"{_GONE}. {_LIFECYCLE}")
    # Who has won it before may go on writing, into objects that this handle does not list.
    win_claim(access, handle, staging.claims)
    return handle


def publish_part(access: S3Access, garbage: Garbage, handle: PartHandle) -> None:
    """Make a part finished; see ``PartStore.publish``."""
    staging = _staging_of(handle)
    if not _conditions_hold(access, staging) and _is_finished(access, handle):
        garbage.add(staged_paths(handle, staging))
        return
    backoff, grace = Backoff(access.options.call_timeout_s), Backoff(_BROKEN_FOR_S)
    uncertain: S3Failure | None = None
    while True:
        try:
            if staging.upload is None:
                _put(access, handle, staging)
            else:
                complete_part(access, handle, staging, staging.upload)
        except (PartMissing, PartDamaged):
            # Its staged objects go when it is finished.
            if not _is_finished(access, handle):
                raise
        except S3Failure as failure:
            uncertain = failure if failure.verdict in UNCERTAIN else uncertain
            if not _is_finished(access, handle):
                if uncertain and uncertain.verdict is Verdict.BROKEN and not grace.left_s:
                    _check_hope(access, handle, staging, uncertain)
                # A completion that nobody waits for any more may go on, while its upload is not open any more.
                if (failure.verdict in RETRIED or uncertain) and backoff.pause():
                    continue
                _check_hope(access, handle, staging, uncertain or failure)
                raise (uncertain or failure).as_error("publish", access.shown(_path(handle)), reads=False) from failure
        garbage.add(staged_paths(handle, staging))
        return


def part_goes_back(access: S3Access, handle: PartHandle) -> bool:
    """Whether a part can be published as this handle has it; see ``PartStore.goes_back``."""
    staging = S3Staging.of(handle)
    if staging is None or any(access.head(side_path(side.name)) is None for side in staging.sides):
        return False
    if staging.upload is None:
        return True
    try:
        received = access.received_pieces(_path(handle), staging.upload)
    except NotFound:
        return False
    # What later versions have sent cannot be taken back; the last number that is named replaces what was sent under it.
    end = staging.next_number + len(staging.tail)
    return all(piece.number < end for piece in received) or learn_leaving_out(access)


def part_is_staged(access: S3Access, handle: PartHandle) -> bool:
    """Whether the upload and the side objects of a part are there; see ``PartStore.is_staged``."""
    staging = S3Staging.of(handle)
    if staging is None:
        return False
    if staging.upload is not None and not access.upload_is_open(_path(handle), staging.upload):
        return False
    return all(access.head(side_path(side.name)) is not None for side in staging.sides)


def _path(handle: PartHandle) -> str:
    return handle.path_of(handle.name)


def _staging_of(handle: PartHandle) -> S3Staging:
    staging = S3Staging.of(handle)
    if staging is None:
        raise part_missing(handle, "it was never created on S3")
    if staging.size_bytes != handle.valid_length:
        raise SnapshotCorrupt(
            f"part {_path(handle)!r} is made of {staging.size_bytes} bytes, the checkpoint says {handle.valid_length}",
            path=_path(handle),
        )
    return staging


def _conditions_hold(access: S3Access, staging: S3Staging) -> bool:
    traits = access.traits
    return (traits.completes if staging.upload else traits.puts) is not False


def _is_finished(access: S3Access, handle: PartHandle) -> bool:
    """Whether the finished file is there and ours.

    Raises:
        CommitConflict: It is there, and is another one.
    """
    found = access.head(_path(handle))
    if found is None:
        return False
    if found.metadata.get(PART_METADATA) != part_id(handle):
        raise part_conflict(handle, f"an object of {found.size} bytes is there that is not this part")
    if found.size != handle.valid_length:
        raise part_conflict(handle, f"it is there with {found.size} bytes, the checkpoint says {handle.valid_length}")
    return True


def _put(access: S3Access, handle: PartHandle, staging: S3Staging) -> None:
    data = committed_bytes(access, handle, staging.sides)
    access.put_finished_once(_path(handle), data, {PART_METADATA: part_id(handle)})


def _check_hope(access: S3Access, handle: PartHandle, staging: S3Staging, failure: S3Failure) -> None:
    """Raise PartMissing if a part that is not finished cannot be any more; some servers answer 500 to that.

    Where a completion was not answered it may be done yet: that part is only owed.
    """
    if staging.upload is not None and failure.verdict in {Verdict.MISSING, Verdict.BROKEN}:
        is_open = failure.verdict is Verdict.BROKEN and access.upload_is_open(_path(handle), staging.upload)
        # Completed by somebody else between the two looks, it is finished.
        if not is_open and not _is_finished(access, handle):
            raise part_missing(handle, f"{_GONE}. {_LIFECYCLE}") from failure
