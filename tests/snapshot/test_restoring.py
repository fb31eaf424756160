"""State is never left behind in silence."""

from __future__ import annotations

import logging

import pytest

from partfile.errors import RecoveryRefused
from partfile.snapshot.documents import FileHandle, OperatorState
from partfile.snapshot.operator_state import restored_operators

FULL = OperatorState(parallelism=1, coordinator=FileHandle(path="a", size_bytes=1, crc32=1))
EMPTY = OperatorState(parallelism=1)


@pytest.mark.item("SP-15", "SP-20")
def test_state_of_a_removed_operator_is_refused() -> None:
    """Its id is named, and the option that allows it; operators without state may go."""
    with pytest.raises(RecoveryRefused, match=r"'gone'.*allow_non_restored"):
        restored_operators({"gone": FULL, "empty": EMPTY, "kept": FULL}, {"kept"}, allow_non_restored=False)
    assert restored_operators({"empty": EMPTY, "kept": FULL}, {"kept"}, allow_non_restored=False) == {"kept": FULL}


@pytest.mark.item("SP-15", "SP-20")
def test_state_may_be_left_behind_on_demand(caplog: pytest.LogCaptureFixture) -> None:
    """With the option it is skipped, and the log names it."""
    with caplog.at_level(logging.WARNING, logger="partfile"):
        assert restored_operators({"gone": FULL, "kept": FULL}, {"kept"}, allow_non_restored=True) == {"kept": FULL}
    assert "'gone'" in caplog.text


@pytest.mark.item("SP-19", "SP-21", "SP-22")
def test_operators_are_found_by_their_ids() -> None:
    """A new operator begins with no state; order and operators without state mean nothing."""
    snapshot = {"a": FULL, "b": EMPTY}
    assert restored_operators(snapshot, ["new", "b", "a"], allow_non_restored=False) == snapshot
    assert restored_operators({}, ["new"], allow_non_restored=False) == {}
