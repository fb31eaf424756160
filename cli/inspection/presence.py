"""Which parts that have to be there are not, looked for while they may be moving on to their next name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.cli.inspection.chains import read_chain
from partfile.cli.inspection.knowledge import parts_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from partfile.cli.inspection.bases import SeenBase
    from partfile.cli.inspection.knowledge import KnownPart
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.filesystems.port import Store

_LOOKS = 2
"""A part that moves between two looks is under a later name at the second."""


def missing_parts(
    parts: Iterable[KnownPart], seen_paths: Collection[str], base: Store, checkpoints: MetadataStore | None
) -> list[KnownPart]:
    """The parts that are under none of their names, and that the checkpoints still name after that was seen.

    Args:
        parts: Those that have to be there.
        seen_paths: Those of their paths that a listing has shown.
        base: The store of the parts.
        checkpoints: That of the checkpoints.

    Raises:
        StoreError: A store cannot be read.
    """
    candidates = [part for part in parts if not _is_seen(part, seen_paths)]
    gone = [part for part in candidates if not _is_there(part, base)]
    if not gone or checkpoints is None:
        return gone
    still = {_key(part) for job in {part.job for part in gone} for part in _current(checkpoints, gone, job.name)}
    return [part for part in gone if _key(part) in still]


def current_parts(seen: SeenBase, uid: str | None) -> list[KnownPart]:
    """The parts of the chosen sinks that have to be there."""
    jobs = {chain.job for chain in seen.chosen(uid)}
    return [part for part in seen.known.current if part.job in jobs]


def _is_seen(part: KnownPart, seen_paths: Collection[str]) -> bool:
    return any(path in seen_paths for path in part.all_paths)


def _key(part: KnownPart) -> tuple[str, str]:
    # A stage and the file that it has been encoded into have one final path.
    return part.path, part.handle.in_progress


def _is_there(part: KnownPart, base: Store) -> bool:
    if part.is_stage:
        return base.is_staged(part.handle)
    if base.file_exists(part.path):
        return True
    if not part.is_file:
        return base.is_staged(part.handle) or base.file_exists(part.path)
    return any(base.is_staged(part.handle) or base.file_exists(part.path) for _ in range(_LOOKS))


def _current(checkpoints: MetadataStore, gone: Sequence[KnownPart], name: str) -> list[KnownPart]:
    (job,) = {part.job for part in gone if part.job.name == name}
    chain = read_chain(checkpoints, job)
    if chain.newest is None:
        return []
    found = parts_of(chain, chain.newest.link.checkpoint_id, chain.newest.state)
    return [part for part in found if part.is_current]
