"""What a reader sees in a listing: finished files, each as long as its sidecar says. Pure."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from partfile.filesystems.errors import ConfigError, PartMissing, SnapshotCorrupt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

HIDING = ("_", ".")
MAX_SIDECAR_BYTES = 20
_LENGTH = re.compile(rb"0|[1-9][0-9]{0,18}")


def is_hidden(path: str) -> bool:
    """Whether a path relative to the base is staged, a sidecar or state: a segment of it begins with ``_`` or ``.``."""
    return any(segment.startswith(HIDING) for segment in path.split("/"))


@dataclass(frozen=True, slots=True)
class SidecarNaming:
    """How the sidecar of a finished file is named and what it holds.

    Once a part is published nothing records the affixes of its sidecar, so a reader knows the default ones and those it
    is told. Another form of sidecar is another class with these two methods.

    Args:
        prefix: The sink's ``valid_length_prefix``.
        suffix: The sink's ``valid_length_suffix``.

    Raises:
        ConfigError: The prefix would not hide the sidecar.
    """

    prefix: str = "_"
    suffix: str = ".valid-length"

    def __post_init__(self) -> None:
        if not self.prefix.startswith(HIDING):
            raise ConfigError(
                f"prefix={self.prefix!r} hides no sidecar", hint="Pass the valid_length_prefix of the sink's naming."
            )

    def sidecar_of(self, path: str) -> str:
        """The path of the sidecar that a finished file would have."""
        directory, name = posixpath.split(path)
        return posixpath.join(directory, f"{self.prefix}{name}{self.suffix}")

    def length_in(self, content: bytes, sidecar: str) -> int:
        """The valid length in the content of a sidecar: plain ASCII decimal.

        Args:
            content: The whole file.
            sidecar: Its path, for the message.

        Returns:
            The length in bytes.

        Raises:
            SnapshotCorrupt: The content is not what a sink writes.
        """
        if not _LENGTH.fullmatch(content):
            raise SnapshotCorrupt(
                f"sidecar {sidecar!r} says {content[:MAX_SIDECAR_BYTES]!r}, which is no length in bytes",
                hint="It must hold a decimal number alone. Without it nobody knows where its file ends; put it back "
                "from a copy.",
                path=sidecar,
            )
        return int(content)


DEFAULT_SIDECARS = SidecarNaming()


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A finished file of a listing."""

    path: str
    size: int
    """Of the file as stored, in bytes."""
    sidecar: str | None
    """Path of its sidecar, where it has one."""


def finished_files(
    seen: Iterable[tuple[str, int]], names_after: Collection[str], naming: SidecarNaming
) -> Iterator[ListedFile]:
    """The finished files of a listing, each with its sidecar.

    A sidecar is created before the final name of its file, so a listing that begins after the name was seen shows it;
    the listing that showed the name may have passed the sidecar's place before it was there.

    Args:
        seen: Paths relative to the base with sizes in bytes, of files of any kind.
        names_after: All paths of a listing that began after that.
        naming: How sidecars are named.
    """
    for path, size in seen:
        if not is_hidden(path):
            sidecar = naming.sidecar_of(path)
            yield ListedFile(path, size, sidecar if sidecar in names_after else None)


def readable_bytes(file: ListedFile, valid_length: int | None) -> int:
    """How many bytes of a finished file count.

    Args:
        file: The file.
        valid_length: What its sidecar says, in bytes; None if it has none.

    Raises:
        PartMissing: The file is shorter than its valid length.
    """
    if valid_length is None:
        return file.size
    if valid_length > file.size:
        raise part_too_short(file.path, file.size, valid_length)
    return valid_length


def part_too_short(path: str, size: int, valid_length: int) -> PartMissing:
    """The error for a part that ends before its valid length."""
    return PartMissing(
        f"{path!r} has {size} bytes, and {valid_length} were committed: data is missing",
        hint="Somebody cut or replaced the file; put it back from a copy.",
        path=path,
    )
