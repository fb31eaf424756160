"""What the tests of the store contract share: stores, parts and processes of their own."""

# ruff: noqa: S101 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

import gc
import json
import os
import warnings
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Literal

import pytest

from partfile.filesystems.errors import PartfileError
from partfile.filesystems.port import PartHandle
from partfile.filesystems.tokens import new_token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from partfile.filesystems.port import Cut, Store

State = Literal["in-progress", "pending", "finished"]

STATES: tuple[State, ...] = ("in-progress", "pending", "finished")
CUTS: tuple[Cut, ...] = ("auto", "truncate", "rewrite", "valid-length")
MAX_BYTES = 1 << 20


def new_part(bucket: str = "day=1", name: str = "part-0000abcd-0-0") -> PartHandle:
    """A part that nobody has created yet, with a token of its own."""
    token = new_token()
    return PartHandle(
        bucket=bucket,
        name=name,
        in_progress=f"_{name}.{token}.in-progress",
        pending=f"_{name}.{token}.pending",
        sidecar=f"_{name}.valid-length",
        valid_length=0,
    )


def new_stage(bucket: str = "day=1", name: str = "part-0000abcd-0-0") -> PartHandle:
    """The same for a stage."""
    return new_part(bucket, name).model_copy(update={"is_stage": True})


def write_part(store: Store, valid: bytes, *, tail: bytes = b"", state: State = "in-progress") -> PartHandle:
    """Bring a part to a state, with ``valid`` vouched for and ``tail`` written after it."""
    handle = new_part()
    stream = store.create(handle)
    stream.write(valid)
    handle = stream.persist()
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

    A store may make a part pending before it finds that it cannot commit it (S5).
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
