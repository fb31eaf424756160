"""Check every invariant of a base, also while its sinks run; and say which files belong to which checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.cli.inspection.bases import is_of, read_base
from partfile.cli.inspection.chain_invariants import chain_findings
from partfile.cli.inspection.file_invariants import file_findings, moved_findings
from partfile.cli.inspection.findings import CheckpointFiles, VerifyReport, error, found_twice, note
from partfile.cli.inspection.option_names import in_words_of_a_command
from partfile.cli.inspection.places import odd_entries
from partfile.cli.inspection.presence import missing_parts
from partfile.cli.inspection.scan import all_files
from partfile.cli.inspection.seen_tree import read_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.cli.inspection.bases import SeenBase
    from partfile.cli.inspection.checksums import Compared
    from partfile.cli.inspection.findings import Finding
    from partfile.cli.inspection.knowledge import KnownPart
    from partfile.cli.inspection.places import Job, Place
    from partfile.cli.inspection.seen_tree import Tree
    from partfile.filesystems.errors import PartfileError
    from partfile.filesystems.port import Store


def verify(
    place: Place,
    base: Store,
    checkpoints: Store | None,
    uid: str | None,
    step: Callable[[int], None],
    *,
    checksums: bool = False,
) -> VerifyReport:
    """Check everything; what seems wrong is looked at a second time, since a running sink moves its parts.

    Args:
        place: Where it is.
        base: Its store of parts.
        checkpoints: Its store of checkpoints; None if there are none.
        uid: Only this sink; None is all, and what belongs to none.
        step: Told how many files more have been looked at.
        checksums: Also read what has a checksum, once; nothing of it changes while a sink runs.

    Raises:
        NotFound: There is no sink with this uid.
        StoreError: A store cannot be read.
    """
    seen, tree, findings = _look(place, base, checkpoints, uid, step)
    if any(finding.severity == "error" for finding in findings):
        first = findings
        seen, tree, findings = _look(place, base, checkpoints, uid, step)
        findings = found_twice(first, findings)
    compared = _compared(place, base, _of(seen, uid), step) if checksums else None
    findings += [] if compared is None else compared.findings
    return VerifyReport(
        base=place.base,
        checkpoints_at=place.checkpoint_url,
        jobs=tuple(chain.job.name for chain in seen.chosen(uid)),
        files=dict(sorted(tree.counts.items())),
        checkpoints=tuple(_files_of_checkpoints(seen, tree, uid)),
        checksums_compared=None if compared is None else compared.files,
        findings=tuple(sorted(findings, key=lambda finding: finding.severity)),
    )


def _look(
    place: Place, base: Store, checkpoints: Store | None, uid: str | None, step: Callable[[int], None]
) -> tuple[SeenBase, Tree, list[Finding]]:
    before = read_base(place, checkpoints, uid)
    # Without filtering: what belongs to no sink is told only where nobody asked for one.
    unread: list[str] = []
    files = (one for one in all_files(before, base, step, unread) if is_of(one.what.job, uid))
    tree = read_tree(files, before.known)
    after = read_base(place, checkpoints, uid)
    chosen = after.chosen(uid)
    findings = [finding for chain in chosen for finding in chain_findings(chain)]
    findings += [_stranger(chain.job, after.strangers[chain.job]) for chain in chosen if chain.job in after.strangers]
    findings += file_findings(tree, before.known, after.known, base)
    findings += moved_findings(_of(after, uid), tree, base.file_exists)
    current = [part for part in _of(before, uid) if part.is_current]
    missing = missing_parts(current, tree.sizes, base, checkpoints)
    findings += (_missing(part, tree.elsewhere.get(part.key)) for part in missing)
    findings += map(_unreadable, sorted(unread))
    findings += [] if uid is not None or checkpoints is None else map(_in_the_way, odd_entries(checkpoints))
    return after, tree, findings


def _compared(place: Place, base: Store, parts: list[KnownPart], step: Callable[[int], None]) -> Compared:
    # What opens files for reading loads half of pyarrow: nobody else waits for that.
    from partfile.cli.inspection.checksums import compare  # noqa: PLC0415

    return compare(place, base, parts, step)


def _of(seen: SeenBase, uid: str | None) -> list[KnownPart]:
    return [part for part in seen.known.parts.values() if is_of(part.job, uid)]


def _missing(part: KnownPart, found: str | None) -> Finding:
    hint = "Put it back; or give it up with recover --accept-missing, if a consumer moved it."
    if found is not None:
        directory = found.rpartition("/")[0] or "the base itself"
        hint = f"Moved: it lies in {directory!r}. Put it back at {part.handle.bucket or 'the base itself'!r}."
    return error(
        "part-missing",
        f"checkpoint {part.checkpoint_id} vouches for {part.handle.valid_length} bytes of it, and it is under none "
        "of its names",
        hint,
        path=part.lookup_path,
        job=part.job.name,
        checkpoint_id=part.checkpoint_id,
    )


def _stranger(job: Job, problem: PartfileError) -> Finding:
    return error(
        "of-another-base", in_words_of_a_command(problem.message), in_words_of_a_command(problem.hint), job=job.name
    )


def _unreadable(directory: str) -> Finding:
    hint = "Nothing is known of what is in it. If a sink writes there, run this as its user."
    return note("unreadable", "this user may not read the directory, so it was passed over", hint, path=directory)


def _in_the_way(name: str) -> Finding:
    text = f"{name!r} lies among the checkpoints and is no directory: no sink's, so it was passed over"
    return note("in-the-way", text, "Move it elsewhere if nobody needs it there.")


def _files_of_checkpoints(seen: SeenBase, tree: Tree, uid: str | None) -> Iterator[CheckpointFiles]:
    found: dict[tuple[str, int], list[str]] = {}
    for part in _of(seen, uid):
        if part.since is not None and not part.is_stage and not part.is_doubtful and part.path in tree.finished:
            found.setdefault((part.job.name, part.since), []).append(part.path)
    for (job, checkpoint_id), paths in sorted(found.items()):
        yield CheckpointFiles(job=job, checkpoint_id=checkpoint_id, files=tuple(sorted(paths)))
