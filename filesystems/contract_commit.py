"""Contract of settle, publish and list."""

# ruff: noqa: S101, PLR2004 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from partfile.filesystems.contract_base import (
    CUTS,
    STATES,
    ContractBase,
    State,
    files_and_part,
    files_in,
    finished_bytes,
    needs,
    needs_no_staged_files,
    new_part,
    write_part,
)
from partfile.filesystems.errors import AlreadyExists, CommitConflict, LeaseUnavailable, PartMissing, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from partfile.filesystems.port import Cut, PartHandle, PartStream, Store

    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

DATA, TAIL = b"valid bytes", b"lost with its checkpoint"


def _needs_copies(store: Store) -> None:
    """Skip the test for a store that fences the writer, and so never copies for want of a lease."""
    needs(store, "append", "lease")
    if store.capabilities.fence:
        pytest.skip("the store fences instead of copying")


def _needs_cut(store: Store, cut: Cut) -> None:
    if cut == "truncate":
        needs(store, "truncate")


class CommitContract(ContractBase):
    """Everything a coordinator does with parts."""

    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("state", STATES)
    def test_publish_from_every_state_and_again(self, store: Store, state: State, cut: Cut) -> None:
        """Whatever a crash left of a part, publishing it, any number of times, ends in the one finished file."""
        _needs_cut(store, cut)
        handle = write_part(store, DATA, state=state)
        for _ in range(3):
            store.publish(handle, cut)
            assert files_in(store) == {handle.path_of(handle.name): len(DATA)}
        assert finished_bytes(store, handle) == DATA

    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_d20_a_tail_that_no_checkpoint_vouches_for_does_not_count(
        self, store: Store, reopen: Callable[[], Store], state: State, cut: Cut
    ) -> None:
        """T-D20: bytes after the last persist are in no reader's view, by each way of cutting, each time."""
        _needs_cut(store, cut)
        handle = write_part(store, DATA, tail=TAIL, state=state)
        for each in (store, reopen()):
            each.publish(handle, cut)
            assert finished_bytes(each, handle) == DATA
        if cut in {"auto", "truncate"} and store.capabilities.truncate:
            assert files_in(store) == {handle.path_of(handle.name): len(DATA)}

    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_settle_cuts_and_shows_no_final_name(self, store: Store, state: State, cut: Cut) -> None:
        """A settled part is pending: no longer open to tasks, not yet visible; settling it again changes nothing."""
        _needs_cut(store, cut)
        handle = write_part(store, DATA, tail=TAIL, state=state)
        settled = store.settle(handle, cut)
        assert settled.valid_length == len(DATA)
        assert not store.file_exists(handle.path_of(handle.name))
        before = files_in(store)
        assert store.settle(settled, cut) == settled
        assert files_in(store) == before
        with pytest.raises(LeaseUnavailable):
            store.resume(settled)
        store.publish(settled, cut)
        assert finished_bytes(store, handle) == DATA

    def test_settle_leaves_a_published_part_as_it_is(self, store: Store) -> None:
        """Settling after publishing, as a restored coordinator may do, is no error."""
        handle = write_part(store, DATA, state="finished")
        assert store.settle(handle, "auto") == handle
        assert files_in(store) == {handle.path_of(handle.name): len(DATA)}

    def test_d11_a_part_cut_before_the_valid_length_is_missing(self, store: Store) -> None:
        """T-D11: once cut to an earlier length, a part cannot be committed at a later one; nothing is published."""
        needs(store, "truncate")
        handle = write_part(store, DATA)
        store.settle(handle.at(3), "auto")
        for commit in (store.publish, store.settle):
            with pytest.raises(PartMissing) as raised:
                commit(handle, "auto")
            assert handle.name in str(raised.value)
        assert not store.file_exists(handle.path_of(handle.name))

    def test_a_part_under_none_of_its_names_is_missing(self, store: Store) -> None:
        """A part that is gone is reported, in a bucket that is there and in one that is not."""
        write_part(store, DATA)
        for handle in (new_part(name="another"), new_part("nowhere")):
            for commit in (store.publish, store.settle):
                with pytest.raises(PartMissing) as raised:
                    commit(handle, "auto")
                assert handle.name in str(raised.value)

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    @pytest.mark.parametrize("foreign", [b"", b"shorter", b"longer than the valid bytes"])
    def test_nothing_is_replaced(self, store: Store, state: State, foreign: bytes) -> None:
        """Foreign bytes under the final name stay, and so does the staged part."""
        needs(store, "no_replace")
        handle = write_part(store, DATA, state=state)
        store.create_file(handle.path_of(handle.name), foreign)
        before = files_and_part(store, handle)
        for commit in (store.publish, store.settle):
            with pytest.raises(CommitConflict) as raised:
                commit(handle, "auto")
            assert handle.name in str(raised.value)
        assert files_and_part(store, handle) == before
        assert store.read_file(handle.path_of(handle.name), 99) == foreign

    def test_where_publishing_can_replace_a_look_goes_before(self, store: Store) -> None:
        """The weaker guarantee: only what appears between the look and the publishing could be replaced."""
        if store.capabilities.no_replace:
            pytest.skip("the store claims no_replace")
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), TAIL)
        for commit in (store.publish, store.settle):
            with pytest.raises(CommitConflict):
                commit(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 99) == TAIL

    def test_a_finished_file_of_the_valid_length_counts_as_published(self, store: Store) -> None:
        """Another coordinator's copy is accepted, and a staged file that is another one is left to the cleaner."""
        needs(store, "staged_files")
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), DATA)
        store.publish(handle, "auto")
        expected = {handle.path_of(handle.name): len(DATA), handle.path_of(handle.pending): len(DATA)}
        assert files_and_part(store, handle) == expected

    def test_a_finished_file_that_is_not_ours_is_a_conflict_whatever_its_length(self, store: Store) -> None:
        """Where nothing is ever copied, a file of the valid length under the final name is still somebody else's."""
        needs_no_staged_files(store)
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), DATA)
        for commit in (store.publish, store.settle):
            with pytest.raises(CommitConflict):
                commit(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 99) == DATA

    def test_the_sidecar_holds_the_valid_length_and_never_changes(self, store: Store) -> None:
        """A part published with its tail has a sidecar in plain ASCII decimal, with which publishing is repeatable."""
        needs(store, "append", "staged_files")
        handle = write_part(store, DATA, tail=TAIL)
        settled = store.settle(handle, "valid-length")
        assert store.read_file(handle.path_of(handle.sidecar), 20) == str(len(DATA)).encode()
        for cut in ("valid-length", *CUTS):
            store.publish(settled, cut)
            assert store.read_file(handle.path_of(handle.sidecar), 20) == str(len(DATA)).encode()
        assert files_in(store)[handle.path_of(handle.name)] == len(DATA + TAIL)

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("content", [b"3", b"", b"eleven", b" 11", b"011", b"-11", b"9" * 30])
    def test_a_sidecar_that_says_something_else_is_a_conflict(self, store: Store, state: State, content: bytes) -> None:
        """Readers would believe the sidecar, so nothing is published beside one that is wrong."""
        needs(store, "staged_files")
        handle = write_part(store, DATA, tail=TAIL, state=state)
        store.create_file(handle.path_of(handle.sidecar), content)
        before = files_and_part(store, handle)
        for cut in CUTS:
            with pytest.raises(CommitConflict):
                store.publish(handle, cut)
        assert files_and_part(store, handle) == before

    def test_a_finished_file_shorter_than_its_sidecar_is_a_conflict(self, store: Store) -> None:
        """A right sidecar does not make up for bytes that are gone."""
        handle = write_part(store, DATA)
        store.create_file(handle.path_of(handle.sidecar), str(len(DATA)).encode())
        store.create_file(handle.path_of(handle.name), DATA[:-1])
        with pytest.raises(CommitConflict):
            store.publish(handle, "valid-length")

    @pytest.mark.parametrize("cut", CUTS)
    def test_publish_copies_what_it_cannot_lease(self, store: Store, elsewhere: Elsewhere, cut: Cut) -> None:
        """A part held by another process is not cut: its valid prefix is copied and takes the final name."""
        _needs_copies(store)
        handle = write_part(store, DATA)
        held: list[PartStream] = []

        def hold(other: Store) -> None:
            held.append(other.resume(handle))
            held[0].write(TAIL)

        with elsewhere(hold):
            store.publish(handle, cut)
            store.publish(handle, cut)
            assert files_in(store) == {
                handle.path_of(handle.name): len(DATA),
                handle.path_of(handle.in_progress): len(DATA + TAIL),
            }
        store.publish(handle, cut)
        assert finished_bytes(store, handle) == DATA

    def test_settle_copies_what_it_cannot_lease(self, store: Store, reopen: Callable[[], Store]) -> None:
        """The handle of the copy names it, with a token of its own, and publishes to the same final name."""
        _needs_copies(store)
        stream = reopen().create(new_part())
        stream.write(DATA)
        handle = stream.persist()
        stream.write(TAIL)
        settled = store.settle(handle, "auto")
        assert settled.pending not in {handle.pending, handle.in_progress}
        assert (settled.name, settled.bucket, settled.valid_length) == (handle.name, handle.bucket, len(DATA))
        store.publish(settled, "auto")
        stream.verify()
        stream.close()
        assert finished_bytes(store, handle) == DATA
        assert store.file_exists(handle.path_of(handle.in_progress))

    def test_a_zombie_cannot_reach_a_published_part(self, store: Store, reopen: Callable[[], Store]) -> None:
        """Whoever held the part while it was published is fenced, or writes into his own file for ever after."""
        needs(store, "lease")
        zombie = reopen().create(new_part())
        zombie.write(DATA)
        handle = zombie.persist()
        store.publish(handle, "auto")
        if store.capabilities.fence:
            with pytest.raises(StoreError):
                _write_on(zombie)
            zombie.close()
        else:
            store.publish(_write_on(zombie).at(len(DATA)), "auto")
        assert finished_bytes(store, handle) == DATA

    @pytest.mark.parametrize("cut", CUTS)
    def test_publish_fences_another_process_that_writes(self, store: Store, elsewhere: Elsewhere, cut: Cut) -> None:
        """S5: the lease is taken from a living writer, and the bytes that he has not made durable are in no view."""
        needs(store, "append", "lease", "fence")
        _needs_cut(store, cut)
        handle = write_part(store, DATA)
        held: list[PartStream] = []

        def hold(other: Store) -> None:
            held.append(other.resume(handle))
            held[0].write(TAIL)

        with elsewhere(hold):
            for _ in range(2):
                store.publish(handle, cut)
                assert finished_bytes(store, handle) == DATA

    def test_list_yields_every_file_but_our_own_state(self, store: Store) -> None:
        """Listing walks all buckets, gives sizes and times, and leaves partfile's state directory out."""
        for path in ("top", "a/b/c/deep", "a/_hidden", "_partfile/uid/chk-1/_metadata", "a/_partfile/x"):
            store.create_file(path, path.encode())
        assert files_in(store) == {path: len(path) for path in ("top", "a/b/c/deep", "a/_hidden", "a/_partfile/x")}
        assert {file.path for file in store.list("a/b")} == {"a/b/c/deep"}
        assert all(file.modified_at_ms > 1_500_000_000_000 for file in store.list())

    def test_a_final_name_is_not_taken_twice(self, store: Store) -> None:
        """Two parts with one final name, which counters exclude, do not overwrite each other."""
        needs(store, "no_replace")
        first, second = write_part(store, DATA), write_part(store, DATA + TAIL)
        store.publish(first, "auto")
        with pytest.raises(CommitConflict):
            store.publish(second, "auto")
        with pytest.raises(AlreadyExists):
            store.create_file(first.path_of(first.name), TAIL)
        assert finished_bytes(store, first) == DATA


def _write_on(zombie: PartStream) -> PartHandle:
    """What somebody does who does not know that his part was published."""
    zombie.write(TAIL)
    return zombie.close_for_commit()
