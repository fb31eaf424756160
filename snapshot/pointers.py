"""What a user names when resuming from a snapshot: a directory or the ``_metadata`` in it, as a path or URL."""

from __future__ import annotations

from dataclasses import dataclass

from partfile.filesystems.errors import ConfigError
from partfile.snapshot import layout


@dataclass(frozen=True, slots=True)
class Pointer:
    """Where a snapshot lies."""

    parent: str
    """URL or path of the directory that its directory is in."""
    directory: str
    """The name of its directory."""

    @property
    def checkpoint_id(self) -> int | None:
        """The id, if it is the directory of a checkpoint."""
        return layout.checkpoint_id_of(self.directory)


def pointer_to(location: str) -> Pointer:
    """Split the location of a snapshot; both ``DIR`` and ``DIR/_metadata`` mean the snapshot in DIR.

    Raises:
        ConfigError: It names no directory.
    """
    path = location.rstrip("/")
    parent, slash, name = path.rpartition("/")
    if name == layout.METADATA:
        parent, slash, name = parent.rstrip("/").rpartition("/")
    if not slash:
        parent = "."
    if not name or name in {".", ".."} or parent.endswith(":/"):
        raise ConfigError(
            f"{location!r} does not name the directory of a savepoint or a checkpoint",
            hint="Give its path or URL, with or without /_metadata at the end.",
        )
    return Pointer(parent or "/", name)
