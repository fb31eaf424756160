"""Names inside a job's directory: ``chk-N/_metadata``, ``_published`` and ``_released``, ``shared``, ``taskowned``."""

from __future__ import annotations

import re

from partfile.filesystems.tokens import TOKEN_HEX_DIGITS

SHARED = "shared"
TASK_OWNED = "taskowned"
MAX_CHECKPOINT_ID = 10**15
"""Beyond what any job reaches; a name may have more digits, so that a made-up one is seen and refused."""
MAX_IDS_AHEAD = 1000
"""Ids beyond the newest link that may be triggered, and that the next start may have to close."""
METADATA = "_metadata"
PUBLISHED = "_published"
RELEASED = "_released"
_STATE_FILE = re.compile(rf"[0-9a-f]{{{TOKEN_HEX_DIGITS}}}\.state")
_TEMPORARY = re.compile(rf"_tmp\.[0-9a-f]{{{TOKEN_HEX_DIGITS}}}")
_CHECKPOINT = re.compile(r"chk-([1-9][0-9]{0,17})")


def checkpoint_directory(checkpoint_id: int) -> str:
    """The directory of one checkpoint, relative to the job's."""
    return f"chk-{checkpoint_id}"


def metadata_path(checkpoint_id: int) -> str:
    """The file whose creation completes the checkpoint."""
    return f"{checkpoint_directory(checkpoint_id)}/{METADATA}"


def published_path(checkpoint_id: int) -> str:
    """The file that says that every part of the checkpoint has its final name."""
    return f"{checkpoint_directory(checkpoint_id)}/{PUBLISHED}"


def released_path(checkpoint_id: int) -> str:
    """The file that says that whoever created the link has let go of the chain."""
    return f"{checkpoint_directory(checkpoint_id)}/{RELEASED}"


def state_path(directory: str, token: str) -> str:
    """A state file of a directory; the token keeps rivals apart, who share the directory of the next checkpoint."""
    return below(directory, f"{token}.state")


def is_state_file(name: str) -> bool:
    """Whether a file is called as those with state are."""
    return bool(_STATE_FILE.fullmatch(name))


def is_temporary(name: str) -> bool:
    """Whether a file is called as those are that somebody is about to give their names."""
    return bool(_TEMPORARY.fullmatch(name))


def checkpoint_id_of(name: str) -> int | None:
    """The id in a directory name, or None if the name is something else's."""
    match = _CHECKPOINT.fullmatch(name)
    return int(match.group(1)) if match else None


def below(directory: str, name: str) -> str:
    """A path inside a directory; an empty directory is the base itself."""
    return f"{directory}/{name}" if directory else name
