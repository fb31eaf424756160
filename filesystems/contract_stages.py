"""Contract of stages: parts that are read back while they grow, and that nobody publishes."""

# ruff: noqa: S101 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from partfile.filesystems.contract_base import ContractBase, files_in, needs, new_part, new_stage
from partfile.filesystems.errors import LeaseUnavailable, NotApplied, PartfileError, PartMissing

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from partfile.filesystems.port import PartHandle, PartStream, Store

    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

D1, D2, D3 = b"one ", b"two ", b"three"
_PERSISTS = 70
_MOST_HANDLE_BYTES = 4_000


class StageContract(ContractBase):
    """Everything that is done with a stage."""

    def test_a_stage_is_read_up_to_its_valid_length(self, store: Store) -> None:
        """The file ends where the handle says, can be read in any order, and never shows what came later."""
        needs(store, "stages")
        stage = write_stage(store, D1, D2, tail=D3)
        with store.open_stage(stage) as file:
            assert file.read() == D1 + D2
            assert file.read() == b""
            assert file.seek(-len(D2), os.SEEK_END) == file.tell() == len(D1)
            assert file.read(2) == D2[:2]
            assert file.read(1000) == D2[2:]
            assert file.seek(1) == 1
            assert file.read(len(D1)) == (D1 + D2)[1 : 1 + len(D1)]
            assert not file.writable()

    def test_an_older_handle_reads_its_prefix(self, store: Store) -> None:
        """Whatever was persisted since, what an older checkpoint vouches for can be read as it was."""
        needs(store, "stages")
        stream = store.create(new_stage())
        handles = [_added(stream, data) for data in (b"", D1, b"", D2, D3)]
        stream.close()
        for handle, data in zip(handles, (b"", D1, D1, D1 + D2, D1 + D2 + D3), strict=True):
            assert read_stage(store, handle) == data

    def test_another_process_reads_a_stage_that_is_being_written(self, store: Store, elsewhere: Elsewhere) -> None:
        """Reading needs no lease and takes none away: whoever writes goes on."""
        needs(store, "stages")
        stream = store.create(new_stage())
        stage = _added(stream, D1)
        stream.write(D2)
        with elsewhere(lambda other: read_stage(other, stage).decode()) as seen:
            assert seen == D1.decode()
        stream.verify()
        longer = _added(stream, D3)
        assert read_stage(store, longer) == D1 + D2 + D3
        stream.close()

    def test_a_resumed_stage_goes_on_where_it_was(self, store: Store, reopen: Callable[[], Store]) -> None:
        """A stage that somebody resumes is read as one file, by its old handles and by its new one."""
        needs(store, "stages", "append")
        old = write_stage(store, D1)
        resumed = reopen().resume(old)
        assert resumed.position == len(D1)
        new = _added(resumed, D2)
        resumed.close()
        assert (read_stage(store, old), read_stage(store, new)) == (D1, D1 + D2)

    def test_a_stage_of_many_persists_has_a_handle_of_few_bytes(self, store: Store) -> None:
        """What a checkpoint holds of a stage does not grow with the number of persists, nor are its bytes lost."""
        needs(store, "stages")
        draw = random.Random(8)  # noqa: S311 - it only has to be varied.
        stream = store.create(new_stage())
        data, handles = b"", []
        for _ in range(_PERSISTS):
            piece = draw.randbytes(draw.choice((1, 30, 700)))
            data += piece
            handles.append(_added(stream, piece))
        stream.close()
        assert max(len(handle.model_dump_json()) for handle in handles) < _MOST_HANDLE_BYTES
        for handle in (handles[0], *draw.sample(handles, 8), handles[-1]):
            assert read_stage(store, handle) == data[: handle.valid_length]
        with store.open_stage(handles[-1]) as file:
            for _ in range(8):
                start = file.seek(draw.randrange(len(data)))
                count = draw.randrange(5000)
                assert file.read(count) == data[start : start + count]

    def test_a_stage_is_never_pending_or_finished(self, store: Store) -> None:
        """S5: nobody settles, publishes or closes it for commit; it stays what it is."""
        needs(store, "stages")
        stream = store.create(new_stage())
        stage = _added(stream, D1)
        before = files_in(store)
        with pytest.raises(PartfileError):
            stream.close_for_commit()
        assert _added(stream, D2).valid_length == len(D1 + D2)
        stream.close()
        for verb in (store.settle, store.publish):
            with pytest.raises(PartfileError):
                verb(stage, "auto")
        assert read_stage(store, stage) == D1
        assert set(files_in(store)) == set(before)
        assert not store.file_exists(stage.path_of(stage.name))

    def test_only_stages_are_read_back(self, store: Store) -> None:
        """A part that is to be published is read when it is finished, and not before."""
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        stream.close()
        with pytest.raises(PartfileError):
            store.open_stage(handle)

    def test_a_stage_that_is_gone_or_too_short_is_missing(self, store: Store) -> None:
        """Rows that a checkpoint vouches for are not passed over in silence."""
        needs(store, "stages")
        stage, nowhere = write_stage(store, D1), new_stage("nowhere").at(1)
        for wrong in (stage.at(len(D1) + 1), nowhere):
            with pytest.raises(PartMissing):
                read_stage(store, wrong)
        assert store.is_staged(stage)
        assert not store.is_staged(nowhere)
        assert store.discard(stage)
        assert not store.is_staged(stage)
        with pytest.raises(PartMissing):
            read_stage(store, stage)

    def test_discarding_a_stage_leaves_nothing(self, store: Store) -> None:
        """Once nothing names it, all of it goes, and a second time there is nothing."""
        needs(store, "stages")
        stream = store.create(new_stage())
        for _ in range(_PERSISTS):
            stage = _added(stream, D1)
        stream.close()
        assert store.is_staged(stage)
        assert store.discard(stage)
        assert not store.discard(stage)
        assert not store.is_staged(stage)
        assert not files_in(store)
        assert not list(store.leftovers((), 1 << 50))

    def test_a_stage_that_is_being_written_is_not_discarded(self, store: Store, elsewhere: Elsewhere) -> None:
        """It is no orphan, whatever nobody names."""
        needs(store, "stages", "append", "lease")
        stage = write_stage(store, D1)
        held: list[PartStream] = []
        with elsewhere(lambda other: held.append(other.resume(stage))), pytest.raises(LeaseUnavailable):
            store.discard(stage)

    def test_a_store_without_stages_says_so(self, store: Store) -> None:
        """What is not claimed is refused, with nothing done."""
        if store.capabilities.stages:
            pytest.skip("the store claims stages")
        for verb in (store.create, store.open_stage):
            with pytest.raises(NotApplied):
                verb(new_stage())
        assert not files_in(store)


def write_stage(store: Store, *persisted: bytes, tail: bytes = b"") -> PartHandle:
    """Make a stage, each of ``persisted`` vouched for, and ``tail`` written after it."""
    stream = store.create(new_stage())
    for data in persisted:
        handle = _added(stream, data)
    stream.write(tail)
    stream.close()
    return handle


def read_stage(store: Store, handle: PartHandle) -> bytes:
    """All that a handle vouches for."""
    with store.open_stage(handle) as file:
        return file.read()


def _added(stream: PartStream, data: bytes) -> PartHandle:
    stream.write(data)
    return stream.persist()
