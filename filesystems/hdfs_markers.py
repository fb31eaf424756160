"""Marker files on HDFS: held open, so that their lease shows who is alive (S13)."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from partfile.filesystems.backoff import Backoff
from partfile.filesystems.errors import AlreadyExists, LeaseUnavailable, NotFound, StoreError
from partfile.filesystems.part_names import split_path

if TYPE_CHECKING:
    from hdfs_native._internal import RawFileWriter

    from partfile.filesystems.hdfs_access import HdfsAccess

_LOOKERS_ARE_GONE_AFTER_S = 0.5


class HdfsMarkers:
    """The marker files that this process has open.

    hdfs-native renews the leases of what is open every 30 s. The lease of a process that died can be had 60 s after
    its last renewal, the soft limit of HDFS, so until then its marker counts as held.

    Args:
        access: The store's files.
    """

    def __init__(self, access: HdfsAccess) -> None:
        self._access = access
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: dict[str, RawFileWriter] = {}
        self._refused: set[str] = set()

    def hold(self, path: str) -> bool:
        """Hold the marker, making it if need be; see ``MetadataStore.hold_marker``."""
        split_path(path)
        if os.getpid() != self._process:
            return path not in self._held and self._take(path) is not None
        with self._lock:
            if path in self._held:
                try:
                    self._access.sync(self._held[path], path)
                except StoreError:
                    # Deleted, or its lease was taken: nobody can see this one any more.
                    del self._held[path]
                else:
                    return True
            writer = self._take(path)
            if writer is not None:
                self._held[path] = writer
            return writer is not None

    def is_held(self, path: str) -> bool:
        """Whether somebody holds the marker; see ``MetadataStore.marker_is_held``."""
        split_path(path)
        try:
            writer = self._access.append(path)
        except LeaseUnavailable:
            return True
        except NotFound as error:
            raise NotFound(
                f"marker {self._access.shown(path)!r} is not visible from this host",
                hint="The base path must be on one HDFS that driver and executors share; check the URL.",
                path=path,
            ) from error
        self._access.close_file(writer, path)
        return False

    def close(self) -> None:
        """Release every marker; a forked child releases none, for they are its parent's."""
        if os.getpid() != self._process:
            return
        with self._lock:
            while self._held:
                path, writer = self._held.popitem()
                with suppress(StoreError):
                    self._access.close_file(writer, path)

    def _take(self, path: str) -> RawFileWriter | None:
        """Open the marker; None if somebody else has it open, and not only to look whether it is held."""
        # Whoever stayed longer once is a holder; each batch of a minute asks for what a driver that died had.
        backoff = Backoff(0 if path in self._refused else _LOOKERS_ARE_GONE_AFTER_S)
        while True:
            try:
                return self._access.append(path)
            except NotFound:
                with suppress(AlreadyExists):
                    return self._access.create(path)
            except LeaseUnavailable:
                if not backoff.pause():
                    self._refused.add(path)
                    return None
