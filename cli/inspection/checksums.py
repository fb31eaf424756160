"""Whether stages and encoded files hold the bytes that were written: each is read whole, and its CRC-32 compared.

The valid bytes of either never change, so a sink may be running; what has moved on meanwhile is passed over.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from partfile.cli.inspection.content import open_known
from partfile.cli.inspection.findings import Finding, error, note
from partfile.filesystems.errors import NotReady, PartDamaged, PartMissing, RecoveryRefused
from partfile.recovery.opening import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
    nobody can read.

    Args:
        place: Where the base is.
        base: The store of the parts.
        parts: What checkpoints name.
        step: Told how many files more have been read.

    Raises:
        StoreError: The store cannot be read.
    """
    files, findings = 0, list[Finding]()
    behind, root = open_for_reading(place.base, place.storage_options)
    for part in parts:
        if part.crc32 is None or part.is_doubtful:
            continue
        try:
            found = _crc32_of(base.open_stage(part.handle) if part.is_stage else open_known(behind, root, part))
        except RecoveryRefused:
            continue
        except PartMissing as problem:
            # A file may have been moved away; a stage that is there has lost bytes.
            findings += [_differs(part, problem.message)] if part.is_stage and base.is_staged(part.handle) else []
            continue
        except PartDamaged as problem:
            findings.append(_differs(part, problem.message))
            continue
        except NotReady as problem:
            findings.append(_unread(part, problem))
            continue
        files += 1
        step(1)
        if found != part.crc32:
            says = f"checkpoint {part.checkpoint_id} says {part.crc32:08x}"
            length = part.handle.valid_length
            findings.append(_differs(part, f"its {length} bytes have the CRC-32 {found:08x}, and {says}"))
    return Compared(files, tuple(findings))


def _crc32_of(opened: Any) -> int:
    crc32 = 0
    with opened as file:
        while data := file.read(_AT_ONCE_BYTES):
            crc32 = zlib.crc32(data, crc32)
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


def _unread(part: KnownPart, problem: NotReady) -> Finding:
    text = f"its checksum was not compared: {problem.message}"
    return note("unreadable", text, problem.hint, path=part.lookup_path, job=part.job.name)
