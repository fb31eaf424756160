"""The place of a sink: its base path and its checkpoint directory, opened read-only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from partfile.errors import ConfigError, NotApplied, NotFound, PartfileError
from partfile.sink.newest_state import is_no_directory
from partfile.sink.settings import checkpoint_url_of
from partfile.snapshot import documents
from partfile.stores.base import STATE_DIRECTORY
from partfile.stores.registry import absolute, open_store, options_for
from partfile.stores.urls import local_path

if TYPE_CHECKING:
    from partfile.stores.base import MetadataStore, Store


Looker = Callable[[str, Mapping[str, object]], "Store"]

_LEVELS = 2
_MOST_LISTED = 64
"""Directories that are looked into for another sink, so that the answer comes soon on a remote store as well."""
_MOST_SHOWN = 3
_JOB = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,99})(?:~([1-9][0-9]{0,5}))?")


def open_for_looking(url: str, storage_options: Mapping[str, object]) -> Store:
    """Open a store that has to be there already; nothing is made."""
    return open_store(url, storage_options, create_base=False)


@dataclass(frozen=True, slots=True)
class Place:
    """The place that a command works on. Opens stores for looking only; a verb that changes something opens its own."""

    base: str
    """A path or URL."""
    checkpoint_dir: str | None = None
    """The directory of checkpoints; None is ``_partfile`` below the base."""
    storage_options: Mapping[str, object] = field(default_factory=dict, repr=False)
    """May hold secrets, so it is never shown."""
    opener: Looker = open_for_looking
    """Opens the stores; another one in tests that watch them."""

    @property
    def checkpoint_url(self) -> str:
        """The directory that holds the directories of the sinks' checkpoint logs."""
        return checkpoint_url_of(self.base, self.checkpoint_dir)

    @property
    def checkpoint_options(self) -> Mapping[str, object]:
        """Options of the store of the checkpoints."""
        return self.options_beside(self.checkpoint_url)

    def options_beside(self, url: str) -> Mapping[str, object]:
        """Options of another place: those of the base where one service serves both, else none."""
        return options_for(url, self.base, self.storage_options)

    def open_base(self) -> Store:
        """The store of the parts.

        Raises:
            NotFound: The base is not there.
            ConfigError: It cannot be a base, or an option cannot be used.
            StoreError: The store cannot be reached.
        """
        try:
            return self.opener(self.base, self.storage_options)
        except ConfigError as error:
            error.hint = error.hint or (
                "PATH is the base of a sink: the directory that holds its buckets, or its URL, as "
                "hdfs://host:port/path or s3://bucket/prefix."
            )
            raise

    def open_checkpoints(self) -> Store | None:
        """The store of the checkpoints; None if the base is there and has none.

        Raises:
            NotFound: Neither is there; or the directory of checkpoints that was named is not.
            ConfigError: One cannot be used as it is.
            StoreError: The store cannot be reached.
        """
        try:
            return self.opener(self.checkpoint_url, self.checkpoint_options)
        except NotFound:
            if self.checkpoint_dir is not None:
                raise NotFound(
                    f"the directory of checkpoints {self.checkpoint_dir!r} is not there",
                    hint="Check --checkpoint-dir, and that its file system is mounted on this host.",
                    path=self.checkpoint_dir,
                ) from None
            try:
                self.open_base().close()
            except NotFound as error:
                error.hint = _where_sinks_are(self) or error.hint
                raise
            return None
        except ConfigError as error:
            if self.checkpoint_dir is None:
                # What is wrong with the base is told of the base.
                self.open_base().close()
            error.hint = error.hint or (
                "The directory of checkpoints has one directory for each sink. Pass it as --checkpoint-dir D."
            )
            raise


@dataclass(frozen=True, slots=True, order=True)
class Job:
    """One checkpoint log: a sink, or one of its independent writers."""

    uid: str
    writer: int = 0
    """The subtask index of a writer with a checkpoint log of its own; 0 for the sink itself."""

    @classmethod
    def of(cls, name: str) -> Job | None:
        """The job that a directory is called after; None if no job's is called so."""
        match = _JOB.fullmatch(name)
        return cls(match[1], int(match[2] or 0)) if match else None

    @property
    def name(self) -> str:
        """The name of its directory: the uid, or ``uid~n`` for writer n."""
        return f"{self.uid}~{self.writer}" if self.writer else self.uid


def jobs_in(store: MetadataStore, uid: str | None = None) -> list[Job]:
    """The jobs whose checkpoints a directory holds. Lists it, and the directory of each job.

    Args:
        store: The store of the checkpoints.
        uid: Only this sink and its writers, or with ``uid~n`` only that writer; None is all.

    Raises:
        NotFound: There is no such job.
        ConfigError: No job can be called so.
    """
    wanted = None if uid is None else Job.of(uid)
    if uid is not None and wanted is None:
        raise ConfigError(
            f"uid {uid!r} is not the name of a sink",
            hint="It may be a uid, or uid~n for one writer of it. See which there are: partfile status PATH",
        )
    found = sorted(job for job in map(Job.of, store.list_names("")) if job is not None)
    chosen = [
        job
        for job in found
        if wanted is None or (job.uid == wanted.uid and (not wanted.writer or job.writer == wanted.writer))
    ]
    jobs = [job for job in chosen if any(map(documents.checkpoint_id_of, _names_in(store, job.name) or ()))]
    if uid is not None and not jobs:
        others = ", ".join(repr(job.name) for job in found) or "none"
        raise NotFound(
            f"no sink {uid!r} has checkpoints at {store.base!r}",
            hint=f"Directories there: {others}. Pass --checkpoint-dir if the sink keeps them elsewhere.",
            path=store.base,
        )
    return jobs


def sinks_in(store: MetadataStore, place: Place, uid: str | None = None) -> list[Job]:
    """The jobs that a verb is about: as ``jobs_in``, and at least one.

    Raises:
        NotFound: There is no such job, or none at all.
        ConfigError: No job can be called so.
    """
    jobs = jobs_in(store, uid)
    if not jobs:
        raise no_sink_at(place)
    return jobs


def no_sink_at(place: Place) -> NotFound:
    """The error for a place without a sink. It names the nearest ones above or below, if there are any."""
    if place.checkpoint_dir is not None:
        hint = "Check --checkpoint-dir: it is the directory that has one directory for each sink."
    else:
        hint = (
            _where_sinks_are(place) or "Check PATH. Pass --checkpoint-dir if the sink keeps its checkpoints elsewhere."
        )
    return NotFound(f"no sink has checkpoints at {place.checkpoint_url!r}", hint=hint, path=place.checkpoint_url)


def _where_sinks_are(place: Place) -> str:
    """A sentence with the nearest sinks; empty if there are none."""
    above = next((base for base in _bases_above(place.base) if _has_sink(place, base)), None)
    found = [above] if above is not None else []
    found += islice((base for base in _bases_below(place) if _has_sink(place, base)), _MOST_SHOWN)
    if len(found) == 1:
        return f"Did you mean {found[0]}?"
    return f"Did you mean one of {', '.join(found)}?" if found else ""


def _has_sink(place: Place, base: str) -> bool:
    """Whether a sink has checkpoints below a base; what cannot be looked into has none."""
    near = replace(place, base=base, checkpoint_dir=None)
    try:
        with near.opener(near.checkpoint_url, near.checkpoint_options) as store:
            return bool(jobs_in(store))
    except PartfileError:
        return False


def _bases_above(url: str) -> list[str]:
    """The directories that a path or URL is in, the nearest first."""
    scheme, is_url, rest = url.partition("://")
    if not is_url or scheme.lower() == "file":
        return [str(one) for one in PurePosixPath(absolute(local_path(url))).parents]
    authority, *steps = rest.rstrip("/").split("/")
    return ["/".join([f"{scheme}://{authority}", *steps[:depth]]) for depth in reversed(range(len(steps)))]


def _bases_below(place: Place) -> Iterator[str]:
    """Directories below a path that have one for checkpoints in them, the nearest first, two levels deep.

    Where the path is not there, those beside it.
    """
    for base in (place.base, *_bases_above(place.base)[:1]):
        try:
            store = replace(place, base=base).open_base()
        except PartfileError:
            continue
        with store:
            yield from (f"{base.rstrip('/')}/{directory}" for directory in _with_checkpoints(store))
        return


def _with_checkpoints(store: MetadataStore) -> Iterator[str]:
    waiting = [""]
    for _ in range(_MOST_LISTED):
        if not waiting:
            return
        directory = waiting.pop(0)
        try:
            names = store.list_names(directory)
        except PartfileError:
            continue
        if directory and STATE_DIRECTORY in names:
            yield directory
        elif directory.count("/") < _LEVELS - 1:
            visible = sorted(name for name in names if not name.startswith(("_", ".")))
            waiting += [f"{directory}/{name}" if directory else name for name in visible]
            # Most files have a suffix, and most directories none.
            waiting.sort(key=lambda path: "." in path.rpartition("/")[2])


def odd_entries(store: MetadataStore) -> list[str]:
    """Files and symbolic links among the directories of the jobs that are called like one."""
    return [name for name in sorted(store.list_names("")) if Job.of(name) and _names_in(store, name) is None]


def _names_in(store: MetadataStore, directory: str) -> list[str] | None:
    """The names in a directory; None if something else is in its place. A store that cannot be read raises."""
    try:
        return store.list_names(directory)
    except NotApplied as error:
        if is_no_directory(store, directory, error):
            return None
        raise
