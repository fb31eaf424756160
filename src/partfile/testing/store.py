"""The contract of the ports as a pytest suite, for every store, ours or yours.

    from partfile.testing.store import StoreContract

    class TestMyStore(StoreContract):
        @pytest.fixture
        def reopen(self, tmp_path):
            return lambda: MyStore(tmp_path)

A store of metadata files alone passes ``MetadataContract``. Tests of what a store does not claim in its
``capabilities`` are skipped. To see the values in failed assertions, call
``pytest.register_assert_rewrite("partfile.testing")`` in a ``conftest.py`` before this module is imported.
"""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import warnings
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from partfile.errors import (
    AlreadyExists,
    CommitConflict,
    ConfigError,
    FileTooLarge,
    LeaseUnavailable,
    NotApplied,
    NotFound,
    PartfileError,
    PartMissing,
    StoreError,
)
from partfile.stores.base import STATE_DIRECTORY, Capabilities, PartHandle
from partfile.stores.parts import staged_names
from partfile.stores.paths import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.stores.base import Cut, PartStream, Store


State = Literal["in-progress", "pending", "finished"]

STATES: tuple[State, ...] = ("in-progress", "pending", "finished")
CUTS: tuple[Cut, ...] = ("auto", "truncate", "rewrite", "valid-length")
MAX_BYTES = 1 << 20


def new_part(bucket: str = "day=1", name: str = "part-0000abcd-0-0") -> PartHandle:
    """A part that is not created yet, with a token of its own."""
    token = new_token()
    return PartHandle(
        bucket=bucket,
        name=name,
        in_progress=f"_{name}.{token}.in-progress",
        pending=f"_{name}.{token}.pending",
        sidecar=f"_{name}.valid-length",
        valid_length=0,
    )


def new_staging_file(bucket: str = "day=1", name: str = "part-0000abcd-0-0") -> PartHandle:
    """The same for a staging file."""
    return new_part(bucket, name).model_copy(update={"is_staging_file": True})


def write_part(store: Store, valid: bytes, *, tail: bytes = b"", state: State = "in-progress") -> PartHandle:
    """Bring a part to a state, with ``valid`` vouched for and ``tail`` written after it."""
    handle = new_part()
    stream = store.create(handle)
    stream.write(valid)
    handle = store.prepare(stream.persist())
    stream.write(tail)
    if state == "in-progress":
        stream.close()
    else:
        stream.close_for_commit()
    if state == "finished":
        store.publish(handle, "auto")
    return handle


def files_in(store: Store) -> dict[str, int]:
    """Every file below the base and its size."""
    return {file.path: file.size for file in store.list()}


def files_and_part(store: Store, handle: PartHandle) -> dict[str, int]:
    """Every file below the base and its size, with the part under its pending name if it is staged.

    A store may make a part pending before it finds that it cannot commit it (R5).
    """
    files = files_in(store)
    if handle.path_of(handle.in_progress) in files:
        files[handle.path_of(handle.pending)] = files.pop(handle.path_of(handle.in_progress))
    return files


def finished_bytes(store: Store, handle: PartHandle) -> bytes:
    """What a reader that honours sidecars gets of a published part."""
    data = store.read_file(handle.path_of(handle.name), MAX_BYTES)
    sidecar = handle.path_of(handle.sidecar)
    return data[: int(store.read_file(sidecar, 20))] if store.file_exists(sidecar) else data


def needs(store: Store, *capabilities: str) -> None:
    """Skip the test for a store that does not claim what it is about."""
    for capability in capabilities:
        if not getattr(store.capabilities, capability):
            pytest.skip(f"the store does not claim {capability}")


def needs_no_staged_files(store: Store) -> None:
    """Skip the test for a store whose parts are files from the start."""
    if store.capabilities.staged_files:
        pytest.skip("staged parts are files")


@contextmanager
def neighbour(reopen: Callable[[], Store], work: Callable[[Store], Any]) -> Iterator[Any]:
    """Run ``work`` in a forked process on a store of its own, and yield its result while that process lives on.

    An error of ours is returned as the name of its class.
    """
    result_read, result_write = os.pipe()
    end_read, end_write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        # What the parent left behind must not be collected here: clients may wait for threads that a child has not got.
        gc.freeze()
        try:
            os.close(end_write)
            os.write(result_write, _result_of(reopen, work))
            os.close(result_write)
            os.read(end_read, 1)
        finally:
            os._exit(0)
    os.close(result_write)
    os.close(end_read)
    try:
        with os.fdopen(result_read, "rb") as pipe:
            answer = pipe.read()
        assert answer, "the other process died without an answer"
        yield json.loads(answer)
    finally:
        os.close(end_write)
        os.waitpid(child, 0)


def _result_of(reopen: Callable[[], Store], work: Callable[[Store], Any]) -> bytes:
    try:
        # Left open: its locks must live as long as the process.
        return json.dumps(work(reopen())).encode()
    except PartfileError as error:
        return json.dumps(type(error).__name__).encode()
    except BaseException as error:  # noqa: BLE001 - the test must see it, for this process has no other voice.
        return json.dumps(f"unexpected {error!r}").encode()


class ContractBase:
    """Fixtures of the suite. A subclass must override ``reopen``, and may override the others."""

    leases_end_with_their_process = True
    """False for a store on which the lease of a process that was killed lives on for a while."""

    @pytest.fixture
    def reopen(self) -> Callable[[], Store]:
        """A function that opens one more independent store on the base of this test; the base starts out empty."""
        raise NotImplementedError("a contract suite needs a fixture reopen")

    @pytest.fixture
    def store(self, reopen: Callable[[], Store]) -> Iterator[Store]:
        """The store under test."""
        with reopen() as store:
            yield store

    @pytest.fixture
    def elsewhere(self, reopen: Callable[[], Store]) -> Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]:
        """A function that runs work on a store in another process, which lives as long as the ``with`` block."""
        return lambda work: neighbour(reopen, work)


if TYPE_CHECKING:
    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

D1, D2, D3 = b"one ", b"two ", b"three"


class ClaimContract(ContractBase):
    """What stands for leases where there are none: one handle can be resumed once."""

    def test_of_several_who_resume_one_handle_one_extends_the_part(
        self, store: Store, reopen: Callable[[], Store], elsewhere: Elsewhere
    ) -> None:
        """Where a handle can be resumed once, every other task is refused for good, even when the first one is gone."""
        needs(store, "append")
        needs_no_staged_files(store)
        handle = write_part(store, D1)
        with elsewhere(lambda other: other.resume(handle).close()) as result:
            assert result is None
        for each in (store, reopen()):
            with pytest.raises(LeaseUnavailable):
                each.resume(handle)
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1

    def test_who_goes_on_after_a_persist_competes_with_who_resumes(self, store: Store) -> None:
        """A stream that has given a handle out extends the part no more once another stream has resumed that handle."""
        needs(store, "append")
        needs_no_staged_files(store)
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        resumed = store.resume(handle)
        stream.write(D3)
        with pytest.raises(LeaseUnavailable):
            stream.persist()
        stream.close()
        resumed.write(D2)
        store.publish(resumed.close_for_commit(), "auto")
        assert finished_bytes(store, handle) == D1 + D2

    def test_what_another_writer_adds_to_a_handle_is_in_no_other_file(self, store: Store) -> None:
        """A part published from an earlier handle has the bytes of that one, whatever a zombie has added since."""
        needs(store, "append")
        needs_no_staged_files(store)
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        stream.close()
        zombie = store.resume(handle)
        zombie.write(D2)
        zombie.persist()
        store.publish(store.prepare(handle), "auto")
        assert finished_bytes(store, handle) == D1
        zombie.write(D3)
        with pytest.raises(CommitConflict):
            store.publish(zombie.close_for_commit(), "auto")
        assert finished_bytes(store, handle) == D1


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
        """Asking whether a part is being written takes no lease; a part that is not there is not."""
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

    def test_discard_is_refused_while_another_process_writes(self, store: Store, elsewhere: Elsewhere) -> None:
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

    def test_remove_deletes_that_name_alone_and_once(self, store: Store) -> None:
        """It says whether there was anything; glob characters match nothing else."""
        for path in ("a/x*", "a/xy"):
            store.create_file(path, DATA)
        assert store.remove("a/x*", None)
        assert not store.remove("a/x*", None)
        assert not store.remove("nowhere/at/all", None)
        assert set(files_in(store)) == {"a/xy"}

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_remove_moves_a_staged_part(self, store: Store, state: State) -> None:
        """Its bytes are in the other directory under the same name, no listing shows them, and it can be put back."""
        needs(store, "staged_files")
        if not store.moves_files:
            pytest.skip("the store moves no files")
        handle = write_part(store, DATA, state=state)
        (path,) = files_in(store)
        assert path.startswith(f"{handle.bucket}/_{handle.name}")
        assert store.remove(path, AWAY)
        assert not store.remove(path, AWAY)
        assert not files_in(store)
        assert store.read_file(f"{AWAY}/{path.rpartition('/')[2]}", 99) == DATA

    def test_where_nothing_moves_nothing_is_touched(self, store: Store) -> None:
        """A store that could only copy and delete refuses."""
        if store.moves_files:
            pytest.skip("the store moves files")
        store.create_file("a/file", DATA)
        with pytest.raises(NotApplied):
            store.remove("a/file", AWAY)
        assert set(files_in(store)) == {"a/file"}

    def test_remove_is_refused_while_another_process_writes(self, store: Store, elsewhere: Elsewhere) -> None:
        """What is leased is not taken, neither to delete nor to move it, whatever its age."""
        needs(store, "append", "lease", "staged_files")
        handle = write_part(store, DATA)
        path = handle.path_of(handle.in_progress)
        held: list[PartStream] = []
        with elsewhere(lambda other: held.append(other.resume(handle))):
            for into in (None, AWAY):
                with pytest.raises(LeaseUnavailable):
                    store.remove(path, into)
        assert store.file_exists(path)
        if self.leases_end_with_their_process:
            assert store.remove(path, AWAY)

    @pytest.mark.parametrize("path", ["..", "../x", "/etc/x", "a//b", "", "a\x00b"])
    def test_remove_stays_below_the_base(self, store: Store, path: str) -> None:
        """Metadata is untrusted input: the cleaner's verbs check paths as every verb does."""
        with pytest.raises(ConfigError):
            store.remove(path, None)
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


TAIL = b"lost with its checkpoint"


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
        """Bytes after the last persist are in no reader's view, by each way of cutting, each time."""
        _needs_cut(store, cut)
        handle = write_part(store, DATA, tail=TAIL, state=state)
        for each in (store, reopen()):
            each.publish(handle, cut)
            assert finished_bytes(each, handle) == DATA
        if cut in {"auto", "truncate"} and store.capabilities.truncate:
            assert files_in(store) == {handle.path_of(handle.name): len(DATA)}

    def test_d11_a_part_shorter_than_the_valid_length_is_missing(self, store: Store) -> None:
        """A part that is shorter than its valid length is not published."""
        needs(store, "staged_files")
        handle = write_part(store, DATA)
        if handle.staging:
            pytest.skip("the handle says how long the staged file is")
        for _ in range(2):
            with pytest.raises(PartMissing) as raised:
                store.publish(handle.at(len(DATA) + 1), "auto")
            assert handle.name in str(raised.value)
        assert not store.file_exists(handle.path_of(handle.name))
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == DATA

    def test_a_part_under_none_of_its_names_is_missing(self, store: Store) -> None:
        """A part that is gone is reported, in a bucket that is there and in one that is not."""
        write_part(store, DATA)
        for handle in (new_part(name="another"), new_part("nowhere")):
            with pytest.raises(PartMissing) as raised:
                store.publish(handle, "auto")
            assert handle.name in str(raised.value)

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    @pytest.mark.parametrize("foreign", [b"", b"shorter", b"longer than the valid bytes"])
    def test_nothing_is_replaced(self, store: Store, state: State, foreign: bytes) -> None:
        """Foreign bytes under the final name stay, and so does the staged part."""
        needs(store, "no_replace")
        handle = write_part(store, DATA, state=state)
        store.create_file(handle.path_of(handle.name), foreign)
        before = files_and_part(store, handle)
        with pytest.raises(CommitConflict) as raised:
            store.publish(handle, "auto")
        assert handle.name in str(raised.value)
        assert files_and_part(store, handle) == before
        assert store.read_file(handle.path_of(handle.name), 99) == foreign

    def test_where_publishing_can_replace_a_look_goes_before(self, store: Store) -> None:
        """The weaker guarantee: only what appears between the look and the publishing could be replaced."""
        if store.capabilities.no_replace:
            pytest.skip("the store claims no_replace")
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), TAIL)
        with pytest.raises(CommitConflict):
            store.publish(handle, "auto")
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
        """Where nothing is ever copied, a file of the valid length under the final name is still foreign."""
        needs_no_staged_files(store)
        handle = write_part(store, DATA, state="pending")
        store.create_file(handle.path_of(handle.name), DATA)
        with pytest.raises(CommitConflict):
            store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), 99) == DATA

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_a_finished_file_with_other_bytes_is_a_conflict(self, store: Store, state: State) -> None:
        """R5: a file of the right length is not believed where the part itself is there to compare it with."""
        needs(store, "staged_files", "no_replace")
        handle = write_part(store, DATA, state=state)
        foreign = DATA[::-1]
        store.create_file(handle.path_of(handle.name), foreign)
        for _ in range(2):
            with pytest.raises(CommitConflict) as raised:
                store.publish(handle, "auto")
            assert handle.name in str(raised.value)
        assert store.read_file(handle.path_of(handle.name), 99) == foreign
        assert store.is_staged(handle)

    def test_the_sidecar_holds_the_valid_length_and_never_changes(self, store: Store) -> None:
        """A part published with its tail has a sidecar in plain ASCII decimal, with which publishing is repeatable."""
        needs(store, "append", "staged_files")
        handle = write_part(store, DATA, tail=TAIL)
        for cut in ("valid-length", *CUTS):
            store.publish(handle, cut)
            assert store.read_file(handle.path_of(handle.sidecar), 20) == str(len(DATA)).encode()
        assert files_in(store)[handle.path_of(handle.name)] == len(DATA + TAIL)

    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("length", [b"3", b"13"])
    def test_a_sidecar_from_before_a_rollback_is_in_no_way(
        self, store: Store, state: State, cut: Cut, length: bytes
    ) -> None:
        """Nothing has the final name, so no reader has looked at it; a crash and a rollback may leave one (R3, R6)."""
        needs(store, "lease")
        _needs_cut(store, cut)
        handle = write_part(store, DATA, tail=TAIL, state=state)
        store.create_file(handle.path_of(handle.sidecar), length)
        for _ in range(2):
            store.publish(handle, cut)
            assert finished_bytes(store, handle) == DATA

    def test_a_sidecar_of_another_length_beside_a_finished_file_is_a_conflict(self, store: Store) -> None:
        """Readers believe it, so it is not changed."""
        needs(store, "staged_files")
        handle = write_part(store, DATA, tail=TAIL, state="finished")
        store.create_file(handle.path_of(handle.sidecar), b"3")
        before = files_in(store)
        for cut in CUTS:
            with pytest.raises(CommitConflict):
                store.publish(handle, cut)
        assert files_in(store) == before

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("content", [b"", b"eleven", b" 11", b"011", b"-11", b"9" * 30])
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
        # A coordinator asks what a store can do before it publishes; some find out by trying.
        assert store.capabilities is not None
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
            files = files_in(store)
            assert files.pop(handle.path_of(handle.name)) == len(DATA)
            assert list(files.values()) == [len(DATA + TAIL)]
            # The original has no name by which it could be published again (R5).
            assert not files.keys() & {handle.path_of(name) for name in staged_names(handle)}
        store.publish(handle, cut)
        assert finished_bytes(store, handle) == DATA

    @pytest.mark.parametrize("cut", CUTS)
    @pytest.mark.parametrize("state", ["in-progress", "pending"])
    def test_what_a_consumer_took_does_not_come_back(self, store: Store, state: State, cut: Cut) -> None:
        """R5: a finished file that a consumer has moved away is not published again, however it was cut."""
        needs(store, "exclusive_create")
        _needs_cut(store, cut)
        handle = write_part(store, DATA, tail=TAIL, state=state)
        store.publish(handle, cut)
        store.delete_file(handle.path_of(handle.name))
        with pytest.raises(PartMissing) as raised:
            store.publish(handle, cut)
        assert raised.value.nothing_left
        assert not store.file_exists(handle.path_of(handle.name))

    def test_a_zombie_cannot_reach_a_published_part(self, store: Store, reopen: Callable[[], Store]) -> None:
        """A writer that held the part while it was published is refused, whatever it does from then on."""
        needs(store, "lease")
        zombie = reopen().create(new_part())
        zombie.write(DATA)
        handle = zombie.persist()
        store.publish(handle, "auto")
        with pytest.raises(StoreError):
            _write_on(zombie)
        zombie.close()
        assert finished_bytes(store, handle) == DATA

    @pytest.mark.parametrize("cut", CUTS)
    def test_publish_fences_another_process_that_writes(self, store: Store, elsewhere: Elsewhere, cut: Cut) -> None:
        """R5: the lease is taken from a living writer, and the bytes that it has not made durable are in no view."""
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
    """What a writer does that does not know that its part was published."""
    zombie.write(TAIL)
    return zombie.close_for_commit()


METADATA = "_partfile/uid/chk-1/_metadata"
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
        store.create_file(METADATA, data)
        with reopen() as other:
            assert other.read_file(METADATA, len(data)) == data
            assert other.file_exists(METADATA)
            assert other.list_names("_partfile/uid/chk-1") == ["_metadata"]

    def test_creating_a_file_is_exclusive(self, store: Store, reopen: Callable[[], Store]) -> None:
        """The second creation raises and leaves the first bytes and nothing else behind."""
        store.create_file(METADATA, b"first")
        for each in (store, reopen()):
            with pytest.raises(AlreadyExists):
                each.create_file(METADATA, b"second")
        assert store.read_file(METADATA, 5) == b"first"
        assert store.list_names("_partfile/uid/chk-1") == ["_metadata"]

    def test_of_many_rivals_one_creates(self, store: Store, reopen: Callable[[], Store]) -> None:
        """Of creations at the same time exactly one succeeds, and its bytes are whole."""
        # A store of metadata files alone states no capabilities.
        if not getattr(getattr(store, "capabilities", None), "exclusive_create", True):
            pytest.skip("the store does not claim exclusive_create")
        barrier, won = threading.Barrier(8), []

        def create(rival: int) -> None:
            with reopen() as other:
                barrier.wait()
                try:
                    other.create_file(METADATA, bytes([rival]) * 4096)
                except AlreadyExists:
                    return
                won.append(rival)

        threads = [threading.Thread(target=create, args=(rival,)) for rival in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.read_file(METADATA, 4096) == bytes(won) * 4096

    def test_a_file_that_is_longer_than_allowed_is_refused(self, store: Store) -> None:
        """Reading is bounded, so that a damaged file cannot exhaust memory."""
        store.create_file(METADATA, b"12345")
        assert store.read_file(METADATA, 5) == b"12345"
        with pytest.raises(FileTooLarge):
            store.read_file(METADATA, 4)

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
        """R13: while another process holds the marker it is seen as held and cannot be held here."""
        _needs_locks(store)
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
            assert held is not store.markers_are_locks

    def test_a_marker_is_free_when_its_store_is_closed(self, store: Store, reopen: Callable[[], Store]) -> None:
        """The lock ends with the store, although the file stays, and a child that was forked meanwhile lives on."""
        _needs_locks(store)
        with reopen() as other:
            assert other.hold_marker(MARKER)
            assert store.marker_is_held(MARKER)
        assert not store.marker_is_held(MARKER)

    def test_a_deleted_marker_is_made_again(self, store: Store, elsewhere: Elsewhere) -> None:
        """A lock on an invisible file proves nothing: holding it again makes and locks a visible one."""
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
            store.create_file(METADATA, b"")


def _needs_locks(store: Store) -> None:
    if not store.markers_are_locks:
        pytest.skip("markers are no locks")


class ForkedMarkerContract(ContractBase):
    """What a process that is forked does to the markers of its parent, for stores that another process can see."""

    def test_a_marker_is_not_freed_by_a_forked_child(self, store: Store, elsewhere: Elsewhere) -> None:
        """A child that inherits the store does not hold its marker, and closing it leaves the lock with the parent."""
        assert store.hold_marker(MARKER)
        with elsewhere(lambda _: store.hold_marker(MARKER)) as held:
            assert held is not store.markers_are_locks
        with elsewhere(lambda _: store.close()), elsewhere(lambda other: other.marker_is_held(MARKER)) as seen:
            assert seen is True


class PartContract(ContractBase):
    """Everything a task does with its parts. Most scenarios are those of Flink's RecoverableWriter suite."""

    def test_d01_a_part_without_data_is_one_hidden_file_and_then_one_finished_file(self, store: Store) -> None:
        """An empty part shows no final name before it is published, and nothing else afterwards."""
        handle = new_part()
        stream = store.create(handle)
        assert set(files_in(store)) <= {handle.path_of(handle.in_progress)}
        store.publish(stream.close_for_commit(), "auto")
        assert files_in(store) == {handle.path_of(handle.name): 0}

    def test_d02_what_is_written_is_published(self, store: Store) -> None:
        """Written and committed bytes are the finished file."""
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.close_for_commit()
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1

    def test_d03_a_persist_between_two_writes_changes_nothing(self, store: Store) -> None:
        """A persist in the middle leaves no trace in the finished file."""
        stream = store.create(new_part())
        stream.write(D1)
        stream.persist()
        stream.write(D2)
        handle = stream.close_for_commit()
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1 + D2

    @pytest.mark.parametrize("persists", [[b""], [D1], [D1, b""], [D1, b"", D2]])
    def test_d04_to_d07_a_part_is_resumed_where_it_was_persisted(self, store: Store, persists: list[bytes]) -> None:
        """A resumed part goes on after exactly the persisted bytes, as one single file."""
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
        """The handle alone suffices to publish, after any number of persists."""
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
        """After close_for_commit nothing can be added, and committing twice fails."""
        stream = store.create(new_part())
        stream.close_for_commit()
        with pytest.raises(StoreError):
            _use(stream, verb)
        stream.close()

    def test_d10_a_published_part_cannot_be_resumed(self, store: Store) -> None:
        """The handle of a finished part opens nothing."""
        handle = write_part(store, D1, state="finished")
        with pytest.raises(LeaseUnavailable):
            store.resume(handle)
        assert finished_bytes(store, handle) == D1

    def test_d12_the_final_name_appears_only_when_it_is_published(self, store: Store) -> None:
        """Closing for commit shows no final name; publishing shows the identical bytes."""
        data = random.Random(12).randbytes(16 << 10)  # noqa: S311 - test data.
        stream = store.create(new_part())
        stream.write(data)
        handle = stream.close_for_commit()
        assert not store.file_exists(handle.path_of(handle.name))
        store.publish(handle, "auto")
        assert store.read_file(handle.path_of(handle.name), MAX_BYTES) == data

    def test_d22_a_persisted_stream_stays_usable(self, store: Store) -> None:
        """Each persist returns all bytes so far, and a second one without a write the same length."""
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
        store.publish(store.prepare(handle), "auto")
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


_PERSISTS = 70
_MOST_HANDLE_BYTES = 4_000


class StagingContract(ContractBase):
    """Everything that is done with a staging file."""

    def test_a_staging_file_is_read_up_to_its_valid_length(self, store: Store) -> None:
        """The file ends where the handle says, can be read in any order, and never shows what came later."""
        needs(store, "staging_files")
        staging_file = write_staging_file(store, D1, D2, tail=D3)
        with store.open_staging_file(staging_file) as file:
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
        needs(store, "staging_files")
        stream = store.create(new_staging_file())
        handles = [_added(stream, data) for data in (b"", D1, b"", D2, D3)]
        stream.close()
        for handle, data in zip(handles, (b"", D1, D1, D1 + D2, D1 + D2 + D3), strict=True):
            assert read_staging_file(store, handle) == data

    def test_another_process_reads_a_staging_file_that_is_being_written(
        self, store: Store, elsewhere: Elsewhere
    ) -> None:
        """Reading needs no lease and takes none away: the writer goes on."""
        needs(store, "staging_files")
        stream = store.create(new_staging_file())
        staging_file = _added(stream, D1)
        stream.write(D2)
        with elsewhere(lambda other: read_staging_file(other, staging_file).decode()) as seen:
            assert seen == D1.decode()
        stream.verify()
        longer = _added(stream, D3)
        assert read_staging_file(store, longer) == D1 + D2 + D3
        stream.close()

    def test_a_resumed_staging_file_goes_on_where_it_was(self, store: Store, reopen: Callable[[], Store]) -> None:
        """A staging file that another attempt resumes is read as one file, by its old handles and by its new one."""
        needs(store, "staging_files", "append")
        old = write_staging_file(store, D1)
        resumed = reopen().resume(old)
        assert resumed.position == len(D1)
        new = _added(resumed, D2)
        resumed.close()
        assert (read_staging_file(store, old), read_staging_file(store, new)) == (D1, D1 + D2)

    def test_a_staging_file_of_many_persists_has_a_handle_of_few_bytes(self, store: Store) -> None:
        """What a checkpoint holds of a staging file does not grow with its persists, nor are its bytes lost."""
        needs(store, "staging_files")
        draw = random.Random(8)  # noqa: S311 - it only has to be varied.
        stream = store.create(new_staging_file())
        data, handles = b"", []
        for _ in range(_PERSISTS):
            piece = draw.randbytes(draw.choice((1, 30, 700)))
            data += piece
            handles.append(_added(stream, piece))
        stream.close()
        assert max(len(handle.model_dump_json()) for handle in handles) < _MOST_HANDLE_BYTES
        for handle in (handles[0], *draw.sample(handles, 8), handles[-1]):
            assert read_staging_file(store, handle) == data[: handle.valid_length]
        with store.open_staging_file(handles[-1]) as file:
            for _ in range(8):
                start = file.seek(draw.randrange(len(data)))
                count = draw.randrange(5000)
                assert file.read(count) == data[start : start + count]

    def test_a_staging_file_is_never_pending_or_finished(self, store: Store) -> None:
        """R5: it is never published or closed for commit; it stays what it is."""
        needs(store, "staging_files")
        stream = store.create(new_staging_file())
        staging_file = _added(stream, D1)
        before = files_in(store)
        with pytest.raises(PartfileError):
            stream.close_for_commit()
        assert _added(stream, D2).valid_length == len(D1 + D2)
        stream.close()
        with pytest.raises(PartfileError):
            store.publish(staging_file, "auto")
        assert read_staging_file(store, staging_file) == D1
        assert set(files_in(store)) == set(before)
        assert not store.file_exists(staging_file.path_of(staging_file.name))

    def test_only_staging_files_are_read_back(self, store: Store) -> None:
        """A part that is to be published is read when it is finished, and not before."""
        stream = store.create(new_part())
        stream.write(D1)
        handle = stream.persist()
        stream.close()
        with pytest.raises(PartfileError):
            store.open_staging_file(handle)

    def test_a_staging_file_that_is_gone_or_too_short_is_missing(self, store: Store) -> None:
        """Rows that a checkpoint vouches for are not passed over in silence."""
        needs(store, "staging_files")
        staging_file, nowhere = write_staging_file(store, D1), new_staging_file("nowhere").at(1)
        for wrong in (staging_file.at(len(D1) + 1), nowhere):
            with pytest.raises(PartMissing):
                read_staging_file(store, wrong)
        assert store.is_staged(staging_file)
        assert not store.is_staged(nowhere)
        assert store.discard(staging_file)
        assert not store.is_staged(staging_file)
        with pytest.raises(PartMissing):
            read_staging_file(store, staging_file)

    def test_discarding_a_staging_file_leaves_nothing(self, store: Store) -> None:
        """Once nothing names it, all of it goes, and a second time there is nothing."""
        needs(store, "staging_files")
        stream = store.create(new_staging_file())
        for _ in range(_PERSISTS):
            staging_file = _added(stream, D1)
        stream.close()
        assert store.is_staged(staging_file)
        assert store.discard(staging_file)
        assert not store.discard(staging_file)
        assert not store.is_staged(staging_file)
        assert not files_in(store)
        assert not list(store.leftovers((), 1 << 50))

    def test_a_staging_file_that_is_being_written_is_not_discarded(self, store: Store, elsewhere: Elsewhere) -> None:
        """A staging file that is being written is not an orphan, even if no checkpoint names it."""
        needs(store, "staging_files", "append", "lease")
        staging_file = write_staging_file(store, D1)
        held: list[PartStream] = []
        with elsewhere(lambda other: held.append(other.resume(staging_file))), pytest.raises(LeaseUnavailable):
            store.discard(staging_file)

    def test_a_store_without_staging_files_says_so(self, store: Store) -> None:
        """What is not claimed is refused, with nothing done."""
        if store.capabilities.staging_files:
            pytest.skip("the store claims staging files")
        for verb in (store.create, store.open_staging_file):
            with pytest.raises(NotApplied):
                verb(new_staging_file())
        assert not files_in(store)


def write_staging_file(store: Store, *persisted: bytes, tail: bytes = b"") -> PartHandle:
    """Make a staging file, each of ``persisted`` vouched for, and ``tail`` written after it."""
    stream = store.create(new_staging_file())
    for data in persisted:
        handle = _added(stream, data)
    stream.write(tail)
    stream.close()
    return handle


def read_staging_file(store: Store, handle: PartHandle) -> bytes:
    """All that a handle vouches for."""
    with store.open_staging_file(handle) as file:
        return file.read()


def _added(stream: PartStream, data: bytes) -> PartHandle:
    stream.write(data)
    return stream.persist()


__all__ = ["MetadataContract", "StoreContract"]


class StoreContract(
    PartContract,
    ClaimContract,
    CommitContract,
    StagingContract,
    CleaningContract,
    MetadataContract,
    ForkedMarkerContract,
):
    """Both ports. Subclass it, name the subclass ``Test...`` and override the fixture ``reopen``."""

    def test_the_store_says_where_it_is_and_what_it_can_do(self, store: Store) -> None:
        """Messages need the base, decisions the capabilities."""
        assert store.base
        assert isinstance(store.capabilities, Capabilities)

    @pytest.mark.parametrize("path", ["..", "../x", "/etc/x", "a//b", "a/../b", "a\x00b", "x" * 256])
    def test_directories_that_leave_the_base_are_not_listed(self, store: Store, path: str) -> None:
        """The listing of parts checks what it is given, as every verb does."""
        with pytest.raises(ConfigError):
            list(store.list(path))
