"""What is known of the file systems that fsspec reaches: how each publishes, and what does not hold there.

A look at a server cannot prove that two who create one name at the same moment do not both succeed. So what is claimed
stands in this table, after the source of each client, and a probe can only take it back.

Sources: fsspec 2026.9.0, gcsfs 2026.10.1 (``ifGenerationMatch=0``), adlfs 2026.8.0 (``overwrite=False``),
paramiko 5.1.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """How a whole file gets a name, the best first."""

    LINK = "link"
    """A second name for a staged file: at once, and replacing nothing."""
    CREATE = "create"
    """The bytes are sent again on the condition that the name is free: at once, and replacing nothing."""
    RENAME = "rename"
    """A rename that replaces; so a look goes before it."""
    COPY = "copy"
    """A copy, or writing again, of which nothing is known; a look goes before and after it."""


MOVING = frozenset({Way.LINK, Way.RENAME})
"""Where a file gets another name by no copy."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """One file system of fsspec."""

    way: Way = Way.COPY
    package: str = ""
    """What has to be installed; empty where fsspec says it."""
    is_durable: bool = False
    """What was acknowledged survives power loss."""
    is_shared: bool = True
    """Other processes see the same files."""
    has_directories: bool = True
    """A directory is made before there are files in it, and stays when they are gone."""
    reserved: str = ""
    """Characters that its client does not take as part of a name."""
    threads: int = 1
    """Calls that a process does well to make at the same time."""


_GOOGLE = Scheme(Way.CREATE, "gcsfs", is_durable=True, has_directories=False, threads=8)
# adlfs takes what follows a question mark for the version of a blob, and drops it.
_AZURE = Scheme(Way.CREATE, "adlfs", is_durable=True, has_directories=False, reserved="?", threads=8)
_SSH = Scheme(Way.RENAME, "paramiko")
_UNKNOWN = Scheme()

_KNOWN = {
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
    "dir": Scheme(Way.LINK, is_shared=False),
    "gcs": _GOOGLE,
    "gs": _GOOGLE,
    "memory": Scheme(Way.CREATE, is_shared=False, has_directories=False),
    "sftp": _SSH,
    "smb": Scheme(Way.RENAME, "smbprotocol"),
    "ssh": _SSH,
}

_SAME_PLACE = {"abfss": "abfs", "az": "abfs", "gcs": "gs", "ssh": "sftp"}

_READ_ONLY = "it can only be read"
_ARCHIVE = "it is an archive, in which a file cannot get another name"
_CACHE = "it is a cache, which shows what is no longer so; write the URL behind it"
_NO_STORAGE = "it is no storage of its own; write the URL behind it"
_OWN = "partfile has a store of its own for it"
_REFUSED = {
    "adl": "Azure has shut it down; write abfs://container@account.dfs.core.windows.net/path",
    "arrow_hdfs": f"{_OWN}; write hdfs://",
    "async_wrapper": _NO_STORAGE,
    "asynclocal": f"{_OWN}; write file://",
    "asyncwrapper": _NO_STORAGE,
    "blockcache": _CACHE,
    "cached": _CACHE,
    "dask": _NO_STORAGE,
    "data": _READ_ONLY,
    "dvc": _READ_ONLY,
    "filecache": _CACHE,
    "generic": _NO_STORAGE,
    "gist": _READ_ONLY,
    "git": _READ_ONLY,
    "github": _READ_ONLY,
    "http": _READ_ONLY,
    "https": _READ_ONLY,
    "libarchive": _ARCHIVE,
    "local": f"{_OWN}; write file://",
    "pyscript": _NO_STORAGE,
    "reference": _READ_ONLY,
    "simplecache": _CACHE,
    "tar": _ARCHIVE,
    "wandb": _READ_ONLY,
    "zip": _ARCHIVE,
}


def scheme_named(name: str) -> Scheme:
    """What is known of the file system of a scheme; of one that is not in the table nothing is claimed."""
    return _KNOWN.get(name, _UNKNOWN)


def is_listed(name: str) -> bool:
    """Whether anything is known of a scheme."""
    return name in _KNOWN or name in _REFUSED


def why_refused(name: str) -> str | None:
    """Why no sink can write to the file systems of a scheme; None if one can."""
    return _REFUSED.get(name)


def canonical(name: str) -> str:
    """The one name of a scheme that has several."""
    return _SAME_PLACE.get(name, name)
