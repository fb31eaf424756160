"""Contract of part streams: create, write, persist, resume, verify, close."""

# ruff: noqa: S101, PLR2004 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from partfile.filesystems.contract_base import (
    MAX_BYTES,
    ContractBase,
    files_in,
    finished_bytes,
    needs,
    new_part,
    write_part,
)
from partfile.filesystems.errors import (
    AlreadyExists,
    LeaseUnavailable,
    NotFound,
    PartfileError,
    StoreError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from partfile.filesystems.port import PartStream, Store

    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

D1, D2, D3 = b"one ", b"two ", b"three"


class PartContract(ContractBase):
    """Everything a task does with its parts. T-Dnn are the scenarios of Flink's RecoverableWriter suite."""

    def test_d01_a_part_without_data_is_one_hidden_file_and_then_one_finished_file(self, store: Store) -> None:
        """T-D01: an empty part shows no final name before it is published, and nothing else afterwards."""
        handle = new_part()
        stream = store.create(handle)
        assert set(files_in(store)) <= {handle.path_of(handle.in_progress)}
        store.publish(stream.close_for_commit(), "auto")
        assert files_in(store) == {handle.path_of(handle.name): 0}

    def test_d02_what_is_written_is_published(self, store: Store) -> None:
        """T-D02: written and committed bytes are the finished file."""
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.close_for_commit()
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1

    def test_d03_a_persist_between_two_writes_changes_nothing(self, store: Store) -> None:
        """T-D03: a persist in the middle leaves no trace in the finished file."""
        stream = store.create(new_part())
        stream.write(D1)
        stream.persist()
        stream.write(D2)
        handle = stream.close_for_commit()
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1 + D2

    @pytest.mark.parametrize("persists", [[b""], [D1], [D1, b""], [D1, b"", D2]])
    def test_d04_to_d07_a_part_is_resumed_where_it_was_persisted(self, store: Store, persists: list[bytes]) -> None:
        """T-D04..07: a resumed part goes on after exactly the persisted bytes, as one single file."""
        needs(store, "append")
        stream = store.create(new_part())
        for data in persists:
            stream.write(data)
            handle = stream.persist()
        stream.close()
        resumed = store.resume(handle)
        assert resumed.position == handle.valid_length == len(b"".join(persists))
        resumed.write(D3)
        store.publish(resumed.close_for_commit(), "auto")
        assert finished_bytes(store, handle) == b"".join(persists) + D3
        assert list(files_in(store)) == [handle.path_of(handle.name)]

    def test_d08_a_part_closed_for_commit_is_published_by_another_store(
        self, store: Store, reopen: Callable[[], Store]
    ) -> None:
        """T-D08: the handle alone suffices to publish, after any number of persists."""
        stream = store.create(new_part())
        stream.write(D1)
        stream.persist()
        stream.persist()
        stream.write(D2)
        handle = stream.close_for_commit()
        with reopen() as other:
            other.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1 + D2

    @pytest.mark.parametrize("verb", ["write", "persist", "verify", "close_for_commit"])
    def test_d09_d21_a_stream_closed_for_commit_refuses_everything_but_close(self, store: Store, verb: str) -> None:
        """T-D09, T-D21: after close_for_commit nothing can be added, and committing twice fails."""
        stream = store.create(new_part())
        stream.close_for_commit()
        with pytest.raises(StoreError):
            _use(stream, verb)
        stream.close()

    def test_d10_a_published_part_cannot_be_resumed(self, store: Store) -> None:
        """T-D10: the handle of a finished part opens nothing."""
        handle = write_part(store, D1, state="finished")
        with pytest.raises(LeaseUnavailable):
            store.resume(handle)
        assert finished_bytes(store, handle) == D1

    def test_d12_the_final_name_appears_only_when_it_is_published(self, store: Store) -> None:
        """T-D12: closing for commit shows no final name; publishing shows the identical bytes."""
        data = random.Random(12).randbytes(16 << 10)  # noqa: S311 - test data.
        stream = store.create(new_part())
        stream.write(data)
        handle = stream.close_for_commit()
        assert not store.file_exists(handle.path_of(handle.name))
        store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), MAX_BYTES) == data

    def test_d22_a_persisted_stream_stays_usable(self, store: Store) -> None:
        """T-D22: each persist returns all bytes so far, and a second one without a write the same length."""
        stream = store.create(new_part())
        stream.write(D1)
        assert stream.handle.valid_length == 0
        assert stream.persist().valid_length == len(D1)
        stream.write(memoryview(D2))
        assert stream.position == len(D1 + D2)
        assert stream.handle.valid_length == len(D1)
        assert stream.persist() == stream.persist() == stream.handle
        assert stream.handle.valid_length == len(D1 + D2)
        stream.close()

    def test_a_memoryview_of_any_item_size_is_written_as_its_bytes(self, store: Store) -> None:
        """Positions count bytes, not items of the buffer."""
        stream = store.create(new_part())
        stream.write(memoryview(bytes(8)).cast("I"))
        assert stream.position == 8
        assert stream.close_for_commit().valid_length == 8

    def test_create_is_exclusive(self, store: Store, reopen: Callable[[], Store]) -> None:
        """A staged name that is taken raises, and what has it is untouched."""
        handle = write_part(store, D1)
        for each in (store, reopen()):
            with pytest.raises(AlreadyExists):
                each.create(handle.at(0))
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1

    def test_create_makes_the_directories_of_the_bucket(self, store: Store) -> None:
        """A bucket of several segments needs no preparation, nor does the base itself as a bucket."""
        for bucket in ("", "a/b/c"):
            store.publish(store.create(new_part(bucket)).close_for_commit(), "auto")
        assert set(files_in(store)) == {"part-0000abcd-0-0", "a/b/c/part-0000abcd-0-0"}

    def test_what_a_part_is_made_of_is_there_from_its_first_persist_on(self, store: Store) -> None:
        """A part is staged once its bytes are durable, open and closed alike, and not before or after it is dropped."""
        handle = new_part()
        assert not store.is_staged(handle)
        stream = store.create(handle)
        stream.write(D1)
        assert store.is_staged(stream.persist())
        closed = stream.close_for_commit()
        assert store.is_staged(closed)
        store.discard(closed)
        assert not store.is_staged(closed)

    def test_resume_is_refused_while_the_part_is_leased(self, store: Store, reopen: Callable[[], Store]) -> None:
        """The stream's lease keeps out every other store of the same process, until it is closed."""
        needs(store, "append", "lease")
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        with reopen() as other:
            with pytest.raises(LeaseUnavailable):
                other.resume(handle)
            stream.close()
            other.resume(handle).close()

    def test_resume_is_refused_while_another_process_holds_the_part(self, store: Store, elsewhere: Elsewhere) -> None:
        """The lease keeps out other processes; where the store promises it, it ends with the process that held it."""
        needs(store, "append", "lease")
        handle = write_part(store, D1)
        held: list[PartStream] = []
        with elsewhere(lambda other: held.append(other.resume(handle))) as result:
            assert result is None
            with pytest.raises(LeaseUnavailable):
                store.resume(handle)
        if self.leases_end_with_their_process:
            store.resume(handle).close()

    @pytest.mark.parametrize("difference", [-1, 1])
    def test_resume_is_refused_at_another_length(self, store: Store, difference: int) -> None:
        """A part that is shorter or longer than its checkpoint says is left alone and its lease given back."""
        needs(store, "append")
        handle = write_part(store, D1)
        with pytest.raises(LeaseUnavailable):
            store.resume(handle.at(len(D1) - difference))
        store.resume(handle).close()

    def test_resume_is_refused_under_any_other_name(self, store: Store) -> None:
        """Resume opens the in-progress name alone and creates nothing where that is gone."""
        for handle in (write_part(store, D1, state="pending"), new_part("day=1", "other"), new_part("nowhere")):
            with pytest.raises(LeaseUnavailable):
                store.resume(handle)
        assert len(files_in(store)) == (1 if store.capabilities.staged_files else 0)
        assert not store.list_names("nowhere")

    def test_verify_notices_that_the_part_was_taken_away(self, store: Store) -> None:
        """A task must not acknowledge a part that is gone from its name."""
        needs(store, "staged_files")
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        stream.verify()
        store.delete_file(handle.path_of(handle.in_progress))
        with pytest.raises(LeaseUnavailable):
            stream.verify()
        with pytest.raises(LeaseUnavailable):
            stream.close_for_commit()
        stream.close()
        assert not files_in(store)

    def test_close_deletes_nothing_and_may_be_called_twice(self, store: Store) -> None:
        """Closing gives the lease back and leaves the bytes where they are."""
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        stream.close()
        stream.close()
        with pytest.raises(StoreError):
            stream.write(D2)
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1

    @pytest.mark.parametrize("verb", ["write", "persist", "verify", "close_for_commit"])
    def test_a_forked_child_cannot_use_the_stream(self, store: Store, elsewhere: Elsewhere, verb: str) -> None:
        """A stream refuses another process id, whose close leaves the lease with the parent."""
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()

        def use(_: Store) -> str:
            try:
                _use(stream, verb)
            except PartfileError as error:
                return str(error)
            finally:
                stream.close()
            return "allowed"

        with elsewhere(use) as result:
            assert "process" in result
            if store.capabilities.lease:
                with pytest.raises(LeaseUnavailable):
                    store.resume(handle)
        store.publish(stream.close_for_commit(), "auto")
        assert finished_bytes(store, handle) == D1

    def test_the_lease_is_free_after_close_although_a_forked_child_lives_on(
        self, store: Store, elsewhere: Elsewhere
    ) -> None:
        """Locks are released, not just dropped with the last descriptor, which a child may have inherited."""
        needs(store, "append", "lease")
        stream = store.create(new_part())
        handle = stream.persist()
        with elsewhere(lambda _: True):
            stream.close()
            store.resume(handle).close()

    def test_a_part_of_a_store_that_is_gone_is_published_by_the_next(self, reopen: Callable[[], Store]) -> None:
        """Closing the store under an open part loses nothing that was persisted."""
        with reopen() as first:
            handle = write_part(first, D1, tail=D2)
        with reopen() as second:
            second.publish(handle, "auto")
            assert finished_bytes(second, handle) == D1

    @pytest.mark.parametrize("path", ["..", "../x", "/etc", "a//b", "a/./b", "a\nb"])
    def test_a_bucket_outside_the_base_is_refused(self, path: str) -> None:
        """A handle cannot even be made of a path that leaves the base."""
        with pytest.raises(ValueError, match="below the base"):
            new_part(path)

    def test_a_part_whose_bucket_is_gone_is_not_listed(self, store: Store) -> None:
        """Listing what is not there yields nothing, reading it raises."""
        assert list(store.list("nowhere")) == []
        with pytest.raises(NotFound):
            store.read_file("nowhere/part", 1)


def _use(stream: PartStream, verb: str) -> None:
    if verb == "write":
        stream.write(b"x")
    else:
        getattr(stream, verb)()
