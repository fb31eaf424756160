"""Channel state as bytes, and who gets which of its rows when a job is restored. Pure.

After the document's header comes one line of JSON that says of each piece which channel it is of, where it begins, and
how many bytes and rows it has; pieces stand in the order in which their batches were sent. A piece is a stream of
Arrow's IPC format, of batches of one schema. So one channel is read without decoding another.

Source: Flink's channel state file and ``InputChannelStateHandle``, as of 1.20; for its rescaling,
``TaskStateAssignment`` and ``RescalingStreamTaskNetworkInput``. Flink puts batches that waited to be sent back into
the sender. Here they follow those that had arrived, straight into the receiver, which is in the same process.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from partfile.errors import CheckpointMismatch, SnapshotCorrupt, StateTooLarge
from partfile.pipeline.channel_state import Side
from partfile.snapshot.documents import CORRUPT_HINT, MAX_DOCUMENT_BYTES, decode_body, decode_model, encode_body
from partfile.snapshot.key_hash import groups_of_hashes, hashes_of, kind_of
from partfile.stores.base import Persisted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from partfile.snapshot.keyed.keys import KeyGroupRange


SCHEMA = "channel-state"
MAX_PIECES = 1 << 20
_MAX_INDEX_BYTES = 1 << 26


class ChannelInfo(Persisted):
    """A channel, as seen from the subtask in whose checkpoint its batches are."""

    side: Side
    """Whether that subtask receives from it, or sends into it."""
    edge: Annotated[str, Field(min_length=1, max_length=255)]
    """The name of the edge between two operators."""
    peer: Annotated[int, Field(ge=0)]
    """The subtask at the other end."""


class _Piece(Persisted):
    channel: ChannelInfo
    offset: Annotated[int, Field(ge=0)]
    """In bytes from the end of the index."""
    size_bytes: Annotated[int, Field(ge=1)]
    rows: Annotated[int, Field(ge=0)]


class _Index(Persisted):
    pieces: Annotated[tuple[_Piece, ...], Field(min_length=1, max_length=MAX_PIECES)]


def encode_channel_state(overtaken: Iterable[tuple[ChannelInfo, Sequence[pa.RecordBatch]]]) -> bytes | None:
    """What barriers have overtaken as bytes; None if that is nothing.

    Args:
        overtaken: Batches of a channel, those of each channel in the order in which they were sent.

    Raises:
        StateTooLarge: No reader would take it.
    """
    pieces: list[_Piece] = []
    streams: list[bytes] = []
    position = 0
    for channel, batches in overtaken:
        for some in _of_one_schema(batches):
            data = _stream_of(some)
            rows = sum(batch.num_rows for batch in some)
            pieces.append(_Piece(channel=channel, offset=position, size_bytes=len(data), rows=rows))
            streams.append(data)
            position += len(data)
    if not pieces:
        return None
    is_too_large = len(pieces) > MAX_PIECES or position > MAX_DOCUMENT_BYTES - _MAX_INDEX_BYTES
    index = b"" if is_too_large else _Index(pieces=tuple(pieces)).model_dump_json().encode()
    if is_too_large or len(index) >= _MAX_INDEX_BYTES:
        raise StateTooLarge(
            f"the batches that a barrier has overtaken are {position} bytes in {len(pieces)} pieces; allowed are "
            f"{MAX_DOCUMENT_BYTES - _MAX_INDEX_BYTES} bytes, {MAX_PIECES} pieces, and {_MAX_INDEX_BYTES} bytes of what "
            "says where they are",
            hint="Let channels hold less, or let barriers wait: BarrierRules(is_unaligned=False)",
        )
    return encode_body(SCHEMA, index, b"\n", *streams)


def _of_one_schema(batches: Sequence[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches that follow each other and have one schema, its metadata as well."""
    some: list[pa.RecordBatch] = []
    for batch in batches:
        if some and not batch.schema.equals(some[0].schema, check_metadata=True):
            yield some
            some = []
        some.append(batch)
    if some:
        yield some


def _stream_of(batches: list[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class ChannelStateFile:
    """Channel state of one subtask: header, checksum, index and the bounds of every piece are checked when it is made.

    Args:
        data: All of it.
        path: Where it came from, for messages.

    Raises:
        SnapshotCorrupt: It is damaged, or its pieces do not follow each other.
        SnapshotVersionError: It was written in another format version.
    """

    def __init__(self, data: bytes, path: str) -> None:
        body = decode_body(SCHEMA, data, path)
        begin = len(data) - len(body) - 1
        end_of_index = data.find(b"\n", begin, begin + _MAX_INDEX_BYTES)
        if end_of_index < 0:
            raise self._corrupt(path, "it has no index")
        self._pieces = decode_model(SCHEMA, _Index, data[begin:end_of_index], path).pieces
        self._streams = body[end_of_index + 1 - begin :]
        self._path = path
        end = 0
        for piece in self._pieces:
            if piece.offset != end:
                raise self._corrupt(path, f"a piece begins at {piece.offset}, and the one before it ends at {end}")
            end += piece.size_bytes
        if end != len(self._streams):
            raise self._corrupt(path, f"its pieces have {end} bytes, and it has {len(self._streams)}")

    @property
    def channels(self) -> tuple[ChannelInfo, ...]:
        """Those that batches are of, in the order of the first."""
        return tuple(dict.fromkeys(piece.channel for piece in self._pieces))

    def batches(self, channel: ChannelInfo) -> Iterator[pa.RecordBatch]:
        """The batches of a channel in the order in which they were sent; no other one is decoded.

        Raises:
            SnapshotCorrupt: A piece is none of Arrow's, or has other rows than the index says.
        """
        for piece in self._pieces:
            if piece.channel == channel:
                yield from self._decoded(piece)

    def _decoded(self, piece: _Piece) -> list[pa.RecordBatch]:
        # Copied, because Arrow wants its buffers at addresses that the file does not keep to.
        data = bytes(self._streams[piece.offset : piece.offset + piece.size_bytes])
        try:
            with pa.ipc.open_stream(data) as reader:
                found = list(reader)
            for batch in found:
                batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise self._corrupt(self._path, f"the piece at {piece.offset} is no stream of Arrow: {error}") from error
        if sum(batch.num_rows for batch in found) != piece.rows:
            raise self._corrupt(self._path, f"the piece at {piece.offset} has not the {piece.rows} rows of the index")
        return found

    @staticmethod
    def _corrupt(path: str, problem: str) -> SnapshotCorrupt:
        return SnapshotCorrupt(f"{path} is not a valid {SCHEMA}: {problem}", hint=CORRUPT_HINT, path=path)


@dataclass(frozen=True, slots=True)
class KeyShare:
    """Of an edge whose rows go to the subtask of their key: the rows that are one subtask's."""

    columns: tuple[str, ...]
    """Of the key."""
    groups: KeyGroupRange
    """The key groups of the subtask."""
    max_parallelism: int


@dataclass(frozen=True, slots=True)
class BatchShare:
    """Of an edge whose batches may go to any subtask: the batches that are one subtask's."""

    subtask: int
    parallelism: int


def recovered(
    edge: str,
    receivers: Mapping[int, ChannelStateFile],
    senders: Mapping[int, ChannelStateFile],
    share: KeyShare | BatchShare,
) -> Iterator[pa.RecordBatch]:
    """The batches that were under way on an edge, as far as one subtask gets them: before anything new.

    Of each channel, what had arrived comes first, then what waited to be sent. So rows of one key that one subtask has
    sent keep their order, whatever the number of subtasks was and is. All subtasks together get each row once.

    Args:
        edge: Its name.
        receivers: Of the operator behind it, the channel state of each subtask of the checkpoint that has some.
        senders: Of the operator ahead of it.
        share: Of the subtask that is restored. With unchanged parallelism each gets what had been sent to it.

    Raises:
        SnapshotCorrupt: A file is damaged.
        CheckpointMismatch: Rows have no such key: the program was changed.
    """
    ends = {(one.peer, to) for to, file in receivers.items() for one in file.channels if _is(one, Side.INPUT, edge)}
    ends |= {(of, one.peer) for of, file in senders.items() for one in file.channels if _is(one, Side.OUTPUT, edge)}
    for sender, receiver in sorted(ends):
        if isinstance(share, BatchShare) and receiver % share.parallelism != share.subtask:
            continue
        arrived = _batches_of(receivers.get(receiver), ChannelInfo(side=Side.INPUT, edge=edge, peer=sender))
        waited = _batches_of(senders.get(sender), ChannelInfo(side=Side.OUTPUT, edge=edge, peer=receiver))
        for batch in chain(arrived, waited):
            kept = batch if isinstance(share, BatchShare) else _rows_of_groups(batch, edge, share)
            if kept.num_rows:
                yield kept


def _batches_of(file: ChannelStateFile | None, channel: ChannelInfo) -> Iterator[pa.RecordBatch]:
    return iter(()) if file is None else file.batches(channel)


def _is(channel: ChannelInfo, side: Side, edge: str) -> bool:
    return channel.side is side and channel.edge == edge


def _rows_of_groups(batch: pa.RecordBatch, edge: str, share: KeyShare) -> pa.RecordBatch:
    found = [name for name in share.columns if batch.schema.get_field_index(name) >= 0]
    columns = [batch.column(name) for name in found]
    if len(found) < len(share.columns) or any(kind_of(column.type) is None for column in columns):
        raise CheckpointMismatch(
            f"rows that were under way on {edge!r} have no key of the columns {', '.join(share.columns)}: they have "
            f"{', '.join(f'{field.name} ({field.type})' for field in batch.schema)}",
            hint="Take a savepoint before the key is changed. Restore a checkpoint with the key that it had: "
            "KeyShare((COLUMN,), groups, max_parallelism)",
        )
    groups = np.asarray(groups_of_hashes(hashes_of(columns).high, share.max_parallelism))
    return batch.filter(pa.array((groups >= share.groups.first) & (groups <= share.groups.last)))
