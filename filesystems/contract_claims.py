"""Contract of parts that are no files before they are finished: who extends them, and what of that counts."""

# ruff: noqa: S101 - the shipped contract suite is made of pytest asserts.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from partfile.filesystems.contract_base import (
    ContractBase,
    finished_bytes,
    needs,
    needs_no_staged_files,
    new_part,
    write_part,
)
from partfile.filesystems.errors import CommitConflict, LeaseUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from partfile.filesystems.port import Store

    Elsewhere = Callable[[Callable[[Store], Any]], AbstractContextManager[Any]]

D1, D2, D3 = b"one ", b"two ", b"three"


class ClaimContract(ContractBase):
    """What stands for leases where there are none: one handle can be resumed once."""

    def test_of_several_who_resume_one_handle_one_extends_the_part(
        self, store: Store, reopen: Callable[[], Store], elsewhere: Elsewhere
    ) -> None:
        """Where a handle can be resumed once, everybody else is refused for good, even when the first one is gone."""
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
        """A stream that has given a handle out extends the part no more once somebody else has resumed that handle."""
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

    def test_what_somebody_adds_to_a_handle_is_in_no_other_file(self, store: Store) -> None:
        """A part published from an earlier handle has the bytes of that one, whatever a zombie has added since."""
        needs(store, "append")
        needs_no_staged_files(store)
        handle = write_part(store, D1)
        zombie = store.resume(handle)
        zombie.write(D2)
        zombie.persist()
        store.publish(handle, "auto")
        assert finished_bytes(store, handle) == D1
        zombie.write(D3)
        with pytest.raises(CommitConflict):
            store.publish(zombie.close_for_commit(), "auto")
        assert finished_bytes(store, handle) == D1
