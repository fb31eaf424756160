"""The log of files that Spark's own file sink has committed: ``_spark_metadata``, format v1. Pure.

Batch N is the file ``N``, or ``N.compact``, which holds every batch up to N as well. A line is a file with its absolute
URL. Follows ``FileStreamSinkLog`` of Spark 4.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from partfile.filesystems.errors import SnapshotCorrupt, SnapshotVersionError
from partfile.snapshot.codec import decode_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOG_DIRECTORY = "_spark_metadata"
MAX_LOG_BYTES = 1 << 30
_BATCH = re.compile(r"(0|[1-9][0-9]{0,17})(\.compact)?")
_HEADER = re.compile(rb"v([1-9][0-9]{0,8})")
_VERSION = 1


class SparkFile(BaseModel):
    """One line of the log; fields that say nothing here are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    path: str
    """Absolute URL, escaped as in a URL."""
    size: int = Field(ge=0)
    """In bytes."""
    modification_time: int = Field(alias="modificationTime")
    """In milliseconds since the epoch."""
    action: Literal["add", "delete"]


@dataclass(frozen=True, slots=True)
class SparkLog:
    """What the log says."""

    files: Mapping[str, SparkFile]
    """Committed files by the paths of their URLs, which begin with ``/``."""
    newest_batch: int
    is_compacted: bool
    """Whether older entries were rewritten, which is when Spark forgets those beyond its ``retention``."""


def log_files(names: Iterable[str]) -> list[str]:
    """The files that together are the whole log, the oldest first.

    Args:
        names: Everything in the directory.

    Raises:
        SnapshotCorrupt: There is none, or one in the middle is missing.
    """
    found = [match for match in map(_BATCH.fullmatch, names) if match]
    compact = max((int(match[1]) for match in found if match[2]), default=-1)
    later = sorted(int(match[1]) for match in found if not match[2] and int(match[1]) > compact)
    expected = list(range(compact + 1, compact + 1 + len(later)))
    if later != expected or (compact < 0 and not later):
        missing = sorted(set(range(compact + 1, max(later, default=0) + 1)) - set(later))
        raise SnapshotCorrupt(
            f"the log {LOG_DIRECTORY} is not whole: batches {missing[:10]} are missing",
            hint="Without them nobody knows which files are committed. Put them back from a copy.",
            path=LOG_DIRECTORY,
        )
    first = [f"{compact}.compact"] if compact >= 0 else []
    return first + [str(number) for number in later]


def read_log(contents: Mapping[str, bytes]) -> SparkLog:
    """Put the log together.

    Args:
        contents: The files of ``log_files`` by their names, in their order.

    Raises:
        SnapshotCorrupt: One is damaged.
        SnapshotVersionError: One has a newer format.
    """
    files: dict[str, SparkFile] = {}
    for name, data in contents.items():
        for entry in _entries(data, f"{LOG_DIRECTORY}/{name}"):
            path = _path_of(entry.path, name)
            if entry.action == "add":
                files[path] = entry
            else:
                files.pop(path, None)
    newest = max(int(name.removesuffix(".compact")) for name in contents)
    return SparkLog(files, newest, is_compacted=any(name.endswith(".compact") for name in contents))


def _path_of(url: str, name: str) -> str:
    try:
        return unquote(urlsplit(url).path)
    except ValueError as error:
        path = f"{LOG_DIRECTORY}/{name}"
        raise SnapshotCorrupt(f"{path} names {url!r}, which is no URL", path=path) from error


def _entries(data: bytes, path: str) -> Iterable[SparkFile]:
    header, *lines = data.split(b"\n")
    match = _HEADER.fullmatch(header)
    if match is None:
        raise SnapshotCorrupt(f"{path} does not begin with the version of a log of Spark's", path=path)
    if int(match[1]) > _VERSION:
        raise SnapshotVersionError(f"{path} has version {int(match[1])}; this partfile reads {_VERSION}", path=path)
    return [decode_model("line of Spark's log", SparkFile, line, path) for line in lines if line]
