"""Trees of Spark's own file sink: its log ``_spark_metadata`` (format v1), and what becomes of each file. Pure.

Batch N is the file ``N``, or ``N.compact``, which holds every batch up to N as well. A line is a file with its absolute
URL. Follows ``FileStreamSinkLog`` of Spark 4.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field

from partfile.errors import RecoveryRefused, SnapshotCorrupt, SnapshotVersionError
from partfile.readers.files import is_hidden
from partfile.recovery.adopt.plan import NOT_COMMITTED, AdoptedItem, AdoptionPlan, FileTotal, within
from partfile.snapshot.documents import decode_model

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from partfile.recovery.adopt.plan import AdoptionOptions, StoreAbilities
    from partfile.stores.base import StoredFile


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
    """In milliseconds since 1970."""
    action: Literal["add", "delete"]


@dataclass(frozen=True, slots=True)
class SparkLog:
    """The content of Spark's log of committed files."""

    files: Mapping[str, SparkFile]
    """Committed files by the paths of their URLs, which begin with ``/``."""
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
            hint=f"Without them it is unknown which files are committed. Put them back: cp BACKUP/* {LOG_DIRECTORY}/",
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
    return SparkLog(files, is_compacted=any(name.endswith(".compact") for name in contents))


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


_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_PART = re.compile(rf"part-[0-9]{{5,10}}-{_UUID}(?:-?[._]?c[0-9]{{3,6}})?(?:\.[A-Za-z0-9._-]*)?")
_HIDDEN = re.compile(rf"_{_PART.pattern}{re.escape(NOT_COMMITTED)}")
_SUCCESS = "_SUCCESS"
"""The file that a batch job leaves where it has written; the streaming sink never does."""
_SHOWN = 3


def plan_spark(
    files: Iterable[StoredFile],
    log: SparkLog,
    bases: Iterable[str],
    options: AdoptionOptions,
    abilities: StoreAbilities,
) -> AdoptionPlan:
    """Decide.

    Args:
        files: Every file below the base.
        log: What Spark has committed.
        bases: The paths by which the base is known, each beginning with ``/``.
        options: What was told.
        abilities: What the store allows.

    Raises:
        RecoveryRefused: The log names files elsewhere: the tree was moved, or it is another's log.
    """
    committed = _relative(log, [base.rstrip("/") for base in bases])
    finished, ignored, newest_ms = FileTotal(), FileTotal(), 0
    listed = {file.path: file for file in files}
    oldest_ms = min((entry.modification_time for entry in committed.values()), default=0)
    items = [_missing(path, entry) for path, entry in committed.items() if path not in listed]
    for path, file in listed.items():
        is_ours = path in committed or _is_sparks(path)
        if is_ours or path.startswith(f"{LOG_DIRECTORY}/"):
            newest_ms = max(newest_ms, file.modified_at_ms)
        if path in committed and committed[path].size == file.size:
            finished = finished.with_file(file)
        elif path in committed:
            items.append(_damaged(file, committed[path]))
        elif is_ours:
            items.append(within(_stray(file, listed, log, oldest_ms), abilities))
        else:
            ignored = ignored.with_file(file)
    items.sort(key=lambda item: item.path)
    return AdoptionPlan(options=options, finished=finished, ignored=ignored, newest_ms=newest_ms, items=tuple(items))


def _is_sparks(path: str) -> bool:
    """Whether the file sink calls a file so, or it is one that was about to go to the quarantine."""
    parent, _, name = path.rpartition("/")
    pattern = _HIDDEN if name.startswith("_") else _PART
    return not (parent and is_hidden(parent)) and pattern.fullmatch(name) is not None


def _relative(log: SparkLog, bases: list[str]) -> dict[str, SparkFile]:
    """The committed files by their paths below the base. They are compared with a listing, and never opened."""
    found: dict[str, SparkFile] = {}
    elsewhere: list[str] = []
    for path, entry in log.files.items():
        inside = next(_below(path, bases), None)
        if inside is None:
            elsewhere.append(path)
        else:
            found[inside] = entry
    if elsewhere:
        raise RecoveryRefused(
            f"{LOG_DIRECTORY} names {len(elsewhere)} files that are not below this base, as {elsewhere[:_SHOWN]}",
            hint="Nothing was changed. Spark's log has absolute paths. If the directory was moved, move it back, or "
            "name it by the path that Spark wrote to: partfile recover PATH --adopt-layout spark",
            path=LOG_DIRECTORY,
        )
    return found


def _below(path: str, bases: list[str]) -> Iterator[str]:
    for base in bases:
        if path.startswith(f"{base}/"):
            yield path[len(base) + 1 :]


def _missing(path: str, entry: SparkFile) -> AdoptedItem:
    return AdoptedItem(
        path=path,
        kind="missing",
        action="leave",
        why="the log says that it is committed, and it is not there: another program moved or deleted it",
        size=entry.size,
        modified_at_ms=entry.modification_time,
    )


def _damaged(file: StoredFile, entry: SparkFile) -> AdoptedItem:
    return AdoptedItem(
        path=file.path,
        kind="finished",
        action="leave",
        why=f"the log says that it has {entry.size} bytes: another program changed it",
        size=file.size,
        modified_at_ms=file.modified_at_ms,
    )


def _stray(file: StoredFile, listed: Mapping[str, StoredFile], log: SparkLog, oldest_ms: int) -> AdoptedItem:
    parent, _, name = file.path.rpartition("/")
    checksum = f"{parent}/.{name}.crc" if parent else f".{name}.crc"
    why, is_left = _verdict(file, listed, log, oldest_ms)
    if file.identity is not None:
        why, is_left = f"{why}; but it has another name, so it may be another program's file", True
    return AdoptedItem(
        path=file.path,
        kind="not committed",
        action="leave" if is_left else "quarantine",
        why=why,
        size=file.size,
        modified_at_ms=file.modified_at_ms,
        first=(checksum,) if checksum in listed and not is_left else (),
    )


def _verdict(file: StoredFile, listed: Mapping[str, StoredFile], log: SparkLog, oldest_ms: int) -> tuple[str, bool]:
    """Why a file is there that the log does not name, and whether that leaves it where it is."""
    if log.is_compacted and file.modified_at_ms < oldest_ms:
        why = (
            "no batch in the log has it; it is older than everything in the log, which forgets what is beyond Spark's "
            "retention, so it may have been committed"
        )
        return why, True
    success = next((path for path in _successes(file.path) if path in listed), None)
    if success is not None:
        why = (
            f"no batch in the log has it; but a batch job has ended with {success!r}, and may have written it: its "
            "names are the same, and its rows come only once. Move that file away if no such job wrote here"
        )
        return why, True
    why = (
        "no committed batch has it: an attempt that failed has left it, and its rows come again with its batch; unless "
        "a batch job such as df.write.mode('append') wrote it, which calls its files the same"
    )
    return why, False


def _successes(path: str) -> Iterator[str]:
    """The markers of a batch job that would have written a file: in its directory or in one above."""
    directory = path
    while directory:
        directory = directory.rpartition("/")[0]
        yield f"{directory}/{_SUCCESS}" if directory else _SUCCESS
