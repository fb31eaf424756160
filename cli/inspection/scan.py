"""What every file below a base is, in numbers, with examples. Lists the whole tree."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from partfile.cli.inspection.bases import is_of
from partfile.cli.inspection.classification import FileKind, classified
from partfile.cli.inspection.document import Json
from partfile.cli.inspection.presence import current_parts, missing_parts
from partfile.filesystems.errors import DirectoriesUnreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.cli.inspection.bases import SeenBase
    from partfile.cli.inspection.classification import ClassifiedFile
    from partfile.filesystems.metadata_port import MetadataStore
    from partfile.filesystems.port import Store, StoredFile

MAX_EXAMPLES = 20


class KindTotal(Json):
    """The files of one kind."""

    files: int
    """Number of files."""
    bytes: int
    """Of all of them, as stored."""
    examples: tuple[str, ...]
    """The first paths that were seen; ``partfile list`` shows all."""


class ScanReport(Json):
    """What a listing of the whole tree shows."""

    kinds: dict[FileKind, KindTotal]
    """Only kinds that were found."""
    is_complete: bool
    """Whether every retained checkpoint could be read. If not, what looks like an orphan may be a part that counts."""
    unreadable: tuple[str, ...] = ()
    """Directories that this user may not read: what is in them is not known."""
    missing: tuple[str, ...]
    """Final paths of parts that the newest checkpoint vouches for and that are under none of their names."""


def scan(
    seen: SeenBase, base: Store, checkpoints: MetadataStore | None, uid: str | None, step: Callable[[int], None]
) -> ScanReport:
    """Classify every file below the base.

    Args:
        seen: What the checkpoints said before.
        base: The store of the parts.
        checkpoints: That of the checkpoints; asked again if a part seems to be missing.
        uid: Only files of this sink; None is all, foreign ones included.
        step: Told how many files more have been looked at.

    Raises:
        StoreError: A store cannot be read.
    """
    files: Counter[FileKind] = Counter()
    sizes: Counter[FileKind] = Counter()
    examples: dict[FileKind, list[str]] = {}
    parts = current_parts(seen, uid)
    wanted = {path for part in parts for path in part.all_paths}
    found: set[str] = set()
    unread: list[str] = []
    for one in all_files(seen, base, step, unread):
        if one.file.path in wanted:
            found.add(one.file.path)
        if not is_of(one.what.job, uid):
            continue
        kind = one.what.kind
        files[kind] += 1
        sizes[kind] += one.file.size
        if len(examples.setdefault(kind, [])) < MAX_EXAMPLES:
            examples[kind].append(one.file.path)
    return ScanReport(
        kinds={
            kind: KindTotal(files=count, bytes=sizes[kind], examples=tuple(examples[kind]))
            for kind, count in sorted(files.items())
        },
        is_complete=seen.known.is_complete,
        unreadable=tuple(sorted(unread)),
        missing=tuple(part.path for part in missing_parts(parts, found, base, checkpoints)),
    )


def all_files(
    seen: SeenBase, base: Store, step: Callable[[int], None], unread: list[str], directory: str = ""
) -> Iterator[ClassifiedFile]:
    """Every file below a directory of the base with what it is, as the listing yields them; sidecars last.

    Args:
        seen: What the checkpoints say.
        base: The store of the parts.
        step: Told how many files more have been looked at.
        unread: Gets the directories that this user may not read; they are passed over.
        directory: Only what is below this one.
    """
    return classified(_counted(readable_files(base, unread, directory), step), seen.known, base.file_exists)


def readable_files(base: Store, unread: list[str], directory: str = "") -> Iterator[StoredFile]:
    """Every file below a directory of the base; directories that this user may not read are told and passed over."""
    try:
        yield from base.list(directory)
    except DirectoriesUnreadable as error:
        unread += error.directories


def _counted(files: Iterator[StoredFile], step: Callable[[int], None]) -> Iterator[StoredFile]:
    for file in files:
        step(1)
        yield file
