"""What a restore of keyed state reads: files of any kind of snapshot, from copies on this machine where it has them."""

from __future__ import annotations

import logging
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple

from partfile.errors import SnapshotError
from partfile.snapshot.keyed.keyed_file import KeyedFile
from partfile.snapshot.keyed.shared_files import decode_incremental, is_incremental

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from partfile.snapshot.documents import StateHandle
    from partfile.snapshot.keyed.keyed_file import RestoredRows
    from partfile.snapshot.local_state import LocalStateStore
    from partfile.snapshot.storage import CheckpointStorage


logger = logging.getLogger("partfile")


class RestoredFile(NamedTuple):
    """The keyed state of one old subtask, and from where it was read."""

    file: RestoredRows
    source: Literal["local", "primary"]
    """local: a copy on this machine, or links to all files of RocksDB. primary: the checkpoint's storage, or its
    metadata."""


@contextmanager
def read_keyed_files(
    storage: CheckpointStorage,
    handles: Iterable[StateHandle],
    local: LocalStateStore | None = None,
    directory: str | None = None,
) -> Iterator[list[RestoredFile]]:
    """Read what snapshots of keyed state have written, of any backend, each from its copy if that is whole.

    Make the backends within the block: at its end the files of RocksDB are closed and removed.

    Args:
        storage: Of the checkpoint.
        handles: What the checkpoint names.
        local: The copies on this machine; None has none.
        directory: Where files of RocksDB are read to, on a disk of this machine; None is that for temporary files.

    Raises:
        SnapshotCorrupt: A file is missing or damaged, and there is no copy of it.
        SnapshotVersionError: It was written in another format version.
        StoreError: It cannot be read.
        ConfigError: It is of RocksDB, whose package is not installed.
    """
    with ExitStack() as opened:
        yield [_read_keyed_file(storage, handle, local, directory, opened) for handle in handles]


def _read_keyed_file(
    storage: CheckpointStorage,
    handle: StateHandle,
    local: LocalStateStore | None,
    directory: str | None,
    opened: ExitStack,
) -> RestoredFile:
    shown = storage.shown(handle)
    copy = None if local is None else local.read(handle)
    if copy is not None:
        try:
            restored = RestoredFile(KeyedFile(copy, f"the local copy of {shown}"), "local")
        except SnapshotError as error:
            logger.warning("the local copy of state file %s is not used: %s", shown, error)
        else:
            logger.info("keyed state is restored from the local copy of %s", shown)
            return restored
    data = storage.read_bytes(handle)
    logger.info("keyed state is restored from %s", shown)
    if not is_incremental(data):
        return RestoredFile(KeyedFile(data, shown), "primary")
    # Here, because the engine's package may be absent.
    from partfile.snapshot.keyed.rocksdb.files import IncrementalFiles  # noqa: PLC0415

    document = decode_incremental(data, shown)
    files = IncrementalFiles(document, storage, shown, directory, local)
    opened.callback(files.close)
    read = files.read_from_storage
    logger.info(
        "of the %d files of %s, %d are from this machine", len(document.files), shown, len(document.files) - read
    )
    return RestoredFile(files, "primary" if read else "local")
