"""A publish that cuts, each of whose calls in turn is done and loses its reply."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from partfile.errors import OutcomeUnknown, StoreError
from partfile.stores.hdfs.client import HdfsCalls
from partfile.stores.hdfs.options import HdfsOptions
from partfile.testing.store import finished_bytes, write_part

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdfs_cluster import HdfsCluster
    from hdfs_life import Opener

    from partfile.stores.base import Cut
    from partfile.testing.faults import Call


DATA, TAIL = b"valid" * 2000, b"tail" * 1250


class LostReply:
    """Lets one of the calls that succeed fail for its caller.

    A file that it opened stays open; dropped, it would close itself.
    """

    def __init__(self, n: int, error: Exception, call: str) -> None:
        self._n = n
        self._error = error
        self._call = call
        self._results: list[object] = []

    @property
    def count(self) -> int:
        """How many calls have succeeded."""
        return len(self._results)

    def around(self, call: Call, proceed: Callable[[], object]) -> object:
        """Do the call, and fail if it is its turn."""
        result = proceed()
        if call.name == self._call:
            self._results.append(result)
            if self.count == self._n:
                raise self._error
        return result


@pytest.fixture
def hold(hdfs: HdfsCluster, hdfs_directory: str) -> Callable[[str], object]:
    """Opens a file for appending, and keeps its lease for as long as this process lives."""
    calls = HdfsCalls(hdfs.url, HdfsOptions())
    return lambda path: calls.append(f"{hdfs_directory}/{path}")


RESET = OSError("connection reset")
SECOND_ATTEMPT = FileNotFoundError("rename source is not found, said the second attempt")
BROKEN = OSError("RPC listener disconnected")
"""What hdfs-native says of a call that was under way when the NameNode died."""
REPLIES: dict[str, list[Exception]] = {
    "rename": [RESET, SECOND_ATTEMPT],
    "recover_lease": [RESET, BROKEN],
    "append": [BROKEN],
    "truncate": [OutcomeUnknown("the answer was lost", path="x")],
    "create": [RESET],
    "write": [RESET],
    "sync": [RESET],
    "close": [RESET],
}
FEWEST_CALLS: dict[Cut, dict[str, int]] = {
    "truncate": {"recover_lease": 1, "append": 1, "close": 1, "truncate": 1, "rename": 1},
    "rewrite": {"recover_lease": 1, "append": 1, "create": 1, "write": 1, "sync": 1, "close": 2, "rename": 3},
    "valid-length": {"recover_lease": 1, "append": 1, "create": 1, "write": 1, "sync": 1, "close": 2, "rename": 2},
}
"""Of one publish of a pending part whose lease somebody has and whose tail does not count."""
PATIENCE_S = 30.0


@pytest.mark.drawn(6)
@pytest.mark.parametrize(("cut", "call"), [(cut, call) for cut, calls in FEWEST_CALLS.items() for call in calls])
def test_a_lost_reply_of_a_publish_that_cuts_is_decided_by_looking(
    opener: Opener, hold: Callable[[str], object], cut: Cut, call: str
) -> None:
    """Each call of it was done, its reply lost, and maybe hdfs-native repeated it: it succeeds, at once or repeated."""
    for error in REPLIES[call]:
        for number in itertools.count(1):
            store = opener()
            handle = write_part(store, DATA, tail=TAIL, state="pending")
            if call in {"append", "recover_lease", "close"}:
                hold(handle.path_of(handle.pending))
            fault = LostReply(number, error, call)
            faulty = opener(fault)
            began_s = time.monotonic()
            try:
                faulty.publish(handle, cut)
            except StoreError:
                faulty.publish(handle, cut)
            assert time.monotonic() - began_s < PATIENCE_S
            assert finished_bytes(store, handle) == DATA
            store.delete_directory("day=1")
            if fault.count < number:
                assert number > FEWEST_CALLS[cut][call]
                break
