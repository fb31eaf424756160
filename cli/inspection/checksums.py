"""Whether stages and encoded files hold the bytes that were written: each is read whole, and its CRC-32 compared.

The valid bytes of either never change, so a sink may be running; what has moved on meanwhile is passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from partfile.cli.inspection.content import open_known
from partfile.cli.inspection.findings import Finding, error, note
from partfile.filesystems.checksums import crc32_of
from partfile.filesystems.errors import NotFound, NotReady, PartDamaged, PartMissing, RecoveryRefused, StoreError
from partfile.recovery.opening import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from fsspec import AbstractFileSystem

    from partfile.cli.inspection.knowledge import KnownPart
    from partfile.cli.inspection.places import Place
    from partfile.filesystems.port import Store

_AT_ONCE_BYTES = 1 << 20


class Compared(NamedTuple):
    """What comparing has shown."""

    files: int
    """How many stages and files were read to their end."""
    findings: tuple[Finding, ...]


def compare(place: Place, base: Store, parts: Iterable[KnownPart], step: Callable[[int], None]) -> Compared:
    """Read every stage and file whose checksum is known, and compare it.

    What is missing or too short is told elsewhere, and on S3 a file that waits for its publication is in an upload that
    nobody can read. One that cannot be read is told, and the others are compared.

    Args:
        place: Where the base is.
        base: The store of the parts.
        parts: What checkpoints name.
        step: Told how many files more have been read.

    Raises:
        ConfigError: Nothing can read from there, for want of a package.
    """
    files, findings = 0, list[Finding]()
    behind, root = open_for_reading(place.base, place.storage_options)
    for part in parts:
        if part.crc32 is None or part.is_doubtful:
            continue
        try:
            found = _read(base, behind, root, part)
        except (StoreError, OSError) as problem:
            # Another one's may be read all the same.
            found = _unread(part, problem)
        if isinstance(found, int):
            files += 1
            step(1)
            found = _judged(part, found)
        findings += [] if found is None else [found]
    return Compared(files, tuple(findings))


def _read(base: Store, behind: AbstractFileSystem, root: str, part: KnownPart) -> int | Finding | None:
    """The CRC-32 of a part, or what is to be told instead; None if it cannot have one here, or has moved on."""
    try:
        return _crc32_of(base.open_stage(part.handle) if part.is_stage else open_known(behind, root, part))
    except (RecoveryRefused, NotFound, FileNotFoundError):
        return None
    except PartMissing as problem:
        # A file may have been moved away; a stage that is there has lost bytes.
        return _differs(part, problem.message) if part.is_stage and base.is_staged(part.handle) else None
    except PartDamaged as problem:
        return _differs(part, problem.message)


def _judged(part: KnownPart, found: int) -> Finding | None:
    if found == part.crc32:
        return None
    says = f"checkpoint {part.checkpoint_id} says {part.crc32:08x}"
    return _differs(part, f"its {part.handle.valid_length} bytes have the CRC-32 {found:08x}, and {says}")


def _crc32_of(opened: Any) -> int:
    crc32 = 0
    with opened as file:
        while data := file.read(_AT_ONCE_BYTES):
            crc32 = crc32_of(data, crc32)
    return crc32


def _differs(part: KnownPart, what: str) -> Finding:
    hint = "A disk, a copy or somebody changed it: put it back from a copy."
    if part.is_stage:
        hint += " No start encodes it as it is; without a copy see docs/RUNBOOK.md."
    return error(
        "checksum-differs",
        what,
        hint,
        path=part.lookup_path,
        job=part.job.name,
        checkpoint_id=part.checkpoint_id,
    )


def _unread(part: KnownPart, problem: StoreError | OSError) -> Finding:
    said, hint = (problem.message, problem.hint) if isinstance(problem, StoreError) else (str(problem), "")
    text = f"its checksum was not compared: {said}"
    if isinstance(problem, NotReady):
        return note("unreadable", text, hint, path=part.lookup_path, job=part.job.name)
    # Nobody misses a stage that only older checkpoints name.
    make = error if part.is_current or not part.is_stage else note
    hint = hint or "Run it again, as the user of the sink; if that says the same, look after the disk or the store."
    where: dict[str, str | int] = {"path": part.lookup_path, "job": part.job.name, "checkpoint_id": part.checkpoint_id}
    return make("part-unreadable", text, hint, **where)
