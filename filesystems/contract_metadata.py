"""Contract of metadata files and markers."""

# ruff: noqa: S101 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from partfile.filesystems.contract_base import ContractBase
from partfile.filesystems.errors import AlreadyExists, ConfigError, FileTooLarge, NotFound, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from partfile.filesystems.port import Store

    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

LINK = "_partfile/uid/chk-1/_metadata"
MARKER = "_partfile/uid/_marker"


class MetadataContract(ContractBase):
    """Everything a coordinator does with its small files. Uses no part files: a MetadataStore alone can pass it.

    A store that no other process sees overrides ``elsewhere`` to work on another store of this process.
    """

    @pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 8192])
    def test_a_created_file_is_read_back_by_another_store(
        self, store: Store, reopen: Callable[[], Store], data: bytes
    ) -> None:
        """Creating makes the directories, and every store on the base reads exactly these bytes."""
        store.create_file(LINK, data)
        with reopen() as other:
            assert other.read_file(LINK, len(data)) == data
            assert other.file_exists(LINK)
            assert other.list_names("_partfile/uid/chk-1") == ["_metadata"]

    def test_creating_a_file_is_exclusive(self, store: Store, reopen: Callable[[], Store]) -> None:
        """The second creation raises and leaves the first bytes and nothing else behind."""
        store.create_file(LINK, b"first")
        for each in (store, reopen()):
            with pytest.raises(AlreadyExists):
                each.create_file(LINK, b"second")
        assert store.read_file(LINK, 5) == b"first"
        assert store.list_names("_partfile/uid/chk-1") == ["_metadata"]

    def test_of_many_rivals_one_creates(self, store: Store, reopen: Callable[[], Store]) -> None:
        """Of creations at the same time exactly one succeeds, and its bytes are whole."""
        barrier, won = threading.Barrier(8), []

        def create(rival: int) -> None:
            with reopen() as other:
                barrier.wait()
                try:
                    other.create_file(LINK, bytes([rival]) * 4096)
                except AlreadyExists:
                    return
                won.append(rival)

        threads = [threading.Thread(target=create, args=(rival,)) for rival in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read_file(LINK, 4096) == bytes(won) * 4096

    def test_a_file_that_is_longer_than_allowed_is_refused(self, store: Store) -> None:
        """Reading is bounded, so that a damaged file cannot exhaust memory."""
        store.create_file(LINK, b"12345")
        assert store.read_file(LINK, 5) == b"12345"
        with pytest.raises(FileTooLarge):
            store.read_file(LINK, 4)

    def test_what_is_not_there(self, store: Store) -> None:
        """Absent files and directories read as NotFound, list as empty, and delete as done."""
        store.create_file("here/file", b"")
        for path in ("here/other", "nowhere/file", "nowhere/at/all"):
            with pytest.raises(NotFound):
                store.read_file(path, 1)
            assert not store.file_exists(path)
            assert store.list_names(path) == []
            store.delete_file(path)
            store.delete_directory(path)
        assert not store.file_exists("here")

    def test_names_of_files_and_directories_are_listed(self, store: Store) -> None:
        """Listing gives what is directly in a directory, of either kind."""
        for path in ("job/file", "job/chk-1/_metadata", "job/chk-2/a/b"):
            store.create_file(path, b"")
        assert sorted(store.list_names("job")) == ["chk-1", "chk-2", "file"]
        assert sorted(store.list_names("")) == ["job"]

    def test_delete_file_deletes_that_name_alone(self, store: Store) -> None:
        """A name is literal: glob characters match nothing else."""
        for path in ("job/a*", "job/ab", "job/a?"):
            store.create_file(path, b"")
        store.delete_file("job/a*")
        assert sorted(store.list_names("job")) == ["a?", "ab"]
        store.create_file("job/a*", b"again")

    def test_delete_directory_deletes_it_and_its_files(self, store: Store) -> None:
        """A checkpoint's directory goes with all it holds, and its neighbours stay."""
        for path in ("job/chk-1/_metadata", "job/chk-1/state", "job/chk-10/_metadata"):
            store.create_file(path, b"")
        store.delete_directory("job/chk-1")
        assert store.list_names("job") == ["chk-10"]
        assert store.file_exists("job/chk-10/_metadata")

    def test_delete_directory_is_not_recursive(self, store: Store) -> None:
        """What lies deeper was not made by a checkpoint and is not deleted with it."""
        store.create_file("job/chk-1/deeper/file", b"")
        with pytest.raises(StoreError):
            store.delete_directory("job/chk-1")
        assert store.file_exists("job/chk-1/deeper/file")

    @pytest.mark.parametrize("path", ["", "..", "../x", "/etc/x", "a//b", "a/./b", "a/../b", "a\x00b", "x" * 256])
    def test_paths_that_leave_the_base_are_refused(self, store: Store, path: str) -> None:
        """Every verb checks what it is given, since names come from metadata too."""
        verbs: list[Callable[[], object]] = [
            lambda: store.create_file(path, b""),
            lambda: store.read_file(path, 1),
            lambda: store.file_exists(path),
            lambda: store.delete_file(path),
            lambda: store.delete_directory(path),
            lambda: store.hold_marker(path),
            lambda: store.marker_is_held(path),
        ]
        for verb in verbs:
            with pytest.raises(ConfigError):
                verb()
        if path:
            with pytest.raises(ConfigError):
                store.list_names(path)
        assert store.list_names("") == []

    def test_a_marker_is_held_by_one_process_and_seen_by_all(self, store: Store, elsewhere: Elsewhere) -> None:
        """S13: while another process holds the marker it is seen as held and cannot be held here."""
        with elsewhere(lambda other: other.hold_marker(MARKER)) as held:
            assert held is True
            assert store.marker_is_held(MARKER)
            assert not store.hold_marker(MARKER)
        if self.leases_end_with_their_process:
            assert not store.marker_is_held(MARKER)
            assert store.hold_marker(MARKER)
            assert store.hold_marker(MARKER)

    def test_another_process_sees_the_marker_of_this_one(self, store: Store, elsewhere: Elsewhere) -> None:
        """What the task on an executor does: it sees the driver's marker as held, looking changes nothing."""
        assert store.hold_marker(MARKER)
        for _ in range(2):
            with elsewhere(lambda other: other.marker_is_held(MARKER)) as seen:
                assert seen is True
        with elsewhere(lambda other: other.hold_marker(MARKER)) as held:
            assert held is False

    def test_a_marker_is_free_when_its_store_is_closed(self, store: Store, reopen: Callable[[], Store]) -> None:
        """The lock ends with the store, although the file stays, and a child that was forked meanwhile lives on."""
        with reopen() as other:
            assert other.hold_marker(MARKER)
            assert store.marker_is_held(MARKER)
        assert not store.marker_is_held(MARKER)

    def test_a_deleted_marker_is_made_again(self, store: Store, elsewhere: Elsewhere) -> None:
        """A lock on a file that nobody can see proves nothing: holding it again makes and locks a visible one."""
        assert store.hold_marker(MARKER)
        store.delete_file(MARKER)
        assert store.hold_marker(MARKER)
        with elsewhere(lambda other: other.marker_is_held(MARKER)) as seen:
            assert seen is True

    def test_a_marker_that_is_not_visible_says_so(self, store: Store) -> None:
        """The error explains that the base is not shared, rather than that a file is missing."""
        with pytest.raises(NotFound) as raised:
            store.marker_is_held(MARKER)
        assert "share" in str(raised.value)

    def test_the_store_may_be_closed_twice(self, reopen: Callable[[], Store]) -> None:
        """Closing is idempotent; a closed store refuses to work."""
        store = reopen()
        store.close()
        store.close()
        with pytest.raises(StoreError):
            store.create_file(LINK, b"")


class ForkedMarkerContract(ContractBase):
    """What a process that is forked does to the markers of its parent, for stores that another process can see."""

    def test_a_marker_is_not_freed_by_a_forked_child(self, store: Store, elsewhere: Elsewhere) -> None:
        """A child that inherits the store does not hold its marker, and closing it leaves the lock with the parent."""
        assert store.hold_marker(MARKER)
        with elsewhere(lambda _: store.hold_marker(MARKER)) as held:
            assert held is False
        with elsewhere(lambda _: store.close()), elsewhere(lambda other: other.marker_is_held(MARKER)) as seen:
            assert seen is True
