"""Contract of what the cleaner does: discard, look at, take away, and find what no listing shows."""

# ruff: noqa: S101 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from partfile.filesystems.contract_base import (
    ContractBase,
    State,
    files_in,
    finished_bytes,
    needs,
    needs_no_staged_files,
    new_part,
    write_part,
)
from partfile.filesystems.errors import ConfigError, LeaseUnavailable, NotApplied
from partfile.filesystems.port import STATE_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from partfile.filesystems.port import PartStream, Store

    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

DATA = b"valid bytes"
AWAY = f"{STATE_DIRECTORY}/_quarantine/0123456789abcdef"
ALWAYS_MS = 1 << 50
LONG_AGO_MS = 1_500_000_000_000
A_SECOND_MS = 1000


class CleaningContract(ContractBase):
    """Everything a cleaner does."""

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_discard_deletes_the_staged_part_once(self, store: Store, state: State) -> None:
        """Discarding says whether there was anything, and nothing there counts as done."""
        handle = write_part(store, DATA, state=state)
        assert store.discard(handle)
        assert not store.discard(handle)
        assert not files_in(store)
        assert not store.discard(new_part("nowhere"))

    def test_discard_never_touches_a_finished_part(self, store: Store) -> None:
        """The final name is not the cleaner's."""
        handle = write_part(store, DATA, state="finished")
        assert not store.discard(handle)
        assert finished_bytes(store, handle) == DATA

    def test_who_writes_a_part_is_seen_and_stays(self, store: Store, elsewhere: Elsewhere) -> None:
        """Whether somebody writes is asked without taking his lease; nobody does where nothing is."""
        handle = new_part("seen")
        path = handle.path_of(handle.in_progress)
        if not store.capabilities.lease or not store.capabilities.staged_files:
            assert store.is_being_written(path) is None
            return
        assert not store.is_being_written(path)
        stream = store.create(handle)
        stream.write(DATA)
        with elsewhere(lambda other: other.is_being_written(path)) as seen:
            assert seen is True
        stream.write(DATA)
        handle = stream.persist()
        stream.verify()
        stream.close()
        for _ in range(2):
            with elsewhere(lambda other: other.is_being_written(path)) as seen:
                assert seen is False
        store.resume(handle).close()

    def test_discard_is_refused_while_somebody_writes(self, store: Store, elsewhere: Elsewhere) -> None:
        """A part that is leased is not an orphan, whatever its age."""
        needs(store, "append", "lease")
        handle = write_part(store, DATA)
        held: list[PartStream] = []
        with elsewhere(lambda other: held.append(other.resume(handle))), pytest.raises(LeaseUnavailable):
            store.discard(handle)
        if self.leases_end_with_their_process:
            assert store.discard(handle)

    def test_look_at_shows_a_file_as_a_listing_does(self, store: Store) -> None:
        """Size and time are those of the listing, perhaps in whole seconds; what is no file is none."""
        store.create_file("a/b/file", DATA)
        (listed,) = store.list()
        seen = store.look_at("a/b/file")
        assert seen is not None
        assert (seen.path, seen.size) == (listed.path, listed.size)
        # A server that tells either time in whole seconds may round it either way.
        assert abs(seen.modified_at_ms - listed.modified_at_ms) <= 2 * A_SECOND_MS, f"{seen} and {listed}"
        for path in ("a/b", "a/b/other", "nowhere/file"):
            assert store.look_at(path) is None

    def test_look_at_sees_our_own_state(self, store: Store) -> None:
        """The age of a checkpoint's files is told by the store's clock as well."""
        store.create_file(f"{STATE_DIRECTORY}/uid/chk-1/_metadata", DATA)
        seen = store.look_at(f"{STATE_DIRECTORY}/uid/chk-1/_metadata")
        assert seen is not None
        assert seen.size == len(DATA)
        assert seen.modified_at_ms > LONG_AGO_MS

    def test_take_away_deletes_that_name_alone_and_once(self, store: Store) -> None:
        """It says whether there was anything; glob characters match nothing else."""
        for path in ("a/x*", "a/xy"):
            store.create_file(path, DATA)
        assert store.take_away("a/x*", None)
        assert not store.take_away("a/x*", None)
        assert not store.take_away("nowhere/at/all", None)
        assert set(files_in(store)) == {"a/xy"}

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_take_away_moves_a_staged_part(self, store: Store, state: State) -> None:
        """Its bytes are in the other directory under the same name, no listing shows them, and it can be put back."""
        needs(store, "staged_files")
        if not store.moves_files:
            pytest.skip("the store moves no files")
        handle = write_part(store, DATA, state=state)
        (path,) = files_in(store)
        assert path.startswith(f"{handle.bucket}/_{handle.name}")
        assert store.take_away(path, AWAY)
        assert not store.take_away(path, AWAY)
        assert not files_in(store)
        assert store.read_file(f"{AWAY}/{path.rpartition('/')[2]}", 99) == DATA

    def test_where_nothing_moves_nothing_is_touched(self, store: Store) -> None:
        """A store that could only copy and delete refuses."""
        if store.moves_files:
            pytest.skip("the store moves files")
        store.create_file("a/file", DATA)
        with pytest.raises(NotApplied):
            store.take_away("a/file", AWAY)
        assert set(files_in(store)) == {"a/file"}

    def test_take_away_is_refused_while_somebody_writes(self, store: Store, elsewhere: Elsewhere) -> None:
        """What is leased is not taken, neither to delete nor to move it, whatever its age."""
        needs(store, "append", "lease", "staged_files")
        handle = write_part(store, DATA)
        path = handle.path_of(handle.in_progress)
        held: list[PartStream] = []
        with elsewhere(lambda other: held.append(other.resume(handle))):
            for into in (None, AWAY):
                with pytest.raises(LeaseUnavailable):
                    store.take_away(path, into)
        assert store.file_exists(path)
        if self.leases_end_with_their_process:
            assert store.take_away(path, AWAY)

    @pytest.mark.parametrize("path", ["..", "../x", "/etc/x", "a//b", "", "a\x00b"])
    def test_take_away_stays_below_the_base(self, store: Store, path: str) -> None:
        """Metadata is untrusted input: the cleaner's verbs check paths as every verb does."""
        with pytest.raises(ConfigError):
            store.take_away(path, None)
        with pytest.raises(ConfigError):
            store.look_at(path)

    @pytest.mark.parametrize("tail", [b"", b"beyond" * (1 << 20)])
    def test_what_is_staged_and_is_no_file_is_found_and_dropped(self, store: Store, tail: bytes) -> None:
        """Uploads, side objects and claims of a part are found and deleted one by one."""
        needs_no_staged_files(store)
        stream = store.create(new_part())
        stream.write(DATA + tail)
        handle = stream.persist()
        if store.capabilities.append:
            resumed = store.resume(handle)
            resumed.write(DATA)
            handle = resumed.persist()
        found = list(store.leftovers((), ALWAYS_MS))
        assert found
        assert {one.name for one in found} == {handle.name}
        assert not list(store.leftovers([handle], ALWAYS_MS))
        assert not list(store.leftovers((), 1))
        for one in found:
            assert store.drop_leftover(one)
            assert not store.drop_leftover(one)
        assert not list(store.leftovers((), ALWAYS_MS))

    def test_where_parts_are_files_nothing_else_is_left_over(self, store: Store) -> None:
        """The listing shows all that is staged."""
        needs(store, "staged_files")
        write_part(store, DATA)
        assert not list(store.leftovers((), ALWAYS_MS))
