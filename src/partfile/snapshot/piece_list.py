"""State of one subtask in several files: the list of them, which is what a checkpoint names.

A piece has the state of some key groups that follow each other. Two pieces in turn share a key group that is too large
for one. Source: Flink's ``KeyGroupRangeOffsets``, as of 1.20, which knows one file.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Self

from pydantic import ConfigDict, Field, model_validator

from partfile.errors import SnapshotCorrupt
from partfile.snapshot.documents import FileHandle, StateHandle, decode_document, encode_document
from partfile.snapshot.state_file import MAX_STATES, StateMetaInfo
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partfile.snapshot.storage import CheckpointStorage


_SCHEMA = "state-pieces"
_HEAD = f"partfile {_SCHEMA} ".encode()
MAX_LIST_BYTES = 16 << 20
"""Of the list: some 80 000 pieces."""
INCREMENTAL = "incremental-keyed-state"
"""The kind of the documents of incremental snapshots, of which ``keyed/shared_files.py`` has the rest."""
Group = Annotated[int, Field(ge=0)]


class Piece(Persisted):
    """One file, or some state that is small enough to travel inline."""

    first_group: Group
    last_group: Group
    handle: StateHandle


class PieceList(Persisted):
    """All pieces of one subtask's keyed state, and what is in them."""

    key: Annotated[tuple[str, ...], Field(min_length=1)]
    """The kinds of the keys."""
    max_parallelism: Annotated[int, Field(ge=1)]
    states: Annotated[tuple[StateMetaInfo, ...], Field(max_length=MAX_STATES)]
    """Each piece names the same ones."""
    pieces: Annotated[tuple[Piece, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _pieces_follow_each_other(self) -> Self:
        next_groups = {self.pieces[0].first_group}
        for piece in self.pieces:
            if piece.first_group not in next_groups or piece.last_group < piece.first_group:
                raise ValueError("its pieces do not follow each other")
            next_groups = {piece.last_group, piece.last_group + 1}
        if self.last_group >= self.max_parallelism:
            raise ValueError("its key groups are not those of one subtask")
        if len({PurePosixPath(file.path).parent for file in self.files()}) > 1:
            raise ValueError("its pieces are in several directories")
        return self

    @property
    def first_group(self) -> int:
        """The first key group of the subtask."""
        return self.pieces[0].first_group

    @property
    def last_group(self) -> int:
        """The last key group of the subtask."""
        return self.pieces[-1].last_group

    def files(self) -> Iterator[FileHandle]:
        """The pieces that are files."""
        return (piece.handle for piece in self.pieces if isinstance(piece.handle, FileHandle))


def is_piece_list(data: bytes) -> bool:
    """Whether bytes are those of a list of pieces."""
    return data.startswith(_HEAD)


def encode_piece_list(pieces: PieceList) -> bytes:
    """The list as bytes.

    Raises:
        StateTooLarge: No reader would take it.
    """
    return encode_document(_SCHEMA, pieces)


def decode_piece_list(data: bytes, path: str) -> PieceList:
    """The list in ``data``.

    Raises:
        SnapshotCorrupt: It is damaged.
        SnapshotVersionError: It was written in another format version.
    """
    return decode_document(_SCHEMA, PieceList, data, path)


class _OfEngine(Persisted):
    model_config = ConfigDict(extra="ignore")
    handle: StateHandle


class _Incremental(Persisted):
    """What the document of an incremental snapshot names, read without the packages of keyed state."""

    model_config = ConfigDict(extra="ignore")
    files: tuple[_OfEngine, ...]
    carried: StateHandle | None


def named_files(storage: CheckpointStorage, handle: StateHandle) -> tuple[FileHandle, ...]:
    """The files that a list of pieces or the document of an incremental snapshot names, each after what it names.

    Args:
        storage: Of the checkpoint.
        handle: What may stand for either; of anything else, also of what is damaged or gone, there are none.

    Raises:
        StoreError: It cannot be read.
    """
    if handle.size_bytes > MAX_LIST_BYTES:
        return ()
    try:
        data, shown = storage.read_shown(handle)
        if is_piece_list(data):
            return tuple(decode_piece_list(data, shown).files())
        if not data.startswith(f"partfile {INCREMENTAL} ".encode()):
            return ()
        found = decode_document(INCREMENTAL, _Incremental, data, shown)
    except SnapshotCorrupt:
        return ()
    carried = () if found.carried is None else (*named_files(storage, found.carried), found.carried)
    return tuple(one for one in (*carried, *(file.handle for file in found.files)) if isinstance(one, FileHandle))
