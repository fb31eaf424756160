"""What has to hold of the files below a base, by what the checkpoints said before and after they were listed.

A sink may be running: what was finished after the first reading is judged by the second, and what had to be there by
the first is looked for again before it is missed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from partfile.cli.inspection.findings import Finding, error, note
from partfile.cli.inspection.scan import readable_files
from partfile.filesystems.errors import FileTooLarge, NotFound, SnapshotCorrupt
from partfile.recovery.layout import DEFAULT_SIDECARS, MAX_SIDECAR_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from partfile.cli.inspection.classification import Classified, FileKind
    from partfile.cli.inspection.findings import Code
    from partfile.cli.inspection.knowledge import Knowledge, KnownPart
    from partfile.cli.inspection.seen_tree import Tree
    from partfile.filesystems.port import Store

_LITTER: dict[FileKind, tuple[Code, str]] = {
    "orphan": (
        "orphan",
        "a crash left it, or a sink has just begun it; partfile clean removes it once it is older than --older-than",
    ),
    "temporary": ("temporary", "a crash left it; partfile clean removes it"),
    "lone-sidecar": ("lone-sidecar", "its part was moved away without it"),
    "unknown-chain": ("unknown-chain", "called like a part, of a chain that no checkpoint here knows"),
    "foreign": ("foreign", "no file of a sink here; readers that list the base read it if its name does not hide it"),
}


def file_findings(tree: Tree, before: Knowledge, after: Knowledge, base: Store) -> Iterator[Finding]:
    """Check a listing. Reads sidecars, and nothing else.

    Args:
        tree: What it has shown.
        before: What the checkpoints said before it.
        after: What they said after it.
        base: The store of the parts.

    Raises:
        StoreError: The store cannot be read.
    """
    yield from _name_findings(tree, after)
    lengths = {}
    for final, what in tree.sidecars.items():
        length = _sidecar_length(base, what)
        if isinstance(length, Finding):
            yield length
        elif length is not None:
            lengths[final] = length
    yield from _length_findings(tree, lengths, after)
    yield from _sidecar_findings(tree, lengths, after, base)
    yield from _short_findings(tree, before, after)
    yield from _identity_findings(tree)
    yield from _litter_findings(tree)


def _name_findings(tree: Tree, after: Knowledge) -> Iterator[Finding]:
    for what in tree.beyond:
        chain = after.chains.get(what.number.chain) if what.number is not None else None
        if what.number is not None and (chain is None or what.number.count > chain.max_count):
            counter = "?" if chain is None else chain.max_count
            yield error(
                "name-beyond-counter",
                f"number {what.number.count} is beyond the counter {counter} of its chain",
                "Something else made it, or a newer checkpoint was lost.",
                path=what.path,
                job=_job(what),
            )
    for what, stage in tree.early:
        now = after.parts.get(stage.key)
        if now is not None and now.is_current and now.is_stage:
            yield error(
                "published-early",
                f"it is finished, and checkpoint {now.checkpoint_id} still has its rows in a shared stage",
                "Something else made it: move it away before the sink finishes the file of this bucket.",
                path=what.path,
                job=_job(what),
                checkpoint_id=now.checkpoint_id,
            )
    for what in tree.twice:
        yield error(
            "name-twice",
            "another finished file has the same chain, subtask and number",
            "Somebody copied or moved one of them: their rows may come twice.",
            path=what.path,
            job=_job(what),
        )
    for path, what in tree.finished.items():
        part = after.parts.get(path)
        if part is not None and part.is_current and (part.is_stage or part.state == "in-progress"):
            where = "its rows in a stage" if part.is_stage else "it open"
            yield error(
                "published-early",
                f"it is finished, and checkpoint {part.checkpoint_id} still has {where}",
                "Something else made it: move it away before the sink finishes the part.",
                path=path,
                job=_job(what),
                checkpoint_id=part.checkpoint_id,
            )


def _length_findings(tree: Tree, lengths: dict[str, int], after: Knowledge) -> Iterator[Finding]:
    for path, what in tree.finished.items():
        part = after.parts.get(path)
        if part is None or part.is_doubtful or part.is_stage or (part.is_current and part.state == "in-progress"):
            continue
        size, valid = tree.sizes[path], part.handle.valid_length
        # Of a part that was open when it was last named it is only known how long it was then.
        is_right = (
            size == valid or (path in lengths and size >= valid) or (part.state == "in-progress" and size > valid)
        )
        if not is_right:
            yield error(
                "finished-length",
                f"it has {size} bytes, and checkpoint {part.checkpoint_id} vouches for {valid}",
                "Somebody changed it: put it back from a copy.",
                path=path,
                job=_job(what),
                checkpoint_id=part.checkpoint_id,
            )


def _sidecar_findings(tree: Tree, lengths: dict[str, int], after: Knowledge, base: Store) -> Iterator[Finding]:
    if not lengths:
        return
    # Listed again, since a finished file may have been seen before its sidecar was known to be of interest.
    sizes = {file.path: file.size for file in readable_files(base, []) if file.path in lengths}
    for final, length in lengths.items():
        what, part, size = tree.sidecars[final], after.parts.get(final), sizes.get(final)
        is_closed = part is not None and not part.is_stage and part.state != "in-progress"
        is_promised = part is not None and is_closed and not part.is_doubtful
        promised = part.handle.valid_length if part is not None and is_promised else length
        if (size is not None and length > size) or promised != length:
            holds = f", its file has {size}" if size is not None else ""
            yield error(
                "sidecar-disagrees",
                f"it says {length} bytes{holds}, and {promised} were promised",
                "Somebody changed one of them: put it back from a copy.",
                path=what.path,
                job=_job(what),
            )


def _sidecar_length(base: Store, what: Classified) -> int | Finding | None:
    try:
        return DEFAULT_SIDECARS.length_in(base.read_file(what.path, MAX_SIDECAR_BYTES), what.path)
    except NotFound:
        return None
    except (SnapshotCorrupt, FileTooLarge) as problem:
        return error("sidecar-damaged", problem.message, problem.hint, path=what.path, job=_job(what))


def _short_findings(tree: Tree, before: Knowledge, after: Knowledge) -> Iterator[Finding]:
    for part in before.current:
        later = after.parts.get(part.key)
        if not part.is_file or later is None or not later.is_current:
            continue
        sizes = [tree.sizes[path] for path in part.all_paths if path in tree.sizes]
        size, valid = max(sizes, default=None), part.handle.valid_length
        if size is not None and size < valid:
            yield error(
                "part-short",
                f"it has {size} bytes, and checkpoint {part.checkpoint_id} vouches for {valid}",
                "Data is missing: somebody cut it, or the disk lost it. Put it back from a copy.",
                path=part.lookup_path,
                job=part.job.name,
                checkpoint_id=part.checkpoint_id,
            )


def _identity_findings(tree: Tree) -> Iterator[Finding]:
    for names in tree.identities.values():
        finished = [what for what in names if what.kind == "finished"]
        staged = [what for what in names if what.kind in {"staged", "orphan"}]
        for what in finished:
            if not staged:
                text = "the file has a further name, made by somebody else; whoever writes there changes it"
                yield note("further-name", text, path=what.path, job=_job(what))
        for what in staged if finished else ():
            is_owed = what.part is not None and what.part.is_current and what.part.state != "in-progress"
            text = f"it is the same file as the finished {finished[0].path!r}"
            if what.part is not None and what.part.is_stage:
                hint = "Somebody linked it: no reader can read a stage. Delete the other name."
                yield error("stage-published", text, hint, path=what.path, job=_job(what))
                continue
            make, hint = (note, "The next start drops it.") if is_owed else (error, "Delete this name, not the other.")
            yield make("staged-name-of-finished", text, hint, path=what.path, job=_job(what))


def _litter_findings(tree: Tree) -> Iterator[Finding]:
    for kind, some in tree.litter.items():
        code, text = _LITTER[kind]
        more = tree.counts[kind] - len(some)
        for place, what in enumerate(some):
            rest = f"; and {more} more of the kind" if more and place == len(some) - 1 else ""
            yield note(code, f"{text}{rest}", path=what.path, job=_job(what))


def moved_findings(known: Iterable[KnownPart], tree: Tree, is_there: Callable[[str], bool]) -> Iterator[Finding]:
    """The parts that a published checkpoint finished and that are not there any more: consumers may move them."""
    for part in known:
        if part.is_current or part.is_doubtful or part.is_stage or part.state == "in-progress":
            continue
        if part.path not in tree.finished:
            if is_there(part.path):
                continue
            text = (
                f"checkpoint {part.checkpoint_id} finished it, and it is not there: a consumer moved it, or it is lost"
            )
            yield note("moved-away", text, path=part.path, job=part.job.name, checkpoint_id=part.checkpoint_id)


def _job(what: Classified) -> str | None:
    return None if what.job is None else what.job.name
