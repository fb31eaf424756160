"""Calls of the HDFS store that were done although they failed, and streams that failed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from partfile.errors import LeaseUnavailable, StoreError
from partfile.testing.faults import FailAt
from partfile.testing.store import files_in, finished_bytes, new_part, write_part

if TYPE_CHECKING:
    from hdfs_life import Opener


DATA, TAIL = b"valid" * 2000, b"tail" * 1250


RESET = OSError("connection reset")
BROKEN = OSError("RPC listener disconnected")
"""What hdfs-native says of a call that was under way when the NameNode died."""


def test_a_part_whose_creation_was_not_answered_is_created_anew(opener: Opener) -> None:
    """Its name carries a token that no other attempt has, so what is there can go; no batch fails for it."""
    for error in (RESET, BROKEN):
        store = opener(FailAt(1, error, applied=True, only={"create"}))
        stream = store.create(new_part())
        stream.write(DATA)
        handle = stream.close_for_commit()
        store.publish(handle, "rewrite")
        assert files_in(opener()) == {handle.path_of(handle.name): len(DATA)}
        opener().delete_file(handle.path_of(handle.name))


@pytest.mark.parametrize("error", [OSError("connection reset"), FileNotFoundError("the second attempt")])
def test_a_lost_reply_of_close_for_commit_is_decided_by_looking(opener: Opener, error: Exception) -> None:
    """The part is pending if it is there under that name alone."""
    stream = opener(FailAt(1, error, applied=True, only={"rename"})).create(new_part())
    stream.write(DATA)
    handle = stream.close_for_commit()
    assert files_in(opener()) == {handle.path_of(handle.pending): len(DATA)}


REPEATED = {"append", "status", "sync", "rename", "recover_lease"}


@pytest.mark.parametrize("applied", [False, True])
def test_a_part_goes_through_its_life_over_a_connection_that_breaks_at_any_call(opener: Opener, applied: bool) -> None:
    """What is harmless to do twice is repeated; only a part that was opened in vain is refused, and ends as it is."""
    for number in itertools.count(1):
        handle = write_part(opener(), DATA)
        fault = FailAt(number, BROKEN, applied=applied, only=REPEATED)
        store = opener(fault)
        try:
            stream = store.resume(handle)
        except LeaseUnavailable:
            assert (number, applied) == (1, True)
        else:
            stream.write(TAIL)
            stream.persist()
            stream.verify()
            handle = stream.close_for_commit()
        store.publish(handle, "rewrite")
        assert finished_bytes(opener(), handle) == (DATA + TAIL)[: handle.valid_length]
        opener().delete_file(handle.path_of(handle.name))
        if fault.count < number:
            assert number > len(REPEATED)
            return


@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_stream_that_failed_is_poisoned(opener: Opener, call: str) -> None:
    """Nobody knows which bytes are durable, so it can only be closed; the lease is free afterwards."""
    stream = opener(FailAt(2, RuntimeError('DataTransferError("x")'), only={call})).create(new_part())
    stream.write(DATA)
    handle = stream.persist()
    with pytest.raises(StoreError):
        _write_and_persist(stream)
    for verb in (stream.persist, stream.verify, stream.close_for_commit):
        with pytest.raises(StoreError, match="lost to this process"):
            verb()
    stream.close()
    opener().publish(handle, "rewrite")
    assert finished_bytes(opener(), handle) == DATA


def _write_and_persist(stream: Any) -> None:
    stream.write(TAIL)
    stream.persist()
