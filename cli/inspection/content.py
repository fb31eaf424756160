"""The bytes of one part that count, wherever it is in its life."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partfile.cli.inspection.classification import classify
from partfile.filesystems.errors import NotFound, RecoveryRefused
from partfile.filesystems.opening import path_inside
from partfile.filesystems.relative_paths import check_relative_path
from partfile.recovery.opening import open_for_reading
from partfile.recovery.readable_files import ReadableFile, open_readable
from partfile.recovery.valid_length_filesystem import ValidLengthFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fsspec import AbstractFileSystem

    from partfile.cli.inspection.bases import SeenBase
    from partfile.cli.inspection.knowledge import Knowledge, KnownPart
    from partfile.cli.inspection.places import Place


def path_below(place: Place, part: str) -> str:
    """The path of a part below the base, as it was named: relative to the base, or in full.

    Raises:
        ConfigError: It is elsewhere.
    """
    is_full = part.startswith("/") or "://" in part
    inside = path_inside(part, place.base, place.storage_options) if is_full else None
    # As find prints them.
    return check_relative_path("/".join(inside) if inside is not None else part.removeprefix("./"))


@dataclass(frozen=True, slots=True)
class ValidBytes:
    """An open part that ends where its valid bytes do."""

    file: Any
    path: str
    """The final path of the part, which tells its format and compression; of a stage its own."""
    stage_length: int | None = None
    """Valid length in bytes if it is not in that format yet, but a stage."""
    stage_crc32: int | None = None
    """Of a stage, where it is known."""
    stage_format: str | None = None
    """Of a stage, what it is encoded in, where a retained checkpoint says it."""


@contextmanager
def open_valid(place: Place, seen: SeenBase, path: str) -> Iterator[ValidBytes]:
    """Open the valid bytes of a part, under whichever name it has now, for as long as a block lasts.

    Args:
        place: Where its base is.
        seen: What the checkpoints say.
        path: Any name of it, relative to the base: final, in-progress or pending.

    Raises:
        NotFound: There is no such file.
        RecoveryRefused: No checkpoint vouches for a byte of it, or its bytes are in no file yet, as on S3; a stage can
            be read there too.
        PartMissing: It is under none of its names, or shorter than its valid length.
        SnapshotCorrupt: Its sidecar is damaged.
        StoreError: It cannot be read, for instance because somebody holds it open on HDFS.
    """
    known = seen.known.named(path)
    if known is not None and not (known.is_current or path != known.path):
        known = None
    if known is not None and known.is_stage:
        with place.open_base() as store, store.open_stage(known.handle) as file:
            stage = known.handle.path_of(known.handle.in_progress)
            yield ValidBytes(file, stage, known.handle.valid_length, known.crc32, _format_of(seen.known, stage, known))
        return
    valid = _opened(place, seen, path, known)
    with valid.file:
        yield valid


def _format_of(known: Knowledge, path: str, stage: KnownPart) -> str | None:
    """What a stage is encoded in; a spent one says it no more, but the older checkpoints that need it do."""
    named = known.parts.get(path, stage) if stage.stage is None else stage
    return None if named.stage is None else str(named.stage.recipe.get("format"))


def _opened(place: Place, seen: SeenBase, path: str, known: KnownPart | None) -> ValidBytes:
    """The valid bytes of what is no stage, by any name, or by that of a known part."""
    behind, base = open_for_reading(place.base, place.storage_options)
    if known is not None:
        return ValidBytes(open_known(behind, base, known), known.path)
    if classify(path, seen.known).kind in {"orphan", "temporary"}:
        raise RecoveryRefused(
            f"no retained checkpoint vouches for a byte of {path!r}",
            hint="It is an orphan: a task died before its bytes counted, and wrote them again elsewhere.",
            path=path,
        )
    file_system = ValidLengthFileSystem(behind, base, sidecars=seen.known.sidecars[0])
    try:
        return ValidBytes(file_system.open(f"{base}/{path}", "rb"), path)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise NotFound(
            f"{path!r} is no finished file below the base, and no part that a retained checkpoint names",
            hint="partfile list shows what there is.",
            path=path,
        ) from error


def open_known(behind: AbstractFileSystem, base: str, part: KnownPart) -> Any:
    """Open the valid bytes of a part that a checkpoint names and that is no stage, under the name that it has now.

    Args:
        behind: The file system that shows every file.
        base: The base path in it.
        part: The part.

    Raises:
        RecoveryRefused: They are in no file yet, as on S3.
        PartMissing: It is under none of its names, or shorter than its valid length.
        StoreError: It cannot be read.
    """
    names = (*part.staged_paths, part.path)
    if not part.is_file and not behind.exists(f"{base}/{part.path}"):
        raise RecoveryRefused(
            f"the bytes of {part.path!r} are in no file before it is published",
            hint="On S3 they are in an upload, which nobody can read. The next start of the sink publishes it.",
            path=part.path,
        )
    return open_readable(behind, base, ReadableFile(part.path, part.handle.valid_length, names))
