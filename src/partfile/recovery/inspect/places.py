"""The place of a sink: its base path and its checkpoint directory, opened read-only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from partfile.errors import ConfigError, NotApplied, NotFound
from partfile.sink.settings import checkpoint_url_of
from partfile.snapshot import documents
from partfile.stores.registry import open_store, options_for

if TYPE_CHECKING:
    from partfile.stores.base import MetadataStore, Store


Looker = Callable[[str, Mapping[str, object]], "Store"]

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
            error.hint = error.hint or "PATH is the base of a sink: the directory that holds its buckets, or its URL."
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
            self.open_base().close()
            return None
        except ConfigError as error:
            if self.checkpoint_dir is None:
                # What is wrong with the base is told of the base.
                self.open_base().close()
            error.hint = error.hint or "The directory of checkpoints has one directory for each sink."
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
            f"uid {uid!r} is not the name of a sink", hint="It may be a uid, or uid~n for one writer of it."
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


def odd_entries(store: MetadataStore) -> list[str]:
    """Files and symbolic links among the directories of the jobs that are called like one."""
    return [name for name in sorted(store.list_names("")) if Job.of(name) and _names_in(store, name) is None]


def _names_in(store: MetadataStore, directory: str) -> list[str] | None:
    """The names in a directory; None if something else is in its place. A store that cannot be read raises."""
    try:
        return store.list_names(directory)
    except NotApplied as error:
        if isinstance(error.__cause__, NotADirectoryError) or store.file_exists(directory):
            return None
        raise
