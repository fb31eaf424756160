"""What has to hold of a chain of links and of the state files that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.cli.inspection.findings import error, note
from partfile.cli.inspection.strays import doubtful_ids, holes, is_deletion, stray_ids
from partfile.filesystems.errors import SnapshotError
from partfile.snapshot import layout
from partfile.snapshot.model import FileHandle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.cli.inspection.chains import SeenChain, SeenLink
    from partfile.cli.inspection.findings import Finding


def chain_findings(chain: SeenChain) -> Iterator[Finding]:
    """Check one chain; reads every state file that its links name.

    Raises:
        StoreError: The store cannot be read.
    """
    if chain.problem is not None:
        yield error("state-unreadable", chain.problem.message, chain.problem.hint, job=chain.job.name)
    yield from _link_findings(chain)
    doubtful = doubtful_ids(chain)
    for seen in chain.links:
        # The files of one that never counted may have gone with the one that did.
        if seen.checkpoint_id not in doubtful:
            yield from _state_findings(chain, seen)


def _link_findings(chain: SeenChain) -> Iterator[Finding]:
    """Check what the links say of each other. Pure."""
    job, newest = chain.job.name, chain.links[-1].checkpoint_id if chain.links else 0
    for seen in chain.links:
        if seen.problem is not None:
            hint = seen.problem.hint or "Put the file back from a copy; older links than the newest only serve you."
            yield error("link-damaged", seen.problem.message, hint, job=job, checkpoint_id=seen.checkpoint_id)
    # A first link that never counted is of a chain of its own.
    older = [seen.link for seen in chain.links[:-1] if seen.link is not None and seen.link.predecessor is not None]
    chains = {link.chain_id for link in [*older, chain.links[-1].link if chain.links else None] if link is not None}
    if len(chains) > 1:
        yield error("link-of-another-chain", f"links of {len(chains)} chains lie together", "One was copied.", job=job)
    yield from _stray_findings(chain)
    for number in chain.lost_ids:
        if number < newest:
            text = f"of checkpoint {number} only the directory is left"
            yield note("leftover-checkpoint", text, "It is no checkpoint any more.", job=job, checkpoint_id=number)


def _stray_findings(chain: SeenChain) -> Iterator[Finding]:
    """Find links that never counted, and holes that only a hand can have made. Pure."""
    job = chain.job.name
    for number in sorted(stray_ids(chain)):
        text = f"checkpoint {number} never counted: the one after it names another predecessor"
        yield note("stray-link", text, "It does no harm; it goes with retention.", job=job, checkpoint_id=number)
    for before, after in holes(chain):
        older, missing = before.checkpoint_id, after.checkpoint_id - before.checkpoint_id - 1
        text = f"{missing} checkpoints are missing between {older} and {after.checkpoint_id}"
        if is_deletion(before, after):
            hint = "Somebody deleted them. A start goes on from the newest, and needs none of them."
            yield error("chain-hole", text, hint, job=job, checkpoint_id=older)
        else:
            hint = "The older one is of a coordinator that was fenced: it does no harm, and the next start deletes it."
            yield note("stray-link", text, hint, job=job, checkpoint_id=older)


def _state_findings(chain: SeenChain, seen: SeenLink) -> Iterator[Finding]:
    """Check the files that one link names, unless they go with it meanwhile."""
    if seen.link is None:
        return
    for handle in seen.link.handles():
        try:
            chain.storage.read_bytes(handle)
        except SnapshotError as problem:
            if not chain.storage.store.file_exists(chain.storage.path(layout.metadata_path(seen.checkpoint_id))):
                return
            path = handle.path if isinstance(handle, FileHandle) else None
            yield error(
                "state-file",
                problem.message,
                problem.hint or "Put the file back from a copy.",
                job=chain.job.name,
                path=None if path is None else chain.storage.path(path),
                checkpoint_id=seen.checkpoint_id,
            )
