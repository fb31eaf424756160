"""Names of part files: ``{prefix}-{chain}-{subtask}-{count}{suffix}`` and its staged forms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from partfile.filesystems.port import PartHandle
from partfile.filesystems.relative_paths import check_relative_path
from partfile.sink.options import Options

if TYPE_CHECKING:
    from collections.abc import Container

HIDING_PREFIXES = ("_", ".")


@dataclass(frozen=True, slots=True)
class PartNumber:
    """What makes a final name unique under a base path."""

    chain: str
    """8 hexadecimal digits made with the first checkpoint of the chain."""
    subtask: int
    count: int
    """The part counter: one beyond the committed union maximum, then upwards (S4)."""


_NUMBER = re.compile(r"(?=-([0-9a-f]{8})-([0-9]{1,9})-([0-9]{1,18})(?![0-9]))")
"""A look ahead, since what a prefix ends with may look like a chain, too."""


def numbers_in(name: str) -> list[PartNumber]:
    """Everything in a name that can be what makes a part unique, whatever its affixes, hidden or not."""
    return [PartNumber(match[1], int(match[2]), int(match[3])) for match in _NUMBER.finditer(name)]


def number_in(name: str, chains: Container[str]) -> PartNumber | None:
    """What the name of a finished file says if it is a part of one of these chains; else None.

    Args:
        name: The name, without its directory.
        chains: Ids of chains.
    """
    if name.startswith(HIDING_PREFIXES):
        return None
    return next((number for number in numbers_in(name) if number.chain in chains), None)


def with_mark(name: str, mark: str) -> str:
    """A name with something behind what makes it unique, which still says the same number."""
    found = [match.end(3) for match in _NUMBER.finditer(name)]
    at = found[-1] if found else len(name)
    return name[:at] + mark + name[at:]


class PartNaming(Options):
    """Affixes of part files. The defaults hide every staged file from Spark, Hive, Trino and pyarrow datasets."""

    part_prefix: str = "part"
    """Start of every final name; must not hide the file."""
    part_suffix: str | None = None
    """End of every final name; None takes the suffix of the format, compression included."""
    in_progress_prefix: str = "_"
    """Start of the name of a part that is being written; must hide the file: begin with ``_`` or ``.``."""
    in_progress_suffix: str = ".in-progress"
    """End of the name of a part that is being written."""
    pending_prefix: str = "_"
    """Start of the name of a closed part that waits for its checkpoint; must hide the file."""
    pending_suffix: str = ".pending"
    """End of the name of a closed part that waits for its checkpoint."""
    valid_length_prefix: str = "_"
    """Start of the name of a sidecar; must hide the file."""
    valid_length_suffix: str = ".valid-length"
    """End of the name of a sidecar."""

    @model_validator(mode="after")
    def _names_keep_their_meaning(self) -> Self:
        for field in ("in_progress_prefix", "pending_prefix", "valid_length_prefix"):
            if not getattr(self, field).startswith(HIDING_PREFIXES):
                raise ValueError(
                    f"{field}={getattr(self, field)!r} would show unfinished files to readers; begin it with '_' or "
                    "'.', a suffix alone hides nothing"
                )
        if not self.part_prefix or self.part_prefix.startswith(HIDING_PREFIXES):
            raise ValueError(f"part_prefix={self.part_prefix!r} would hide finished files; begin it with a letter")
        part = self.handle("", PartNumber("0" * 8, 0, 0), suffix="", token="0" * 32)
        names = (part.name, part.in_progress, part.pending, part.sidecar)
        if len(set(names)) < len(names):
            raise ValueError("in-progress, pending and valid-length files need affixes that differ")
        for name in names:
            check_relative_path(name)
        return self

    def handle(self, bucket: str, number: PartNumber, *, suffix: str, token: str) -> PartHandle:
        """Name a new part.

        Args:
            bucket: Its bucket, relative to the base.
            number: What makes its final name unique.
            suffix: The format's suffix, used unless ``part_suffix`` is set.
            token: 128 random bits drawn by this attempt, for its staged names.
        """
        end = suffix if self.part_suffix is None else self.part_suffix
        final = f"{self.part_prefix}-{number.chain}-{number.subtask}-{number.count}{end}"
        return PartHandle(
            bucket=bucket,
            name=final,
            in_progress=f"{self.in_progress_prefix}{final}.{token}{self.in_progress_suffix}",
            pending=f"{self.pending_prefix}{final}.{token}{self.pending_suffix}",
            sidecar=f"{self.valid_length_prefix}{final}{self.valid_length_suffix}",
            valid_length=0,
        )
